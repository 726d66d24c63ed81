/* gradients_test.c - every op's derivative against central differences in f64, at ranks 0 to 5 and
 * with extents of 1. */
#include "passes/grad.h"
#include "tests/passes/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const shapes[] = {"", "1", "4", "1,4", "3,1", "2,3,4", "2,1,3,2", "1,2,1,3,2"};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const double tolerance = 1e-6;

static bool covered[OP_count]; /* ops that some differentiated graph held */

static void cover(const Graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        covered[g->node[i]->op] = true;
        if (g->node[i]->body != NULL) cover(g->node[i]->body);
    }
}

static void expect_gradients(const char *text, const char *shape, const char *op) {
    Check c, names;
    check_empty(&names);
    const char *full = check_expand(&names, text, shape, op);
    check_read(&c, full);
    cover(c.forward);
    check_gradients(&c, (CheckDiff){.tolerance = tolerance, .directions = 6});
    check_free(&c);
    check_free(&names);
}

static void each_shape(const char *text, const char *const *ops) {
    for (int i = 0; ops[i] != NULL; i++)
        for (int s = 0; s < SHAPES; s++) expect_gradients(text, shapes[s], ops[i]);
}

/* ---- elementwise ------------------------------------------------------------------------- */

static void test_unary(void **state) {
    (void)state;
    each_shape("param 0 \"w\" f32[$S] init=ones\n"
               "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0)) {\n"
               "  %2 = $O %1 : f32[$S]\n"
               "  %3 = mul %2, %0 : f32[$S]\n"
               "  %4 = reduce_sum %3 {axes=[$A]} : f32[]\n"
               "  return %4 loss_sum\n}\n",
               (const char *const[]){"neg", "abs", "exp", "exp2", "sin", "cos", "tanh", "erf",
                                     "sigmoid", "relu", "silu", "gelu", "gelu_tanh", "copy", "cast",
                                     NULL});
}

static void test_unary_of_positive(void **state) {
    (void)state;
    each_shape("param 0 \"w\" f32[$S] init=ones\n"
               "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0)) {\n"
               "  %2 = mul %1, %1 : f32[$S]\n"
               "  %3 = const {value=0.5} : f32[$S]\n"
               "  %4 = add %2, %3 : f32[$S]\n"
               "  %5 = $O %4 : f32[$S]\n"
               "  %6 = mul %5, %0 : f32[$S]\n"
               "  %7 = reduce_sum %6 {axes=[$A]} : f32[]\n"
               "  return %7 loss_sum\n}\n",
               (const char *const[]){"log", "sqrt", "rsqrt", NULL});
}

static void test_binary(void **state) {
    (void)state;
    each_shape(
        "param 0 \"a\" f32[$S] init=ones\n"
        "param 1 \"b\" f32[$S] init=ones\n"
        "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0), %2: f32[$S] weight(1)) {\n"
        "  %3 = mul %1, %1 : f32[$S]\n"
        "  %4 = const {value=0.5} : f32[$S]\n"
        "  %5 = add %3, %4 : f32[$S]\n"
        "  %6 = $O %2, %5 : f32[$S]\n"
        "  %7 = $O %5, %2 : f32[$S]\n"
        "  %8 = mul %6, %0 : f32[$S]\n"
        "  %9 = sub %8, %7 : f32[$S]\n"
        "  %10 = reduce_sum %9 {axes=[$A]} : f32[]\n"
        "  return %10 loss_sum\n}\n",
        (const char *const[]){"add", "sub", "mul", "max", "min", NULL});
}

/* A positive base and divisor. */
static void test_pow_and_div(void **state) {
    (void)state;
    each_shape(
        "param 0 \"a\" f32[$S] init=ones\n"
        "param 1 \"b\" f32[$S] init=ones\n"
        "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0), %2: f32[$S] weight(1)) {\n"
        "  %3 = exp %1 : f32[$S]\n"
        "  %4 = exp %2 : f32[$S]\n"
        "  %5 = $O %3, %4 : f32[$S]\n"
        "  %6 = mul %5, %0 : f32[$S]\n"
        "  %7 = reduce_sum %6 {axes=[$A]} : f32[]\n"
        "  return %7 loss_sum\n}\n",
        (const char *const[]){"pow", "div", NULL});
}

