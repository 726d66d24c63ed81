/* lower_cuda_gather.c - the gradient of a small table for CUDA.
 *
 * A large one sorts the indices first (lower_cuda_table.c). Else a warp makes up to 32 columns of
 * one row of the table: it walks all indices in order and adds the rows of dy that name it. No list
 * is made and no order depends on threads; walking costs one broadcast load for each index and row.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_cuda_table.h"
#include "codegen/lower_space.h"

LoopKernel *lower_cuda_gather_dw(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    LoopKernel *k = b->k;
    const Node *n = lower_body_anchor(b, OP_gather_dw);
    const TypeInfo *out = val_info(b->body, n->out);
    const TypeTable *types = b->body->mod->types;
    int64_t rows = out->dim[0], indices = type_elems(types, val_type(b->body, n->in[0]));
    int64_t elems = type_elems(types, val_type(b->body, n->out));
    if (elems == 0) return k;
    if (split_cuda_table(b->body, n).sorted) return lower_cuda_table(ctx, g, kernel);
    LoopBuf index = lower_body_input(b, n->in[0]), dy = lower_body_input(b, n->in[1]);
    int64_t width = elems / rows;
    LoopIdx zero = loop_idx(k, 0), at[NDIM_MAX];
    LoopIdx flat = lower_cuda_open_units(k, elems, 1);
    LoopIdx row = loop_let(k, loop_idx_div(k, flat, width), rows);
    LoopIdx column = loop_let(k, loop_idx_mod(k, flat, width), width);
    LoopVal own = loop_index(k, row);
    LoopBuf sum = loop_reg(k, "sum", DT_f32, 1, 1);
    loop_store(k, sum, zero, loop_const(k, DT_f32, 0));
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_reduce, indices, LOOP_NO_BOUND));
    LoopVal pair[2] = {loop_load(k, index, i), own};
    loop_open_if(k, loop_op(k, OP_eq, DT_bool, 2, pair));
    LoopVal v = loop_load(k, dy, loop_idx_add(k, loop_idx_scale(k, i, width), column));
    loop_store(k, sum, zero, loop_op2(k, OP_add, loop_load(k, sum, zero), v));
    loop_close(k);
    loop_close(k);
    lower_body_bind(b, n->out, loop_load(k, sum, zero));
    lower_unflatten(k, out, flat, at);
    lower_body_store_all(b, at);
    lower_space_close(k, 0);
    return k;
}
