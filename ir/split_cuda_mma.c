/* split_cuda_mma.c - how convolutions at stride 1 are cut for the tensor cores: functions of shapes
 * alone; see split.h.
 *
 * Of the cuts that fit, the one whose time on a multiprocessor is estimated to be least: tiles of
 * products, reads of shared memory, filling it, and how evenly the blocks fall on the chip.
 */
#include "ir/split.h"

enum {
    CHIP = 132, /* multiprocessors of a large chip */
    SHARED_FLOATS = 12 * 1024,
    RESIDENT_FLOATS = 56 * 1024, /* shared memory of a multiprocessor */
    REGISTERS = 64 * 1024,
    THREADS_RESIDENT = 2048,
    WARPS_MAX = 8,
    CHUNK_MAX = 32, /* channels in shared memory */
    TAPS_MAX = 25,
    CHANNELS_MIN = 8, /* fewer leave the tiles half empty */
    SUMS_MAX = 96,    /* of a thread */
    ROUND = 1200      /* cycles from a load to its use, with two meetings of the threads */
};

static const double MMA = 1.6; /* cycles of a multiprocessor for one 16 x 8 x 8 tile */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t n, int64_t by) { return ceil_div(n, by) * by; }

/* The least number that is at least n and `rest` more than a multiple of 2 * rest. */
static int64_t odd_multiple(int64_t n, int64_t rest) {
    int64_t m = ceil_div(n, rest);
    return rest * (m % 2 ? m : m + 1);
}

/* How many blocks a multiprocessor holds. */
static int64_t resident(int64_t floats, int64_t threads, int64_t registers) {
    int64_t most = min64(RESIDENT_FLOATS / floats, THREADS_RESIDENT / threads);
    return max64(1, min64(most, REGISTERS / (threads * min64(registers, 255))));
}

/* Blocks that each take `part` of `units`, as many as are there at once. */
static void cut_units(int64_t units, int64_t at_once, int64_t blocks, int64_t *part,
                      int64_t *parts) {
    int64_t most = max64(1, at_once * CHIP / blocks);
    *part = ceil_div(units, min64(units, most));
    *parts = ceil_div(units, *part);
}

/* --- forward and input gradient --- */

static CudaConvMma conv_sizes(const ConvSizes *s, bool dx) {
    CudaConvMma c = {.n = s->n, .kh = s->kh, .kw = s->kw, .turned = dx};
    c.sum = dx ? s->co : s->ci, c.out = dx ? s->ci : s->co;
    c.hi = dx ? s->ho : s->hi, c.wi = dx ? s->wo : s->wi;
    c.ho = dx ? s->hi : s->ho, c.wo = dx ? s->wi : s->wo;
    c.ph = dx ? s->kh - 1 - s->ph : s->ph, c.pw = dx ? s->kw - 1 - s->pw : s->pw;
    c.pitch = c.wo + c.kw - 1;
    return c;
}

/* What follows from outs, rows, warps and chunk; false when it does not fit. */
static bool complete(CudaConvMma *c) {
    int64_t taps = c->kh * c->kw;
    c->strips = ceil_div(c->ho, c->rows);
    c->rows_in = c->rows + c->kh - 1;
    c->places = ceil_div(c->rows * c->pitch, 8 * c->warps);
    c->tiles = c->outs / 16;
    if (c->places * c->tiles * 4 > SUMS_MAX) return false;
    c->chunks = ceil_div(c->sum, c->chunk);
    c->w_slot = c->tiles * 128 + 4;
    c->x_pitch = odd_multiple(c->rows_in * c->pitch, 8);
    c->out_pitch = odd_multiple(c->warps * c->places * 8, 8);
    int64_t last = c->warps * c->places * 8 + (c->kh - 1) * c->pitch + c->kw - 1;
    c->x_floats = max64((c->chunk - 1) * c->x_pitch + max64(last, c->x_pitch), 16 * c->out_pitch);
    c->x_floats = round_up(c->x_floats, 4);
    c->w_chunks = c->chunks;
    c->w_floats = c->chunks * c->chunk / 8 * taps * c->w_slot;
    if (c->x_floats + c->w_floats > SHARED_FLOATS) {
        c->w_chunks = 1;
        c->w_floats = c->chunk / 8 * taps * c->w_slot;
    }
    c->staged = min64(c->tiles, c->x_floats / (16 * c->out_pitch));
    c->threads = (int)(32 * c->warps);
    return c->x_floats + c->w_floats <= SHARED_FLOATS;
}

