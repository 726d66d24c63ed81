/* lower_cuda_gemm.c - a product out[m, n] = sum over k of a[m, k] b[k, n] for CUDA.
 *
 * A block makes a tile of the product. Pieces of a and b of `depth` places of k go through shared
 * memory, the next one being loaded into registers while the threads multiply the present one; each
 * thread keeps a tile of row x col sums and adds to each in the order of k, with fma; or warps do
 * so on tensor cores, 8 places of k at a time. With few tiles and a long k the sum is cut into
 * parts, one a block; the last block of a tile adds the parts in order. Convolutions are products
 * whose operands are found by index.
 */
#include "codegen/lower_cuda_gemm.h"

#include "codegen/lower_space.h"

enum { PARTS_STEP = 32 /* elements of parts that a thread loads at once */ };

typedef struct Side {
    GemmPlaceFn *place;
    bool along_k;
    int64_t wide, limit; /* of the tile, and how many there are */
    LoopIdx origin;      /* of the tile */
    LoopBuf shared;      /* [depth][wide + pad] */
    LoopBuf staged;      /* registers: what this thread loads of the next piece */
    int64_t each;        /* elements that a thread loads */
    int64_t stride;
} Side;

typedef struct Tile {
    CudaGemm *t;
    LoopIdx thread, batch, part;
    LoopIdx row, col;           /* of the thread's (tensor cores: warp's) sums in the tile */
    LoopIdx lane_row, lane_col; /* tensor cores: lane / 4, lane % 4 */
    Side a, b;
    LoopBuf sum;
} Tile;

LoopVal lower_both(LoopKernel *k, LoopVal a, LoopVal b) {
    if (!a.id || !b.id) return a.id ? a : b;
    return loop_op2(k, OP_and, a, b);
}

/* --- loading --- */

static void side_new(Tile *w, Side *s, const char *name, GemmPlaceFn *place, bool along_k) {
    LoopKernel *k = w->t->k;
    s->place = place;
    s->along_k = along_k;
    /* Columns of a transposed store, or rows that a warp reads at once, in several banks. */
    s->stride = s->wide + (w->t->s.down ? 8 : along_k ? 4 : 0);
    s->each = lower_ceil_div(s->wide * w->t->s.depth, w->t->s.threads);
    s->shared = loop_shared(k, name, DT_f32, w->t->s.depth * s->stride);
}

/* Row or column, and place of k, of element `e` of those that the thread loads. */
static void staged_place(Tile *w, const Side *s, LoopIdx e, LoopIdx *i, LoopIdx *k_at) {
    LoopKernel *k = w->t->k;
    int64_t depth = w->t->s.depth, threads = w->t->s.threads;
    LoopIdx flat = loop_idx_add(k, loop_idx_scale(k, e, threads), w->thread);
    if (s->along_k) {
        *i = loop_idx_div(k, flat, depth);
        *k_at = loop_idx_mod(k, flat, depth);
    } else {
        *i = loop_idx_mod(k, flat, s->wide);
        *k_at = loop_idx_div(k, flat, s->wide);
    }
}

/* Loads the thread's elements of the piece that begins at place `begin` of k. */
static void load_piece(Tile *w, Side *s, LoopIdx begin) {
    CudaGemm *t = w->t;
    LoopKernel *k = t->k;
    LoopIdx e = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->each, LOOP_NO_BOUND)), i, k_at;
    staged_place(w, s, e, &i, &k_at);
    LoopIdx row = loop_idx_add(k, s->origin, i), at = loop_idx_add(k, begin, k_at);
    LoopVal inside = {0};
    if (loop_idx_info(k, row)->high >= s->limit) inside = loop_range(k, row, 0, s->limit);
    if (loop_idx_info(k, at)->high >= t->s.k)
        inside = lower_both(k, inside, loop_range(k, at, 0, t->s.k));
    row = loop_name(k, row, s->limit);
    at = loop_name(k, at, t->s.k);
    GemmPlace p = s->place(t, w->batch, row, at);
    inside = lower_both(k, inside, p.inside);
    LoopVal v = inside.id ? loop_load_if(k, p.buf, p.at, inside, 0) : loop_load(k, p.buf, p.at);
    loop_store(k, s->staged, e, v);
    loop_close(k);
}

