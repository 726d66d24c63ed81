/* lower_cuda.h - what lowerings for CUDA share: blocks and threads. */
#ifndef INFINIC_CODEGEN_LOWER_CUDA_H
#define INFINIC_CODEGEN_LOWER_CUDA_H

#include "codegen/lower.h"

enum {
    CUDA_THREADS = 256,
    CUDA_WARP = 32,
    CUDA_TURNS = 8,  /* turns of a loop that are written out */
    CUDA_VECTOR = 4, /* f32 of a 16-byte access */
    CUDA_BLOCKS_MIN =
        264 /* enough to keep a large chip busy: two for each of 132 multiprocessors */
};

/* Opens the grid axis and in it the thread axis; the kernel's first loops. */
void lower_cuda_open(LoopKernel *k, int64_t blocks, int threads, LoopIdx *block, LoopIdx *thread);

/* Opens a thread for each of n units, `each` of them `threads` apart in one thread when there are
 * many; returns the unit's number, in [0, n). */
LoopIdx lower_cuda_open_units(LoopKernel *k, int64_t n, int each);

/* An `if` around what follows when index may reach n; returns the index known to be less. */
LoopIdx lower_cuda_open_below(LoopKernel *k, LoopIdx index, int64_t n);

/* Opens a loop of n turns that is written out; returns the turn. */
LoopIdx lower_cuda_open_unrolled(LoopKernel *k, int64_t n);

/* a * by + b */
LoopIdx lower_cuda_at(LoopKernel *k, LoopIdx a, int64_t by, LoopIdx b);

/* Opens a loop over [0, n) in order: at once when n is small, else `together` turns at a time, so
 * that their loads are under way together; then `body` is called a second time for the rest. */
typedef void CudaTurnFn(void *data, LoopIdx turn);
void lower_cuda_turns(LoopKernel *k, int64_t n, int64_t together, CudaTurnFn *body, void *data);

/* Neighbours of n in a row that a thread takes: as many as make 16 bytes of the kernel's narrowest
 * float argument, where n is a multiple of them. */
int64_t lower_cuda_vector(const LoopKernel *k, int64_t n);

int64_t lower_ceil_div(int64_t a, int64_t b);
/* The least power of two that is at least n, at most `most`. */
int64_t lower_power_of_two(int64_t n, int64_t most);

#endif