/* Estimated cycles of a multiprocessor for its share. */
static double conv_cost(CudaConvMma *c) {
    int64_t blocks = ceil_div(c->out, c->outs), steps = c->chunks * c->chunk / 8 * c->kh * c->kw;
    int64_t registers = 56 + c->places * (c->tiles * 4 + 2) + c->tiles * 4;
    int64_t at_once = resident(c->x_floats + c->w_floats, c->threads, registers);
    cut_units(c->n * c->strips, at_once, blocks, &c->part, &c->parts);
    double warps = (double)(steps * c->warps), places = (double)c->places, tiles = (double)c->tiles;
    double math = warps * places * tiles * MMA, reads = warps * (places * 2 + tiles * 4);
    double issue = warps * (places * 2 + tiles + places * tiles) / 4;
    double in = (double)(c->chunks * c->chunk * c->rows_in * c->pitch) / 32 * 3;
    double out = (double)(c->outs * c->rows * c->wo) / 32 * 4;
    double weights = (double)(c->chunks * c->chunk * c->kh * c->kw * c->outs) / 32 * 8;
    double unit = in + out + max64((int64_t)math, (int64_t)max64((int64_t)reads, (int64_t)issue)) +
                  (double)(ROUND * (c->chunks + 1)) / (double)at_once;
    if (c->w_chunks < c->chunks) unit += weights;
    int64_t waves = ceil_div(c->parts * blocks, CHIP);
    return (double)waves * (unit * (double)c->part + weights) + ROUND;
}

CudaConvMma split_cuda_conv_mma(const ConvSizes *s, bool dx) {
    CudaConvMma best = {0}, c = conv_sizes(s, dx);
    double least = 0;
    bool fits = s->sh == 1 && s->sw == 1 && c.ph >= 0 && c.pw >= 0 && s->kh * s->kw <= TAPS_MAX &&
                c.sum >= CHANNELS_MIN && c.out >= CHANNELS_MIN && c.n * c.ho * c.wo > 0;
    if (!fits) return best;
    int64_t widest = min64(64, round_up(c.out, 16));
    for (c.outs = 16; c.outs <= widest; c.outs += 16)
        for (c.warps = 1; c.warps <= WARPS_MAX; c.warps *= 2)
            for (c.chunk = 8; c.chunk <= min64(CHUNK_MAX, round_up(c.sum, 8)); c.chunk += 8)
                for (c.rows = 1; c.rows <= min64(c.ho, 64); c.rows++) {
                    if (!complete(&c)) break;
                    double cost = conv_cost(&c);
                    if (best.fits && cost >= least) continue;
                    least = cost;
                    best = c;
                    best.fits = true;
                }
    return best;
}

/* --- weight gradient --- */

