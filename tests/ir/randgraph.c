/* randgraph.c - random valid graphs: choosing, keeping values benign, inputs; see randgraph.h.
 * The operations stand in randgraph_ops.c and randgraph_more.c. */
#include "tests/ir/randgraph.h"

#include "ir/module.h"
#include "tests/ir/randgraph_gen.h"

#include <math.h>

/* ---- numbers ------------------------------------------------------------------------------ */

static uint64_t next_bits(uint64_t *state) {
    uint64_t h = *state += UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

uint32_t rand_below(RandGen *r, uint32_t n) {
    return (uint32_t)((next_bits(r->state) >> 32) * n >> 32);
}

bool rand_chance(RandGen *r, uint32_t percent) { return rand_below(r, 100) < percent; }

double rand_between(RandGen *r, double low, double high) {
    return round((low + (high - low) * rand_below(r, 1000000) / 1e6) * 1000) / 1000;
}

/* ---- values ------------------------------------------------------------------------------- */

enum { BOUND_MAX = 4 };

static void set_bound(RandGen *r, Val v, double bound) {
    while (r->bound.n <= v.id) vec_push(r->arena, &r->bound, 0.0);
    r->bound.data[v.id] = bound;
}

double rand_bound(const RandGen *r, Val v) { return v.id < r->bound.n ? r->bound.data[v.id] : 0; }

static int64_t elems_of(const RandGen *r, Val v) {
    return type_elems(r->b.g->mod->types, val_type(r->b.g, v));
}

void rand_keep_input(RandGen *r, Val v, double bound) {
    int64_t n = elems_of(r, v);
    int64_t most = r->o->huge ? RAND_ELEMS_HUGE : r->o->large ? RAND_ELEMS_LARGE : RAND_ELEMS_MAX;
    if (n < 1 || n > most) return;
    set_bound(r, v, bound);
    switch (val_info(r->b.g, v)->dtype) {
    case DT_f32: vec_push(r->arena, &r->floats, v); break;
    case DT_i32: vec_push(r->arena, &r->ints, v); break;
    case DT_bool: vec_push(r->arena, &r->bools, v); break;
    default: break;
    }
}

void rand_keep(RandGen *r, Val v, double bound) {
    if (val_info(r->b.g, v)->dtype == DT_f32 && bound > BOUND_MAX) {
        v = rand_scale(r, v, round(2000 / bound) / 1000 + 0.001);
        bound = 2;
    }
    rand_keep_input(r, v, bound);
}

Val rand_float(RandGen *r) {
    /* Half of the choices are among the newest, so that graphs grow deep and not only wide. */
    uint32_t n = r->floats.n, newest = n < 4 ? n : 4;
    uint32_t i = rand_chance(r, 50) ? n - 1 - rand_below(r, newest) : rand_below(r, n);
    return r->floats.data[i];
}

Val rand_float_of(RandGen *r, Type t) {
    uint32_t from = rand_below(r, r->floats.n);
    for (uint32_t k = 0; k < r->floats.n; k++) {
        Val v = r->floats.data[(from + k) % r->floats.n];
        if (val_type(r->b.g, v).id == t.id) return v;
    }
    return (Val){0};
}

Val rand_partner(RandGen *r, Val v) {
    Type t = val_type(r->b.g, v);
    Val w = rand_float_of(r, t);
    if (w.id != v.id && w.id != 0) return w;
    const TypeInfo *info = val_info(r->b.g, v);
    for (uint32_t i = 0; i < r->floats.n; i++) {
        /* A suffix of the shape: a bias. */
        Val x = r->floats.data[r->floats.n - 1 - i];
        const TypeInfo *small = val_info(r->b.g, x);
        bool fits = small->ndim < info->ndim;
        for (int k = 0; fits && k < small->ndim; k++)
            fits = small->dim[k] == info->dim[info->ndim - small->ndim + k];
        if (!fits) continue;
        Val y = build_broadcast_suffix(&r->b, x, t);
        set_bound(r, y, rand_bound(r, x));
        return y;
    }
    Val c = build_const(&r->b, rand_between(r, -1.5, 1.5), t);
    set_bound(r, c, 1.5);
    return c;
}

Val rand_scale(RandGen *r, Val v, double by) {
    Val y = build2(&r->b, OP_mul, v, build_scalar_like(&r->b, by, v));
    set_bound(r, y, rand_bound(r, v) * fabs(by));
    return y;
}

Val rand_offset(RandGen *r, Val v) {
    double by = 0.0137 + rand_between(r, 0, 0.3);
    Val y = build2(&r->b, OP_add, v, build_scalar_like(&r->b, by, v));
    set_bound(r, y, rand_bound(r, v) + by);
    return y;
}

Val rand_untie(RandGen *r, Val v) {
    const TypeInfo *info = val_info(r->b.g, v);
    int64_t n = elems_of(r, v);
    Type flat = rand_type(r, DT_i32, 1, &n);
    Val i = graph_add(&r->b, OP_iota, 0, NULL, 1, &ATTR_INT(axis, 0), flat)->out;
    Val wave = build1(&r->b, OP_sin, rand_scale(r, build_cast(&r->b, i, DT_f32), 1.37));
    Val small = rand_scale(r, build_reshape(&r->b, wave, info->ndim, info->dim), 0.173);
    Val y = build2(&r->b, OP_add, v, small);
    set_bound(r, y, rand_bound(r, v) + 0.2);
    return y;
}

Val rand_positive(RandGen *r, Val v) {
    Val s = build1(&r->b, OP_sigmoid, v);
    return build2(&r->b, OP_add, s, build_scalar_like(&r->b, 0.5, s));
}

Type rand_type(const RandGen *r, Dtype dtype, int ndim, const int64_t *dim) {
    return type_intern(r->b.g->mod->types, dtype, ndim, dim);
}

/* ---- growing ------------------------------------------------------------------------------ */

typedef struct Choice {
    RandOp *op;
    int weight;
} Choice;

static bool allowed(const RandGen *r, RandOp *op) {
    const RandOptions *o = r->o;
    if (op == rand_op_kink || op == rand_op_select || op == rand_op_argmax ||
        op == rand_op_max_pool)
        return !o->smooth && (op != rand_op_max_pool || o->windows);
    if (op == rand_op_conv || op == rand_op_avg_pool) return o->windows;
    if (op == rand_op_softmax || op == rand_op_norm || op == rand_op_cross_entropy ||
        op == rand_op_attention)
        return o->composites;
    if (op == rand_op_repeat) return o->repeats && r->depth < 2;
    return true;
}

void rand_grow(RandGen *r, int n) {
    static const Choice choice[] = {
        {rand_op_unary, 6},     {rand_op_kink, 4},          {rand_op_binary, 8},
        {rand_op_select, 2},    {rand_op_int, 1},           {rand_op_source, 1},
        {rand_op_reduce, 4},    {rand_op_argmax, 1},        {rand_op_reshape, 2},
        {rand_op_transpose, 2}, {rand_op_slice, 2},         {rand_op_concat, 2},
        {rand_op_broadcast, 3}, {rand_op_pad, 1},           {rand_op_matmul, 4},
        {rand_op_gather, 2},    {rand_op_softmax, 2},       {rand_op_norm, 2},
        {rand_op_conv, 3},      {rand_op_max_pool, 2},      {rand_op_avg_pool, 2},
        {rand_op_repeat, 2},    {rand_op_cross_entropy, 1}, {rand_op_attention, 2},
        {rand_op_dropout, 12},
    };
    uint32_t count = sizeof choice / sizeof choice[0], total = 0;
    if (!r->o->dropout) count--;
    for (uint32_t i = 0; i < count; i++) total += (uint32_t)choice[i].weight;
    for (int done = 0, tries = 0; done < n && tries < 20 * n; tries++) {
        uint32_t pick = rand_below(r, total), i = 0;
        while (pick >= (uint32_t)choice[i].weight) pick -= (uint32_t)choice[i++].weight;
        if (allowed(r, choice[i].op) && choice[i].op(r)) done++;
    }
}

/* ---- the graph ---------------------------------------------------------------------------- */

static void add_data(RandGen *r, int index, Dtype dtype, int ndim, const int64_t *dim) {
    static const char *const names[] = {"a", "b", "c", "d"};
    Port p = {.role = ROLE_data, .index = index, .name = names[index]};
    rand_keep_input(r, graph_add_input(r->b.g, rand_type(r, dtype, ndim, dim), p), 1.5);
}

static void add_weight(RandGen *r, int ndim, const int64_t *dim) {
    Module *m = r->b.g->mod;
    Param p = {.type = rand_type(r, DT_f32, ndim, dim),
               .init = INIT_uniform,
               .init_a = 1,
               .trainable = true};
    p.name = arena_printf(m->arena, "w%d", m->nparam);
    for (int i = 0; i < ndim; i++) p.logical[i] = dim[i];
    p.decay = ndim > 1;
    Port port = {.role = ROLE_weight, .index = module_add_param(m, p)};
    rand_keep_input(r, graph_add_input(r->b.g, p.type, port), 1.5);
}

/* An extent in [low, low + n); large graphs have some that are much longer. */
static int64_t some_dim(RandGen *r, int64_t low, uint32_t n, uint32_t large) {
    if (r->o->huge) large *= 12;
    if (r->o->large && rand_chance(r, 60)) return low + rand_below(r, large);
    return low + rand_below(r, n);
}

static int64_t small_dim(RandGen *r) { return some_dim(r, 2, 3, 20); }

/* Inputs whose shapes fit each other often. */
static void add_inputs(RandGen *r) {
    int64_t batch = some_dim(r, 1, 4, 40), d = some_dim(r, 3, 3, r->o->huge ? 96 : 48),
            e = small_dim(r);
    int64_t c = some_dim(r, 1, 3, 24), side = some_dim(r, 4, 3, 9), k = 1 + rand_below(r, 3);
    add_data(r, 0, DT_f32, 2, (int64_t[]){batch, d});
    add_data(r, 1, DT_i32, 1, (int64_t[]){batch});
    add_data(r, 2, DT_f32, 3, (int64_t[]){batch, e, d});
    if (r->o->windows) add_data(r, 3, DT_f32, 4, (int64_t[]){batch, c, side, side});
    add_weight(r, 2, (int64_t[]){e, d});
    add_weight(r, 1, (int64_t[]){d});
    add_weight(r, 2, (int64_t[]){d, d});
    add_weight(r, 2, (int64_t[]){3 + rand_below(r, 4), d});
    if (r->o->windows) add_weight(r, 4, (int64_t[]){small_dim(r), c, k, k});
    if (r->o->repeats) add_weight(r, 3, (int64_t[]){2 + rand_below(r, 2), d, d});
    if (rand_chance(r, 30)) add_weight(r, 0, NULL);
}

/* The sum of weighted sums of values that nothing uses yet. */
static Val make_loss(RandGen *r) {
    Graph *g = r->b.g;
    uint32_t *uses = graph_count_uses(g, r->arena);
    int64_t axes[NDIM_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    Val loss = {0};
    for (uint32_t i = 0; i < r->floats.n; i++) {
        Val v = r->floats.data[i];
        if (uses[v.id] > 0 || val_node(g, v) == NULL) continue;
        /* Squares give the elements different gradients. */
        if (rand_chance(r, 50)) v = build2(&r->b, OP_mul, v, v);
        Val sum = build_reduce(&r->b, OP_reduce_sum, v, val_info(g, v)->ndim, axes);
        sum = rand_scale(r, sum, rand_between(r, 0.1, 1));
        loss = loss.id == 0 ? sum : build2(&r->b, OP_add, loss, sum);
    }
    if (loss.id != 0) return loss;
    Val v = rand_float(r);
    return build_reduce(&r->b, OP_reduce_sum, rand_scale(r, v, 0.7), val_info(g, v)->ndim, axes);
}

Graph *randgraph_make(Module *m, const RandOptions *o) {
    uint64_t state = o->seed * UINT64_C(0xD1342543DE82EF95) + 1;
    RandGen r = {.o = o, .state = &state, .arena = m->arena};
    Graph *g = r.b.g = graph_new(m, "train");
    module_add_graph(m, g);
    add_inputs(&r);
    rand_grow(&r, o->nodes);
    Val loss = make_loss(&r);
    graph_add_output(g, loss, (Port){.role = ROLE_loss_sum});
    Val one = build_const(&r.b, 1, val_type(g, loss));
    graph_add_output(g, one, (Port){.role = ROLE_loss_count});
    static const char *const names[] = {"o0", "o1", "o2", "o3"};
    for (int i = 0; o->outputs && i < 4; i++) {
        Val v = rand_float(&r);
        if (val_node(g, v) != NULL)
            graph_add_output(g, v, (Port){.role = ROLE_output, .index = i, .name = names[i]});
    }
    return g;
}

void randgraph_inputs(const Graph *g, uint64_t seed, Arena *arena, EvalTensor *in) {
    for (int i = 0; i < g->nin; i++) {
        Type t = val_type(g, g->in[i]);
        int64_t n = type_elems(g->mod->types, t);
        const Port *p = &g->in_port[i];
        uint64_t state = seed ^ (uint64_t)p->role << 32 ^ (uint64_t)p->index << 16;
        bool integer = val_info(g, g->in[i])->dtype == DT_i32;
        in[i] = (EvalTensor){t, ARENA_ARRAY(arena, double, n)};
        for (int64_t k = 0; k < n; k++) {
            uint64_t bits = next_bits(&state);
            /* 23 bits and a sign: exact in f32. */
            double x = (double)(bits >> 41) / (1 << 23) * 3 - 1.5;
            in[i].data[k] = integer ? (double)(bits >> 33) * 3 / 2147483648.0 : (double)(float)x;
            if (integer) in[i].data[k] = floor(in[i].data[k]);
        }
    }
}
