/* lower_cuda_mma.c - convolutions at stride 1 on tensor cores, and their input gradients.
 *
 * A product of weights [channels, summed] by places [summed, places] for each tap, see CudaConvMma
 * in ir/split.h. The strip's input with its border and the weights lie in shared memory, rounded to
 * tf32: the weights in the order in which the threads of a warp hold a tile, so that a thread loads
 * its four at once. Results go through shared memory, so that the epilogue reads and writes
 * neighbours. A block takes several strips and keeps the weights when they all fit.
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, WEIGHTS_TOGETHER = 8, LANE_FLOATS = 128 };

typedef struct Mma {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaConvMma s;
    LoopIdx thread, warp, lane_row, lane_col; /* of its warp: lane / 4, lane % 4 */
    LoopIdx part, first;                      /* first: of the block's output channels */
    LoopIdx sample, strip;
    LoopBuf x, w, sum;
} Mma;

/* --- loading --- */

static void load_input(Mma *d, LoopIdx channel) {
    const CudaConvMma *s = &d->s;
    CudaStrip strip = {.from = lower_body_input(d->b, d->anchor->in[0]),
                       .to = d->x,
                       .image = {s->n, s->sum, s->hi, s->wi},
                       .sample = d->sample,
                       .channel = channel,
                       .y = loop_idx_plus(d->k, loop_idx_scale(d->k, d->strip, s->rows), -s->ph),
                       .channels = s->chunk,
                       .rows = s->rows_in,
                       .x = -s->pw,
                       .tiles = 1,
                       .span = s->pitch,
                       .step = s->pitch,
                       .pitch = s->pitch,
                       .channel_pitch = s->x_pitch,
                       .tf32 = true};
    lower_cuda_load_strip(d->k, &strip, d->thread);
}

/* Where weight (output channel, summed channel, tap) of what is in shared memory lies. */
static LoopIdx weight_at(const Mma *d, LoopIdx out, LoopIdx sum, LoopIdx tap) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    LoopIdx slot = lower_cuda_at(k, loop_idx_div(k, sum, 8), s->kh * s->kw, tap);
    LoopIdx in_8 = loop_idx_mod(k, sum, 8), in_16 = loop_idx_mod(k, out, 16);
    LoopIdx lane = lower_cuda_at(k, loop_idx_mod(k, in_16, 8), 4, loop_idx_mod(k, in_8, 4));
    LoopIdx reg = lower_cuda_at(k, loop_idx_div(k, in_8, 4), 2, loop_idx_div(k, in_16, 8));
    LoopIdx tile = loop_idx_div(k, out, 16);
    return lower_cuda_at(k, slot, s->w_slot,
                         lower_cuda_at(k, tile, LANE_FLOATS, lower_cuda_at(k, lane, 4, reg)));
}

static LoopVal below(LoopKernel *k, LoopVal also, LoopIdx at, int64_t n) {
    if (loop_idx_info(k, at)->high < n) return also;
    LoopVal v = loop_range(k, at, 0, n);
    return also.id ? loop_op2(k, OP_and, also, v) : v;
}

/* Weights of `count` summed channels from `channel` on, in the order in which they lie in memory:
 * [outer][inner][taps], outer being output channels (turned: summed ones). */
static void load_weights(Mma *d, LoopIdx channel, int64_t count) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    int64_t taps = s->kh * s->kw, inner = s->turned ? s->outs : count;
    int depth = k->depth;
    LoopIdx unit =
        lower_cuda_open_shared_units(k, d->thread, s->outs * count * taps, WEIGHTS_TOGETHER);
    int64_t outers = s->turned ? count : s->outs;
    LoopIdx outer = loop_let(k, loop_idx_div(k, unit, inner * taps), outers);
    LoopIdx rest = loop_let(k, loop_idx_mod(k, unit, inner * taps), inner * taps);
    LoopIdx in = loop_let(k, loop_idx_div(k, rest, taps), inner);
    LoopIdx tap = loop_let(k, loop_idx_mod(k, rest, taps), taps);
    LoopIdx out = s->turned ? in : outer, sum = s->turned ? outer : in;
    LoopIdx to_out = loop_idx_add(k, d->first, out), to_sum = loop_idx_add(k, channel, sum);
    LoopVal there = below(k, below(k, (LoopVal){0}, to_out, s->out), to_sum, s->sum);
    LoopIdx from = s->turned ? lower_cuda_at(k, to_sum, s->out, to_out)
                             : lower_cuda_at(k, to_out, s->sum, to_sum);
    from = lower_cuda_at(k, from, taps, tap);
    LoopBuf w = lower_body_input(d->b, d->anchor->in[1]);
    LoopVal v = there.id ? loop_load_if(k, w, from, there, 0) : loop_load(k, w, from);
    if (s->turned) tap = loop_idx_plus(k, loop_idx_scale(k, tap, -1), taps - 1);
    loop_store(k, d->w, weight_at(d, out, sum, tap), loop_tf32(k, v));
    lower_space_close(k, depth);
}

