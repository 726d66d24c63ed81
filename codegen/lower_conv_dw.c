/* lower_conv_dw.c - weight gradients of convolutions as direct loops.
 *
 * Reads   x [n, ci, hi, wi] and dy [n, co, ho, wo], with all sizes known.
 * Writes  two grid loops. The first takes units of work: a part of the pixel blocks, a panel of
 *         output channels, a piece of the input channels. The second adds the parts in order and
 *         runs the epilogue.
 *
 * In a unit, dy of a block of pixels is turned to [pixel][lane], then tiles of (input channel, tap)
 * times the panel are held in registers while the pixels of the block go by: each input value is
 * broadcast and multiplied with the panel's vectors. The sum of a block is added to the part's copy
 * of the gradient in the workspace, [panel][ci][kh][kw][lane]. Where padding makes taps fall
 * outside of x, the block's part of x is first copied into a local array that holds the zeros.
 *
 * The cut into blocks and parts is ir/split.h's and depends on the sizes alone.
 */
#include "codegen/conv_tile.h"
#include "codegen/lower.h"

enum { SUM_COLUMNS = 64, COPIED_FLOATS_MAX = 65536 };

typedef struct ConvDw {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    ConvSizes s;
    ConvDwSplit d;
    ConvTapTile tile;
    bool local;             /* x is copied */
    int64_t span_y, span_x; /* pixels of x that a block of dy meets */
    LoopBuf x, dy, turned, copied;
    /* of the current unit and block of pixels */
    LoopIdx part, panel, first; /* first input channel */
    LoopIdx sample, origin_y, origin_x;
    LoopIdx rows, cols; /* bounds of loops over pixels */
    LoopIdx next;       /* dy of the next block: its first pixel in the panel's first channel */
} ConvDw;

/* --- small helpers over indices --- */

/* first * extent + second */
static LoopIdx join(LoopKernel *k, LoopIdx first, int64_t extent, LoopIdx second) {
    return loop_idx_add(k, loop_idx_scale(k, first, extent), second);
}

/* extent - start: what is left of an extent, as the bound of a loop over pieces of it. */
static LoopIdx left_of(LoopKernel *k, int64_t extent, LoopIdx start) {
    return loop_idx_plus(k, loop_idx_scale(k, start, -1), extent);
}

static LoopIdx open_axis(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx bound) {
    return loop_idx_axis(k, loop_open(k, kind, extent, bound));
}

/* Start of part i of `parts` even parts of `extent`. */
static LoopIdx part_start(LoopKernel *k, LoopIdx i, int64_t extent, int64_t parts) {
    return loop_idx_div(k, loop_idx_scale(k, i, extent), parts);
}

/* --- one block of pixels --- */

/* turned[row][col][lane] = dy of the block. */
static void emit_turn(ConvDw *c) {
    LoopKernel *k = c->k;
    const ConvSizes *s = &c->s;
    int64_t lanes = c->d.panel.lanes;
    LoopIdx channel =
        loop_idx_add(k, loop_idx_scale(k, c->sample, s->co), loop_idx_scale(k, c->panel, lanes));
    LoopIdx lanes_here = loop_idx(k, lanes);
    if (s->co % lanes != 0) {
        LoopVal left = loop_index(k, left_of(k, s->co, loop_idx_scale(k, c->panel, lanes)));
        LoopVal least = loop_op2(k, OP_min, left, loop_const(k, DT_i32, (double)lanes));
        lanes_here = c->d.panel.count == 1 ? loop_idx(k, s->co) : loop_idx_val(k, least, 1, lanes);
    }
    bool flat = c->d.cols.count == 1 && !c->rows.id; // the block's rows are neighbours
    LoopIdx row =
        open_axis(k, LOOP_serial, flat ? 1 : c->d.rows.size, flat ? LOOP_NO_BOUND : c->rows);
    LoopIdx cols = loop_idx(k, flat ? c->d.rows.size * s->wo : c->d.cols.size);
    if (c->cols.id) {
        LoopVal least = loop_op2(k, OP_min, loop_index(k, c->cols),
                                 loop_const(k, DT_i32, (double)c->d.cols.size));
        cols = loop_idx_val(k, least, 1, c->d.cols.size);
    }
    LoopIdx y = loop_idx_add(k, c->origin_y, row);
    loop_transpose(
        k, (LoopTranspose){.to = c->turned,
                           .to_at = loop_idx_scale(k, row, c->d.cols.size * lanes),
                           .to_stride = lanes,
                           .from = c->dy,
                           .from_at = join(k, join(k, channel, s->ho, y), s->wo, c->origin_x),
                           .from_stride = s->ho * s->wo,
                           .rows = lanes_here,
                           .cols = cols});
    loop_close(k);
}

