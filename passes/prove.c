/* prove.c - the proof of a schedule.
 *
 * Independent of the generators and of the order of messages: it is given a table and asks whether
 * a step that follows it trains what it should, once, without waiting for itself, for ever or for
 * the wrong message. The happens-before graph has a node a task and a node a message: a send and
 * its receive are one event, as under rendezvous, and so is a sum over replicas, who all follow one
 * table. Its edges are the order of each rank's compute tasks, that of each rank's messages and
 * that of its sums, and data. Letting it happen is also a simulation.
 */
#include "passes/prove.h"

#include <inttypes.h>

/* What a task computes for its (chunk, microbatch); backward gives both INPUT and WEIGHT. */
enum { MADE_FORWARD, MADE_INPUT, MADE_WEIGHT, MADE_COUNT };

static int *made_at(const Prover *p, int chunk, int microbatch, int what) {
    return &p->made[(chunk * p->t->microbatches + microbatch) * MADE_COUNT + what];
}

/* The first of its kind in a chunk writes sums, the others add to them. */
static const char *note_made(Prover *p, const Task *task, int what, int at) {
    int *slot = made_at(p, task->chunk, task->microbatch, what);
    if (*slot >= 0)
        return arena_printf(p->arena, "chunk %d computes microbatch %d twice", task->chunk,
                            task->microbatch);
    if (task->first != (p->count[task->chunk * MADE_COUNT + what]++ == 0))
        return arena_printf(p->arena, "chunk %d: microbatch %d %s", task->chunk, task->microbatch,
                            task->first ? "writes what others added to" : "adds to nothing");
    *slot = at;
    return NULL;
}

static const char *note_task(Prover *p, int rank, const Task *task, int at) {
    const Table *t = p->t;
    if (task->chunk < 0 || task->chunk >= t->chunks || task->microbatch < 0 ||
        task->microbatch >= t->microbatches)
        return arena_printf(p->arena, "rank %d has a task of chunk %d, microbatch %d", rank,
                            task->chunk, task->microbatch);
    if (t->home[task->chunk] != rank)
        return arena_printf(p->arena, "chunk %d is on two ranks, %d and %d", task->chunk,
                            t->home[task->chunk], rank);
    const char *why = NULL;
    if (task->kind == TASK_forward) return note_made(p, task, MADE_FORWARD, at);
    if (task->kind != TASK_weight) why = note_made(p, task, MADE_INPUT, at);
    if (why == NULL && task->kind != TASK_input) why = note_made(p, task, MADE_WEIGHT, at);
    return why;
}

static bool is_message(const Task *task) {
    return task->kind == TASK_send || task->kind == TASK_recv;
}

static bool is_sum(const Task *task) {
    return task->kind == TASK_reduce || task->kind == TASK_gather;
}

/* Compute tasks and updates into `task`; messages, sums and gathers are looked at later. */
static const char *collect_tasks(Prover *p) {
    for (int r = 0; r < p->t->ranks; r++) {
        const RankTasks *rank = &p->t->rank[r];
        int last = rank->ntask - 1;
        while (last >= 0 && is_sum(&rank->task[last])) last--;
        if (last < 0) return arena_printf(p->arena, "rank %d never updates", r);
        for (int i = 0; i < rank->ntask; i++) {
            const Task *task = &rank->task[i];
            if ((task->kind == TASK_update) != (i == last))
                return arena_printf(p->arena, "rank %d: the update is not its one last task", r);
            if (is_message(task) || is_sum(task)) continue;
            p->task[p->ntask] = (ProveTask){.task = task, .rank = r, .position = i};
            const char *why = task->kind == TASK_update ? NULL : note_task(p, r, task, p->ntask);
            if (why != NULL) return why;
            p->ntask++;
        }
    }
    return NULL;
}

static const char *check_complete(const Prover *p) {
    static const char *const name[] = {"forward", "input gradient", "weight gradient"};
    for (int c = 0; c < p->t->chunks; c++)
        for (int m = 0; m < p->t->microbatches; m++)
            for (int what = 0; what < MADE_COUNT; what++)
                if (*made_at(p, c, m, what) < 0)
                    return arena_printf(p->arena, "chunk %d has no %s of microbatch %d", c,
                                        name[what], m);
    return NULL;
}

