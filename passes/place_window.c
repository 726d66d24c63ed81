/* place_window.c - what chunks hand to each other, ready for placement.
 *
 * What a chunk receives lies in a window that belongs to the task that uses it: the forward, or the
 * backward for a gradient. The slot may hold another microbatch as soon as that task is over. What
 * it sends is written into such a window, too. So what a later task reads is copied out of the
 * window first, and what is sent but made by an earlier task, kept for a later one, or only passed
 * on, is copied in. Nodes end up in the order of the tasks that run them.
 */
#include "passes/place.h"

#include "ir/panic.h"

int place_task(const Node *n, const PlaceOptions *options) {
    if (n->phase == PHASE_F) return 0;
    return options->split && n->phase == PHASE_W ? 2 : 1;
}

int place_port_task(Role role) {
    switch (role) {
    case ROLE_recv:
    case ROLE_send: return 0;
    case ROLE_recv_grad:
    case ROLE_send_grad: return 1;
    default: return -1;
    }
}

typedef struct Windows {
    const Graph *from;
    const PlaceOptions *options;
    int *task; /* by node */
    PlaceScan scan;
    Arena *scratch;
    Graph *to;
    ValMap map;
    Val *held; /* by base: the copy that later tasks read; none: not copied */
} Windows;

static int maker_task(const Windows *w, Val base) {
    int maker = place_maker(w->from, base);
    return maker >= 0 ? w->task[maker] : -1;
}

static void make_early(Windows *w, Val v, int task) {
    int maker = place_maker(w->from, v);
    if (maker >= 0 && w->task[maker] > task) w->task[maker] = task;
}

/* Tasks of nodes. What is handed on, and what an early kernel reads, has to be early, too, although
 * equal nodes or fused ones left it in a later phase. */
static void choose_tasks(Windows *w) {
    const Graph *g = w->from;
    w->task = ARENA_ARRAY(w->scratch, int, g->nnode + 1);
    for (int i = 0; i < g->nnode; i++) w->task[i] = place_task(g->node[i], w->options);
    for (int k = 0; k < g->nout; k++)
        if (place_port_task(g->out_port[k].role) >= 0)
            make_early(w, g->out[k], place_port_task(g->out_port[k].role));
    for (int i = g->nnode - 1; i >= 0; i--)
        for (int k = 0; k < g->node[i]->nin; k++) make_early(w, g->node[i]->in[k], w->task[i]);
}

/* The last task that reads a value through its views; outputs of later tasks read it, too. */
static int last_reader(const Windows *w, Val base) {
    int last = -1;
    const PlaceUses *uses = &w->scan.uses[base.id];
    for (uint32_t k = 0; k < uses->n; k++) {
        int task = w->task[uses->data[k].node];
        if (task > last) last = task;
    }
    for (int k = 0; k < w->from->nout; k++) {
        int task = place_port_task(w->from->out_port[k].role);
        if (w->scan.base[w->from->out[k].id].id == base.id && task > last) last = task;
    }
    return last;
}

static Val copy_of(Windows *w, Val v, int task) {
    return place_add_copy(w->to, v, task == 0 ? PHASE_F : PHASE_I, NULL);
}

/* At the beginning of a task: what it was handed and later ones read. */
static void hold_inputs(Windows *w, int task) {
    const Graph *g = w->from;
    for (int i = 0; i < g->nin; i++)
        if (place_port_task(g->in_port[i].role) == task && last_reader(w, g->in[i]) > task)
            w->held[g->in[i].id] = copy_of(w, w->map.to[g->in[i].id], task);
}

/* A value of the new graph in the shape of v, a view of it. */
static Val view_as(Windows *w, Val made, Val v, int task) {
    static const Phase phases[] = {PHASE_F, PHASE_I, PHASE_W};
    Type type = val_type(w->from, v);
    if (val_type(w->to, made).id == type.id) return made;
    Builder b = {.g = w->to, .phase = phases[task]};
    return graph_add(&b, OP_reshape, 1, &made, 0, NULL, type)->out;
}

/* An operand of a node of `task`: of a value that was held, the copy. A view of it may belong to a
 * later task. */
static Val operand(Windows *w, Val v, int task) {
    Val base = w->scan.base[v.id], held = w->held[base.id];
    int i = held.id == 0 ? -1 : (int)w->from->val[base.id].result;
    if (i >= 0 && place_port_task(w->from->in_port[i].role) < task)
        return view_as(w, held, v, task);
    Val made = w->map.to[v.id];
    return made.id != 0 ? made : view_as(w, w->map.to[base.id], v, task);
}

/* A node with its operands; views of what is held are made where they are read. */
static void copy_node(Windows *w, const Node *n, int task) {
    Val *kept = ARENA_ARRAY(w->scratch, Val, n->nin + 1);
    for (int i = 0; i < n->nin; i++) {
        kept[i] = w->map.to[n->in[i].id];
        w->map.to[n->in[i].id] = operand(w, n->in[i], task);
    }
    Node *copy = graph_copy_node(w->to, w->from, n, &w->map, n->body);
    if (task == 1 && copy->phase == PHASE_W && w->options->split) copy->phase = PHASE_I;
    for (int i = n->nin - 1; i >= 0; i--) w->map.to[n->in[i].id] = kept[i];
}

/* Whether the maker of an output cannot write into the window of its task. */
static bool wants_copy(const Windows *w, int k) {
    int task = place_port_task(w->from->out_port[k].role);
    Val base = w->scan.base[w->from->out[k].id];
    return maker_task(w, base) != task || last_reader(w, base) > task;
}

/* Whether an output without a window shows what the task was handed: it is copied home. */
static bool keeps_handed(const Windows *w, int k, int task) {
    Val base = w->scan.base[w->from->out[k].id];
    if (maker_task(w, base) >= 0 || place_port_task(w->from->out_port[k].role) >= 0) return false;
    return place_port_task(w->from->in_port[w->from->val[base.id].result].role) == task;
}

/* At the end of a task: what it hands on. */
static void give_outputs(Windows *w, Val *out, int task) {
    const Graph *g = w->from;
    for (int k = 0; k < g->nout; k++) {
        if (keeps_handed(w, k, task)) out[k] = copy_of(w, operand(w, g->out[k], task), task);
        if (place_port_task(g->out_port[k].role) != task) continue;
        out[k] = operand(w, g->out[k], task);
        if (wants_copy(w, k)) out[k] = copy_of(w, out[k], task);
    }
}

Graph *place_windows(const Graph *g, const PlaceOptions *options, Arena *scratch) {
    Windows w = {.from = g,
                 .options = options,
                 .scan = place_scan(g, scratch),
                 .scratch = scratch,
                 .to = graph_new(g->mod, g->name),
                 .map = valmap_new(scratch, g),
                 .held = ARENA_ARRAY(scratch, Val, g->nval + 1)};
    Val *out = ARENA_ARRAY(scratch, Val, g->nout);
    choose_tasks(&w);
    graph_copy_inputs(w.to, g, &w.map);
    for (int task = 0; task < 3; task++) {
        hold_inputs(&w, task);
        for (int i = 0; i < g->nnode; i++)
            if (w.task[i] == task) copy_node(&w, g->node[i], task);
        give_outputs(&w, out, task);
    }
    for (int k = 0; k < g->nout; k++) {
        if (out[k].id == 0) out[k] = operand(&w, g->out[k], 2);
        graph_add_output(w.to, out[k], g->out_port[k]);
    }
    return w.to;
}