/* Asks for dy of the next block while tile `i` of `tiles` is summed: it lies in many short pieces,
 * which the processor does not foresee. */
static void emit_ask(ConvDw *c, LoopIdx i, int64_t tiles) {
    LoopKernel *k = c->k;
    if (c->d.cols.count > 1 || c->d.blocks == 1) return;
    int64_t each = (c->d.panel.lanes + tiles - 1) / tiles;
    int64_t vectors = (c->d.rows.size * c->s.wo + LOOP_LANES - 1) / LOOP_LANES;
    LoopIdx lane = open_axis(k, LOOP_serial, each, LOOP_NO_BOUND);
    LoopIdx v = open_axis(k, LOOP_serial, vectors, LOOP_NO_BOUND);
    LoopIdx plane = loop_idx_scale(k, join(k, i, each, lane), c->s.ho * c->s.wo);
    loop_prefetch(k, c->dy, loop_idx_add(k, c->next, join(k, v, LOOP_LANES, plane)));
    loop_close(k);
    loop_close(k);
}

/* copied[channel of the tile][span y][span x], zeros outside of x. */
static void emit_copy(ConvDw *c, LoopIdx channel, int64_t channels) {
    LoopKernel *k = c->k;
    const ConvSizes *s = &c->s;
    LoopIdx ci = open_axis(k, LOOP_serial, channels, LOOP_NO_BOUND);
    LoopIdx y = open_axis(k, LOOP_serial, c->span_y, LOOP_NO_BOUND);
    LoopIdx in_y = loop_idx_plus(k, join(k, c->origin_y, s->sh, y), -s->ph);
    LoopVal inside_y = loop_range(k, in_y, 0, s->hi);
    LoopIdx x = open_axis(k, LOOP_vector, c->span_x, LOOP_NO_BOUND);
    LoopIdx in_x = loop_idx_plus(k, join(k, c->origin_x, s->sw, x), -s->pw);
    LoopVal inside = loop_op2(k, OP_and, inside_y, loop_range(k, in_x, 0, s->wi));
    LoopIdx plane = join(k, c->sample, s->ci, loop_idx_add(k, channel, ci));
    LoopIdx at = join(k, join(k, plane, s->hi, in_y), s->wi, in_x);
    loop_store(k, c->copied, join(k, join(k, ci, c->span_y, y), c->span_x, x),
               loop_load_if(k, c->x, at, inside, 0.0));
    for (int i = 0; i < 3; i++) loop_close(k);
}

/* x at (channel of the tile, pixel of the block, first tap of the tile). */
static LoopIdx input_at(const ConvDw *c, LoopIdx channel, LoopIdx y, LoopIdx x) {
    LoopKernel *k = c->k;
    const ConvSizes *s = &c->s;
    if (c->local) return join(k, y, c->span_x, x);
    LoopIdx plane = join(k, c->sample, s->ci, channel);
    LoopIdx row = loop_idx_add(k, loop_idx_scale(k, c->origin_y, s->sh), y);
    LoopIdx col = loop_idx_add(k, loop_idx_scale(k, c->origin_x, s->sw), x);
    return join(k, join(k, plane, s->hi, row), s->wi, col);
}

/* Adds one pixel's products to the accumulators. */
static void emit_step(ConvDw *c, LoopBuf acc, int64_t channels, LoopIdx input, LoopIdx pixel) {
    LoopKernel *k = c->k;
    int64_t vectors = c->d.panel.vectors;
    int64_t row = c->local ? c->span_x : c->s.wi, plane = row * (c->local ? c->span_y : c->s.hi);
    LoopBuf from = c->local ? c->copied : c->x;
    LoopVal dy[2];
    for (int64_t v = 0; v < vectors; v++)
        dy[v] = loop_load_vector(k, c->turned, loop_idx_plus(k, pixel, v * LOOP_LANES));
    for (int64_t p = 0; p < channels * c->tile.kh * c->tile.kw; p++) {
        int64_t offset = p / (c->tile.kh * c->tile.kw) * plane + p / c->tile.kw % c->tile.kh * row +
                         p % c->tile.kw;
        LoopVal x = loop_splat(k, loop_load(k, from, loop_idx_plus(k, input, offset)));
        for (int64_t v = 0; v < vectors; v++) {
            LoopIdx at = loop_idx(k, p * vectors + v);
            loop_store(k, acc, at, loop_fma(k, x, dy[v], loop_load(k, acc, at)));
        }
    }
}

