/* lower_conv.c - convolutions and their input gradients as direct loops.
 *
 * Reads   x or dy [n, c, h, w] and w, with all sizes known.
 * Writes  two grid loops: one packs the weights into panels of output channels, innermost in
 *         memory; the other takes units of work: a block of output pixels, a panel.
 *
 * A unit holds a tile of pixels times the panel in registers and runs over input channels and taps:
 * each input value is broadcast and multiplied with the panel's vectors. A finished tile is turned
 * into the order of the result, [channel][pixel], in a local block; when all tiles are done the
 * epilogue runs over that block. Where sums are short, a tile holds channels times vectors of
 * neighbouring pixels instead: each weight is broadcast, and nothing is to be turned.
 *
 * Where taps fall outside of the input, they are left out (rows by the bounds of a loop, columns in
 * the text, a text for each tile of a row), or, on shapes with too many cases, the unit's part of
 * the input is first copied into a local array that holds zeros.
 *
 * The input gradient is the same computation with channels exchanged and the kernel reversed. With
 * stride s its pixels fall into s * s phases, each of which meets every s-th tap only: phases are
 * one more grid axis, and the kernel is padded with zero taps to whole periods.
 *
 * Every element is one chain of multiply-adds over (channel, tap), whatever the cut into units, so
 * threads and tiles change no bit. Tiles at an end overlap their neighbours and compute twice the
 * same.
 */
#include "codegen/conv_plan.h"
#include "codegen/lower.h"

enum { WEIGHT_FLOATS_SMALL = 131072 }; /* all packed weights stay in the L2 cache */

typedef struct Conv {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    ConvPlan p;
    LoopBuf input, weight, sum, tile, copied;
    /* of the current unit */
    LoopIdx sample, pan, phase_y, phase_x, block_y, block_x, origin_y, origin_x;
} Conv;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* --- small helpers over indices --- */

static LoopIdx add3(LoopKernel *k, LoopIdx a, LoopIdx b, LoopIdx c) {
    return loop_idx_add(k, loop_idx_add(k, a, b), c);
}

/* first * extent + second */
static LoopIdx join(LoopKernel *k, LoopIdx first, int64_t extent, LoopIdx second) {
    return loop_idx_add(k, loop_idx_scale(k, first, extent), second);
}

/* Start of piece `i` of `count` pieces of `size`, moved back so that it ends within `extent`. */
static LoopIdx clamped_start(LoopKernel *k, LoopIdx i, int64_t count, int64_t size,
                             int64_t extent) {
    if (count * size <= extent) return loop_idx_scale(k, i, size);
    LoopVal start = loop_index(k, loop_idx_scale(k, i, size));
    LoopVal last = loop_const(k, DT_i32, (double)(extent - size));
    return loop_idx_val(k, loop_op2(k, OP_min, start, last), 0, extent - size);
}

static LoopIdx no_bound_if(LoopKernel *k, bool whole, int64_t extent, LoopIdx start) {
    if (whole) return LOOP_NO_BOUND;
    return loop_idx_plus(k, loop_idx_scale(k, start, -1), extent);
}

/* First tap of a phase: taps with (phase + tap - pad) divisible by the number of phases. */
static LoopIdx first_tap(LoopKernel *k, const ConvAxis *a, LoopIdx phase) {
    int64_t s = a->phases, base = (a->pad % s + s) % s + s;
    return loop_idx_mod(k, loop_idx_plus(k, loop_idx_scale(k, phase, -1), base), s);
}

/* Input pixel that output pixel 0 of the phase meets with its first tap (negative: border). */
static LoopIdx first_pixel(LoopKernel *k, const ConvAxis *a, LoopIdx phase) {
    int64_t s = a->phases, up = a->pad > 0 ? a->pad / s + 1 : 0;
    LoopIdx at = loop_idx_add(k, phase, first_tap(k, a, phase));
    LoopIdx shifted = loop_idx_plus(k, at, s * up - a->pad);
    return loop_idx_plus(k, loop_idx_div(k, shifted, s), -up);
}

/* --- packing --- */