static void store_piece(Tile *w, const Side *s) {
    LoopKernel *k = w->t->k;
    LoopIdx e = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->each, LOOP_NO_BOUND)), i, k_at;
    staged_place(w, s, e, &i, &k_at);
    int depth = k->depth;
    LoopVal v = loop_load(k, s->staged, e);
    if (s->each * w->t->s.threads > s->wide * w->t->s.depth) {
        LoopIdx last = s->along_k ? i : k_at;
        loop_open_if(k, loop_range(k, last, 0, s->along_k ? s->wide : w->t->s.depth));
    }
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, k_at, s->stride), i);
    loop_store(k, s->shared, at, w->t->s.down ? loop_tf32(k, v) : v);
    lower_space_close(k, depth);
    loop_close(k);
}

/* --- multiplying --- */

/* Element `i` of the thread's `n` rows or columns: groups of up to 4 neighbours, spread so that the
 * threads of a warp read neighbouring groups. */
static LoopIdx spread(LoopKernel *k, LoopIdx thread, LoopIdx i, int64_t n, int64_t wide) {
    int64_t group = n < 4 ? n : 4, threads = wide / n;
    LoopIdx at = loop_idx_scale(k, loop_idx_div(k, i, group), threads * group);
    at = loop_idx_add(k, at, loop_idx_scale(k, thread, group));
    return loop_idx_add(k, at, loop_idx_mod(k, i, group));
}

/* The thread's operands of one place of k, in registers. */
static void load_operands(Tile *w, const Side *s, LoopBuf to, int64_t n, LoopIdx thread,
                          LoopIdx p) {
    LoopKernel *k = w->t->k;
    int64_t group = n < 4 ? n : 4;
    LoopIdx outer = loop_idx_axis(k, loop_open(k, LOOP_unroll, n / group, LOOP_NO_BOUND));
    LoopIdx inner = loop_idx_axis(k, loop_open(k, LOOP_vector, group, LOOP_NO_BOUND));
    LoopIdx i = loop_idx_add(k, loop_idx_scale(k, outer, group), inner);
    LoopIdx at = loop_idx_scale(k, p, s->stride);
    at = loop_idx_add(k, at, spread(k, thread, i, n, s->wide));
    loop_store(k, to, i, loop_load(k, s->shared, at));
    loop_close(k);
    loop_close(k);
}

static void multiply_piece(Tile *w) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    LoopBuf x = loop_reg(k, "x", DT_f32, s->row, 1), y = loop_reg(k, "y", DT_f32, s->col, 1);
    LoopIdx p = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->depth, LOOP_NO_BOUND));
    load_operands(w, &w->a, x, s->row, w->row, p);
    load_operands(w, &w->b, y, s->col, w->col, p);
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->row, LOOP_NO_BOUND));
    LoopIdx j = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->col, LOOP_NO_BOUND));
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, i, s->col), j);
    LoopVal sum = loop_fma(k, loop_load(k, x, i), loop_load(k, y, j), loop_load(k, w->sum, at));
    loop_store(k, w->sum, at, sum);
    loop_close(k);
    loop_close(k);
    loop_close(k);
}

/* A warp's registers of one side for 8 places of k from `p` on: `n` tiles of `halves` times 8 rows
 * or columns from tile `first` on. */
static LoopBuf load_tiles(Tile *w, const Side *s, LoopIdx p, LoopIdx first, int64_t n,
                          int64_t halves) {
    LoopKernel *k = w->t->k;
    LoopBuf to = loop_reg(k, halves > 1 ? "x" : "y", DT_f32, n * halves * 2, 1);
    LoopIdx tile = loop_idx_axis(k, loop_open(k, LOOP_unroll, n, LOOP_NO_BOUND));
    LoopIdx right = loop_idx_axis(k, loop_open(k, LOOP_unroll, 2, LOOP_NO_BOUND));
    LoopIdx low = loop_idx_axis(k, loop_open(k, LOOP_unroll, halves, LOOP_NO_BOUND));
    LoopIdx i = loop_idx_scale(k, loop_idx_add(k, first, tile), 8 * halves);
    i = loop_idx_add(k, i, loop_idx_add(k, loop_idx_scale(k, low, 8), w->lane_row));
    LoopIdx k_at = loop_idx_add(k, p, loop_idx_scale(k, right, 4));
    LoopIdx from = loop_idx_scale(k, loop_idx_add(k, k_at, w->lane_col), s->stride);
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, tile, 2), right);
    at = loop_idx_add(k, loop_idx_scale(k, at, halves), low);
    loop_store(k, to, at, loop_load(k, s->shared, loop_idx_add(k, from, i)));
    for (int depth = 0; depth < 3; depth++) loop_close(k);
    return to;
}

