/* lower_cuda_dots.c - products a[m, k] b[n, k] of few columns and a long k, or of few rows, for
 * CUDA.
 *
 * Both operands lie along k: a thread adds every so many-th four places for some rows and all
 * columns (of few rows: with the operands swapped); the threads of the block fold through shared
 * memory, a warp a sum. With few rows k is cut into parts that the last block of the rows adds in
 * order.
 */
#include "codegen/lower_cuda_thin.h"
#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, PARTS_TOGETHER = 8 };

typedef struct Dots {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaDots s;
    LoopIdx thread, part, row; /* row: the block's first */
    LoopBuf sum, shared;
} Dots;

/* Four places of `n` rows of an operand from row `first` on, into registers; 0: the long one. */
static LoopBuf load_rows(Dots *d, int which, LoopIdx first, int64_t n, LoopIdx quad) {
    LoopKernel *k = d->k;
    LoopBuf to = loop_reg(k, which ? "b" : "a", DT_f32, n * QUAD, 1);
    LoopIdx i = lower_cuda_open_unrolled(k, n);
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    LoopIdx from =
        lower_cuda_at(k, loop_idx_add(k, first, i), d->s.k, lower_cuda_at(k, quad, QUAD, lane));
    int operand = d->s.swapped ? 1 - which : which;
    LoopVal v = loop_load(k, lower_body_input(d->b, d->anchor->in[operand]), from);
    loop_store(k, to, lower_cuda_at(k, i, QUAD, lane), v);
    loop_close(k);
    loop_close(k);
    return to;
}

static void multiply(Dots *d) {
    LoopKernel *k = d->k;
    const CudaDots *s = &d->s;
    LoopIdx i = lower_cuda_open_unrolled(k, s->rows * s->n);
    loop_store(k, d->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    int depth = k->depth;
    int64_t quads = s->k / QUAD, steps = lower_ceil_div(s->part, s->threads);
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_reduce, steps, LOOP_NO_BOUND));
    LoopIdx quad = lower_cuda_at(k, step, s->threads, d->thread);
    quad = lower_cuda_open_below(k, quad, s->part);
    quad = lower_cuda_open_below(k, lower_cuda_at(k, d->part, s->part, quad), quads);
    quad = loop_let(k, quad, quads);
    LoopBuf a = load_rows(d, 0, d->row, s->rows, quad);
    LoopBuf b = load_rows(d, 1, loop_idx(k, 0), s->n, quad);
    i = lower_cuda_open_unrolled(k, s->rows);
    LoopIdx j = lower_cuda_open_unrolled(k, s->n), p = lower_cuda_open_unrolled(k, QUAD),
            at = lower_cuda_at(k, i, s->n, j);
    LoopVal sum = loop_fma(k, loop_load(k, a, lower_cuda_at(k, i, QUAD, p)),
                           loop_load(k, b, lower_cuda_at(k, j, QUAD, p)), loop_load(k, d->sum, at));
    loop_store(k, d->sum, at, sum);
    lower_space_close(k, depth);
}

/* Sums of all threads, in the first places of each sum's row of shared memory. */
static void fold_threads(Dots *d) {
    LoopKernel *k = d->k;
    const CudaDots *s = &d->s;
    int64_t sums = s->rows * s->n, warps = s->threads / CUDA_WARP;
    LoopIdx i = lower_cuda_open_unrolled(k, sums);
    loop_store(k, d->shared, lower_cuda_at(k, i, s->threads, d->thread), loop_load(k, d->sum, i));
    loop_close(k);
    loop_sync(k);
    LoopIdx lane = loop_let(k, loop_idx_mod(k, d->thread, CUDA_WARP), CUDA_WARP);
    LoopIdx warp = loop_let(k, loop_idx_div(k, d->thread, CUDA_WARP), warps);
    int depth = k->depth;
    LoopIdx at = lower_cuda_open_unrolled(k, lower_ceil_div(sums, warps));
    LoopIdx row = loop_idx_scale(k, lower_cuda_at(k, at, warps, warp), s->threads);
    LoopVal v = {0};
    for (int64_t w = 0; w < warps; w++) {
        LoopIdx from = loop_idx_plus(k, loop_idx_add(k, row, lane), w * CUDA_WARP);
        LoopVal next = loop_load(k, d->shared, from);
        v = v.id ? loop_op2(k, OP_add, v, next) : next;
    }
    v = loop_group_fold(k, OP_reduce_sum, v, CUDA_WARP);
    loop_open_if(k, loop_range(k, lane, 0, 1));
    loop_store(k, d->shared, row, v);
    lower_space_close(k, depth);
    loop_sync(k);
}

