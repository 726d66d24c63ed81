/* lower_cuda_conv.c - convolutions for CUDA. At stride 1 they are direct (lower_cuda_direct.c;
 * lower_cuda_mma.c with `dtype = tf32` and enough channels), else products whose operands are found
 * by index:
 *
 *   conv2d     rows are output pixels (sample, y, x), columns output channels; the sum runs over
 *              input channels and taps
 *   conv2d_dx  rows are input pixels, columns input channels; over output channels and taps
 *   conv2d_dw  rows are output channels, columns input channels and taps; over output pixels
 */
#include "codegen/lower_cuda_gemm.h"
#include "codegen/lower_cuda_image.h"

typedef struct Taps {
    LoopIdx channel, y, x;
} Taps;

/* A place of (channel, kernel row, kernel column). */
static Taps split_taps(LoopKernel *k, const ConvSizes *s, LoopIdx at, int64_t channels) {
    TypeInfo t = {.ndim = 3, .dim = {channels, s->kh, s->kw}};
    LoopIdx index[3];
    lower_unflatten(k, &t, at, index);
    return (Taps){index[0], index[1], index[2]};
}

typedef struct Pixel {
    LoopIdx sample, y, x;
} Pixel;

static Pixel split_pixel(LoopKernel *k, LoopIdx at, int64_t samples, int64_t rows, int64_t cols) {
    TypeInfo t = {.ndim = 3, .dim = {samples, rows, cols}};
    LoopIdx index[3];
    lower_unflatten(k, &t, at, index);
    return (Pixel){index[0], index[1], index[2]};
}

static LoopVal range(LoopKernel *k, LoopIdx index, int64_t limit) {
    const LoopIdxInfo *info = loop_idx_info(k, index);
    return info->low >= 0 && info->high < limit ? (LoopVal){0} : loop_range(k, index, 0, limit);
}

/* Offset of (sample, channel, y, x) in [samples, channels, rows, cols]. */
static LoopIdx image_at(LoopKernel *k, const int64_t *dim, Pixel p, LoopIdx channel) {
    TypeInfo t = {.ndim = 4, .dim = {dim[0], dim[1], dim[2], dim[3]}};
    LoopIdx index[4] = {p.sample, channel, p.y, p.x};
    return lower_offset(k, &t, index);
}

/* x under a tap of an output pixel. */
static GemmPlace under_tap(CudaGemm *t, const ConvSizes *s, LoopBuf x, LoopIdx pixel, LoopIdx tap) {
    LoopKernel *k = t->k;
    Pixel p = split_pixel(k, pixel, s->n, s->ho, s->wo);
    Taps w = split_taps(k, s, tap, s->ci);
    p.y = loop_idx_add(k, loop_idx_scale(k, p.y, s->sh), loop_idx_plus(k, w.y, -s->ph));
    p.x = loop_idx_add(k, loop_idx_scale(k, p.x, s->sw), loop_idx_plus(k, w.x, -s->pw));
    const int64_t dim[4] = {s->n, s->ci, s->hi, s->wi};
    GemmPlace place = {.buf = x, .at = image_at(k, dim, p, w.channel)};
    place.inside = lower_both(k, range(k, p.y, s->hi), range(k, p.x, s->wi));
    return place;
}

/* The same anchor index for every element: pixel `at` of channel `channel` of an image. */
static void image_index(CudaGemm *t, LoopIdx at, LoopIdx channel, LoopIdx *index) {
    const TypeInfo *out = val_info(t->b->body, t->anchor->out);
    Pixel p = split_pixel(t->k, at, out->dim[0], out->dim[2], out->dim[3]);
    index[0] = p.sample;
    index[1] = channel;
    index[2] = p.y;
    index[3] = p.x;
}

static LoopBuf input(CudaGemm *t, int which) {
    return lower_body_input(t->b, t->anchor->in[which]);
}

/* --- forward --- */

static GemmPlace forward_a(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx k) {
    (void)batch;
    return under_tap(t, t->sizes, input(t, 0), i, k);
}

static GemmPlace forward_b(CudaGemm *t, LoopIdx batch, LoopIdx j, LoopIdx k) {
    (void)batch;
    LoopIdx at = loop_idx_add(t->k, loop_idx_scale(t->k, j, t->s.k), k);
    return (GemmPlace){.buf = input(t, 1), .at = at};
}

static void pixel_index(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx j, LoopIdx *index) {
    (void)batch;
    image_index(t, i, j, index);
}

/* --- input gradient --- */

/* Output place along one axis whose tap lies on an input place; none when the stride skips it. */
static LoopIdx over_tap(CudaGemm *t, LoopIdx at, LoopIdx tap, const int64_t size[4],
                        LoopVal *inside) {
    LoopKernel *k = t->k;
    int64_t taps = size[0], stride = size[1], padding = size[2], limit = size[3];
    int64_t shift = lower_ceil_div(taps - 1, stride);
    LoopIdx from = loop_idx_add(k, at, loop_idx_scale(k, tap, -1));
    from = loop_idx_plus(k, from, padding + shift * stride);
    LoopIdx to = loop_idx_plus(k, loop_idx_div(k, from, stride), -shift);
    LoopVal met = {0};
    if (stride > 1) met = range(k, loop_idx_mod(k, from, stride), 1);
    *inside = lower_both(k, *inside, lower_both(k, met, range(k, to, limit)));
    return to;
}