/* workspace index of gradient (channel, tap) in this unit's part and panel. */
static LoopIdx gradient_at(const ConvDw *c, LoopIdx channel, LoopIdx tap_y, LoopIdx tap_x) {
    LoopKernel *k = c->k;
    LoopIdx at = join(k, c->panel, c->s.ci, channel);
    at = join(k, join(k, at, c->s.kh, tap_y), c->s.kw, tap_x);
    return loop_idx_add(k, loop_idx_scale(k, c->part, c->d.part_floats),
                        loop_idx_scale(k, at, c->d.panel.lanes));
}

/* Sums one tile of gradients over the block and adds it to the part. */
static void emit_tile(ConvDw *c, LoopIdx channel, int64_t channels, LoopIdx tap_y, LoopIdx tap_x) {
    LoopKernel *k = c->k;
    const ConvSizes *s = &c->s;
    int64_t vectors = c->d.panel.vectors, lanes = c->d.panel.lanes;
    int64_t taps = c->tile.kh * c->tile.kw;
    LoopBuf acc = loop_reg(k, "acc", DT_f32, channels * taps * vectors, LOOP_LANES);
    LoopVal zero = loop_splat(k, loop_const(k, DT_f32, 0.0));
    for (int64_t i = 0; i < channels * taps * vectors; i++)
        loop_store(k, acc, loop_idx(k, i), zero);
    LoopIdx y = open_axis(k, LOOP_reduce, c->d.rows.size, c->rows);
    LoopIdx x = open_axis(k, LOOP_reduce, c->d.cols.size, c->cols);
    LoopIdx input = input_at(c, channel, join(k, y, s->sh, tap_y), join(k, x, s->sw, tap_x));
    emit_step(c, acc, channels, input, loop_idx_scale(k, join(k, y, c->d.cols.size, x), lanes));
    loop_close(k);
    loop_close(k);
    LoopIdx to = gradient_at(c, channel, tap_y, tap_x);
    for (int64_t i = 0; i < channels * taps * vectors; i++) {
        int64_t p = i / vectors, in_kernel = p / c->tile.kw % c->tile.kh * s->kw + p % c->tile.kw;
        int64_t offset = (p / taps * s->kh * s->kw + in_kernel) * lanes + i % vectors * LOOP_LANES;
        LoopIdx at = loop_idx_plus(k, to, offset);
        LoopVal sum = loop_load_vector(k, c->b->workspace, at);
        loop_store(k, c->b->workspace, at,
                   loop_op2(k, OP_add, sum, loop_load(k, acc, loop_idx(k, i))));
    }
}

/* All taps of `channels` input channels from `channel`. */
static void emit_channels(ConvDw *c, LoopIdx channel, int64_t channels) {
    LoopKernel *k = c->k;
    if (c->local) emit_copy(c, channel, channels);
    LoopIdx a = open_axis(k, LOOP_serial, c->s.kh / c->tile.kh, LOOP_NO_BOUND);
    LoopIdx b = open_axis(k, LOOP_serial, c->s.kw / c->tile.kw, LOOP_NO_BOUND);
    emit_tile(c, channel, channels, loop_idx_scale(k, a, c->tile.kh),
              loop_idx_scale(k, b, c->tile.kw));
    loop_close(k);
    loop_close(k);
}

/* --- units --- */

/* The channels of a unit: whole tiles, then one of what is left. The last unit may have fewer. */
static void emit_all_channels(ConvDw *c) {
    LoopKernel *k = c->k;
    int64_t size = c->d.channels.size, count = c->d.channels.count, step = c->tile.channels;
    int64_t last = c->s.ci - (count - 1) * size; // channels of the last unit
    bool even = last == size;
    if (even) {
        LoopIdx i = open_axis(k, LOOP_serial, size / step, LOOP_NO_BOUND);
        emit_ask(c, i, size / step);
        emit_channels(c, join(k, i, step, c->first), step);
        loop_close(k);
        if (size % step)
            emit_channels(c, loop_idx_plus(k, c->first, size - size % step), size % step);
        return;
    }
    // one loop over single tiles for all units, then channels one by one
    LoopIdx left = left_of(k, c->s.ci, c->first);
    LoopIdx i = open_axis(k, LOOP_serial, size / step, loop_idx_div(k, left, step));
    emit_channels(c, join(k, i, step, c->first), step);
    loop_close(k);
    LoopVal here = loop_op2(k, OP_min, loop_index(k, left), loop_const(k, DT_i32, (double)size));
    LoopIdx whole = loop_idx_scale(k, loop_idx_div(k, loop_idx_val(k, here, 1, size), step), step);
    LoopIdx rest = loop_idx_add(k, loop_idx_val(k, here, 1, size), loop_idx_scale(k, whole, -1));
    LoopIdx j = open_axis(k, LOOP_serial, step, rest);
    emit_channels(c, loop_idx_add(k, loop_idx_add(k, c->first, whole), j), 1);
    loop_close(k);
}

