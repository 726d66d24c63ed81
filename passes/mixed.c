/* mixed.c - where bf16, where f32.
 *
 * Reads   every graph; dtype of the train section; the target.
 * Writes  casts: a value that is kept in bf16 (mixed_policy.c) is rounded where it is made and
 *         widened for whoever computes with it; what only moves it, and repeats, have it in bf16.
 *         Weights that are read so become inputs of role weight_copy.
 * Keeps   types of graph outputs; every operation in f32. An operation that the model itself asks
 *         for in bf16 is done in f32, too, and its result rounded.
 * Why     bf16 is a way to store numbers, no arithmetic: with casts in the open no later pass, no
 *         lowering and no printer needs to know more about it than its two bytes. fuse repeats the
 *         widening casts in each reader and leaves the narrowing ones with the maker.
 *
 * dtype = bf16 applies to CUDA; the C target computes and keeps everything in f32.
 */
#include "passes/mixed.h"

#include "ir/bf16.h"

typedef struct Mixed {
    const Graph *from;
    const Halves *h;
    Graph *to;
    Val *wide, *half; /* by old value: in f32 (or whatever is no float), in bf16; id 0: not there */
    Arena *scratch;
} Mixed;

static bool is_half_type(const Graph *g, Val v) { return val_info(g, v)->dtype == DT_bf16; }

static Type typed(const Graph *g, Val v, Dtype dtype) {
    const TypeInfo *t = val_info(g, v);
    return type_intern(g->mod->types, dtype, t->ndim, t->dim);
}

static void set_half(Mixed *m, Builder *b, Val old, Val half) {
    m->half[old.id] = half;
    m->wide[old.id] = build_cast(b, half, DT_f32);
}

/* A value that was just made, in the type that it was made in. */
static void set_made(Mixed *m, Builder *b, Val old, Val made) {
    if (!m->h->half[old.id])
        m->wide[old.id] = made;
    else
        set_half(m, b, old, is_half_type(m->to, made) ? made : build_cast(b, made, DT_bf16));
}

/* ---- inputs and outputs ----------------------------------------------------------------- */

/* The phase of casts of a body's inputs. */
static Phase first_phase(const Graph *g) {
    Phase first = g->nnode > 0 ? g->node[0]->phase : PHASE_F;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->phase < first) first = g->node[i]->phase;
    return first;
}

/* Ports that hold what the policy says, also outside: the others keep their type. */
static bool has_own_type(const Graph *g, Val v, const Port *port) {
    return port->role == ROLE_weight_copy || port->role == ROLE_cache ||
           mixed_is_handed(g, v, port);
}

static void copy_inputs(Mixed *m, bool top) {
    const Graph *g = m->from;
    Val *input = ARENA_ARRAY(m->scratch, Val, g->nin);
    for (int i = 0; i < g->nin; i++) {
        Port port = g->in_port[i];
        Type type = val_type(g, g->in[i]);
        bool half = m->h->half[g->in[i].id];
        if (half && port.role == ROLE_weight) port.role = ROLE_weight_copy;
        if (half && (!top || has_own_type(g, g->in[i], &port))) type = typed(g, g->in[i], DT_bf16);
        input[i] = graph_add_input(m->to, type, port);
    }
    Builder b = {.g = m->to, .phase = first_phase(g)};
    for (int i = 0; i < g->nin; i++) set_made(m, &b, g->in[i], input[i]);
}

static void copy_outputs(Mixed *m, bool top) {
    const Graph *g = m->from;
    for (int i = 0; i < g->nout; i++) {
        uint32_t v = g->out[i].id;
        bool own = has_own_type(g, g->out[i], &g->out_port[i]) || is_half_type(g, g->out[i]);
        bool half = m->h->half[v] && (!top || own);
        graph_add_output(m->to, half ? m->half[v] : m->wide[v], g->out_port[i]);
    }
}

/* ---- nodes ------------------------------------------------------------------------------ */

static Graph *mixed_graph(const Graph *g, const Halves *h, bool top, Arena *scratch);

static void copy_repeat(Mixed *m, Builder *b, const Node *n, const Halves *h) {
    Val *in = ARENA_ARRAY(m->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) {
        uint32_t v = n->in[i].id;
        in[i] = m->h->half[v] ? m->half[v] : m->wide[v];
    }
    Graph *body = mixed_graph(n->body, h, false, m->scratch);
    const Node *copy = graph_add_region(b, OP_repeat, n->nin, in, n->nattr, n->attr, body);
    for (int i = 0; i < n->nout; i++) set_made(m, b, node_out(n, i), node_out(copy, i));
}