static void test_select(void **state) {
    (void)state;
    each_shape(
        "param 0 \"a\" f32[$S] init=ones\n"
        "param 1 \"b\" f32[$S] init=ones\n"
        "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0), %2: f32[$S] weight(1)) {\n"
        "  %3 = $O %0, %1 : bool[$S]\n"
        "  %4 = mul %2, %2 : f32[$S]\n"
        "  %5 = select %3, %1, %4 : f32[$S]\n"
        "  %6 = reduce_sum %5 {axes=[$A]} : f32[]\n"
        "  return %6 loss_sum\n}\n",
        (const char *const[]){"lt", NULL});
}

/* ---- reductions and movement ------------------------------------------------------------- */

static const char *const movements[] = {
    /* reduce over the middle, the ends, all and no axis */
    "  %2 = reduce_sum %1 {axes=[1]} : f32[2,4]\n  %3 = sin %2 : f32[2,4]\n"
    "  %4 = reduce_sum %3 {axes=[0,1]} : f32[]\n",
    "  %2 = reduce_max %1 {axes=[0,2]} : f32[3]\n  %3 = sin %2 : f32[3]\n"
    "  %4 = reduce_sum %3 {axes=[0]} : f32[]\n",
    "  %2 = reduce_min %1 {axes=[2]} : f32[2,3]\n  %3 = sin %2 : f32[2,3]\n"
    "  %4 = reduce_sum %3 {axes=[0,1]} : f32[]\n",
    "  %2 = reduce_max %1 {axes=[0,1,2]} : f32[]\n  %3 = sin %2 : f32[]\n"
    "  %4 = reduce_sum %3 {axes=[]} : f32[]\n",
    "  %2 = transpose %1 {perm=[2,0,1]} : f32[4,2,3]\n  %3 = sin %2 : f32[4,2,3]\n"
    "  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = reshape %1 : f32[6,4]\n  %3 = sin %2 : f32[6,4]\n"
    "  %4 = reduce_sum %3 {axes=[0,1]} : f32[]\n",
    /* slices: the middle, steps whose last zeros do not fit, one row, nothing */
    "  %2 = slice %1 {begin=[0,1,1], end=[1,3,3], step=[1,1,1]} : f32[1,2,2]\n"
    "  %3 = sin %2 : f32[1,2,2]\n  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = slice %1 {begin=[0,0,1], end=[2,3,4], step=[1,2,2]} : f32[2,2,2]\n"
    "  %3 = sin %2 : f32[2,2,2]\n  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = slice %1 {begin=[1,0,0], end=[2,3,4], step=[5,1,3]} : f32[1,3,2]\n"
    "  %3 = sin %2 : f32[1,3,2]\n  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = slice %1 {begin=[1,1,1], end=[1,3,4], step=[1,1,1]} : f32[0,2,3]\n"
    "  %3 = sin %2 : f32[0,2,3]\n  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = pad %1 {low=[1,0,2], high=[0,3,1], value=0.5} : f32[3,6,7]\n"
    "  %3 = sin %2 : f32[3,6,7]\n  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
    "  %2 = concat %1, %0, %1 {axis=1} : f32[2,9,4]\n  %3 = mul %2, %2 : f32[2,9,4]\n"
    "  %4 = reduce_sum %3 {axes=[0,1,2]} : f32[]\n",
};

static void test_movement(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof movements / sizeof movements[0]; i++) {
        char text[2000];
        snprintf(text, sizeof text,
                 "param 0 \"w\" f32[2,3,4] init=ones\n"
                 "graph train(%%0: f32[2,3,4] data(0, \"c\"), %%1: f32[2,3,4] weight(0)) {\n"
                 "%s  return %%4 loss_sum\n}\n",
                 movements[i]);
        expect_gradients(text, "", "");
    }
}