/* multiply_piece on tensor cores. */
static void multiply_piece_mma(Tile *w) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    LoopIdx p = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->depth / 8, LOOP_NO_BOUND));
    p = loop_idx_scale(k, p, 8);
    LoopBuf x = load_tiles(w, &w->a, p, loop_idx_scale(k, w->row, s->down), s->down, 2);
    LoopBuf y = load_tiles(w, &w->b, p, loop_idx_scale(k, w->col, s->across), s->across, 1);
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->down, LOOP_NO_BOUND));
    LoopIdx j = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->across, LOOP_NO_BOUND));
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, i, s->across), j);
    loop_mma(k, (LoopMma){.a = x,
                          .b = y,
                          .c = w->sum,
                          .a_at = loop_idx_scale(k, i, 4),
                          .b_at = loop_idx_scale(k, j, 2),
                          .c_at = loop_idx_scale(k, at, 4)});
    for (int depth = 0; depth < 3; depth++) loop_close(k);
}

static void clear_sums(Tile *w) {
    LoopKernel *k = w->t->k;
    int64_t n = w->t->s.row * w->t->s.col;
    w->sum = loop_reg(k, "sum", DT_f32, n, 1);
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_unroll, n, LOOP_NO_BOUND));
    loop_store(k, w->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
}

/* The places of k of this block's part. */
static void multiply(Tile *w) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    int64_t most = s->parts > 1 ? s->part : s->k, pieces = lower_ceil_div(most, s->depth);
    LoopIdx begin = loop_idx_scale(k, w->part, s->part);
    w->a.staged = loop_reg(k, "next_a", DT_f32, w->a.each, 1);
    w->b.staged = loop_reg(k, "next_b", DT_f32, w->b.each, 1);
    load_piece(w, &w->a, begin);
    load_piece(w, &w->b, begin);
    LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_reduce, pieces, LOOP_NO_BOUND));
    loop_sync(k);
    store_piece(w, &w->a);
    store_piece(w, &w->b);
    loop_sync(k);
    if (pieces > 1) {
        int depth = k->depth;
        loop_open_if(k, loop_range(k, piece, 0, pieces - 1));
        LoopIdx next = loop_idx_plus(k, loop_idx_scale(k, piece, s->depth), s->depth);
        next = loop_idx_add(k, begin, loop_name(k, next, pieces * s->depth));
        load_piece(w, &w->a, next);
        load_piece(w, &w->b, next);
        lower_space_close(k, depth);
    }
    if (s->down)
        multiply_piece_mma(w);
    else
        multiply_piece(w);
    loop_close(k);
}

/* --- storing --- */

/* One side's elements of the thread's tile, group by group; lanes are neighbours. */
typedef struct Strip {
    LoopIdx at;    /* number in the thread's tile */
    LoopIdx place; /* row or column of the product, known to exist */
} Strip;

/* Opens the groups of one side; the guard that they exist too where whole groups do or do not. */
static LoopIdx open_groups(Tile *w, const Side *s, int64_t n, LoopIdx thread, LoopIdx *number) {
    LoopKernel *k = w->t->k;
    int64_t group = n < 4 ? n : 4;
    *number = loop_idx_axis(k, loop_open(k, LOOP_unroll, n / group, LOOP_NO_BOUND));
    LoopIdx first = loop_idx_scale(k, *number, s->wide / n * group);
    first = loop_idx_add(k, first, loop_idx_scale(k, thread, group));
    first = loop_idx_add(k, s->origin, first);
    *number = loop_idx_scale(k, *number, group);
    if (s->limit % group) return first;
    LoopIdx unit = lower_cuda_open_below(k, loop_idx_div(k, first, group), s->limit / group);
    return loop_idx_scale(k, loop_name(k, unit, s->limit / group), group);
}

/* Opens the elements of a group. */
static Strip open_lanes(Tile *w, const Side *s, int64_t n, LoopIdx first, LoopIdx number) {
    LoopKernel *k = w->t->k;
    int64_t group = n < 4 ? n : 4;
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, group, LOOP_NO_BOUND));
    Strip span = {.at = loop_idx_add(k, number, lane), .place = loop_idx_add(k, first, lane)};
    if (s->limit % group) span.place = lower_cuda_open_below(k, span.place, s->limit);
    return span;
}

