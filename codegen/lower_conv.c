/* lower_conv.c - convolutions and their input gradients as direct loops.
 *
 * Reads   x or dy [n, c, h, w] and w, with all sizes known.
 * Writes  two grid loops: one packs the weights into panels of output channels, innermost in
 *         memory; the other takes units of work: a block of output pixels, a panel.
 *
 * A unit holds a tile of pixels times the panel in registers and runs over input channels and taps:
 * each input value is broadcast and multiplied with the panel's vectors. A finished tile is turned
 * into the order of the result, [channel][pixel], in a local block; when all tiles are done the
 * epilogue runs over that block. Where the input has a border or holes, the unit's part of it is
 * first copied into a local array that holds the zeros.
 *
 * The input gradient is the same computation with channels exchanged and the kernel reversed. With
 * stride s its pixels fall into s * s phases, each of which meets every s-th tap only: phases are one
 * more grid axis, and the kernel is padded with zero taps to whole periods.
 *
 * Every element is one chain of multiply-adds over (channel, tap), whatever the cut into units, so
 * threads and tiles change no bit. Tiles at an end overlap their neighbours and compute twice the
 * same.
 */
#include "codegen/conv_tile.h"
#include "codegen/lower.h"

enum {
    UNITS_MIN = 16,
    BLOCK_FLOATS_MAX = 6144,   /* results of a unit: half of the L1 cache */
    INPUT_FLOATS_MAX = 16384,  /* copied input of a unit */
    WEIGHT_FLOATS_MAX = 131072 /* packed weights that a unit runs over at once: in the L2 cache */
};

/* One direction of the plane, as this kernel computes it. */
typedef struct ConvAxis {
    int64_t in, out;  /* extents */
    int64_t kernel;   /* taps of the weight */
    int64_t taps;     /* taps that one output pixel meets */
    int64_t step;     /* input pixels from one output pixel to the next of the same phase */
    int64_t phases;   /* interleaved sets of output pixels */
    int64_t pad;      /* zeros before the input; negative: pixels that are left out */
    SplitBlocks block; /* of output pixels of one phase */
    int64_t tile, tiles;
    int64_t span;     /* input pixels of a block */
} ConvAxis;

typedef struct Conv {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    bool backward;
    int64_t n, ci, co; /* of this kernel's input and output */
    ConvAxis y, x;
    ConvPanels panel;
    SplitBlocks channels; /* input channels summed before the next piece of weights is taken */
    bool local;           /* the input is copied */
    LoopBuf input, weight, sum, part, tile, copied;
    /* of the current unit */
    LoopIdx sample, pan, phase_y, phase_x, block_y, block_x, origin_y, origin_x;
} Conv;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* --- sizes --- */

static ConvAxis forward_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad)
{
    return (ConvAxis){.in = in, .out = out, .kernel = kernel, .taps = kernel, .step = stride,
                      .phases = 1, .pad = pad};
}

static ConvAxis backward_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad)
{
    return (ConvAxis){.in = in, .out = out, .kernel = kernel, .step = 1, .phases = stride,
                      .taps = split_conv_taps(kernel, stride) / stride, .pad = kernel - 1 - pad};
}

static int64_t span_of(const ConvAxis *a)
{
    return (a->block.size - 1) * a->step + a->taps;
}

/* Cuts the plane into blocks: the results fit into the cache, and there is work for all threads. */
static void choose_blocks(Conv *c)
{
    ConvAxis *y = &c->y, *x = &c->x;
    int64_t height = ceil_div(y->out, y->phases), width = ceil_div(x->out, x->phases);
    int64_t pixels = BLOCK_FLOATS_MAX / c->panel.lanes;
    x->block = split_blocks(width, pixels);
    int64_t units = c->n * c->panel.count * y->phases * x->phases * x->block.count;
    int64_t blocks = units > 0 ? ceil_div(UNITS_MIN, units) : 1;
    int64_t rows = pixels / x->block.size;
    if (blocks > 1 && rows > ceil_div(height, blocks)) rows = ceil_div(height, blocks);
    y->block = split_blocks(height, rows);
    c->local = c->backward || y->pad != 0 || x->pad != 0;
    if (c->backward && y->phases == 1 && x->phases == 1 && y->pad == 0 && x->pad == 0) c->local = false;
    while (c->local && span_of(y) * span_of(x) > INPUT_FLOATS_MAX) {
        if (y->block.size > 1)
            y->block = split_blocks(height, y->block.size / 2);
        else if (x->block.size > 1)
            x->block = split_blocks(width, x->block.size / 2);
        else
            break;
    }
}

