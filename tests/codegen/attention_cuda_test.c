/* attention_cuda_test.c - the CUDA text of attention without a device.
 *
 * Every kernel runs in the emulation, with the products of a warp (mma.sync) and of a warpgroup
 * (wgmma), against sums in double; elements between those of a view stay as they were. Where NVRTC
 * is on this machine every head width compiles for sm_80, sm_90a and sm_100a.
 */
#include "codegen/attention_cuda.h"
#include "codegen/nvrtc.h"
#include "ir/bf16.h"
#include "tests/codegen/object.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, ARGS };

typedef struct Case {
    Dtype dtype;
    int batch, heads, groups, queries, keys, dim;
    bool causal, packed; /* packed: q, k, v in one tensor, heads beside each other */
    double scale;
    int shift;     /* elements before the first one of every tensor */
    bool any_size; /* the forward kernel is told its sizes */
} Case;

static const Case cases[] = {
    {DT_bf16, 1, 1, 1, 150, 150, 64, true, true, 0.125, 0, false},
    {DT_bf16, 1, 2, 1, 70, 130, 64, false, false, 0.125, 0, false},
    {DT_bf16, 2, 1, 1, 33, 33, 8, true, false, 0.4, 0, false},
    {DT_bf16, 1, 2, 1, 70, 70, 40, true, true, -0.2, 0, false},
    {DT_bf16, 1, 3, 1, 65, 65, 80, true, true, 0.1, 0, false},
    {DT_bf16, 1, 1, 1, 140, 140, 128, true, true, 0.09, 0, false},
    {DT_bf16, 1, 2, 1, 70, 70, 256, true, true, 0.06, 0, false},
    {DT_bf16, 1, 1, 1, 20, 41, 160, false, false, 0.08, 0, false},
    {DT_bf16, 2, 3, 3, 1, 1, 64, true, true, 0.125, 0, false},
    {DT_bf16, 1, 2, 2, 40, 40, 64, true, true, 0.0, 3, false},
    {DT_bf16, 1, 2, 1, 70, 70, 64, true, true, 0.125, 0, true},
    {DT_bf16, 2, 2, 1, 20, 20, 64, true, true, 0.125, 0, true},
    {DT_f32, 1, 2, 2, 100, 100, 64, true, true, 0.125, 0, false},
    {DT_f32, 1, 4, 2, 70, 30, 64, false, false, 0.125, 0, false},
    {DT_f32, 2, 1, 1, 33, 33, 8, true, false, 0.4, 0, false},
    {DT_f32, 1, 2, 1, 70, 70, 40, true, true, -0.2, 0, false},
    {DT_f32, 1, 3, 1, 65, 65, 80, true, true, 0.1, 1, false},
    {DT_f32, 1, 2, 1, 70, 70, 128, true, true, 0.09, 0, false},
    {DT_f32, 1, 2, 1, 40, 40, 256, true, true, 0.06, 0, false},
    {DT_f32, 2, 3, 3, 1, 1, 64, true, true, 0.125, 0, false},
    {DT_f32, 1, 2, 1, 70, 70, 40, true, true, 0.1, 0, true},
    {DT_f32, 2, 2, 1, 30, 30, 40, true, true, 0.1, 0, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* --- the kernels' text --- */

/* Heads of `rows` rows; in a packed tensor of `width` elements a row they begin at `first`. */
static AttentionView view_of(const Case *c, int arg, int heads, int rows, int width, int first) {
    int64_t k = c->dim;
    if (c->packed)
        return (AttentionView){arg, c->shift + first * k, (int64_t)rows * width * k, k, width * k};
    return (AttentionView){arg, c->shift, heads * rows * k, rows * k, k};
}

static AttentionSpec spec_of(const Case *c) {
    int h = c->heads, g = c->groups, width = h + 2 * g;
    AttentionSpec s = {.batch = c->batch,
                       .heads = h,
                       .groups = g,
                       .queries = c->queries,
                       .keys = c->keys,
                       .dim = c->dim,
                       .causal = c->causal,
                       .scale = c->scale,
                       .dtype = c->dtype,
                       .q = view_of(c, Q, h, c->queries, width, 0),
                       .k = view_of(c, K, g, c->keys, width, h),
                       .v = view_of(c, V, g, c->keys, width, h + g),
                       .out = view_of(c, OUT, h, c->queries, h, 0),
                       .lse = {LSE, 0, (int64_t)h * c->queries, c->queries, 1},
                       .dout = view_of(c, DOUT, h, c->queries, h, 0),
                       .dq = view_of(c, DQ, h, c->queries, width, 0),
                       .dk = view_of(c, DK, g, c->keys, width, h),
                       .dv = view_of(c, DV, g, c->keys, width, h + g)};
    for (int i = 0; i < ARGS; i++) s.arg_dtype[i] = i == LSE ? DT_f32 : c->dtype;
    return s;
}

static void print_kernel(const Case *c, bool backward, const char *name, FILE *out) {
    AttentionSpec s = spec_of(c);
    s.nargs = backward ? ARGS : LSE + 1;
    s.nread = backward ? DQ : OUT;
    s.any_size = c->any_size && !backward;
    if (backward)
        attention_cuda_print_backward(&s, name, out);
    else
        attention_cuda_print_forward(&s, name, out);
}

/* A kernel that calls the one that is told its sizes with those of the case. */
static void print_caller(const Case *c, FILE *out) {
    AttentionSpec spec = spec_of(c);
    PlanSizes s = attention_cuda_sizes(&spec);
    fputs("INF_KERNEL(1) attention(", out);
    for (int i = 0; i <= LSE; i++)
        fprintf(out, "%s *a%d, ", i != LSE && c->dtype == DT_bf16 ? "inf_bf16" : "float", i);
    fputs("InfDeviceEnv env) {\n    attention_any(a0, a1, a2, a3, a4, env, {", out);
    fprintf(out, "%d, %d, %d, %d, ", s.batch, s.queries, s.keys, s.chunk);
    fprintf(out, "%lld, %lld, %lld, ", (long long)s.q, (long long)s.k, (long long)s.v);
    fprintf(out, "%lld, %lld, %lld, ", (long long)s.out, (long long)s.turned, (long long)s.lse);
    fprintf(out, "%lld});\n}\n", (long long)s.lse_head);
}

static char *forward_text(const Case *c) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    print_kernel(c, false, "attention_any", f);
    fclose(f);
    return text;
}

static uint32_t add_kernel(Object *o, const Case *c, bool backward) {
    bool any = c->any_size && !backward;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    print_kernel(c, backward, any ? "attention_any" : "attention", f);
    if (any) print_caller(c, f);
    fclose(f);
    AttentionSpec s = spec_of(c);
    AttentionLaunch l = backward ? attention_cuda_backward(&s) : attention_cuda_forward(&s);
    assert_true(l.shared_bytes <= 160 << 10);
    object_add_prelude(o, attention_cuda_print_prelude);
    uint32_t number = object_add_cuda(o, "attention", text, l.grid, l.block);
    free(text);
    return number;
}

/* --- values --- */

typedef struct Tensor {
    AttentionView view;
    int batch, heads, rows, dim;
    int64_t count; /* elements of its memory */
    double *value; /* [batch, heads, rows, dim] */
    void *memory;
} Tensor;

static uint32_t random_state = 12345;

static double random_value(void) {
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        sum += (random_state >> 8) / 16777216.0 - 0.5;
    }
    return sum * 1.7;
}

