/* lower_cuda_thin.h - thin products for CUDA. */
#ifndef INFINIC_CODEGEN_LOWER_CUDA_THIN_H
#define INFINIC_CODEGEN_LOWER_CUDA_THIN_H

#include "codegen/lower_cuda.h"
#include "ir/split.h"

/* A product that split_cuda_thin finds fit for it. */
LoopKernel *lower_cuda_thin(LowerBody *b, const Node *anchor, const CudaThin *sizes);
/* The same for split_cuda_dots (lower_cuda_dots.c). */
LoopKernel *lower_cuda_dots(LowerBody *b, const Node *anchor, const CudaDots *sizes);

#endif