/* Slices that cover a value, in any order; with another reader; with a part that nothing reads. */
static void test_split(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "  %2 = slice %1 {begin=[0,0,1], end=[2,3,4], step=[1,1,1]}\n"
        "  %3 = slice %1 {begin=[0,0,0], end=[2,3,1], step=[1,1,1]}\n"
        "  %4 = concat %3, %1, %2 {axis=2}\n  %5 = sin %4\n"
        "  %6 = reduce_sum %5 {axes=[0,1,2]}\n",
        "  %2 = slice %1 {begin=[0,0,0], end=[2,1,4], step=[1,1,1]}\n"
        "  %3 = slice %1 {begin=[0,1,0], end=[2,3,4], step=[1,1,1]}\n"
        "  %4 = sin %3\n  %5 = cos %4\n  %6 = reduce_sum %5 {axes=[0,1,2]}\n",
        "  %2 = slice %1 {begin=[0,0,0], end=[1,3,4], step=[1,1,1]}\n"
        "  %3 = slice %1 {begin=[1,0,0], end=[2,3,4], step=[1,1,1]}\n"
        "  %4 = mul %2, %3\n  %5 = sin %4\n  %6 = reduce_sum %5 {axes=[0,1,2]}\n"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char text[1000];
        snprintf(text, sizeof text,
                 "param 0 \"w\" f32[2,3,4] init=ones\n"
                 "graph train(%%0: f32[2,3,4] data(0, \"c\"), %%1: f32[2,3,4] weight(0)) {\n"
                 "%s  return %%6 loss_sum\n}\n",
                 bodies[i]);
        expect_gradients(text, "", "");
    }
}

/* G6: the gradient of a broadcast operand has the operand's shape. */
static void test_broadcast(void **state) {
    (void)state;
    static const struct {
        const char *shape, *axes;
    } to_3x4[] = {{"", ""},   {"1", "0"},     {"1", "1"},     {"3", "0"},
                  {"4", "1"}, {"1,4", "0,1"}, {"3,1", "0,1"}, {"1,1", "0,1"}};
    for (size_t i = 0; i < sizeof to_3x4 / sizeof to_3x4[0]; i++)
        expect_gradients("param 0 \"w\" f32[$S] init=ones\n"
                         "graph train(%0: f32[3,4] data(0, \"c\"), %1: f32[$S] weight(0)) {\n"
                         "  %2 = broadcast %1 {axes=[$O]} : f32[3,4]\n"
                         "  %3 = mul %2, %0 : f32[3,4]\n"
                         "  %4 = sin %3 : f32[3,4]\n"
                         "  %5 = reduce_sum %4 {axes=[0,1]} : f32[]\n"
                         "  return %5 loss_sum\n}\n",
                         to_3x4[i].shape, to_3x4[i].axes);
}

/* ---- products, convolutions, pooling, tables --------------------------------------------- */

/* All four storage orders, without and with batch axes, with extents of 1. */
static void test_matmul(void **state) {
    (void)state;
    static const char *const batch[] = {"", "1,", "2,3,"};
    static const int sizes[][3] = {{2, 3, 4}, {1, 1, 5}, {4, 1, 1}};
    for (int flags = 0; flags < 4; flags++)
        for (int b = 0; b < 3; b++)
            for (int s = 0; s < 3; s++) {
                char text[1000];
                int m = sizes[s][0], k = sizes[s][1], n = sizes[s][2], ta = flags & 1,
                    tb = flags >> 1;
                snprintf(text, sizeof text,
                         "param 0 \"a\" f32[%s%d,%d] init=ones\n"
                         "param 1 \"b\" f32[%s%d,%d] init=ones\n"
                         "graph train(%%0: f32[%s%d,%d] weight(0), %%1: f32[%s%d,%d] weight(1)) {\n"
                         "  %%2 = matmul %%0, %%1 {ta=%d, tb=%d} : f32[%s%d,%d]\n"
                         "  %%3 = sin %%2 : f32[%s%d,%d]\n"
                         "  %%4 = reduce_sum %%3 {axes=[%s]} : f32[]\n"
                         "  return %%4 loss_sum\n}\n",
                         batch[b], ta ? k : m, ta ? m : k, batch[b], tb ? n : k, tb ? k : n,
                         batch[b], ta ? k : m, ta ? m : k, batch[b], tb ? n : k, tb ? k : n, ta, tb,
                         batch[b], m, n, batch[b], m, n,
                         b == 0   ? "0,1"
                         : b == 1 ? "0,1,2"
                                  : "0,1,2,3");
                expect_gradients(text, "", "");
            }
}

