/* lower_cuda_direct.c - convolutions at stride 1 for CUDA, and their input gradients.
 *
 * A block makes a strip of rows of one sample. The strip's input with its border and the weights of
 * a chunk of channels lie in shared memory; a thread loads the inputs under a row of its pixels and
 * the taps of its channels once into registers. Results go through shared memory, so that the
 * epilogue reads and writes neighbours.
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, WEIGHTS_TOGETHER = 16 };

typedef struct Direct {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaConv s;
    LoopIdx thread, sample, strip, first; /* first: of the block's output channels */
    LoopIdx pixel, group;                 /* of the thread; pixel: row * tiles + tile */
    LoopVal active;                       /* id 0: every thread has a tile */
    LoopBuf x, w, sum, inputs, taps;
} Direct;

/* --- loading --- */

static void load_input(Direct *d, LoopIdx channel) {
    const CudaConv *s = &d->s;
    LoopIdx y = loop_idx_plus(d->k, loop_idx_scale(d->k, d->strip, s->rows), -s->ph);
    CudaStrip strip = {.from = lower_body_input(d->b, d->anchor->in[0]),
                       .to = d->x,
                       .image = {s->n, s->sum, s->hi, s->wi},
                       .sample = d->sample,
                       .channel = channel,
                       .y = y,
                       .channels = s->chunk,
                       .rows = s->rows_in,
                       .x = -s->pw,
                       .tiles = s->tiles,
                       .span = s->span,
                       .step = s->pixels,
                       .pitch = s->pitch,
                       .channel_pitch = s->rows_in * s->tiles * s->pitch};
    lower_cuda_load_strip(d->k, &strip, d->thread);
}

/* The weights [outer][inner][taps], outer being output channels (turned: summed ones): a thread
 * keeps its place in [inner][taps] for all outer ones. */
static void load_weights(Direct *d, LoopIdx channel) {
    LoopKernel *k = d->k;
    const CudaConv *s = &d->s;
    int64_t taps = s->kh * s->kw, inner = s->turned ? s->out : s->sum;
    int64_t run = (s->turned ? s->outs : s->chunk) * taps, count = s->turned ? s->chunk : s->outs;
    int64_t together = WEIGHTS_TOGETHER;
    while (count % together != 0) together--;
    int depth = k->depth;
    LoopIdx u = lower_cuda_open_unrolled(k, lower_ceil_div(run, k->threads));
    u = lower_cuda_open_below(k, lower_cuda_at(k, u, k->threads, d->thread), run);
    u = loop_let(k, u, run);
    LoopIdx in = loop_let(k, loop_idx_div(k, u, taps), run / taps);
    LoopIdx tap = loop_idx_mod(k, u, taps);
    LoopIdx outer = loop_idx_axis(k, loop_open(k, LOOP_serial, count / together, LOOP_NO_BOUND));
    LoopIdx v = lower_cuda_at(k, outer, together, lower_cuda_open_unrolled(k, together));
    LoopIdx row = loop_idx_add(k, s->turned ? channel : d->first, v);
    LoopIdx from = lower_cuda_at(k, row, inner * taps, u);
    from = loop_idx_add(k, from, loop_idx_scale(k, s->turned ? d->first : channel, taps));
    LoopIdx to = lower_cuda_at(k, s->turned ? in : v, s->w_pitch, tap);
    to = loop_idx_add(k, to, loop_idx_scale(k, s->turned ? v : in, s->taps));
    loop_store(k, d->w, to, loop_load(k, lower_body_input(d->b, d->anchor->in[1]), from));
    lower_space_close(k, depth);
}

/* --- multiplying --- */

/* `quads` times four neighbours of shared memory, from `from` on, into registers at `to`. */
static void load_quads(LoopKernel *k, LoopBuf shared, LoopIdx from, LoopBuf regs, LoopIdx to,
                       int64_t quads) {
    LoopIdx q = lower_cuda_open_unrolled(k, quads);
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    LoopIdx at = lower_cuda_at(k, q, QUAD, lane);
    loop_store(k, regs, loop_idx_add(k, to, at), loop_load(k, shared, loop_idx_add(k, from, at)));
    loop_close(k);
    loop_close(k);
}

/* All taps of one channel of the chunk. */
static void multiply_channel(Direct *d, LoopIdx c) {
    LoopKernel *k = d->k;
    const CudaConv *s = &d->s;
    LoopIdx j = lower_cuda_open_unrolled(k, s->channels);
    LoopIdx from = lower_cuda_at(k, j, s->groups, d->group);
    from = loop_idx_add(k, loop_idx_scale(k, from, s->w_pitch), loop_idx_scale(k, c, s->taps));
    load_quads(k, d->w, from, d->taps, loop_idx_scale(k, j, s->taps), s->taps / QUAD);
    loop_close(k);
    LoopIdx y = lower_cuda_open_unrolled(k, s->kh);
    int64_t quads = lower_ceil_div(s->span, QUAD);
    from = lower_cuda_at(k, d->pixel, s->pitch, loop_idx_scale(k, y, s->tiles * s->pitch));
    from = loop_idx_add(k, from, loop_idx_scale(k, c, s->rows_in * s->tiles * s->pitch));
    load_quads(k, d->x, from, d->inputs, loop_idx(k, 0), quads);
    LoopIdx x = lower_cuda_open_unrolled(k, s->kw);
    j = lower_cuda_open_unrolled(k, s->channels);
    LoopIdx p = lower_cuda_open_unrolled(k, s->pixels);
    LoopIdx tap = lower_cuda_at(k, y, s->kw, x);
    if (s->turned) tap = loop_idx_plus(k, loop_idx_scale(k, tap, -1), s->kh * s->kw - 1);
    LoopVal w = loop_load(k, d->taps, lower_cuda_at(k, j, s->taps, tap));
    LoopVal v = loop_load(k, d->inputs, loop_idx_add(k, p, x));
    LoopIdx at = lower_cuda_at(k, j, s->pixels, p);
    loop_store(k, d->sum, at, loop_fma(k, v, w, loop_load(k, d->sum, at)));
    for (int i = 0; i < 4; i++) loop_close(k);
}

