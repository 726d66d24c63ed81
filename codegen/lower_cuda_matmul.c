/* lower_cuda_matmul.c - small and thin matrix products for CUDA; others go to the device's library
 * (split_cuda_library) and have no kernel. */
#include "codegen/lower_cuda_gemm.h"
#include "codegen/lower_cuda_thin.h"

/* Element (row, column) of operand `which`, stored with `cols` a row. */
static GemmPlace place(CudaGemm *t, int which, LoopIdx batch, LoopIdx row, LoopIdx col) {
    const TypeInfo *type = val_info(t->b->body, t->anchor->in[which]);
    int64_t rows = type->dim[type->ndim - 2], cols = type->dim[type->ndim - 1];
    LoopKernel *k = t->k;
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, row, cols), col);
    return (GemmPlace){.buf = lower_body_input(t->b, t->anchor->in[which]),
                       .at = loop_idx_add(k, at, loop_idx_scale(k, batch, rows * cols))};
}

static GemmPlace place_a(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx k) {
    bool ta = node_int(t->anchor, ATTR_ta, 0);
    return place(t, 0, batch, ta ? k : i, ta ? i : k);
}

static GemmPlace place_b(CudaGemm *t, LoopIdx batch, LoopIdx j, LoopIdx k) {
    bool tb = node_int(t->anchor, ATTR_tb, 0);
    return place(t, 1, batch, tb ? j : k, tb ? k : j);
}

static void index_of(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx j, LoopIdx *index) {
    const TypeInfo *out = val_info(t->b->body, t->anchor->out);
    TypeInfo outer = {.ndim = out->ndim - 2};
    for (int a = 0; a < outer.ndim; a++) outer.dim[a] = out->dim[a];
    lower_unflatten(t->k, &outer, batch, index);
    index[out->ndim - 2] = i;
    index[out->ndim - 1] = j;
}

LoopKernel *lower_cuda_matmul(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    CudaGemm t = {.b = b,
                  .k = b->k,
                  .anchor = lower_body_anchor(b, OP_matmul),
                  .a = place_a,
                  .b_place = place_b,
                  .index = index_of};
    const CudaThin thin = split_cuda_thin(b->body, t.anchor);
    if (thin.fits) return lower_cuda_thin(b, t.anchor, &thin);
    const CudaDots dots = split_cuda_dots(b->body, t.anchor);
    if (dots.fits) return lower_cuda_dots(b, t.anchor, &dots);
    t.s = split_cuda_tiles(b->body, t.anchor);
    t.a_along_k = !node_int(t.anchor, ATTR_ta, 0);
    t.b_along_k = node_int(t.anchor, ATTR_tb, 0);
    lower_cuda_gemm(&t);
    return b->k;
}
