/* cause.c - the words for why a run of several ranks ended. */
#include "runtime/cause.h"

#include <stdio.h>

enum { TASK_BITS = 24, TASK_MASK = (1 << TASK_BITS) - 1 };

uint64_t inf_position(int64_t step, int32_t task) {
    return ((uint64_t)(step + 1) << TASK_BITS) | ((uint64_t)(task + 1) & TASK_MASK);
}

static const char *const kinds[] = {
    [PTASK_forward] = "forward",
    [PTASK_backward] = "backward",
    [PTASK_input] = "input gradient",
    [PTASK_weight] = "weight gradient",
    [PTASK_update] = "update",
    [PTASK_send] = "message",
    [PTASK_recv] = "message",
    [PTASK_reduce] = "sum over replicas",
    [PTASK_gather] = "weights to all replicas",
};

/* The row of a rank's table in words, "" when there is none. */
static void task_text(char *out, size_t bytes, const Plan *plan, int rank, int64_t at) {
    const PlanRank *table = plan->nprogram > 0 ? plan->program[0].rank : NULL;
    rank /= inf_plan_replicas(plan);
    *out = '\0';
    if (!table || at < 0 || at >= (int64_t)table[rank].ntask) return;
    const PlanTask *t = &plan->task[table[rank].task + at];
    const char *kind = t->kind < sizeof kinds / sizeof *kinds ? kinds[t->kind] : "task";
    int n = snprintf(out, bytes, ", in task %lld of %lld: %s", (long long)at + 1,
                     (long long)table[rank].ntask, kind);
    if (n < 0 || (size_t)n >= bytes) return;
    out += n;
    bytes -= (size_t)n;
    if (t->kind == PTASK_send || t->kind == PTASK_recv) {
        const PlanMessage *m = &plan->message[t->message];
        snprintf(out, bytes, " of microbatch %d from rank %d to rank %d", m->microbatch,
                 m->from_rank, m->to_rank);
    } else if (t->chunk >= 0) {
        snprintf(out, bytes, " of microbatch %d in chunk %d", t->microbatch, t->chunk);
    }
}

static void place_text(char *out, size_t bytes, const Plan *plan, const InfCause *c) {
    char task[160];
    if (c->position == 0) {
        snprintf(out, bytes, "before its first step");
        return;
    }
    int64_t step = (int64_t)(c->position >> TASK_BITS) - 1;
    task_text(task, sizeof task, plan, c->rank, (int64_t)(c->position & TASK_MASK) - 1);
    snprintf(out, bytes, "at step %lld%s", (long long)step, task);
}

/* "rank 3", with replicas "rank 3 = replica 1 of pipeline rank 1". */
static void rank_text(char *out, size_t bytes, const Plan *plan, int rank) {
    int replicas = inf_plan_replicas(plan);
    int n = snprintf(out, bytes, "rank %d", rank);
    if (replicas > 1 && n > 0 && (size_t)n < bytes)
        snprintf(out + n, bytes - (size_t)n, " = replica %d of pipeline rank %d", rank % replicas,
                 rank / replicas);
}

/* Nothing for a process that had not yet said which it is. */
static void process_text(char *out, size_t bytes, int pid) {
    *out = '\0';
    if (pid > 0) snprintf(out, bytes, " (process %d)", pid);
}

void inf_cause_text(char *out, size_t bytes, const Plan *plan, int ranks, const InfCause *c) {
    char place[256], rank[96], process[32];
    place_text(place, sizeof place, plan, c);
    rank_text(rank, sizeof rank, plan, c->rank);
    process_text(process, sizeof process, c->pid);
    switch ((InfCauseKind)c->kind) {
    case INF_CAUSE_failed:
        snprintf(out, bytes, "%s gave up with exit code %d %s", rank, c->code, place);
        break;
    case INF_CAUSE_died: snprintf(out, bytes, "%s%s died %s", rank, process, place); break;
    case INF_CAUSE_silent:
        snprintf(out, bytes,
                 "%s%s has not answered for %d s: it is stopped, or its host is "
                 "gone; it was last seen %s",
                 rank, process, INF_SILENT_S, place);
        break;
    case INF_CAUSE_missing:
        snprintf(out, bytes, "%s of %d has not started within %d s", rank, ranks, INF_MISSING_S);
        break;
    case INF_CAUSE_stuck:
        snprintf(out, bytes, "MPI has not connected the %d ranks within %d s", ranks, INF_STUCK_S);
        break;
    case INF_CAUSE_alone: snprintf(out, bytes, "mpirun ended before its ranks"); break;
    case INF_CAUSE_none: snprintf(out, bytes, "no cause"); break;
    }
}
