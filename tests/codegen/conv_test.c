/* conv_test.c - generated convolutions against the evaluator's naive loops.
 *
 * Kernel sizes, strides, paddings, odd sizes and channel counts; the same bits for 1, 2 and 4
 * threads; an epilogue gives the bits of the separate operations. All kernels are one shared
 * object.
 */
#include "tests/codegen/kernel_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct Sizes {
    int64_t n, ci, h, w, co, kh, kw, sh, sw, ph, pw;
} Sizes;

static Type f32(const KernelSet *set, int64_t a, int64_t b, int64_t c, int64_t d) {
    return type_intern(set->m->types, DT_f32, 4, (int64_t[]){a, b, c, d});
}

typedef struct Types {
    Type x, w, y;
} Types;

static Types types_of(const KernelSet *set, const Sizes *s) {
    int64_t oh = (s->h + 2 * s->ph - s->kh) / s->sh + 1,
            ow = (s->w + 2 * s->pw - s->kw) / s->sw + 1;
    return (Types){f32(set, s->n, s->ci, s->h, s->w), f32(set, s->co, s->ci, s->kh, s->kw),
                   f32(set, s->n, s->co, oh, ow)};
}

static Val input(Builder *b, Type type) { return graph_add_input(b->g, type, (Port){0}); }

static void output(Builder *b, Val v) { graph_add_output(b->g, v, (Port){0}); }

/* A body with the one convolution; its operands are the first two inputs, `extra` (when given) gets
 * one more, of type `type`. */
static Val add_conv(KernelSet *set, Builder *b, const Sizes *s, Op op, Type type, Val *extra) {
    Types t = types_of(set, s);
    Type first = op == OP_conv2d_dx ? t.y : t.x, second = op == OP_conv2d_dw ? t.y : t.w;
    Val in[2];
    in[0] = input(b, first);
    in[1] = input(b, second);
    if (extra) *extra = input(b, type);
    Attr attr[] = {ATTR_INTS(stride, 2, ((int64_t[]){s->sh, s->sw})),
                   ATTR_INTS(padding, 2, ((int64_t[]){s->ph, s->pw}))};
    Type given = op == OP_conv2d ? (Type){0} : op == OP_conv2d_dx ? t.x : t.w;
    return graph_add(b, op, 2, in, 2, attr, given)->out;
}

static int add_case(KernelSet *set, const Sizes *s, Op op) {
    char text[96];
    snprintf(text, sizeof text, "%s n%d %dx%dx%d to %d k%dx%d s%d,%d p%d,%d", op_name(op),
             (int)s->n, (int)s->ci, (int)s->h, (int)s->w, (int)s->co, (int)s->kh, (int)s->kw,
             (int)s->sh, (int)s->sw, (int)s->ph, (int)s->pw);
    Builder b = kernel_set_body(set);
    output(&b, add_conv(set, &b, s, op, (Type){0}, NULL));
    return kernel_set_add(set, b.g, op_name(op), text);
}

static void add_all(KernelSet *set, const Sizes *s) {
    add_case(set, s, OP_conv2d);
    add_case(set, s, OP_conv2d_dx);
    add_case(set, s, OP_conv2d_dw);
}

static void check_all(KernelSet *set) {
    kernel_set_build(set, getenv("INFINIC_TEST_CC"), getenv("INFINIC_TEST_MARCH"));
    int bad = 0;
    for (int i = 0; i < set->n; i++) bad += !(kernel_set_check(set, i, 1e-5) <= 1e-5);
    assert_int_equal(bad, 0);
    kernel_set_free(set);
}

/* `coarse`: numbers that tf32 holds. */
static KernelSet *set_new(bool tf32, bool coarse) {
    KernelSet *set = kernel_set_new();
    set->m->train.tf32 = tf32;
    set->coarse = coarse;
    return set;
}

/* Every kernel size, stride and padding on small odd planes. */
static void test_sweep(void **state) {
    (void)state;
    bool all = getenv("INFINIC_LONG") != NULL;
    KernelSet *set = kernel_set_new();
    int number = 0;
    for (int64_t k = 1; k <= 5; k += k < 3 ? 1 : 2)
        for (int64_t s = 1; s <= 3; s++)
            for (int64_t p = 0; p <= 3; p++)
                for (int64_t h = 5; h <= 9; h += 2) {
                    if (number++ % 7 != 0 && !all) continue;
                    Sizes z = {.n = 2,
                               .ci = 1 + number % 5,
                               .h = h,
                               .w = h + number % 4,
                               .co = 1 + number % 7,
                               .kh = k,
                               .kw = k,
                               .sh = s,
                               .sw = s,
                               .ph = p,
                               .pw = p};
                    add_all(set, &z);
                }
    check_all(set);
}

