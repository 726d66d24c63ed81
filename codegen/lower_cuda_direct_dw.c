/* lower_cuda_direct_dw.c - weight gradients of convolutions at stride 1 for CUDA.
 *
 * A block takes a run of strips of rows. A thread makes all taps of one input channel for a few
 * output channels, walking along rows: of four output gradients each is used for every tap, inputs
 * slide through registers. Lanes that share a cell fold at the end; blocks store their part, and a
 * second launch adds the parts in order (lower_cuda_parts.c).
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, STORES_TOGETHER = 8 };

typedef struct DirectDw {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaConvDw s;
    LoopIdx thread, part, first_out, first_in;
    LoopIdx in, group, lane; /* of the thread */
    LoopVal active;          /* id 0: every thread has a cell */
    LoopBuf x, y, sum;
} DirectDw;

static int64_t taps_of(const CudaConvDw *s) { return s->kh * s->kw; }

/* --- loading --- */

static void load_unit(DirectDw *d, LoopIdx unit) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    LoopIdx sample = loop_let(k, loop_idx_div(k, unit, s->strips), s->n);
    LoopIdx strip = loop_let(k, loop_idx_mod(k, unit, s->strips), s->strips);
    LoopIdx y = loop_idx_scale(k, strip, s->rows);
    CudaStrip x_strip = {.from = lower_body_input(d->b, d->anchor->in[0]),
                         .to = d->x,
                         .image = {s->n, s->ci, s->hi, s->wi},
                         .sample = sample,
                         .channel = d->first_in,
                         .y = loop_idx_plus(k, y, -s->ph),
                         .channels = s->ins,
                         .rows = s->rows_in,
                         .x = -s->pw,
                         .tiles = 1,
                         .span = s->x_row,
                         .step = s->x_row,
                         .pitch = s->x_row,
                         .channel_pitch = s->x_pitch};
    CudaStrip y_strip = {.from = lower_body_input(d->b, d->anchor->in[1]),
                         .to = d->y,
                         .image = {s->n, s->co, s->ho, s->wo},
                         .sample = sample,
                         .channel = d->first_out,
                         .y = y,
                         .channels = s->outs,
                         .rows = s->rows,
                         .tiles = 1,
                         .span = s->y_row,
                         .step = s->y_row,
                         .pitch = s->y_row,
                         .channel_pitch = s->y_pitch};
    lower_cuda_load_strip(k, &x_strip, d->thread);
    lower_cuda_load_strip(k, &y_strip, d->thread);
}

/* --- multiplying --- */

/* Four neighbours of shared memory into registers at `to`. */
static void load_quad(LoopKernel *k, LoopBuf shared, LoopIdx from, LoopBuf regs, LoopIdx to) {
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, QUAD, LOOP_NO_BOUND));
    loop_store(k, regs, loop_idx_add(k, to, lane),
               loop_load(k, shared, loop_idx_add(k, from, lane)));
    loop_close(k);
}