/* workspace[panel][ci][tap y][tap x][lane] = weight, 0 outside of it. */
static void emit_pack(Conv *c) {
    LoopKernel *k = c->k;
    int64_t ty = conv_packed_taps(&c->p.y), tx = conv_packed_taps(&c->p.x),
            lanes = c->p.panel.lanes;
    int64_t channels_in = c->p.ci > 0 ? c->p.ci : 1;
    LoopIdx u =
        loop_idx_axis(k, loop_open(k, LOOP_grid, c->p.panel.count * c->p.ci, LOOP_NO_BOUND));
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_serial, ty, LOOP_NO_BOUND));
    LoopIdx b = loop_idx_axis(k, loop_open(k, LOOP_serial, tx, LOOP_NO_BOUND));
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, lanes, LOOP_NO_BOUND));
    LoopIdx co = join(k, loop_idx_div(k, u, channels_in), lanes, lane);
    LoopIdx ci = loop_idx_mod(k, u, channels_in);
    LoopIdx tap_y = a, tap_x = b;
    if (c->p.backward) {
        tap_y = loop_idx_plus(k, loop_idx_scale(k, a, -1), c->p.y.kernel - 1);
        tap_x = loop_idx_plus(k, loop_idx_scale(k, b, -1), c->p.x.kernel - 1);
    }
    LoopIdx channels = c->p.backward ? join(k, ci, c->p.co, co) : join(k, co, c->p.ci, ci);
    LoopIdx at = join(k, join(k, channels, c->p.y.kernel, tap_y), c->p.x.kernel, tap_x);
    LoopVal v;
    if (c->p.co % lanes == 0 && ty == c->p.y.kernel && tx == c->p.x.kernel) {
        v = loop_load(k, c->weight, at);
    } else {
        LoopVal inside = loop_range(k, co, 0, c->p.co);
        inside = loop_op2(k, OP_and, inside, loop_range(k, tap_y, 0, c->p.y.kernel));
        inside = loop_op2(k, OP_and, inside, loop_range(k, tap_x, 0, c->p.x.kernel));
        v = loop_load_if(k, c->weight, at, inside, 0.0);
    }
    loop_store(k, c->b->workspace, join(k, join(k, join(k, u, ty, a), tx, b), lanes, lane), v);
    for (int i = 0; i < 4; i++) loop_close(k);
}

/* --- the copied input --- */

/* copied[channel][span y][span x], channels from `first`; zeros outside of the input. */
static void emit_copy(Conv *c, LoopIdx first) {
    LoopKernel *k = c->k;
    bool whole = c->p.channels.count * c->p.channels.size == c->p.ci;
    LoopIdx bound = no_bound_if(k, whole, c->p.ci, first);
    LoopIdx ci = loop_idx_axis(k, loop_open(k, LOOP_serial, c->p.channels.size, bound));
    LoopIdx y = loop_idx_axis(k, loop_open(k, LOOP_serial, c->p.y.span, LOOP_NO_BOUND));
    LoopIdx in_y = add3(k, loop_idx_scale(k, c->origin_y, c->p.y.step),
                        first_pixel(k, &c->p.y, c->phase_y), y);
    LoopVal inside_y = loop_range(k, in_y, 0, c->p.y.in);
    LoopIdx x = loop_idx_axis(k, loop_open(k, LOOP_vector, c->p.x.span, LOOP_NO_BOUND));
    LoopIdx in_x = add3(k, loop_idx_scale(k, c->origin_x, c->p.x.step),
                        first_pixel(k, &c->p.x, c->phase_x), x);
    LoopVal inside = loop_op2(k, OP_and, inside_y, loop_range(k, in_x, 0, c->p.x.in));
    LoopIdx channel = join(k, c->sample, c->p.ci, loop_idx_add(k, first, ci));
    LoopIdx at = join(k, join(k, channel, c->p.y.in, in_y), c->p.x.in, in_x);
    LoopVal v = loop_load_if(k, c->input, at, inside, 0.0);
    loop_store(k, c->copied, join(k, join(k, ci, c->p.y.span, y), c->p.x.span, x), v);
    for (int i = 0; i < 3; i++) loop_close(k);
}

/* --- the core --- */

