/* matmul_test.c - generated matrix products against the evaluator.
 *
 * Every way of split_matmul, ragged blocks, cut depths, batches, all four transpositions; the same
 * bits for 1, 2 and 4 threads; an epilogue gives the bits of the separate operations.
 */
#include "tests/codegen/kernel_set.h"

#include "ir/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct Sizes {
    int64_t batch, m, n, k;
} Sizes;

static Type f32(const KernelSet *set, const Sizes *s, int64_t rows, int64_t cols) {
    int ndim = s->batch > 0 ? 3 : 2; // batch 0: no batch axis
    int64_t dim[3] = {s->batch, rows, cols};
    return type_intern(set->m->types, DT_f32, ndim, dim + 3 - ndim);
}

static Val input(Builder *b, Type type) { return graph_add_input(b->g, type, (Port){0}); }

/* The product; operands are the first two inputs, `extra` (when given) gets one of its shape. */
static Val add_product(KernelSet *set, Builder *b, const Sizes *s, bool ta, bool tb, Val *extra) {
    Val x = input(b, ta ? f32(set, s, s->k, s->m) : f32(set, s, s->m, s->k));
    Val y = input(b, tb ? f32(set, s, s->n, s->k) : f32(set, s, s->k, s->n));
    if (extra) *extra = input(b, f32(set, s, s->m, s->n));
    return build_matmul(b, x, y, ta, tb);
}

static int add_case(KernelSet *set, const Sizes *s, bool ta, bool tb) {
    char text[96];
    snprintf(text, sizeof text, "matmul %d: %d x %d x %d ta%d tb%d", (int)s->batch, (int)s->m,
             (int)s->n, (int)s->k, ta, tb);
    Builder b = kernel_set_body(set);
    graph_add_output(b.g, add_product(set, &b, s, ta, tb, NULL), (Port){0});
    return kernel_set_add(set, b.g, "matmul", text);
}

static const Sizes sizes[] = {
    {0, 64, 10, 1843}, {0, 10, 1843, 64},  {0, 64, 1843, 10}, {0, 1, 1, 1},      {0, 1, 300, 700},
    {0, 3, 17, 2050},  {0, 17, 3, 2050},   {0, 65, 130, 33},  {0, 7, 16, 1000},  {0, 130, 16, 31},
    {0, 33, 700, 5},   {0, 200, 300, 100}, {0, 20, 24, 5000}, {3, 5, 40, 20},    {3, 40, 50, 60},
    {2, 16, 70, 600},  {5, 9, 11, 13},     {0, 129, 513, 17}, {0, 2, 2, 100000}, {0, 16, 16, 513},
    {0, 100, 40, 1},   {0, 40, 15, 4},     {0, 10, 1844, 64}, {0, 37, 2052, 10}, {0, 7, 1100, 200},
    {0, 64, 10, 9216}, {0, 9, 7, 1028},    {0, 512, 3, 2048},
    {0, 1, 2304, 768}, {0, 1, 1001, 256},  {0, 4, 520, 132},  {0, 3, 40, 2052},  {0, 2, 1030, 1024},
};

static void test_sizes(void **state) {
    (void)state;
    KernelSet *set = kernel_set_new();
    int ways[3] = {0}, cut = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < 4; t++) {
            int number = add_case(set, &sizes[i], t & 1, t >> 1);
            const Graph *body = set->item[number].body;
            MatmulSplit s = split_matmul(body, body->node[0]);
            ways[s.way]++;
            cut += s.depth.count > 1;
        }
    for (int i = 0; i < 3; i++) assert_true(ways[i] > 0);
    assert_true(cut > 0);
    kernel_set_build(set, getenv("INFINIC_TEST_CC"), getenv("INFINIC_TEST_MARCH"));
    int bad = 0;
    for (int i = 0; i < set->n; i++) bad += !(kernel_set_check(set, i, 1e-5) <= 1e-5);
    assert_int_equal(bad, 0);
    kernel_set_free(set);
}

/* relu(x @ y + old), old and two results, in one kernel and as product, then map. */
static void test_fused(void **state) {
    (void)state;
    KernelSet *set = kernel_set_new();
    static const Sizes shapes[] = {{0, 65, 10, 1000},
                                   {0, 10, 1400, 64},
                                   {0, 150, 200, 90},
                                   {2, 20, 30, 3000},
                                   {0, 24, 24, 4000},
                                   {0, 1, 1536, 768}};
    int plain[12], fused[12], map[12], n = 0;
    for (size_t i = 0; i < 6; i++)
        for (int tb = 0; tb < 2; tb++, n++) {
            plain[n] = add_case(set, &shapes[i], false, tb);
            for (int form = 0; form < 2; form++) {
                Builder b = kernel_set_body(set);
                Val v, old;
                if (form == 0) {
                    v = add_product(set, &b, &shapes[i], false, tb, &old);
                } else {
                    v = input(&b, f32(set, &shapes[i], shapes[i].m, shapes[i].n));
                    old = input(&b, val_type(b.g, v));
                }
                Val sum = build2(&b, OP_add, v, old);
                graph_add_output(b.g, build1(&b, OP_relu, sum), (Port){0});
                graph_add_output(b.g, build2(&b, OP_mul, sum, old), (Port){0});
                char text[64];
                snprintf(text, sizeof text, "%s, add, relu of case %d", form ? "map" : "matmul", n);
                int number = kernel_set_add(set, b.g, form ? "map" : "matmul", text);
                *(form ? &map[n] : &fused[n]) = number;
            }
        }
    kernel_set_build(set, getenv("INFINIC_TEST_CC"), getenv("INFINIC_TEST_MARCH"));
    for (int i = 0; i < n; i++) {
        assert_true(kernel_set_check(set, fused[i], 1e-5) <= 1e-5);
        kernel_set_run(set, plain[i], 2);
        kernel_set_feed(set, plain[i], 0, map[i], 0);
        Type t = val_type(set->item[map[i]].body, set->item[map[i]].body->in[1]);
        for (int64_t j = 0; j < type_elems(set->m->types, t); j++)
            ((float *)set->item[map[i]].arg[1])[j] = ((float *)set->item[fused[i]].arg[2])[j];
        kernel_set_run(set, map[i], 2);
        assert_true(kernel_set_same(set, fused[i], 0, map[i], 0));
        assert_true(kernel_set_same(set, fused[i], 1, map[i], 1));
    }
    kernel_set_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