static void conv_case(int size, int k, int stride, int padding) {
    int out = (size + 2 * padding - k) / stride + 1;
    char text[1200];
    snprintf(text, sizeof text,
             "param 0 \"x\" f32[2,2,%d,%d] init=ones\n"
             "param 1 \"w\" f32[3,2,%d,%d] init=ones\n"
             "graph train(%%0: f32[2,2,%d,%d] weight(0), %%1: f32[3,2,%d,%d] weight(1)) {\n"
             "  %%2 = conv2d %%0, %%1 {stride=[%d,%d], padding=[%d,%d]} : f32[2,3,%d,%d]\n"
             "  %%3 = sin %%2 : f32[2,3,%d,%d]\n"
             "  %%4 = reduce_sum %%3 {axes=[0,1,2,3]} : f32[]\n"
             "  return %%4 loss_sum\n}\n",
             size, size, k, k, size, size, k, k, stride, stride, padding, padding, out, out, out,
             out);
    expect_gradients(text, "", "");
}

static void test_conv2d(void **state) {
    (void)state;
    for (int k = 1; k <= 3; k++)
        for (int stride = 1; stride <= 3; stride++)
            for (int padding = 0; padding <= 2; padding++)
                for (int size = 4; size <= 5; size++) conv_case(size, k, stride, padding);
}

/* G2: overlapping windows accumulate. */
static void pool_case(const char *op, int size, int window, int stride, int padding) {
    int out = (size + 2 * padding - window) / stride + 1;
    char text[1200], types[96], results[16];
    bool max = strcmp(op, "max_pool2d") == 0;
    snprintf(types, sizeof types, max ? "f32[2,2,%d,%d], i32[2,2,%d,%d]" : "f32[2,2,%d,%d]", out,
             out, out, out);
    snprintf(results, sizeof results, max ? "%%1, %%2" : "%%1");
    snprintf(text, sizeof text,
             "param 0 \"x\" f32[2,2,%d,%d] init=ones\n"
             "graph train(%%0: f32[2,2,%d,%d] weight(0)) {\n"
             "  %s = %s %%0 {window=[%d,%d], stride=[%d,%d], padding=[%d,%d]} : %s\n"
             "  %%%d = mul %%1, %%1 : f32[2,2,%d,%d]\n"
             "  %%%d = reduce_sum %%%d {axes=[0,1,2,3]} : f32[]\n"
             "  return %%%d loss_sum\n}\n",
             size, size, size, size, results, op, window, window, stride, stride, padding, padding,
             types, max + 2, out, out, max + 3, max + 2, max + 3);
    expect_gradients(text, "", "");
}

static void test_pooling(void **state) {
    (void)state;
    static const char *const ops[] = {"max_pool2d", "avg_pool2d"};
    for (int i = 0; i < 2; i++)
        for (int window = 1; window <= 3; window++)
            for (int stride = 1; stride <= 3; stride++)
                for (int padding = 0; padding < window && padding <= 1; padding++)
                    for (int size = 4; size <= 5; size++)
                        pool_case(ops[i], size, window, stride, padding);
}

static void test_gather(void **state) {
    (void)state;
    expect_gradients("param 0 \"t\" f32[3,2] init=ones\n"
                     "graph train(%0: i32[4,2] data(0, \"i\"), %1: f32[3,2] weight(0)) {\n"
                     "  %2 = gather %1, %0 : f32[4,2,2]\n"
                     "  %3 = sin %2 : f32[4,2,2]\n"
                     "  %4 = mul %3, %2 : f32[4,2,2]\n"
                     "  %5 = reduce_sum %4 {axes=[0,1,2]} : f32[]\n"
                     "  return %5 loss_sum\n}\n",
                     "", "");
}

/* ---- composites -------------------------------------------------------------------------- */

static const char *const row_shapes[] = {"5", "1,5", "2,3", "2,3,4", "2,1,3,2", "1,2,1,3,4"};
static const char *const row_leads[] = {"", "1", "2", "2,3", "2,1,3", "1,2,1,3"};
static const int row_last[] = {5, 5, 3, 4, 2, 4};
enum { ROW_SHAPES = sizeof row_shapes / sizeof row_shapes[0] };

static void test_softmax(void **state) {
    (void)state;
    static const char *const ops[] = {"softmax", "log_softmax"};
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < ROW_SHAPES; s++)
            expect_gradients("param 0 \"w\" f32[$S] init=ones\n"
                             "graph train(%0: f32[$S] data(0, \"c\"), %1: f32[$S] weight(0)) {\n"
                             "  %2 = $O %1 : f32[$S]\n"
                             "  %3 = mul %2, %0 : f32[$S]\n"
                             "  %4 = reduce_sum %3 {axes=[$A]} : f32[]\n"
                             "  return %4 loss_sum\n}\n",
                             row_shapes[s], ops[i]);
}