static LoopIdx weight_at(const Conv *c, LoopIdx channel, LoopIdx tap_y, LoopIdx tap_x) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    tap_y = join(k, tap_y, y->phases, first_tap(k, y, c->phase_y));
    tap_x = join(k, tap_x, x->phases, first_tap(k, x, c->phase_x));
    LoopIdx at = join(k, join(k, c->pan, c->p.ci, channel), conv_packed_taps(y), tap_y);
    return loop_idx_scale(k, join(k, at, conv_packed_taps(x), tap_x), c->p.panel.lanes);
}

/* One tile of a unit over one piece of the input channels. */
typedef struct Tile {
    LoopIdx y, x;    /* first pixel in the block */
    LoopIdx kept;    /* where its accumulators lie while they are not in registers */
    LoopIdx channel; /* first of the piece */
    LoopBuf acc;
} Tile;

/* Multiplies one tap of one channel into the accumulators of pixels `from` .. `to` of the tile;
 * `input` is what pixel 0 meets. */
static void emit_step(Conv *c, const Tile *t, LoopIdx input, LoopIdx weight, int64_t from,
                      int64_t to) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    bool copied = c->p.border == CONV_copy;
    LoopVal w[2];
    for (int64_t v = 0; v < c->p.panel.vectors; v++)
        w[v] = loop_load_vector(k, c->b->workspace, loop_idx_plus(k, weight, v * LOOP_LANES));
    for (int64_t p = from; p < to; p++) {
        int64_t row = p / x->tile * y->step, col = p % x->tile * x->step;
        LoopIdx at = loop_idx_plus(k, input, row * (copied ? x->span : x->in) + col);
        LoopVal value = loop_splat(k, loop_load(k, copied ? c->copied : c->input, at));
        for (int64_t v = 0; v < c->p.panel.vectors; v++) {
            LoopIdx r = loop_idx(k, p * c->p.panel.vectors + v);
            loop_store(k, t->acc, r, loop_fma(k, value, w[v], loop_load(k, t->acc, r)));
        }
    }
}

/* All taps of one channel, with the input as it is or as it was copied. */
static void emit_taps(Conv *c, const Tile *t, LoopIdx ci) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_reduce, y->taps, LOOP_NO_BOUND));
    LoopIdx b = loop_idx_axis(k, loop_open(k, LOOP_reduce, x->taps, LOOP_NO_BOUND));
    LoopIdx channel = loop_idx_add(k, t->channel, ci), at;
    LoopIdx row = join(k, t->y, y->step, a), col = join(k, t->x, x->step, b);
    if (c->p.border == CONV_copy) {
        at = join(k, join(k, ci, y->span, row), x->span, col);
    } else {
        row = loop_idx_add(k, loop_idx_scale(k, c->origin_y, y->step), row);
        col = loop_idx_add(k, loop_idx_scale(k, c->origin_x, x->step), col);
        at = join(k, join(k, join(k, c->sample, c->p.ci, channel), y->in, row), x->in, col);
    }
    emit_step(c, t, at, weight_at(c, channel, a, b), 0, y->tile * x->tile);
    loop_close(k);
    loop_close(k);
}

/* Rows of taps that meet the input: count from `first`. */
typedef struct ClippedRows {
    LoopIdx first, count;
    LoopIdx in; /* input row that tap row 0 meets, negative in the border */
} ClippedRows;

static ClippedRows clip_rows(Conv *c, const Tile *t) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y;
    ClippedRows r;
    r.in = loop_idx_scale(k, loop_idx_add(k, c->origin_y, t->y), y->step);
    r.in = loop_idx_plus(k, r.in, -y->pad);
    LoopVal above = loop_index(k, loop_idx_scale(k, r.in, -1));
    LoopVal first = loop_op2(k, OP_max, above, loop_const(k, DT_i32, 0));
    r.first = loop_idx_val(k, first, 0, y->pad > 0 ? y->pad : 0);
    LoopVal below = loop_index(k, loop_idx_plus(k, loop_idx_scale(k, r.in, -1), y->in));
    LoopVal end = loop_op2(k, OP_min, below, loop_const(k, DT_i32, (double)y->taps));
    LoopIdx end_at = loop_idx_val(k, end, -y->kernel - y->out * y->step, y->taps);
    r.count = loop_idx_add(k, end_at, loop_idx_scale(k, r.first, -1));
    return r;
}

