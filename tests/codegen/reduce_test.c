/* reduce_test.c - reductions of every layout, alone and fused, against the evaluator. */
#include "tests/codegen/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static bool is_long(void) { return getenv("INFINIC_LONG") != NULL; }

static void shape_text(char *to, int n, const int64_t *dim) {
    size_t at = (size_t)sprintf(to, "[");
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(to + at, "%s%lld", i ? "," : "", (long long)dim[i]);
    sprintf(to + at, "]");
}

/* One reduction of f32 `dim` over the axes in `mask`. */
static void add_reduction(KernelSet *s, const char *op, int ndim, const int64_t *dim, unsigned mask,
                          KernelInput input) {
    int64_t kept[NDIM_MAX], axes[NDIM_MAX];
    int nkept = 0, naxes = 0;
    for (int i = 0; i < ndim; i++) {
        if (mask >> i & 1)
            axes[naxes++] = i;
        else
            kept[nkept++] = dim[i];
    }
    char from[128], to[128], list[128];
    shape_text(from, ndim, dim);
    shape_text(to, nkept, kept);
    shape_text(list, naxes, axes);
    kernels_addf(
        s, (KernelCase){.form = "reduce", .input = input, .tolerance = 3e-5},
        "(%%0: f32%s) { %%1 = exp %%0 : f32%s %%2 = %s %%1 {axes=%s} : f32%s %%3 = neg %%2 : f32%s "
        "return %%3, %%2 }",
        from, from, op, list, to, to);
}

