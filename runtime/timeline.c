/* timeline.c - see timeline.h. */
#include "runtime/timeline.h"

#include <stdlib.h>
#include <string.h>

static const int64_t costs[PTASK_gather + 1] = {
    [PTASK_forward] = 1, [PTASK_backward] = 2, [PTASK_input] = 1, [PTASK_weight] = 1};

int64_t inf_task_slots(const PlanTask *task) { return costs[task->kind]; }

const PlanRank *inf_timeline_rank(const InfTimeline *t, int rank) {
    return &t->plan->program[0].rank[rank];
}

/* Where (chunk, microbatch) finds its task of a kind; -1: nowhere. */
static int64_t *task_at(const InfTimeline *t, PlanTaskKind kind, int chunk, int microbatch) {
    const PlanProgram *train = &t->plan->program[0];
    return &t->index[((int64_t)chunk * train->microbatches + microbatch) * PTASK_update + kind];
}

/* The end of the task of this kind, chunk and microbatch; -1 while unknown, 0 when absent. */
static int64_t end_of(const InfTimeline *t, PlanTaskKind kind, int chunk, int microbatch) {
    if (chunk < 0 || chunk >= t->chunks) return 0;
    int64_t at = *task_at(t, kind, chunk, microbatch);
    if (at < 0) return 0;
    return t->start[at] < 0 ? -1 : t->start[at] + costs[kind];
}

/* When the inputs of a task are there; -1 while one is unknown. */
static int64_t ready_at(const InfTimeline *t, const PlanTask *task) {
    int chunk = task->chunk, m = task->microbatch;
    int64_t need[3] = {0, 0, 0};
    switch ((PlanTaskKind)task->kind) {
    case PTASK_forward: need[0] = end_of(t, PTASK_forward, chunk - 1, m); break;
    case PTASK_backward:
    case PTASK_input:
        need[0] = end_of(t, PTASK_forward, chunk, m);
        need[1] = end_of(t, PTASK_backward, chunk + 1, m);
        need[2] = end_of(t, PTASK_input, chunk + 1, m);
        break;
    case PTASK_weight: need[0] = end_of(t, PTASK_input, chunk, m); break;
    case PTASK_update:
    case PTASK_send:
    case PTASK_recv:
    case PTASK_reduce:
    case PTASK_gather: break;
    }
    int64_t ready = 0;
    for (int i = 0; i < 3; i++) {
        if (need[i] < 0) return -1;
        ready = need[i] > ready ? need[i] : ready;
    }
    return ready;
}

/* Places tasks rank by rank until none moves; the compiler has proven that this ends. */
static InfCode simulate(InfError *e, InfTimeline *t, uint32_t *next, int64_t *clock) {
    bool moved = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < t->ranks; r++)
            for (; next[r] < inf_timeline_rank(t, r)->ntask; next[r]++) {
                uint32_t at = inf_timeline_rank(t, r)->task + next[r];
                const PlanTask *task = &t->plan->task[at];
                int64_t ready = ready_at(t, task);
                if (ready < 0) break;
                t->start[at] = ready > clock[r] ? ready : clock[r];
                clock[r] = t->start[at] + costs[task->kind];
                t->end = clock[r] > t->end ? clock[r] : t->end;
                moved = true;
            }
    }
    for (int r = 0; r < t->ranks; r++)
        if (next[r] < inf_timeline_rank(t, r)->ntask)
            return inf_fail(e, INF_INTERNAL, "the schedule of rank %d waits for ever at task %u", r,
                            next[r]);
    return INF_OK;
}

static void fill_index(InfTimeline *t, size_t units) {
    for (size_t i = 0; i < units; i++) t->index[i] = -1;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            int64_t at = inf_timeline_rank(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (inf_task_computes(task))
                *task_at(t, (PlanTaskKind)task->kind, task->chunk, task->microbatch) = at;
        }
}

/* ---- sums --- */

/* A forward of a mean chunk, in the unit in which times are predicted. */
static double slot_of(const InfTimeline *t) {
    double sum = 0, count = 0;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            const PlanTask *task = &t->plan->task[inf_timeline_rank(t, r)->task + i];
            if (task->kind != PTASK_forward) continue;
            sum += task->length;
            count++;
        }
    return sum > 0 ? sum / count : 1;
}

