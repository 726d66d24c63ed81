/* randgraph_more.c - random products, tables, composites, windows, repeats; see randgraph_gen.h. */
#include "tests/ir/randgraph_gen.h"

#include "ir/module.h"
#include "ir/shape.h"

static const TypeInfo *info_of(const RandGen *r, Val v) { return val_info(r->b.g, v); }

/* Keeps op(in..) when the shape rule takes it. */
static const Node *try_op(RandGen *r, Op op, int nin, const Val *in, int nattr, const Attr *attr) {
    Type type[3], out[SHAPE_RESULTS_MAX];
    for (int i = 0; i < nin; i++) type[i] = val_type(r->b.g, in[i]);
    ShapeQuery q = {.types = r->b.g->mod->types,
                    .arena = r->arena,
                    .op = op,
                    .nin = nin,
                    .in = type,
                    .nattr = nattr,
                    .attr = attr};
    if (shape_check(&q, out) != NULL) return NULL;
    return graph_add(&r->b, op, nin, in, nattr, attr, (Type){0});
}

/* ---- products and tables ------------------------------------------------------------------ */

bool rand_op_matmul(RandGen *r) {
    Val x = rand_float(r);
    for (int tries = 0; tries < 12; tries++) {
        Val in[2] = {x, tries < 11 ? rand_float(r) : x};
        Attr attr[] = {ATTR_INT(ta, rand_chance(r, 30)), ATTR_INT(tb, rand_chance(r, 50))};
        if (tries == 11) attr[1].i = !attr[0].i;
        const Node *n = try_op(r, OP_matmul, 2, in, 2, attr);
        if (n == NULL) continue;
        const TypeInfo *info = info_of(r, x);
        int64_t k = info->dim[info->ndim - (attr[0].i ? 2 : 1)];
        rand_keep(r, n->out, rand_bound(r, in[0]) * rand_bound(r, in[1]) * (double)k);
        return true;
    }
    return false;
}

bool rand_op_gather(RandGen *r) {
    Val x = rand_float(r);
    if (r->ints.n == 0 || info_of(r, x)->ndim == 0 || info_of(r, x)->dim[0] < 3) return false;
    Val in[2] = {x, r->ints.data[rand_below(r, r->ints.n)]};
    const Node *n = try_op(r, OP_gather, 2, in, 0, NULL);
    if (n != NULL) rand_keep(r, n->out, rand_bound(r, x));
    return n != NULL;
}

/* ---- composites --------------------------------------------------------------------------- */

bool rand_op_softmax(RandGen *r) {
    Val x = rand_float(r);
    if (info_of(r, x)->ndim == 0) return false;
    bool log = rand_chance(r, 50);
    rand_keep(r, build1(&r->b, log ? OP_log_softmax : OP_softmax, x),
              log ? 2 * rand_bound(r, x) + 3 : 1);
    return true;
}

bool rand_op_norm(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0 || info->dim[info->ndim - 1] < 2) return false;
    Type vector = rand_type(r, DT_f32, 1, &info->dim[info->ndim - 1]);
    Val gamma = rand_float_of(r, vector), beta = rand_float_of(r, vector);
    if (gamma.id == 0) return false;
    /* Rows of nearly equal elements have a steep derivative. */
    x = rand_untie(r, x);
    bool layer = rand_chance(r, 50);
    Val in[3] = {x, gamma, beta};
    double bound = rand_bound(r, gamma) * 2 + rand_bound(r, beta);
    const Node *n = try_op(r, layer ? OP_layer_norm : OP_rms_norm, layer ? 3 : 2, in, 1,
                           &ATTR_FLOAT(eps, 0.01));
    if (n == NULL) return false;
    rand_keep(r, n->out, bound);
    return true;
}

/* Targets of class 2 become rows that are not there. */
static Val pad_targets(RandGen *r, Val target) {
    Val two = build2(&r->b, OP_eq, target, build_scalar_like(&r->b, 2, target));
    return build3(&r->b, OP_select, two, build_scalar_like(&r->b, INT32_MIN, target), target);
}

