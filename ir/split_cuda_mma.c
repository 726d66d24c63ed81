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
    REGISTERS_MAX = 160,
    THREADS_RESIDENT = 640, /* more throw each other's loads out */
    WARPS_MIN = 4,          /* one for each scheduler of a multiprocessor */
    WARPS_MAX = 8,
    CHUNK_MAX = 32, /* channels in shared memory */
    TAPS_MAX = 25,
    CHANNELS_MIN = 8, /* fewer leave the tiles half empty */
    SUMS_MAX = 48,    /* of a thread: more leave no registers for loads under way */
    ROUND = 3000,     /* cycles from the loads of a strip to their use */
    MEET = 400,       /* of the threads, when results pass from one to another */
    LATENCY = 60,     /* from a read of shared memory to the last of its products */
    OPERAND = 800,    /* from the loads of an epilogue's operand to their use */
    RESULTS = 4       /* of a thread whose operands are loaded together */
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
    int64_t most = min64(RESIDENT_FLOATS / (floats + 256), THREADS_RESIDENT / threads);
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
    c->out_pitch = odd_multiple(c->rows * c->wo, 8);
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

/* Time of a multiprocessor: what its units do in all, or what one block waits for after another. */
static double longer(double work, double chain) {
    return work > chain ? work + 0.6 * chain : chain + 0.6 * work;
}

static bool stores_quads(const CudaConvMma *c) {
    return c->rows * c->wo % 4 == 0 && c->ho * c->wo % 4 == 0;
}

/* Cycles that an input gradient's block waits for the mask that results meet. */
static double operands(const CudaConvMma *c) {
    int64_t units = c->outs * c->rows * c->wo / (stores_quads(c) ? 4 : 1);
    int64_t waits = ceil_div(ceil_div(units, c->threads), RESULTS) + (units % c->threads != 0);
    return (double)waits * (c->turned ? OPERAND : OPERAND / 4);
}

/* Estimated cycles of a multiprocessor for its share. */
static double conv_cost(CudaConvMma *c) {
    int64_t blocks = ceil_div(c->out, c->outs), steps = c->chunks * c->chunk / 8 * c->kh * c->kw;
    int64_t registers = 30 + c->places * (c->tiles * 4 + 2) + c->tiles * 4;
    int64_t at_once = resident(c->x_floats + c->w_floats, c->threads, registers);
    cut_units(c->n * c->strips, at_once, blocks, &c->part, &c->parts);
    if (registers > REGISTERS_MAX) return 1e30;
    double places = (double)c->places, tiles = (double)c->tiles, warps = (double)c->warps;
    double math = places * tiles * MMA * warps, reads = (places * 2 + tiles * 4) * warps;
    double in = (double)(c->chunks * c->chunk * c->rows_in * ceil_div(c->pitch, 32)) * 3;
    double out = (double)(c->outs * c->rows * c->wo) / 32 * (stores_quads(c) ? 4 : 10);
    out += (double)(c->outs * c->rows * c->pitch) / 32;
    double weights = (double)(c->chunks * c->chunk * c->kh * c->kw * c->outs) / 32 * 6;
    bool kept = c->w_chunks == c->chunks;
    double unit = in + out + (double)steps * (math > reads ? math : reads) + (kept ? 0 : weights);
    double step = places * tiles * 4 * MMA * (double)ceil_div(c->warps, 4);
    double least = LATENCY + places * 3;
    double chain = (double)(c->chunks + 1) * ROUND + in / warps + out / warps +
                   (double)steps * (step > least ? step : least) +
                   (double)ceil_div(c->tiles, c->staged) * MEET + operands(c);
    if (!kept) chain += (double)c->chunks * MEET + weights / warps;
    double start = ROUND + weights / warps;
    int64_t on_one = ceil_div(c->parts * blocks, CHIP);
    double work = (double)(on_one * c->part) * unit + (double)on_one * weights;
    return longer(work, (double)ceil_div(on_one, at_once) * (start + (double)c->part * chain));
}

/* Every number of channels, warps and rows of a block for one chunk of summed channels. */
static CudaConvMma try_chunk(CudaConvMma c) {
    CudaConvMma best = {0};
    double least = 0;
    int64_t widest = min64(64, round_up(c.out, 16));
    for (c.outs = 16; c.outs <= widest; c.outs += 16)
        for (c.warps = WARPS_MIN; c.warps <= WARPS_MAX; c.warps *= 2)
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

/* All summed channels at once where that fits: each chunk is a wait of its own. */
CudaConvMma split_cuda_conv_mma(const ConvSizes *s, bool dx) {
    CudaConvMma best = {0}, c = conv_sizes(s, dx);
    bool fits = s->sh == 1 && s->sw == 1 && c.ph >= 0 && c.pw >= 0 && s->kh * s->kw <= TAPS_MAX &&
                c.sum >= CHANNELS_MIN && c.out >= CHANNELS_MIN && c.n * c.ho * c.wo > 0;
    if (!fits) return best;
    int64_t chunks = ceil_div(c.sum, CHUNK_MAX);
    for (c.chunk = round_up(ceil_div(c.sum, chunks), 8); c.chunk > 0 && !best.fits; c.chunk -= 8)
        best = try_chunk(c);
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
    int64_t registers = 30 + d->places * (d->tiles * 4 + 3) + d->tiles * 4;
    int64_t at_once = resident(d->x_floats + d->y_floats, d->threads, registers);
    cut_units(d->n * d->strips, at_once, d->blocks, &d->part, &d->parts);
    if (registers > REGISTERS_MAX) return 1e30;
    double places = (double)d->places, tiles = (double)d->tiles;
    double warps = (double)(d->warps_along * d->warps_across), steps = (double)d->steps;
    double math = places * tiles * MMA * warps, reads = (places * 2 + tiles * 4) * warps;
    int64_t x_loads = d->ins * d->rows_in * ceil_div(d->pitch, 32);
    double in = (double)(x_loads + d->outs * d->rows * ceil_div(d->wo, 32)) * 3;
    double step = places * tiles * 4 * MMA * (double)ceil_div((int64_t)warps, 4);
    double least = LATENCY + places * 3 + tiles * 4;
    double chain = ROUND + MEET + in / warps + steps * (step > least ? step : least);
    double end = (double)(d->outs * d->ins * d->kh * d->kw) / 32 * 8 +
                 (double)d->warps_along * 2 * MEET + ROUND;
    int64_t on_one = ceil_div(d->parts * d->blocks, CHIP);
    double work = (double)(on_one * d->part) * (in + steps * (math > reads ? math : reads));
    double sum = (double)(d->parts * d->co * d->ci * d->kh * d->kw) / CHIP / 32;
    double rounds = (double)ceil_div(on_one, at_once);
    return longer(work, rounds * ((double)d->part * chain + end)) + sum;
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