/* One block of pixels, number `block` in (sample, row, column). */
static void emit_block(ConvDw *c, LoopIdx block) {
    LoopKernel *k = c->k;
    const ConvDwSplit *d = &c->d;
    LoopIdx next = loop_idx_div(k, loop_idx_plus(k, block, 1), d->rows.count);
    LoopIdx channel = join(k, next, c->s.co, loop_idx_scale(k, c->panel, d->panel.lanes));
    LoopIdx next_rows = loop_idx_mod(k, loop_idx_plus(k, block, 1), d->rows.count);
    LoopIdx next_y = loop_idx_scale(k, next_rows, d->rows.size);
    c->next = loop_idx_scale(k, join(k, channel, c->s.ho, next_y), c->s.wo);
    c->origin_x = loop_idx_scale(k, loop_idx_mod(k, block, d->cols.count), d->cols.size);
    block = loop_idx_div(k, block, d->cols.count);
    c->origin_y = loop_idx_scale(k, loop_idx_mod(k, block, d->rows.count), d->rows.size);
    c->sample = loop_idx_div(k, block, d->rows.count);
    bool even_y = d->rows.count * d->rows.size == c->s.ho;
    bool even_x = d->cols.count * d->cols.size == c->s.wo;
    c->rows = even_y ? LOOP_NO_BOUND : left_of(k, c->s.ho, c->origin_y);
    c->cols = even_x ? LOOP_NO_BOUND : left_of(k, c->s.wo, c->origin_x);
    emit_turn(c);
    emit_all_channels(c);
}

static void zero_fill(LoopKernel *k, LoopBuf to, LoopIdx at, int64_t floats, LoopIdx bound) {
    LoopIdx i = open_axis(k, LOOP_vector, floats, bound);
    loop_store(k, to, loop_idx_add(k, at, i), loop_const(k, DT_f32, 0.0));
    loop_close(k);
}

static void emit_units(ConvDw *c) {
    LoopKernel *k = c->k;
    const ConvDwSplit *d = &c->d;
    int64_t floats = c->s.kh * c->s.kw * d->panel.lanes;
    LoopIdx u =
        open_axis(k, LOOP_grid, d->channels.count * d->panel.count * d->parts, LOOP_NO_BOUND);
    c->first = loop_idx_scale(k, loop_idx_mod(k, u, d->channels.count), d->channels.size);
    u = loop_idx_div(k, u, d->channels.count);
    c->panel = loop_idx_mod(k, u, d->panel.count);
    c->part = loop_idx_div(k, u, d->panel.count);
    c->turned = loop_local(k, "dy", DT_f32, d->rows.size * d->cols.size * d->panel.lanes);
    if (c->local) c->copied = loop_local(k, "x", DT_f32, c->tile.channels * c->span_y * c->span_x);
    LoopIdx zero = loop_idx(k, 0);
    bool even = d->channels.count * d->channels.size == c->s.ci;
    LoopIdx left = even ? LOOP_NO_BOUND : loop_idx_scale(k, left_of(k, c->s.ci, c->first), floats);
    zero_fill(k, c->b->workspace, gradient_at(c, c->first, zero, zero), d->channels.size * floats,
              left);
    if (c->s.co % d->panel.lanes) // lanes without a channel
        zero_fill(k, c->turned, zero, d->rows.size * d->cols.size * d->panel.lanes, LOOP_NO_BOUND);
    LoopIdx begin = part_start(k, c->part, d->blocks, d->parts);
    LoopIdx end = part_start(k, loop_idx_plus(k, c->part, 1), d->blocks, d->parts);
    LoopIdx count = loop_idx_add(k, end, loop_idx_scale(k, begin, -1));
    bool same = d->blocks % d->parts == 0;
    int64_t most = (d->blocks + d->parts - 1) / d->parts;
    LoopIdx t = open_axis(k, LOOP_serial, most, same ? LOOP_NO_BOUND : count);
    emit_block(c, loop_idx_add(k, begin, t));
    loop_close(k);
    loop_close(k);
}