/* --- multiplying --- */

/* One tap of 8 channels: the thread's weights, its inputs, and all products. */
static void multiply_tap(Mma *d, LoopIdx w_at, LoopIdx x_at) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    LoopBuf a = loop_reg(k, "weights", DT_f32, s->tiles * 4, 1);
    LoopBuf b = loop_reg(k, "inputs", DT_f32, s->places * 2, 1);
    LoopIdx m = lower_cuda_open_unrolled(k, s->tiles);
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    LoopIdx from = loop_idx_add(k, lower_cuda_at(k, m, LANE_FLOATS, lane), w_at);
    loop_store(k, a, lower_cuda_at(k, m, 4, lane), loop_load(k, d->w, from));
    loop_close(k);
    loop_close(k);
    LoopIdx j = lower_cuda_open_unrolled(k, s->places), half = lower_cuda_open_unrolled(k, 2);
    from = loop_idx_add(k, x_at, lower_cuda_at(k, j, 8, loop_idx_scale(k, half, 4 * s->x_pitch)));
    loop_store(k, b, lower_cuda_at(k, j, 2, half), loop_load(k, d->x, from));
    loop_close(k);
    loop_close(k);
    m = lower_cuda_open_unrolled(k, s->tiles);
    j = lower_cuda_open_unrolled(k, s->places);
    loop_mma(k, (LoopMma){.a = a,
                          .b = b,
                          .c = d->sum,
                          .a_at = loop_idx_scale(k, m, 4),
                          .b_at = loop_idx_scale(k, j, 2),
                          .c_at = lower_cuda_at(k, lower_cuda_at(k, m, s->places, j), 4,
                                                loop_idx(k, 0))});
    loop_close(k);
    loop_close(k);
}

/* All products of the chunk that is in shared memory, its weights from `slots` 8-channels on. */
static void multiply_chunk(Mma *d, LoopIdx slots) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    LoopIdx lane = lower_cuda_at(k, d->lane_row, 4, d->lane_col);
    LoopIdx place = lower_cuda_at(k, d->lane_col, s->x_pitch, d->lane_row);
    place = loop_let(k, lower_cuda_at(k, d->warp, s->places * 8, place), s->x_floats);
    LoopIdx c = loop_idx_axis(k, loop_open(k, LOOP_reduce, s->chunk / 8, LOOP_NO_BOUND));
    LoopIdx y = loop_idx_axis(k, loop_open(k, LOOP_reduce, s->kh, LOOP_NO_BOUND));
    LoopIdx x = lower_cuda_open_unrolled(k, s->kw);
    LoopIdx slot =
        lower_cuda_at(k, loop_idx_add(k, slots, c), s->kh * s->kw, lower_cuda_at(k, y, s->kw, x));
    LoopIdx x_at = lower_cuda_at(k, c, 8 * s->x_pitch, lower_cuda_at(k, y, s->pitch, x));
    multiply_tap(d, lower_cuda_at(k, slot, s->w_slot, loop_idx_scale(k, lane, 4)),
                 loop_idx_add(k, x_at, place));
    for (int i = 0; i < 3; i++) loop_close(k);
}

static void multiply(Mma *d) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    bool kept = s->w_chunks == s->chunks;
    LoopIdx i = lower_cuda_open_unrolled(k, s->tiles * s->places * 4);
    loop_store(k, d->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    LoopIdx chunk = loop_idx_axis(k, loop_open(k, LOOP_reduce, s->chunks, LOOP_NO_BOUND));
    LoopIdx channel = loop_idx_scale(k, chunk, s->chunk);
    loop_sync(k);
    load_input(d, channel);
    if (!kept) load_weights(d, channel, s->chunk);
    loop_sync(k);
    multiply_chunk(d, kept ? loop_idx_scale(k, chunk, s->chunk / 8) : loop_idx(k, 0));
    loop_close(k);
}

/* --- storing --- */

/* The thread's sums of `count` tiles of channels from `tile` on, to the shared memory of the inputs
 * as [channel][row][column], without the places beyond a row's end. */
