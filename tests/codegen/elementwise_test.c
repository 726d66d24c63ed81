/* elementwise_test.c - every elementwise op against the evaluator, special values and all sizes. */
#include "tests/codegen/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static bool is_logical(Op op) { return op == OP_and || op == OP_or || op == OP_not; }

static bool is_predicate(Op op) {
    static const Op ops[] = {OP_is_finite, OP_lt, OP_le, OP_gt, OP_ge, OP_eq, OP_ne};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (ops[i] == op) return true;
    return false;
}

static void add_op(KernelSet *s, Op op, const char *in, int64_t n, KernelInput input) {
    const char *out = is_predicate(op) ? "bool" : in;
    int operands = op_operands(op);
    KernelCase c = {.form = "map", .input = input};
    if (op == OP_select)
        kernels_addf(s, c,
                     "(%%0: bool[%lld], %%1: %s[%lld], %%2: %s[%lld]) { %%3 = select %%0, %%1, %%2 "
                     ": %s[%lld] "
                     "return %%3 }",
                     (long long)n, in, (long long)n, in, (long long)n, in, (long long)n);
    else if (operands == 2)
        kernels_addf(s, c,
                     "(%%0: %s[%lld], %%1: %s[%lld]) { %%2 = %s %%0, %%1 : %s[%lld] return %%2 }",
                     in, (long long)n, in, (long long)n, op_name(op), out, (long long)n);
    else
        kernels_addf(s, c, "(%%0: %s[%lld]) { %%1 = %s %%0 : %s[%lld] return %%1 }", in,
                     (long long)n, op_name(op), out, (long long)n);
}

static void every_op(void **state) {
    (void)state;
    static const Op integer_ops[] = {OP_neg, OP_add, OP_sub, OP_mul, OP_max, OP_min,   OP_lt,
                                     OP_le,  OP_gt,  OP_ge,  OP_eq,  OP_ne,  OP_select};
    KernelSet *s = kernels_new();
    for (Op op = OP_none + 1; op < OP_count; op++) {
        if (op_kind(op) != KIND_elementwise || op == OP_cast) continue;
        const char *in = is_logical(op) ? "bool" : "f32";
        add_op(s, op, in, 999, INPUT_special);
        add_op(s, op, in, 67, INPUT_plain);
    }
    for (size_t i = 0; i < sizeof integer_ops / sizeof integer_ops[0]; i++)
        add_op(s, integer_ops[i], "i32", 133, INPUT_plain);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void casts(void **state) {
    (void)state;
    static const char *const type[] = {"f32", "i32", "bool", "u8"};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            kernels_addf(s, (KernelCase){.form = "map"},
                         "(%%0: %s[77]) { %%1 = cast %%0 : %s[77] return %%1 }", type[i], type[j]);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Every size has tails of its own; a value must not depend on where it stands. */
static void ragged(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    int step = getenv("INFINIC_LONG") ? 1 : 6;
    for (int n = 1; n <= 67; n += step)
        kernels_addf(
            s, (KernelCase){.form = "map", .input = INPUT_special},
            "(%%0: f32[%d], %%1: f32[%d]) { %%2 = exp %%0 : f32[%d] %%3 = add %%2, %%1 : f32[%d] "
            "%%4 = tanh %%3 : f32[%d] %%5 = max %%4, %%0 : f32[%d] return %%5, %%2 }",
            n, n, n, n, n, n);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* NaN goes through max, min, relu in both orders (CASES G8). */
static void nan_propagates(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "map", .input = INPUT_constant, .value = (double)NAN};
    c.body = "(%0: f32[20]) { %1 = const {value=1.0} : f32[20] %2 = max %0, %1 : f32[20] %3 = max "
             "%1, %0 : f32[20] "
             "%4 = min %0, %1 : f32[20] %5 = min %1, %0 : f32[20] %6 = relu %0 : f32[20] "
             "return %2, %3, %4, %5, %6 }";
    int at = kernels_add(s, c);
    assert_int_equal(kernels_run(s), 0);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 20; j++)
            assert_true(kernels_result(s, at, i)[j] != kernels_result(s, at, i)[j]);
    kernels_free(s);
}

/* 300 operations in one kernel: one temporary each, so no compiler's nesting is exceeded (CASES
 * F14). */
static void long_chain(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    char *text = calloc(1, 40000);
    size_t n = (size_t)sprintf(text, "(%%0: f32[50]) {");
    for (int i = 0; i < 300; i++)
        n += (size_t)sprintf(text + n, " %%%d = %s %%%d : f32[50]", i + 1, i % 50 ? "abs" : "tanh",
                             i);
    sprintf(text + n, " return %%300 }");
    kernels_add(s, (KernelCase){.form = "map", .body = text, .tolerance = 1e-5});
    assert_int_equal(kernels_run(s), 0);
    free(text);
    kernels_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op), cmocka_unit_test(casts),
                                       cmocka_unit_test(ragged), cmocka_unit_test(nan_propagates),
                                       cmocka_unit_test(long_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