static const Sizes special[] = {
    {1, 1, 28, 28, 16, 3, 3, 1, 1, 0, 0},   {3, 16, 26, 26, 32, 3, 3, 1, 1, 0, 0},
    {2, 3, 13, 7, 10, 3, 5, 2, 1, 1, 2},    {1, 5, 9, 17, 33, 5, 3, 1, 2, 2, 0},
    {2, 7, 8, 8, 48, 1, 1, 1, 1, 0, 0},     {2, 7, 8, 8, 17, 1, 1, 2, 2, 0, 0},
    {1, 3, 16, 16, 20, 8, 8, 8, 8, 0, 0},   {2, 2, 10, 10, 70, 7, 7, 2, 2, 3, 3},
    {1, 4, 1, 1, 4, 1, 1, 1, 1, 0, 0},      {1, 2, 5, 5, 3, 5, 5, 1, 1, 0, 0},
    {2, 1, 9, 33, 40, 3, 3, 2, 1, 0, 0},    {1, 2, 6, 50, 5, 3, 3, 1, 1, 0, 0},
    {1, 2, 3, 3, 3, 3, 3, 1, 1, 4, 4},      {2, 3, 6, 6, 5, 2, 2, 3, 3, 1, 1},
    {1, 64, 14, 14, 128, 3, 3, 1, 1, 1, 1}, {1, 1, 1, 700, 2, 1, 9, 1, 1, 0, 4},
    {1, 300, 7, 7, 8, 3, 3, 1, 1, 1, 1},    {1, 2, 12, 12, 3, 11, 11, 1, 1, 5, 5},
    {5, 20, 11, 11, 40, 3, 3, 1, 1, 1, 1},  {1, 40, 5, 400, 3, 3, 3, 1, 1, 1, 1},
};

static void test_special(void **state) {
    (void)state;
    KernelSet *set = kernel_set_new();
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) add_all(set, &special[i]);
    check_all(set);
}

/* Bias and ReLU after a forward convolution: kernel `fused` and the chain conv, then map. */
static void check_fused_forward(KernelSet *set) {
    Sizes s = {3, 8, 11, 9, 20, 3, 3, 1, 1, 1, 1};
    Types t = types_of(set, &s);
    Type bias = type_intern(set->m->types, DT_f32, 1, &s.co);
    int conv = add_case(set, &s, OP_conv2d);

    int fused = 0, map = 0;
    for (int form = 0; form < 2; form++) {
        Builder b = kernel_set_body(set);
        Val z, y;
        if (form == 0) {
            y = add_conv(set, &b, &s, OP_conv2d, bias, &z);
        } else {
            y = input(&b, t.y);
            z = input(&b, bias);
        }
        z = build_broadcast(&b, z, t.y, (int64_t[]){1});
        Val r = build1(&b, OP_relu, build2(&b, OP_add, y, z));
        output(&b, r);
        output(&b, build2(&b, OP_mul, r, y));
        *(form ? &map : &fused) = kernel_set_add(set, b.g, form ? "map" : "conv2d", "bias, relu");
    }
    kernel_set_build(set, NULL, NULL);
    assert_true(kernel_set_check(set, fused, 1e-5) <= 1e-5);
    kernel_set_run(set, conv, 2);
    kernel_set_feed(set, conv, 0, map, 0);
    int64_t count = s.co;
    for (int64_t i = 0; i < count; i++)
        ((float *)set->item[map].arg[1])[i] = ((float *)set->item[fused].arg[2])[i];
    kernel_set_run(set, map, 2);
    assert_true(kernel_set_same(set, fused, 0, map, 0));
    assert_true(kernel_set_same(set, fused, 1, map, 1));
    kernel_set_free(set);
}

/* The mask of a ReLU below, and an old gradient that is added to: gradients with an operand of the
 * result's shape. */
static void check_fused_gradients(KernelSet *set) {
    static const Sizes sizes[] = {{3, 16, 13, 13, 8, 3, 3, 1, 1, 0, 0},
                                  {2, 3, 9, 9, 21, 3, 3, 2, 2, 1, 1}};
    int plain[4], fused[4], map[4], n = 0;
    for (size_t i = 0; i < 2; i++)
        for (Op op = OP_conv2d_dx; op <= OP_conv2d_dw; op++, n++) {
            plain[n] = add_case(set, &sizes[i], op);
            for (int form = 0; form < 2; form++) {
                Types t = types_of(set, &sizes[i]);
                Type type = op == OP_conv2d_dx ? t.x : t.w;
                Builder b = kernel_set_body(set);
                Val v, old;
                if (form == 0) {
                    v = add_conv(set, &b, &sizes[i], op, type, &old);
                } else {
                    v = input(&b, type);
                    old = input(&b, type);
                }
                Val mask = build2(&b, OP_gt, old, build_scalar_like(&b, 0.0, old));
                Val masked = build3(&b, OP_select, mask, v, build_scalar_like(&b, 0.0, old));
                output(&b, build2(&b, OP_add, masked, old));
                int number = kernel_set_add(set, b.g, form ? "map" : op_name(op), op_name(op));
                *(form ? &map[n] : &fused[n]) = number;
            }
        }
    kernel_set_build(set, NULL, NULL);
    for (int i = 0; i < n; i++) {
        assert_true(kernel_set_check(set, fused[i], 1e-5) <= 1e-5);
        kernel_set_run(set, plain[i], 2);
        kernel_set_feed(set, plain[i], 0, map[i], 0);
        Type t = val_type(set->item[map[i]].body, set->item[map[i]].body->in[1]);
        for (int64_t j = 0; j < type_elems(set->m->types, t); j++)
            ((float *)set->item[map[i]].arg[1])[j] = ((float *)set->item[fused[i]].arg[2])[j];
        kernel_set_run(set, map[i], 2);
        assert_true(kernel_set_same(set, fused[i], 0, map[i], 0));
    }
    kernel_set_free(set);
}

