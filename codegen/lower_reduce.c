/* lower_reduce.c - kernels of form "reduce": elementwise work around reductions over the same axes.
 *
 * Reads   a body whose reductions share domain and axes.
 * Writes  rows (the innermost axis is reduced) or columns; see lower_rows.c and lower_columns.c.
 * Keeps   the order of additions: a function of the domain's shape and the reduced axes
 * (ir/split.h), so a reduction has the same bits fused or alone, on any number of threads.
 */
#include "codegen/lower_reduce.h"

#include <math.h>
#include <string.h>

double reduce_first(const Reduce *r, const Node *red) {
    const char *text = op_reduce_first(red->op);
    bool integer = !dtype_is_float(reduce_dtype(r, red));
    if (strcmp(text, "INFINITY") == 0) return integer ? INT32_MAX : (double)INFINITY;
    if (strcmp(text, "-INFINITY") == 0) return integer ? INT32_MIN : -(double)INFINITY;
    return 0;
}

Dtype reduce_dtype(const Reduce *r, const Node *red) {
    return val_info(r->b->body, red->out)->dtype;
}

LoopVal reduce_combine(const Reduce *r, const Node *red, LoopVal acc, LoopVal v) {
    return loop_op2(r->k, red->op, acc, v);
}

void reduce_domain_index(const Reduce *r, LoopIdx at, LoopIdx *index) {
    lower_unflatten(r->k, r->domain, at, index);
}

void reduce_result_index(const Reduce *r, LoopIdx flat, LoopIdx *index) {
    lower_unflatten(r->k, r->result, flat, index);
}

LoopIdx reduce_place(const Reduce *r, const SplitAxes *groups, LoopIdx flat) {
    TypeInfo t = {.ndim = groups->n};
    LoopIdx index[NDIM_MAX], at = loop_idx(r->k, 0);
    memcpy(t.dim, groups->dim, sizeof t.dim);
    lower_unflatten(r->k, &t, flat, index);
    for (int i = 0; i < groups->n; i++) {
        LoopIdx part = loop_let(r->k, index[i], groups->dim[i]);
        at = loop_idx_add(r->k, at, loop_idx_scale(r->k, part, groups->stride[i]));
    }
    return at;
}

void reduce_clear(const Reduce *r, const Node *red, LoopBuf buf, int64_t n) {
    LoopAxis l = loop_open(r->k, LOOP_vector, n, LOOP_NO_BOUND);
    LoopVal first = loop_const(r->k, reduce_dtype(r, red), reduce_first(r, red));
    loop_store(r->k, buf, loop_idx_axis(r->k, l), first);
    loop_close(r->k);
}

/* --- one element of a row --- */

/* The value that names the place, when v is `iota == value` along the row and the value is the same
 * for all of the row; none otherwise. */
static Val named_place(const Reduce *r, Val v) {
    const Graph *g = r->b->body;
    const Node *n = val_node(g, v);
    int64_t last = r->domain->ndim - 1;
    if (n == NULL || n->op != OP_eq) return (Val){0};
    for (int k = 0; k < 2; k++) {
        const Node *place = val_node(g, n->in[k]), *name = val_node(g, n->in[1 - k]);
        bool fits = place != NULL && name != NULL && place->op == OP_iota &&
                    node_int(place, ATTR_axis, 0) == last && name->op == OP_broadcast;
        const Attr *axes = fits ? node_attr(name, ATTR_axes) : NULL;
        for (int i = 0; fits && i < axes->n; i++)
            fits = axes->v[i] != last || val_info(g, name->in[0])->dim[i] == 1;
        if (fits) return n->in[1 - k];
    }
    return (Val){0};
}

static const Node *picking(const Reduce *r, const Node *red) {
    const Graph *g = r->b->body;
    const Node *chosen = val_node(g, red->in[0]);
    if (red->op != OP_reduce_sum || chosen == NULL || chosen->op != OP_select) return NULL;
    const Node *otherwise = val_node(g, chosen->in[2]);
    bool zero =
        otherwise != NULL && otherwise->op == OP_const && node_float(otherwise, ATTR_value, 1) == 0;
    return zero && named_place(r, chosen->in[0]).id != 0 ? chosen : NULL;
}

void reduce_find_picks(Reduce *r) {
    const Attr *axes = node_attr(r->red[0], ATTR_axes);
    bool one = axes->n == 1 && axes->v[0] == r->domain->ndim - 1 && r->domain->dim[axes->v[0]] > 0;
    for (int i = 0; i < r->n; i++) r->picked[i] = one && picking(r, r->red[i]) != NULL;
}

LoopVal reduce_pick(Reduce *r, int i) {
    LoopKernel *k = r->k;
    const Node *chosen = picking(r, r->red[i]);
    int64_t size = r->domain->dim[r->domain->ndim - 1];
    Dtype dtype = reduce_dtype(r, r->red[i]);
    LoopIdx index[NDIM_MAX];
    reduce_domain_index(r, r->kept_at, index);
    LoopVal place = lower_body_value(r->b, named_place(r, chosen->in[0]), index);
    LoopVal low = loop_compare(k, OP_ge, place, loop_const(k, DT_i32, 0));
    LoopVal high = loop_compare(k, OP_lt, place, loop_const(k, DT_i32, (double)size));
    LoopVal good = loop_op2(k, OP_and, low, high);
    LoopVal safe = loop_select(k, good, place, loop_const(k, DT_i32, 0));
    LoopIdx at = loop_idx_add(k, r->kept_at, loop_idx_val(k, safe, 0, size - 1));
    reduce_domain_index(r, at, index);
    LoopVal v = lower_body_value(r->b, chosen->in[1], index);
    LoopVal zero = loop_const(k, dtype, 0);
    return loop_op2(k, OP_add, zero, loop_select(k, good, v, zero)); /* -0 becomes 0, as in a sum */
}

bool reduce_is_of_level(const Reduce *r, int i, int level) {
    return r->level[r->red[i]->out.id] == level && !r->picked[i];
}

static void find_levels(Reduce *r) {
    const Graph *body = r->b->body;
    r->level = ARENA_ARRAY(r->b->ctx->arena, int, body->nval + 1);
    r->red = ARENA_ARRAY(r->b->ctx->arena, const Node *, body->nnode);
    r->picked = ARENA_ARRAY(r->b->ctx->arena, bool, body->nnode);
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        int level = 0;
        for (int j = 0; j < n->nin; j++)
            level = r->level[n->in[j].id] > level ? r->level[n->in[j].id] : level;
        bool reduces = op_kind(n->op) == KIND_reduce;
        if (reduces) r->red[r->n++] = n;
        for (int j = 0; j < n->nout; j++) r->level[node_out(n, j).id] = level + reduces;
    }
}

Reduce reduce_start(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Reduce r = {.b = lower_body_new(ctx, g, kernel)};
    r.k = r.b->k;
    find_levels(&r);
    LOOP_ASSERT(r.n > 0);
    r.domain = val_info(r.b->body, r.red[0]->in[0]);
    r.result = val_info(r.b->body, r.red[0]->out);
    r.split = split_reduce(r.b->body, r.red[0]);
    return r;
}

LoopKernel *lower_reduce(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Reduce r = reduce_start(ctx, g, kernel);
    if (r.split.results == 0) return r.k;
    if (r.split.inner)
        lower_rows(&r);
    else
        lower_columns(&r);
    return r.k;
}
