/* lower_cuda_thin.c - products out[m, n] = sum over k of op(a)[m, k] b[k, n] of few rows or a short
 * k for CUDA.
 *
 * What is long is a row of b and of the result: a thread makes four neighbours of it in all rows of
 * a tile and reads b once, sixteen bytes at a time; a lies in shared memory. Sums run in the order
 * of k; with few tiles k is cut into parts that the last block of a tile adds in order.
 */
#include "codegen/lower_cuda_thin.h"

#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, ROWS_TOGETHER = 8 };

typedef struct Thin {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaThin s;
    LoopIdx thread, part, row, quad; /* row: the tile's first; quad: of the thread's columns */
    LoopVal active;                  /* the quad exists; id 0: always */
    int64_t stride;                  /* of a place of k in shared memory */
    LoopBuf a, sum;
} Thin;

/* Places [begin, begin + depth) of the tile's rows of a. */
static void load_a(Thin *t, LoopIdx begin) {
    LoopKernel *k = t->k;
    const CudaThin *s = &t->s;
    bool ta = node_int(t->anchor, ATTR_ta, 0);
    int64_t n = s->depth * s->rows;
    int depth = k->depth;
    LoopIdx e = lower_cuda_open_unrolled(k, lower_ceil_div(n, s->threads));
    e = lower_cuda_open_below(k, lower_cuda_at(k, e, s->threads, t->thread), n);
    e = loop_let(k, e, n);
    LoopIdx p = ta ? loop_idx_div(k, e, s->rows) : loop_idx_mod(k, e, s->depth);
    LoopIdx i = ta ? loop_idx_mod(k, e, s->rows) : loop_idx_div(k, e, s->depth);
    LoopIdx row = lower_cuda_open_below(k, loop_idx_add(k, t->row, i), s->m);
    LoopIdx place = loop_idx_add(k, begin, p);
    LoopIdx from = ta ? lower_cuda_at(k, place, s->m, row) : lower_cuda_at(k, row, s->k, place);
    LoopVal v = loop_load(k, lower_body_input(t->b, t->anchor->in[0]), from);
    loop_store(k, t->a, lower_cuda_at(k, p, t->stride, i), v);
    lower_space_close(k, depth);
}

/* Adds `together` neighbouring places from `p` of the piece that begins at `begin`. */
static void multiply_places(Thin *t, LoopIdx begin, LoopIdx p) {
    LoopKernel *k = t->k;
    const CudaThin *s = &t->s;
    int depth = k->depth;
    LoopBuf b = loop_reg(k, "b", DT_f32, s->together * QUAD, 1);
    LoopBuf a = loop_reg(k, "a", DT_f32, t->stride, 1);
    LoopIdx u = lower_cuda_open_unrolled(k, s->together);
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    LoopIdx place = loop_idx_add(k, begin, lower_cuda_at(k, p, s->together, u));
    LoopIdx from = lower_cuda_at(k, place, s->n, lower_cuda_at(k, t->quad, QUAD, lane));
    loop_store(k, b, lower_cuda_at(k, u, QUAD, lane),
               loop_load(k, lower_body_input(t->b, t->anchor->in[1]), from));
    lower_space_close(k, depth);
    u = lower_cuda_open_unrolled(k, s->together);
    LoopIdx q = lower_cuda_open_unrolled(k, t->stride / QUAD);
    lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    LoopIdx i = lower_cuda_at(k, q, QUAD, lane);
    from = lower_cuda_at(k, lower_cuda_at(k, p, s->together, u), t->stride, i);
    loop_store(k, a, i, loop_load(k, t->a, from));
    loop_close(k);
    loop_close(k);
    i = lower_cuda_open_unrolled(k, s->rows);
    LoopIdx j = lower_cuda_open_unrolled(k, QUAD), at = lower_cuda_at(k, i, QUAD, j);
    LoopVal sum = loop_fma(k, loop_load(k, a, i), loop_load(k, b, lower_cuda_at(k, u, QUAD, j)),
                           loop_load(k, t->sum, at));
    loop_store(k, t->sum, at, sum);
    lower_space_close(k, depth);
}

static void multiply(Thin *t) {
    LoopKernel *k = t->k;
    const CudaThin *s = &t->s;
    int64_t pieces = s->part / s->depth;
    LoopIdx i = lower_cuda_open_unrolled(k, s->rows * QUAD);
    loop_store(k, t->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_reduce, pieces, LOOP_NO_BOUND));
    LoopIdx begin = lower_cuda_at(k, t->part, s->part, loop_idx_scale(k, piece, s->depth));
    if (pieces > 1) loop_sync(k);
    load_a(t, begin);
    loop_sync(k);
    int depth = k->depth;
    if (t->active.id) loop_open_if(k, t->active);
    int64_t steps = s->depth / s->together;
    multiply_places(t, begin, loop_idx_axis(k, loop_open(k, LOOP_reduce, steps, LOOP_NO_BOUND)));
    lower_space_close(k, depth);
    loop_close(k);
}

