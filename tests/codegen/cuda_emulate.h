/* cuda_emulate.h - CUDA kernels on the CPU: blocks one after another, the threads of a block as
 * fibers that meet at barriers of the block, of a warp, or of any neighbours.
 *
 * Checks what a device would not tell: a barrier that only some threads of a block reach ends the
 * program. With more than one `threads` in InfEnv the blocks come in another order. Memory is not
 * checked; buffers that end at an unmapped page are the caller's.
 */
#ifndef INFINIC_TESTS_CODEGEN_CUDA_EMULATE_H
#define INFINIC_TESTS_CODEGEN_CUDA_EMULATE_H

#include "runtime/plan.h"

/* C++ text in front of prelude_cuda.h: CUDA's words in terms of the two hooks below. */
extern const char cuda_emulate_text[];

typedef struct CudaIndex {
    uint32_t x;
} CudaIndex;

/* What the C++ side calls through `hook_meet` (a barrier of threads first .. first + count - 1) and
 * `hook_launch`; it reads its place from the three variables, whose addresses it gets through
 * `hook_index`. */
void cuda_emulate_meet(int line, uint32_t first, uint32_t count);
void cuda_emulate_launch(void (*thread)(void *const *arg, const void *env), void *const *arg,
                         const InfEnv *env, uint32_t grid, uint32_t block, int meets);
extern CudaIndex cuda_emulate_index[3]; /* block, thread, size of a block */

#endif