/* open_sums for tensor cores. */
static void open_sums_mma(Tile *w, LoopIdx *i, LoopIdx *j, LoopIdx *at) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    LoopIdx row = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->down, LOOP_NO_BOUND));
    LoopIdx low = loop_idx_axis(k, loop_open(k, LOOP_unroll, 2, LOOP_NO_BOUND));
    LoopIdx down = loop_idx_add(k, loop_idx_scale(k, w->row, s->down), row);
    down = loop_idx_add(k, loop_idx_scale(k, down, 16), loop_idx_scale(k, low, 8));
    down = loop_idx_add(k, w->a.origin, loop_idx_add(k, down, w->lane_row));
    *i = lower_cuda_open_below(k, down, s->m);
    LoopIdx col = loop_idx_axis(k, loop_open(k, LOOP_unroll, s->across, LOOP_NO_BOUND));
    LoopIdx odd = loop_idx_axis(k, loop_open(k, LOOP_unroll, 2, LOOP_NO_BOUND));
    LoopIdx across = loop_idx_add(k, loop_idx_scale(k, w->col, s->across), col);
    across = loop_idx_add(k, loop_idx_scale(k, across, 8), loop_idx_scale(k, w->lane_col, 2));
    across = loop_idx_add(k, w->b.origin, loop_idx_add(k, across, odd));
    *j = lower_cuda_open_below(k, across, s->n);
    LoopIdx tile = loop_idx_add(k, loop_idx_scale(k, row, s->across), col);
    *at = loop_idx_add(k, loop_idx_scale(k, low, 2), odd);
    *at = loop_idx_add(k, loop_idx_scale(k, tile, 4), *at);
}

/* Opens the elements of the thread's tile that exist, neighbours in memory innermost; `at` is the
 * number of the sum. */
static void open_sums(Tile *w, LoopIdx *i, LoopIdx *j, LoopIdx *at) {
    const CudaTiles *s = &w->t->s;
    if (s->down) {
        open_sums_mma(w, i, j, at);
        return;
    }
    bool rows = w->t->rows_first;
    const Side *outer = rows ? &w->b : &w->a, *inner = rows ? &w->a : &w->b;
    int64_t n_outer = rows ? s->col : s->row, n_inner = rows ? s->row : s->col;
    LoopIdx outer_number, inner_number;
    LoopIdx outer_first = open_groups(w, outer, n_outer, rows ? w->col : w->row, &outer_number);
    LoopIdx inner_first = open_groups(w, inner, n_inner, rows ? w->row : w->col, &inner_number);
    Strip x = open_lanes(w, outer, n_outer, outer_first, outer_number);
    Strip y = open_lanes(w, inner, n_inner, inner_first, inner_number);
    *i = rows ? y.place : x.place;
    *j = rows ? x.place : y.place;
    LoopIdx row = rows ? y.at : x.at, col = rows ? x.at : y.at;
    *at = loop_idx_add(w->t->k, loop_idx_scale(w->t->k, row, s->col), col);
}

static void store_results(Tile *w) {
    LoopKernel *k = w->t->k;
    LoopIdx i, j, at, index[NDIM_MAX];
    int depth = k->depth;
    open_sums(w, &i, &j, &at);
    lower_body_bind(w->t->b, w->t->anchor->out, loop_load(k, w->sum, at));
    w->t->index(w->t, w->batch, i, j, index);
    lower_body_store_all(w->t->b, index);
    lower_space_close(k, depth);
}

/* Offset in the workspace of element (i, j) of a part. */
static LoopIdx work_at(Tile *w, LoopIdx part, LoopIdx i, LoopIdx j) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    TypeInfo t = {.ndim = 4, .dim = {s->parts, s->batch, s->m, s->n}};
    LoopIdx index[4] = {part, w->batch, i, j};
    if (w->t->rows_first) {
        t.dim[2] = s->n, t.dim[3] = s->m;
        index[2] = j, index[3] = i;
    }
    return lower_offset(k, &t, index);
}