static GemmPlace gradient_a(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx k_at) {
    const ConvSizes *s = t->sizes;
    LoopKernel *k = t->k;
    (void)batch;
    Pixel p = split_pixel(k, i, s->n, s->hi, s->wi);
    Taps w = split_taps(k, s, k_at, s->co);
    const int64_t down[4] = {s->kh, s->sh, s->ph, s->ho}, across[4] = {s->kw, s->sw, s->pw, s->wo};
    GemmPlace place = {.buf = input(t, 0)};
    p.y = over_tap(t, p.y, w.y, down, &place.inside);
    p.x = over_tap(t, p.x, w.x, across, &place.inside);
    const int64_t dim[4] = {s->n, s->co, s->ho, s->wo};
    place.at = image_at(k, dim, p, w.channel);
    return place;
}

static GemmPlace gradient_b(CudaGemm *t, LoopIdx batch, LoopIdx j, LoopIdx k_at) {
    const ConvSizes *s = t->sizes;
    LoopKernel *k = t->k;
    int64_t taps = s->kh * s->kw;
    (void)batch;
    LoopIdx channel = loop_idx_div(k, k_at, taps), tap = loop_idx_mod(k, k_at, taps);
    LoopIdx row = loop_idx_add(k, loop_idx_scale(k, channel, s->ci), j);
    return (GemmPlace){.buf = input(t, 1),
                       .at = loop_idx_add(k, loop_idx_scale(k, row, taps), tap)};
}

/* --- weight gradient --- */

static GemmPlace weights_a(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx k_at) {
    const ConvSizes *s = t->sizes;
    (void)batch;
    const int64_t dim[4] = {s->n, s->co, s->ho, s->wo};
    Pixel p = split_pixel(t->k, k_at, s->n, s->ho, s->wo);
    return (GemmPlace){.buf = input(t, 1), .at = image_at(t->k, dim, p, i)};
}

static GemmPlace weights_b(CudaGemm *t, LoopIdx batch, LoopIdx j, LoopIdx k_at) {
    (void)batch;
    return under_tap(t, t->sizes, input(t, 0), k_at, j);
}

static void weight_index(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx j, LoopIdx *index) {
    Taps w = split_taps(t->k, t->sizes, j, ((const ConvSizes *)t->sizes)->ci);
    (void)batch;
    index[0] = i;
    index[1] = w.channel;
    index[2] = w.y;
    index[3] = w.x;
}

/* --- entry --- */

/* Convolutions that keep strips in shared memory; NULL for others. */
static LoopKernel *lower_strips(LowerContext *ctx, const Graph *g, const Node *kernel,
                                const CudaGemm *t, const ConvSizes *sizes) {
    const Node *n = t->anchor;
    bool tf32 = split_cuda_tf32(t->b->body, n);
    CudaConvMma mma = {0};
    CudaConvMmaDw mma_dw = {0};
    if (n->op == OP_conv2d_dw) {
        if (tf32) mma_dw = split_cuda_conv_mma_dw(sizes);
        if (mma_dw.fits) return lower_cuda_mma_dw(ctx, g, kernel, &mma_dw);
        const CudaConvDw direct = split_cuda_conv_dw(sizes);
        return direct.fits ? lower_cuda_direct_dw(ctx, g, kernel, &direct) : NULL;
    }
    if (tf32) mma = split_cuda_conv_mma(sizes, n->op == OP_conv2d_dx);
    if (mma.fits) return lower_cuda_mma(t->b, n, &mma);
    const CudaConv direct = split_cuda_conv(sizes, n->op == OP_conv2d_dx);
    return direct.fits ? lower_cuda_direct(t->b, n, &direct) : NULL;
}

static LoopKernel *lower_conv(LowerContext *ctx, const Graph *g, const Node *kernel, Op op,
                              CudaGemm t) {
    t.b = lower_body_new(ctx, g, kernel);
    t.k = t.b->k;
    t.anchor = lower_body_anchor(t.b, op);
    const ConvSizes sizes = split_conv_sizes(t.b->body, t.anchor);
    LoopKernel *strips = lower_strips(ctx, g, kernel, &t, &sizes);
    if (strips) return strips;
    t.sizes = &sizes;
    t.s = split_cuda_tiles(t.b->body, t.anchor);
    lower_cuda_gemm(&t);
    return t.k;
}

LoopKernel *lower_cuda_conv2d(LowerContext *ctx, const Graph *g, const Node *kernel) {
    CudaGemm t = {.a = forward_a,
                  .b_place = forward_b,
                  .b_along_k = true,
                  .rows_first = true,
                  .index = pixel_index};
    return lower_conv(ctx, g, kernel, OP_conv2d, t);
}

LoopKernel *lower_cuda_conv2d_dx(LowerContext *ctx, const Graph *g, const Node *kernel) {
    CudaGemm t = {.a = gradient_a,
                  .b_place = gradient_b,
                  .b_along_k = true,
                  .rows_first = true,
                  .index = pixel_index};
    return lower_conv(ctx, g, kernel, OP_conv2d_dx, t);
}

LoopKernel *lower_cuda_conv2d_dw(LowerContext *ctx, const Graph *g, const Node *kernel) {
    CudaGemm t = {.a = weights_a,
                  .b_place = weights_b,
                  .a_along_k = true,
                  .b_along_k = true,
                  .index = weight_index};
    return lower_conv(ctx, g, kernel, OP_conv2d_dw, t);
}
