/* cases_test.c - derivatives at the places where other systems went wrong: ties, zeros, NaN, far
 * means, shared tables, ignored targets, batches of one. Numbers of CASES in comments. */
#include "tests/passes/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Differentiates and cleans up, then runs; the forward inputs may have been set before. */
static EvalTensor *run_train(Check *c) {
    check_pass(c, pass_alias);
    check_pass(c, pass_autodiff);
    check_pass(c, pass_decompose);
    check_pass(c, pass_cleanup);
    return check_eval(c, module_graph(c->m, "train"));
}

static void expect_grad(Check *c, const EvalTensor *out, int param, int n, const double *want) {
    EvalTensor got = check_grad(c, module_graph(c->m, "train"), out, param);
    for (int i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got.data[i])) continue;
        if (!(fabs(got.data[i] - want[i]) <= 1e-12 * (1.0 + fabs(want[i]))))
            fail_msg("gradient %d of parameter %d is %.17g, not %.17g", i, param, got.data[i],
                     want[i]);
    }
}

static void expect_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.17g, not %.17g", got, want);
}

static void set(EvalTensor *t, const double *value, int n) {
    memcpy(t->data, value, (size_t)n * sizeof *value);
}

/* One weight of six elements through one op; dy = 1. */
static void expect_unary(const char *op, const double x[6], const double want[6]) {
    Check c, text;
    check_empty(&text);
    check_read(&c, check_expand(&text,
                                "param 0 \"w\" f32[6] init=ones\n"
                                "graph train(%0: f32[6] weight(0)) {\n"
                                "  %1 = $O %0 : f32[6]\n"
                                "  %2 = reduce_sum %1 {axes=[0]} : f32[]\n"
                                "  return %2 loss_sum\n}\n",
                                "", op));
    set(&c.in[0], x, 6);
    expect_grad(&c, run_train(&c), 0, 6, want);
    check_free(&c);
    check_free(&text);
}

static void test_kinks(void **state) {
    (void)state;
    const double x[6] = {-1, -0.0, 0, 2, INFINITY, NAN};
    expect_unary("relu", x, (const double[]){0, 0, 0, 1, 1, 1});
    expect_unary("abs", x, (const double[]){-1, 0, 0, 1, 1, NAN});
}

/* A NaN of the forward pass comes back in the gradient (G8). */
static void test_nan_comes_back(void **state) {
    (void)state;
    const double x[6] = {NAN, 1, 1, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        const char *op = (const char *const[]){"relu", "abs", "tanh", "silu"}[i];
        Check c, text;
        check_empty(&text);
        check_read(&c, check_expand(&text,
                                    "param 0 \"w\" f32[6] init=ones\n"
                                    "graph train(%0: f32[6] weight(0)) {\n"
                                    "  %1 = $O %0 : f32[6]\n"
                                    "  %2 = mul %1, %1 : f32[6]\n"
                                    "  %3 = reduce_sum %2 {axes=[0]} : f32[]\n"
                                    "  return %3 loss_sum\n}\n",
                                    "", op));
        set(&c.in[0], x, 6);
        EvalTensor *out = run_train(&c);
        EvalTensor got = check_grad(&c, module_graph(c.m, "train"), out, 0);
        assert_true(isnan(got.data[0]) && !isnan(got.data[1]));
        check_free(&c);
        check_free(&text);
    }
}

/* PyTorch: equal operands take half each; a NaN takes all of it, in both orders. */
static void test_ties_of_max_and_min(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        Check c, text;
        check_empty(&text);
        check_read(&c,
                   check_expand(&text,
                                "param 0 \"a\" f32[4] init=ones\nparam 1 \"b\" f32[4] init=ones\n"
                                "graph train(%0: f32[4] weight(0), %1: f32[4] weight(1)) {\n"
                                "  %2 = $O %0, %1 : f32[4]\n"
                                "  %3 = reduce_sum %2 {axes=[0]} : f32[]\n"
                                "  return %3 loss_sum\n}\n",
                                "", i == 0 ? "max" : "min"));
        set(&c.in[0], (const double[]){1, 2, 0.0, 3}, 4);
        set(&c.in[1], (const double[]){1, 1, -0.0, 4}, 4);
        EvalTensor *out = run_train(&c);
        const double first[4] = {0.5, 1, 0.5, 0}, second[4] = {0.5, 0, 0.5, 1};
        expect_grad(&c, out, i, 4, first);
        expect_grad(&c, out, 1 - i, 4, second);
        check_free(&c);
        check_free(&text);
    }
}

