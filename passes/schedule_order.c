/* schedule_order.c - messages into a table of compute tasks, in timed order; slots.
 *
 * The compute tasks are simulated with their predicted costs; messages are sorted by the end of the
 * task that makes them. All events are then lined up by time, and each rank's list is its part of
 * that one line: an order that every rank can follow with blocking messages.
 */
#include "passes/events.h"
#include "passes/schedule.h"

#include <stdlib.h>

/* No task is shorter, so that nothing is made at the moment what it is made from arrives. */
#define COST_MIN 1e-9

double schedule_cost(const ScheduleCosts *costs, const Task *task) {
    TaskCosts all = {costs->forward, costs->backward, costs->input, costs->weight};
    const TaskCosts *of =
        costs->chunk != NULL && task->chunk >= 0 ? &costs->chunk[task->chunk] : &all;
    switch (task->kind) {
    case TASK_forward: return of->forward;
    case TASK_backward: return of->backward;
    case TASK_input: return of->input;
    case TASK_weight: return of->weight;
    case TASK_update:
    case TASK_send:
    case TASK_recv: return 0;
    case TASK_reduce:
    case TASK_gather: return task->sent > 0 ? link_cost(&costs->link, task->sent) : 0;
    }
    return 0;
}

double schedule_message_cost(const ScheduleCosts *costs, const Table *t, const Message *m) {
    bool back = m->kind == MESSAGE_gradient;
    for (int i = 0; costs->edge != NULL && i < t->nedge; i++)
        if (costs->edge[i].from == (back ? m->to : m->from) &&
            costs->edge[i].to == (back ? m->from : m->to))
            return costs->edge[i].cost[back];
    return costs->message;
}

enum { MADE_FORWARD, MADE_INPUT, MADE_WEIGHT, MADE_COUNT };

typedef struct Order {
    Arena *arena;
    Table *t;
    Events g;
    Task **task;  /* by event; NULL: a message */
    int *rank;    /* by event */
    int *made;    /* event by chunk, microbatch and MADE_ */
    double *time; /* by event: when it stands in the line */
    int ntask;
} Order;

static int *made_at(const Order *o, int chunk, int microbatch, int what) {
    return &o->made[(chunk * o->t->microbatches + microbatch) * MADE_COUNT + what];
}

static void note_made(Order *o, const Task *task, int event) {
    if (task->kind == TASK_update) return;
    if (task->kind == TASK_forward)
        *made_at(o, task->chunk, task->microbatch, MADE_FORWARD) = event;
    if (task->kind == TASK_backward || task->kind == TASK_input)
        *made_at(o, task->chunk, task->microbatch, MADE_INPUT) = event;
    if (task->kind == TASK_backward || task->kind == TASK_weight)
        *made_at(o, task->chunk, task->microbatch, MADE_WEIGHT) = event;
}

/* Compute tasks in program order. */
static void add_tasks(Order *o, const ScheduleCosts *costs) {
    for (int r = 0; r < o->t->ranks; r++)
        for (int i = 0; i < o->t->rank[r].ntask; i++) {
            Task *task = &o->t->rank[r].task[i];
            double cost = costs != NULL ? schedule_cost(costs, task) : 0;
            int event = events_add(&o->g, cost > COST_MIN ? cost : COST_MIN);
            o->task[event] = task;
            o->rank[event] = r;
            note_made(o, task, event);
            if (i > 0) events_edge(&o->g, event - 1, event);
        }
    o->ntask = o->g.n;
}

/* What makes a message and what uses it. */
static int producer_of(const Order *o, const Message *m) {
    return *made_at(o, m->from, m->microbatch,
                    m->kind == MESSAGE_activation ? MADE_FORWARD : MADE_INPUT);
}

static int consumer_of(const Order *o, const Message *m) {
    return *made_at(o, m->to, m->microbatch,
                    m->kind == MESSAGE_activation ? MADE_FORWARD : MADE_INPUT);
}

typedef VEC(Message) Messages;

/* All handovers, those within a rank included: they only tell when something is made. */
static void list_handovers(const Order *o, Messages *list) {
    const Table *t = o->t;
    for (int i = 0; i < t->nedge; i++)
        for (int m = 0; m < t->microbatches; m++) {
            int from = t->edge[i].from, to = t->edge[i].to;
            Message there = {.kind = MESSAGE_activation,
                             .from = from,
                             .to = to,
                             .from_rank = t->home[from],
                             .to_rank = t->home[to],
                             .microbatch = m};
            Message back = {.kind = MESSAGE_gradient,
                            .from = to,
                            .to = from,
                            .from_rank = t->home[to],
                            .to_rank = t->home[from],
                            .microbatch = m};
            vec_push(o->arena, list, there);
            if (t->edge[i].gradient) vec_push(o->arena, list, back);
        }
}