static void multiply(Direct *d) {
    LoopKernel *k = d->k;
    const CudaConv *s = &d->s;
    LoopIdx i = lower_cuda_open_unrolled(k, s->channels * s->pixels);
    loop_store(k, d->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    int64_t chunks = s->sum / s->chunk;
    LoopIdx chunk = loop_idx_axis(k, loop_open(k, LOOP_reduce, chunks, LOOP_NO_BOUND));
    LoopIdx channel = loop_idx_scale(k, chunk, s->chunk);
    if (chunks > 1) loop_sync(k);
    load_input(d, channel);
    load_weights(d, channel);
    loop_sync(k);
    int depth = k->depth;
    if (d->active.id) loop_open_if(k, d->active);
    multiply_channel(d, loop_idx_axis(k, loop_open(k, LOOP_reduce, s->chunk, LOOP_NO_BOUND)));
    lower_space_close(k, depth);
    loop_close(k);
}

/* --- storing --- */

/* The thread's sums, to the shared memory of the inputs as [channel][row][column]. */
static void stage_results(Direct *d) {
    LoopKernel *k = d->k;
    const CudaConv *s = &d->s;
    bool quads = s->pixels % QUAD == 0 && s->wo % QUAD == 0;
    int depth = k->depth;
    loop_sync(k);
    if (d->active.id) loop_open_if(k, d->active);
    LoopIdx row = loop_let(k, loop_idx_div(k, d->pixel, s->tiles), s->rows);
    LoopIdx tile = loop_let(k, loop_idx_mod(k, d->pixel, s->tiles), s->tiles);
    LoopIdx j = lower_cuda_open_unrolled(k, s->channels);
    LoopIdx o = lower_cuda_open_below(k, lower_cuda_at(k, j, s->groups, d->group), s->outs);
    LoopIdx q = lower_cuda_open_unrolled(k, quads ? s->pixels / QUAD : s->pixels), p = q;
    LoopIdx x = lower_cuda_at(k, tile, s->pixels, quads ? loop_idx_scale(k, q, QUAD) : q);
    if (quads) {
        if (s->tiles * s->pixels > s->wo) {
            LoopIdx quad = lower_cuda_open_below(k, loop_idx_div(k, x, QUAD), s->wo / QUAD);
            x = loop_idx_scale(k, quad, QUAD);
        }
        LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
        x = loop_idx_add(k, x, lane);
        p = lower_cuda_at(k, q, QUAD, lane);
    } else {
        x = lower_cuda_open_below(k, x, s->wo);
    }
    LoopIdx to = lower_cuda_at(k, o, s->out_pitch, lower_cuda_at(k, row, s->wo, x));
    loop_store(k, d->x, to, loop_load(k, d->sum, lower_cuda_at(k, j, s->pixels, p)));
    lower_space_close(k, depth);
    loop_sync(k);
}

static void store_results(Direct *d) {
    const CudaConv *s = &d->s;
    CudaResults r = {.b = d->b,
                     .anchor = d->anchor,
                     .staged = d->x,
                     .thread = d->thread,
                     .sample = d->sample,
                     .strip = d->strip,
                     .first = d->first,
                     .channels = s->outs,
                     .out = s->out,
                     .rows = s->rows,
                     .ho = s->ho,
                     .wo = s->wo,
                     .pitch = s->out_pitch};
    lower_cuda_store_results(d->k, &r);
}

/* --- entry --- */

static void open_blocks(Direct *d) {
    LoopKernel *k = d->k;
    const CudaConv *s = &d->s;
    int64_t parts = s->out / s->outs;
    LoopIdx block;
    lower_cuda_open(k, s->n * s->strips * parts, s->threads, &block, &d->thread);
    d->strip = loop_let(k, loop_idx_mod(k, block, s->strips), s->strips);
    LoopIdx rest = loop_let(k, loop_idx_div(k, block, s->strips), s->n * parts);
    d->first = loop_idx_scale(k, loop_let(k, loop_idx_mod(k, rest, parts), parts), s->outs);
    d->sample = loop_let(k, loop_idx_div(k, rest, parts), s->n);
    int64_t pixels = s->rows * s->tiles;
    d->pixel = loop_let(k, loop_idx_mod(k, d->thread, pixels), pixels);
    LoopIdx group = loop_idx_div(k, d->thread, pixels);
    if (pixels * s->groups < s->threads) d->active = loop_range(k, group, 0, s->groups);
    d->group = loop_name(k, group, s->groups);
}

LoopKernel *lower_cuda_direct(LowerBody *b, const Node *anchor, const CudaConv *sizes) {
    Direct d = {.b = b, .k = b->k, .anchor = anchor, .s = *sizes};
    const CudaConv *s = &d.s;
    LoopKernel *k = d.k;
    d.x = loop_shared(k, "x", DT_f32, s->x_floats);
    d.w = loop_shared(k, "w", DT_f32, s->w_floats);
    open_blocks(&d);
    d.sum = loop_reg(k, "sum", DT_f32, s->channels * s->pixels, 1);
    d.inputs = loop_reg(k, "inputs", DT_f32, lower_ceil_div(s->span, QUAD) * QUAD, 1);
    d.taps = loop_reg(k, "taps", DT_f32, s->channels * s->taps, 1);
    multiply(&d);
    stage_results(&d);
    store_results(&d);
    lower_space_close(k, 0);
    return k;
}
