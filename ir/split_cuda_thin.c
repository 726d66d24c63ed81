/* split_cuda_thin.c - how thin products with long rows are cut for CUDA; see split.h. */
#include "ir/split.h"

enum {
    ROWS_MAX = 16, /* of a tile */
    SHORT_K = 32,  /* more, and a product with many rows is better cut into square tiles */
    LONG_ROW = 1024,
    THREADS = 128,
    QUAD = 4,
    BLOCKS_MIN = 264,
    PART_MIN = 8,
    PARTS_MAX = 16,
    DEPTH_MAX = 64
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t largest_divisor(int64_t n, int64_t most) {
    int64_t d = n < most ? n : most;
    while (d > 1 && n % d != 0) d--;
    return d;
}

CudaThin split_cuda_thin(const Graph *body, const Node *matmul) {
    MatmulSplit s = split_matmul(body, matmul);
    CudaThin t = {.m = s.m, .n = s.n, .k = s.k, .threads = THREADS};
    bool thin = s.m <= ROWS_MAX || s.k <= SHORT_K;
    t.fits = s.batch == 1 && !s.tb && thin && s.n >= LONG_ROW && s.n % QUAD == 0 && s.m > 0;
    if (!t.fits || s.k == 0) return (CudaThin){0};
    t.rows = s.m < ROWS_MAX ? s.m : ROWS_MAX;
    t.wide = THREADS * QUAD;
    t.down = ceil_div(t.m, t.rows);
    t.across = ceil_div(t.n, t.wide);
    int64_t parts = ceil_div(BLOCKS_MIN, t.down * t.across), most = t.k / PART_MIN;
    if (parts > most) parts = most;
    if (parts > PARTS_MAX) parts = PARTS_MAX;
    t.parts = parts < 1 ? 1 : largest_divisor(t.k, parts);
    t.part = t.k / t.parts;
    t.depth = largest_divisor(t.part, DEPTH_MAX);
    t.together = largest_divisor(t.depth, t.depth <= ROWS_MAX ? t.depth : PART_MIN);
    t.fits = t.depth >= PART_MIN || t.depth == t.k;
    return t;
}