static bool run_compute(Order *o, const Messages *list) {
    for (int c = 0; c < o->t->chunks; c++)
        for (int m = 0; m < o->t->microbatches; m++) {
            int input = *made_at(o, c, m, MADE_INPUT), weight = *made_at(o, c, m, MADE_WEIGHT);
            events_edge(&o->g, *made_at(o, c, m, MADE_FORWARD), input);
            if (weight != input) events_edge(&o->g, input, weight);
        }
    for (uint32_t i = 0; i < list->n; i++)
        events_edge(&o->g, producer_of(o, &list->data[i]), consumer_of(o, &list->data[i]));
    return events_run(&o->g) == 0;
}

typedef struct Timed {
    Message message;
    double end; /* of the task that makes it */
} Timed;

static int sign_of(double difference) { return (difference > 0) - (difference < 0); }

static int by_end(const void *x, const void *y) {
    const Timed *a = x, *b = y;
    const int difference[] = {sign_of(a->end - b->end),
                              a->message.from_rank - b->message.from_rank,
                              a->message.to_rank - b->message.to_rank,
                              (int)a->message.kind - (int)b->message.kind,
                              a->message.microbatch - b->message.microbatch,
                              a->message.from - b->message.from,
                              a->message.to - b->message.to};
    for (size_t i = 0; i < sizeof difference / sizeof *difference; i++)
        if (difference[i] != 0) return difference[i];
    return 0;
}

static void sort_messages(Order *o, const Messages *list) {
    Timed *timed = ARENA_ARRAY(o->arena, Timed, list->n + 1);
    size_t n = 0;
    for (uint32_t i = 0; i < list->n; i++)
        if (!table_is_local(o->t, list->data[i].from, list->data[i].to)) {
            double end = event_end(&o->g.event[producer_of(o, &list->data[i])]);
            timed[n++] = (Timed){.message = list->data[i], .end = end};
        }
    qsort(timed, n, sizeof *timed, by_end);
    o->t->message = ARENA_ARRAY(o->arena, Message, n + 1);
    o->t->nmessage = (int)n;
    o->time = ARENA_ARRAY(o->arena, double, (size_t)o->ntask + n + 1);
    for (int e = 0; e < o->ntask; e++) o->time[e] = o->g.event[e].start;
    for (size_t i = 0; i < n; i++) {
        o->t->message[i] = timed[i].message;
        o->time[(size_t)o->ntask + i] = timed[i].end;
    }
}

/* ---- one line of all events --------------------------------------------------------------- */

typedef struct Heap {
    const Order *o;
    int *event;
    int n;
} Heap;

/* Earlier first; messages before the tasks that start at that moment; updates last. */
static bool stands_before(const Order *o, int a, int b) {
    bool a_task = a < o->ntask, b_task = b < o->ntask;
    bool a_last = a_task && o->task[a]->kind == TASK_update;
    bool b_last = b_task && o->task[b]->kind == TASK_update;
    if (a_last != b_last) return b_last;
    if (o->time[a] != o->time[b]) return o->time[a] < o->time[b];
    if (a_task != b_task) return b_task;
    return a < b;
}

static void heap_push(Heap *h, int event) {
    int at = h->n++;
    for (int up = (at - 1) / 2; at > 0 && stands_before(h->o, event, h->event[up]);
         up = (at - 1) / 2) {
        h->event[at] = h->event[up];
        at = up;
    }
    h->event[at] = event;
}

static int heap_pop(Heap *h) {
    int top = h->event[0], last = h->event[--h->n], at = 0;
    for (int down = 1; down < h->n; down = 2 * at + 1) {
        if (down + 1 < h->n && stands_before(h->o, h->event[down + 1], h->event[down])) down++;
        if (!stands_before(h->o, h->event[down], last)) break;
        h->event[at] = h->event[down];
        at = down;
    }
    h->event[at] = last;
    return top;
}