static void choose_sizes(Conv *c, const ConvSizes *s)
{
    c->n = s->n;
    c->ci = c->backward ? s->co : s->ci;
    c->co = c->backward ? s->ci : s->co;
    c->y = c->backward ? backward_axis(s->ho, s->hi, s->kh, s->sh, s->ph)
                       : forward_axis(s->hi, s->ho, s->kh, s->sh, s->ph);
    c->x = c->backward ? backward_axis(s->wo, s->wi, s->kw, s->sw, s->pw)
                       : forward_axis(s->wi, s->wo, s->kw, s->sw, s->pw);
    c->panel = split_conv_panels(c->co);
    choose_blocks(c);
    ConvAxis *y = &c->y, *x = &c->x;
    ConvPixelTile tile = conv_tile_pixels(c->panel.vectors, y->block.size, x->block.size);
    y->tile = tile.rows;
    x->tile = tile.cols;
    y->tiles = ceil_div(y->block.size, y->tile);
    x->tiles = ceil_div(x->block.size, x->tile);
    y->span = span_of(y);
    x->span = span_of(x);
    int64_t most = WEIGHT_FLOATS_MAX / (y->taps * x->taps * c->panel.lanes);
    int64_t room = INPUT_FLOATS_MAX / (y->span * x->span);
    if (c->local && room < most) most = room;
    c->channels = split_blocks(c->ci, most);
}

/* --- small helpers over indices --- */

static LoopIdx add3(LoopKernel *k, LoopIdx a, LoopIdx b, LoopIdx c)
{
    return loop_idx_add(k, loop_idx_add(k, a, b), c);
}

/* first * extent + second */
static LoopIdx join(LoopKernel *k, LoopIdx first, int64_t extent, LoopIdx second)
{
    return loop_idx_add(k, loop_idx_scale(k, first, extent), second);
}

/* Start of piece `i` of `count` pieces of `size`, moved back so that it ends within `extent`. */
static LoopIdx clamped_start(LoopKernel *k, LoopIdx i, int64_t count, int64_t size, int64_t extent)
{
    if (count * size <= extent) return loop_idx_scale(k, i, size);
    LoopVal start = loop_index(k, loop_idx_scale(k, i, size));
    LoopVal last = loop_const(k, DT_i32, (double)(extent - size));
    return loop_idx_val(k, loop_op2(k, OP_min, start, last), 0, extent - size);
}

static LoopIdx no_bound_if(LoopKernel *k, bool whole, int64_t extent, LoopIdx start)
{
    if (whole) return LOOP_NO_BOUND;
    return loop_idx_plus(k, loop_idx_scale(k, start, -1), extent);
}

/* First tap of a phase: taps with (phase + tap - pad) divisible by the number of phases. */
static LoopIdx first_tap(LoopKernel *k, const ConvAxis *a, LoopIdx phase)
{
    int64_t s = a->phases, base = (a->pad % s + s) % s + s;
    return loop_idx_mod(k, loop_idx_plus(k, loop_idx_scale(k, phase, -1), base), s);
}

/* Input pixel that output pixel 0 of the phase meets with its first tap (negative: border). */
static LoopIdx first_pixel(LoopKernel *k, const ConvAxis *a, LoopIdx phase)
{
    int64_t s = a->phases, up = a->pad > 0 ? a->pad / s + 1 : 0;
    LoopIdx at = loop_idx_add(k, phase, first_tap(k, a, phase));
    LoopIdx shifted = loop_idx_plus(k, at, s * up - a->pad);
    return loop_idx_plus(k, loop_idx_div(k, shifted, s), -up);
}

/* --- packing --- */

static int64_t packed_taps(const ConvAxis *a)
{
    return a->taps * a->phases;
}

