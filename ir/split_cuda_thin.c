/* split_cuda_thin.c - how thin products with long rows are cut for CUDA; see split.h. */
#include "ir/split.h"

enum {
    DOTS_COLUMNS = 16,
    DOTS_K_MIN = 1024,
    DOTS_ROWS = 8, /* of a block, where there are many */
    DOTS_ROWS_MANY = 512,
    DOTS_SUMS = 80, /* of a thread */
    ROWS_MAX = 16,  /* of a tile */
    SHORT_K = 32,   /* more, and a product with many rows is better cut into square tiles */
    LONG_ROW = 1024,
    THREADS = 128,
    QUAD = 4,
    BLOCKS_MIN = 264,
    PARTED_K_MIN = 512, /* less, and parts cost more than they bring */
    PARTS_MAX = 8,
    FEW_ROWS = 4, /* a token at a time: the second operand is read once, by all of the device */
    FEW_PARTS_MAX = 32,
    FEW_K_MIN = 128,
    DEPTH_MAX = 64,
    TOGETHER_MAX = 16
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t largest_divisor(int64_t n, int64_t most) {
    int64_t d = n < most ? n : most;
    while (d > 1 && n % d != 0) d--;
    return d;
}

static int64_t tiles_of(const CudaThin *t) {
    return ceil_div(t->m, t->rows) * ceil_div(t->n, t->threads * QUAD);
}

CudaThin split_cuda_thin(const Graph *body, const Node *matmul) {
    MatmulSplit s = split_matmul(body, matmul);
    CudaThin t = {.m = s.m, .n = s.n, .k = s.k, .threads = THREADS};
    bool thin = s.m <= ROWS_MAX || s.k <= SHORT_K;
    t.fits = s.batch == 1 && !s.tb && thin && s.n >= LONG_ROW && s.n % QUAD == 0 && s.m > 0;
    if (!t.fits || s.k == 0) return (CudaThin){0};
    t.rows = s.m < ROWS_MAX ? s.m : ROWS_MAX;
    while (s.m > ROWS_MAX && t.rows > ROWS_MAX / 4 && tiles_of(&t) < BLOCKS_MIN) t.rows /= 2;
    while (s.k < PARTED_K_MIN && t.threads > 32 && tiles_of(&t) < BLOCKS_MIN / 2) t.threads /= 2;
    t.wide = t.threads * QUAD;
    t.down = ceil_div(t.m, t.rows);
    t.across = ceil_div(t.n, t.wide);
    int64_t parts = s.k < PARTED_K_MIN ? 1 : ceil_div(BLOCKS_MIN, tiles_of(&t));
    int64_t most = s.m <= FEW_ROWS ? FEW_PARTS_MAX : PARTS_MAX;
    t.parts = largest_divisor(t.k, parts < most ? parts : most);
    t.part = t.k / t.parts;
    t.depth = largest_divisor(t.part, DEPTH_MAX);
    t.together = largest_divisor(t.depth, TOGETHER_MAX);
    t.fits = t.depth >= TOGETHER_MAX / 2 || t.depth == t.k;
    return t;
}

CudaDots split_cuda_dots(const Graph *body, const Node *matmul) {
    MatmulSplit s = split_matmul(body, matmul);
    CudaDots d = {.m = s.m, .n = s.n, .k = s.k, .threads = THREADS};
    bool along = s.batch == 1 && !s.ta && s.tb && s.n > 0 && s.m > 0 && s.k % QUAD == 0;
    d.fits = along && s.n <= DOTS_COLUMNS && s.k >= DOTS_K_MIN;
    d.swapped = along && !d.fits && s.m <= FEW_ROWS && s.k >= FEW_K_MIN;
    if (d.swapped) d.m = s.n, d.n = s.m, d.fits = true;
    if (!d.fits) return d;
    d.rows = d.m >= DOTS_ROWS_MANY ? DOTS_ROWS : DOTS_ROWS / 2;
    while (d.rows > 1 && (d.m % d.rows != 0 || d.rows * d.n > DOTS_SUMS)) d.rows /= 2;
    int64_t quads = s.k / QUAD, parts = ceil_div(BLOCKS_MIN, d.m / d.rows);
    while (d.threads > 32 && d.threads > quads) d.threads /= 2;
    if (parts > ceil_div(quads, d.threads)) parts = ceil_div(quads, d.threads);
    d.part = ceil_div(ceil_div(quads, parts), d.threads) * d.threads;
    d.parts = ceil_div(quads, d.part);
    return d;
}