/* Gradients of a chunk add up in ascending order of microbatches. */
static const char *check_ascending(const Prover *p) {
    for (int c = 0; c < p->t->chunks; c++)
        for (int m = 1; m < p->t->microbatches; m++)
            for (int what = MADE_INPUT; what < MADE_COUNT; what++)
                if (*made_at(p, c, m, what) < *made_at(p, c, m - 1, what))
                    return arena_printf(
                        p->arena,
                        "chunk %d: the backward of microbatch %d comes before microbatch %d", c, m,
                        m - 1);
    return NULL;
}

int prove_producer(const Prover *p, const Message *m) {
    return *made_at(p, m->from, m->microbatch,
                    m->kind == MESSAGE_activation ? MADE_FORWARD : MADE_INPUT);
}

int prove_consumer(const Prover *p, const Message *m) {
    return *made_at(p, m->to, m->microbatch,
                    m->kind == MESSAGE_activation ? MADE_FORWARD : MADE_INPUT);
}

/* ---- what happens before what ------------------------------------------------------------- */

static Events task_events(const Prover *p, const ScheduleCosts *costs, int more) {
    Events g = events_new(p->arena, p->ntask + more + 1);
    for (int e = 0; e < p->ntask; e++) {
        events_add(&g, schedule_cost(costs, p->task[e].task));
        if (e > 0 && p->task[e].rank == p->task[e - 1].rank) events_edge(&g, e - 1, e);
    }
    for (int c = 0; c < p->t->chunks; c++)
        for (int m = 0; m < p->t->microbatches; m++) {
            int input = *made_at(p, c, m, MADE_INPUT), weight = *made_at(p, c, m, MADE_WEIGHT);
            events_edge(&g, *made_at(p, c, m, MADE_FORWARD), input);
            if (weight != input) events_edge(&g, input, weight);
        }
    return g;
}

/* Handovers within a rank; with `between_ranks` those to another rank too, at no cost. */
static void add_handovers(const Prover *p, Events *g, bool between_ranks) {
    const Table *t = p->t;
    for (int i = 0; i < t->nedge; i++) {
        int from = t->edge[i].from, to = t->edge[i].to;
        if (!table_is_local(t, from, to) && !between_ranks) continue;
        for (int m = 0; m < t->microbatches; m++) {
            events_edge(g, *made_at(p, from, m, MADE_FORWARD), *made_at(p, to, m, MADE_FORWARD));
            if (t->edge[i].gradient)
                events_edge(g, *made_at(p, to, m, MADE_INPUT), *made_at(p, from, m, MADE_INPUT));
        }
    }
}

static void add_messages(const Prover *p, Events *g, const ScheduleCosts *costs) {
    const Table *t = p->t;
    for (int i = 0; i < t->nmessage; i++) {
        int event = events_add(g, schedule_message_cost(costs, t, &t->message[i]));
        events_edge(g, prove_producer(p, &t->message[i]), event);
        events_edge(g, event, prove_consumer(p, &t->message[i]));
    }
    for (int r = 0; r < t->ranks; r++) {
        int last = -1;
        for (int i = 0; i < t->rank[r].ntask; i++) {
            const Task *task = &t->rank[r].task[i];
            if (!is_message(task)) continue;
            int event = p->ntask + task->message;
            if (last >= 0 && last != event) events_edge(g, last, event);
            last = event;
        }
    }
}

static double makespan(const Events *g) {
    double end = 0;
    for (int e = 0; e < g->n; e++)
        if (event_end(&g->event[e]) > end) end = event_end(&g->event[e]);
    return end;
}

static double busy(const Prover *p, const Events *g) {
    double sum = 0;
    for (int e = 0; e < p->ntask; e++) sum += g->event[e].cost;
    return sum;
}