/* workspace[panel][ci][tap y][tap x][lane] = weight, 0 outside of it. */
static void emit_pack(Conv *c)
{
    LoopKernel *k = c->k;
    int64_t ty = packed_taps(&c->y), tx = packed_taps(&c->x), lanes = c->panel.lanes;
    int64_t channels_in = c->ci > 0 ? c->ci : 1;
    LoopIdx u = loop_idx_axis(k, loop_open(k, LOOP_grid, c->panel.count * c->ci, LOOP_NO_BOUND));
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_serial, ty, LOOP_NO_BOUND));
    LoopIdx b = loop_idx_axis(k, loop_open(k, LOOP_serial, tx, LOOP_NO_BOUND));
    LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, lanes, LOOP_NO_BOUND));
    LoopIdx co = join(k, loop_idx_div(k, u, channels_in), lanes, lane);
    LoopIdx ci = loop_idx_mod(k, u, channels_in);
    LoopIdx tap_y = a, tap_x = b;
    if (c->backward) {
        tap_y = loop_idx_plus(k, loop_idx_scale(k, a, -1), c->y.kernel - 1);
        tap_x = loop_idx_plus(k, loop_idx_scale(k, b, -1), c->x.kernel - 1);
    }
    LoopIdx channels = c->backward ? join(k, ci, c->co, co) : join(k, co, c->ci, ci);
    LoopIdx at = join(k, join(k, channels, c->y.kernel, tap_y), c->x.kernel, tap_x);
    LoopVal v;
    if (c->co % lanes == 0 && ty == c->y.kernel && tx == c->x.kernel) {
        v = loop_load(k, c->weight, at);
    } else {
        LoopVal inside = loop_range(k, co, 0, c->co);
        inside = loop_op2(k, OP_and, inside, loop_range(k, tap_y, 0, c->y.kernel));
        inside = loop_op2(k, OP_and, inside, loop_range(k, tap_x, 0, c->x.kernel));
        v = loop_load_if(k, c->weight, at, inside, 0.0);
    }
    loop_store(k, c->b->workspace, join(k, join(k, join(k, u, ty, a), tx, b), lanes, lane), v);
    for (int i = 0; i < 4; i++) loop_close(k);
}

/* --- the copied input --- */

/* copied[channel][span y][span x], channels from `first`; zeros outside of the input. */
static void emit_copy(Conv *c, LoopIdx first)
{
    LoopKernel *k = c->k;
    bool whole = c->channels.count * c->channels.size == c->ci;
    LoopIdx bound = no_bound_if(k, whole, c->ci, first);
    LoopIdx ci = loop_idx_axis(k, loop_open(k, LOOP_serial, c->channels.size, bound));
    LoopIdx y = loop_idx_axis(k, loop_open(k, LOOP_serial, c->y.span, LOOP_NO_BOUND));
    LoopIdx in_y = add3(k, loop_idx_scale(k, c->origin_y, c->y.step),
                        first_pixel(k, &c->y, c->phase_y), y);
    LoopVal inside_y = loop_range(k, in_y, 0, c->y.in);
    LoopIdx x = loop_idx_axis(k, loop_open(k, LOOP_vector, c->x.span, LOOP_NO_BOUND));
    LoopIdx in_x = add3(k, loop_idx_scale(k, c->origin_x, c->x.step),
                        first_pixel(k, &c->x, c->phase_x), x);
    LoopVal inside = loop_op2(k, OP_and, inside_y, loop_range(k, in_x, 0, c->x.in));
    LoopIdx channel = join(k, c->sample, c->ci, loop_idx_add(k, first, ci));
    LoopIdx at = join(k, join(k, channel, c->y.in, in_y), c->x.in, in_x);
    LoopVal v = loop_load_if(k, c->input, at, inside, 0.0);
    loop_store(k, c->copied, join(k, join(k, ci, c->y.span, y), c->x.span, x), v);
    for (int i = 0; i < 3; i++) loop_close(k);
}

/* --- the core --- */

/* Offset of the input value at (channel of the piece, row, column) relative to the unit's origin. */
static LoopIdx input_at(const Conv *c, LoopIdx first, LoopIdx ci, LoopIdx y, LoopIdx x)
{
    LoopKernel *k = c->k;
    if (c->local) return join(k, join(k, ci, c->y.span, y), c->x.span, x);
    LoopIdx channel = join(k, c->sample, c->ci, loop_idx_add(k, first, ci));
    LoopIdx row = loop_idx_add(k, loop_idx_scale(k, c->origin_y, c->y.step), y);
    LoopIdx col = loop_idx_add(k, loop_idx_scale(k, c->origin_x, c->x.step), x);
    return join(k, join(k, channel, c->y.in, row), c->x.in, col);
}