/* One run of quads; `ahead`: quads of inputs that a quad of outputs needs beyond its own. */
static void multiply_run(DirectDw *d, LoopIdx run) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int64_t ahead = lower_ceil_div(s->kw - 1, QUAD), wide = QUAD * (s->run + ahead);
    LoopIdx row = loop_let(k, loop_idx_div(k, run, s->segments), s->rows);
    LoopIdx segment = loop_let(k, loop_idx_mod(k, run, s->segments), s->segments);
    LoopIdx col = loop_idx_scale(k, segment, s->run * QUAD);
    LoopIdx x_at =
        loop_idx_add(k, lower_cuda_at(k, d->in, s->x_pitch, loop_idx_scale(k, row, s->x_row)), col);
    LoopIdx y_at = loop_idx_add(
        k, lower_cuda_at(k, d->group, s->y_pitch, loop_idx_scale(k, row, s->y_row)), col);
    LoopBuf x = loop_reg(k, "inputs", DT_f32, s->kh * wide, 1);
    LoopBuf y = loop_reg(k, "outputs", DT_f32, s->channels * QUAD, 1);
    if (ahead) {
        LoopIdx r = lower_cuda_open_unrolled(k, s->kh), q = lower_cuda_open_unrolled(k, ahead);
        LoopIdx from =
            loop_idx_add(k, x_at, lower_cuda_at(k, r, s->x_row, loop_idx_scale(k, q, QUAD)));
        load_quad(k, d->x, from, x, lower_cuda_at(k, r, wide, loop_idx_scale(k, q, QUAD)));
        loop_close(k);
        loop_close(k);
    }
    LoopIdx q = lower_cuda_open_unrolled(k, s->run);
    LoopIdx r = lower_cuda_open_unrolled(k, s->kh);
    LoopIdx next = loop_idx_scale(k, loop_idx_plus(k, q, ahead), QUAD);
    load_quad(k, d->x, loop_idx_add(k, x_at, lower_cuda_at(k, r, s->x_row, next)), x,
              lower_cuda_at(k, r, wide, next));
    loop_close(k);
    LoopIdx o = lower_cuda_open_unrolled(k, s->channels);
    LoopIdx from = loop_idx_add(k, y_at, loop_idx_scale(k, o, s->groups * s->y_pitch));
    load_quad(k, d->y, loop_idx_add(k, from, loop_idx_scale(k, q, QUAD)), y,
              loop_idx_scale(k, o, QUAD));
    loop_close(k);
    LoopIdx p = lower_cuda_open_unrolled(k, QUAD);
    o = lower_cuda_open_unrolled(k, s->channels);
    r = lower_cuda_open_unrolled(k, s->kh);
    LoopIdx c = lower_cuda_open_unrolled(k, s->kw);
    LoopIdx at = lower_cuda_at(k, o, taps_of(s), lower_cuda_at(k, r, s->kw, c));
    LoopIdx under = loop_idx_add(k, lower_cuda_at(k, q, QUAD, p), c);
    LoopVal v = loop_load(k, x, lower_cuda_at(k, r, wide, under));
    LoopVal g = loop_load(k, y, lower_cuda_at(k, o, QUAD, p));
    loop_store(k, d->sum, at, loop_fma(k, g, v, loop_load(k, d->sum, at)));
    for (int i = 0; i < 5; i++) loop_close(k);
}

static void multiply(DirectDw *d) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int depth = k->depth;
    LoopIdx i = lower_cuda_open_unrolled(k, s->channels * taps_of(s));
    loop_store(k, d->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_reduce, s->part, LOOP_NO_BOUND));
    LoopIdx unit = lower_cuda_at(k, d->part, s->part, step);
    unit = loop_let(k, lower_cuda_open_below(k, unit, s->n * s->strips), s->n * s->strips);
    loop_sync(k);
    load_unit(d, unit);
    loop_sync(k);
    if (d->active.id) loop_open_if(k, d->active);
    int64_t runs = s->rows * s->segments;
    LoopIdx run =
        loop_idx_axis(k, loop_open(k, LOOP_reduce, lower_ceil_div(runs, s->lanes), LOOP_NO_BOUND));
    run = lower_cuda_open_below(k, lower_cuda_at(k, run, s->lanes, d->lane), runs);
    multiply_run(d, loop_let(k, run, runs));
    lower_space_close(k, depth);
}

/* --- storing --- */

/* Lane l adds lane l + half, and so on, through the shared memory of the output gradients. */
static void fold_lanes(DirectDw *d) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int64_t sums = s->channels * taps_of(s);
    for (int64_t half = s->lanes / 2; half > 0; half /= 2) {
        int depth = k->depth;
        loop_sync(k);
        loop_open_if(k, loop_range(k, d->thread, half * s->cells, 2 * half * s->cells));
        LoopIdx i = lower_cuda_open_unrolled(k, sums);
        LoopIdx at = loop_idx_plus(k, d->thread, -half * s->cells);
        LoopIdx to = lower_cuda_at(k, i, half * s->cells, loop_name(k, at, half * s->cells));
        loop_store(k, d->y, to, loop_load(k, d->sum, i));
        lower_space_close(k, depth);
        loop_sync(k);
        loop_open_if(k, loop_range(k, d->thread, 0, half * s->cells));
        i = lower_cuda_open_unrolled(k, sums);
        LoopVal v = loop_load(k, d->y, lower_cuda_at(k, i, half * s->cells, d->thread));
        loop_store(k, d->sum, i, loop_op2(k, OP_add, loop_load(k, d->sum, i), v));
        lower_space_close(k, depth);
    }
}