bool rand_op_cross_entropy(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0 || info->dim[info->ndim - 1] < 3) return false;
    Type t = rand_type(r, DT_i32, info->ndim - 1, info->dim);
    for (uint32_t i = 0; i < r->ints.n; i++) {
        if (val_type(r->b.g, r->ints.data[i]).id != t.id) continue;
        Val in[2] = {x, r->ints.data[i]};
        if (r->o->pads && rand_chance(r, 50)) in[1] = pad_targets(r, in[1]);
        Attr attr[2] = {ATTR_INT(ignore, rand_chance(r, 50) ? -100 : 1),
                        ATTR_INT(classes, info->dim[info->ndim - 1])};
        attr[1].i -= rand_chance(r, 30) && attr[1].i > 3; /* classes are 0, 1 and 2 */
        const Node *n = try_op(r, OP_cross_entropy, 2, in, 2, attr);
        if (n == NULL) return false;
        rand_keep(r, n->out, 4.0 * (double)type_elems(r->b.g->mod->types, t));
        if (rand_chance(r, 30)) rand_keep(r, node_out(n, 1), 4);
        return true;
    }
    return false;
}

/* [batch, rows, width] from any value: its elements along the last axis times a ramp of rows. */
static Val attention_source(RandGen *r, int64_t batch, int64_t rows, int64_t width) {
    Val x = rand_float(r);
    int64_t n = type_elems(r->b.g->mod->types, val_type(r->b.g, x));
    x = build_reshape(&r->b, x, 1, &n);
    int64_t begin = 0, end = n < width ? n : width, step = 1, low = 0, high = width - end, axis = 2;
    x = build_slice(&r->b, x, &begin, &end, &step);
    Attr pad[] = {ATTR_INTS(low, 1, &low), ATTR_INTS(high, 1, &high), ATTR_FLOAT(value, 0.375)};
    x = graph_add(&r->b, OP_pad, 1, &x, 3, pad, (Type){0})->out;
    int64_t dim[3] = {batch, rows, width};
    Type type = rand_type(r, DT_f32, 3, dim), index = rand_type(r, DT_i32, 3, dim);
    Attr along = ATTR_INT(axis, 1);
    Val ramp = build_cast(&r->b, graph_add(&r->b, OP_iota, 0, NULL, 1, &along, index)->out, DT_f32);
    ramp = build1(&r->b, OP_cos, build2(&r->b, OP_add, ramp, build_scalar_like(&r->b, 0.25, ramp)));
    x = build2(&r->b, OP_mul, build_broadcast(&r->b, x, type, &axis), ramp);
    return rand_scale(r, x, 1 / (1 + rand_bound(r, x)));
}

/* x [batch, rows, width] with positions turned, all columns of a row by its tables. */
static Val attention_turn(RandGen *r, Val x) {
    const TypeInfo *t = info_of(r, x);
    int64_t dim[2] = {t->dim[1], t->dim[2] / 2};
    Type index = rand_type(r, DT_i32, 2, dim);
    Attr axis = ATTR_INT(axis, 0);
    Val place = graph_add(&r->b, OP_iota, 0, NULL, 1, &axis, index)->out;
    Val angle = build_cast(&r->b, place, DT_f32);
    Val in[3] = {x, build1(&r->b, OP_cos, angle), build1(&r->b, OP_sin, angle)};
    Attr attr[] = {ATTR_INT(axis, 1), ATTR_INT(adjacent, rand_chance(r, 50)),
                   ATTR_INT(back, rand_chance(r, 30))};
    return graph_add(&r->b, OP_rope, 3, in, 3, attr, (Type){0})->out;
}

/* Columns [from, from + heads * dim) of x as [batch, heads, rows, dim]. */
static Val attention_operand(RandGen *r, Val x, int64_t from, int64_t heads, int64_t dim) {
    const TypeInfo *t = info_of(r, x);
    int64_t batch = t->dim[0], rows = t->dim[1], one[3] = {1, 1, 1};
    int64_t begin[3] = {0, 0, from}, end[3] = {batch, rows, from + heads * dim};
    x = build_slice(&r->b, x, begin, end, one);
    x = build_reshape(&r->b, x, 4, (int64_t[]){batch, rows, heads, dim});
    return build_transpose(&r->b, x, (int64_t[]){0, 2, 1, 3});
}

