/* repeat_test.c - the derivative of a repeat against finite differences and against the derivative
 * of the same repeat written out. */
#include "tests/passes/check.h"
#include "tests/passes/unroll.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void differentiate(Check *c) {
    check_pass(c, pass_alias);
    check_pass(c, pass_autodiff);
    check_pass(c, pass_decompose);
    check_pass(c, pass_cleanup);
}

static void expect_equal(const EvalTensor *a, const EvalTensor *b, int64_t n, int param) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a->data[i] - b->data[i]) <= 1e-11 * (1.0 + fabs(b->data[i]))))
            fail_msg("gradient of parameter %d, element %lld: %.17g, unrolled %.17g", param,
                     (long long)i, a->data[i], b->data[i]);
}

static void expect_as_unrolled(const char *text) {
    Check a, b;
    check_read(&a, text);
    check_read(&b, text);
    Graph *unrolled = unroll_graph(b.forward, &b.arena);
    module_set_graph(b.m, "train", unrolled);
    b.forward = unrolled;
    differentiate(&a);
    differentiate(&b);
    const Graph *g = module_graph(a.m, "train"), *h = module_graph(b.m, "train");
    EvalTensor *out_a = check_eval(&a, g), *out_b = check_eval(&b, h);
    for (int i = 0; i < a.m->nparam; i++) {
        EvalTensor x = check_grad(&a, g, out_a, i), y = check_grad(&b, h, out_b, i);
        expect_equal(&x, &y, type_elems(a.m->types, x.type), i);
    }
    check_free(&a);
    check_free(&b);
}

static void expect_right(const char *text) {
    check_gradients_of(text, 1e-6);
    expect_as_unrolled(text);
}

static void test_layers(void **state) {
    (void)state;
    for (int count = 1; count <= 4; count += 3) {
        char text[2000];
        snprintf(
            text, sizeof text,
            "param 0 \"w\" f32[%d,3,3] init=ones\nparam 1 \"b\" f32[%d,3] init=ones\n"
            "param 2 \"s\" f32[3] init=ones\nparam 3 \"x0\" f32[2,3] init=ones\n"
            "graph train(%%0: f32[2,3] data(0, \"x\"), %%1: f32[%d,3,3] weight(0), "
            "%%2: f32[%d,3] weight(1), %%3: f32[3] weight(2), %%4: f32[2,3] weight(3)) {\n"
            "  %%5 = add %%0, %%4 : f32[2,3]\n"
            "  %%6 = repeat %%5, %%3, %%1, %%2 {count=%d, ncarry=1, nconst=1, reverse=0} : "
            "f32[2,3] {\n"
            "    graph (%%0: f32[2,3], %%1: f32[3], %%2: f32[3,3], %%3: f32[3]) {\n"
            "      %%4 = matmul %%0, %%2 {ta=0, tb=0} : f32[2,3]\n"
            "      %%5 = broadcast %%3 {axes=[1]} : f32[2,3]\n"
            "      %%6 = add %%4, %%5 : f32[2,3]\n"
            "      %%7, %%8, %%9 = layer_norm %%6, %%1, %%3 {eps=0.01} : f32[2,3], f32[2], f32[2]\n"
            "      %%10 = gelu %%7 : f32[2,3]\n"
            "      %%11 = add %%10, %%0 : f32[2,3]\n"
            "      return %%11\n    }\n  }\n"
            "  %%7 = sin %%6 : f32[2,3]\n"
            "  %%8 = reduce_sum %%7 {axes=[0,1]} : f32[]\n"
            "  return %%8 loss_sum\n}\n",
            count, count, count, count, count);
        expect_right(text);
    }
}

/* Two carried values change places; a third is overwritten from a weight; a fourth never changes.
 */
