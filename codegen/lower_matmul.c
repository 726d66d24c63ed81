/* lower_matmul.c - matrix products: blocks of the result, an epilogue on each while it is in cache.
 *
 * Reads   a [batch.., m, k] (or [.., k, m]) and b [batch.., k, n] (or [.., n, k]).
 * Writes  a grid loop over blocks of the result. A block is summed into a local array by the way
 * that ir/split.h chose: the library (inf_sgemm), vectors of columns, or dot products. Then the
 * epilogue runs over it. When k is cut into parts, blocks go to the workspace instead and a second
 * grid loop adds the parts in order and runs the epilogue.
 *
 * Cuts depend on the sizes alone. Blocks at an end move back so that they are whole and compute
 * some elements twice, in the same way; only their own elements are stored. (Library tiles are
 * exact.)
 */
#include "codegen/conv_tile.h"
#include "codegen/lower.h"

enum { SUM_FLOATS = 4096, DOTS_TILE_MAX = 20 };

typedef struct Matmul {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    MatmulSplit s;
    LoopBuf lhs, rhs;
    LoopBuf block; /* the current block, [rows.size][cols.size] */
    /* the current unit */
    LoopIdx part, batch, row_block, col_block, first_row, first_col, first_k;
} Matmul;

/* --- small helpers over indices --- */

static LoopIdx join(LoopKernel *k, LoopIdx first, int64_t extent, LoopIdx second) {
    return loop_idx_add(k, loop_idx_scale(k, first, extent), second);
}

static LoopIdx open_axis(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx bound) {
    return loop_idx_axis(k, loop_open(k, kind, extent, bound));
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* min(a, most) for a >= low. */
static LoopIdx at_most(LoopKernel *k, LoopIdx a, int64_t low, int64_t most) {
    if (loop_idx_info(k, a)->high <= most) return a;
    LoopVal v = loop_op2(k, OP_min, loop_index(k, a), loop_const(k, DT_i32, (double)most));
    return loop_idx_val(k, v, low, most);
}

/* Start of piece i of `size`, moved back so that it ends within `extent`. */
static LoopIdx clamped_start(LoopKernel *k, LoopIdx i, int64_t size, int64_t extent) {
    return at_most(k, loop_idx_scale(k, i, size), 0, extent - size);
}

/* What is left of an extent from piece i on: bound of a loop over the piece; none when all are
 * whole. */
static LoopIdx left_of(LoopKernel *k, SplitBlocks s, int64_t extent, LoopIdx i) {
    if (s.size * s.count == extent) return LOOP_NO_BOUND;
    return loop_idx_plus(k, loop_idx_scale(k, i, -s.size), extent);
}

static LoopIdx lhs_at(const Matmul *c, LoopIdx row, LoopIdx depth) {
    LoopKernel *k = c->k;
    return c->s.ta ? join(k, join(k, c->batch, c->s.k, depth), c->s.m, row)
                   : join(k, join(k, c->batch, c->s.m, row), c->s.k, depth);
}

static LoopIdx rhs_at(const Matmul *c, LoopIdx depth, LoopIdx col) {
    LoopKernel *k = c->k;
    return c->s.tb ? join(k, join(k, c->batch, c->s.n, col), c->s.k, depth)
                   : join(k, join(k, c->batch, c->s.k, depth), c->s.n, col);
}

/* --- storing --- */

/* Stores the kernel's results at (batch, row, col), `sum` being the product there. */
static void store_results(Matmul *c, LoopIdx batch, LoopIdx row, LoopIdx col, LoopVal sum) {
    const TypeInfo *t = val_info(c->b->body, c->anchor->out);
    LoopIdx index[NDIM_MAX];
    TypeInfo leading = {.ndim = t->ndim - 2};
    for (int i = 0; i < leading.ndim; i++) leading.dim[i] = t->dim[i];
    lower_unflatten(c->k, &leading, batch, index);
    index[t->ndim - 2] = row;
    index[t->ndim - 1] = col;
    lower_body_bind(c->b, c->anchor->out, sum);
    lower_body_store_all(c->b, index);
}

/* The block's own elements to the results, or to the part's copy in the workspace. */
static void emit_store(Matmul *c, bool moved) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    LoopIdx row0 = loop_idx_scale(k, c->row_block, s->rows.size);
    LoopIdx col0 = loop_idx_scale(k, c->col_block, s->cols.size);
    LoopIdx skip_row = loop_idx_add(k, row0, loop_idx_scale(k, c->first_row, moved ? -1 : 0));
    LoopIdx skip_col = loop_idx_add(k, col0, loop_idx_scale(k, c->first_col, moved ? -1 : 0));
    if (!moved) skip_row = skip_col = loop_idx(k, 0);
    LoopIdx i = open_axis(k, LOOP_serial, s->rows.size, left_of(k, s->rows, s->m, c->row_block));
    LoopIdx j = open_axis(k, LOOP_vector, s->cols.size, left_of(k, s->cols, s->n, c->col_block));
    LoopIdx at = join(k, loop_idx_add(k, skip_row, i), s->cols.size, loop_idx_add(k, skip_col, j));
    LoopIdx row = loop_idx_add(k, row0, i), col = loop_idx_add(k, col0, j);
    LoopVal sum = loop_load(k, c->block, at);
    if (s->depth.count == 1)
        store_results(c, c->batch, row, col, sum);
    else
        loop_store(k, c->b->workspace,
                   join(k, join(k, join(k, c->part, s->batch, c->batch), s->m, row), s->n, col),
                   sum);
    loop_close(k);
    loop_close(k);
}