/* As models write it: q, k and v are columns of one tensor, heads become columns again. */
bool rand_op_attention(RandGen *r) {
    int64_t batch = 1 + rand_below(r, 2), groups = 1 + rand_below(r, 2), dim = 8;
    int64_t heads = groups * (1 + rand_below(r, 2)), rows = 1 + rand_below(r, 6), keys = rows;
    if (r->o->large && rand_chance(r, 50)) rows = keys = 1 + rand_below(r, 40);
    if (rand_chance(r, 30)) dim = rand_chance(r, 50) ? 4 : 16;
    bool causal = rand_chance(r, 60), turned = rand_chance(r, 40);
    Val x = attention_source(r, batch, rows, (heads + 2 * groups) * dim), y;
    if (turned) x = attention_turn(r, x);
    y = x;
    if (!causal && rand_chance(r, 50)) {
        keys = 1 + rand_below(r, 9);
        y = attention_source(r, batch, keys, (heads + 2 * groups) * dim);
    }
    Val in[3] = {attention_operand(r, x, 0, heads, dim),
                 attention_operand(r, y, heads * dim, groups, dim),
                 attention_operand(r, y, (heads + groups) * dim, groups, dim)};
    Attr attr[] = {ATTR_INT(causal, causal), ATTR_FLOAT(scale, rand_between(r, 0.3, 1))};
    const Node *n = try_op(r, OP_attention, 3, in, 2, attr);
    if (n == NULL) return false;
    Val out = n->out;
    if (rand_chance(r, 70)) {
        out = build_transpose(&r->b, out, (int64_t[]){0, 2, 1, 3});
        out = build_reshape(&r->b, out, 3, (int64_t[]){batch, rows, heads * dim});
    }
    rand_keep(r, out, 1);
    if (rand_chance(r, 20)) rand_keep(r, node_out(n, 1), 8);
    return true;
}

/* As lowering writes it: elements stay where a number in [0, 1) is below 1 - p. */
bool rand_op_dropout(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    Type t = rand_type(r, DT_f32, info->ndim, info->dim);
    Attr stream = ATTR_INT(stream, r->b.g->mod->nstream++);
    double keep = rand_between(r, 0.2, 0.9);
    Val u = graph_add(&r->b, OP_random_uniform, 0, NULL, 1, &stream, t)->out;
    Val kept = build2(&r->b, OP_lt, u, build_scalar_like(&r->b, keep, u));
    Val scaled = build2(&r->b, OP_div, x, build_scalar_like(&r->b, keep, x));
    rand_keep(r, build3(&r->b, OP_select, kept, scaled, build_scalar_like(&r->b, 0, x)),
              rand_bound(r, x) / keep);
    return true;
}

/* ---- windows ------------------------------------------------------------------------------ */

/* A usable value of rank 4, id 0 when there is none. */
static Val rand_image(RandGen *r) {
    uint32_t from = rand_below(r, r->floats.n);
    for (uint32_t k = 0; k < r->floats.n; k++) {
        Val v = r->floats.data[(from + k) % r->floats.n];
        if (info_of(r, v)->ndim == 4) return v;
    }
    return (Val){0};
}

bool rand_op_conv(RandGen *r) {
    Val x = rand_image(r);
    for (int tries = 0; x.id != 0 && tries < 6; tries++) {
        Val in[2] = {x, rand_image(r)};
        int64_t stride[2] = {1 + rand_below(r, 2), 1 + rand_below(r, 2)};
        int64_t padding[2] = {rand_below(r, 3), rand_below(r, 3)};
        Attr attr[] = {ATTR_INTS(stride, 2, stride), ATTR_INTS(padding, 2, padding)};
        const Node *n = try_op(r, OP_conv2d, 2, in, 2, attr);
        if (n == NULL) continue;
        const TypeInfo *w = info_of(r, in[1]);
        double products = (double)(w->dim[1] * w->dim[2] * w->dim[3]);
        rand_keep(r, n->out, rand_bound(r, x) * rand_bound(r, in[1]) * products);
        return true;
    }
    return false;
}

static bool pool(RandGen *r, Op op, Val x) {
    int64_t window[2] = {1 + rand_below(r, 3), 1 + rand_below(r, 3)};
    int64_t stride[2] = {1 + rand_below(r, 2), 1 + rand_below(r, 2)};
    int64_t padding[2] = {rand_below(r, (uint32_t)window[0]), rand_below(r, (uint32_t)window[1])};
    Attr attr[] = {ATTR_INTS(window, 2, window), ATTR_INTS(stride, 2, stride),
                   ATTR_INTS(padding, 2, padding)};
    const Node *n = try_op(r, op, 1, &x, 3, attr);
    if (n != NULL) rand_keep(r, n->out, rand_bound(r, x));
    return n != NULL;
}

