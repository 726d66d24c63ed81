/* lower_cuda_image.c - strips of images in shared memory; see lower_cuda_image.h.
 *
 * A thread keeps its column and its first row, so that every address is a constant away from one
 * that is known before the loops.
 */
#include "codegen/lower_cuda_image.h"

#include "codegen/lower_space.h"

enum { TOGETHER = 16, LOADS_TOGETHER = 48 /* channels, loads that are under way at once */ };

static LoopVal inside(LoopKernel *k, LoopIdx at, int64_t n) {
    const LoopIdxInfo *info = loop_idx_info(k, at);
    return info->low >= 0 && info->high < n ? (LoopVal){0} : loop_range(k, at, 0, n);
}

static LoopVal both(LoopKernel *k, LoopVal a, LoopVal b) {
    if (!a.id || !b.id) return a.id ? a : b;
    return loop_op2(k, OP_and, a, b);
}

/* Opens channels one by one: some of them written out, where each takes `loads` loads. */
static LoopIdx open_channels(LoopKernel *k, int64_t n, int64_t loads) {
    int64_t most = LOADS_TOGETHER / loads > TOGETHER ? LOADS_TOGETHER / loads : TOGETHER;
    int64_t inner = n < most ? n : most;
    while (n % inner != 0) inner--;
    LoopIdx outer = loop_idx_axis(k, loop_open(k, LOOP_serial, n / inner, LOOP_NO_BOUND));
    LoopIdx c = loop_idx_axis(k, loop_open(k, LOOP_unroll, inner, LOOP_NO_BOUND));
    return loop_idx_add(k, loop_idx_scale(k, outer, inner), c);
}

/* Loads of a thread for one channel when `wide` threads share a row. */
static int64_t loads_of(int64_t threads, int64_t wide, int64_t cols, int64_t rows) {
    return lower_ceil_div(cols, wide) * lower_ceil_div(rows, threads / wide);
}

/* How many threads share a row: a power of two, or one each where that wastes fewer. */
static int64_t choose_wide(int64_t threads, int64_t cols, int64_t rows) {
    int64_t best = 1;
    for (int64_t wide = 8; wide <= threads; wide *= 2)
        if (loads_of(threads, wide, cols, rows) <= loads_of(threads, best, cols, rows)) best = wide;
    bool each = cols <= threads &&
                loads_of(threads, cols, cols, rows) < loads_of(threads, best, cols, rows);
    return each ? cols : best;
}

/* A thread's place in a strip. */
typedef struct Loader {
    const CudaStrip *s;
    LoopIdx first, tile, in_tile, x; /* its first row, its column */
    LoopVal x_inside;
    int64_t high, loads; /* threads below each other; loads of a channel */
} Loader;

/* `steps` rows of the thread from step `begin` on, all channels. */
static void load_rows(LoopKernel *k, const Loader *w, int64_t begin, int64_t steps) {
    const CudaStrip *s = w->s;
    int depth = k->depth;
    LoopIdx row = loop_idx_axis(k, loop_open(k, LOOP_unroll, steps, LOOP_NO_BOUND));
    row = loop_idx_scale(k, loop_idx_plus(k, row, begin), w->high);
    row = lower_cuda_open_below(k, loop_idx_add(k, row, w->first), s->rows);
    LoopIdx y = loop_idx_add(k, s->y, row);
    LoopVal ok = both(k, w->x_inside, inside(k, y, s->image[2]));
    LoopIdx c = open_channels(k, s->channels, w->loads);
    TypeInfo t = {.ndim = 4, .dim = {s->image[0], s->image[1], s->image[2], s->image[3]}};
    const LoopIdx index[4] = {s->sample, loop_idx_add(k, s->channel, c), y, w->x};
    ok = both(k, ok, inside(k, index[1], s->image[1]));
    LoopIdx from = lower_offset(k, &t, index);
    LoopIdx to = loop_idx_scale(k, row, s->tiles * s->pitch);
    to = loop_idx_add(k, to, loop_idx_scale(k, w->tile, s->pitch));
    to = loop_idx_add(k, loop_idx_add(k, to, w->in_tile), loop_idx_scale(k, c, s->channel_pitch));
    LoopVal v = ok.id ? loop_load_if(k, s->from, from, ok, 0) : loop_load(k, s->from, from);
    loop_store(k, s->to, to, s->tf32 ? loop_tf32(k, v) : v);
    lower_space_close(k, depth);
}

void lower_cuda_load_strip(LoopKernel *k, const CudaStrip *s, LoopIdx thread) {
    int64_t cols = s->tiles * s->span, wide = choose_wide(k->threads, cols, s->rows);
    Loader w = {.s = s, .high = k->threads / wide};
    w.loads = loads_of(k->threads, wide, cols, s->rows);
    int depth = k->depth;
    LoopIdx lane = loop_let(k, loop_idx_mod(k, thread, wide), wide);
    LoopIdx first = loop_let(k, loop_idx_div(k, thread, wide), lower_ceil_div(k->threads, wide));
    w.first = lower_cuda_open_below(k, first, w.high);
    LoopIdx step =
        loop_idx_axis(k, loop_open(k, LOOP_unroll, lower_ceil_div(cols, wide), LOOP_NO_BOUND));
    LoopIdx col = loop_idx_add(k, loop_idx_scale(k, step, wide), lane);
    col = lower_cuda_open_below(k, col, cols);
    col = loop_let(k, col, cols);
    w.tile = loop_let(k, loop_idx_div(k, col, s->span), s->tiles);
    w.in_tile = loop_let(k, loop_idx_mod(k, col, s->span), s->span);
    LoopIdx x = loop_idx_add(k, loop_idx_scale(k, w.tile, s->step), w.in_tile);
    w.x = loop_idx_plus(k, x, s->x);
    w.x_inside = inside(k, w.x, s->image[3]);
    /* Rows that every thread has are loaded without a branch between them. */
    int64_t whole = s->rows / w.high;
    if (whole > 0) load_rows(k, &w, 0, whole);
    if (s->rows % w.high) load_rows(k, &w, whole, 1);
    lower_space_close(k, depth);
}

/* Steps of a thread written out together: at most `each`, and all of them of use if that is not
 * far less. */
static int64_t choose_inner(int64_t n, int64_t threads, int64_t each) {
    int64_t steps = lower_ceil_div(n, threads), inner = steps < each ? steps : each;
    int64_t divisor = inner;
    while (steps % divisor != 0) divisor--;
    return 2 * divisor >= inner ? divisor : inner;
}

LoopIdx lower_cuda_open_shared_units(LoopKernel *k, LoopIdx thread, int64_t n, int64_t each) {
    int64_t steps = lower_ceil_div(n, k->threads), inner = choose_inner(n, k->threads, each);
    LoopIdx outer =
        loop_idx_axis(k, loop_open(k, LOOP_serial, lower_ceil_div(steps, inner), LOOP_NO_BOUND));
    LoopIdx at = loop_idx_axis(k, loop_open(k, LOOP_unroll, inner, LOOP_NO_BOUND));
    at = loop_idx_add(k, at, loop_idx_scale(k, outer, inner));
    at = loop_idx_add(k, loop_idx_scale(k, at, k->threads), thread);
    return loop_let(k, lower_cuda_open_below(k, at, n), n);
}
