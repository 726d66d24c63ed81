/* fold.c - constant expressions and movement that does nothing.
 *
 * Reads   every graph, bodies of repeats too.
 * Writes  const nodes where all operands are constants, operands where a node is the identity,
 *         one movement for two of a kind in a row, slices for rows of a table in order; constants
 *         enter a repeat's body.
 * Keeps   every bit of every result, for every operand: NaN, infinities and -0 included. So x * 1
 *         and x + (-0) go, x * 0, x - x and x + 0 stay. The one exception is x ^ 2 = x * x, which
 *         is the correctly rounded value that pow may miss.
 * Why     gradients are written without special cases (times 1, sums over no axis); what is
 *         superfluous in them goes here, once.
 */
#include "passes/rewrite.h"

#include <math.h>
#include <string.h>

typedef struct Fold {
    Builder b; /* into the new graph, with the place of the node at hand */
    const Graph *from;
    ValMap map;
    Arena *scratch;
} Fold;

/* The value that replaces node n, whose operands in the new graph are `in`; 0 when none does. */
typedef Val FoldRule(Fold *f, const Node *n, const Val *in);

static const Val none = {0};

bool const_value(const Graph *g, Val v, double *value) {
    const Node *n = val_node(g, v);
    if (n == NULL || n->op != OP_const) return false;
    *value = scalar_round(val_info(g, v)->dtype, node_float(n, ATTR_value, 0.0));
    return true;
}

static bool is_const(const Fold *f, Val v, double value) {
    double x;
    return const_value(f->b.g, v, &x) && scalar_same(x, value);
}

static Type result_type(const Fold *f, const Node *n) { return val_type(f->from, n->out); }

/* ---- all operands constant --------------------------------------------------------------- */

static Val fold_elementwise(Fold *f, const Node *n, const Val *in, const double *x) {
    double a[3] = {0.0, 0.0, 0.0}, y;
    for (int i = 0; i < n->nin; i++) a[i] = x[i];
    Dtype from = val_info(f->b.g, in[n->nin - 1])->dtype;
    Dtype to = val_info(f->from, n->out)->dtype;
    if (!scalar_eval(n->op, from, to, a, &y)) return none;
    return build_const(&f->b, y, result_type(f, n));
}

/* A sum of equal terms is folded only when it is exact in any order: integers below 2^24. */
static Val fold_reduce(Fold *f, const Node *n, const Val *in, double x) {
    int64_t elems_out = type_elems(f->b.g->mod->types, result_type(f, n));
    int64_t elems_in = type_elems(f->b.g->mod->types, val_type(f->b.g, in[0]));
    if (elems_out == 0 || elems_in == 0) return none;
    if (n->op == OP_reduce_max || n->op == OP_reduce_min)
        return build_const(&f->b, x, result_type(f, n));
    double sum = x * (double)(elems_in / elems_out);
    double exact_max = val_info(f->b.g, in[0])->dtype == DT_f32 ? 16777216.0 : 256.0;
    if (n->op != OP_reduce_sum || x != floor(x) || fabs(sum) > exact_max) return none;
    return build_const(&f->b, sum + 0.0, result_type(f, n));
}

static Val fold_movement(Fold *f, const Node *n, const double *x) {
    for (int i = 1; i < n->nin; i++)
        if (!scalar_same(x[i], x[0])) return none;
    const Attr *filler = node_attr(n, ATTR_value);
    if (filler != NULL &&
        !scalar_same(scalar_round(val_info(f->from, n->out)->dtype, filler->f), x[0]))
        return none;
    return build_const(&f->b, x[0], result_type(f, n));
}

static Val fold_constants(Fold *f, const Node *n, const Val *in) {
    if (n->nin == 0 || n->nout != 1) return none;
    double *x = ARENA_ARRAY(f->scratch, double, n->nin);
    for (int i = 0; i < n->nin; i++)
        if (!const_value(f->b.g, in[i], &x[i])) return none;
    switch (op_kind(n->op)) {
    case KIND_elementwise: return n->op == OP_stop_gradient ? none : fold_elementwise(f, n, in, x);
    case KIND_reduce: return fold_reduce(f, n, in, x[0]);
    case KIND_movement: return fold_movement(f, n, x);
    default: return none;
    }
}

/* ---- identities of arithmetic ------------------------------------------------------------ */

static Val fold_add(Fold *f, const Node *n, const Val *in) {
    /* -0 + 0 is 0 */
    double nothing = dtype_is_float(val_info(f->from, n->out)->dtype) ? -0.0 : 0.0;
    return is_const(f, in[1], nothing) ? in[0] : is_const(f, in[0], nothing) ? in[1] : none;
}

static Val fold_sub(Fold *f, const Node *n, const Val *in) {
    (void)n;
    return is_const(f, in[1], 0.0) ? in[0] : none;
}

static Val fold_mul(Fold *f, const Node *n, const Val *in) {
    (void)n;
    return is_const(f, in[1], 1.0) ? in[0] : is_const(f, in[0], 1.0) ? in[1] : none;
}

