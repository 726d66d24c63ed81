/* split_cuda.c - how work is cut for CUDA: functions of shapes alone; see split.h. */
#include "ir/module.h"
#include "ir/split.h"

enum {
    VECTOR = 4,
    WARP = 32,
    BLOCK = 256,
    THREADS_MAX = 512,
    BLOCKS_MIN = 264, /* two for each multiprocessor of a large chip */
    BLOCKS_MOST = 1056,
    COLUMN_BLOCKS = 528, /* one block a tile adds the pieces of all: few of them */
    BLOCK_ELEMS = 16384,
    UNITS_EACH = 8,  /* of a row that one thread holds in registers */
    ELEMS_EACH = 32, /* where a block shares the row: several values of it stay there */
    PIECE_ELEMS_MIN = 4096,
    PIECES_MAX = 512,
    COLUMNS_WIDE = 128, /* columns that are worth 16-byte accesses */
    LONG_RUN = 512,     /* elements that are worth 16-byte accesses of bf16 */
    F32_WIDE_MOST = 2048
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t product(const SplitAxes *a) {
    int64_t p = 1;
    for (int i = 0; i < a->n; i++) p *= a->dim[i];
    return p;
}

static int64_t power_of_two(int64_t n, int64_t most) {
    int64_t p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

/* --- reductions --- */

/* `pieces` at most, of a multiple of `step` units. */
static void cut_pieces(CudaReduce *s, int64_t pieces, int64_t step) {
    if (pieces > PIECES_MAX) pieces = PIECES_MAX;
    if (pieces < 1) pieces = 1;
    s->piece = ceil_div(ceil_div(s->units, pieces), step) * step;
    if (s->piece < 1) s->piece = step;
    s->pieces = s->units > 0 ? ceil_div(s->units, s->piece) : 1;
}

/* How many blocks add so many elements: more where there is much to load. */
static int64_t blocks_for(int64_t elems) {
    int64_t blocks = elems / BLOCK_ELEMS;
    if (blocks < BLOCKS_MIN) return BLOCKS_MIN;
    return blocks > BLOCKS_MOST ? BLOCKS_MOST : blocks;
}

/* Neighbours of a unit: what the elements are in memory does not matter, so that sums have the same
 * order in every kernel. */
static int64_t vector_of(int64_t run, int64_t least, bool many) {
    if (many && run >= LONG_RUN && run % (2 * VECTOR) == 0) return 2 * VECTOR;
    return run >= least && run % VECTOR == 0 ? VECTOR : 1;
}

/* Whether `each` units of a row are more than a thread of a group should have. */
static bool is_much(const CudaReduce *s, int64_t each, int64_t group) {
    return each > UNITS_EACH || (group > WARP && each * s->vector > ELEMS_EACH);
}

/* Long rows of a model that is all f32 are read in units of 16 bytes: two a turn leave the memory
 * half used while the block folds. */
static void cut_rows(CudaReduce *s, bool half) {
    int64_t results = s->axes.results, run = s->axes.run;
    s->vector = vector_of(run, 1, results >= BLOCKS_MIN && (half || run <= F32_WIDE_MOST));
    s->units = product(&s->axes.reduced) * run / s->vector;
    int64_t elems = s->units * s->vector;
    if (results > 0 && results < BLOCKS_MIN && elems >= 2 * PIECE_ELEMS_MIN) {
        int64_t pieces = ceil_div(blocks_for(results * elems), results);
        s->group = s->threads = CUDA_FOLD;
        cut_pieces(s, min64(pieces, elems / PIECE_ELEMS_MIN), CUDA_FOLD);
        if (s->pieces > 1) return;
    }
    s->pieces = 1;
    s->piece = s->units;
    int64_t group = power_of_two(s->units, WARP);
    while (is_much(s, ceil_div(s->units, group), group) && group < THREADS_MAX) group *= 2;
    while (results * group < BLOCKS_MIN * WARP * 4 && group * 2 <= s->units && group < THREADS_MAX)
        group *= 2;
    s->group = group;
    s->threads = group > WARP ? (int)group : BLOCK;
    while (group <= WARP && s->threads > 2 * WARP && results * group / s->threads < BLOCKS_MIN)
        s->threads /= 2;
}

static void cut_columns(CudaReduce *s) {
    int64_t run = s->axes.run, kept = product(&s->axes.kept);
    s->vector = vector_of(run, COLUMNS_WIDE, true);
    s->units = product(&s->axes.reduced);
    s->group = power_of_two(run / s->vector, WARP);
    s->threads = BLOCK;
    int64_t rows = BLOCK / s->group;
    int64_t tiles = kept * ceil_div(run / s->vector, s->group);
    int64_t blocks = min64(blocks_for(s->axes.results * s->units), COLUMN_BLOCKS);
    int64_t pieces = tiles > 0 ? ceil_div(blocks, tiles) : 1;
    cut_pieces(s, min64(pieces, ceil_div(s->units, 4 * rows)), rows);
}

CudaReduce split_cuda_reduce(const Graph *body, const Node *reduce) {
    CudaReduce s = {.axes = split_reduce(body, reduce)};
    if (s.axes.inner)
        cut_rows(&s, body->mod->train.dtype == DT_bf16);
    else
        cut_columns(&s);
    s.apart = s.pieces > 1 && split_reduce_is_flat(body, reduce);
    if (!s.axes.inner && !s.apart) cut_pieces(&s, 1, s.threads / s.group); /* sums of i32 */
    return s;
}

static int64_t reduce_workspace(const Graph *body, const Node *first) {
    CudaReduce s = split_cuda_reduce(body, first);
    int64_t count = 0;
    for (int i = 0; i < body->nnode; i++) count += op_kind(body->node[i]->op) == KIND_reduce;
    return s.apart ? 4 * s.axes.results * s.pieces * count : 0;
}

/* --- products --- */

enum {
    THIN = 32,                  /* rows or columns of a product that the library does badly */
    LIBRARY_WORK_MIN = 1 << 27, /* multiply-adds */
    STAGED = 1024,              /* elements of an operand in shared memory */
    DEPTH_MIN = 16,
    LOADS_MAX = 16, /* of a thread and operand, under way while it multiplies */
    PARTS_MAX = 64,
    LONG_PART = 2048,
    PART_DEPTH_MIN = 128 /* places of k that are worth a part of their own */
};

static CudaTiles sizes_matmul(const Graph *body, const Node *n) {
    MatmulSplit s = split_matmul(body, n);
    return (CudaTiles){.batch = s.batch, .m = s.m, .n = s.n, .k = s.k};
}

/* Pixels are the rows of a convolution, channels its columns; the weight gradient sums over
 * pixels. */
static CudaTiles sizes_conv(const Graph *body, const Node *n) {
    ConvSizes c = split_conv_sizes(body, n);
    int64_t taps = c.kh * c.kw;
    CudaTiles s = {.batch = 1};
    if (n->op == OP_conv2d) s.m = c.n * c.ho * c.wo, s.n = c.co, s.k = c.ci * taps;
    if (n->op == OP_conv2d_dx) s.m = c.n * c.hi * c.wi, s.n = c.ci, s.k = c.co * taps;
    if (n->op == OP_conv2d_dw) s.m = c.co, s.n = c.ci * taps, s.k = c.n * c.ho * c.wo;
    return s;
}

/* A thread's tile from the block's: 256 threads where there is enough for them. */
static void share_tile(CudaTiles *s) {
    s->row = s->col = 1;
    while (s->rows * s->cols / (s->row * s->col) > BLOCK) {
        bool wide = s->cols / s->col > s->rows / s->row;
        if (wide ? s->col < 8 : s->row >= 8)
            s->col *= 2;
        else
            s->row *= 2;
    }
    s->threads = (int)(s->rows / s->row * (s->cols / s->col));
}

/* Warps share a block's tile, each 16 rows and 8 columns a few times: 8 warps where there is enough
 * for them. */
static void share_tile_mma(CudaTiles *s) {
    int64_t down = s->rows / 16, across = s->cols / 8, warps = 1;
    while (warps < BLOCK / WARP && down * across > 4) {
        if (down * 16 > across * 8 || across == 1)
            down /= 2;
        else
            across /= 2;
        warps *= 2;
    }
    s->down = down;
    s->across = across;
    s->row = 2 * down;
    s->col = 2 * across;
    s->threads = (int)(WARP * warps);
}

/* The last block adds the parts alone: more only where each of them is a lot of work. */
static int64_t parts_max(const CudaTiles *s) {
    int64_t parts = s->k / LONG_PART;
    if (parts < PARTS_MAX) return PARTS_MAX;
    return min64(parts, BLOCKS_MIN);
}

/* The largest tile of which there are enough, not much wider than the product. */
static void choose_tile(CudaTiles *s) {
    static const int64_t tile[][2] = {{128, 128}, {128, 64}, {64, 64},
                                      {64, 32},   {32, 32},  {16, 16}};
    int count = (int)(sizeof tile / sizeof tile[0]);
    for (int i = 0; i < count; i++) {
        s->rows = min64(tile[i][0], power_of_two(s->m, 128));
        s->cols = min64(tile[i][1], power_of_two(s->n, 128));
        if (s->rows < 16) s->rows = 16;
        if (s->cols < 16) s->cols = 16;
        int64_t blocks = s->batch * ceil_div(s->m, s->rows) * ceil_div(s->n, s->cols);
        int64_t parts = min64(ceil_div(s->k, PART_DEPTH_MIN), parts_max(s));
        if (blocks * parts >= BLOCKS_MIN) break;
    }
}

CudaTiles split_cuda_tiles(const Graph *body, const Node *anchor) {
    bool conv = op_kind(anchor->op) == KIND_conv;
    CudaTiles s = conv ? sizes_conv(body, anchor) : sizes_matmul(body, anchor);
    choose_tile(&s);
    if (conv && split_cuda_tf32(body, anchor))
        share_tile_mma(&s);
    else
        share_tile(&s);
    /* Small tiles take more of k at once, so that each thread still has loads under way. */
    int64_t wide = s.rows > s.cols ? s.rows : s.cols;
    s.depth = STAGED / wide;
    if (s.depth < DEPTH_MIN) s.depth = DEPTH_MIN;
    while (s.depth > 8 && s.depth >= 2 * s.k) s.depth /= 2;
    while (s.down && s.depth > DEPTH_MIN && wide * s.depth > LOADS_MAX * s.threads) s.depth /= 2;
    int64_t blocks = s.batch * ceil_div(s.m, s.rows) * ceil_div(s.n, s.cols);
    int64_t parts = blocks > 0 ? ceil_div(BLOCKS_MIN, blocks) : 1;
    if (blocks >= BLOCKS_MIN / 2) parts = 1;
    parts = min64(min64(parts, parts_max(&s)), ceil_div(s.k, PART_DEPTH_MIN));
    if (parts < 1) parts = 1;
    s.part = ceil_div(ceil_div(s.k, parts), s.depth) * s.depth;
    if (s.part < s.depth) s.part = s.depth;
    s.parts = s.k > 0 ? ceil_div(s.k, s.part) : 1;
    return s;
}

bool split_cuda_tf32(const Graph *body, const Node *conv) {
    return op_kind(conv->op) == KIND_conv && body->mod->target == TARGET_cuda &&
           body->mod->train.tf32;
}

bool split_cuda_library(const Graph *body, const Node *matmul) {
    CudaTiles s = sizes_matmul(body, matmul);
    if (s.m <= THIN || s.n <= THIN || s.k <= THIN) return false;
    return s.batch * s.m * s.n >= LIBRARY_WORK_MIN / s.k;
}

/* Of a convolution that keeps strips in shared memory; false when it is none. */
static bool strips_workspace(const Graph *body, const Node *n, int64_t *bytes) {
    ConvSizes c = split_conv_sizes(body, n);
    bool tf32 = split_cuda_tf32(body, n), dx = n->op == OP_conv2d_dx;
    *bytes = 0;
    if (n->op != OP_conv2d_dw)
        return (tf32 && split_cuda_conv_mma(&c, dx).fits) || split_cuda_conv(&c, dx).fits;
    CudaConvMmaDw m = {0};
    CudaConvDw d = {0};
    if (tf32) m = split_cuda_conv_mma_dw(&c);
    if (!m.fits) d = split_cuda_conv_dw(&c);
    int64_t parts = m.fits ? m.parts : d.parts;
    if (parts > 1) *bytes = 4 * parts * c.co * c.ci * c.kh * c.kw;
    return m.fits || d.fits;
}

int64_t split_cuda_workspace(const Graph *body, const Node *n) {
    OpKind kind = op_kind(n->op);
    if (kind == KIND_reduce && n->op != OP_argmax) return reduce_workspace(body, n);
    if (kind == KIND_matmul && split_cuda_library(body, n)) return 0;
    if (n->op == OP_gather_dw) {
        CudaTable t = split_cuda_table(body, n);
        return t.sorted ? 4 * t.ints : 0;
    }
    if (kind != KIND_matmul && kind != KIND_conv) return 0;
    if (kind == KIND_matmul) {
        CudaThin t = split_cuda_thin(body, n);
        if (t.fits) return t.parts > 1 ? 4 * t.parts * t.m * t.n : 0;
        CudaDots d = split_cuda_dots(body, n);
        if (d.fits) return d.parts > 1 ? 4 * d.parts * d.m * d.n : 0;
    }
    int64_t bytes;
    if (kind == KIND_conv && strips_workspace(body, n, &bytes)) return bytes;
    CudaTiles s = split_cuda_tiles(body, n);
    return s.parts > 1 ? 4 * s.parts * s.batch * s.m * s.n : 0;
}