/* --- parts together --- */

/* sum[column][lane] = the parts of SUM_COLUMNS columns (channel, tap) from `column`, in order. */
static void emit_sum(ConvDw *c, LoopBuf sum, LoopIdx column, LoopIdx left) {
    LoopKernel *k = c->k;
    const ConvDwSplit *d = &c->d;
    int64_t columns = c->s.ci * c->s.kh * c->s.kw, lanes = d->panel.lanes;
    LoopIdx from = loop_idx_scale(k, join(k, c->panel, columns, column), lanes);
    LoopIdx bound = left.id ? loop_idx_scale(k, left, lanes) : LOOP_NO_BOUND;
    LoopIdx i = open_axis(k, LOOP_vector, SUM_COLUMNS * lanes, bound);
    loop_store(k, sum, i, loop_load(k, c->b->workspace, loop_idx_add(k, from, i)));
    loop_close(k);
    if (d->parts == 1) return;
    LoopIdx part = loop_idx_plus(k, open_axis(k, LOOP_serial, d->parts - 1, LOOP_NO_BOUND), 1);
    i = open_axis(k, LOOP_vector, SUM_COLUMNS * lanes, bound);
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, part, d->part_floats), loop_idx_add(k, from, i));
    LoopVal v = loop_op2(k, OP_add, loop_load(k, sum, i), loop_load(k, c->b->workspace, at));
    loop_store(k, sum, i, v);
    loop_close(k);
    loop_close(k);
}

static void emit_sums(ConvDw *c) {
    LoopKernel *k = c->k;
    int64_t columns = c->s.ci * c->s.kh * c->s.kw, lanes = c->d.panel.lanes;
    int64_t chunks = (columns + SUM_COLUMNS - 1) / SUM_COLUMNS;
    LoopIdx u = open_axis(k, LOOP_grid, c->d.panel.count * chunks, LOOP_NO_BOUND);
    c->panel = loop_idx_div(k, u, chunks);
    LoopIdx column = loop_idx_scale(k, loop_idx_mod(k, u, chunks), SUM_COLUMNS);
    LoopIdx left = columns % SUM_COLUMNS ? left_of(k, columns, column) : LOOP_NO_BOUND;
    LoopBuf sum = loop_local(k, "sum", DT_f32, SUM_COLUMNS * lanes);
    emit_sum(c, sum, column, left);
    LoopIdx channels = loop_idx_scale(k, c->panel, lanes);
    LoopIdx bound = c->s.co % lanes ? left_of(k, c->s.co, channels) : LOOP_NO_BOUND;
    LoopIdx lane = open_axis(k, LOOP_serial, lanes, bound);
    LoopIdx i = open_axis(k, LOOP_vector, SUM_COLUMNS, left);
    LoopIdx at = loop_idx_add(k, column, i); // (ci, kh, kw)
    lower_body_bind(c->b, node_out(c->anchor, 0), loop_load(k, sum, join(k, i, lanes, lane)));
    LoopIdx rows = loop_idx_div(k, at, c->s.kw);
    LoopIdx index[4] = {loop_idx_add(k, channels, lane), loop_idx_div(k, rows, c->s.kh),
                        loop_idx_mod(k, rows, c->s.kh), loop_idx_mod(k, at, c->s.kw)};
    lower_body_store_all(c->b, index);
    for (int j = 0; j < 3; j++) loop_close(k);
}

LoopKernel *lower_conv2d_dw(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    ConvDw c = {.b = b, .k = b->k, .anchor = lower_body_anchor(b, OP_conv2d_dw)};
    c.s = split_conv_sizes(b->body, c.anchor);
    if (c.s.ci * c.s.co * c.s.kh * c.s.kw == 0) return b->k;
    c.d = split_conv_dw(&c.s);
    c.local = c.s.ph > 0 || c.s.pw > 0;
    c.span_y = (c.d.rows.size - 1) * c.s.sh + c.s.kh;
    c.span_x = (c.d.cols.size - 1) * c.s.sw + c.s.kw;
    int64_t channels = c.d.channels.size, room = COPIED_FLOATS_MAX / (c.span_y * c.span_x);
    if (c.local && channels > room) channels = room > 1 ? room : 1;
    c.tile = conv_tile_taps(c.d.panel.vectors, channels, c.s.kh, c.s.kw);
    c.x = lower_body_input(b, c.anchor->in[0]);
    c.dy = lower_body_input(b, c.anchor->in[1]);
    emit_units(&c);
    emit_sums(&c);
    return b->k;
}
