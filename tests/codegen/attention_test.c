/* attention_test.c - attention kernels against the evaluator.
 *
 * Tiles with remainders in queries, keys and head sizes, causal or not, grouped heads; operands in
 * place inside one tensor, results in place inside one tensor; results that nobody wants. The same
 * bits on 1, 2 and 4 threads, and as separate kernels for movement and attention.
 */
#include "tests/codegen/kernels.h"

#include "codegen/attention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

typedef struct Sizes {
    int batch, heads, groups, queries, keys, dim, causal;
} Sizes;

static const Sizes sizes[] = {
    {1, 1, 1, 1, 1, 8, 1},     {2, 2, 2, 5, 5, 8, 1},       {1, 2, 1, 33, 65, 16, 0},
    {1, 4, 2, 70, 70, 24, 1},  {2, 3, 1, 64, 64, 64, 1},    {1, 2, 2, 130, 130, 40, 1},
    {1, 2, 1, 31, 200, 72, 0}, {1, 1, 1, 100, 100, 128, 1}, {1, 2, 2, 67, 67, 256, 1},
    {1, 3, 3, 200, 3, 32, 0},  {2, 6, 2, 96, 96, 8, 1},     {1, 1, 1, 257, 257, 80, 1},
};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Scores of a few units. */
static double scale_of(const Sizes *s) { return 0.2 / (double)s->dim; }

static void test_forward(void **state) {
    (void)state;
    KernelSet *set = kernels_new();
    for (int i = 0; i < SIZES; i++) {
        const Sizes *s = &sizes[i];
        kernels_addf(set, (KernelCase){.form = "attention", .tolerance = 5e-5},
                     "(%%0: f32[%d,%d,%d,%d], %%1: f32[%d,%d,%d,%d], %%2: f32[%d,%d,%d,%d]) {\n"
                     "  %%3, %%4 = attention %%0, %%1, %%2 {causal=%d, scale=%g}\n"
                     "  return %%3, %%4\n}",
                     s->batch, s->heads, s->queries, s->dim, s->batch, s->groups, s->keys, s->dim,
                     s->batch, s->groups, s->keys, s->dim, s->causal, i % 2 ? scale_of(s) : 0.4);
    }
    assert_int_equal(kernels_run(set), 0);
    kernels_free(set);
}

static void test_backward(void **state) {
    (void)state;
    KernelSet *set = kernels_new();
    for (int i = 0; i < SIZES; i++) {
        const Sizes *s = &sizes[i];
        static const char *const results[] = {"%6, %7, %8", "%7", "%6", "%6, %8"};
        kernels_addf(
            set, (KernelCase){.form = "attention_grad", .tolerance = 1e-4},
            "(%%0: f32[%d,%d,%d,%d], %%1: f32[%d,%d,%d,%d], %%2: f32[%d,%d,%d,%d],\n"
            " %%3: f32[%d,%d,%d,%d], %%4: f32[%d,%d,%d], %%5: f32[%d,%d,%d,%d]) {\n"
            "  %%6, %%7, %%8 = attention_grad %%0, %%1, %%2, %%3, %%4, %%5 {causal=%d, scale=%g}\n"
            "  return %s\n}",
            s->batch, s->heads, s->queries, s->dim, s->batch, s->groups, s->keys, s->dim, s->batch,
            s->groups, s->keys, s->dim, s->batch, s->heads, s->queries, s->dim, s->batch, s->heads,
            s->queries, s->batch, s->heads, s->queries, s->dim, s->causal, scale_of(s),
            results[i % 4 == 3 ? i / 4 % 4 : 0]);
    }
    assert_int_equal(kernels_run(set), 0);
    kernels_free(set);
}

/* Columns [from, from + n * dim) of value `x` [batch, rows, width] as [batch, n, rows, dim], in
 * values `at` to at + 2. */
static int print_columns(char *out, size_t room, int x, int at, const Sizes *s, int rows, int from,
                         int n) {
    return snprintf(out, room,
                    "  %%%d = slice %%%d {begin=[0,0,%d], end=[%d,%d,%d], step=[1,1,1]}\n"
                    "  %%%d = reshape %%%d : f32[%d,%d,%d,%d]\n"
                    "  %%%d = transpose %%%d {perm=[0,2,1,3]}\n",
                    at, x, from, s->batch, rows, from + n * s->dim, at + 1, at, s->batch, rows, n,
                    s->dim, at + 2, at + 1);
}