/* All taps of one channel that meet the input; the tile's first column is a constant. */
static void emit_taps_clipped(Conv *c, const Tile *t, ClippedRows rows, LoopIdx ci) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_reduce, y->taps, rows.count));
    a = loop_idx_add(k, rows.first, a);
    LoopIdx channel = loop_idx_add(k, t->channel, ci);
    LoopIdx plane = join(k, c->sample, c->p.ci, channel);
    LoopIdx row = join(k, plane, y->in, loop_idx_add(k, rows.in, a));
    int64_t col = loop_idx_info(k, t->x)->constant * x->step - x->pad;
    for (int64_t b = 0; b < x->taps; b++, col++) {
        int64_t from = col < 0 ? ceil_div(-col, x->step) : 0;
        int64_t to = col < x->in ? ceil_div(x->in - col, x->step) : 0;
        if (to > x->tile) to = x->tile;
        LoopIdx at = loop_idx_plus(k, loop_idx_scale(k, row, x->in), col);
        if (from < to) emit_step(c, t, at, weight_at(c, channel, a, loop_idx(k, b)), from, to);
    }
    loop_close(k);
}

/* Moves the accumulators of a tile between registers and memory. */
static void emit_kept(Conv *c, const Tile *t, bool load) {
    LoopKernel *k = c->k;
    int64_t count = c->p.y.tile * c->p.x.tile * c->p.panel.vectors;
    LoopVal zero = {0};
    bool fresh = load && c->p.channels.count == 1;
    if (fresh) zero = loop_splat(k, loop_const(k, DT_f32, 0.0));
    for (int64_t i = 0; i < count; i++) {
        LoopIdx at = loop_idx_plus(k, t->kept, i * LOOP_LANES), r = loop_idx(k, i);
        if (load)
            loop_store(k, t->acc, r, fresh ? zero : loop_load_vector(k, c->tile, at));
        else
            loop_store(k, c->tile, at, loop_load(k, t->acc, r));
    }
}

static void emit_tile(Conv *c, Tile *t) {
    LoopKernel *k = c->k;
    int64_t count = c->p.y.tile * c->p.x.tile * c->p.panel.vectors;
    t->acc = loop_reg(k, "acc", DT_f32, count, LOOP_LANES);
    emit_kept(c, t, true);
    ClippedRows rows = {0};
    if (c->p.border == CONV_clip) rows = clip_rows(c, t);
    bool whole = c->p.channels.count * c->p.channels.size == c->p.ci;
    LoopIdx bound = no_bound_if(k, whole, c->p.ci, t->channel);
    LoopIdx ci = loop_idx_axis(k, loop_open(k, LOOP_reduce, c->p.channels.size, bound));
    if (c->p.border == CONV_clip)
        emit_taps_clipped(c, t, rows, ci);
    else
        emit_taps(c, t, ci);
    loop_close(k);
    emit_kept(c, t, false);
}

/* [pixel][lane] of a tile -> [lane][pixel] of the block. A tile's pixels are neighbours there. */
static void emit_turn(Conv *c, Tile *t) {
    LoopKernel *k = c->k;
    int64_t pixels = c->p.y.tile * c->p.x.tile;
    loop_transpose(k, (LoopTranspose){.to = c->sum,
                                      .to_at = join(k, t->y, c->p.x.block.size, t->x),
                                      .to_stride = c->p.y.block.size * c->p.x.block.size,
                                      .from = c->tile,
                                      .from_at = t->kept,
                                      .from_stride = c->p.panel.lanes,
                                      .rows = loop_idx(k, pixels),
                                      .cols = loop_idx(k, c->p.panel.lanes)});
}

static void emit_tile_and_turn(Conv *c, Tile *t) {
    emit_tile(c, t);
    emit_turn(c, t);
}