/* Opens the thread's results of row `i` that exist; `at` is the number of the sum. */
static void open_row(Thin *t, LoopIdx i, LoopIdx index[2], LoopIdx *at) {
    LoopKernel *k = t->k;
    index[0] = lower_cuda_open_below(k, loop_idx_add(k, t->row, i), t->s.m);
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    index[1] = lower_cuda_at(k, t->quad, QUAD, lane);
    *at = lower_cuda_at(k, i, QUAD, lane);
}

/* All of them. */
static void open_results(Thin *t, LoopIdx index[2], LoopIdx *at) {
    if (t->active.id) loop_open_if(t->k, t->active);
    open_row(t, lower_cuda_open_unrolled(t->k, t->s.rows), index, at);
}

static LoopIdx work_at(Thin *t, LoopIdx part, const LoopIdx index[2]) {
    const CudaThin *s = &t->s;
    LoopIdx at = lower_cuda_at(t->k, part, s->m * s->n, loop_idx_scale(t->k, index[0], s->n));
    return loop_idx_add(t->k, at, index[1]);
}

/* Parts go to the workspace; the last block of the tile adds them, in order. */
static void join_parts(Thin *t, LoopIdx tile) {
    LoopKernel *k = t->k;
    const CudaThin *s = &t->s;
    LoopIdx index[2], at;
    int depth = k->depth;
    open_results(t, index, &at);
    loop_store(k, t->b->workspace, work_at(t, t->part, index), loop_load(k, t->sum, at));
    lower_space_close(k, depth);
    loop_open_if(k, loop_last(k, tile, s->down * s->across, s->parts));
    depth = k->depth;
    open_results(t, index, &at);
    LoopVal sum = {0};
    for (int64_t part = 0; part < s->parts; part++) {
        LoopVal v = loop_load(k, t->b->workspace, work_at(t, loop_idx(k, part), index));
        sum = sum.id ? loop_op2(k, OP_add, sum, v) : v;
    }
    loop_store(k, t->sum, at, sum);
    lower_space_close(k, depth);
}

/* `rows` rows from `first` on: their values first, then all stores. */
static void store_rows(Thin *t, int64_t first, int64_t rows) {
    LoopKernel *k = t->k;
    LoopBuf *kept = lower_body_registers(t->b, rows * QUAD);
    for (int store = 0; store < 2; store++) {
        LoopIdx index[2], at;
        int depth = k->depth;
        LoopIdx i = lower_cuda_open_unrolled(k, rows);
        open_row(t, loop_idx_plus(k, i, first), index, &at);
        LoopIdx slot = loop_idx_plus(k, at, -first * QUAD);
        if (store) {
            lower_body_store_kept(t->b, index, kept, slot);
        } else {
            lower_body_bind(t->b, t->anchor->out, loop_load(k, t->sum, at));
            lower_body_keep_all(t->b, index, kept, slot);
        }
        lower_space_close(k, depth);
    }
}

static void store_results(Thin *t) {
    LoopKernel *k = t->k;
    int depth = k->depth;
    if (t->active.id) loop_open_if(k, t->active);
    for (int64_t first = 0; first < t->s.rows; first += ROWS_TOGETHER) {
        int64_t left = t->s.rows - first;
        store_rows(t, first, left < ROWS_TOGETHER ? left : ROWS_TOGETHER);
    }
    lower_space_close(k, depth);
}

LoopKernel *lower_cuda_thin(LowerBody *b, const Node *anchor, const CudaThin *sizes) {
    Thin t = {.b = b, .k = b->k, .anchor = anchor, .s = *sizes};
    LoopKernel *k = t.k;
    const CudaThin *s = &t.s;
    int64_t tiles = s->down * s->across;
    t.stride = lower_ceil_div(s->rows, QUAD) * QUAD;
    t.a = loop_shared(k, "a", DT_f32, s->depth * t.stride);
    LoopIdx block;
    lower_cuda_open(k, tiles * s->parts, s->threads, &block, &t.thread);
    LoopIdx tile = loop_let(k, loop_idx_mod(k, block, tiles), tiles);
    t.part = loop_let(k, loop_idx_div(k, block, tiles), s->parts);
    LoopIdx across = loop_let(k, loop_idx_mod(k, tile, s->across), s->across);
    t.row = loop_idx_scale(k, loop_let(k, loop_idx_div(k, tile, s->across), s->down), s->rows);
    LoopIdx quad = lower_cuda_at(k, across, s->threads, t.thread);
    if (s->across * s->wide > s->n) t.active = loop_range(k, quad, 0, s->n / QUAD);
    t.quad = loop_name(k, quad, s->n / QUAD);
    t.sum = loop_reg(k, "sum", DT_f32, s->rows * QUAD, 1);
    multiply(&t);
    if (s->parts > 1) join_parts(&t, tile);
    store_results(&t);
    lower_space_close(k, 0);
    return k;
}