/* What moves bf16 moves two bytes; a constant is rounded now. */
static void copy_movement(Mixed *m, Builder *b, const Node *n) {
    Type type = typed(m->from, n->out, DT_bf16);
    if (n->op == OP_const) {
        double value = (double)bf16_round((float)node_float(n, ATTR_value, 0));
        m->half[n->out.id] = build_const(b, value, type);
        m->wide[n->out.id] = build_const(b, value, typed(m->from, n->out, DT_f32));
        return;
    }
    Val *in = ARENA_ARRAY(m->scratch, Val, n->nin);
    Attr *attr = ARENA_ARRAY(m->scratch, Attr, n->nattr);
    for (int i = 0; i < n->nin; i++) {
        uint32_t v = n->in[i].id;
        in[i] = m->h->half[v] ? m->half[v] : m->wide[v]; /* the place of put is an integer */
    }
    for (int i = 0; i < n->nattr; i++) {
        attr[i] = n->attr[i];
        if (attr[i].key == ATTR_value) attr[i].f = (double)bf16_round((float)attr[i].f);
    }
    set_half(m, b, n->out, graph_add(b, n->op, n->nin, in, n->nattr, attr, type)->out);
}

/* Everything else computes with wide values and is rounded afterwards where that is due. */
static void copy_wide(Mixed *m, Builder *b, const Node *n) {
    Val *in = ARENA_ARRAY(m->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = m->wide[n->in[i].id];
    bool half = is_half_type(m->from, n->out);
    if (n->op == OP_cast && half) {
        Val x = m->half[n->in[0].id];
        if (x.id == 0) x = build_cast(b, in[0], DT_bf16);
        set_half(m, b, n->out, x);
        return;
    }
    Type type = half ? typed(m->from, n->out, DT_f32) : val_type(m->from, n->out);
    const Node *copy = graph_add(b, n->op, n->nin, in, n->nattr, n->attr, type);
    for (int i = 0; i < n->nout; i++) set_made(m, b, node_out(n, i), node_out(copy, i));
}

/* (product + other) + bias in the product's shape, rounded once. */
static void copy_sum(Mixed *m, Builder *b, const Node *n, const MixedSum *sum) {
    const TypeInfo *shape = val_info(m->from, sum->product), *own = val_info(m->from, n->out);
    Val other = build_reshape(b, m->half[sum->other.id], shape->ndim, shape->dim);
    Val x = build2(b, OP_add, m->wide[sum->product.id], build_cast(b, other, DT_f32));
    if (sum->bias.id != 0) x = build2(b, OP_add, x, m->wide[sum->bias.id]);
    x = build_cast(b, x, DT_bf16);
    set_half(m, b, n->out, build_reshape(b, x, own->ndim, own->dim));
}

static Graph *mixed_graph(const Graph *g, const Halves *h, bool top, Arena *scratch) {
    Mixed m = {.from = g, .h = h, .to = graph_new(g->mod, g->name), .scratch = scratch};
    m.wide = ARENA_ARRAY(scratch, Val, g->nval);
    m.half = ARENA_ARRAY(scratch, Val, g->nval);
    copy_inputs(&m, top);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Builder b = {.g = m.to, .phase = n->phase, .span = n->span, .scope = n->scope};
        if (n->op == OP_repeat)
            copy_repeat(&m, &b, n, h->body[i]);
        else if (h->sum[i].product.id != 0)
            copy_sum(&m, &b, n, &h->sum[i]);
        else if (mixed_is_movement(n->op) && h->half[n->out.id])
            copy_movement(&m, &b, n);
        else
            copy_wide(&m, &b, n);
    }
    copy_outputs(&m, top);
    return m.to;
}

static bool any_half(const Graph *g, const Halves *h) {
    for (uint32_t v = 1; v < g->nval; v++)
        if (h->half[v]) return true;
    for (int i = 0; i < g->nnode; i++)
        if (h->body[i] != NULL && any_half(g->node[i]->body, h->body[i])) return true;
    return false;
}

bool pass_mixed(PassContext *ctx) {
    Module *m = ctx->mod;
    bool policy = m->train.dtype == DT_bf16 && m->target == TARGET_cuda;
    for (int i = 0; i < m->ngraph; i++) {
        const Halves *h = mixed_choose(m->graph[i], policy, ctx->scratch);
        if (any_half(m->graph[i], h)) m->graph[i] = mixed_graph(m->graph[i], h, true, ctx->scratch);
    }
    return true;
}