/* Emits all tiles of the unit: loops, or loops over rows with a text for each tile of a row. */
static void emit_tiles(Conv *c, LoopIdx channel, void (*emit)(Conv *c, Tile *t)) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    int64_t floats = y->tile * x->tile * c->p.panel.lanes;
    int64_t texts = c->p.border == CONV_clip ? x->tiles : 1;
    Tile t = {.channel = channel};
    LoopIdx tile_y = loop_idx_axis(k, loop_open(k, LOOP_serial, y->tiles, LOOP_NO_BOUND));
    t.y = clamped_start(k, tile_y, y->tiles, y->tile, y->block.size);
    for (int64_t i = 0; i < texts; i++) {
        LoopIdx tile_x =
            loop_idx_axis(k, loop_open(k, LOOP_serial, x->tiles / texts, LOOP_NO_BOUND));
        t.x = clamped_start(k, tile_x, x->tiles, x->tile, x->block.size);
        if (texts > 1) {
            int64_t start = i * x->tile, last = x->block.size - x->tile;
            tile_x = loop_idx(k, i);
            t.x = loop_idx(k, start < last ? start : last);
        }
        LoopIdx kept = loop_idx_scale(k, join(k, tile_y, x->tiles, tile_x), floats);
        t.kept = c->p.channels.count > 1 ? kept : loop_idx(k, 0);
        emit(c, &t);
        loop_close(k);
    }
    loop_close(k);
}

/* The whole sum of a block, one tile after the other. */
static void emit_block(Conv *c) {
    LoopIdx first = loop_idx(c->k, 0);
    if (c->p.border == CONV_copy) emit_copy(c, first);
    emit_tiles(c, first, emit_tile_and_turn);
}

/* The whole sum of a block in tiles of channels and vectors of neighbouring pixels: each weight is
 * broadcast, and nothing has to be turned. */
static void emit_block_wide(Conv *c) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    int64_t vectors = c->p.wide, channels = LOOP_LANES / vectors;
    int64_t count = ceil_div(x->block.size, LOOP_LANES), area = y->block.size * x->block.size;
    LoopIdx row = loop_idx_axis(k, loop_open(k, LOOP_serial, y->block.size, LOOP_NO_BOUND));
    LoopIdx pair = loop_idx_axis(k, loop_open(k, LOOP_serial, count / vectors, LOOP_NO_BOUND));
    LoopIdx lane = loop_idx_axis(
        k, loop_open(k, LOOP_serial, c->p.panel.lanes / channels, LOOP_NO_BOUND));
    lane = loop_idx_scale(k, lane, channels);
    LoopIdx col[2];
    for (int64_t v = 0; v < vectors; v++)
        col[v] = clamped_start(k, loop_idx_plus(k, loop_idx_scale(k, pair, vectors), v), count,
                               LOOP_LANES, x->block.size);
    LoopBuf acc = loop_reg(k, "acc", DT_f32, channels * vectors, LOOP_LANES);
    LoopVal zero = loop_splat(k, loop_const(k, DT_f32, 0.0)), in[2];
    for (int64_t i = 0; i < channels * vectors; i++) loop_store(k, acc, loop_idx(k, i), zero);
    LoopIdx ci = loop_idx_axis(k, loop_open(k, LOOP_reduce, c->p.ci, LOOP_NO_BOUND));
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_reduce, y->taps, LOOP_NO_BOUND));
    LoopIdx b = loop_idx_axis(k, loop_open(k, LOOP_reduce, x->taps, LOOP_NO_BOUND));
    LoopIdx in_y = join(k, loop_idx_add(k, c->origin_y, row), y->step, a);
    LoopIdx at = join(k, join(k, join(k, c->sample, c->p.ci, ci), y->in, in_y), x->in, b);
    for (int64_t v = 0; v < vectors; v++)
        in[v] = loop_load_vector(k, c->input, add3(k, at, c->origin_x, col[v]));
    LoopIdx weight = loop_idx_add(k, weight_at(c, ci, a, b), lane);
    for (int64_t i = 0; i < channels; i++) {
        LoopVal w = loop_splat(k, loop_load(k, c->b->workspace, loop_idx_plus(k, weight, i)));
        for (int64_t v = 0; v < vectors; v++) {
            LoopIdx r = loop_idx(k, i * vectors + v);
            loop_store(k, acc, r, loop_fma(k, in[v], w, loop_load(k, acc, r)));
        }
    }
    for (int i = 0; i < 3; i++) loop_close(k);
    for (int64_t i = 0; i < channels * vectors; i++) {
        LoopIdx to = join(k, lane, area, join(k, row, x->block.size, col[i % vectors]));
        loop_store(k, c->sum, loop_idx_plus(k, to, i / vectors * area),
                   loop_load(k, acc, loop_idx(k, i)));
    }
    for (int i = 0; i < 3; i++) loop_close(k);
}

