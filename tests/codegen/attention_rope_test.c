/* attention_rope_test.c - attention's CUDA kernels that turn queries and gradients on their way
 * have the same bits as those that do not, with the turn done by itself before and after.
 *
 * Runs in the emulation, with the products of a warp and of a warpgroup. Where NVRTC is on this
 * machine they compile for sm_80, sm_90a and sm_100a.
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

enum { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, COS, SIN, TURNED, ARGS };

typedef struct Case {
    Dtype dtype;
    int batch, heads, groups, rows, dim;
    AttentionPairs pairs;
    bool back;
    int shift; /* elements before the first one of every tensor */
} Case;

static const Case cases[] = {
    {DT_bf16, 1, 2, 1, 70, 64, PAIRS_halves, false, 0},
    {DT_bf16, 1, 1, 1, 140, 16, PAIRS_halves, true, 0},
    {DT_bf16, 2, 2, 1, 20, 40, PAIRS_neighbours, false, 0},
    {DT_bf16, 1, 1, 1, 70, 128, PAIRS_halves, false, 0},
    {DT_bf16, 1, 1, 1, 33, 256, PAIRS_halves, false, 0},
    {DT_bf16, 1, 2, 2, 20, 64, PAIRS_neighbours, true, 3},
    {DT_bf16, 1, 1, 1, 20, 48, PAIRS_halves, false, 1},
    {DT_f32, 1, 2, 1, 70, 64, PAIRS_halves, false, 0},
    {DT_f32, 2, 2, 1, 33, 8, PAIRS_halves, true, 1},
    {DT_f32, 1, 2, 1, 20, 40, PAIRS_neighbours, false, 0},
    {DT_f32, 1, 1, 1, 20, 256, PAIRS_halves, false, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* --- kernels --- */

/* [B, T, N, K], or [B, N, T, K]. */
static AttentionView view_of(const Case *c, int arg, int heads, bool columns) {
    int64_t k = c->dim, all = (int64_t)heads * c->rows * k;
    if (columns) return (AttentionView){arg, c->shift, all, k, heads * k};
    return (AttentionView){arg, c->shift, all, c->rows * k, k};
}

static AttentionSpec spec_of(const Case *c, bool turns) {
    int h = c->heads, g = c->groups;
    AttentionSpec s = {.batch = c->batch,
                       .heads = h,
                       .groups = g,
                       .queries = c->rows,
                       .keys = c->rows,
                       .dim = c->dim,
                       .causal = true,
                       .scale = 0.2,
                       .dtype = c->dtype,
                       .q = view_of(c, Q, h, true),
                       .k = view_of(c, K, g, true),
                       .v = view_of(c, V, g, true),
                       .out = view_of(c, OUT, h, true),
                       .lse = {LSE, 0, (int64_t)h * c->rows, c->rows, 1},
                       .dout = view_of(c, DOUT, h, true),
                       .dq = view_of(c, DQ, h, true),
                       .dk = view_of(c, DK, g, true),
                       .dv = view_of(c, DV, g, true),
                       .turned = view_of(c, TURNED, h, false),
                       .nargs = ARGS,
                       .loose = c->shift ? 1 : 0};
    AttentionTurn turn = {c->pairs, c->back, COS, SIN};
    if (turns) s.turn_q = s.turn_dq = s.turn_dk = turn;
    for (int i = 0; i < ARGS; i++)
        s.arg_dtype[i] = i == LSE || i == COS || i == SIN ? DT_f32 : c->dtype;
    return s;
}

static void print_kernel(const Case *c, bool backward, bool turns, const char *name, FILE *out) {
    AttentionSpec s = spec_of(c, turns);
    s.nread = backward ? DQ : OUT;
    if (backward)
        attention_cuda_print_backward(&s, name, out);
    else
        attention_cuda_print_forward(&s, name, out);
}

static uint32_t add_kernel(Object *o, const Case *c, bool backward, bool turns) {
    AttentionSpec s = spec_of(c, turns);
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    print_kernel(c, backward, turns, "attention", f);
    fclose(f);
    AttentionLaunch l = backward ? attention_cuda_backward(&s) : attention_cuda_forward(&s);
    object_add_prelude(o, attention_cuda_print_prelude);
    uint32_t number = object_add_cuda(o, "attention", text, l.grid, l.block);
    free(text);
    return number;
}

/* --- values --- */

typedef struct Tensors {
    void *arg[ARGS];
    size_t bytes[ARGS];
} Tensors;

static float get(const Case *c, const void *at, int64_t i) {
    uint32_t bits;
    float v;
    if (c->dtype == DT_f32) return ((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void put(const Case *c, void *at, int64_t i, float v) {
    uint32_t bits;
    float rounded = c->dtype == DT_f32 ? v : bf16_round(v);
    memcpy(&bits, &rounded, sizeof bits);
    if (c->dtype == DT_f32)
        ((float *)at)[i] = v;
    else
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
}

static uint32_t random_state = 4321;

static float random_value(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static void tensors_make(Tensors *t, const Case *c) {
    for (int i = 0; i < ARGS; i++) {
        bool table = i == COS || i == SIN, of_keys = i == K || i == V || i == DK || i == DV;
        int64_t n = (int64_t)c->batch * (of_keys ? c->groups : c->heads) * c->rows * c->dim + 16;
        t->bytes[i] = (size_t)n * (table || i == LSE ? 4 : (size_t)dtype_bytes(c->dtype));
        t->arg[i] = aligned_alloc(64, (t->bytes[i] + 63) / 64 * 64);
        assert_non_null(t->arg[i]);
        memset(t->arg[i], 0xFF, t->bytes[i]);
        bool given = i == Q || i == K || i == V || i == DOUT;
        for (int64_t k = 0; k < n && given; k++) put(c, t->arg[i], k, random_value());
    }
    for (int64_t k = 0; k < (int64_t)c->rows * c->dim / 2; k++) {
        double angle = 4 * (double)random_value();
        ((float *)t->arg[COS])[k] = (float)cos(angle);
        ((float *)t->arg[SIN])[k] = (float)sin(angle);
    }
}

static void tensors_free(Tensors *t) {
    for (int i = 0; i < ARGS; i++) free(t->arg[i]);
}

/* Every row of `from` turned, in `to`: multiplied, added and rounded as a kernel of rope alone. */
static void turn_rows(const Case *c, const Tensors *t, const void *from, AttentionView in, void *to,
                      AttentionView out, int heads) {
    for (int i = 0; i < c->batch * heads * c->rows * (c->dim / 2); i++) {
        int half = c->dim / 2, k = i % half, r = i / half % c->rows;
        int h = i / half / c->rows % heads, b = i / half / c->rows / heads;
        int first = c->pairs == PAIRS_halves ? k : 2 * k;
        int second = c->pairs == PAIRS_halves ? k + half : 2 * k + 1;
        int64_t x = in.offset + b * in.b + h * in.h + r * in.t;
        int64_t y = out.offset + b * out.b + h * out.h + r * out.t;
        float cosine = ((float *)t->arg[COS])[r * half + k];
        float sine = ((float *)t->arg[SIN])[r * half + k] * (c->back ? -1.0f : 1.0f);
        float p = get(c, from, x + first), q = get(c, from, x + second);
        float pc = p * cosine, qs = q * -sine, qc = q * cosine, ps = p * sine;
        put(c, to, y + first, pc + qs);
        put(c, to, y + second, qc + ps);
    }
}

static bool same(const Case *c, const char *what, const Tensors *a, const Tensors *b, int arg) {
    if (memcmp(a->arg[arg], b->arg[arg], a->bytes[arg]) == 0) return true;
    print_error("%s of %s H%d G%d T%d K%d, pairs %d: other bits\n", what, dtype_name(c->dtype),
                c->heads, c->groups, c->rows, c->dim, c->pairs);
    return false;
}

/* `kernel`: forward and backward, plain and turning. */
static bool run_case(const Case *c, InfKernel *kernel[2][2]) {
    AttentionSpec s = spec_of(c, true);
    Tensors one, apart;
    random_state = 4321;
    tensors_make(&one, c);
    random_state = 4321;
    tensors_make(&apart, c);
    InfEnv env = {.threads = 2};
    /* Forward: the turned queries, then attention of them. */
    kernel[0][1](one.arg, &env);
    turn_rows(c, &apart, apart.arg[Q], s.q, apart.arg[TURNED], s.turned, c->heads);
    bool ok = same(c, "turned queries", &one, &apart, TURNED);
    turn_rows(c, &apart, one.arg[Q], s.q, apart.arg[Q], s.q, c->heads);
    kernel[0][0](apart.arg, &env);
    ok &= same(c, "out", &one, &apart, OUT) && same(c, "lse", &one, &apart, LSE);
    /* Backward, from the same queries: gradients, then their turn. */
    memcpy(one.arg[Q], apart.arg[Q], one.bytes[Q]);
    kernel[1][1](one.arg, &env);
    kernel[1][0](apart.arg, &env);
    turn_rows(c, &apart, apart.arg[DQ], s.dq, apart.arg[DQ], s.dq, c->heads);
    turn_rows(c, &apart, apart.arg[DK], s.dk, apart.arg[DK], s.dk, c->groups);
    ok &= same(c, "dq", &one, &apart, DQ) && same(c, "dk", &one, &apart, DK) &&
          same(c, "dv", &one, &apart, DV);
    tensors_free(&one);
    tensors_free(&apart);
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
    uint32_t number[CASES][2][2];
    for (int i = 0; i < CASES; i++)
        for (int k = 0; k < 4; k++)
            number[i][k / 2][k % 2] = add_kernel(o, &cases[i], k / 2 == 1, k % 2 == 1);
    object_build(o, NULL, NULL);
    int bad = 0;
    for (int i = 0; i < CASES; i++) {
        InfKernel *kernel[2][2];
        for (int k = 0; k < 4; k++)
            kernel[k / 2][k % 2] = object_kernel(o, number[i][k / 2][k % 2]);
        bad += !run_case(&cases[i], kernel);
    }
    object_free(o);
    assert_int_equal(bad, 0);
}

static void test_warp_products(void **state) {
    (void)state;
    if (getenv("INFINIC_LONG") == NULL) skip(); /* most widths have no others */
    run_cases("-DATTN_HAS_WGMMA=0");
}

static void test_warpgroup_products(void **state) {
    (void)state;
    run_cases("-DATTN_HAS_WGMMA=1");
}

static void test_compiles(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* the release build compiles them */
#endif
    static const char *const archs[] = {"sm_80", "sm_90a", "sm_100a"};
    static const Case kinds[] = {/* the first on every run */
                                 {DT_bf16, 2, 4, 2, 1000, 64, PAIRS_halves, true, 0},
                                 {DT_bf16, 2, 4, 2, 1000, 128, PAIRS_halves, true, 0},
                                 {DT_bf16, 2, 4, 2, 1000, 256, PAIRS_halves, true, 0},
                                 {DT_bf16, 2, 4, 2, 1000, 40, PAIRS_neighbours, true, 0},
                                 {DT_f32, 2, 4, 2, 1000, 64, PAIRS_halves, true, 0},
                                 {DT_f32, 2, 4, 2, 1000, 128, PAIRS_neighbours, true, 0}};
    int count = getenv("INFINIC_LONG") != NULL ? (int)(sizeof kinds / sizeof kinds[0]) : 1;
    Nvrtc *n = nvrtc_open(NULL);
    if (n == NULL) skip();
    char *text = NULL, name[64];
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    loop_print_cuda_prelude(f);
    attention_cuda_print_prelude(f);
    for (int i = 0; i < 2 * count; i++) {
        snprintf(name, sizeof name, "attention_%d", i);
        print_kernel(&kinds[i / 2], i % 2 == 1, true, name, f);
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
        cmocka_unit_test(test_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
