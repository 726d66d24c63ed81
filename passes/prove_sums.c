/* prove_sums.c - the proof's part on what replicas add up and hand each other.
 *
 * All replicas of a rank follow one table, so they begin their sums in one order and cannot wait
 * for each other in a circle; ranks of the pipeline have sums of their own. What is left to prove
 * is where they stand.
 */
#include "passes/prove.h"

/* ---- rows ------------------------------------------------------------------------------- */

typedef struct RankSums {
    const Prover *p;
    int rank;
    int update; /* its place */
    bool *summed, *gathered;
    int last;    /* of the sum before: the place of the task that completes it */
    double done; /* and how far that was */
} RankSums;

/* Counts a row of `what`, which there are `n` of. */
static const char *note_once(const RankSums *s, const char *what, int number, int n, bool *seen) {
    Arena *a = s->p->arena;
    if (number < 0 || number >= n)
        return arena_printf(a, "rank %d has a %s %d of %d", s->rank, what, number, n);
    if (seen[number])
        return arena_printf(a, "rank %d: %s %d goes to the replicas twice", s->rank, what, number);
    seen[number] = true;
    return NULL;
}

static const char *check_sum(RankSums *s, const Task *task, int at) {
    Arena *a = s->p->arena;
    const RankTasks *rank = &s->p->t->rank[s->rank];
    const char *why = note_once(s, "bucket", task->message, rank->nsum, s->summed);
    if (why != NULL) return why;
    int last = table_last_task(rank, task->local);
    if (last < 0 || last > at)
        return arena_printf(a, "rank %d: the sum of bucket %d begins before chunk %d completes it",
                            s->rank, task->message, task->local);
    if (at > s->update)
        return arena_printf(a, "rank %d: the sum of bucket %d begins behind the update", s->rank,
                            task->message);
    if (last < s->last || (last == s->last && task->done < s->done) || !(task->done <= 1))
        return arena_printf(a, "rank %d: the sum of bucket %d stands behind one that begins later",
                            s->rank, task->message);
    s->last = last;
    s->done = task->done;
    return NULL;
}

static const char *check_gather(const RankSums *s, const Task *task, int at) {
    const Table *t = s->p->t;
    const char *why = note_once(s, "part", task->message, t->rank[s->rank].ngather, s->gathered);
    if (why != NULL) return why;
    if (at < s->update)
        return arena_printf(s->p->arena,
                            "rank %d: part %d of the weights is gathered before the "
                            "update",
                            s->rank, task->message);
    if (task->local >= t->vpp)
        return arena_printf(s->p->arena, "rank %d: part %d of the weights is for chunk %d", s->rank,
                            task->message, task->local);
    return NULL;
}

static const char *check_rank(const Prover *p, int r) {
    const RankTasks *rank = &p->t->rank[r];
    RankSums s = {.p = p,
                  .rank = r,
                  .summed = ARENA_ARRAY(p->arena, bool, rank->nsum + 1),
                  .gathered = ARENA_ARRAY(p->arena, bool, rank->ngather + 1),
                  .last = -1};
    const char *why = NULL;
    while (rank->task[s.update].kind != TASK_update) s.update++;
    for (int i = 0; i < rank->ntask && why == NULL; i++) {
        if (rank->task[i].kind == TASK_reduce) why = check_sum(&s, &rank->task[i], i);
        if (rank->task[i].kind == TASK_gather) why = check_gather(&s, &rank->task[i], i);
    }
    for (int i = 0; i < rank->nsum && why == NULL; i++)
        if (!s.summed[i]) why = arena_printf(p->arena, "rank %d never adds up bucket %d", r, i);
    for (int i = 0; i < rank->ngather && why == NULL; i++)
        if (!s.gathered[i])
            why = arena_printf(p->arena, "rank %d never gathers part %d of the weights", r, i);
    return why;
}

const char *prove_sums(const Prover *p) {
    const char *why = NULL;
    for (int r = 0; r < p->t->ranks && why == NULL; r++) why = check_rank(p, r);
    return why;
}

/* ---- what happens before what ----------------------------------------------------------- */

int prove_count_sums(const Table *t) {
    int count = 0;
    for (int r = 0; r < t->ranks && t->replicas > 1; r++)
        count += t->rank[r].nsum + t->rank[r].ngather;
    return count;
}