/* The same with the input channels in pieces; what was summed so far waits in c->tile. */
static void emit_block_in_pieces(Conv *c) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    int64_t floats = y->tiles * x->tiles * y->tile * x->tile * c->p.panel.lanes;
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_vector, floats, LOOP_NO_BOUND));
    loop_store(k, c->tile, i, loop_const(k, DT_f32, 0.0));
    loop_close(k);
    LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_serial, c->p.channels.count, LOOP_NO_BOUND));
    LoopIdx first = loop_idx_scale(k, piece, c->p.channels.size);
    if (c->p.border == CONV_copy) emit_copy(c, first);
    emit_tiles(c, first, emit_tile);
    loop_close(k);
    emit_tiles(c, first, emit_turn);
}

/* --- the epilogue --- */

/* Output pixels of this phase from the block's own first one on: the loop's bound. */
static LoopIdx pixels_left(Conv *c, const ConvAxis *a, LoopIdx block, LoopIdx phase) {
    LoopKernel *k = c->k;
    if (a->phases == 1)
        return no_bound_if(k, a->block.count * a->block.size == a->out, a->out,
                           loop_idx_scale(k, block, a->block.size));
    LoopIdx all = loop_idx_plus(k, loop_idx_scale(k, phase, -1), a->out + a->phases - 1);
    return loop_idx_add(k, loop_idx_div(k, all, a->phases),
                        loop_idx_scale(k, block, -a->block.size));
}

/* Stores the kernel's results at output pixel (y, x), given as one index y * width + x. */
static void emit_store(Conv *c, LoopIdx channel, LoopIdx pixel, LoopIdx at) {
    LoopKernel *k = c->k;
    const TypeInfo *t = val_info(c->b->body, node_out(c->anchor, 0));
    lower_body_bind(c->b, node_out(c->anchor, 0), loop_load(k, c->sum, at));
    LoopIdx index[4] = {c->sample, channel, loop_idx_div(k, pixel, t->dim[3]),
                        loop_idx_mod(k, pixel, t->dim[3])};
    lower_body_store_all(c->b, index);
}

static void emit_epilogue(Conv *c) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    int64_t lanes = c->p.panel.lanes, area = y->block.size * x->block.size;
    LoopIdx skipped_y = loop_idx_add(k, loop_idx_scale(k, c->block_y, y->block.size),
                                     loop_idx_scale(k, c->origin_y, -1));
    LoopIdx skipped_x = loop_idx_add(k, loop_idx_scale(k, c->block_x, x->block.size),
                                     loop_idx_scale(k, c->origin_x, -1));
    LoopIdx bound = no_bound_if(k, c->p.co % lanes == 0, c->p.co, loop_idx_scale(k, c->pan, lanes));
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_serial, lanes, bound));
    LoopIdx channel = join(k, c->pan, lanes, lane);
    LoopIdx rows_left = pixels_left(c, y, c->block_y, c->phase_y);
    if (x->phases == 1 && y->phases == 1 && x->block.size == x->out) { // rows are neighbours
        LoopIdx left = rows_left.id ? loop_idx_scale(k, rows_left, x->out) : LOOP_NO_BOUND;
        LoopIdx f = loop_idx_axis(k, loop_open(k, LOOP_vector, area, left));
        LoopIdx at = join(k, lane, area, join(k, skipped_y, x->out, f));
        emit_store(c, channel, join(k, c->block_y, area, f), at);
    } else {
        LoopIdx row = loop_idx_axis(k, loop_open(k, LOOP_serial, y->block.size, rows_left));
        LoopIdx cols_left = pixels_left(c, x, c->block_x, c->phase_x);
        LoopIdx col = loop_idx_axis(k, loop_open(k, LOOP_vector, x->block.size, cols_left));
        LoopIdx at = add3(k, join(k, loop_idx_add(k, skipped_y, row), x->block.size, skipped_x),
                          col, loop_idx_scale(k, lane, area));
        LoopIdx out_y = join(k, join(k, c->block_y, y->block.size, row), y->phases, c->phase_y);
        LoopIdx out_x = join(k, join(k, c->block_x, x->block.size, col), x->phases, c->phase_x);
        emit_store(c, channel, join(k, out_y, x->out, out_x), at);
        loop_close(k);
    }
    loop_close(k);
    loop_close(k);
}