/* Parts go to the workspace; the last block of the rows adds them, in order. */
static LoopVal join_parts(Dots *d, LoopIdx block_row, LoopIdx sum) {
    LoopKernel *k = d->k;
    const CudaDots *s = &d->s;
    int64_t sums = s->rows * s->n, all = s->m * s->n;
    int depth = k->depth;
    LoopIdx at = lower_cuda_open_below(k, sum, sums);
    LoopVal own = loop_load(k, d->shared, loop_idx_scale(k, at, s->threads));
    at = lower_cuda_at(k, block_row, sums, at);
    loop_store(k, d->b->workspace, lower_cuda_at(k, d->part, all, at), own);
    lower_space_close(k, depth);
    loop_open_if(k, loop_last(k, block_row, s->m / s->rows, s->parts));
    LoopBuf total = loop_reg(k, "total", DT_f32, 1, 1);
    LoopIdx zero = loop_idx(k, 0);
    loop_store(k, total, zero, loop_const(k, DT_f32, 0));
    depth = k->depth;
    at = lower_cuda_at(k, block_row, sums, lower_cuda_open_below(k, sum, sums));
    int64_t steps = lower_ceil_div(s->parts, PARTS_TOGETHER);
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_reduce, steps, LOOP_NO_BOUND));
    LoopIdx part =
        lower_cuda_at(k, step, PARTS_TOGETHER, lower_cuda_open_unrolled(k, PARTS_TOGETHER));
    part = lower_cuda_open_below(k, part, s->parts);
    LoopVal v = loop_load(k, d->b->workspace, lower_cuda_at(k, part, all, at));
    loop_store(k, total, zero, loop_op2(k, OP_add, loop_load(k, total, zero), v));
    lower_space_close(k, depth);
    return loop_load(k, total, zero);
}

LoopKernel *lower_cuda_dots(LowerBody *b, const Node *anchor, const CudaDots *sizes) {
    Dots d = {.b = b, .k = b->k, .anchor = anchor, .s = *sizes};
    LoopKernel *k = d.k;
    const CudaDots *s = &d.s;
    int64_t down = s->m / s->rows, sums = s->rows * s->n, warps = s->threads / CUDA_WARP;
    d.shared = loop_shared(k, "sums", DT_f32, lower_ceil_div(sums, warps) * warps * s->threads);
    LoopIdx block;
    lower_cuda_open(k, down * s->parts, s->threads, &block, &d.thread);
    LoopIdx block_row = loop_let(k, loop_idx_mod(k, block, down), down);
    d.part = loop_let(k, loop_idx_div(k, block, down), s->parts);
    d.row = loop_idx_scale(k, block_row, s->rows);
    d.sum = loop_reg(k, "sum", DT_f32, sums, 1);
    multiply(&d);
    fold_threads(&d);
    LoopVal v = {0};
    if (s->parts > 1) v = join_parts(&d, block_row, d.thread);
    LoopIdx sum = lower_cuda_open_below(k, d.thread, sums);
    if (!v.id) v = loop_load(k, d.shared, loop_idx_scale(k, sum, s->threads));
    LoopIdx index[2];
    index[s->swapped] = loop_idx_add(k, d.row, loop_idx_div(k, sum, s->n));
    index[!s->swapped] = loop_idx_mod(k, sum, s->n);
    lower_body_bind(b, anchor->out, v);
    lower_body_store_all(b, index);
    lower_space_close(k, 0);
    return k;
}
