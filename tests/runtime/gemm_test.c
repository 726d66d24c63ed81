/* gemm_test.c - inf_sgemm against f64 products and against itself with other thread counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka.h needs the four above
#include <cmocka.h>

#include "runtime/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct {
    int64_t m, n, k, pad; // pad: floats between the end of a row and the next
} Shape;

static const Shape shapes[] = {
    {1, 1, 1, 0},   {2, 3, 5, 0},    {64, 10, 1000, 0}, {10, 500, 64, 0},
    {30, 784, 64, 0}, {17, 33, 129, 3}, {64, 64, 64, 16},  {256, 96, 768, 0},
};

static float *fill(int64_t n, uint32_t seed) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    return x;
}

/* Norm of the error over norm; `before` is what c held before an accumulating product. */
static double error_of(const Shape *s, int ta, int tb, const float *a, const float *b,
                       const float *c, const float *before) {
    int64_t lda = (ta ? s->m : s->k) + s->pad, ldb = (tb ? s->k : s->n) + s->pad;
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            int64_t q = i * (s->n + s->pad) + j;
            double sum = before ? (double)before[q] : 0;
            for (int64_t p = 0; p < s->k; p++)
                sum += (double)a[ta ? p * lda + i : i * lda + p] *
                       (double)b[tb ? j * ldb + p : p * ldb + j];
            diff += (sum - (double)c[q]) * (sum - (double)c[q]);
            norm += sum * sum;
        }
    return sqrt(diff / norm);
}

static void product(const Shape *s, int ta, int tb, const float *a, const float *b, float *c,
                    int accumulate) {
    inf_sgemm(ta, tb, s->m, s->n, s->k, a, (ta ? s->m : s->k) + s->pad, b,
              (tb ? s->k : s->n) + s->pad, c, s->n + s->pad, accumulate);
}

static void test_against_f64(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 8; t++) {
            const Shape *s = &shapes[i];
            int ta = t & 1, tb = t >> 1 & 1, accumulate = t >> 2;
            int64_t size_c = s->m * (s->n + s->pad);
            float *a = fill((s->m + s->pad) * (s->k + s->pad), 1);
            float *b = fill((s->k + s->pad) * (s->n + s->pad), 2);
            float *c = fill(size_c, 3), *before = fill(size_c, 3);
            product(s, ta, tb, a, b, c, accumulate);
            assert_true(error_of(s, ta, tb, a, b, c, accumulate ? before : NULL) < 2e-6);
            for (int64_t r = 0; r < s->m; r++) // the floats between rows stay as they were
                assert_memory_equal(c + r * (s->n + s->pad) + s->n,
                                    before + r * (s->n + s->pad) + s->n,
                                    (size_t)s->pad * sizeof *c);
            free(a), free(b), free(c), free(before);
        }
}

static void test_empty(void **unused) {
    (void)unused;
    float a[4] = {1, 2, 3, 4}, c[4] = {5, 6, 7, 8};
    inf_sgemm(0, 0, 0, 2, 2, a, 2, a, 2, c, 2, 0);
    inf_sgemm(0, 0, 2, 0, 2, a, 2, a, 2, c, 2, 0);
    inf_sgemm(0, 0, 2, 2, 0, a, 2, a, 2, c, 2, 1);
    assert_true(c[0] == 5 && c[1] == 6 && c[2] == 7 && c[3] == 8);
    inf_sgemm(0, 0, 1, 2, 0, a, 2, a, 2, c, 2, 0);
    assert_true(c[0] == 0 && c[1] == 0 && c[2] == 7 && c[3] == 8);
}

#ifdef _OPENMP
/* The same bits with 1, 2 and 4 threads, outside a parallel region and inside one. */
static void check_threads(const Shape *s) {
    enum { COPIES = 8 };
    size_t bytes = (size_t)(s->m * s->n) * sizeof(float);
    float *a = fill(s->m * s->k, 1), *b = fill(s->k * s->n, 2), *c1 = fill(s->m * s->n, 3);
    float *c[COPIES];
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    product(s, 0, 1, a, b, c1, 0);
    for (int i = 0; i < COPIES; i++) c[i] = fill(s->m * s->n, 4);
    for (int threads = 2; threads <= 4; threads *= 2) {
        omp_set_num_threads(threads);
        product(s, 0, 1, a, b, c[0], 0);
        assert_memory_equal(c[0], c1, bytes);
        assert_int_equal(omp_get_max_threads(), threads);
    }
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < COPIES; i++) product(s, 0, 1, a, b, c[i], 0);
    for (int i = 0; i < COPIES; i++) {
        assert_memory_equal(c[i], c1, bytes);
        free(c[i]);
    }
    omp_set_num_threads(before);
    free(a), free(b), free(c1);
}
#endif

/* With the last two shapes oneDNN 2.6 gives other bits for other thread counts when it is let. */
static void test_bits_and_threads(void **unused) {
    (void)unused;
#ifdef _OPENMP
    static const Shape split[] = {{64, 10, 18432, 0}, {64, 128, 784, 0}, {1, 1, 18432, 0}};
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) check_threads(&split[i]);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_f64),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_bits_and_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
