/* conv_plan.c - see conv_plan.h. */
#include "codegen/conv_plan.h"
#include "codegen/conv_tile.h"

enum {
    UNITS_MIN = 16,
    BLOCK_FLOATS_MAX = 6144,    /* results of a unit: half of the L1 cache ... */
    ROWS_FLOATS_MAX = 1664,     /* ... or less, so that weights and input stay there as well */
    INPUT_FLOATS_MAX = 16384,   /* copied input of a unit */
    WEIGHT_FLOATS_MAX = 131072, /* packed weights that a unit runs over at once: in the L2 cache */
    CLIP_TILES_MAX = 4,         /* clipped tiles of one row have a text of their own each */
    CLIP_TAPS_MAX = 7,
    LANES = 16,
    TURN_STEPS = 4,     /* multiply-adds that turning an element costs */
    WIDE_STEPS_MAX = 64 /* of longer sums it is a small part */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static ConvAxis forward_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad) {
    return (ConvAxis){.in = in,
                      .out = out,
                      .kernel = kernel,
                      .taps = kernel,
                      .step = stride,
                      .phases = 1,
                      .pad = pad};
}

static ConvAxis backward_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                              int64_t pad) {
    return (ConvAxis){.in = in,
                      .out = out,
                      .kernel = kernel,
                      .step = 1,
                      .phases = stride,
                      .taps = split_conv_taps(kernel, stride) / stride,
                      .pad = kernel - 1 - pad};
}

static int64_t span_of(const ConvAxis *a) { return (a->block.size - 1) * a->step + a->taps; }

int64_t conv_packed_taps(const ConvAxis *a) { return a->taps * a->phases; }

int64_t conv_packed_floats(const ConvPlan *c) {
    return c->panel.count * c->panel.lanes * c->ci * conv_packed_taps(&c->y) *
           conv_packed_taps(&c->x);
}

/* Rows of a block, at most `most`: blocks overlap little and are not many. */
static int64_t choose_rows(int64_t height, int64_t most) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t rows = most; rows >= 1; rows--) {
        SplitBlocks s = split_blocks(height, rows);
        int64_t cost = s.count * (16 * s.size + 1);
        if (cost >= least) continue;
        least = cost;
        best = rows;
    }
    return best;
}

/* Cuts the plane into blocks: the results fit into the cache, and there is work for all threads. */
static void choose_blocks(ConvPlan *c, int64_t row_floats) {
    ConvAxis *y = &c->y, *x = &c->x;
    int64_t height = ceil_div(y->out, y->phases), width = ceil_div(x->out, x->phases);
    int64_t pixels = BLOCK_FLOATS_MAX / c->panel.lanes;
    x->block = split_blocks(width, pixels);
    int64_t units = c->n * c->panel.count * y->phases * x->phases * x->block.count;
    int64_t blocks = units > 0 ? ceil_div(UNITS_MIN, units) : 1;
    int64_t rows = row_floats / c->panel.lanes / x->block.size;
    if (blocks > 1 && rows > ceil_div(height, blocks)) rows = ceil_div(height, blocks);
    y->block = split_blocks(height, choose_rows(height, rows));
}

static void choose_tiles(ConvPlan *c) {
    ConvAxis *y = &c->y, *x = &c->x;
    ConvPixelTile tile = conv_tile_pixels(c->panel.vectors, y->block.size, x->block.size);
    y->tile = tile.rows;
    x->tile = tile.cols;
    y->tiles = ceil_div(y->block.size, y->tile);
    x->tiles = ceil_div(x->block.size, x->tile);
    y->span = span_of(y);
    x->span = span_of(x);
}

static ConvBorder choose_border(const ConvPlan *c) {
    const ConvAxis *y = &c->y, *x = &c->x;
    bool phases = y->phases > 1 || x->phases > 1;
    if (!phases && y->pad == 0 && x->pad == 0 && (!c->backward || (y->taps == 1 && x->taps == 1)))
        return CONV_inside;
    bool clip = !phases && y->tile == 1 && x->block.count == 1 && x->tiles <= CLIP_TILES_MAX &&
                x->taps <= CLIP_TAPS_MAX;
    return clip ? CONV_clip : CONV_copy;
}

/* Smaller blocks until the copied input of one channel is small. */
static void shrink_blocks(ConvPlan *c) {
    ConvAxis *y = &c->y, *x = &c->x;
    while (span_of(y) * span_of(x) > INPUT_FLOATS_MAX && (y->block.size > 1 || x->block.size > 1)) {
        ConvAxis *a = y->block.size > 1 ? y : x;
        a->block = split_blocks(ceil_div(a->out, a->phases), a->block.size / 2);
    }
}

/* Vectors of pixels need no turning, but those at the end of a row overlap: they are better where
 * sums are short. */
static int64_t choose_wide(const ConvPlan *c) {
    const ConvAxis *x = &c->x;
    if (c->border != CONV_inside || c->channels.count > 1 || x->step != 1 || x->block.size < LANES)
        return 0;
    int64_t vectors = ceil_div(x->block.size, LANES), twice = vectors * LANES - x->block.size;
    int64_t steps = c->ci * c->y.taps * x->taps;
    if (steps > WIDE_STEPS_MAX || steps * twice > TURN_STEPS * x->block.size) return 0;
    return vectors % 2 == 0 ? 2 : 1;
}

ConvPlan conv_plan(const ConvSizes *s, bool backward) {
    ConvPlan c = {.backward = backward, .n = s->n};
    c.ci = backward ? s->co : s->ci;
    c.co = backward ? s->ci : s->co;
    c.y = backward ? backward_axis(s->ho, s->hi, s->kh, s->sh, s->ph)
                   : forward_axis(s->hi, s->ho, s->kh, s->sh, s->ph);
    c.x = backward ? backward_axis(s->wo, s->wi, s->kw, s->sw, s->pw)
                   : forward_axis(s->wi, s->wo, s->kw, s->sw, s->pw);
    c.panel = split_conv_panels(c.co);
    int64_t most = WEIGHT_FLOATS_MAX / (c.y.taps * c.x.taps * c.panel.lanes);
    choose_blocks(&c, c.ci > most ? BLOCK_FLOATS_MAX : ROWS_FLOATS_MAX);
    choose_tiles(&c);
    c.border = choose_border(&c);
    if (c.border == CONV_copy) {
        choose_blocks(&c, BLOCK_FLOATS_MAX); // the input around a block is copied with it
        shrink_blocks(&c);
        choose_tiles(&c);
        int64_t room = INPUT_FLOATS_MAX / (c.y.span * c.x.span);
        if (room < most) most = room;
    }
    c.channels = split_blocks(c.ci, most);
    c.wide = choose_wide(&c);
    return c;
}
