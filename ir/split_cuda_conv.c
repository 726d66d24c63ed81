/* split_cuda_conv.c - how direct convolutions are cut for CUDA: functions of shapes alone; see
 * split.h.
 *
 * Thread tiles and strips are chosen by an estimate of the time of one multiprocessor: operations
 * of the tile, accesses to shared memory, filling it, and how evenly the blocks fall on the chip.
 */
#include "ir/split.h"

enum {
    CHIP = 132, /* multiprocessors of a large chip */
    SHARED_FLOATS = 11 * 1024,
    RESIDENT_FLOATS = 56 * 1024, /* shared memory of a multiprocessor */
    REGISTERS = 64 * 1024,
    ROUND = 2000, /* cycles from a load of a chunk to its use */
    THREADS = 256,
    PIXELS_MAX = 16,
    PIXELS_MANY = 7, /* with many channels: registers for many threads */
    CHANNELS_MANY = 4,
    SUMS_MAX = 64, /* of a thread */
    TAPS_MAX = 25,
    CELLS_MAX = 128,
    DW_UNITS_MANY = 8 /* of each block: then there are three for a multiprocessor, not two */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* The least odd multiple of 4 that is at least n: neighbours at this distance that read 16 bytes
 * each meet in no bank of shared memory. */
static int64_t odd_quads(int64_t n) {
    int64_t quads = ceil_div(n, 4);
    return 4 * (quads % 2 ? quads : quads + 1);
}

static int64_t round4(int64_t n) { return ceil_div(n, 4) * 4; }

static int64_t divisor(int64_t n, int64_t most) {
    int64_t d = min64(n, most);
    while (d > 1 && n % d != 0) d--;
    return d;
}

/* --- forward and input gradient --- */

/* The input gradient at stride 1 is a convolution with turned taps. */
static CudaConv conv_sizes(const ConvSizes *s, bool dx) {
    CudaConv c = {.n = s->n, .kh = s->kh, .kw = s->kw, .turned = dx};
    c.sum = dx ? s->co : s->ci, c.out = dx ? s->ci : s->co;
    c.hi = dx ? s->ho : s->hi, c.wi = dx ? s->wo : s->wi;
    c.ho = dx ? s->hi : s->ho, c.wo = dx ? s->wi : s->wo;
    c.ph = dx ? s->kh - 1 - s->ph : s->ph, c.pw = dx ? s->kw - 1 - s->pw : s->pw;
    return c;
}

/* What follows from the thread's tile and the strip's rows; false when it does not fit. */
static bool complete(CudaConv *c) {
    c->tiles = ceil_div(c->wo, c->pixels);
    c->strips = ceil_div(c->ho, c->rows);
    c->groups = ceil_div(c->outs, c->channels);
    int64_t threads = c->rows * c->tiles * c->groups;
    if (threads > THREADS) return false;
    c->threads = (int)(ceil_div(threads, 32) * 32);
    c->span = c->pixels + c->kw - 1;
    c->pitch = odd_quads(c->span);
    c->taps = round4(c->kh * c->kw);
    c->rows_in = c->rows + c->kh - 1;
    c->out_pitch = odd_quads(c->rows * c->wo);
    int64_t channel = c->rows_in * c->tiles * c->pitch, results = c->outs * c->out_pitch;
    for (c->chunk = divisor(c->sum, 16); c->chunk > 0; c->chunk = divisor(c->sum, c->chunk - 1)) {
        c->w_pitch = odd_quads(c->chunk * c->taps);
        c->x_floats = max64(c->chunk * channel, results);
        c->w_floats = c->groups * c->channels * c->w_pitch;
        if (c->x_floats + c->w_floats <= SHARED_FLOATS) return true;
        if (c->chunk == 1) break;
    }
    return false;
}

/* Estimated cycles of a multiprocessor for its share. */
static double conv_cost(const CudaConv *c) {
    double warps = c->threads / 32, blocks = (double)(c->n * c->strips * (c->out / c->outs));
    double fma = (double)(c->pixels * c->channels * c->kh * c->kw) / 4;
    double shared = (double)(c->kh * ceil_div(c->span, 4) * 4 + c->channels * c->taps / 4 * 2);
    double each = fma > shared ? fma + shared / 4 : shared + fma / 4;
    bool quads = c->rows * c->wo % 4 == 0 && c->ho * c->wo % 4 == 0;
    double fill = (double)(c->sum * c->rows_in * c->tiles * c->span) * 4 +
                  (double)(c->sum * c->outs * c->taps) * 3 +
                  (double)(c->outs * c->rows * c->wo) * (quads ? 5 : 10);
    int64_t waves = ceil_div((int64_t)blocks, CHIP);
    int64_t at_once = min64(RESIDENT_FLOATS / (c->x_floats + c->w_floats),
                            REGISTERS / (c->threads * (48 + 2 * c->pixels * c->channels)));
    at_once = min64(max64(at_once, 1), waves);
    double stall = 1 + 3 / ((double)at_once * warps); /* latency that other warps do not hide */
    double rounds = (double)(ceil_div(waves, at_once) * (c->sum / c->chunk));
    return (double)waves * (warps * each * (double)c->sum * stall + fill / 128) + ROUND * rounds;
}

CudaConv split_cuda_conv(const ConvSizes *s, bool dx) {
    CudaConv best = {0}, c = conv_sizes(s, dx);
    double least = 0;
    bool fits = s->sh == 1 && s->sw == 1 && c.ph >= 0 && c.pw >= 0 && s->kh * s->kw <= TAPS_MAX &&
                c.sum > 0 && c.n * c.out * c.ho * c.wo > 0;
    if (!fits) return best;
    c.outs = divisor(c.out, 32);
    c.channels = min64(c.outs, 4);
    int64_t most = min64(c.sum >= CHANNELS_MANY ? PIXELS_MANY : PIXELS_MAX, c.wo);
    for (c.pixels = min64(4, c.wo); c.pixels <= most; c.pixels++) {
        if (c.pixels * c.channels > SUMS_MAX) continue;
        for (c.rows = 1; c.rows <= c.ho && c.rows <= 32; c.rows++) {
            if (!complete(&c)) continue;
            double cost = conv_cost(&c);
            if (best.fits && cost >= least) continue;
            least = cost;
            best = c;
            best.fits = true;
        }
    }
    return best;
}

/* --- weight gradient --- */

/* Quads of a thread's run of a row: the fewest operations of the slowest thread. */
static void choose_run(CudaConvDw *d) {
    int64_t quads = ceil_div(d->wo, 4), least = 0;
    for (int64_t run = 1; run <= quads && run <= 8; run++) {
        int64_t segments = ceil_div(quads, run);
        int64_t cost = ceil_div(d->rows * segments, d->lanes) * (4 * run + 3);
        if (least && cost >= least) continue;
        least = cost;
        d->run = run;
        d->segments = segments;
    }
}

static bool complete_dw(CudaConvDw *d) {
    choose_run(d);
    d->strips = ceil_div(d->ho, d->rows);
    bool many = d->n * d->strips * d->blocks >= DW_UNITS_MANY * 3 * CHIP;
    d->blocks_most = max64(1, (many ? 3 : 2) * CHIP / d->blocks);
    d->rows_in = d->rows + d->kh - 1;
    d->y_row = d->segments * d->run * 4;
    d->x_row = round4(d->y_row + d->kw - 1);
    d->y_pitch = odd_quads(d->rows * d->y_row);
    d->x_pitch = odd_quads(d->rows_in * d->x_row);
    int64_t sums = d->channels * d->kh * d->kw, fold = d->lanes > 1 ? d->lanes / 2 * d->cells : 0;
    d->x_floats = d->ins * d->x_pitch;
    d->y_floats = d->groups * d->channels * d->y_pitch;
    d->y_floats = max64(d->y_floats, max64(fold, d->cells) * sums);
    return d->x_floats + d->y_floats <= SHARED_FLOATS;
}

static double dw_cost(const CudaConvDw *d) {
    double run = (double)ceil_div(d->rows * d->segments, d->lanes) *
                 ((double)(4 * d->run * d->channels * d->kh * d->kw) + 40) * d->threads / 128;
    double fill = (double)(d->ins * d->rows_in * d->x_row + d->outs * d->rows * d->y_row) * 4 / 128;
    double units = (double)ceil_div(d->n * d->strips, d->blocks_most); /* of a block */
    return units * (run + fill + 300);
}

static void choose_cells(CudaConvDw *d) {
    d->channels = min64(d->co, 4);
    d->outs = divisor(d->co, 32);
    if (d->outs < d->channels) d->channels = d->outs;
    d->groups = ceil_div(d->outs, d->channels);
    d->ins = divisor(d->ci, CELLS_MAX / d->groups);
    d->cells = d->groups * d->ins;
    d->lanes = 1;
    while (d->lanes * 2 * d->cells <= THREADS) d->lanes *= 2;
    d->threads = (int)(ceil_div(d->lanes * d->cells, 32) * 32);
    d->blocks = (d->co / d->outs) * (d->ci / d->ins);
}

CudaConvDw split_cuda_conv_dw(const ConvSizes *s) {
    CudaConvDw best = {0};
    CudaConvDw d = {.n = s->n,
                    .ci = s->ci,
                    .co = s->co,
                    .hi = s->hi,
                    .wi = s->wi,
                    .ho = s->ho,
                    .wo = s->wo,
                    .kh = s->kh,
                    .kw = s->kw,
                    .ph = s->ph,
                    .pw = s->pw};
    double least = 0;
    if (s->sh != 1 || s->sw != 1 || s->kh * s->kw > TAPS_MAX || s->wo > 512) return best;
    if (s->n * s->ci * s->co * s->ho * s->wo == 0) return best;
    choose_cells(&d);
    for (d.rows = 1; d.rows <= d.ho; d.rows++) {
        if (!complete_dw(&d)) continue;
        double cost = dw_cost(&d);
        if (best.fits && cost >= least) continue;
        least = cost;
        best = d;
        best.fits = true;
    }
    int64_t units = best.n * best.strips;
    if (!best.fits) return best;
    best.part = ceil_div(units, min64(units, best.blocks_most));
    best.parts = ceil_div(units, best.part);
    return best;
}