/* When the task behind which a sum stands has come that far. */
static double complete_at(const InfTimeline *t, const PlanRank *rank, uint32_t at) {
    const PlanTask *sum = &t->plan->task[at];
    uint32_t last = at;
    while (last > rank->task &&
           (!t->plan->task[last].last || t->plan->task[last].local != sum->local))
        last--;
    return (double)t->start[last] + sum->done * (double)inf_task_slots(&t->plan->task[last]);
}

static double put_sum(InfTimeline *t, uint32_t at, double begin, double slot) {
    t->sum[2 * at] = begin;
    t->sum[2 * at + 1] = t->plan->task[at].length / slot;
    double end = begin + t->sum[2 * at + 1];
    if (end > t->sum_end) t->sum_end = end;
    return end;
}

/* In order on processors: by the host, when all is computed. */
static bool sums_last(const Plan *plan) {
    return plan->ordered && strcmp(plan->target, "cuda") != 0;
}

static uint32_t update_of(const InfTimeline *t, const PlanRank *rank) {
    uint32_t at = rank->task;
    while (t->plan->task[at].kind != PTASK_update) at++;
    return at;
}

/* Sums one after another on each rank; the updates behind these; then the gathers. */
static void place_sums(InfTimeline *t) {
    double slot = slot_of(t);
    t->sum_end = (double)t->end;
    for (int r = 0; r < t->ranks; r++) {
        const PlanRank *rank = inf_timeline_rank(t, r);
        uint32_t update = update_of(t, rank);
        double lane = sums_last(t->plan) ? (double)t->start[update] : 0;
        for (uint32_t at = rank->task; at < rank->task + rank->ntask; at++) {
            if (t->plan->task[at].kind != PTASK_reduce) continue;
            double ready = complete_at(t, rank, at);
            lane = put_sum(t, at, ready > lane ? ready : lane, slot);
        }
        double computed = (double)t->start[update];
        t->sum[2 * update] = computed > lane ? computed : lane;
    }
    double update = t->sum_end;
    for (int r = 0; r < t->ranks; r++) {
        const PlanRank *rank = inf_timeline_rank(t, r);
        double lane = update;
        for (uint32_t at = rank->task; at < rank->task + rank->ntask; at++)
            if (t->plan->task[at].kind == PTASK_gather) lane = put_sum(t, at, lane, slot);
    }
}

/* ---- the whole --- */

InfCode inf_timeline_open(InfError *e, const Plan *plan, InfTimeline *t) {
    *t = (InfTimeline){
        .plan = plan, .ranks = plan->pp, .chunks = plan->pp * plan->vpp, .sums = plan->dp > 1};
    size_t units = (size_t)t->chunks * (size_t)plan->program[0].microbatches * PTASK_update;
    uint32_t total = 0;
    for (int r = 0; r < t->ranks; r++) {
        uint32_t end = inf_timeline_rank(t, r)->task + inf_timeline_rank(t, r)->ntask;
        total = end > total ? end : total;
    }
    t->start = malloc((total + 1) * sizeof *t->start);
    t->sum = calloc(2 * (size_t)total + 1, sizeof *t->sum);
    t->index = malloc((units + 1) * sizeof *t->index);
    uint32_t *next = calloc((size_t)t->ranks + 1, sizeof *next);
    int64_t *clock = calloc((size_t)t->ranks + 1, sizeof *clock);
    bool have = t->start && t->sum && t->index && next && clock;
    InfCode code = have ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) fill_index(t, units);
    for (uint32_t i = 0; code == INF_OK && i < total; i++) t->start[i] = -1;
    if (code == INF_OK) code = simulate(e, t, next, clock);
    if (code == INF_OK && t->sums) place_sums(t);
    free(next);
    free(clock);
    return code;
}

void inf_timeline_close(InfTimeline *t) {
    free(t->start);
    free(t->sum);
    free(t->index);
    *t = (InfTimeline){0};
}