static void stage_results(Mma *d, int64_t tile, int64_t count) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    LoopIdx j = lower_cuda_open_unrolled(k, s->places), odd = lower_cuda_open_unrolled(k, 2);
    LoopIdx place = lower_cuda_at(k, d->warp, s->places * 8, lower_cuda_at(k, j, 8, odd));
    place = loop_idx_add(k, place, loop_idx_scale(k, d->lane_col, 2));
    LoopIdx row = loop_idx_div(k, place, s->pitch), col = loop_idx_mod(k, place, s->pitch);
    LoopVal there = below(k, below(k, (LoopVal){0}, col, s->wo), row, s->rows);
    LoopIdx to = loop_let(k, lower_cuda_at(k, row, s->wo, col), s->out_pitch);
    LoopIdx m = lower_cuda_open_unrolled(k, count), high = lower_cuda_open_unrolled(k, 2);
    LoopIdx at = lower_cuda_at(k, loop_idx_plus(k, m, tile), s->places, j);
    at = lower_cuda_at(k, at, 4, lower_cuda_at(k, high, 2, odd));
    LoopIdx o = loop_idx_add(k, lower_cuda_at(k, m, 16, d->lane_row), loop_idx_scale(k, high, 8));
    LoopVal v = loop_load(k, d->sum, at);
    if (there.id)
        loop_store_if(k, d->x, lower_cuda_at(k, o, s->out_pitch, to), v, there);
    else
        loop_store(k, d->x, lower_cuda_at(k, o, s->out_pitch, to), v);
    for (int i = 0; i < 4; i++) loop_close(k);
}

static void store_results(Mma *d, int64_t first, int64_t channels) {
    const CudaConvMma *s = &d->s;
    CudaResults r = {.b = d->b,
                     .anchor = d->anchor,
                     .staged = d->x,
                     .thread = d->thread,
                     .sample = d->sample,
                     .strip = d->strip,
                     .first = loop_idx_plus(d->k, d->first, first),
                     .channels = channels,
                     .out = s->out,
                     .rows = s->rows,
                     .ho = s->ho,
                     .wo = s->wo,
                     .pitch = s->out_pitch};
    lower_cuda_store_results(d->k, &r);
}

static void store_all(Mma *d) {
    const CudaConvMma *s = &d->s;
    for (int64_t tile = 0; tile < s->tiles; tile += s->staged) {
        int64_t count = s->tiles - tile < s->staged ? s->tiles - tile : s->staged;
        int64_t channels = count * 16, left = s->out - tile * 16;
        loop_sync(d->k);
        stage_results(d, tile, count);
        loop_sync(d->k);
        store_results(d, tile * 16, channels < left ? channels : left);
    }
}

/* --- entry --- */

static void open_blocks(Mma *d) {
    LoopKernel *k = d->k;
    const CudaConvMma *s = &d->s;
    int64_t groups = lower_ceil_div(s->out, s->outs);
    LoopIdx block;
    lower_cuda_open(k, s->parts * groups, s->threads, &block, &d->thread);
    d->part = loop_let(k, loop_idx_div(k, block, groups), s->parts);
    d->first = loop_idx_scale(k, loop_let(k, loop_idx_mod(k, block, groups), groups), s->outs);
    d->warp = loop_let(k, loop_idx_div(k, d->thread, CUDA_WARP), s->warps);
    LoopIdx lane = loop_idx_mod(k, d->thread, CUDA_WARP);
    d->lane_row = loop_let(k, loop_idx_div(k, lane, 4), 8);
    d->lane_col = loop_let(k, loop_idx_mod(k, lane, 4), 4);
}

LoopKernel *lower_cuda_mma(LowerBody *b, const Node *anchor, const CudaConvMma *sizes) {
    Mma d = {.b = b, .k = b->k, .anchor = anchor, .s = *sizes};
    const CudaConvMma *s = &d.s;
    LoopKernel *k = d.k;
    d.x = loop_shared(k, "x", DT_f32, s->x_floats);
    d.w = loop_shared(k, "w", DT_f32, s->w_floats);
    open_blocks(&d);
    d.sum = loop_reg(k, "sum", DT_f32, s->tiles * s->places * 4, 1);
    if (s->w_chunks == s->chunks) load_weights(&d, loop_idx(k, 0), s->chunks * s->chunk);
    int64_t units = s->n * s->strips;
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_serial, s->part, LOOP_NO_BOUND));
    LoopIdx unit = lower_cuda_at(k, d.part, s->part, step);
    unit = loop_let(k, lower_cuda_open_below(k, unit, units), units);
    d.sample = loop_let(k, loop_idx_div(k, unit, s->strips), s->n);
    d.strip = loop_let(k, loop_idx_mod(k, unit, s->strips), s->strips);
    multiply(&d);
    store_all(&d);
    lower_space_close(k, 0);
    return k;
}
