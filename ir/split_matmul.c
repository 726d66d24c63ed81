/* split_matmul.c - how matrix products are cut; see split.h.
 *
 * Long thin products are where the library is poor (measured on the classifier of a small network:
 * 64 x 10 x 18432 and its gradients): they get loops of their own. All others are tiles of the
 * library, small enough for every thread to have some; where the result is too small for that, K is
 * cut as well.
 */
#include "ir/split.h"

enum {
    THIN_MAX = 16, /* rows or columns of a thin product */
    SHORT_K_MAX = 32,
    COLUMNS_K_MAX = 512, /* more, and a thin product is better cut along K */
    DOTS_K_MIN = 512,
    DOTS_BLOCK = 64,
    COLUMNS_BLOCK_ROWS = 32, /* a block stays in the L1 cache with its part of a short b */
    COLUMNS_BLOCK_COLS = 64,
    UNITS_MIN = 16,
    TILES_MIN = 8,
    PART_K_MIN = 512,
    WIDE = 512, /* columns of a tile of the library */
    LANES = 16
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static MatmulWay choose_way(const MatmulSplit *s) {
    bool thin = s->m <= THIN_MAX || s->n <= THIN_MAX;
    bool short_rows = s->k <= SHORT_K_MAX || (s->m <= THIN_MAX && s->k <= COLUMNS_K_MAX);
    if (!s->tb && s->n >= LANES && short_rows) return MATMUL_columns;
    if (!s->ta && s->tb && thin && s->k >= DOTS_K_MIN) return MATMUL_dots;
    return MATMUL_library;
}

static void cut_depth(MatmulSplit *s, int64_t parts) {
    int64_t most = s->k / PART_K_MIN;
    if (parts > most) parts = most;
    if (parts < 1) parts = 1;
    s->depth.size = ceil_div(ceil_div(s->k, parts), LANES) * LANES;
    if (s->depth.size > s->k || parts == 1) s->depth.size = s->k;
    s->depth.count = s->k > 0 ? ceil_div(s->k, s->depth.size) : 1;
}

/* Blocks of at most `most` columns; wide ones of whole vectors. */
static SplitBlocks cut_columns(int64_t columns, int64_t most) {
    SplitBlocks b = split_blocks(columns, most);
    if (b.count == 1 || most < WIDE) return b;
    b.size = ceil_div(b.size, 4 * LANES) * 4 * LANES;
    b.count = ceil_div(columns, b.size);
    return b;
}

/* The largest tiles of which there are enough: tall ones pay (by a tenth) where that leaves work
 * for a dozen threads. */
static void cut_tiles(MatmulSplit *s) {
    static const struct {
        int64_t rows, cols, least;
    } size[] = {{256, 512, 12},       {128, 512, TILES_MIN}, {64, 512, TILES_MIN},
                {64, 256, TILES_MIN}, {32, 256, TILES_MIN},  {32, 128, 0}};
    int64_t tiles = 0;
    for (int i = 0; i < 6; i++) {
        s->rows = split_blocks(s->m, size[i].rows);
        s->cols = cut_columns(s->n, size[i].cols);
        tiles = s->batch * s->rows.count * s->cols.count;
        if (tiles >= size[i].least) break;
    }
    cut_depth(s, tiles > 0 ? ceil_div(TILES_MIN, tiles) : 1);
}

MatmulSplit split_matmul(const Graph *body, const Node *matmul) {
    const TypeInfo *a = val_info(body, matmul->in[0]), *c = val_info(body, matmul->out);
    MatmulSplit s = {
        .batch = 1, .ta = node_int(matmul, ATTR_ta, 0), .tb = node_int(matmul, ATTR_tb, 0)};
    for (int i = 0; i + 2 < c->ndim; i++) s.batch *= c->dim[i];
    s.m = c->dim[c->ndim - 2];
    s.n = c->dim[c->ndim - 1];
    s.k = a->dim[a->ndim - (s.ta ? 2 : 1)];
    s.way = choose_way(&s);
    if (s.way == MATMUL_library) {
        cut_tiles(&s);
        return s;
    }
    bool columns = s.way == MATMUL_columns;
    s.rows = split_blocks(s.m, columns ? COLUMNS_BLOCK_ROWS : DOTS_BLOCK);
    s.cols = split_blocks(s.n, columns ? COLUMNS_BLOCK_COLS : DOTS_BLOCK);
    int64_t units = s.batch * s.rows.count * s.cols.count;
    s.depth = (SplitBlocks){s.k, 1};
    if (s.way == MATMUL_dots) cut_depth(&s, units > 0 ? ceil_div(UNITS_MIN, units) : 1);
    return s;
}

int64_t split_matmul_workspace(const Graph *body, const Node *matmul) {
    MatmulSplit s = split_matmul(body, matmul);
    return s.depth.count > 1 ? 4 * s.depth.count * s.batch * s.m * s.n : 0;
}