/* G4: any rank, extents of 1; the statistics have gradients of their own. */
static void test_norms(void **state) {
    (void)state;
    static const char *const layer =
        "param 0 \"x\" f32[$S] init=ones\nparam 1 \"g\" f32[%d] init=ones\n"
        "param 2 \"b\" f32[%d] init=ones\n"
        "graph train(%%0: f32[$S] data(0, \"c\"), %%1: f32[$S] weight(0), %%2: f32[%d] weight(1), "
        "%%3: f32[%d] weight(2), %%4: f32[$O] data(1, \"d\")) {\n"
        "  %%5, %%6, %%7 = layer_norm %%1, %%2, %%3 {eps=0.01} : f32[$S], f32[$O], f32[$O]\n"
        "  %%8 = mul %%5, %%0 : f32[$S]\n"
        "  %%9 = reduce_sum %%8 {axes=[%s]} : f32[$O]\n"
        "  %%10 = mul %%6, %%4 : f32[$O]\n  %%11 = sin %%7 : f32[$O]\n"
        "  %%12 = add %%9, %%10 : f32[$O]\n  %%13 = add %%12, %%11 : f32[$O]\n"
        "  %%14 = reduce_sum %%13 {axes=[%s]} : f32[]\n  return %%14 loss_sum\n}\n";
    static const char *const rms =
        "param 0 \"x\" f32[$S] init=ones\nparam 1 \"g\" f32[%d] init=ones\n"
        "graph train(%%0: f32[$S] data(0, \"c\"), %%1: f32[$S] weight(0), %%2: f32[%d] weight(1)) "
        "{\n"
        "  %%3, %%4 = rms_norm %%1, %%2 {eps=0.01} : f32[$S], f32[$O]\n"
        "  %%5 = mul %%3, %%0 : f32[$S]\n"
        "  %%6 = reduce_sum %%5 {axes=[%s]} : f32[$O]\n"
        "  %%7 = sin %%4 : f32[$O]\n  %%8 = add %%6, %%7 : f32[$O]\n"
        "  %%9 = reduce_sum %%8 {axes=[%s]} : f32[]\n  return %%9 loss_sum\n}\n";
    static const char *const axes[] = {"", "0", "0,1", "0,1,2", "0,1,2,3"};
    for (int s = 0; s < ROW_SHAPES; s++) {
        char text[2000];
        int lead = 0, last = row_last[s];
        for (const char *p = row_shapes[s]; *p != '\0'; p++) lead += *p == ',';
        const char *last_axis = (const char *const[]){"0", "1", "2", "3", "4"}[lead];
        snprintf(text, sizeof text, layer, last, last, last, last, last_axis, axes[lead]);
        expect_gradients(text, row_shapes[s], row_leads[s]);
        snprintf(text, sizeof text, rms, last, last, last_axis, axes[lead]);
        expect_gradients(text, row_shapes[s], row_leads[s]);
    }
}

static const char *const cross_entropy =
    "param 0 \"w\" f32[$S] init=ones\n"
    "graph train(%0: i32[$O] data(0, \"t\"), %1: f32[$S] weight(0)) {\n"
    "  %2, %3 = cross_entropy %1, %0 {ignore=1} : f32[], f32[]\n"
    "  %4 = sin %2 : f32[]\n"
    "  return %4 loss_sum, %3 loss_count\n}\n";

/* The last logit of each row is padding. */
static const char *const cross_entropy_padded =
    "param 0 \"w\" f32[$S] init=ones\n"
    "graph train(%0: i32[$O] data(0, \"t\"), %1: f32[$S] weight(0)) {\n"
    "  %2, %3 = cross_entropy %1, %0 {ignore=1, classes=LAST} : f32[], f32[]\n"
    "  return %2 loss_sum, %3 loss_count\n}\n";

static void test_cross_entropy(void **state) {
    (void)state;
    for (int s = 0; s < ROW_SHAPES; s++) {
        if (row_last[s] <= 2) continue;
        expect_gradients(cross_entropy, row_shapes[s], row_leads[s]);
        if (row_last[s] == 3) continue; /* targets are 0, 1 and 2 */
        char text[1000];
        const char *at = strstr(cross_entropy_padded, "LAST");
        snprintf(text, sizeof text, "%.*s%d%s", (int)(at - cross_entropy_padded),
                 cross_entropy_padded, row_last[s] - 1, at + 4);
        expect_gradients(text, row_shapes[s], row_leads[s]);
    }
}

