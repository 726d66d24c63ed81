/* split_conv.c - how convolutions are cut; see split.h.
 *
 * Kernels hold a panel of output channels in vectors. The forward pass and the input gradient sum
 * every element in one go, so only the weight gradient is cut into parts: over blocks of output
 * pixels, as many as give the threads work, each with its own copy of the gradient.
 */
#include "ir/split.h"

enum {
    LANES = 16,
    UNITS_MIN = 16,         /* pieces of work a kernel is cut into, where its shape allows */
    BLOCK_PIXELS_MAX = 96,  /* output pixels of a block: a panel of them is a quarter of the L1 */
    WIDTH_MAX = 192,
    PART_FLOATS_MAX = 131072 /* a unit's piece of the gradient fits into the L2 cache */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

SplitBlocks split_blocks(int64_t extent, int64_t most) {
    SplitBlocks s = {1, 1};
    if (extent < 1) return s;
    if (most < 1) most = 1;
    s.size = ceil_div(extent, ceil_div(extent, most));
    s.count = ceil_div(extent, s.size);
    return s;
}

ConvSizes split_conv_sizes(const Graph *body, const Node *conv) {
    const TypeInfo *x = val_info(body, conv->op == OP_conv2d_dx ? node_out(conv, 0) : conv->in[0]);
    const TypeInfo *w = val_info(body, conv->op == OP_conv2d_dw ? node_out(conv, 0) : conv->in[1]);
    const TypeInfo *y = val_info(body, conv->op == OP_conv2d      ? node_out(conv, 0)
                                       : conv->op == OP_conv2d_dx ? conv->in[0]
                                                                  : conv->in[1]);
    const int64_t *stride = node_attr(conv, ATTR_stride)->v;
    const int64_t *padding = node_attr(conv, ATTR_padding)->v;
    ConvSizes s = {.n = x->dim[0],
                   .ci = x->dim[1],
                   .hi = x->dim[2],
                   .wi = x->dim[3],
                   .co = y->dim[1],
                   .ho = y->dim[2],
                   .wo = y->dim[3],
                   .kh = w->dim[2],
                   .kw = w->dim[3],
                   .sh = stride[0],
                   .sw = stride[1],
                   .ph = padding[0],
                   .pw = padding[1]};
    bool pointwise = s.kh == 1 && s.kw == 1 && s.sh == 1 && s.sw == 1 && s.ph == 0 && s.pw == 0;
    if (pointwise) { // the plane's shape does not matter: one long row
        s.wi *= s.hi;
        s.wo *= s.ho;
        s.hi = s.ho = 1;
    }
    return s;
}

ConvPanels split_conv_panels(int64_t channels) {
    int64_t vectors = ceil_div(channels, LANES);
    ConvPanels p = {.vectors = vectors == 1 || vectors == 3 ? 1 : 2};
    p.lanes = LANES * p.vectors;
    p.count = ceil_div(channels, p.lanes);
    return p;
}

/* Taps of one phase of a strided input gradient, times the phases: at least the kernel's size. */
int64_t split_conv_taps(int64_t kernel, int64_t stride) {
    return ceil_div(kernel, stride) * stride;
}

static int64_t pack_floats(const ConvSizes *s, bool backward) {
    ConvPanels p = split_conv_panels(backward ? s->ci : s->co);
    int64_t taps =
        backward ? split_conv_taps(s->kh, s->sh) * split_conv_taps(s->kw, s->sw) : s->kh * s->kw;
    return p.count * p.lanes * (backward ? s->co : s->ci) * taps;
}

ConvDwSplit split_conv_dw(const ConvSizes *s) {
    ConvDwSplit d = {.panel = split_conv_panels(s->co)};
    d.cols = split_blocks(s->wo, WIDTH_MAX);
    d.rows = split_blocks(s->ho, BLOCK_PIXELS_MAX / d.cols.size);
    d.blocks = s->n * d.rows.count * d.cols.count;
    d.channels = split_blocks(s->ci, PART_FLOATS_MAX / (s->kh * s->kw * d.panel.lanes));
    int64_t units = d.channels.count * d.panel.count;
    d.parts = split_blocks(d.blocks, ceil_div(d.blocks, ceil_div(UNITS_MIN, units))).count;
    d.part_floats = d.panel.count * d.panel.lanes * s->ci * s->kh * s->kw;
    return d;
}

int64_t split_conv_workspace(const Graph *body, const Node *conv) {
    ConvSizes s = split_conv_sizes(body, conv);
    if (conv->op != OP_conv2d_dw) return 4 * pack_floats(&s, conv->op == OP_conv2d_dx);
    ConvDwSplit d = split_conv_dw(&s);
    return 4 * d.parts * d.part_floats;
}