/* As models have it: q, k and v in [B, T, (H + 2 G) K], results in [B, T, H K] and back. */
static void test_in_place(void **state) {
    (void)state;
    KernelSet *set = kernels_new();
    for (int i = 0; i < SIZES; i++) {
        const Sizes *s = &sizes[i];
        if (s->queries != s->keys) continue;
        char text[2000];
        int t = s->queries, hk = s->heads * s->dim, gk = s->groups * s->dim, n = 0;
        n += print_columns(text + n, sizeof text - (size_t)n, 0, 1, s, t, 0, s->heads);
        n += print_columns(text + n, sizeof text - (size_t)n, 0, 4, s, t, hk, s->groups);
        print_columns(text + n, sizeof text - (size_t)n, 0, 7, s, t, hk + gk, s->groups);
        kernels_addf(set, (KernelCase){.form = "attention", .tolerance = 5e-5},
                     "(%%0: f32[%d,%d,%d]) {\n%s"
                     "  %%10, %%11 = attention %%3, %%6, %%9 {causal=%d, scale=0.3}\n"
                     "  %%12 = transpose %%10 {perm=[0,2,1,3]}\n"
                     "  %%13 = reshape %%12 : f32[%d,%d,%d]\n  return %%13, %%11\n}",
                     s->batch, t, hk + 2 * gk, text, s->causal, s->batch, t, hk);
    }
    assert_int_equal(kernels_run(set), 0);
    kernels_free(set);
}

static void test_gradient_in_place(void **state) {
    (void)state;
    KernelSet *set = kernels_new();
    for (int i = 0; i < SIZES; i++) {
        const Sizes *s = &sizes[i];
        if (s->queries != s->keys) continue;
        char text[4000];
        int t = s->queries, hk = s->heads * s->dim, gk = s->groups * s->dim, n = 0;
        n += print_columns(text + n, sizeof text - (size_t)n, 0, 4, s, t, 0, s->heads);
        n += print_columns(text + n, sizeof text - (size_t)n, 0, 7, s, t, hk, s->groups);
        n += print_columns(text + n, sizeof text - (size_t)n, 0, 10, s, t, hk + gk, s->groups);
        n += print_columns(text + n, sizeof text - (size_t)n, 1, 13, s, t, 0, s->heads);
        print_columns(text + n, sizeof text - (size_t)n, 3, 16, s, t, 0, s->heads);
        kernels_addf(set, (KernelCase){.form = "attention_grad", .tolerance = 1e-4},
                     "(%%0: f32[%d,%d,%d], %%1: f32[%d,%d,%d], %%2: f32[%d,%d,%d],\n"
                     " %%3: f32[%d,%d,%d]) {\n%s"
                     "  %%19, %%20, %%21 = attention_grad %%6, %%9, %%12, %%15, %%2, %%18 "
                     "{causal=%d, scale=%g}\n"
                     "  %%22 = transpose %%19 {perm=[0,2,1,3]}\n"
                     "  %%23 = reshape %%22 : f32[%d,%d,%d]\n"
                     "  %%24 = transpose %%20 {perm=[0,2,1,3]}\n"
                     "  %%25 = reshape %%24 : f32[%d,%d,%d]\n"
                     "  %%26 = transpose %%21 {perm=[0,2,1,3]}\n"
                     "  %%27 = reshape %%26 : f32[%d,%d,%d]\n"
                     "  %%28 = concat %%23, %%25, %%27 {axis=2}\n  return %%28\n}",
                     s->batch, t, hk + 2 * gk, s->batch, t, hk, s->batch, s->heads, t, s->batch, t,
                     hk, text, s->causal, scale_of(s), s->batch, t, hk, s->batch, t, gk, s->batch,
                     t, gk);
    }
    assert_int_equal(kernels_run(set), 0);
    kernels_free(set);
}

/* Scores that are no numbers, or infinite. */
static void test_special(void **state) {
    (void)state;
    KernelSet *set = kernels_new();
    kernels_add(set,
                (KernelCase){.form = "attention",
                             .input = INPUT_special,
                             .body = "(%0: f32[1,2,40,8], %1: f32[1,2,40,8], %2: f32[1,2,40,8]) "
                                     "{ %3, %4 = attention %0, %1, %2 {causal=0, scale=0.3} "
                                     "return %3, %4 }"});
    assert_int_equal(kernels_run(set), 0);
    kernels_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),  cmocka_unit_test(test_backward),
        cmocka_unit_test(test_in_place), cmocka_unit_test(test_gradient_in_place),
        cmocka_unit_test(test_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