/* Grouped heads, causal or not, head sizes with and without a kernel; lse has a gradient too. */
static void test_attention(void **state) {
    (void)state;
    static const struct {
        int causal, heads, groups, queries, keys, dim, width;
    } cases[] = {{0, 2, 2, 3, 4, 2, 3},
                 {1, 2, 1, 4, 4, 3, 3},
                 {1, 4, 2, 3, 3, 8, 8},
                 {0, 3, 1, 2, 5, 8, 8},
                 {1, 1, 1, 1, 1, 1, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char q[32], k[32], v[32], out[32], text[2000];
        int h = cases[i].heads, g = cases[i].groups, t = cases[i].queries, s = cases[i].keys;
        snprintf(q, sizeof q, "f32[2,%d,%d,%d]", h, t, cases[i].dim);
        snprintf(k, sizeof k, "f32[2,%d,%d,%d]", g, s, cases[i].dim);
        snprintf(v, sizeof v, "f32[2,%d,%d,%d]", g, s, cases[i].width);
        snprintf(out, sizeof out, "f32[2,%d,%d,%d]", h, t, cases[i].width);
        snprintf(text, sizeof text,
                 "param 0 \"q\" %s init=ones\nparam 1 \"k\" %s init=ones\n"
                 "param 2 \"v\" %s init=ones\n"
                 "graph train(%%0: %s data(0, \"c\"), %%1: %s weight(0), %%2: %s weight(1), "
                 "%%3: %s weight(2)) {\n"
                 "  %%4, %%5 = attention %%1, %%2, %%3 {causal=%d, scale=0.6}\n"
                 "  %%6 = mul %%4, %%0\n  %%7 = reduce_sum %%6 {axes=[0,1,2,3]}\n"
                 "  %%8 = sin %%5\n  %%9 = reduce_sum %%8 {axes=[0,1,2]}\n"
                 "  %%10 = add %%7, %%9\n  return %%10 loss_sum\n}\n",
                 q, k, v, out, q, k, v, cases[i].causal);
        expect_gradients(text, "", "");
    }
}

/* Pairs apart and adjacent, turned forth and back; the tables have gradients too. */
static void test_rope(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        int axis = i & 1, adjacent = i >> 1 & 1, back = i >> 2;
        char text[1200];
        snprintf(text, sizeof text,
                 "param 0 \"x\" f32[3,2,4] init=ones\nparam 1 \"c\" f32[%d,2] init=ones\n"
                 "param 2 \"s\" f32[%d,2] init=ones\n"
                 "graph train(%%0: f32[3,2,4] data(0, \"d\"), %%1: f32[3,2,4] weight(0), "
                 "%%2: f32[%d,2] weight(1), %%3: f32[%d,2] weight(2)) {\n"
                 "  %%4 = rope %%1, %%2, %%3 {axis=%d, adjacent=%d, back=%d}\n"
                 "  %%5 = mul %%4, %%0\n  %%6 = sin %%5\n"
                 "  %%7 = reduce_sum %%6 {axes=[0,1,2]}\n  return %%7 loss_sum\n}\n",
                 3 - axis, 3 - axis, 3 - axis, 3 - axis, axis, adjacent, back);
        expect_gradients(text, "", "");
    }
}

/* Last in the list: a new op with a derivative cannot go without a test. */
static void test_every_rule_was_tested(void **state) {
    (void)state;
    for (int op = OP_none + 1; op < OP_count; op++) {
        if (grad_rule((Op)op) == grad_zero || grad_rule((Op)op) == grad_missing) continue;
        if (op == OP_repeat) continue; /* repeat_test.c */
        if (!covered[op]) fail_msg("no gradient test holds %s", op_name((Op)op));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),         cmocka_unit_test(test_unary_of_positive),
        cmocka_unit_test(test_binary),        cmocka_unit_test(test_pow_and_div),
        cmocka_unit_test(test_select),        cmocka_unit_test(test_movement),
        cmocka_unit_test(test_split),         cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_matmul),        cmocka_unit_test(test_conv2d),
        cmocka_unit_test(test_pooling),       cmocka_unit_test(test_gather),
        cmocka_unit_test(test_softmax),       cmocka_unit_test(test_norms),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_attention),
        cmocka_unit_test(test_rope),          cmocka_unit_test(test_every_rule_was_tested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