static LoopIdx weight_at(const Conv *c, LoopIdx channel, LoopIdx tap_y, LoopIdx tap_x)
{
    LoopKernel *k = c->k;
    LoopIdx y = join(k, tap_y, c->y.phases, first_tap(k, &c->y, c->phase_y));
    LoopIdx x = join(k, tap_x, c->x.phases, first_tap(k, &c->x, c->phase_x));
    LoopIdx at = join(k, join(k, c->pan, c->ci, channel), packed_taps(&c->y), y);
    return loop_idx_scale(k, join(k, at, packed_taps(&c->x), x), c->panel.lanes);
}

/* Multiplies one tap of one channel into the accumulators. */
static void emit_step(Conv *c, LoopBuf acc, LoopIdx input, LoopIdx weight)
{
    LoopKernel *k = c->k;
    int64_t row = c->local ? c->x.span : c->x.in;
    LoopBuf from = c->local ? c->copied : c->input;
    LoopVal w[2];
    for (int64_t v = 0; v < c->panel.vectors; v++)
        w[v] = loop_load_vector(k, c->b->workspace, loop_idx_plus(k, weight, v * LOOP_LANES));
    for (int64_t p = 0; p < c->y.tile * c->x.tile; p++) {
        int64_t offset = p / c->x.tile * c->y.step * row + p % c->x.tile * c->x.step;
        LoopVal x = loop_splat(k, loop_load(k, from, loop_idx_plus(k, input, offset)));
        for (int64_t v = 0; v < c->panel.vectors; v++) {
            LoopIdx at = loop_idx(k, p * c->panel.vectors + v);
            loop_store(k, acc, at, loop_fma(k, x, w[v], loop_load(k, acc, at)));
        }
    }
}

/* Local memory of the accumulators of one tile while they are not in registers. */
static LoopIdx tile_at(const Conv *c, LoopIdx tile_y, LoopIdx tile_x)
{
    LoopKernel *k = c->k;
    if (c->channels.count == 1) return loop_idx(k, 0);
    int64_t floats = c->y.tile * c->x.tile * c->panel.lanes;
    return loop_idx_scale(k, join(k, tile_y, c->x.tiles, tile_x), floats);
}

/* [pixel][lane] of a tile -> [lane][pixel] of the block. A tile's pixels are neighbours there. */
static void emit_turn(Conv *c, LoopIdx from, LoopIdx y, LoopIdx x)
{
    LoopKernel *k = c->k;
    int64_t pixels = c->y.tile * c->x.tile;
    loop_transpose(k, (LoopTranspose){
        .to = c->sum, .to_at = join(k, y, c->x.block.size, x),
        .to_stride = c->y.block.size * c->x.block.size,
        .from = c->tile, .from_at = from, .from_stride = c->panel.lanes,
        .rows = loop_idx(k, pixels), .cols = loop_idx(k, c->panel.lanes)});
}

/* The accumulators of one tile over the input channels from `first`. */
static void emit_tile(Conv *c, LoopIdx first, LoopIdx y, LoopIdx x, LoopIdx kept)
{
    LoopKernel *k = c->k;
    int64_t count = c->y.tile * c->x.tile * c->panel.vectors;
    bool once = c->channels.count == 1;
    LoopBuf acc = loop_reg(k, "acc", DT_f32, count, LOOP_LANES);
    LoopVal zero = loop_splat(k, loop_const(k, DT_f32, 0.0));
    for (int64_t i = 0; i < count; i++) {
        LoopIdx at = loop_idx_plus(k, kept, i * LOOP_LANES);
        loop_store(k, acc, loop_idx(k, i), once ? zero : loop_load_vector(k, c->tile, at));
    }
    bool whole = c->channels.count * c->channels.size == c->ci;
    LoopIdx bound = no_bound_if(k, whole, c->ci, first);
    LoopIdx ci = loop_idx_axis(k, loop_open(k, LOOP_reduce, c->channels.size, bound));
    LoopIdx a = loop_idx_axis(k, loop_open(k, LOOP_reduce, c->y.taps, LOOP_NO_BOUND));
    LoopIdx b = loop_idx_axis(k, loop_open(k, LOOP_reduce, c->x.taps, LOOP_NO_BOUND));
    LoopIdx row = join(k, y, c->y.step, a), col = join(k, x, c->x.step, b);
    emit_step(c, acc, input_at(c, first, ci, row, col),
              weight_at(c, loop_idx_add(k, first, ci), a, b));
    for (int i = 0; i < 3; i++) loop_close(k);
    for (int64_t i = 0; i < count; i++) {
        LoopIdx at = loop_idx_plus(k, kept, i * LOOP_LANES);
        loop_store(k, c->tile, at, loop_load(k, acc, loop_idx(k, i)));
    }
}