static void test_several_carried(void **state) {
    (void)state;
    expect_right(
        "param 0 \"w\" f32[3,4] init=ones\nparam 1 \"v\" f32[4] init=ones\n"
        "graph train(%0: f32[4] data(0, \"x\"), %1: f32[3,4] weight(0), %2: f32[4] weight(1)) {\n"
        "  %3 = sin %2 : f32[4]\n"
        "  %4, %5, %6, %7 = repeat %0, %3, %2, %3, %1 {count=3, ncarry=4, nconst=0, reverse=0} : "
        "f32[4], f32[4], f32[4], f32[4] {\n"
        "    graph (%0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4], %4: f32[4]) {\n"
        "      %5 = mul %0, %4 : f32[4]\n      %6 = add %5, %2 : f32[4]\n"
        "      %7 = tanh %4 : f32[4]\n      %8 = mul %1, %3 : f32[4]\n"
        "      return %8, %6, %7, %3\n    }\n  }\n"
        "  %8 = mul %4, %5 : f32[4]\n  %9 = add %8, %6 : f32[4]\n  %10 = add %9, %7 : f32[4]\n"
        "  %11 = sin %10 : f32[4]\n"
        "  %12 = reduce_sum %11 {axes=[0]} : f32[]\n  return %12 loss_sum\n}\n");
}

/* Stacked results reach the loss, the carried one does not; it runs from the last to the first. */
static void test_stacked_results(void **state) {
    (void)state;
    expect_right(
        "param 0 \"w\" f32[3,4] init=ones\nparam 1 \"v\" f32[4] init=ones\n"
        "graph train(%0: f32[3,4] data(0, \"x\"), %1: f32[3,4] weight(0), %2: f32[4] weight(1)) {\n"
        "  %3, %4, %5 = repeat %2, %2, %1, %0 {count=3, ncarry=1, nconst=1, reverse=1} : "
        "f32[4], f32[3,4], f32[3,4] {\n"
        "    graph (%0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4]) {\n"
        "      %4 = mul %0, %2 : f32[4]\n      %5 = add %4, %1 : f32[4]\n"
        "      %6 = sin %5 : f32[4]\n      %7 = mul %6, %3 : f32[4]\n"
        "      return %6, %7, %0\n    }\n  }\n"
        "  %6 = mul %4, %5 : f32[3,4]\n"
        "  %7 = reduce_sum %6 {axes=[0,1]} : f32[]\n  return %7 loss_sum\n}\n");
}

static void test_nested(void **state) {
    (void)state;
    expect_right("param 0 \"w\" f32[2,3,2,2] init=ones\nparam 1 \"s\" f32[2] init=ones\n"
                 "param 2 \"u\" f32[2,2] init=ones\n"
                 "graph train(%0: f32[2,2] data(0, \"x\"), %1: f32[2,3,2,2] weight(0), %2: f32[2] "
                 "weight(1), "
                 "%3: f32[2,2] weight(2)) {\n"
                 "  %4, %5 = repeat %0, %2, %1, %3 {count=2, ncarry=1, nconst=1, reverse=0} : "
                 "f32[2,2], f32[2,3,2,2] {\n"
                 "    graph (%0: f32[2,2], %1: f32[2], %2: f32[3,2,2], %3: f32[2]) {\n"
                 "      %4 = tanh %0 : f32[2,2]\n"
                 "      %5, %6 = repeat %4, %1, %3, %2 {count=3, ncarry=1, nconst=2, reverse=0} : "
                 "f32[2,2], f32[3,2,2] {\n"
                 "        graph (%0: f32[2,2], %1: f32[2], %2: f32[2], %3: f32[2,2]) {\n"
                 "          %4 = matmul %0, %3 {ta=0, tb=0} : f32[2,2]\n"
                 "          %5 = broadcast %1 {axes=[1]} : f32[2,2]\n"
                 "          %6 = mul %4, %5 : f32[2,2]\n"
                 "          %7 = broadcast %2 {axes=[0]} : f32[2,2]\n"
                 "          %8 = add %6, %7 : f32[2,2]\n"
                 "          %9 = sin %8 : f32[2,2]\n"
                 "          return %9, %6\n        }\n      }\n"
                 "      %7 = softmax %5 : f32[2,2]\n      %8 = add %7, %0 : f32[2,2]\n"
                 "      return %8, %6\n    }\n  }\n"
                 "  %6 = mul %5, %5 : f32[2,3,2,2]\n"
                 "  %7 = reduce_sum %6 {axes=[0,1,2,3]} : f32[]\n"
                 "  %8 = mul %4, %4 : f32[2,2]\n  %9 = reduce_sum %8 {axes=[0,1]} : f32[]\n"
                 "  %10 = add %7, %9 : f32[]\n  return %10 loss_sum\n}\n");
}

/* An integer is carried beside the floats; numbers of the random stream are saved, not drawn again.
 */