/* The first lane's sums as [output channel][input channel][tap] in shared memory. */
static void stage_sums(DirectDw *d) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int depth = k->depth;
    loop_sync(k);
    loop_open_if(k, loop_range(k, d->thread, 0, s->cells));
    LoopIdx o = lower_cuda_open_unrolled(k, s->channels),
            tap = lower_cuda_open_unrolled(k, taps_of(s));
    LoopIdx out = lower_cuda_open_below(k, lower_cuda_at(k, o, s->groups, d->group), s->outs);
    LoopIdx to = lower_cuda_at(k, lower_cuda_at(k, out, s->ins, d->in), taps_of(s), tap);
    loop_store(k, d->y, to, loop_load(k, d->sum, lower_cuda_at(k, o, taps_of(s), tap)));
    lower_space_close(k, depth);
    loop_sync(k);
}

static void weight_index(LoopKernel *k, const CudaConvDw *s, LoopIdx at, LoopIdx *index) {
    TypeInfo t = {.ndim = 4, .dim = {s->co, s->ci, s->kh, s->kw}};
    lower_unflatten(k, &t, at, index);
}

static void store_sums(DirectDw *d) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int64_t row = s->ins * taps_of(s), all = s->co * s->ci * taps_of(s);
    int depth = k->depth;
    LoopIdx unit = lower_cuda_open_shared_units(k, d->thread, s->outs * row, STORES_TOGETHER);
    LoopIdx out = loop_idx_add(k, d->first_out, loop_idx_div(k, unit, row));
    LoopIdx at = lower_cuda_at(k, out, s->ci * taps_of(s), loop_idx_mod(k, unit, row));
    at = loop_idx_add(k, at, loop_idx_scale(k, d->first_in, taps_of(s)));
    LoopVal v = loop_load(k, d->y, unit);
    if (s->parts > 1) {
        loop_store(k, d->b->workspace, lower_cuda_at(k, d->part, all, at), v);
    } else {
        LoopIdx index[4];
        weight_index(k, s, at, index);
        lower_body_bind(d->b, d->anchor->out, v);
        lower_body_store_all(d->b, index);
    }
    lower_space_close(k, depth);
}

/* --- entry --- */

static void open_blocks(DirectDw *d) {
    LoopKernel *k = d->k;
    const CudaConvDw *s = &d->s;
    int64_t ins = s->ci / s->ins, outs = s->co / s->outs;
    LoopIdx block;
    lower_cuda_open(k, s->parts * s->blocks, s->threads, &block, &d->thread);
    d->part = loop_let(k, loop_idx_div(k, block, s->blocks), s->parts);
    LoopIdx channels = loop_let(k, loop_idx_mod(k, block, s->blocks), s->blocks);
    d->first_in = loop_idx_scale(k, loop_let(k, loop_idx_mod(k, channels, ins), ins), s->ins);
    d->first_out = loop_idx_scale(k, loop_let(k, loop_idx_div(k, channels, ins), outs), s->outs);
    LoopIdx cell = loop_let(k, loop_idx_mod(k, d->thread, s->cells), s->cells);
    d->in = loop_let(k, loop_idx_mod(k, cell, s->ins), s->ins);
    d->group = loop_let(k, loop_idx_div(k, cell, s->ins), s->groups);
    LoopIdx lane = loop_idx_div(k, d->thread, s->cells);
    if (s->cells * s->lanes < s->threads) d->active = loop_range(k, lane, 0, s->lanes);
    d->lane = loop_name(k, lane, s->lanes);
}

LoopKernel *lower_cuda_direct_dw(LowerContext *ctx, const Graph *g, const Node *kernel,
                                 const CudaConvDw *sizes) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    DirectDw d = {.b = b, .k = b->k, .s = *sizes};
    LoopKernel *k = d.k;
    d.anchor = lower_body_anchor(b, OP_conv2d_dw);
    d.x = loop_shared(k, "x", DT_f32, d.s.x_floats);
    d.y = loop_shared(k, "y", DT_f32, d.s.y_floats);
    open_blocks(&d);
    d.sum = loop_reg(k, "sum", DT_f32, d.s.channels * taps_of(&d.s), 1);
    multiply(&d);
    fold_lanes(&d);
    stage_sums(&d);
    store_sums(&d);
    lower_space_close(k, 0);
    if (d.s.parts > 1) k->next = lower_cuda_conv_parts(ctx, g, kernel, d.s.parts);
    return k;
}