/* Tasks and messages with their needs: program order, each rank's order of messages, and data. */
static Events line_graph(const Order *o) {
    const Table *t = o->t;
    Events g = events_new(o->arena, o->ntask + t->nmessage + 1);
    int *last = ARENA_ARRAY(o->arena, int, t->ranks);
    for (int e = 0; e < o->ntask; e++) {
        events_add(&g, 0);
        if (e > 0 && o->rank[e] == o->rank[e - 1]) events_edge(&g, e - 1, e);
    }
    for (int i = 0; i < t->nmessage; i++) {
        const Message *m = &t->message[i];
        int event = events_add(&g, 0);
        const int ends[] = {m->from_rank, m->to_rank};
        for (int k = 0; k < 2; k++) {
            if (last[ends[k]] == event) continue; /* to itself */
            if (last[ends[k]] != 0) events_edge(&g, last[ends[k]], event);
            last[ends[k]] = event; /* never 0: tasks come first */
        }
        events_edge(&g, producer_of(o, m), event);
        events_edge(&g, event, consumer_of(o, m));
    }
    return g;
}

typedef VEC(Task) Tasks;

static void put_message(const Order *o, Tasks *lists, int index) {
    const Message *m = &o->t->message[index];
    Task send = {.kind = TASK_send,
                 .chunk = m->from,
                 .local = o->t->local[m->from],
                 .microbatch = m->microbatch,
                 .message = index};
    Task recv = send;
    recv.kind = TASK_recv;
    recv.chunk = m->to;
    recv.local = o->t->local[m->to];
    vec_push(o->arena, &lists[m->from_rank], send);
    vec_push(o->arena, &lists[m->to_rank], recv);
}

static void line_up(Order *o) {
    Events g = line_graph(o);
    Heap heap = {.o = o, .event = ARENA_ARRAY(o->arena, int, g.n + 1)};
    Tasks *lists = ARENA_ARRAY(o->arena, Tasks, o->t->ranks);
    for (int e = 0; e < g.n; e++)
        if (g.event[e].waits == 0) heap_push(&heap, e);
    while (heap.n > 0) {
        int e = heap_pop(&heap);
        if (e < o->ntask)
            vec_push(o->arena, &lists[o->rank[e]], *o->task[e]);
        else
            put_message(o, lists, e - o->ntask);
        for (uint32_t k = 0; k < g.event[e].next.n; k++)
            if (--g.event[g.event[e].next.data[k]].waits == 0)
                heap_push(&heap, g.event[e].next.data[k]);
    }
    for (int r = 0; r < o->t->ranks; r++)
        o->t->rank[r] = (RankTasks){.task = lists[r].data, .ntask = (int)lists[r].n};
}

/* ---- slots -------------------------------------------------------------------------------- */

typedef struct Slots {
    VEC(bool) taken;
} Slots;

static int slot_take(Arena *arena, Slots *s) {
    uint32_t at = 0;
    while (at < s->taken.n && s->taken.data[at]) at++;
    if (at == s->taken.n) vec_push(arena, &s->taken, true);
    s->taken.data[at] = true;
    return (int)at;
}

/* Activations: taken by the forward, given back by the last backward part. */
static void number_activations(Arena *arena, Table *t) {
    Slots *slots = ARENA_ARRAY(arena, Slots, t->chunks);
    int *slot = ARENA_ARRAY(arena, int, (size_t)t->chunks *(size_t)t->microbatches);
    t->slots = ARENA_ARRAY(arena, int, t->chunks);
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            Task *task = &t->rank[r].task[i];
            if (task->kind >= TASK_update) continue;
            int *at = &slot[task->chunk * t->microbatches + task->microbatch];
            if (task->kind == TASK_forward) *at = slot_take(arena, &slots[task->chunk]);
            task->slot = *at;
            if (task->kind == TASK_backward || task->kind == TASK_weight)
                slots[task->chunk].taken.data[*at] = false;
        }
    for (int c = 0; c < t->chunks; c++) t->slots[c] = (int)slots[c].taken.n;
}

/* ---- handovers ---------------------------------------------------------------------------- */

/* What waits in a slot of the chunk that will use it. */
typedef struct Waiting {
    int edge; /* twice the edge, plus 1 for a gradient */
    int microbatch, slot, message;
} Waiting;

typedef struct Handovers {
    Arena *arena;
    Table *t;
    Slots *slots;         /* by edge and kind */
    VEC(Waiting) waiting; /* on the rank at hand */
} Handovers;

static int edge_of(const Table *t, const Message *m) {
    bool there = m->kind == MESSAGE_activation;
    for (int i = 0; i < t->nedge; i++)
        if (t->edge[i].from == (there ? m->from : m->to) &&
            t->edge[i].to == (there ? m->to : m->from))
            return 2 * i + (there ? 0 : 1);
    return -1;
}

