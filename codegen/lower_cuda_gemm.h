/* lower_cuda_gemm.h - products as tiles in shared memory: matrix products and convolutions. */
#ifndef INFINIC_CODEGEN_LOWER_CUDA_GEMM_H
#define INFINIC_CODEGEN_LOWER_CUDA_GEMM_H

#include "codegen/lower_cuda.h"
#include "ir/split.h"

typedef struct CudaGemm CudaGemm;

/* Where an operand's element (row or column `i`, place `k` of the sum) lies, and under which
 * condition it is there at all (id 0: always); elsewhere it is 0. */
typedef struct GemmPlace {
    LoopBuf buf;
    LoopIdx at;
    LoopVal inside;
} GemmPlace;
typedef GemmPlace GemmPlaceFn(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx k);

/* The index in the anchor's result of element (i, j) of the product. */
typedef void GemmIndexFn(CudaGemm *t, LoopIdx batch, LoopIdx i, LoopIdx j, LoopIdx *index);

struct CudaGemm {
    LowerBody *b;
    LoopKernel *k;
    const Node *anchor;
    CudaTiles s;
    GemmPlaceFn *a, *b_place;  /* of op(a) [m, k] and op(b) [k, n] */
    bool a_along_k, b_along_k; /* neighbours in memory are neighbours along k */
    bool rows_first;           /* neighbours of the result are neighbours along m */
    GemmIndexFn *index;
    const void *sizes; /* of the operation, for the functions */
};

void lower_cuda_gemm(CudaGemm *t);

LoopVal lower_both(LoopKernel *k, LoopVal a, LoopVal b); /* and; either may be none */

#endif