/* Adds the parts in order. */
static void emit_sums(Matmul *c) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    int64_t elems = s->batch * s->m * s->n;
    SplitBlocks chunk = split_blocks(elems, SUM_FLOATS);
    LoopIdx u = open_axis(k, LOOP_grid, chunk.count, LOOP_NO_BOUND);
    LoopBuf sum = loop_local(k, "sum", DT_f32, chunk.size);
    LoopIdx left = left_of(k, chunk, elems, u);
    LoopIdx first = loop_idx_scale(k, u, chunk.size);
    LoopIdx i = open_axis(k, LOOP_vector, chunk.size, left);
    loop_store(k, sum, i, loop_load(k, c->b->workspace, loop_idx_add(k, first, i)));
    loop_close(k);
    LoopIdx part =
        loop_idx_plus(k, open_axis(k, LOOP_serial, s->depth.count - 1, LOOP_NO_BOUND), 1);
    i = open_axis(k, LOOP_vector, chunk.size, left);
    LoopIdx at = join(k, part, elems, loop_idx_add(k, first, i));
    LoopVal v = loop_op2(k, OP_add, loop_load(k, sum, i), loop_load(k, c->b->workspace, at));
    loop_store(k, sum, i, v);
    loop_close(k);
    loop_close(k);
    i = open_axis(k, LOOP_vector, chunk.size, left);
    at = loop_idx_add(k, first, i);
    LoopIdx row = loop_idx_div(k, at, s->n);
    store_results(c, loop_idx_div(k, row, s->m), loop_idx_mod(k, row, s->m),
                  loop_idx_mod(k, at, s->n), loop_load(k, sum, i));
    loop_close(k);
    loop_close(k);
}

/* --- the library --- */

static bool is_plain(const Matmul *c) {
    const Graph *body = c->b->body;
    return c->s.depth.count == 1 && body->nout == 1 && body->out[0].id == c->anchor->out.id;
}

