/* gemm.h - the one door to the CPU matrix library. */
#ifndef INF_RUNTIME_GEMM_H
#define INF_RUNTIME_GEMM_H

#include <stdint.h>

/* c = op(a) * op(b), or c += op(a) * op(b) with `accumulate`; all row-major f32.
 *   op(a)  [m, k]   stored [m, k], or [k, m] when `ta`; rows are lda floats apart
 *   op(b)  [k, n]   stored [k, n], or [n, k] when `tb`; rows are ldb floats apart
 *   c      [m, n]   rows are ldc floats apart; must not overlap a or b
 * m, n or k may be 0 (k = 0 gives zeros, or leaves c as it is with `accumulate`).
 * Runs on the calling thread alone, inside a parallel region or not: the bits of c depend on the
 * arguments and the processor's instruction set, never on the number of threads. Callers share a
 * large product out over threads as tiles that depend on its shape only.
 * Thread-safe. Without memory for packing buffers it ends the process with exit code 5. */
void inf_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
               const float *b, int64_t ldb, float *c, int64_t ldc, int accumulate);

#endif