/* G3: 70,000 equal maxima get 1 / 70,000 each. */
static void test_many_equal_maxima(void **state) {
    (void)state;
    Check c;
    check_read(&c, "param 0 \"w\" f32[2,70000] init=ones\n"
                   "graph train(%0: f32[2,70000] weight(0)) {\n"
                   "  %1 = reduce_max %0 {axes=[1]} : f32[2]\n"
                   "  %2 = reduce_sum %1 {axes=[0]} : f32[]\n"
                   "  return %2 loss_sum\n}\n");
    for (int i = 0; i < 140000; i++) c.in[0].data[i] = 3.0;
    c.in[0].data[70000] = 4.0;
    EvalTensor *out = run_train(&c);
    EvalTensor grad = check_grad(&c, module_graph(c.m, "train"), out, 0);
    for (int i = 0; i < 70000; i++) expect_close(grad.data[i], 1.0 / 70000, 1e-15);
    expect_close(grad.data[70000], 1.0, 0);
    expect_close(grad.data[70001], 0.0, 0);
    check_free(&c);
}

/* G1: two layer norms read rows of one table; each row gets its own gradient. */
static void test_norms_share_a_table(void **state) {
    (void)state;
    check_gradients_of(
        "param 0 \"scale\" f32[2,3] init=ones\nparam 1 \"shift\" f32[2,3] init=zeros\n"
        "graph train(%0: f32[4,3] data(0, \"x\"), %1: f32[2,3] weight(0), %2: f32[2,3] weight(1)) "
        "{\n"
        "  %3 = slice %1 {begin=[0,0], end=[1,3], step=[1,1]} : f32[1,3]\n"
        "  %4 = slice %1 {begin=[1,0], end=[2,3], step=[1,1]} : f32[1,3]\n"
        "  %5 = slice %2 {begin=[0,0], end=[1,3], step=[1,1]} : f32[1,3]\n"
        "  %6 = slice %2 {begin=[1,0], end=[2,3], step=[1,1]} : f32[1,3]\n"
        "  %7 = reshape %3 : f32[3]\n  %8 = reshape %4 : f32[3]\n"
        "  %9 = reshape %5 : f32[3]\n  %10 = reshape %6 : f32[3]\n"
        "  %11, %12, %13 = layer_norm %0, %7, %9 {eps=0.001} : f32[4,3], f32[4], f32[4]\n"
        "  %14 = sin %11 : f32[4,3]\n"
        "  %15, %16, %17 = layer_norm %14, %8, %10 {eps=0.001} : f32[4,3], f32[4], f32[4]\n"
        "  %18 = sin %15 : f32[4,3]\n"
        "  %19 = reduce_sum %18 {axes=[0,1]} : f32[]\n"
        "  return %19 loss_sum\n}\n",
        1e-5);
}

/* G9: the variance is taken of centred values. At a mean of 1e8 the other formula has no correct
 * digit left in f64, as it has none in f32 at 1e4. */
static void test_far_mean(void **state) {
    (void)state;
    enum { N = 64 };
    Check c;
    check_read(&c, "param 0 \"g\" f32[64] init=ones\nparam 1 \"b\" f32[64] init=zeros\n"
                   "graph train(%0: f32[1,64] data(0, \"x\"), %1: f32[64] weight(0), %2: f32[64] "
                   "weight(1)) {\n"
                   "  %3, %4, %5 = layer_norm %0, %1, %2 {eps=0} : f32[1,64], f32[1], f32[1]\n"
                   "  %6 = mul %3, %3 : f32[1,64]\n"
                   "  %7 = reduce_sum %6 {axes=[0,1]} : f32[]\n"
                   "  return %7 loss_sum\n}\n");
    double x[N], mean = 0, variance = 0, gamma[N];
    for (int i = 0; i < N; i++) {
        mean += (x[i] = c.in[0].data[i]) / N;
        gamma[i] = c.in[1].data[i];
        c.in[0].data[i] += 1e8;
        c.in[2].data[i] = 0;
    }
    for (int i = 0; i < N; i++) variance += (x[i] - mean) * (x[i] - mean) / N;
    EvalTensor *out = run_train(&c);
    EvalTensor grad = check_grad(&c, module_graph(c.m, "train"), out, 0);
    for (int i = 0; i < N; i++) { /* loss = sum (gamma h)^2 */
        double h = (x[i] - mean) / sqrt(variance);
        expect_close(grad.data[i], 2 * gamma[i] * h * h, 1e-6);
    }
    check_free(&c);
}

static const char *const classifier =
    "param 0 \"w\" f32[3,4] init=ones\nparam 1 \"b\" f32[4] init=zeros\n"
    "graph train(%0: f32[$S,3] data(0, \"x\"), %1: i32[$S] data(1, \"t\"), %2: f32[3,4] weight(0), "
    "%3: f32[4] weight(1)) {\n"
    "  %4 = matmul %0, %2 {ta=0, tb=0} : f32[$S,4]\n"
    "  %5 = broadcast %3 {axes=[1]} : f32[$S,4]\n"
    "  %6 = add %4, %5 : f32[$S,4]\n"
    "  %7, %8 = cross_entropy %6, %1 {ignore=-1} : f32[], f32[]\n"
    "  return %7 loss_sum, %8 loss_count\n}\n";