static Val fold_div(Fold *f, const Node *n, const Val *in) {
    (void)n;
    return is_const(f, in[1], 1.0) ? in[0] : none;
}

static Val fold_pow(Fold *f, const Node *n, const Val *in) {
    (void)n;
    if (is_const(f, in[1], 1.0)) return in[0];
    return is_const(f, in[1], 2.0) ? build2(&f->b, OP_mul, in[0], in[0]) : none;
}

/* max, min, and, or of a value with itself. */
static Val fold_itself(Fold *f, const Node *n, const Val *in) {
    (void)f, (void)n;
    return in[0].id == in[1].id ? in[0] : none;
}

/* `and` with true, `or` with false; the other constant decides. */
static Val fold_logic(Fold *f, const Node *n, const Val *in) {
    double neutral = n->op == OP_and ? 1.0 : 0.0, x;
    for (int i = 0; i < 2; i++)
        if (const_value(f->b.g, in[i], &x)) return x == neutral ? in[1 - i] : in[i];
    return fold_itself(f, n, in);
}

static Val fold_select(Fold *f, const Node *n, const Val *in) {
    (void)n;
    double c;
    if (in[1].id == in[2].id) return in[1];
    return const_value(f->b.g, in[0], &c) ? in[c != 0.0 ? 1 : 2] : none;
}

/* neg of neg, not of not. */
static Val fold_twice(Fold *f, const Node *n, const Val *in) {
    const Node *inner = val_node(f->b.g, in[0]);
    return inner != NULL && inner->op == n->op ? inner->in[0] : none;
}

/* ---- identities of movement -------------------------------------------------------------- */

/* cast, copy, concat of one: nothing happens when the type stays. */
static Val fold_same(Fold *f, const Node *n, const Val *in) {
    return n->nin == 1 && val_type(f->b.g, in[0]).id == result_type(f, n).id ? in[0] : none;
}

static Val fold_reshape(Fold *f, const Node *n, const Val *in) {
    const Node *inner = val_node(f->b.g, in[0]);
    if (val_type(f->b.g, in[0]).id == result_type(f, n).id) return in[0];
    if (inner == NULL || inner->op != OP_reshape) return none;
    const TypeInfo *to = val_info(f->from, n->out);
    return build_reshape(&f->b, inner->in[0], to->ndim, to->dim);
}

/* Only axes of extent 1 move past others: no element does. */
static bool keeps_order(const TypeInfo *from, const Attr *perm) {
    int64_t last = -1;
    for (int i = 0; i < perm->n; i++) {
        if (from->dim[perm->v[i]] == 1) continue;
        if (perm->v[i] < last) return false;
        last = perm->v[i];
    }
    return true;
}

static Val fold_transpose(Fold *f, const Node *n, const Val *in) {
    const Attr *perm = node_attr(n, ATTR_perm);
    const Node *inner = val_node(f->b.g, in[0]);
    bool identity = true;
    for (int i = 0; i < perm->n; i++) identity = identity && perm->v[i] == i;
    if (identity) return in[0];
    if (keeps_order(val_info(f->from, n->in[0]), perm)) {
        const TypeInfo *to = val_info(f->from, n->out);
        return build_reshape(&f->b, in[0], to->ndim, to->dim);
    }
    if (inner == NULL || inner->op != OP_transpose) return none;
    int64_t both[NDIM_MAX];
    const Attr *first = node_attr(inner, ATTR_perm);
    identity = true;
    for (int i = 0; i < perm->n; i++) {
        both[i] = first->v[perm->v[i]];
        identity = identity && both[i] == i;
    }
    return identity ? inner->in[0] : build_transpose(&f->b, inner->in[0], both);
}

static Val fold_broadcast(Fold *f, const Node *n, const Val *in) {
    const Attr *axes = node_attr(n, ATTR_axes);
    const Node *inner = val_node(f->b.g, in[0]);
    bool identity = val_type(f->b.g, in[0]).id == result_type(f, n).id;
    for (int i = 0; i < axes->n; i++) identity = identity && axes->v[i] == i;
    if (identity) return in[0];
    if (inner == NULL || inner->op != OP_broadcast) return none;
    int64_t both[NDIM_MAX];
    const Attr *first = node_attr(inner, ATTR_axes);
    for (int i = 0; i < first->n; i++) both[i] = axes->v[first->v[i]];
    Attr attr = ATTR_INTS(axes, first->n, both);
    return graph_add(&f->b, OP_broadcast, 1, inner->in, 1, &attr, result_type(f, n))->out;
}

/* slice and pad keep everything exactly when they keep every extent (a step over one element
 * included). */
static Val fold_whole(Fold *f, const Node *n, const Val *in) {
    return val_type(f->b.g, in[0]).id == result_type(f, n).id ? in[0] : none;
}

