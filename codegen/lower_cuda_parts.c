/* lower_cuda_parts.c - weight gradients of convolutions that lie in the workspace in parts: a
 * launch that adds them, CUDA_PART_ROWS threads every so many-th part in order, then these in
 * order.
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { TOGETHER = 8, COLUMNS = CUDA_WARP };

/* The thread's share of the parts of one weight. */
static LoopVal add_parts(LoopKernel *k, LoopBuf workspace, int64_t all, int64_t parts, LoopIdx row,
                         LoopIdx at) {
    int64_t steps = lower_ceil_div(parts, CUDA_PART_ROWS);
    int64_t inner = steps < TOGETHER ? steps : TOGETHER;
    LoopBuf sum = loop_reg(k, "sum", DT_f32, 1, 1);
    loop_store(k, sum, loop_idx(k, 0), loop_const(k, DT_f32, 0));
    int depth = k->depth;
    LoopIdx outer =
        loop_idx_axis(k, loop_open(k, LOOP_reduce, lower_ceil_div(steps, inner), LOOP_NO_BOUND));
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_unroll, inner, LOOP_NO_BOUND));
    step = loop_idx_add(k, loop_idx_scale(k, outer, inner), step);
    LoopIdx part = loop_idx_add(k, loop_idx_scale(k, step, CUDA_PART_ROWS), row);
    part = lower_cuda_open_below(k, part, parts);
    LoopVal v = loop_load(k, workspace, loop_idx_add(k, loop_idx_scale(k, part, all), at));
    v = loop_op2(k, OP_add, loop_load(k, sum, loop_idx(k, 0)), v);
    loop_store(k, sum, loop_idx(k, 0), v);
    lower_space_close(k, depth);
    return loop_load(k, sum, loop_idx(k, 0));
}

LoopKernel *lower_cuda_conv_parts(LowerContext *ctx, const Graph *g, const Node *kernel,
                                  int64_t parts) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    LoopKernel *k = b->k;
    const Node *anchor = lower_body_anchor(b, OP_conv2d_dw);
    int64_t all = type_elems(b->body->mod->types, val_type(b->body, anchor->out));
    int threads = COLUMNS * CUDA_PART_ROWS;
    LoopBuf rows = loop_shared(k, "rows", DT_f32, threads);
    LoopIdx block, thread;
    lower_cuda_open(k, lower_ceil_div(all, COLUMNS), threads, &block, &thread);
    LoopIdx col = loop_let(k, loop_idx_mod(k, thread, COLUMNS), COLUMNS);
    LoopIdx row = loop_let(k, loop_idx_div(k, thread, COLUMNS), CUDA_PART_ROWS);
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, block, COLUMNS), col);
    int depth = k->depth;
    LoopIdx known = lower_cuda_open_below(k, at, all);
    loop_store(k, rows, thread, add_parts(k, b->workspace, all, parts, row, known));
    lower_space_close(k, depth);
    loop_sync(k);
    loop_open_if(k, loop_range(k, thread, 0, COLUMNS));
    known = loop_let(k, lower_cuda_open_below(k, at, all), all);
    LoopVal v = loop_load(k, rows, col);
    for (int r = 1; r < CUDA_PART_ROWS; r++)
        v = loop_op2(k, OP_add, v, loop_load(k, rows, loop_idx_plus(k, col, r * COLUMNS)));
    LoopIdx index[4];
    lower_unflatten(k, val_info(b->body, anchor->out), known, index);
    lower_body_bind(b, anchor->out, v);
    lower_body_store_all(b, index);
    lower_space_close(k, 0);
    return k;
}
