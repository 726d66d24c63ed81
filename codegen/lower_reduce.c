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

static void find_levels(Reduce *r) {
    const Graph *body = r->b->body;
    r->level = ARENA_ARRAY(r->b->ctx->arena, int, body->nval + 1);
    r->red = ARENA_ARRAY(r->b->ctx->arena, const Node *, body->nnode);
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