/* "F2 of chunk 1 on rank 1", "the activation of microbatch 2 from rank 0 to rank 1". */
static const char *event_text(const Prover *p, int event) {
    static const char letter[] = {
        [TASK_forward] = 'F', [TASK_backward] = 'B', [TASK_input] = 'I', [TASK_weight] = 'W'};
    if (event >= p->ntask + p->t->nmessage) {
        const ProveTask *at = &p->sum[event - p->ntask - p->t->nmessage];
        return arena_printf(p->arena, "%s %d of rank %d",
                            at->task->kind == TASK_reduce ? "the sum of bucket"
                                                          : "the gather of part",
                            at->task->message, at->rank);
    }
    if (event >= p->ntask) {
        const Message *m = &p->t->message[event - p->ntask];
        return arena_printf(p->arena, "the %s of microbatch %d from rank %d to rank %d",
                            m->kind == MESSAGE_activation ? "activation" : "gradient",
                            m->microbatch, m->from_rank, m->to_rank);
    }
    const ProveTask *at = &p->task[event];
    if (at->task->kind == TASK_update)
        return arena_printf(p->arena, "the update of rank %d", at->rank);
    return arena_printf(p->arena, "%c%d of chunk %d on rank %d", letter[at->task->kind],
                        at->task->microbatch, at->task->chunk, at->rank);
}

enum { CYCLE_SHOWN = 8 };

static const char *cycle_text(const Prover *p, const Events *g, int stuck) {
    int *cycle = ARENA_ARRAY(p->arena, int, g->n + 1);
    int n = events_cycle(g, cycle);
    const char *text = arena_printf(p->arena, "%d of %d tasks and messages wait for each other: %s",
                                    stuck, g->n, event_text(p, cycle[0]));
    for (int i = 1; i <= n; i++) {
        if (i >= CYCLE_SHOWN && i < n) continue;
        text = arena_printf(p->arena, "%s waits for %s%s", text,
                            i == n && n > CYCLE_SHOWN ? ".. waits for " : "",
                            event_text(p, cycle[i % n]));
        if (i < n) text = arena_printf(p->arena, "%s, which", text);
    }
    return text;
}

/* Compute tasks alone, messages at no cost. */
static const char *run_tasks(Prover *p, const ScheduleCosts *costs, Proof *proof) {
    Events g = task_events(p, costs, 0);
    add_handovers(p, &g, true);
    int stuck = events_run(&g);
    if (stuck > 0) return cycle_text(p, &g, stuck);
    proof->makespan = makespan(&g);
    double whole = proof->makespan * p->t->ranks;
    proof->bubble = whole > 0 ? 1 - busy(p, &g) / whole : 0;
    return NULL;
}

static const char *run_all(Prover *p, const ScheduleCosts *costs, Proof *proof) {
    int sums = prove_count_sums(p->t);
    Events g = task_events(p, costs, p->t->nmessage + sums);
    add_handovers(p, &g, false);
    add_messages(p, &g, costs);
    p->sum = ARENA_ARRAY(p->arena, ProveTask, sums + 1);
    prove_add_sums(p, &g, p->sum);
    int stuck = events_run(&g);
    if (stuck > 0) return cycle_text(p, &g, stuck);
    proof->makespan_queued = makespan(&g);
    proof->nodes = g.n;
    proof->edges = g.edges;
    return NULL;
}

static Prover prover_new(Arena *arena, const Table *t) {
    int most = 0;
    for (int r = 0; r < t->ranks; r++) most += t->rank[r].ntask;
    size_t nmade = (size_t)t->chunks * (size_t)t->microbatches * MADE_COUNT;
    Prover p = {.arena = arena,
                .t = t,
                .task = ARENA_ARRAY(arena, ProveTask, most + 1),
                .made = ARENA_ARRAY(arena, int, nmade),
                .count = ARENA_ARRAY(arena, int, t->chunks *MADE_COUNT)};
    for (size_t i = 0; i < nmade; i++) p.made[i] = -1;
    return p;
}

