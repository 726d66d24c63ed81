/* gemm_libs.c - measure one CPU matrix library the way generated programs use it.
 *
 * usage: gemm_libs LIBRARY.so [THREADS]
 *
 * Loads the library with dlopen (dnnl_sgemm where it has one, else cblas_sgemm) and runs the
 * products of our models on a tile grid fixed by the shape: OpenMP goes over the tiles, the library
 * runs single-threaded inside one. Prints GFLOP/s (median), the error against f64 (norm of the
 * difference over norm), and whether 1, 2 and 4 threads give the same bits.
 * build: cc -O2 -fopenmp tests/bench/gemm_libs.c -o gemm_libs -ldl -lm
 */
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int ta, tb;
    int64_t m, n, k;
} Shape;

/* Forward is x [m,k] * w [k,n]; dx = dy * w^T; dw = x^T * dy. */
static const Shape shapes[] = {
    {"cnn fc forward", 0, 0, 64, 10, 18432},
    {"cnn fc forward, w [n,k]", 0, 1, 64, 10, 18432},
    {"cnn fc dx, w [n,k]", 0, 0, 64, 18432, 10},
    {"cnn fc dx, w [k,n]", 0, 1, 64, 18432, 10},
    {"cnn fc dw", 1, 0, 18432, 10, 64},
    {"cnn fc dw, [n,k]", 1, 0, 10, 18432, 64},
    {"mlp fc1 forward, w [n,k]", 0, 1, 64, 30, 784},
    {"mlp fc1 dw, [n,k]", 1, 0, 30, 784, 64},
    {"mlp fc2 forward, w [n,k]", 0, 1, 64, 10, 30},
    {"gpt2 proj forward", 0, 0, 256, 768, 768},
    {"gpt2 proj dx", 0, 1, 256, 768, 768},
    {"gpt2 proj dw", 1, 0, 768, 768, 256},
    {"gpt2 fc forward", 0, 0, 256, 3072, 768},
    {"gpt2 fc dw", 1, 0, 768, 3072, 256},
    {"gpt2 fcproj forward", 0, 0, 256, 768, 3072},
    {"gpt2 fcproj dx", 0, 1, 256, 3072, 768},
    {"gpt2 head forward, w [n,k]", 0, 1, 256, 50304, 768},
    {"gpt2 head dx", 0, 0, 256, 768, 50304},
    {"gpt2 head dw", 1, 0, 50304, 768, 256},
};

typedef int (*DnnlSgemm)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                         const float *, int64_t, float, float *, int64_t);
typedef void (*CblasSgemm)(int, int, int, int, int, int, float, const float *, int, const float *,
                           int, float, float *, int);
static DnnlSgemm dnnl;
static CblasSgemm cblas;

static void sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, float *c, int64_t ldc, int accumulate) {
    float beta = accumulate ? 1.0f : 0.0f;
    if (dnnl)
        dnnl(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
    else
        cblas(101, ta ? 112 : 111, tb ? 112 : 111, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b,
              (int)ldb, beta, c, (int)ldc);
}

/* Tiles of at most 128 x 768 outputs; long K in slices of 1024 added in order. */
static void product(const Shape *s, const float *a, const float *b, float *c) {
    enum { TM = 128, TN = 768, TK = 4096 };
    int64_t lda = s->ta ? s->m : s->k, ldb = s->tb ? s->k : s->n, ldc = s->n;
    int64_t tm = s->m < TM ? s->m : TM, tn = s->n < TN ? s->n : TN;
    if ((s->m + tm - 1) / tm * ((s->n + tn - 1) / tn) < 4) {
        if (s->m >= s->n) tm = (s->m + 3) / 4;
        else tn = (s->n + 3) / 4;
    }
    int64_t rows = (s->m + tm - 1) / tm, cols = (s->n + tn - 1) / tn;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < rows * cols; t++) {
        int64_t i = t / cols * tm, j = t % cols * tn;
        int64_t m = s->m - i < tm ? s->m - i : tm, n = s->n - j < tn ? s->n - j : tn;
        for (int64_t p = 0; p < s->k; p += TK) {
            int64_t k = s->k - p < TK ? s->k - p : TK;
            sgemm(s->ta, s->tb, m, n, k, a + (s->ta ? p * lda + i : i * lda + p), lda,
                  b + (s->tb ? j * ldb + p : p * ldb + j), ldb, c + i * ldc + j, ldc, p > 0);
        }
    }
}

static float *random_floats(int64_t n, uint32_t seed) {
    float *x = aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * (1.0f / 2147483648.0f);
    }
    return x;
}

/* Error of up to 4000 sampled outputs, norm of the difference over norm. */
static double error_f64(const Shape *s, const float *a, const float *b, const float *c) {
    double diff = 0, norm = 0;
    int64_t total = s->m * s->n, step = total / 4000 + 1;
    for (int64_t q = 0; q < total; q += step) {
        int64_t i = q / s->n, j = q % s->n;
        double sum = 0;
        for (int64_t p = 0; p < s->k; p++)
            sum += (double)a[s->ta ? p * s->m + i : i * s->k + p] *
                   (double)b[s->tb ? j * s->k + p : p * s->n + j];
        diff += (sum - (double)c[q]) * (sum - (double)c[q]);
        norm += sum * sum;
    }
    return sqrt(diff / norm);
}

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void measure(const Shape *s, int threads) {
    float *a = random_floats(s->m * s->k, 1), *b = random_floats(s->k * s->n, 2);
    float *c = random_floats(s->m * s->n, 3), *c0 = random_floats(s->m * s->n, 4);
    size_t bytes = (size_t)(s->m * s->n) * sizeof(float);
    int same = 1;
    static const int counts[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        omp_set_num_threads(counts[i]);
        product(s, a, b, i ? c : c0);
        if (i && memcmp(c, c0, bytes) != 0) same = 0;
    }
    omp_set_num_threads(threads);
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, times[201];
    int n = (int)(6e9 / flops);
    n = n < 5 ? 5 : n > 200 ? 200 : n;
    for (int i = 0; i < n; i++) {
        double t = omp_get_wtime();
        product(s, a, b, c);
        times[i] = omp_get_wtime() - t;
    }
    qsort(times, (size_t)n, sizeof *times, ascending);
    printf("%-28s %6lld %6lld %6lld  %8.1f us  %7.1f GFLOP/s  error %.1e  %s\n", s->name,
           (long long)s->m, (long long)s->n, (long long)s->k, times[n / 2] * 1e6,
           flops / times[n / 2] * 1e-9, error_f64(s, a, b, c),
           same ? "same bits with 1, 2, 4 threads" : "BITS DIFFER");
    fflush(stdout);
    free(a), free(b), free(c), free(c0);
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: gemm_libs LIBRARY.so [THREADS]\n"), 2;
    void *lib = dlopen(argv[1], RTLD_NOW);
    if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
    dnnl = (DnnlSgemm)dlsym(lib, "dnnl_sgemm");
    cblas = (CblasSgemm)dlsym(lib, "cblas_sgemm");
    if (!dnnl && !cblas) return fprintf(stderr, "%s has no sgemm\n", argv[1]), 1;
    void (*blas_threads)(int) = (void (*)(int))dlsym(lib, "openblas_set_num_threads");
    if (blas_threads) blas_threads(1);
    char *(*config)(void) = (char *(*)(void))dlsym(lib, "openblas_get_config");
    if (config) printf("%s\n", config());
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        measure(&shapes[i], argc > 2 ? atoi(argv[2]) : 2);
    return 0;
}