static int hand_over(Handovers *h, int edge, int microbatch, int message) {
    Waiting w = {.edge = edge,
                 .microbatch = microbatch,
                 .slot = slot_take(h->arena, &h->slots[edge]),
                 .message = message};
    int *most = &h->t->windows[edge % 2 == 0 ? h->t->edge[edge / 2].to : h->t->edge[edge / 2].from]
                              [edge % 2 == 0 ? WINDOW_recv : WINDOW_recv_grad];
    if (w.slot + 1 > *most) *most = w.slot + 1;
    vec_push(h->arena, &h->waiting, w);
    return w.slot;
}

static bool makes(const Task *task, int chunk, bool gradient) {
    bool backward = task->kind == TASK_backward || task->kind == TASK_input;
    return task->chunk == chunk && (gradient ? backward : task->kind == TASK_forward);
}

/* What this task hands to chunks of its own rank goes to their slots, the rest to one of two of its
 * own, in turn. */
static void give(Handovers *h, Task *task) {
    Table *t = h->t;
    for (int e = 0; e < 2 * t->nedge; e++) {
        const ChunkEdge *edge = &t->edge[e / 2];
        bool gradient = e % 2 != 0;
        if (!makes(task, gradient ? edge->to : edge->from, gradient)) continue;
        if (gradient && !edge->gradient) continue;
        Window window = gradient ? WINDOW_send_grad : WINDOW_send;
        if (table_is_local(t, edge->from, edge->to)) {
            task->window[window] = hand_over(h, e, task->microbatch, -1);
            continue;
        }
        task->window[window] = task->microbatch % 2;
        int *most = &t->windows[task->chunk][window];
        if (task->window[window] + 1 > *most) *most = task->window[window] + 1;
    }
}

/* What the task uses makes room. */
static void take(Handovers *h, Task *task) {
    Table *t = h->t;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < h->waiting.n; k++) {
        Waiting w = h->waiting.data[k];
        const ChunkEdge *edge = &t->edge[w.edge / 2];
        bool gradient = w.edge % 2 != 0;
        if (w.microbatch != task->microbatch ||
            !makes(task, gradient ? edge->from : edge->to, gradient)) {
            h->waiting.data[kept++] = w;
            continue;
        }
        task->window[gradient ? WINDOW_recv_grad : WINDOW_recv] = w.slot;
        if (w.message >= 0) task->message = w.message;
        h->slots[w.edge].taken.data[w.slot] = false;
    }
    h->waiting.n = kept;
}

/* Slots for all that is handed over: taken when it is received, or made on the same rank; given
 * back by the task that uses it. */
static void number_handovers(Arena *arena, Table *t) {
    Handovers h = {.arena = arena, .t = t, .slots = ARENA_ARRAY(arena, Slots, 2 * t->nedge + 1)};
    t->windows = ARENA_ARRAY(arena, WindowSlots, t->chunks);
    for (int r = 0; r < t->ranks; r++) {
        h.waiting.n = 0;
        for (int i = 0; i < t->rank[r].ntask; i++) {
            Task *task = &t->rank[r].task[i];
            for (int w = 0; w < WINDOW_COUNT; w++) task->window[w] = -1;
            if (task->kind == TASK_recv) {
                Message *m = &t->message[task->message];
                m->slot = hand_over(&h, edge_of(t, m), m->microbatch, task->message);
            }
            if (task->kind >= TASK_update) continue;
            task->message = -1;
            give(&h, task);
            take(&h, task);
        }
    }
}

bool schedule_complete(Arena *arena, Table *t, const ScheduleCosts *costs) {
    size_t units = (size_t)t->chunks * (size_t)t->microbatches;
    int ntask = 0;
    for (int r = 0; r < t->ranks; r++) ntask += t->rank[r].ntask;
    Order o = {.arena = arena,
               .t = t,
               .g = events_new(arena, ntask + 1),
               .task = ARENA_ARRAY(arena, Task *, ntask + 1),
               .rank = ARENA_ARRAY(arena, int, ntask + 1),
               .made = ARENA_ARRAY(arena, int, units *MADE_COUNT)};
    Messages list = {0};
    add_tasks(&o, costs);
    list_handovers(&o, &list);
    if (!run_compute(&o, &list)) return false;
    sort_messages(&o, &list);
    line_up(&o);
    number_activations(arena, t);
    number_handovers(arena, t);
    return true;
}