typedef struct Tile {
    LoopIdx y, x; /* first pixel in the block */
    LoopIdx kept;
} Tile;

static Tile open_tiles(Conv *c)
{
    LoopKernel *k = c->k;
    Tile t;
    LoopIdx tile_y = loop_idx_axis(k, loop_open(k, LOOP_serial, c->y.tiles, LOOP_NO_BOUND));
    t.y = clamped_start(k, tile_y, c->y.tiles, c->y.tile, c->y.block.size);
    LoopIdx tile_x = loop_idx_axis(k, loop_open(k, LOOP_serial, c->x.tiles, LOOP_NO_BOUND));
    t.x = clamped_start(k, tile_x, c->x.tiles, c->x.tile, c->x.block.size);
    t.kept = tile_at(c, tile_y, tile_x);
    return t;
}

static void close_tiles(Conv *c)
{
    loop_close(c->k);
    loop_close(c->k);
}

/* The whole sum of a block, one tile after the other. */
static void emit_block(Conv *c)
{
    LoopIdx first = loop_idx(c->k, 0);
    if (c->local) emit_copy(c, first);
    Tile t = open_tiles(c);
    emit_tile(c, first, t.y, t.x, t.kept);
    emit_turn(c, t.kept, t.y, t.x);
    close_tiles(c);
}

/* The same with the input channels in pieces; what was summed so far waits in c->tile. */
static void emit_block_in_pieces(Conv *c)
{
    LoopKernel *k = c->k;
    int64_t floats = c->y.tiles * c->x.tiles * c->y.tile * c->x.tile * c->panel.lanes;
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_vector, floats, LOOP_NO_BOUND));
    loop_store(k, c->tile, i, loop_const(k, DT_f32, 0.0));
    loop_close(k);
    LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_serial, c->channels.count, LOOP_NO_BOUND));
    LoopIdx first = loop_idx_scale(k, piece, c->channels.size);
    if (c->local) emit_copy(c, first);
    Tile t = open_tiles(c);
    emit_tile(c, first, t.y, t.x, t.kept);
    close_tiles(c);
    loop_close(k);
    t = open_tiles(c);
    emit_turn(c, t.kept, t.y, t.x);
    close_tiles(c);
}

/* --- the epilogue --- */

/* Output pixels of this phase from the block's own first one on: the loop's bound. */
static LoopIdx pixels_left(Conv *c, const ConvAxis *a, LoopIdx block, LoopIdx phase)
{
    LoopKernel *k = c->k;
    if (a->phases == 1)
        return no_bound_if(k, a->block.count * a->block.size == a->out, a->out,
                           loop_idx_scale(k, block, a->block.size));
    LoopIdx all = loop_idx_plus(k, loop_idx_scale(k, phase, -1), a->out + a->phases - 1);
    return loop_idx_add(k, loop_idx_div(k, all, a->phases),
                        loop_idx_scale(k, block, -a->block.size));
}

/* Stores the kernel's results at output pixel (y, x), given as one index y * width + x. */
static void emit_store(Conv *c, LoopIdx channel, LoopIdx pixel, LoopIdx at)
{
    LoopKernel *k = c->k;
    const TypeInfo *t = val_info(c->b->body, node_out(c->anchor, 0));
    lower_body_bind(c->b, node_out(c->anchor, 0), loop_load(k, c->sum, at));
    LoopIdx index[4] = {c->sample, channel, loop_idx_div(k, pixel, t->dim[3]),
                        loop_idx_mod(k, pixel, t->dim[3])};
    lower_body_store_all(c->b, index);
}