static Val fold_iota(Fold *f, const Node *n, const Val *in) {
    (void)in;
    const TypeInfo *type = val_info(f->from, n->out);
    return type->dim[node_int(n, ATTR_axis, 0)] == 1 ? build_const(&f->b, 0.0, result_type(f, n))
                                                     : none;
}

/* The first rows of a table in order, or one of them, are a slice of it. */
static Val fold_gather(Fold *f, const Node *n, const Val *in) {
    const Node *source = val_node(f->b.g, in[1]);
    const TypeInfo *table = val_info(f->b.g, in[0]), *index = val_info(f->b.g, in[1]);
    if (source == NULL || index->ndim != 1) return none;
    double first = 0.0;
    bool one = index->dim[0] == 1 && const_value(f->b.g, in[1], &first);
    if (source->op != OP_iota && !one) return none;
    if (first < 0 || first + (double)index->dim[0] > (double)table->dim[0]) return none;
    int64_t begin[NDIM_MAX] = {(int64_t)first}, end[NDIM_MAX], step[NDIM_MAX];
    for (int i = 0; i < table->ndim; i++) {
        end[i] = i == 0 ? begin[0] + index->dim[0] : table->dim[i];
        step[i] = 1;
    }
    bool whole = index->dim[0] == table->dim[0];
    (void)n;
    return whole ? in[0] : build_slice(&f->b, in[0], begin, end, step);
}

static FoldRule *const fold_table[OP_count] = {
    [OP_add] = fold_add,
    [OP_sub] = fold_sub,
    [OP_mul] = fold_mul,
    [OP_div] = fold_div,
    [OP_pow] = fold_pow,
    [OP_max] = fold_itself,
    [OP_min] = fold_itself,
    [OP_and] = fold_logic,
    [OP_or] = fold_logic,
    [OP_select] = fold_select,
    [OP_neg] = fold_twice,
    [OP_not] = fold_twice,
    [OP_cast] = fold_same,
    [OP_copy] = fold_same,
    [OP_concat] = fold_same,
    [OP_reshape] = fold_reshape,
    [OP_transpose] = fold_transpose,
    [OP_broadcast] = fold_broadcast,
    [OP_slice] = fold_whole,
    [OP_pad] = fold_whole,
    [OP_iota] = fold_iota,
    [OP_gather] = fold_gather,
};

/* ---- the walk ---------------------------------------------------------------------------- */

static Graph *fold_with(const Graph *g, const Graph *outer, const Node *repeat, const Val *in,
                        Arena *scratch);

static void fold_node(Fold *f, const Node *n) {
    Val *in = ARENA_ARRAY(f->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = f->map.to[n->in[i].id];
    f->b.phase = n->phase;
    f->b.span = n->span;
    f->b.scope = n->scope;
    Graph *body = NULL;
    if (n->body != NULL) {
        body = fold_with(n->body, f->b.g, n, in, f->scratch);
    } else {
        Val v = fold_constants(f, n, in);
        if (v.id == 0 && fold_table[n->op] != NULL) v = fold_table[n->op](f, n, in);
        if (v.id != 0) {
            f->map.to[n->out.id] = v;
            return;
        }
    }
    graph_copy_node(f->b.g, f->from, n, &f->map, body);
}

/* In a repeat's body, inputs whose operand is a constant outside become constants inside. Carried
 * ones change from iteration to iteration and do not. */
static void enter_constants(Fold *f, const Graph *outer, const Node *repeat, const Val *in) {
    int ncarry = (int)node_int(repeat, ATTR_ncarry, repeat->nin);
    double x;
    for (int i = ncarry; i < repeat->nin; i++) {
        if (!const_value(outer, in[i], &x)) continue;
        Val input = f->from->in[i];
        f->map.to[input.id] = build_const(&f->b, x, val_type(f->from, input));
    }
}

static Graph *fold_with(const Graph *g, const Graph *outer, const Node *repeat, const Val *in,
                        Arena *scratch) {
    Fold f = {.b = {.g = graph_new(g->mod, g->name)}, .from = g, .scratch = scratch};
    f.map = valmap_new(scratch, g);
    graph_copy_inputs(f.b.g, g, &f.map);
    if (repeat != NULL && repeat->op == OP_repeat) {
        f.b.span = repeat->span;
        f.b.scope = repeat->scope;
        enter_constants(&f, outer, repeat, in);
    }
    for (int i = 0; i < g->nnode; i++) fold_node(&f, g->node[i]);
    graph_copy_outputs(f.b.g, g, &f.map);
    return f.b.g;
}

Graph *fold_graph(const Graph *g, Arena *scratch) {
    return fold_with(g, NULL, NULL, NULL, scratch);
}

void rewrite_module(PassContext *ctx, GraphRewrite *rewrite) {
    Module *m = ctx->mod;
    for (int i = 0; i < m->ngraph; i++) m->graph[i] = rewrite(m->graph[i], ctx->scratch);
}

bool pass_fold(PassContext *ctx) {
    rewrite_module(ctx, fold_graph);
    return true;
}
