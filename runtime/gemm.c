/* gemm.c - matrix products, by oneDNN's dnnl_sgemm.
 *
 * Why oneDNN: measured with tests/bench/gemm_libs.c on our models' shapes (two threads over a fixed
 * tile grid, Debian 12's packages) it was the fastest nearly everywhere and always right. It
 * generates its kernels for the processor it finds, so a processor newer than the library still
 * gets AVX-512 ones. OpenBLAS 0.3.21 fell back to SSE kernels there, 4 to 10 times slower, and its
 * serial build returned wrong products when two threads called it; BLIS 0.9 was about 2 times
 * slower. No environment variable makes dnnl_sgemm wrong (DNNL_MAX_CPU_ISA can make it slower).
 * The call is the same in versions 2 and 3.
 *
 * oneDNN shares a product out over threads by their number, which changes the bits, unless it is
 * called inside an active parallel region; outside one, it is told that there is one thread.
 *
 * Its generated kernels let the stack pointer point into the heap, so no signal handler may run on
 * a thread that calls it: signals.c sees to that for ours. A profiler that samples by signals does
 * not know.
 */
#include "runtime/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static void scale_only(int64_t m, int64_t n, float *c, int64_t ldc, int accumulate) {
    for (int64_t i = 0; i < m && !accumulate; i++) memset(c + i * ldc, 0, (size_t)n * sizeof *c);
}

void inf_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
               const float *b, int64_t ldb, float *c, int64_t ldc, int accumulate) {
    if (m == 0 || n == 0) return;
    if (k == 0) {
        scale_only(m, n, c, ldc, accumulate);
        return;
    }
#ifdef _OPENMP
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (threads > 1) omp_set_num_threads(1);
#endif
    dnnl_status_t status = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb,
                                      accumulate ? 1.0f : 0.0f, c, ldc);
#ifdef _OPENMP
    if (threads > 1) omp_set_num_threads(threads);
#endif
    if (status != dnnl_success) {
        fprintf(stderr, "error: matrix product %lld x %lld x %lld failed: %s\n", (long long)m,
                (long long)n, (long long)k,
                status == dnnl_out_of_memory ? "out of memory" : "oneDNN refused its arguments");
        _exit(status == dnnl_out_of_memory ? 5 : 3);
    }
}