/* The times of tasks and messages; with `waits` for what the step before has sent. */
static bool run_times(const Prover *p, const ScheduleCosts *costs, bool waits, Events *g) {
    int sums = waits ? prove_count_sums(p->t) : 0;
    *g = task_events(p, costs, p->t->nmessage + sums);
    add_handovers(p, g, false);
    add_messages(p, g, costs);
    if (waits) prove_add_waits(p, g, costs);
    return events_run(g) == 0;
}

void prove_times(Arena *arena, Table *t, const ScheduleCosts *costs) {
    Prover p = prover_new(arena, t);
    Events g;
    bool gathers = false;
    if (collect_tasks(&p) != NULL || !run_times(&p, costs, false, &g)) return;
    double alone = makespan(&g);
    for (int r = 0; r < t->ranks; r++) gathers = gathers || t->rank[r].ngather > 0;
    if (gathers && !run_times(&p, costs, true, &g)) return;
    t->makespan = makespan(&g);
    for (int r = 0, next = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            Task *task = &t->rank[r].task[i];
            if (is_sum(task)) continue;
            const Event *e = &g.event[is_message(task) ? p.ntask + task->message : next++];
            task->start = e->start;
            task->length = e->cost;
        }
    double summed = prove_time_sums(t, costs);
    if (summed > t->makespan) t->makespan = summed;
    t->exposed = t->makespan - alone;
    t->bubble = t->makespan > 0 ? 1 - busy(&p, &g) / (t->makespan * t->ranks) : 0;
}

/* ---- the whole ---------------------------------------------------------------------------- */

static int peak_in_flight(const RankTasks *rank) {
    int now = 0, peak = 0;
    for (int i = 0; i < rank->ntask; i++) {
        TaskKind kind = rank->task[i].kind;
        if (kind == TASK_forward) now++;
        if (now > peak) peak = now;
        if (kind == TASK_backward || kind == TASK_weight) now--;
    }
    return peak;
}

static const char *check_header(Arena *arena, const Table *t) {
    if (t->ranks < 1 || t->chunks < 1 || t->microbatches < 1) return "the table is empty";
    for (int c = 0; c < t->chunks; c++)
        if (t->home[c] < 0 || t->home[c] >= t->ranks)
            return arena_printf(arena, "chunk %d is on rank %d of %d", c, t->home[c], t->ranks);
    for (int i = 0; i < t->nedge; i++)
        if (t->edge[i].from < 0 || t->edge[i].from >= t->edge[i].to || t->edge[i].to >= t->chunks)
            return arena_printf(arena, "chunk %d hands over to chunk %d", t->edge[i].from,
                                t->edge[i].to);
    return NULL;
}

static const char *prove_compute(Prover *p, const ScheduleCosts *costs, bool any_order,
                                 Proof *proof) {
    const char *why = collect_tasks(p);
    if (why == NULL) why = check_complete(p);
    if (why == NULL && !any_order) why = check_ascending(p);
    if (why == NULL) why = run_tasks(p, costs, proof);
    return why;
}

const char *prove_tasks(Arena *arena, const Table *t, const ScheduleCosts *costs, bool any_order,
                        Proof *proof) {
    *proof = (Proof){0};
    const char *why = check_header(arena, t);
    if (why != NULL) return why;
    Prover p = prover_new(arena, t);
    return prove_compute(&p, costs, any_order, proof);
}

const char *prove_table(Arena *arena, const Table *t, const ScheduleCosts *costs, bool any_order,
                        Proof *proof) {
    *proof = (Proof){0};
    const char *why = check_header(arena, t);
    if (why != NULL) return why;
    Prover p = prover_new(arena, t);
    why = prove_compute(&p, costs, any_order, proof);
    if (why == NULL) why = prove_messages(&p, proof);
    if (why == NULL) why = prove_sums(&p);
    if (why == NULL) why = run_all(&p, costs, proof);
    if (why == NULL) why = prove_slots(&p);
    proof->peak = ARENA_ARRAY(arena, int, t->ranks);
    for (int r = 0; r < t->ranks; r++) proof->peak[r] = peak_in_flight(&t->rank[r]);
    return why;
}