static void emit_library(Matmul *c) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    LoopIdx rows = left_of(k, s->rows, s->m, c->row_block);
    LoopIdx cols = left_of(k, s->cols, s->n, c->col_block);
    LoopIdx depth = left_of(k, s->depth, s->k, c->part);
    LoopGemm gemm = {.ta = s->ta,
                     .tb = s->tb,
                     .m = rows.id ? at_most(k, rows, 1, s->rows.size) : loop_idx(k, s->rows.size),
                     .n = cols.id ? at_most(k, cols, 1, s->cols.size) : loop_idx(k, s->cols.size),
                     .k = depth.id ? at_most(k, depth, 0, s->depth.size)
                                   : loop_idx(k, s->depth.size),
                     .a = c->lhs,
                     .b = c->rhs,
                     .lda = s->ta ? s->m : s->k,
                     .ldb = s->tb ? s->k : s->n};
    LoopIdx row = loop_idx_scale(k, c->row_block, s->rows.size);
    LoopIdx col = loop_idx_scale(k, c->col_block, s->cols.size);
    gemm.a_at = lhs_at(c, row, c->first_k);
    gemm.b_at = rhs_at(c, c->first_k, col);
    bool plain = is_plain(c);
    if (!plain) c->block = loop_local(k, "block", DT_f32, s->rows.size * s->cols.size);
    gemm.c = plain ? c->b->out[0] : c->block;
    gemm.c_at = plain ? join(k, join(k, c->batch, s->m, row), s->n, col) : loop_idx(k, 0);
    gemm.ldc = plain ? s->n : s->cols.size;
    loop_gemm(k, gemm);
    if (!plain) emit_store(c, false);
}

/* --- vectors of columns --- */

static void emit_columns(Matmul *c) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    int64_t vectors = s->cols.size >= 2 * LOOP_LANES ? 2 : 1, lanes = vectors * LOOP_LANES;
    int64_t rows = conv_tile_pixels(vectors, 1, s->rows.size).cols;
    c->block = loop_local(k, "block", DT_f32, s->rows.size * s->cols.size);
    LoopIdx x = open_axis(k, LOOP_serial, ceil_div(s->cols.size, lanes), LOOP_NO_BOUND);
    LoopIdx col = clamped_start(k, x, lanes, s->cols.size);
    LoopIdx y = open_axis(k, LOOP_serial, ceil_div(s->rows.size, rows), LOOP_NO_BOUND);
    LoopIdx row = clamped_start(k, y, rows, s->rows.size);
    LoopBuf acc = loop_reg(k, "acc", DT_f32, rows * vectors, LOOP_LANES);
    LoopVal zero = loop_splat(k, loop_const(k, DT_f32, 0.0));
    for (int64_t i = 0; i < rows * vectors; i++) loop_store(k, acc, loop_idx(k, i), zero);
    LoopIdx p = open_axis(k, LOOP_reduce, s->k, LOOP_NO_BOUND);
    LoopIdx from = rhs_at(c, p, loop_idx_add(k, c->first_col, col));
    LoopVal b[2];
    for (int64_t v = 0; v < vectors; v++)
        b[v] = loop_load_vector(k, c->rhs, loop_idx_plus(k, from, v * LOOP_LANES));
    for (int64_t v = 0; v < vectors; v++) // the next columns: rows are too short to be foreseen
        loop_prefetch(k, c->rhs, loop_idx_plus(k, from, lanes + v * LOOP_LANES));
    for (int64_t i = 0; i < rows; i++) {
        LoopIdx at = lhs_at(c, loop_idx_plus(k, loop_idx_add(k, c->first_row, row), i), p);
        LoopVal a = loop_splat(k, loop_load(k, c->lhs, at));
        for (int64_t v = 0; v < vectors; v++) {
            LoopIdx r = loop_idx(k, i * vectors + v);
            loop_store(k, acc, r, loop_fma(k, a, b[v], loop_load(k, acc, r)));
        }
    }
    loop_close(k);
    LoopIdx to = join(k, row, s->cols.size, col);
    for (int64_t i = 0; i < rows * vectors; i++) {
        LoopIdx at = loop_idx_plus(k, to, i / vectors * s->cols.size + i % vectors * LOOP_LANES);
        loop_store(k, c->block, at, loop_load(k, acc, loop_idx(k, i)));
    }
    loop_close(k);
    loop_close(k);
    emit_store(c, true);
}

/* --- dot products --- */

typedef struct DotTile {
    int64_t rows, cols;
} DotTile;

/* The tile with the fewest cycles: two multiply-adds and two loads a cycle. Of equal ones the one
 * with the most rows: all of b goes by once for each tile of rows. */
