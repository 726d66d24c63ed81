/* prove.c - the proof of a schedule.
 *
 * Independent of the generators in schedule.c: it is given a table and asks whether a step that
 * follows it trains what it should, once, without waiting for itself. The happens-before graph has
 * a node a task and a node a message (a send and its receive are one event under rendezvous);
 * edges are program order and data. The order in which Kahn's algorithm removes the nodes is also
 * a simulation of the step: every task starts when all before it have ended.
 */
#include "passes/schedule.h"

#include <inttypes.h>

/* What a task computes for its (chunk, microbatch); backward gives both INPUT and WEIGHT. */
enum { MADE_FORWARD, MADE_INPUT, MADE_WEIGHT, MADE_COUNT };

typedef struct Event {
    int rank; /* -1: a message */
    double cost, start;
    int waits; /* events before it that have not happened */
    VEC(int) next;
} Event;

typedef struct Prover {
    Arena *arena;
    const Table *t;
    Event *event;
    int nevent, nedge;
    int *made; /* event by chunk, microbatch and MADE_, -1 when none */
} Prover;

static int *made_at(const Prover *p, int chunk, int microbatch, int what) {
    return &p->made[(chunk * p->t->microbatches + microbatch) * MADE_COUNT + what];
}

static void add_edge(Prover *p, int from, int to) {
    vec_push(p->arena, &p->event[from].next, to);
    p->event[to].waits++;
    p->nedge++;
}

/* Data from one event to another: through a message when they are on different ranks. */
static void add_data(Prover *p, int from, int to) {
    if (p->event[from].rank == p->event[to].rank) {
        add_edge(p, from, to);
        return;
    }
    int message = p->nevent++;
    p->event[message].rank = -1;
    add_edge(p, from, message);
    add_edge(p, message, to);
}

static double task_cost(const ProveCosts *costs, TaskKind kind) {
    switch (kind) {
    case TASK_forward: return costs->forward;
    case TASK_backward: return costs->backward;
    case TASK_input: return costs->input;
    case TASK_weight: return costs->weight;
    case TASK_update: return 0;
    }
    return 0;
}

static const char *note_made(Prover *p, const Task *task, int what, int event) {
    int *slot = made_at(p, task->chunk, task->microbatch, what);
    if (*slot >= 0)
        return arena_printf(p->arena, "chunk %d computes microbatch %d twice", task->chunk,
                            task->microbatch);
    *slot = event;
    return NULL;
}

static const char *note_task(Prover *p, int rank, const Task *task, int event) {
    if (task->kind == TASK_update) return NULL;
    if (task->chunk < 0 || task->chunk >= p->t->chunks || task->microbatch < 0 ||
        task->microbatch >= p->t->microbatches)
        return arena_printf(p->arena, "rank %d has a task of chunk %d, microbatch %d", rank,
                            task->chunk, task->microbatch);
    if (task->first != (task->microbatch == 0))
        return arena_printf(p->arena, "chunk %d: microbatch %d %s", task->chunk, task->microbatch,
                            task->first ? "writes what others added to" : "adds to nothing");
    const char *why = NULL;
    if (task->kind == TASK_forward) return note_made(p, task, MADE_FORWARD, event);
    if (task->kind != TASK_weight) why = note_made(p, task, MADE_INPUT, event);
    if (why == NULL && task->kind != TASK_input) why = note_made(p, task, MADE_WEIGHT, event);
    return why;
}

/* Tasks become events in program order. */
static const char *add_tasks(Prover *p, const ProveCosts *costs) {
    for (int r = 0; r < p->t->ranks; r++) {
        const RankTasks *rank = &p->t->rank[r];
        if (rank->ntask == 0) return arena_printf(p->arena, "rank %d never updates", r);
        for (int i = 0; i < rank->ntask; i++) {
            const Task *task = &rank->task[i];
            if ((task->kind == TASK_update) != (i == rank->ntask - 1))
                return arena_printf(p->arena, "rank %d: the update is not its one last task", r);
            int event = p->nevent++;
            p->event[event].rank = r;
            p->event[event].cost = task_cost(costs, task->kind);
            if (i > 0) add_edge(p, event - 1, event);
            const char *why = note_task(p, r, task, event);
            if (why != NULL) return why;
        }
    }
    return NULL;
}

/* Every forward has its backward, and each needs what SCHEDULES calls its needs. */
static const char *add_needs(Prover *p) {
    static const char *const name[] = {"forward", "input gradient", "weight gradient"};
    for (int c = 0; c < p->t->chunks; c++)
        for (int m = 0; m < p->t->microbatches; m++) {
            for (int what = 0; what < MADE_COUNT; what++)
                if (*made_at(p, c, m, what) < 0)
                    return arena_printf(p->arena, "chunk %d has no %s of microbatch %d", c,
                                        name[what], m);
            int forward = *made_at(p, c, m, MADE_FORWARD), input = *made_at(p, c, m, MADE_INPUT);
            int weight = *made_at(p, c, m, MADE_WEIGHT);
            if (p->event[forward].rank != p->event[input].rank ||
                p->event[forward].rank != p->event[weight].rank)
                return arena_printf(p->arena, "chunk %d is on two ranks", c);
            add_data(p, forward, input);
            if (weight != input) add_data(p, input, weight);
            if (c > 0) add_data(p, *made_at(p, c - 1, m, MADE_FORWARD), forward);
            if (c < p->t->chunks - 1) add_data(p, *made_at(p, c + 1, m, MADE_INPUT), input);
        }
    return NULL;
}

