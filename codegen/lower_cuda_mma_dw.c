/* lower_cuda_mma_dw.c - weight gradients of convolutions at stride 1 on tensor cores.
 *
 * A product of output gradients [channels, places] by inputs [places, channels] for each tap, see
 * CudaConvMmaDw in ir/split.h. A block walks its strips; both lie in shared memory, rounded to
 * tf32, with zeros where a row or a strip ends. Warps that share sums add them in order at the end;
 * blocks store their part, and a second launch adds the parts (lower_cuda_parts.c).
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { STORES_TOGETHER = 8, CLEARS_TOGETHER = 8 };

typedef struct MmaDw {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaConvMmaDw s;
    LoopIdx thread, across, along, lane_row, lane_col; /* of the warp; of its lane */
    LoopIdx part, first_out, first_in;
    LoopBuf x, y, sum;
} MmaDw;

static int64_t taps_of(const CudaConvMmaDw *s) { return s->kh * s->kw; }

static int64_t sums_of(const CudaConvMmaDw *s) { return s->tiles * s->places * 4; }

/* --- loading --- */

static void clear(MmaDw *d, LoopBuf buf, int64_t n) {
    LoopKernel *k = d->k;
    int depth = k->depth;
    LoopIdx at = lower_cuda_open_shared_units(k, d->thread, n, CLEARS_TOGETHER);
    loop_store(k, buf, at, loop_const(k, DT_f32, 0));
    lower_space_close(k, depth);
}

static void load_unit(MmaDw *d, LoopIdx unit) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
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
                         .span = s->pitch,
                         .step = s->pitch,
                         .pitch = s->pitch,
                         .channel_pitch = s->x_pitch,
                         .tf32 = true};
    CudaStrip y_strip = {.from = lower_body_input(d->b, d->anchor->in[1]),
                         .to = d->y,
                         .image = {s->n, s->co, s->ho, s->wo},
                         .sample = sample,
                         .channel = d->first_out,
                         .y = y,
                         .channels = s->outs,
                         .rows = s->rows,
                         .tiles = 1,
                         .span = s->wo,
                         .step = s->wo,
                         .pitch = s->pitch,
                         .channel_pitch = s->y_pitch,
                         .tf32 = true};
    lower_cuda_load_strip(k, &x_strip, d->thread);
    lower_cuda_load_strip(k, &y_strip, d->thread);
}

/* --- multiplying --- */

/* Four registers of each tile of output gradients, from place `place` on. */
static LoopBuf load_outputs(MmaDw *d, LoopIdx place) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    LoopBuf a = loop_reg(k, "outputs", DT_f32, s->tiles * 4, 1);
    LoopIdx m = lower_cuda_open_unrolled(k, s->tiles), right = lower_cuda_open_unrolled(k, 2),
            low = lower_cuda_open_unrolled(k, 2);
    LoopIdx at = lower_cuda_at(k, m, 16 * s->y_pitch, lower_cuda_at(k, low, 8 * s->y_pitch, place));
    at =
        loop_idx_add(k, at, lower_cuda_at(k, d->lane_row, s->y_pitch, loop_idx_scale(k, right, 4)));
    loop_store(k, a, lower_cuda_at(k, m, 4, lower_cuda_at(k, right, 2, low)),
               loop_load(k, d->y, at));
    for (int i = 0; i < 3; i++) loop_close(k);
    return a;
}

/* The input under place 0 of tile j of the warp: a tile is (tap, 8 channels). */
static LoopIdx tile_at(MmaDw *d, LoopIdx j) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int64_t groups = s->ins / 8;
    LoopIdx tile = lower_cuda_at(k, d->across, s->places, j);
    LoopIdx tap = loop_idx_div(k, tile, groups), group = loop_idx_mod(k, tile, groups);
    LoopIdx at =
        lower_cuda_at(k, loop_idx_div(k, tap, s->kw), s->pitch, loop_idx_mod(k, tap, s->kw));
    return lower_cuda_at(k, group, 8 * s->x_pitch, at);
}