static DotTile choose_dot_tile(int64_t rows, int64_t cols) {
    DotTile best = {1, 1};
    int64_t least = INT64_MAX;
    for (int64_t r = 1; r <= rows && r <= DOTS_TILE_MAX; r++)
        for (int64_t c = 1; c <= cols && r * c <= DOTS_TILE_MAX; c++) {
            int64_t work = r * c > r + c ? r * c : r + c; // in half cycles
            if (work < 8) work = 8;
            int64_t cost = (work + 2) * ceil_div(rows, r) * ceil_div(cols, c);
            if (cost <= least) {
                least = cost;
                best = (DotTile){r, c};
            }
        }
    return best;
}

/* Sum of buf[at + stride * l] over l in [from, from + n), by halves. */
static LoopVal sum_lanes(LoopKernel *k, LoopBuf buf, LoopIdx at, int64_t stride, int64_t from,
                         int64_t n) {
    if (n == 1) return loop_load(k, buf, loop_idx_plus(k, at, from * stride));
    LoopVal low = sum_lanes(k, buf, at, stride, from, n / 2);
    return loop_op2(k, OP_add, low, sum_lanes(k, buf, at, stride, from + n / 2, n / 2));
}

/* The accumulators' lanes added up into the block. */
static void emit_lane_sums(Matmul *c, DotTile tile, LoopBuf acc, LoopIdx row, LoopIdx col) {
    LoopKernel *k = c->k;
    int64_t count = tile.rows * tile.cols;
    LoopBuf flat = loop_local(k, "flat", DT_f32, count * LOOP_LANES);
    LoopBuf turned = loop_local(k, "turned", DT_f32, count * LOOP_LANES);
    for (int64_t i = 0; i < count; i++)
        loop_store(k, flat, loop_idx(k, i * LOOP_LANES), loop_load(k, acc, loop_idx(k, i)));
    loop_transpose(k, (LoopTranspose){.to = turned,
                                      .to_at = loop_idx(k, 0),
                                      .to_stride = count,
                                      .from = flat,
                                      .from_at = loop_idx(k, 0),
                                      .from_stride = LOOP_LANES,
                                      .rows = loop_idx(k, count),
                                      .cols = loop_idx(k, LOOP_LANES)});
    LoopIdx i = open_axis(k, LOOP_serial, tile.rows, LOOP_NO_BOUND);
    LoopIdx j = open_axis(k, LOOP_vector, tile.cols, LOOP_NO_BOUND);
    LoopVal sum = sum_lanes(k, turned, join(k, i, tile.cols, j), count, 0, LOOP_LANES);
    LoopIdx at = join(k, loop_idx_add(k, row, i), c->s.cols.size, loop_idx_add(k, col, j));
    loop_store(k, c->block, at, sum);
    loop_close(k);
    loop_close(k);
}

/* Places of k after the last whole vector. */
static void emit_tail(Matmul *c, DotTile tile, LoopIdx depth, LoopIdx row, LoopIdx col) {
    LoopKernel *k = c->k;
    LoopIdx whole = loop_idx_scale(k, loop_idx_div(k, depth, LOOP_LANES), LOOP_LANES);
    LoopIdx rest = loop_idx_add(k, depth, loop_idx_scale(k, whole, -1));
    LoopIdx p = open_axis(k, LOOP_reduce, LOOP_LANES - 1, rest);
    p = loop_idx_add(k, loop_idx_add(k, c->first_k, whole), p);
    LoopIdx i = loop_idx_add(k, row, open_axis(k, LOOP_serial, tile.rows, LOOP_NO_BOUND));
    LoopIdx j = loop_idx_add(k, col, open_axis(k, LOOP_serial, tile.cols, LOOP_NO_BOUND));
    LoopVal a = loop_load(k, c->lhs, lhs_at(c, loop_idx_add(k, c->first_row, i), p));
    LoopVal b = loop_load(k, c->rhs, rhs_at(c, p, loop_idx_add(k, c->first_col, j)));
    LoopIdx at = join(k, i, c->s.cols.size, j);
    loop_store(k, c->block, at, loop_fma(k, a, b, loop_load(k, c->block, at)));
    for (int l = 0; l < 3; l++) loop_close(k);
}