static void every_layout(void **state) {
    (void)state;
    static const char *const op[] = {"reduce_sum", "reduce_max", "reduce_min"};
    static const int64_t dim[4] = {3, 4, 5, 19};
    KernelSet *s = kernels_new();
    for (unsigned mask = 1; mask < 16; mask++)
        for (int i = 0; i < 3; i++)
            if (i == 0 || is_long()) add_reduction(s, op[i], 4, dim, mask, INPUT_plain);
    for (int i = 1; i < 3; i++) add_reduction(s, op[i], 4, dim, 5, INPUT_special);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void ragged(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    for (int64_t n = 1; n <= 67; n += is_long() ? 1 : 11) {
        add_reduction(s, "reduce_sum", 2, (int64_t[]){3, n}, 2, INPUT_plain);
        add_reduction(s, "reduce_sum", 2, (int64_t[]){n, 3}, 1, INPUT_plain);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Runs of several blocks, one stage and two, with and without a rest. */
static void long_sums(void **state) {
    (void)state;
    static const struct {
        int ndim;
        int64_t dim[4];
        unsigned mask;
    } shape[] = {
        {1, {100003}, 1},      {1, {8192}, 1},           {1, {65536}, 1},
        {2, {2, 40001}, 2},    {2, {3, 4097}, 2},        {2, {1000, 10}, 1},
        {2, {20000, 7}, 1},    {2, {4096, 700}, 1},      {3, {40, 3, 900}, 5},
        {3, {30, 4, 700}, 5},  {4, {64, 6, 12, 12}, 13}, {3, {4, 200, 300}, 3},
        {3, {300, 2, 130}, 1},
    };
    KernelSet *s = kernels_new();
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        add_reduction(s, "reduce_sum", shape[i].ndim, shape[i].dim, shape[i].mask, INPUT_plain);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Two independent sums over one domain, each with its own work before. */
static void several(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "reduce", .tolerance = 3e-5};
    static const char *const axes[] = {"[0]", "[1]", "[0,1]"}, *const result[] = {"[90]", "[1200]",
                                                                                  "[]"};
    for (int i = 0; i < 3; i++)
        kernels_addf(
            s, c,
            "(%%0: f32[1200,90], %%1: f32[90]) { %%2 = broadcast %%1 {axes=[1]} : f32[1200,90] "
            "%%3 = mul %%0, %%2 : f32[1200,90] %%4 = reduce_sum %%3 {axes=%s} : f32%s "
            "%%5 = reduce_max %%0 {axes=%s} : f32%s %%6 = add %%4, %%5 : f32%s return %%6, %%4 }",
            axes[i], result[i], axes[i], result[i], result[i]);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void integers(void **state) {
    (void)state;
    static const char *const op[] = {"reduce_sum", "reduce_max", "reduce_min"};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 3; i++) {
        KernelCase c = {.form = "reduce"};
        kernels_addf(s, c, "(%%0: i32[7,90]) { %%1 = %s %%0 {axes=[1]} : i32[7] return %%1 }",
                     op[i]);
        kernels_addf(s, c, "(%%0: i32[90,7]) { %%1 = %s %%0 {axes=[0]} : i32[7] return %%1 }",
                     op[i]);
        kernels_addf(s, c, "(%%0: i32[90000]) { %%1 = %s %%0 {axes=[0]} : i32[] return %%1 }",
                     op[i]);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Nothing to add gives what a reduction starts with; no results read nothing. */
static void empty(void **state) {
    (void)state;
    static const char *const shape[] = {"[4,0]", "[0,4]", "[0,4]", "[4,0]", "[0]"};
    static const char *const axes[] = {"[1]", "[0]", "[1]", "[0]", "[0]"};
    static const char *const result[] = {"[4]", "[4]", "[0]", "[0]", "[]"};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 5; i++)
        kernels_addf(s, (KernelCase){.form = "reduce"},
                     "(%%0: f32%s) { %%1 = neg %%0 : f32%s %%2 = reduce_sum %%1 {axes=%s} : f32%s "
                     "%%3 = reduce_max %%0 {axes=%s} : f32%s return %%2, %%3 }",
                     shape[i], shape[i], axes[i], result[i], axes[i], result[i]);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Softmax, cross-entropy and its gradient in one kernel: three dependent reductions over rows. */
static void add_softmax(KernelSet *s, int rows, int n, KernelInput input) {
    kernels_addf(
        s, (KernelCase){.form = "reduce", .limit = n, .input = input, .tolerance = 1e-5},
        "(%%0: f32[%d,%d], %%1: i32[%d]) { %%2 = reduce_max %%0 {axes=[1]} : f32[%d] "
        "%%3 = broadcast %%2 {axes=[0]} : f32[%d,%d] %%4 = sub %%0, %%3 : f32[%d,%d] "
        "%%5 = exp %%4 : f32[%d,%d] %%6 = reduce_sum %%5 {axes=[1]} : f32[%d] %%7 = log %%6 : "
        "f32[%d] "
        "%%8 = iota {axis=1} : i32[%d,%d] %%9 = broadcast %%1 {axes=[0]} : i32[%d,%d] "
        "%%10 = eq %%8, %%9 : bool[%d,%d] %%11 = const {value=0.0} : f32[%d,%d] "
        "%%12 = select %%10, %%4, %%11 : f32[%d,%d] %%13 = reduce_sum %%12 {axes=[1]} : f32[%d] "
        "%%14 = sub %%7, %%13 : f32[%d] %%15 = broadcast %%6 {axes=[0]} : f32[%d,%d] "
        "%%16 = div %%5, %%15 : f32[%d,%d] %%17 = cast %%10 : f32[%d,%d] "
        "%%18 = sub %%16, %%17 : f32[%d,%d] return %%14, %%18, %%6 }",
        rows, n, rows, rows, rows, n, rows, n, rows, n, rows, rows, rows, n, rows, n, rows, n, rows,
        n, rows, n, rows, rows, rows, n, rows, n, rows, n, rows, n);
}

static void softmax(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    add_softmax(s, 64, 10, INPUT_plain);
    add_softmax(s, 7, 1, INPUT_plain);
    add_softmax(s, 5, 67, INPUT_plain);
    add_softmax(s, 3, 1000, INPUT_plain);
    add_softmax(s, 2, 20000, INPUT_plain);
    add_softmax(s, 9, 33, INPUT_special);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* The classifier over rows with padding: loss, count and gradient; targets may be ignored. */
static void add_classifier(KernelSet *s, int rows, int width, int classes, KernelInput input) {
    kernels_addf(
        s, (KernelCase){.form = "reduce", .limit = classes, .input = input, .tolerance = 1e-5},
        "(%%0: f32[%d,%d], %%1: i32[%d]) { %%2 = iota {axis=1} : i32[%d,%d] "
        "%%3 = const {value=%d} : i32[%d,%d] %%4 = lt %%2, %%3 %%5 = const {value=-inf} : "
        "f32[%d,%d] "
        "%%6 = select %%4, %%0, %%5 %%7 = reduce_max %%6 {axes=[1]} "
        "%%8 = broadcast %%7 {axes=[0]} : f32[%d,%d] %%9 = sub %%6, %%8 %%10 = exp %%9 "
        "%%11 = reduce_sum %%10 {axes=[1]} %%12 = broadcast %%1 {axes=[0]} : i32[%d,%d] "
        "%%13 = eq %%2, %%12 %%14 = const {value=-1} : i32[%d] %%15 = ne %%1, %%14 "
        "%%16 = const {value=0.0} : f32[%d,%d] %%17 = select %%13, %%9, %%16 "
        "%%18 = reduce_sum %%17 {axes=[1]} %%19 = log %%11 %%20 = sub %%19, %%18 "
        "%%21 = const {value=0.0} : f32[%d] %%22 = select %%15, %%20, %%21 %%23 = cast %%15 : "
        "f32[%d] "
        "%%24 = broadcast %%11 {axes=[0]} : f32[%d,%d] %%25 = div %%10, %%24 "
        "%%26 = cast %%13 : f32[%d,%d] %%27 = sub %%25, %%26 "
        "%%28 = broadcast %%15 {axes=[0]} : bool[%d,%d] %%29 = select %%28, %%27, %%16 "
        "return %%22, %%23, %%29 }",
        rows, width, rows, rows, width, classes, rows, width, rows, width, rows, width, rows, width,
        rows, rows, width, rows, rows, rows, width, rows, width, rows, width);
}

static void classifier(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    add_classifier(s, 16, 16, 13, INPUT_plain);
    add_classifier(s, 5, 67, 60, INPUT_plain);
    add_classifier(s, 3, 1024, 1001, INPUT_plain);
    add_classifier(s, 300, 9000, 8999, INPUT_plain);
    add_classifier(s, 265, 25000, 24999, INPUT_plain); /* more than registers hold */
    add_classifier(s, 9, 40, 33, INPUT_special);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* The gradient of a maximum of 70,000 equal values is 1 / 70,000 each (CASES G3). */
static void equal_values(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "reduce", .input = INPUT_equal};
    c.body =
        "(%0: f32[70000]) { %1 = reduce_max %0 {axes=[0]} : f32[] %2 = broadcast %1 {axes=[]} : "
        "f32[70000] "
        "%3 = eq %0, %2 : bool[70000] %4 = cast %3 : f32[70000] %5 = reduce_sum %4 {axes=[0]} : "
        "f32[] "
        "%6 = broadcast %5 {axes=[]} : f32[70000] %7 = div %4, %6 : f32[70000] return %7, %5 }";
    int at = kernels_add(s, c);
    assert_int_equal(kernels_run(s), 0);
    assert_true(kernels_result(s, at, 1)[0] == 70000);
    assert_true((float)kernels_result(s, at, 0)[69999] == 1.0f / 70000.0f);
    kernels_free(s);
}

/* A fully masked row gives 0, not NaN; a NaN in a row stays one (CASES G7). */
static void masked_rows(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "reduce", .input = INPUT_constant};
    c.body =
        "(%0: f32[4,40]) { %1 = reduce_max %0 {axes=[1]} : f32[4] %2 = const {value=-inf} : f32[4] "
        "%3 = eq %1, %2 : bool[4] %4 = const {value=0.0} : f32[4] %5 = select %3, %4, %1 : f32[4] "
        "%6 = broadcast %5 {axes=[0]} : f32[4,40] %7 = sub %0, %6 : f32[4,40] %8 = exp %7 : "
        "f32[4,40] "
        "%9 = reduce_sum %8 {axes=[1]} : f32[4] %10 = const {value=1.0} : f32[4] "
        "%11 = select %3, %10, %9 : f32[4] %12 = broadcast %11 {axes=[0]} : f32[4,40] "
        "%13 = div %8, %12 : f32[4,40] return %13 }";
    c.value = -(double)INFINITY;
    int masked = kernels_add(s, c);
    c.value = (double)NAN;
    int bad = kernels_add(s, c);
    assert_int_equal(kernels_run(s), 0);
    assert_true(kernels_result(s, masked, 0)[7] == 0);
    assert_true(isnan(kernels_result(s, bad, 0)[7]));
    kernels_free(s);
}

/* Variance in two passes at a mean far from 0 (CASES G9), any rank, axes of extent 1 (G4). */
static void layer_norm(void **state) {
    (void)state;
    static const char *const lead[] = {"3,5,", "1,1,", "", "2,1,4,"};
    static const char *const outer[] = {"[3,5]", "[1,1]", "[]", "[2,1,4]"};
    static const char *const list[] = {"[2]", "[2]", "[0]", "[3]"}, *const axes[] = {"[0,1]",
                                                                                     "[0,1]", "[]",
                                                                                     "[0,1,2]"};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 4; i++) {
        char d[64];
        sprintf(d, "[%s48]", lead[i]);
        const char *k = outer[i], *a = axes[i];
        kernels_addf(s, (KernelCase){.form = "reduce", .tolerance = 2e-5},
                     "(%%0: f32%s, %%1: f32[48]) { %%2 = reduce_sum %%0 {axes=%s} : f32%s "
                     "%%3 = const {value=48.0} : f32%s %%4 = div %%2, %%3 : f32%s %%5 = broadcast "
                     "%%4 {axes=%s} : f32%s "
                     "%%6 = sub %%0, %%5 : f32%s %%7 = mul %%6, %%6 : f32%s %%8 = reduce_sum %%7 "
                     "{axes=%s} : f32%s "
                     "%%9 = div %%8, %%3 : f32%s %%10 = const {value=1e-5} : f32%s %%11 = add %%9, "
                     "%%10 : f32%s "
                     "%%12 = rsqrt %%11 : f32%s %%13 = broadcast %%12 {axes=%s} : f32%s %%14 = mul "
                     "%%6, %%13 : f32%s "
                     "%%15 = broadcast %%1 {axes=%s} : f32%s %%16 = mul %%14, %%15 : f32%s return "
                     "%%16, %%4, %%12 }",
                     d, list[i], k, k, k, a, d, d, d, list[i], k, k, k, k, k, a, d, d, list[i], d,
                     d);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void argmax(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    static const char *const result[] = {"[5,6]", "[4,6]", "[4,5]"};
    static const KernelInput input[] = {INPUT_plain, INPUT_special, INPUT_equal};
    for (int axis = 0; axis < 3; axis++)
        for (int i = 0; i < 3; i++)
            kernels_addf(s, (KernelCase){.form = "argmax", .input = input[i]},
                         "(%%0: f32[4,5,6]) { %%1 = argmax %%0 {axis=%d} : i32%s return %%1 }",
                         axis, result[axis]);
    kernels_add(
        s, (KernelCase){.form = "argmax",
                        .limit = 10,
                        .body = "(%0: f32[64,10], %1: i32[64]) { %2 = argmax %0 {axis=1} : i32[64] "
                                "%3 = eq %2, %1 : bool[64] %4 = cast %3 : f32[64] return %4 }"});
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout), cmocka_unit_test(ragged),
        cmocka_unit_test(long_sums),    cmocka_unit_test(several),
        cmocka_unit_test(integers),     cmocka_unit_test(empty),
        cmocka_unit_test(softmax),      cmocka_unit_test(classifier),
        cmocka_unit_test(equal_values), cmocka_unit_test(masked_rows),
        cmocka_unit_test(layer_norm),   cmocka_unit_test(argmax)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