bool rand_op_max_pool(RandGen *r) {
    Val x = rand_image(r);
    return x.id != 0 && pool(r, OP_max_pool2d, rand_untie(r, x));
}

bool rand_op_avg_pool(RandGen *r) {
    Val x = rand_image(r);
    return x.id != 0 && pool(r, OP_avg_pool2d, x);
}

/* ---- repeat ------------------------------------------------------------------------------- */

/* The newest usable value of the body that has type t; there is one, the carried input. */
static Val newest_of(const RandGen *r, Type t) {
    for (uint32_t i = r->floats.n; i-- > 0;)
        if (val_type(r->b.g, r->floats.data[i]).id == t.id) return r->floats.data[i];
    return (Val){0};
}

typedef struct Operands {
    Val in[6];
    int n, ncarry, nconst;
    int64_t count;
} Operands;

/* Carried and constant values of any shape, stacked ones with one leading extent. */
static bool choose_operands(RandGen *r, Operands *o) {
    Val stacked = {0};
    for (int tries = 0; tries < 10 && stacked.id == 0; tries++) {
        Val v = rand_float(r);
        const TypeInfo *info = info_of(r, v);
        if (info->ndim >= 1 && info->dim[0] >= 2 && info->dim[0] <= 5) stacked = v;
    }
    if (stacked.id == 0) return false;
    o->count = info_of(r, stacked)->dim[0];
    o->ncarry = 1 + (int)rand_below(r, 2);
    for (int i = 0; i < o->ncarry; i++) o->in[o->n++] = rand_float(r);
    o->nconst = 1;
    o->in[o->n++] = rand_float(r);
    if (r->ints.n > 0) {
        o->in[o->n++] = r->ints.data[rand_below(r, r->ints.n)];
        o->nconst++;
    }
    o->in[o->n++] = stacked;
    Val more = rand_float(r);
    const TypeInfo *info = info_of(r, more);
    if (info->ndim >= 1 && info->dim[0] == o->count) o->in[o->n++] = more;
    return true;
}

static void add_body_inputs(RandGen *body, const RandGen *r, const Operands *o) {
    for (int i = 0; i < o->n; i++) {
        const TypeInfo *info = info_of(r, o->in[i]);
        bool stacked = i >= o->ncarry + o->nconst;
        Type t = rand_type(r, info->dtype, info->ndim - stacked, info->dim + stacked);
        double bound = rand_bound(r, o->in[i]);
        if (i < o->ncarry && bound < 1) bound = 1; /* what later iterations bring */
        rand_keep_input(body, graph_add_input(body->b.g, t, (Port){0}), bound);
    }
}

bool rand_op_repeat(RandGen *r) {
    Operands o = {0};
    if (!choose_operands(r, &o)) return false;
    RandGen body = {.o = r->o, .state = r->state, .arena = r->arena, .depth = r->depth + 1};
    body.b.g = graph_new(r->b.g->mod, NULL);
    add_body_inputs(&body, r, &o);
    rand_grow(&body, 3 + (int)rand_below(r, 6));
    double bound[8];
    int nout = 0;
    for (int i = 0; i < o.ncarry; i++) {
        /* tanh keeps the carried values bounded over all iterations. */
        Val v = newest_of(&body, val_type(r->b.g, o.in[i]));
        graph_add_output(body.b.g, build1(&body.b, OP_tanh, v), (Port){0});
        bound[nout++] = 1;
    }
    for (int i = (int)rand_below(r, 3); i > 0; i--) {
        Val v = rand_float(&body);
        if (info_of(&body, v)->ndim > 3) continue;
        graph_add_output(body.b.g, v, (Port){0});
        bound[nout++] = rand_bound(&body, v);
    }
    Attr attr[] = {ATTR_INT(count, o.count), ATTR_INT(ncarry, o.ncarry), ATTR_INT(nconst, o.nconst),
                   ATTR_INT(reverse, rand_chance(r, 30))};
    const Node *n = graph_add_region(&r->b, OP_repeat, o.n, o.in, 4, attr, body.b.g);
    for (int i = 0; i < nout; i++) rand_keep(r, node_out(n, i), bound[i]);
    return true;
}