/* Adds parts [0, n) from `begin` on to the sums, several loads under way. */
static void add_parts(Tile *w, LoopIdx begin, int64_t n) {
    LoopKernel *k = w->t->k;
    LoopIdx i, j, at;
    int depth = k->depth;
    LoopIdx part = loop_idx_axis(k, loop_open(k, LOOP_unroll, n, LOOP_NO_BOUND));
    part = loop_idx_add(k, begin, part);
    open_sums(w, &i, &j, &at);
    LoopVal was = loop_load(k, w->sum, at);
    LoopVal v = loop_load(k, w->t->b->workspace, work_at(w, part, i, j));
    loop_store(k, w->sum, at, loop_op2(k, OP_add, was, v));
    lower_space_close(k, depth);
}

/* Parts go to the workspace; the last block of the tile adds them, in order. */
static void join_parts(Tile *w, LoopIdx tile, int64_t tiles) {
    LoopKernel *k = w->t->k;
    LoopIdx i, j, at;
    int depth = k->depth;
    int64_t parts = w->t->s.parts, each = w->t->s.row * w->t->s.col;
    int64_t step = each >= PARTS_STEP ? 1 : PARTS_STEP / each, full = parts / step;
    open_sums(w, &i, &j, &at);
    loop_store(k, w->t->b->workspace, work_at(w, w->part, i, j), loop_load(k, w->sum, at));
    lower_space_close(k, depth);
    loop_open_if(k, loop_last(k, tile, tiles, parts));
    clear_sums(w);
    if (full > 0) {
        LoopIdx begin = loop_idx_axis(k, loop_open(k, LOOP_reduce, full, LOOP_NO_BOUND));
        add_parts(w, loop_idx_scale(k, begin, step), step);
        loop_close(k);
    }
    if (parts % step) add_parts(w, loop_idx(k, full * step), parts % step);
}

/* Which of the tile's sums are the thread's. */
static void share_sums(Tile *w) {
    LoopKernel *k = w->t->k;
    const CudaTiles *s = &w->t->s;
    LoopIdx worker = w->thread;
    int64_t down = s->rows / s->row, across = s->cols / s->col;
    if (s->down) {
        LoopIdx lane = loop_idx_mod(k, w->thread, CUDA_WARP);
        w->lane_row = loop_let(k, loop_idx_div(k, lane, 4), 8);
        w->lane_col = loop_let(k, loop_idx_mod(k, lane, 4), 4);
        worker = loop_idx_div(k, w->thread, CUDA_WARP);
        down = s->rows / (16 * s->down), across = s->cols / (8 * s->across);
    }
    if (w->t->rows_first) {
        w->row = loop_let(k, loop_idx_mod(k, worker, down), down);
        w->col = loop_let(k, loop_idx_div(k, worker, down), across);
    } else {
        w->col = loop_let(k, loop_idx_mod(k, worker, across), across);
        w->row = loop_let(k, loop_idx_div(k, worker, across), down);
    }
}

void lower_cuda_gemm(CudaGemm *t) {
    LoopKernel *k = t->k;
    const CudaTiles *s = &t->s;
    Tile w = {.t = t, .a = {.wide = s->rows, .limit = s->m}, .b = {.wide = s->cols, .limit = s->n}};
    int64_t across = lower_ceil_div(s->n, s->cols), down = lower_ceil_div(s->m, s->rows);
    int64_t tiles = s->batch * down * across;
    if (s->batch * s->m * s->n == 0) return;
    side_new(&w, &w.a, "a", t->a, t->a_along_k);
    side_new(&w, &w.b, "b", t->b_place, t->b_along_k);
    LoopIdx block;
    lower_cuda_open(k, tiles * s->parts, s->threads, &block, &w.thread);
    LoopIdx tile = loop_let(k, loop_idx_mod(k, block, tiles), tiles);
    w.part = loop_let(k, loop_idx_div(k, block, tiles), s->parts);
    LoopIdx down_at = loop_let(k, loop_idx_mod(k, tile, down), down);
    LoopIdx rest = loop_idx_div(k, tile, down);
    w.a.origin = loop_idx_scale(k, down_at, s->rows);
    LoopIdx across_at = loop_let(k, loop_idx_mod(k, rest, across), across);
    w.b.origin = loop_idx_scale(k, across_at, s->cols);
    w.batch = loop_let(k, loop_idx_div(k, rest, across), s->batch);
    share_sums(&w);
    clear_sums(&w);
    if (s->k > 0) multiply(&w);
    if (s->parts > 1) join_parts(&w, tile, tiles);
    store_results(&w);
    lower_space_close(k, 0);
}