static int64_t element(const Tensor *t, int b, int h, int r, int x) {
    return t->view.offset + b * t->view.b + h * t->view.h + r * t->view.t + x;
}

static double *at(const Tensor *t, int b, int h, int r) {
    return t->value + (((int64_t)b * t->heads + h) * t->rows + r) * t->dim;
}

static void tensor_make(Tensor *t, AttentionView view, const Case *c, int heads, int rows) {
    *t = (Tensor){.view = view, .batch = c->batch, .heads = heads, .rows = rows, .dim = c->dim};
    t->count = element(t, c->batch - 1, heads - 1, rows - 1, c->dim - 1) + 9;
    t->value = calloc((size_t)(c->batch * heads * rows * c->dim), sizeof(double));
    t->memory = aligned_alloc(64, (size_t)(t->count * 4 + 63) / 64 * 64);
    assert_non_null(t->value);
    assert_non_null(t->memory);
    memset(t->memory, 0xFF, (size_t)(t->count * 4)); /* NaN */
}

static void tensor_free(Tensor *t) {
    free(t->value);
    free(t->memory);
}

/* bf16 is the upper half of a float. */
static double read_element(const Tensor *t, Dtype dtype, int64_t i) {
    float v;
    if (dtype == DT_f32) return (double)((float *)t->memory)[i];
    uint32_t bits = (uint32_t)((uint16_t *)t->memory)[i] << 16;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

static void write_element(const Tensor *t, Dtype dtype, int64_t i, double v) {
    float rounded = dtype == DT_f32 ? (float)v : bf16_round((float)v);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    if (dtype == DT_f32)
        ((float *)t->memory)[i] = rounded;
    else
        ((uint16_t *)t->memory)[i] = (uint16_t)(bits >> 16);
}

#define EACH_ELEMENT(t, b, h, r, x)                                                                \
    for (int b = 0; b < (t)->batch; b++)                                                           \
        for (int h = 0; h < (t)->heads; h++)                                                       \
            for (int r = 0; r < (t)->rows; r++)                                                    \
                for (int x = 0; x < (t)->dim; x++)

/* Values into memory; `value` is then what memory holds. */
static void tensor_write(Tensor *t, Dtype dtype) {
    EACH_ELEMENT(t, b, h, r, x) {
        write_element(t, dtype, element(t, b, h, r, x), at(t, b, h, r)[x]);
        at(t, b, h, r)[x] = read_element(t, dtype, element(t, b, h, r, x));
    }
}

static void tensor_random(Tensor *t, Dtype dtype) {
    EACH_ELEMENT(t, b, h, r, x) at(t, b, h, r)[x] = random_value();
    tensor_write(t, dtype);
}

/* |memory - value| / |value| (/ |1| where values are rounding errors); infinite when an element is
 * not a number or an element of no view was written. */
static double tensor_error(const Tensor *t, Dtype dtype) {
    double error = 0, norm = 0, n = t->batch * t->heads * t->rows * t->dim;
    bool *own = calloc((size_t)t->count, sizeof *own);
    assert_non_null(own);
    EACH_ELEMENT(t, b, h, r, x) {
        double v = read_element(t, dtype, element(t, b, h, r, x)), want = at(t, b, h, r)[x];
        own[element(t, b, h, r, x)] = true;
        error += (v - want) * (v - want);
        norm += want * want;
    }
    bool bad = error != error;
    for (int64_t i = 0; i < t->count; i++) {
        double v = read_element(t, dtype, i);
        bad |= !own[i] && v == v;
    }
    free(own);
    return bad ? INFINITY : sqrt(error / (norm > 1e-6 * n ? norm : n));
}

/* --- the definition --- */

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static int keys_seen(const Case *c, int row) { return c->causal ? row + 1 : c->keys; }

static void expect_forward(const Case *c, Tensor *t, float *lse) {
    double *s = calloc((size_t)c->keys, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < c->batch * c->heads * c->queries; i++) {
        int r = i % c->queries, h = i / c->queries % c->heads, b = i / c->queries / c->heads;
        int group = h / (c->heads / c->groups), n = keys_seen(c, r);
        double top = -INFINITY, sum = 0, *out = at(&t[OUT], b, h, r);
        for (int j = 0; j < n; j++) {
            s[j] = c->scale * dot(at(&t[Q], b, h, r), at(&t[K], b, group, j), c->dim);
            top = s[j] > top ? s[j] : top;
        }
        for (int j = 0; j < n; j++) sum += exp(s[j] - top);
        lse[i] = (float)(top + log(sum));
        for (int j = 0; j < n; j++)
            for (int x = 0; x < c->dim; x++)
                out[x] += exp(s[j] - top) / sum * at(&t[V], b, group, j)[x];
    }
    free(s);
}

/* From what `out` and lse hold. */
static void expect_backward(const Case *c, Tensor *t, const float *lse) {
    for (int i = 0; i < c->batch * c->heads * c->queries; i++) {
        int r = i % c->queries, h = i / c->queries % c->heads, b = i / c->queries / c->heads;
        int group = h / (c->heads / c->groups);
        const double *q = at(&t[Q], b, h, r), *dout = at(&t[DOUT], b, h, r);
        double delta = dot(dout, at(&t[OUT], b, h, r), c->dim);
        for (int j = 0; j < keys_seen(c, r); j++) {
            const double *k = at(&t[K], b, group, j);
            double p = exp(c->scale * dot(q, k, c->dim) - (double)lse[i]);
            double ds = c->scale * p * (dot(dout, at(&t[V], b, group, j), c->dim) - delta);
            for (int x = 0; x < c->dim; x++) {
                at(&t[DQ], b, h, r)[x] += ds * k[x];
                at(&t[DK], b, group, j)[x] += ds * q[x];
                at(&t[DV], b, group, j)[x] += p * dout[x];
            }
        }
    }
}

/* --- tests --- */

static bool check(const char *what, const Case *c, double error) {
    double most = c->dtype == DT_f32 ? 2e-6 : 6e-3;
    if (error <= most) return true;
    print_error("%s of %s B%d H%d G%d T%d S%d K%d: error %.2e\n", what, dtype_name(c->dtype),
                c->batch, c->heads, c->groups, c->queries, c->keys, c->dim, error);
    return false;
}

static bool run_case(const Case *c, InfKernel *forward, InfKernel *backward) {
    AttentionSpec s = spec_of(c);
    const AttentionView view[ARGS] = {s.q, s.k, s.v, s.out, s.lse, s.dout, s.dq, s.dk, s.dv};
    Tensor t[ARGS];
    void *arg[ARGS];
    int rows = c->batch * c->heads * c->queries;
    float *lse = calloc((size_t)rows, sizeof *lse), *found = calloc((size_t)rows, sizeof *found);
    assert_non_null(lse);
    assert_non_null(found);
    for (int i = 0; i < ARGS; i++) {
        bool keys = i == K || i == V || i == DK || i == DV;
        if (i != LSE)
            tensor_make(&t[i], view[i], c, keys ? c->groups : c->heads,
                        keys ? c->keys : c->queries);
        arg[i] = i == LSE ? (void *)found : t[i].memory;
    }
    tensor_random(&t[Q], c->dtype);
    tensor_random(&t[K], c->dtype);
    tensor_random(&t[V], c->dtype);
    tensor_random(&t[DOUT], c->dtype);
    expect_forward(c, t, lse);
    InfEnv env = {.threads = 2};
    forward(arg, &env);
    bool ok = check("out", c, tensor_error(&t[OUT], c->dtype));
    double worst = 0;
    for (int i = 0; i < rows; i++) worst = fmax(worst, fabs((double)lse[i] - (double)found[i]));
    ok &= check("lse", c, worst / 4);
    tensor_write(&t[OUT], c->dtype);
    memcpy(found, lse, (size_t)rows * sizeof *lse);
    expect_backward(c, t, lse);
    backward(arg, &env);
    ok &= check("dq", c, tensor_error(&t[DQ], c->dtype));
    ok &= check("dk", c, tensor_error(&t[DK], c->dtype));
    ok &= check("dv", c, tensor_error(&t[DV], c->dtype));
    for (int i = 0; i < ARGS; i++)
        if (i != LSE) tensor_free(&t[i]);
    free(lse);
    free(found);
    return ok;
}

static void run_cases(const char *flag) {
#ifdef __SANITIZE_ADDRESS__
    skip(); /* threads of the emulation change stacks */
#endif
    if (system("command -v c++ > /dev/null") != 0) skip();
    setenv("INFINIC_TEST_TARGET", "cuda", 1);
    setenv("INFINIC_TEST_CFLAG", flag, 1);
    Object *o = object_new();
    uint32_t number[CASES][2];
    for (int i = 0; i < CASES; i++)
        for (int back = 0; back < 2; back++) number[i][back] = add_kernel(o, &cases[i], back);
    object_build(o, NULL, NULL);
    int bad = 0;
    for (int i = 0; i < CASES; i++)
        bad += !run_case(&cases[i], object_kernel(o, number[i][0]), object_kernel(o, number[i][1]));
    object_free(o);
    assert_int_equal(bad, 0);
}

static void test_warp_products(void **state) {
    (void)state;
    run_cases("-DATTN_HAS_WGMMA=0");
}

static void test_warpgroup_products(void **state) {
    (void)state;
    run_cases("-DATTN_HAS_WGMMA=1");
}

static void test_any_size(void **state) {
    (void)state;
    int equal = 0;
    for (int i = 0; i + 1 < CASES; i++) {
        if (!cases[i].any_size || !cases[i + 1].any_size) continue;
        char *a = forward_text(&cases[i]), *b = forward_text(&cases[i + 1]);
        assert_string_equal(a, b);
        free(a);
        free(b);
        equal++;
    }
    assert_int_equal(equal, 2);
}

static void test_compiles(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* the release build compiles them */
#endif
    static const char *const archs[] = {"sm_80", "sm_90a", "sm_100a"};
    static const int dims[] = {40, 64, 128, 8, 80, 256}; /* the first half on every run */
    int count = getenv("INFINIC_LONG") != NULL ? 6 : 2;
    Nvrtc *n = nvrtc_open(NULL);
    if (n == NULL) skip();
    char *text = NULL, name[64];
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    loop_print_cuda_prelude(f);
    attention_cuda_print_prelude(f);
    for (int i = 0; i < count; i++)
        for (int wide = 0; wide < 2; wide++)
            for (int back = 0; back < 2; back++) {
                Case c = {wide ? DT_f32 : DT_bf16,
                          2,
                          4,
                          2,
                          1000,
                          1000,
                          dims[i],
                          true,
                          true,
                          0.1,
                          0,
                          false};
                snprintf(name, sizeof name, "attention_%d_%d_%d", dims[i], wide, back);
                print_kernel(&c, back, name, f);
                c.any_size = true;
                snprintf(name, sizeof name, "attention_any_%d_%d", dims[i], wide);
                if (!back && i == 0) print_kernel(&c, back, name, f);
            }
    fclose(f);
    for (int i = 0; i < 3; i++) {
        if (!nvrtc_knows(n, archs[i], NULL)) continue;
        NvrtcImage image = nvrtc_compile(n, text, "attention.cu", archs[i]);
        if (image.bytes == NULL) print_error("%s: %s\n", archs[i], image.log);
        assert_non_null(image.bytes);
        free(image.bytes);
        free(image.log);
    }
    free(text);
    nvrtc_close(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warp_products),
        cmocka_unit_test(test_warpgroup_products),
        cmocka_unit_test(test_any_size),
        cmocka_unit_test(test_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