/* 8 places of the strip. */
static void multiply_step(MmaDw *d, LoopIdx step) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    LoopIdx place = lower_cuda_at(k, step, 8 * s->warps_along, loop_idx_scale(k, d->along, 8));
    place = loop_let(k, loop_idx_add(k, place, d->lane_col), s->y_pitch);
    LoopBuf a = load_outputs(d, place);
    LoopBuf b = loop_reg(k, "inputs", DT_f32, s->places * 2, 1);
    LoopIdx j = lower_cuda_open_unrolled(k, s->places), right = lower_cuda_open_unrolled(k, 2);
    LoopIdx at = loop_idx_add(k, tile_at(d, j), lower_cuda_at(k, d->lane_row, s->x_pitch, place));
    at = loop_idx_add(k, at, loop_idx_scale(k, right, 4));
    loop_store(k, b, lower_cuda_at(k, j, 2, right), loop_load(k, d->x, at));
    loop_close(k);
    loop_close(k);
    LoopIdx m = lower_cuda_open_unrolled(k, s->tiles);
    j = lower_cuda_open_unrolled(k, s->places);
    loop_mma(k, (LoopMma){.a = a,
                          .b = b,
                          .c = d->sum,
                          .a_at = loop_idx_scale(k, m, 4),
                          .b_at = loop_idx_scale(k, j, 2),
                          .c_at = loop_idx_scale(k, lower_cuda_at(k, m, s->places, j), 4)});
    loop_close(k);
    loop_close(k);
}

static void multiply(MmaDw *d) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int depth = k->depth;
    LoopIdx i = lower_cuda_open_unrolled(k, sums_of(s));
    loop_store(k, d->sum, i, loop_const(k, DT_f32, 0));
    loop_close(k);
    clear(d, d->x, s->x_floats);
    clear(d, d->y, s->y_floats);
    LoopIdx step = loop_idx_axis(k, loop_open(k, LOOP_reduce, s->part, LOOP_NO_BOUND));
    LoopIdx unit = lower_cuda_at(k, d->part, s->part, step);
    unit = loop_let(k, lower_cuda_open_below(k, unit, s->n * s->strips), s->n * s->strips);
    loop_sync(k);
    load_unit(d, unit);
    loop_sync(k);
    multiply_step(d, loop_idx_axis(k, loop_open(k, LOOP_reduce, s->steps, LOOP_NO_BOUND)));
    lower_space_close(k, depth);
}

/* --- storing --- */

/* The first of the warps that share sums adds the others', one after another. */
static void fold_warps(MmaDw *d) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int64_t wide = s->warps_across * CUDA_WARP;
    for (int64_t along = 1; along < s->warps_along; along++) {
        int depth = k->depth;
        loop_sync(k);
        loop_open_if(k, loop_range(k, d->thread, along * wide, (along + 1) * wide));
        LoopIdx i = lower_cuda_open_unrolled(k, sums_of(s));
        LoopIdx at = loop_name(k, loop_idx_plus(k, d->thread, -along * wide), wide);
        loop_store(k, d->y, lower_cuda_at(k, i, wide, at), loop_load(k, d->sum, i));
        lower_space_close(k, depth);
        loop_sync(k);
        loop_open_if(k, loop_range(k, d->thread, 0, wide));
        i = lower_cuda_open_unrolled(k, sums_of(s));
        LoopVal v = loop_load(k, d->y, lower_cuda_at(k, i, wide, d->thread));
        loop_store(k, d->sum, i, loop_op2(k, OP_add, loop_load(k, d->sum, i), v));
        lower_space_close(k, depth);
    }
}

/* The first warps' sums as [output channel][input channel][tap] in shared memory. */
static void stage_sums(MmaDw *d) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int64_t groups = s->ins / 8;
    int depth = k->depth;
    loop_sync(k);
    loop_open_if(k, loop_range(k, d->thread, 0, s->warps_across * CUDA_WARP));
    LoopIdx m = lower_cuda_open_unrolled(k, s->tiles), j = lower_cuda_open_unrolled(k, s->places);
    LoopIdx low = lower_cuda_open_unrolled(k, 2), odd = lower_cuda_open_unrolled(k, 2);
    LoopIdx tile = lower_cuda_at(k, d->across, s->places, j);
    LoopIdx in =
        lower_cuda_at(k, loop_idx_mod(k, tile, groups), 8, lower_cuda_at(k, d->lane_col, 2, odd));
    LoopIdx out = lower_cuda_at(k, m, 16, lower_cuda_at(k, low, 8, d->lane_row));
    LoopIdx to = lower_cuda_at(k, lower_cuda_at(k, out, s->ins, in), taps_of(s),
                               loop_idx_div(k, tile, groups));
    LoopIdx at =
        lower_cuda_at(k, lower_cuda_at(k, m, s->places, j), 4, lower_cuda_at(k, low, 2, odd));
    loop_store(k, d->y, to, loop_load(k, d->sum, at));
    lower_space_close(k, depth);
    loop_sync(k);
}