/* What follows from outs, ins, the split of tiles over warps, and rows. */
static bool complete_dw(CudaConvMmaDw *d) {
    int64_t taps = d->kh * d->kw;
    d->tiles = d->outs / 16;
    d->places = taps * (d->ins / 8) / d->warps_across;
    if (d->tiles * d->places * 4 > SUMS_MAX) return false;
    d->strips = ceil_div(d->ho, d->rows);
    d->rows_in = d->rows + d->kh - 1;
    d->steps = ceil_div(d->rows * d->pitch, 8 * d->warps_along);
    int64_t length = 8 * d->warps_along * d->steps;
    int64_t under = max64(d->rows_in * d->pitch, length + (d->kh - 1) * d->pitch + d->kw - 1);
    d->y_pitch = odd_multiple(length, 4);
    d->x_pitch = odd_multiple(under, 4);
    int64_t fold = d->warps_along > 1 ? d->warps_across * 32 * d->tiles * d->places * 4 : 0;
    d->x_floats = d->ins * d->x_pitch;
    d->y_floats = max64(d->outs * d->y_pitch, max64(fold, d->outs * d->ins * taps));
    d->threads = (int)(32 * d->warps_along * d->warps_across);
    d->blocks = ceil_div(d->co, d->outs) * ceil_div(d->ci, d->ins);
    return d->x_floats + d->y_floats <= SHARED_FLOATS;
}

static double dw_cost(CudaConvMmaDw *d) {
    int64_t registers = 56 + d->places * (d->tiles * 4 + 3) + d->tiles * 4;
    int64_t at_once = resident(d->x_floats + d->y_floats, d->threads, registers);
    cut_units(d->n * d->strips, at_once, d->blocks, &d->part, &d->parts);
    double warps = (double)(d->steps * d->warps_along * d->warps_across);
    double places = (double)d->places, tiles = (double)d->tiles;
    double math = warps * places * tiles * MMA, reads = warps * (places * 2 + tiles * 4);
    double in = (double)(d->ins * d->rows_in * d->pitch + d->outs * d->rows * d->wo) / 32 * 3;
    double unit = in + (math > reads ? math : reads) + (double)ROUND / (double)at_once;
    double end = (double)(d->outs * d->ins * d->kh * d->kw) / 32 * 8 + 4 * ROUND;
    int64_t waves = ceil_div(d->parts * d->blocks, CHIP);
    double sum = (double)(d->parts * d->co * d->ci * d->kh * d->kw) / CHIP / 32;
    return (double)waves * (unit * (double)d->part + end) + sum;
}

static CudaConvMmaDw dw_sizes(const ConvSizes *s) {
    return (CudaConvMmaDw){.n = s->n,
                           .ci = s->ci,
                           .co = s->co,
                           .hi = s->hi,
                           .wi = s->wi,
                           .ho = s->ho,
                           .wo = s->wo,
                           .kh = s->kh,
                           .kw = s->kw,
                           .ph = s->ph,
                           .pw = s->pw,
                           .pitch = s->wo + s->kw - 1};
}

/* Every number of rows for one split of the tiles over warps. */
static void try_rows(CudaConvMmaDw d, CudaConvMmaDw *best, double *least) {
    for (d.rows = 1; d.rows <= min64(d.ho, 64); d.rows++) {
        if (!complete_dw(&d)) break;
        double cost = dw_cost(&d);
        if (best->fits && cost >= *least) continue;
        *least = cost;
        *best = d;
        best->fits = true;
    }
}

CudaConvMmaDw split_cuda_conv_mma_dw(const ConvSizes *s) {
    CudaConvMmaDw best = {0}, d = dw_sizes(s);
    double least = 0;
    bool fits = s->sh == 1 && s->sw == 1 && s->kh * s->kw <= TAPS_MAX && s->ci >= CHANNELS_MIN &&
                s->co >= CHANNELS_MIN && s->n * s->ho * s->wo > 0;
    if (!fits) return best;
    int64_t outs_most = min64(64, round_up(d.co, 16)), ins_most = min64(32, round_up(d.ci, 8));
    for (d.outs = 16; d.outs <= outs_most; d.outs += 16)
        for (d.ins = 8; d.ins <= ins_most; d.ins += 8)
            for (d.warps_across = 1; d.warps_across <= WARPS_MAX; d.warps_across++) {
                if (s->kh * s->kw * (d.ins / 8) % d.warps_across != 0) continue;
                int64_t most = WARPS_MAX / d.warps_across;
                for (d.warps_along = 1; d.warps_along <= most; d.warps_along++)
                    try_rows(d, &best, &least);
            }
    return best;
}