static void emit_epilogue(Conv *c)
{
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->y, *x = &c->x;
    int64_t lanes = c->panel.lanes, area = y->block.size * x->block.size;
    LoopIdx skipped_y = loop_idx_add(k, loop_idx_scale(k, c->block_y, y->block.size),
                                     loop_idx_scale(k, c->origin_y, -1));
    LoopIdx skipped_x = loop_idx_add(k, loop_idx_scale(k, c->block_x, x->block.size),
                                     loop_idx_scale(k, c->origin_x, -1));
    LoopIdx bound = no_bound_if(k, c->co % lanes == 0, c->co, loop_idx_scale(k, c->pan, lanes));
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
static LoopIdx take(LoopKernel *k, LoopIdx *u, int64_t extent)
{
    LoopIdx i = loop_idx_mod(k, *u, extent);
    *u = loop_idx_div(k, *u, extent);
    return i;
}

static void open_unit(Conv *c)
{
    LoopKernel *k = c->k;
    const ConvAxis *y = &c->y, *x = &c->x;
    int64_t phases = y->phases * x->phases, blocks = y->block.count * x->block.count;
    int64_t weights = c->panel.count * c->panel.lanes * c->ci * packed_taps(y) * packed_taps(x);
    bool panel_inside = weights <= WEIGHT_FLOATS_MAX;
    int64_t units = c->n * c->panel.count * phases * blocks;
    LoopIdx u = loop_idx_axis(k, loop_open(k, LOOP_grid, units, LOOP_NO_BOUND));
    if (panel_inside) c->pan = take(k, &u, c->panel.count);
    c->phase_x = take(k, &u, x->phases);
    c->phase_y = take(k, &u, y->phases);
    c->block_x = take(k, &u, x->block.count);
    c->block_y = take(k, &u, y->block.count);
    c->sample = panel_inside ? u : take(k, &u, c->n);
    if (!panel_inside) c->pan = u;
    int64_t height = ceil_div(y->out, y->phases), width = ceil_div(x->out, x->phases);
    c->origin_y = clamped_start(k, c->block_y, y->block.count, y->block.size, height);
    c->origin_x = clamped_start(k, c->block_x, x->block.count, x->block.size, width);
}

static void emit_unit(Conv *c)
{
    LoopKernel *k = c->k;
    bool pieces = c->channels.count > 1;
    int64_t lanes = c->panel.lanes, area = c->y.block.size * c->x.block.size;
    int64_t tiles = pieces ? c->y.tiles * c->x.tiles : 1;
    open_unit(c);
    c->sum = loop_local(k, "sum", DT_f32, lanes * area);
    c->tile = loop_local(k, "tile", DT_f32, tiles * c->y.tile * c->x.tile * lanes);
    if (c->local)
        c->copied = loop_local(k, "in", DT_f32, c->channels.size * c->y.span * c->x.span);
    if (pieces)
        emit_block_in_pieces(c);
    else
        emit_block(c);
    emit_epilogue(c);
    loop_close(k);
}

static LoopKernel *lower_direct(LowerContext *ctx, const Graph *g, const Node *kernel, Op op)
{
    LowerBody *b = lower_body_new(ctx, g, kernel);
    Conv c = {.b = b, .k = b->k, .anchor = lower_body_anchor(b, op), .backward = op == OP_conv2d_dx};
    ConvSizes s = split_conv_sizes(b->body, c.anchor);
    if (type_elems(b->body->mod->types, val_type(b->body, node_out(c.anchor, 0))) == 0) return b->k;
    c.input = lower_body_input(b, c.anchor->in[0]);
    c.weight = lower_body_input(b, c.anchor->in[1]);
    choose_sizes(&c, &s);
    emit_pack(&c);
    emit_unit(&c);
    return b->k;
}

LoopKernel *lower_conv2d(LowerContext *ctx, const Graph *g, const Node *kernel)
{
    return lower_direct(ctx, g, kernel, OP_conv2d);
}

LoopKernel *lower_conv2d_dx(LowerContext *ctx, const Graph *g, const Node *kernel)
{
    return lower_direct(ctx, g, kernel, OP_conv2d_dx);
}