/* One rank's, whose first task is event `task`: a sum waits for the task that completes its bucket
 * and for the sum before; the update for all sums; gathers for the update and each other. */
static void add_rank(const Prover *p, Events *g, int r, int task, ProveTask **at) {
    const RankTasks *rank = &p->t->rank[r];
    int *complete = ARENA_ARRAY(p->arena, int, p->t->vpp + 1);
    int before = -1, first = g->n, update = -1;
    for (int i = 0; i < rank->ntask; i++) {
        const Task *t = &rank->task[i];
        if (t->kind == TASK_reduce || t->kind == TASK_gather) {
            int event = events_add(g, 0);
            *(*at)++ = (ProveTask){.task = t, .rank = r, .position = i};
            events_edge(g, t->kind == TASK_reduce ? complete[t->local] : update, event);
            if (before >= 0) events_edge(g, before, event);
            before = event;
        } else if (t->kind < TASK_update) {
            if (t->kind == TASK_backward || t->kind == TASK_weight) complete[t->local] = task;
            task++;
        } else if (t->kind == TASK_update) {
            update = task++;
            for (int e = first; e < g->n; e++) events_edge(g, e, update);
        }
    }
}

void prove_add_sums(const Prover *p, Events *g, ProveTask *at) {
    int task = 0;
    for (int r = 0; r < p->t->ranks && p->t->replicas > 1; r++) {
        add_rank(p, g, r, task, &at);
        while (task < p->ntask && p->task[task].rank == r) task++;
    }
}

/* ---- times ------------------------------------------------------------------------------ */

/* The event of the first task of a chunk of rank r, from event `task` on; -1: any chunk. */
static int first_task(const Prover *p, int r, int task, int local) {
    while (task < p->ntask && p->task[task].rank == r && local >= 0 &&
           p->task[task].task->local != local)
        task++;
    return task < p->ntask && p->task[task].rank == r ? task : -1;
}

void prove_add_waits(const Prover *p, Events *g, const ScheduleCosts *costs) {
    int begin = 0;
    for (int r = 0; r < p->t->ranks; r++) {
        const RankTasks *rank = &p->t->rank[r];
        int before = -1;
        for (int i = rank->ntask - rank->ngather; i < rank->ntask; i++) {
            int event = events_add(g, schedule_cost(costs, &rank->task[i]));
            int local = p->t->whole_steps ? -1 : rank->task[i].local;
            int waits = first_task(p, r, begin, local);
            if (before >= 0) events_edge(g, before, event);
            if (waits >= 0) events_edge(g, event, waits);
            before = event;
        }
        while (begin < p->ntask && p->task[begin].rank == r) begin++;
    }
}

static double end_of(const Task *task) { return task->start + task->length; }

/* One rank's sums, one after another; in order, behind all that computes. */
static double time_rank(const Table *t, RankTasks *rank, const ScheduleCosts *costs) {
    double lane = 0;
    int update = rank->ntask - 1 - rank->ngather;
    for (int i = 0; i < update; i++) {
        Task *task = &rank->task[i];
        if (task->kind != TASK_reduce || task->sent <= 0) continue;
        const Task *last = &rank->task[table_last_task(rank, task->local)];
        double ready =
            t->sums_last ? rank->task[update].start : last->start + last->length * task->done;
        task->start = ready > lane ? ready : lane;
        task->length = schedule_cost(costs, task);
        lane = end_of(task);
    }
    if (lane > rank->task[update].start) rank->task[update].start = lane;
    return lane;
}

double prove_time_sums(Table *t, const ScheduleCosts *costs) {
    double end = t->makespan;
    for (int r = 0; r < t->ranks; r++) {
        double own = time_rank(t, &t->rank[r], costs);
        if (own > end) end = own;
    }
    for (int r = 0; r < t->ranks; r++) {
        RankTasks *rank = &t->rank[r];
        double lane = end;
        for (int i = rank->ntask - rank->ngather; i < rank->ntask; i++) {
            rank->task[i].start = lane;
            rank->task[i].length = schedule_cost(costs, &rank->task[i]);
            lane = end_of(&rank->task[i]);
        }
    }
    return end;
}
