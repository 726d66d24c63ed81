/* eval_move.c - the evaluator's sources, movement and tables; see eval.h. */
#include "ir/eval_rule.h"

#include <math.h>

/* ---- sources ------------------------------------------------------------------------------ */

void eval_const(const EvalNode *x) {
    int64_t n = eval_elems(x, &x->out[0]);
    double value = node_float(x->n, ATTR_value, 0);
    for (int64_t i = 0; i < n; i++) x->out[0].data[i] = value;
}

void eval_iota(const EvalNode *x) {
    const TypeInfo *to = eval_info(x, &x->out[0]);
    int64_t n = eval_elems(x, &x->out[0]), axis = node_int(x->n, ATTR_axis, 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX];
        eval_unravel(to, i, index);
        x->out[0].data[i] = (double)index[axis];
    }
}

/* splitmix64's finisher. */
static uint64_t mix(uint64_t h, uint64_t x) {
    h += x + UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

/* 24 bits, so that the number is exact in f32. */
static double random_default(int64_t stream, const int64_t *iter, int niter, int64_t index) {
    uint64_t h = mix(0, (uint64_t)stream);
    for (int i = 0; i < niter; i++) h = mix(h, (uint64_t)iter[i]);
    return (double)(mix(h, (uint64_t)index) >> 40) / (1 << 24);
}

void eval_random_uniform(const EvalNode *x) {
    const EvalContext *ctx = x->e->ctx;
    int64_t n = eval_elems(x, &x->out[0]), stream = node_int(x->n, ATTR_stream, 0);
    for (int64_t i = 0; i < n; i++)
        x->out[0].data[i] = ctx->random != NULL
                                ? ctx->random(ctx->random_ctx, stream, x->e->iter, x->e->niter, i)
                                : random_default(stream, x->e->iter, x->e->niter, i);
}

/* ---- movement ----------------------------------------------------------------------------- */

void eval_transpose(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]), *to = eval_info(x, &x->out[0]);
    const int64_t *perm = eval_ints(x, ATTR_perm);
    int64_t n = eval_elems(x, &x->out[0]);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX], source[NDIM_MAX] = {0};
        eval_unravel(to, i, index);
        for (int k = 0; k < to->ndim; k++) source[perm[k]] = index[k];
        x->out[0].data[i] = x->in[0].data[eval_ravel(from, source)];
    }
}

void eval_slice(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]), *to = eval_info(x, &x->out[0]);
    const int64_t *begin = eval_ints(x, ATTR_begin), *step = eval_ints(x, ATTR_step);
    int64_t n = eval_elems(x, &x->out[0]);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX];
        eval_unravel(to, i, index);
        for (int k = 0; k < to->ndim; k++) index[k] = begin[k] + index[k] * step[k];
        x->out[0].data[i] = x->in[0].data[eval_ravel(from, index)];
    }
}

void eval_concat(const EvalNode *x) {
    const TypeInfo *to = eval_info(x, &x->out[0]);
    int64_t axis = node_int(x->n, ATTR_axis, 0), offset = 0;
    for (int k = 0; k < x->n->nin; k++) {
        const TypeInfo *from = eval_info(x, &x->in[k]);
        int64_t n = eval_elems(x, &x->in[k]);
        for (int64_t i = 0; i < n; i++) {
            int64_t index[NDIM_MAX];
            eval_unravel(from, i, index);
            index[axis] += offset;
            x->out[0].data[eval_ravel(to, index)] = x->in[k].data[i];
        }
        offset += from->dim[axis];
    }
}

void eval_broadcast(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]), *to = eval_info(x, &x->out[0]);
    const int64_t *axes = eval_ints(x, ATTR_axes);
    int64_t n = eval_elems(x, &x->out[0]);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX], source[NDIM_MAX];
        eval_unravel(to, i, index);
        for (int k = 0; k < from->ndim; k++) source[k] = from->dim[k] == 1 ? 0 : index[axes[k]];
        x->out[0].data[i] = x->in[0].data[eval_ravel(from, source)];
    }
}

void eval_pad(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]), *to = eval_info(x, &x->out[0]);
    const int64_t *low = eval_ints(x, ATTR_low);
    int64_t n = eval_elems(x, &x->in[0]);
    eval_const(x);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX];
        eval_unravel(from, i, index);
        for (int k = 0; k < from->ndim; k++) index[k] += low[k];
        x->out[0].data[eval_ravel(to, index)] = x->in[0].data[i];
    }
}

/* ---- tables ------------------------------------------------------------------------------- */

/* The row that an index names, or -1 when there is none. */
static int64_t table_row(double index, int64_t rows) {
    return index >= 0 && index < (double)rows ? (int64_t)index : -1;
}

void eval_gather(const EvalNode *x) {
    const TypeInfo *table = eval_info(x, &x->in[0]);
    int64_t n = eval_elems(x, &x->in[1]), row_elems = 1;
    for (int i = 1; i < table->ndim; i++) row_elems *= table->dim[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t row = table_row(x->in[1].data[i], table->dim[0]);
        for (int64_t k = 0; k < row_elems; k++)
            x->out[0].data[i * row_elems + k] =
                row < 0 ? (double)NAN : x->in[0].data[row * row_elems + k];
    }
}

void eval_put(const EvalNode *x) {
    const TypeInfo *old = eval_info(x, &x->in[0]), *new = eval_info(x, &x->in[1]);
    int64_t axis = node_int(x->n, ATTR_axis, 0), first = (int64_t)x->in[2].data[0];
    int64_t n = eval_elems(x, &x->in[1]);
    for (int64_t i = 0; i < eval_elems(x, &x->in[0]); i++) x->out[0].data[i] = x->in[0].data[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NDIM_MAX];
        eval_unravel(new, i, index);
        index[axis] += first;
        if (index[axis] >= 0 && index[axis] < old->dim[axis])
            x->out[0].data[eval_ravel(old, index)] = x->in[1].data[i];
    }
}

void eval_gather_dw(const EvalNode *x) {
    const TypeInfo *table = eval_info(x, &x->out[0]);
    int64_t n = eval_elems(x, &x->in[0]), row_elems = 1;
    for (int i = 1; i < table->ndim; i++) row_elems *= table->dim[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t row = table_row(x->in[0].data[i], table->dim[0]);
        for (int64_t k = 0; row >= 0 && k < row_elems; k++)
            x->out[0].data[row * row_elems + k] += x->in[1].data[i * row_elems + k];
    }
}
