/* lower_argmax.c - the index of the first largest element along one axis; a NaN counts as largest.
 */
#include "codegen/lower_space.h"

#include <math.h>
#include <string.h>

LoopKernel *lower_argmax(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    LoopKernel *k = b->k;
    const Node *n = lower_body_anchor(b, OP_argmax);
    const TypeInfo *in = val_info(b->body, n->in[0]), *out = val_info(b->body, n->out);
    int axis = (int)node_int(n, ATTR_axis, 0);
    LoopIdx index[NDIM_MAX], at[NDIM_MAX], zero = loop_idx(k, 0);
    if (type_elems(b->body->mod->types, val_type(b->body, n->out)) == 0) return k;
    if (ctx->target == TARGET_cuda)
        lower_open_elements(ctx, k, out, index);
    else
        lower_open_grid(k, out->ndim, out->dim, index);
    LoopBuf best = loop_reg(k, "best", in->dtype, 1, 1), place = loop_reg(k, "place", DT_i32, 1, 1);
    loop_store(k, best, zero,
               loop_const(k, in->dtype, dtype_is_float(in->dtype) ? -(double)INFINITY : INT32_MIN));
    loop_store(k, place, zero, loop_const(k, DT_i32, 0));
    LoopIdx j = loop_idx_axis(k, loop_open(k, LOOP_reduce, in->dim[axis], LOOP_NO_BOUND));
    memcpy(at, index, (size_t)axis * sizeof *at);
    memcpy(at + axis + 1, index + axis, (size_t)(out->ndim - axis) * sizeof *at);
    at[axis] = j;
    LoopVal v = lower_body_value(b, n->in[0], at), old = loop_load(k, best, zero);
    LoopVal nan =
        loop_compare(k, OP_and, loop_compare(k, OP_ne, v, v), loop_compare(k, OP_eq, old, old));
    LoopVal better = loop_compare(k, OP_or, loop_compare(k, OP_gt, v, old), nan);
    loop_store(k, place, zero, loop_select(k, better, loop_index(k, j), loop_load(k, place, zero)));
    loop_store(k, best, zero, loop_select(k, better, v, old));
    loop_close(k);
    lower_body_bind(b, n->out, loop_load(k, place, zero));
    lower_body_store_all(b, index);
    lower_space_close(k, 0);
    return k;
}