static void test_counter_and_dropout(void **state) {
    (void)state;
    static const char *const text =
        "param 0 \"w\" f32[4,5] init=ones\n"
        "graph train(%0: f32[5] data(0, \"x\"), %1: f32[4,5] weight(0)) {\n"
        "  %2 = const {value=0} : i32[5]\n"
        "  %3, %4 = repeat %0, %2, %1 {count=4, ncarry=2, nconst=0, reverse=0} : f32[5], i32[5] {\n"
        "    graph (%0: f32[5], %1: i32[5], %2: f32[5]) {\n"
        "      %3 = const {value=1} : i32[5]\n      %4 = add %1, %3 : i32[5]\n"
        "      %5 = cast %1 : f32[5]\n      %6 = add %5, %0 : f32[5]\n"
        "      %7 = mul %6, %2 : f32[5]\n"
        "      %8 = $O : f32[5]\n      %9 = const {value=0.6} : f32[5]\n"
        "      %10 = lt %8, %9 : bool[5]\n      %11 = const {value=0} : f32[5]\n"
        "      %12 = select %10, %7, %11 : f32[5]\n      %13 = sin %12 : f32[5]\n"
        "      return %13, %4\n    }\n  }\n"
        "  %5 = cast %4 : f32[5]\n  %6 = mul %3, %5 : f32[5]\n"
        "  %7 = reduce_sum %6 {axes=[0]} : f32[]\n  return %7 loss_sum\n}\n";
    Check names;
    check_empty(&names);
    check_gradients_of(check_expand(&names, text, "", "random_uniform {stream=0}"), 1e-6);
    expect_right(check_expand(&names, text, "", "const {value=0.5}"));
    check_free(&names);
}

/* The repeat depends on weights alone; its result meets the data behind it. */
static void test_weights_only(void **state) {
    (void)state;
    expect_right(
        "param 0 \"w\" f32[3,4] init=ones\nparam 1 \"v\" f32[4] init=ones\n"
        "graph train(%0: f32[4] data(0, \"x\"), %1: f32[3,4] weight(0), %2: f32[4] weight(1)) {\n"
        "  %3 = repeat %2, %1 {count=3, ncarry=1, nconst=0, reverse=0} : f32[4] {\n"
        "    graph (%0: f32[4], %1: f32[4]) {\n"
        "      %2 = mul %0, %1 : f32[4]\n      %3 = sin %2 : f32[4]\n      return %3\n    }\n  }\n"
        "  %4 = mul %3, %0 : f32[4]\n  %5 = reduce_sum %4 {axes=[0]} : f32[]\n"
        "  return %5 loss_sum\n}\n");
}

/* A value of the highest rank cannot be stacked as it is. */
static void test_highest_rank(void **state) {
    (void)state;
    expect_right(
        "param 0 \"w\" f32[2,1,1,1,1,1,2,3] init=ones\n"
        "graph train(%0: f32[2,1,1,1,1,1,1,3] data(0, \"x\"), "
        "%1: f32[2,1,1,1,1,1,2,3] weight(0)) {\n"
        "  %2 = repeat %0, %1 {count=2, ncarry=1, nconst=1, reverse=0} : f32[2,1,1,1,1,1,1,3] {\n"
        "    graph (%0: f32[2,1,1,1,1,1,1,3], %1: f32[2,1,1,1,1,1,2,3]) {\n"
        "      %2 = broadcast %0 {axes=[0,1,2,3,4,5,6,7]} : f32[2,1,1,1,1,1,2,3]\n"
        "      %3 = mul %2, %1 : f32[2,1,1,1,1,1,2,3]\n"
        "      %4 = tanh %3 : f32[2,1,1,1,1,1,2,3]\n"
        "      %5 = mul %4, %4 : f32[2,1,1,1,1,1,2,3]\n"
        "      %6 = reduce_sum %5 {axes=[6]} : f32[2,1,1,1,1,1,3]\n"
        "      %7 = reshape %6 : f32[2,1,1,1,1,1,1,3]\n      return %7\n    }\n  }\n"
        "  %3 = reduce_sum %2 {axes=[0,1,2,3,4,5,6,7]} : f32[]\n  return %3 loss_sum\n}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_several_carried),
        cmocka_unit_test(test_stacked_results),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_counter_and_dropout),
        cmocka_unit_test(test_weights_only),
        cmocka_unit_test(test_highest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