static void emit_dots(Matmul *c) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    DotTile tile = choose_dot_tile(s->rows.size, s->cols.size);
    c->block = loop_local(k, "block", DT_f32, s->rows.size * s->cols.size);
    LoopIdx left = left_of(k, s->depth, s->k, c->part);
    LoopIdx depth = left.id ? at_most(k, left, 1, s->depth.size) : loop_idx(k, s->depth.size);
    LoopIdx y = open_axis(k, LOOP_serial, ceil_div(s->rows.size, tile.rows), LOOP_NO_BOUND);
    LoopIdx row = clamped_start(k, y, tile.rows, s->rows.size);
    LoopIdx x = open_axis(k, LOOP_serial, ceil_div(s->cols.size, tile.cols), LOOP_NO_BOUND);
    LoopIdx col = clamped_start(k, x, tile.cols, s->cols.size);
    LoopBuf acc = loop_reg(k, "acc", DT_f32, tile.rows * tile.cols, LOOP_LANES);
    LoopVal zero = loop_splat(k, loop_const(k, DT_f32, 0.0));
    for (int64_t i = 0; i < tile.rows * tile.cols; i++) loop_store(k, acc, loop_idx(k, i), zero);
    LoopIdx bound = left.id ? loop_idx_div(k, depth, LOOP_LANES) : LOOP_NO_BOUND;
    LoopIdx v = open_axis(k, LOOP_reduce, s->depth.size / LOOP_LANES, bound);
    LoopIdx p = loop_idx_add(k, c->first_k, loop_idx_scale(k, v, LOOP_LANES));
    LoopVal b[DOTS_TILE_MAX];
    for (int64_t j = 0; j < tile.cols; j++) {
        LoopIdx at = loop_idx_plus(k, loop_idx_add(k, c->first_col, col), j);
        b[j] = loop_load_vector(k, c->rhs, rhs_at(c, p, at));
    }
    for (int64_t i = 0; i < tile.rows; i++) {
        LoopIdx at = loop_idx_plus(k, loop_idx_add(k, c->first_row, row), i);
        LoopVal a = loop_load_vector(k, c->lhs, lhs_at(c, at, p));
        for (int64_t j = 0; j < tile.cols; j++) {
            LoopIdx r = loop_idx(k, i * tile.cols + j);
            loop_store(k, acc, r, loop_fma(k, a, b[j], loop_load(k, acc, r)));
        }
    }
    loop_close(k);
    emit_lane_sums(c, tile, acc, row, col);
    if (s->k % LOOP_LANES) emit_tail(c, tile, depth, row, col);
    loop_close(k);
    loop_close(k);
    emit_store(c, true);
}

/* --- units --- */

static LoopIdx take(LoopKernel *k, LoopIdx *u, int64_t extent) {
    LoopIdx i = loop_idx_mod(k, *u, extent);
    *u = loop_idx_div(k, *u, extent);
    return i;
}

static void open_unit(Matmul *c) {
    LoopKernel *k = c->k;
    const MatmulSplit *s = &c->s;
    int64_t units = s->depth.count * s->batch * s->rows.count * s->cols.count;
    LoopIdx u = open_axis(k, LOOP_grid, units, LOOP_NO_BOUND);
    c->col_block = take(k, &u, s->cols.count);
    c->row_block = take(k, &u, s->rows.count);
    c->batch = take(k, &u, s->batch);
    c->part = u;
    c->first_k = loop_idx_scale(k, c->part, s->depth.size);
    c->first_row = clamped_start(k, c->row_block, s->rows.size, s->m);
    c->first_col = clamped_start(k, c->col_block, s->cols.size, s->n);
}

LoopKernel *lower_matmul(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    Matmul c = {.b = b, .k = b->k, .anchor = lower_body_anchor(b, OP_matmul)};
    c.s = split_matmul(b->body, c.anchor);
    if (c.s.batch * c.s.m * c.s.n == 0) return b->k;
    c.lhs = lower_body_input(b, c.anchor->in[0]);
    c.rhs = lower_body_input(b, c.anchor->in[1]);
    open_unit(&c);
    switch (c.s.way) {
    case MATMUL_library: emit_library(&c); break;
    case MATMUL_columns: emit_columns(&c); break;
    case MATMUL_dots: emit_dots(&c); break;
    }
    loop_close(c.k);
    if (c.s.depth.count > 1) emit_sums(&c);
    return b->k;
}
