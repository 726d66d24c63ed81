/* lower_cuda_image.h - strips of images in shared memory, for direct convolutions. */
#ifndef INFINIC_CODEGEN_LOWER_CUDA_IMAGE_H
#define INFINIC_CODEGEN_LOWER_CUDA_IMAGE_H

#include "codegen/lower_cuda.h"
#include "ir/split.h"

/* Rows [y, y + rows) and columns from x on of `channels` channels of a sample, zero outside; they
 * lie as [channel][row][tile][pitch], a tile being `span` columns of which neighbours share all
 * but `step`. tf32: rounded to it. */
typedef struct CudaStrip {
    LoopBuf from, to;
    int64_t image[4]; /* shape of `from` */
    LoopIdx sample, channel, y;
    int64_t channels, rows, x, tiles, span, step;
    int64_t pitch, channel_pitch; /* of a tile, of a channel in `to` */
    bool tf32;
} CudaStrip;

/* All threads of the block load the strip. */
void lower_cuda_load_strip(LoopKernel *k, const CudaStrip *s, LoopIdx thread);

/* Opens, for each of n units, the thread that does it, up to `each` of a thread written out
 * together; returns the unit. lower_space_close closes it. */
LoopIdx lower_cuda_open_shared_units(LoopKernel *k, LoopIdx thread, int64_t n, int64_t each);

/* Results of a strip of rows of one sample in shared memory: channels [first, first + channels) of
 * `out` as [channel][rows][wo], channels `pitch` apart. */
typedef struct CudaResults {
    LowerBody *b;
    const Node *anchor;
    LoopBuf staged;
    LoopIdx thread, sample, strip, first;
    int64_t channels, out, rows, ho, wo, pitch;
} CudaResults;

/* All threads of the block store the body's results there. */
void lower_cuda_store_results(LoopKernel *k, const CudaResults *r);

/* Convolutions that split.h finds fit for it. */
LoopKernel *lower_cuda_direct(LowerBody *b, const Node *anchor, const CudaConv *sizes);
LoopKernel *lower_cuda_direct_dw(LowerContext *ctx, const Graph *g, const Node *kernel,
                                 const CudaConvDw *sizes);
LoopKernel *lower_cuda_mma(LowerBody *b, const Node *anchor, const CudaConvMma *sizes);
LoopKernel *lower_cuda_mma_dw(LowerContext *ctx, const Graph *g, const Node *kernel,
                              const CudaConvMmaDw *sizes);

/* The launch after a weight gradient in parts (see CudaConvDw): adds them. */
LoopKernel *lower_cuda_conv_parts(LowerContext *ctx, const Graph *g, const Node *kernel,
                                  int64_t parts);

#endif