/* G10: nothing counted: loss 0, count 0, gradients 0, even where logits are not finite. */
static void test_everything_ignored(void **state) {
    (void)state;
    Check c, text;
    check_empty(&text);
    check_read(&c, check_expand(&text, classifier, "3", ""));
    set(&c.in[1], (const double[]){-1, -1, INT32_MIN}, 3);
    c.in[0].data[0] = 1e300;
    EvalTensor *out = run_train(&c);
    const Graph *g = module_graph(c.m, "train");
    expect_close(check_output(g, out, ROLE_loss_sum, 0, 0).data[0], 0, 0);
    expect_close(check_output(g, out, ROLE_loss_count, 0, 0).data[0], 0, 0);
    const double zero[12] = {0};
    expect_grad(&c, out, 0, 12, zero);
    expect_grad(&c, out, 1, 4, zero);
    check_free(&c);
    check_free(&text);
}

/* The gradient is softmax - onehot on counted rows, in closed form. */
static void test_cross_entropy_closed_form(void **state) {
    (void)state;
    Check c;
    check_read(&c, "param 0 \"w\" f32[2,3] init=ones\n"
                   "graph train(%0: i32[2] data(0, \"t\"), %1: f32[2,3] weight(0)) {\n"
                   "  %2, %3 = cross_entropy %1, %0 {ignore=-1} : f32[], f32[]\n"
                   "  return %2 loss_sum, %3 loss_count\n}\n");
    set(&c.in[0], (const double[]){2, -1}, 2);
    set(&c.in[1], (const double[]){1, 2, 3, 500, 1000, 0}, 6);
    EvalTensor *out = run_train(&c);
    const Graph *g = module_graph(c.m, "train");
    double sum = exp(-2) + exp(-1) + 1;
    expect_close(check_output(g, out, ROLE_loss_sum, 0, 0).data[0], log(sum), 1e-12);
    expect_close(check_output(g, out, ROLE_loss_count, 0, 0).data[0], 1, 0);
    expect_grad(&c, out, 0, 6,
                (const double[]){exp(-2) / sum, exp(-1) / sum, 1 / sum - 1, 0, 0, 0});
    check_free(&c);
}

/* G21: the bias gradient sums the batch axis, whatever its extent. */
static void test_batches(void **state) {
    (void)state;
    static const char *const batch[] = {"1", "2", "64"};
    for (int i = 0; i < 3; i++) {
        Check c, text;
        check_empty(&text);
        check_read(&c, check_expand(&text, classifier, batch[i], ""));
        check_gradients(&c, (CheckDiff){.tolerance = 1e-6, .directions = 6});
        check_free(&c);
        check_free(&text);
    }
}

/* Tied weights: one buffer a use; together they are the whole gradient (checked with differences).
 */
static void test_tied(void **state) {
    (void)state;
    check_gradients_of("param 0 \"w\" f32[3,3] init=ones\n"
                       "graph train(%0: f32[2,3] data(0, \"x\"), %1: f32[3,3] weight(0)) {\n"
                       "  %2 = matmul %0, %1 {ta=0, tb=0} : f32[2,3]\n"
                       "  %3 = tanh %2 : f32[2,3]\n"
                       "  %4 = matmul %3, %1 {ta=0, tb=1} : f32[2,3]\n"
                       "  %5 = mul %4, %4 : f32[2,3]\n"
                       "  %6 = reduce_sum %5 {axes=[0,1]} : f32[]\n"
                       "  return %6 loss_sum\n}\n",
                       1e-6);
}

/* x ^ 0 has derivative 0 whatever x is, and 0 ^ b does not change with b. */
static void test_pow_at_zero(void **state) {
    (void)state;
    Check c;
    check_read(&c, "param 0 \"a\" f32[4] init=ones\nparam 1 \"b\" f32[4] init=ones\n"
                   "graph train(%0: f32[4] weight(0), %1: f32[4] weight(1)) {\n"
                   "  %2 = pow %0, %1 : f32[4]\n"
                   "  %3 = reduce_sum %2 {axes=[0]} : f32[]\n"
                   "  return %3 loss_sum\n}\n");
    set(&c.in[0], (const double[]){0, 0, 2, 0}, 4);
    set(&c.in[1], (const double[]){0, 2, 3, 1}, 4);
    EvalTensor *out = run_train(&c);
    expect_grad(&c, out, 0, 4, (const double[]){0, 0, 12, 1});
    expect_grad(&c, out, 1, 4, (const double[]){0, 0, 8 * log(2), 0});
    check_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinks),
        cmocka_unit_test(test_nan_comes_back),
        cmocka_unit_test(test_ties_of_max_and_min),
        cmocka_unit_test(test_many_equal_maxima),
        cmocka_unit_test(test_norms_share_a_table),
        cmocka_unit_test(test_far_mean),
        cmocka_unit_test(test_everything_ignored),
        cmocka_unit_test(test_cross_entropy_closed_form),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_pow_at_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