/* --- units --- */

/* Takes the unit's numbers out of the grid axis, the last one first. */
static LoopIdx take(LoopKernel *k, LoopIdx *u, int64_t extent) {
    LoopIdx i = loop_idx_mod(k, *u, extent);
    *u = loop_idx_div(k, *u, extent);
    return i;
}

static void open_unit(Conv *c) {
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->p.y, *x = &c->p.x;
    int64_t phases = y->phases * x->phases, blocks = y->block.count * x->block.count;
    bool panel_inside = conv_packed_floats(&c->p) <= WEIGHT_FLOATS_SMALL;
    int64_t units = c->p.n * c->p.panel.count * phases * blocks;
    LoopIdx u = loop_idx_axis(k, loop_open(k, LOOP_grid, units, LOOP_NO_BOUND));
    if (panel_inside) c->pan = take(k, &u, c->p.panel.count);
    c->phase_x = take(k, &u, x->phases);
    c->phase_y = take(k, &u, y->phases);
    c->block_x = take(k, &u, x->block.count);
    c->block_y = take(k, &u, y->block.count);
    c->sample = panel_inside ? u : take(k, &u, c->p.n);
    if (!panel_inside) c->pan = u;
    int64_t height = ceil_div(y->out, y->phases), width = ceil_div(x->out, x->phases);
    c->origin_y = clamped_start(k, c->block_y, y->block.count, y->block.size, height);
    c->origin_x = clamped_start(k, c->block_x, x->block.count, x->block.size, width);
}

static void emit_unit(Conv *c) {
    LoopKernel *k = c->k;
    bool pieces = c->p.channels.count > 1;
    int64_t lanes = c->p.panel.lanes, area = c->p.y.block.size * c->p.x.block.size;
    int64_t tiles = pieces ? c->p.y.tiles * c->p.x.tiles : 1;
    open_unit(c);
    c->sum = loop_local(k, "sum", DT_f32, lanes * area);
    if (!c->p.wide)
        c->tile = loop_local(k, "tile", DT_f32, tiles * c->p.y.tile * c->p.x.tile * lanes);
    if (c->p.border == CONV_copy)
        c->copied = loop_local(k, "in", DT_f32, c->p.channels.size * c->p.y.span * c->p.x.span);
    if (c->p.wide)
        emit_block_wide(c);
    else if (pieces)
        emit_block_in_pieces(c);
    else
        emit_block(c);
    emit_epilogue(c);
    loop_close(k);
}

static LoopKernel *lower_direct(LowerContext *ctx, const Graph *g, const Node *kernel, Op op) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    Conv c = {.b = b, .k = b->k, .anchor = lower_body_anchor(b, op)};
    ConvSizes s = split_conv_sizes(b->body, c.anchor);
    if (type_elems(b->body->mod->types, val_type(b->body, node_out(c.anchor, 0))) == 0) return b->k;
    c.input = lower_body_input(b, c.anchor->in[0]);
    c.weight = lower_body_input(b, c.anchor->in[1]);
    c.p = conv_plan(&s, op == OP_conv2d_dx);
    emit_pack(&c);
    emit_unit(&c);
    return b->k;
}

LoopKernel *lower_conv2d(LowerContext *ctx, const Graph *g, const Node *kernel) {
    return lower_direct(ctx, g, kernel, OP_conv2d);
}

LoopKernel *lower_conv2d_dx(LowerContext *ctx, const Graph *g, const Node *kernel) {
    return lower_direct(ctx, g, kernel, OP_conv2d_dx);
}