/* Gradients of a chunk add up in ascending order of microbatches. */
static const char *check_ascending(const Prover *p) {
    for (int c = 0; c < p->t->chunks; c++)
        for (int m = 1; m < p->t->microbatches; m++)
            for (int what = 0; what < MADE_COUNT; what++)
                if (*made_at(p, c, m, what) < *made_at(p, c, m - 1, what))
                    return arena_printf(p->arena,
                                        "chunk %d: microbatch %d comes before microbatch %d", c, m,
                                        m - 1);
    return NULL;
}

/* Runs the step: events in an order that respects all edges. Fails when some never happen. */
static const char *simulate(Prover *p, Proof *proof) {
    int *ready = ARENA_ARRAY(p->arena, int, p->nevent);
    int nready = 0, done = 0;
    double busy = 0;
    for (int e = 0; e < p->nevent; e++)
        if (p->event[e].waits == 0) ready[nready++] = e;
    for (; done < nready; done++) {
        const Event *event = &p->event[ready[done]];
        double end = event->start + event->cost;
        busy += event->cost;
        if (end > proof->makespan) proof->makespan = end;
        for (uint32_t k = 0; k < event->next.n; k++) {
            Event *next = &p->event[event->next.data[k]];
            if (end > next->start) next->start = end;
            if (--next->waits == 0) ready[nready++] = event->next.data[k];
        }
    }
    if (done < p->nevent)
        return arena_printf(p->arena, "%d of %d tasks and messages wait for each other",
                            p->nevent - done, p->nevent);
    double whole = proof->makespan * p->t->ranks;
    proof->bubble = whole > 0 ? 1 - busy / whole : 0;
    return NULL;
}

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

const char *prove_table(Arena *arena, const Table *t, const ProveCosts *costs, Proof *proof) {
    *proof = (Proof){0};
    if (t->ranks < 1 || t->chunks < 1 || t->microbatches < 1) return "the table is empty";
    Prover p = {.arena = arena, .t = t};
    int ntask = 0;
    for (int r = 0; r < t->ranks; r++) ntask += t->rank[r].ntask;
    size_t nmade = (size_t)t->chunks * (size_t)t->microbatches * MADE_COUNT;
    p.event = ARENA_ARRAY(arena, Event, (size_t)ntask + nmade); /* at most two messages a unit */
    p.made = ARENA_ARRAY(arena, int, nmade);
    for (size_t i = 0; i < nmade; i++) p.made[i] = -1;
    const char *why = add_tasks(&p, costs);
    if (why == NULL) why = add_needs(&p);
    if (why == NULL) why = check_ascending(&p);
    if (why == NULL) why = simulate(&p, proof);
    proof->nodes = p.nevent;
    proof->edges = p.nedge;
    proof->peak = ARENA_ARRAY(arena, int, t->ranks);
    for (int r = 0; r < t->ranks; r++) proof->peak[r] = peak_in_flight(&t->rank[r]);
    proof->peak_first = proof->peak[0];
    return why;
}

/* ---- conservation in the graphs --------------------------------------------------------- */

static int count_outputs(const Graph *g, Role role, int index, int use) {
    int n = 0;
    for (int i = 0; i < g->nout; i++)
        n += g->out_port[i].role == role && g->out_port[i].index == index &&
             g->out_port[i].use == use;
    return n;
}

static const char *prove_gradients(Arena *arena, const Module *m, const Graph *g) {
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->phase > PHASE_W)
            return arena_printf(arena, "node %d of %s is in neither forward nor backward", i,
                                g->name);
    for (int i = 0; i < m->nparam; i++)
        for (int use = 0; use < m->param[i].uses; use++)
            if (count_outputs(g, ROLE_grad, i, use) != 1)
                return arena_printf(arena, "%s: use %d of parameter '%s' has %d gradients", g->name,
                                    use, m->param[i].name, count_outputs(g, ROLE_grad, i, use));
    return NULL;
}

/* Segments follow each other without a gap, blocks lie in their segment and do not overlap. */
static const char *prove_layout(Arena *arena, const Module *m) {
    int64_t at = 0;
    for (int s = 0; s < m->nsegment; s++) {
        if (m->segment[s].offset_elems != at)
            return arena_printf(arena, "segment %d does not begin at %" PRId64, s, at);
        at += m->segment[s].elems;
    }
    if (at != m->flat_elems) return "the segments do not cover the parameter vector";
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        int64_t end = p->offset_elems + type_elems(m->types, p->type);
        const Segment *s = &m->segment[p->segment];
        if (p->offset_elems < s->offset_elems || end > s->offset_elems + s->elems)
            return arena_printf(arena, "parameter '%s' lies outside its segment", p->name);
        for (int k = 0; k < i; k++) {
            const Param *q = &m->param[k];
            if (q->offset_elems < end &&
                p->offset_elems < q->offset_elems + type_elems(m->types, q->type))
                return arena_printf(arena, "parameters '%s' and '%s' overlap", q->name, p->name);
        }
    }
    return NULL;
}

const char *prove_module(Arena *arena, const Module *m) {
    static const char *const graphs[] = {"train", "train.add"};
    const char *why = NULL;
    for (size_t k = 0; k < sizeof graphs / sizeof *graphs && why == NULL; k++) {
        const Graph *g = module_graph(m, graphs[k]);
        if (g != NULL) why = prove_gradients(arena, m, g);
    }
    const Graph *update = module_graph(m, "update");
    if (why == NULL && update != NULL) {
        why = prove_layout(arena, m);
        for (int s = 0; s < m->nsegment && why == NULL; s++)
            if (count_outputs(update, ROLE_flat_weight, s, 0) != 1)
                why = arena_printf(arena, "segment %d is not updated once", s);
    }
    return why;
}