static void store_sums(MmaDw *d) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int64_t row = s->ins * taps_of(s), all = s->co * s->ci * taps_of(s);
    int depth = k->depth;
    LoopIdx unit = lower_cuda_open_shared_units(k, d->thread, s->outs * row, STORES_TOGETHER);
    LoopIdx out = loop_let(k, loop_idx_div(k, unit, row), s->outs);
    LoopIdx in = loop_let(k, loop_idx_mod(k, unit, row), row);
    out = lower_cuda_open_below(k, loop_idx_add(k, d->first_out, out), s->co);
    in = lower_cuda_at(k, d->first_in, taps_of(s), in);
    in = lower_cuda_open_below(k, in, s->ci * taps_of(s));
    LoopIdx at = lower_cuda_at(k, out, s->ci * taps_of(s), in);
    LoopVal v = loop_load(k, d->y, unit);
    if (s->parts > 1) {
        loop_store(k, d->b->workspace, lower_cuda_at(k, d->part, all, at), v);
    } else {
        LoopIdx index[4];
        lower_unflatten(k, val_info(d->b->body, d->anchor->out), at, index);
        lower_body_bind(d->b, d->anchor->out, v);
        lower_body_store_all(d->b, index);
    }
    lower_space_close(k, depth);
}

/* --- entry --- */

static void open_blocks(MmaDw *d) {
    LoopKernel *k = d->k;
    const CudaConvMmaDw *s = &d->s;
    int64_t ins = lower_ceil_div(s->ci, s->ins), outs = lower_ceil_div(s->co, s->outs);
    LoopIdx block;
    lower_cuda_open(k, s->parts * s->blocks, s->threads, &block, &d->thread);
    d->part = loop_let(k, loop_idx_div(k, block, s->blocks), s->parts);
    LoopIdx channels = loop_let(k, loop_idx_mod(k, block, s->blocks), s->blocks);
    d->first_in = loop_idx_scale(k, loop_let(k, loop_idx_mod(k, channels, ins), ins), s->ins);
    d->first_out = loop_idx_scale(k, loop_let(k, loop_idx_div(k, channels, ins), outs), s->outs);
    LoopIdx warp = loop_idx_div(k, d->thread, CUDA_WARP);
    LoopIdx lane = loop_idx_mod(k, d->thread, CUDA_WARP);
    d->across = loop_let(k, loop_idx_mod(k, warp, s->warps_across), s->warps_across);
    d->along = loop_let(k, loop_idx_div(k, warp, s->warps_across), s->warps_along);
    d->lane_row = loop_let(k, loop_idx_div(k, lane, 4), 8);
    d->lane_col = loop_let(k, loop_idx_mod(k, lane, 4), 4);
}

LoopKernel *lower_cuda_mma_dw(LowerContext *ctx, const Graph *g, const Node *kernel,
                              const CudaConvMmaDw *sizes) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    MmaDw d = {.b = b, .k = b->k, .s = *sizes};
    LoopKernel *k = d.k;
    d.anchor = lower_body_anchor(b, OP_conv2d_dw);
    d.x = loop_shared(k, "x", DT_f32, d.s.x_floats);
    d.y = loop_shared(k, "y", DT_f32, d.s.y_floats);
    open_blocks(&d);
    d.sum = loop_reg(k, "sum", DT_f32, sums_of(&d.s), 1);
    multiply(&d);
    fold_warps(&d);
    stage_sums(&d);
    store_sums(&d);
    lower_space_close(k, 0);
    if (d.s.parts > 1) k->next = lower_cuda_conv_parts(ctx, g, kernel, d.s.parts);
    return k;
}