static void test_fused(void **state) {
    (void)state;
    check_fused_forward(kernel_set_new());
    check_fused_gradients(kernel_set_new());
}

/* --- tf32, on the emulation of tensor cores --- */

static const Sizes tensor[] = {
    {3, 16, 26, 26, 32, 3, 3, 1, 1, 0, 0},  {2, 16, 13, 7, 24, 3, 5, 1, 1, 1, 2},
    {1, 9, 9, 17, 33, 5, 3, 1, 1, 2, 0},    {2, 20, 8, 8, 48, 1, 1, 1, 1, 0, 0},
    {2, 8, 9, 9, 8, 2, 2, 1, 1, 1, 1},      {5, 20, 11, 11, 40, 3, 3, 1, 1, 1, 1},
    {1, 70, 7, 7, 80, 3, 3, 1, 1, 1, 1},    {1, 40, 5, 100, 12, 3, 3, 1, 1, 1, 1},
    {40, 8, 6, 5, 16, 3, 3, 1, 1, 1, 1},    {2, 16, 13, 13, 32, 3, 3, 2, 2, 1, 1},
    {2, 3, 13, 7, 10, 3, 5, 2, 1, 1, 2},    {1, 3, 16, 16, 20, 8, 8, 8, 8, 0, 0},
    {2, 2, 10, 10, 70, 7, 7, 2, 2, 3, 3},   {2, 3, 6, 6, 5, 2, 2, 3, 3, 1, 1},
    {2, 40, 12, 12, 100, 3, 3, 2, 2, 1, 1}, {2, 1, 12, 12, 16, 3, 3, 1, 1, 0, 0},
    {1, 12, 12, 12, 9, 11, 11, 1, 1, 5, 5}, {1, 16, 3, 600, 16, 3, 3, 1, 1, 1, 1},
};

static int64_t pick(uint64_t *state, int64_t low, int64_t high) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((*state >> 33) % (uint64_t)(high - low + 1));
}

static Sizes random_sizes(uint64_t *state) {
    Sizes s = {.n = pick(state, 1, 5), .ci = pick(state, 1, 40), .co = pick(state, 1, 40)};
    s.kh = pick(state, 1, 4), s.kw = pick(state, 1, 4);
    s.sh = pick(state, 1, 4) > 2 ? 2 : 1, s.sw = s.sh == 1 ? 1 : pick(state, 1, 3);
    s.ph = pick(state, 0, 3), s.pw = pick(state, 0, 3);
    s.h = pick(state, 4, 14), s.w = pick(state, 4, 20);
    return s;
}

/* Numbers that tf32 holds: every product is exact, so errors are those of sums in f32. */
static void test_tf32_exact(void **state) {
    (void)state;
    if (!object_is_cuda()) skip();
    KernelSet *set = set_new(true, true);
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) add_all(set, &tensor[i]);
    uint64_t random = 5;
    for (int i = 0; i < (getenv("INFINIC_LONG") ? 120 : 12); i++) {
        Sizes s = random_sizes(&random);
        add_all(set, &s);
    }
    check_all(set);
}

/* Other numbers are rounded: not the f32 result, and not far from it. Few channels at stride 1 stay
 * f32. */
static void test_tf32_rounds(void **state) {
    (void)state;
    if (!object_is_cuda()) skip();
    static const Sizes sizes[] = {{2, 16, 12, 12, 32, 3, 3, 1, 1, 1, 1},
                                  {2, 16, 13, 13, 32, 3, 3, 2, 2, 1, 1},
                                  {2, 1, 12, 12, 16, 3, 3, 1, 1, 0, 0}};
    KernelSet *set = set_new(true, false);
    for (int i = 0; i < 3; i++) add_all(set, &sizes[i]);
    kernel_set_build(set, NULL, NULL);
    for (int i = 0; i < set->n; i++) {
        double error = kernel_set_check(set, i, 1e-3);
        bool rounded = i < 6;
        if (rounded ? error < 5e-5 || error > 1e-3 : error > 2e-6) fail_msg("%g", error);
    }
    kernel_set_free(set);
}

static void test_tf32_fused(void **state) {
    (void)state;
    if (!object_is_cuda()) skip();
    check_fused_forward(set_new(true, true));
    check_fused_gradients(set_new(true, true));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep),       cmocka_unit_test(test_special),
        cmocka_unit_test(test_fused),       cmocka_unit_test(test_tf32_exact),
        cmocka_unit_test(test_tf32_rounds), cmocka_unit_test(test_tf32_fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
