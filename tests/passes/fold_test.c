/* fold_test.c - fold changes no bit: every elementwise op with every special constant, on operands
 * that hold NaN, infinities, both zeros and ordinary numbers. */
#include "tests/passes/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const double special[] = {0.0,      -0.0,      1.0, -1.0, 2.0,   0.5,
                                 INFINITY, -INFINITY, NAN, 3.0,  1e-40, 7e37};
enum { SPECIALS = sizeof special / sizeof special[0] };

static bool same_bits(double a, double b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* Bits of a value as the target holds it. */
static double as_f32(double x) { return (double)(float)x; }

static bool takes_floats(Op op) {
    return op != OP_not && op != OP_and && op != OP_or && op != OP_select && op != OP_cast;
}

/* op(x, c), op(c, x), op(x, x), or op(x), op(op(x)), op(c); with `constant`, x is c too. */
static Graph *add_graph(Module *m, Op op, double value, bool constant) {
    Builder b = {.g = graph_new(m, "train")};
    int64_t n = SPECIALS;
    Type type = type_intern(m->types, DT_f32, 1, &n);
    Val x = graph_add_input(b.g, type, (Port){.role = ROLE_data});
    Val c = build_const(&b, value, type);
    if (constant) x = c;
    Val out[3];
    if (op_operands(op) == 1) {
        out[0] = build1(&b, op, x);
        out[1] = val_info(b.g, out[0])->dtype == DT_bool ? out[0] : build1(&b, op, out[0]);
        out[2] = build1(&b, op, c);
    } else {
        out[0] = build2(&b, op, x, c);
        out[1] = build2(&b, op, c, x);
        out[2] = build2(&b, op, x, x);
    }
    for (int i = 0; i < 3; i++)
        graph_add_output(b.g, out[i], (Port){.role = ROLE_output, .index = i});
    return module_add_graph(m, b.g);
}

/* Twice, because a folded node may make another one foldable. */
static void expect_same(Op op, double value) {
    Check c;
    check_empty(&c);
    const Graph *g = add_graph(c.m, op, value, false);
    check_start(&c);
    memcpy(c.in[0].data, special, sizeof special);
    EvalTensor *before = check_eval(&c, g);
    check_pass(&c, pass_fold);
    check_pass(&c, pass_fold);
    const Graph *folded = module_graph(c.m, "train");
    EvalTensor *after = check_eval(&c, folded);
    /* out[2] of a unary op is folded in f32: its exactness is test_constants' matter */
    for (int k = 0; k < (op_operands(op) == 1 ? 2 : 3); k++)
        for (int i = 0; i < SPECIALS; i++)
            if (!same_bits(before[k].data[i], after[k].data[i]))
                fail_msg("%s with %g, result %d, x = %g: %g became %g", op_name(op), value, k,
                         special[i], before[k].data[i], after[k].data[i]);
    check_free(&c);
}

static void test_no_bit_changes(void **state) {
    (void)state;
    for (int op = OP_none + 1; op < OP_count; op++) {
        if (op_kind((Op)op) != KIND_elementwise || !takes_floats((Op)op)) continue;
        for (int i = 0; i < SPECIALS; i++) expect_same((Op)op, special[i]);
    }
}

/* Ops whose f32 result f64 arithmetic gives exactly after rounding. */
static void test_constants(void **state) {
    (void)state;
    static const Op exact[] = {OP_neg, OP_abs, OP_sign, OP_sqrt, OP_floor, OP_relu, OP_add, OP_sub,
                               OP_mul, OP_div, OP_max,  OP_min,  OP_lt,    OP_le,   OP_eq,  OP_ne};
    for (size_t k = 0; k < sizeof exact / sizeof exact[0]; k++)
        for (int i = 0; i < SPECIALS; i++) {
            Check c;
            check_empty(&c);
            const Graph *g = add_graph(c.m, exact[k], as_f32(special[i]), true);
            check_start(&c);
            EvalTensor *before = check_eval(&c, g);
            check_pass(&c, pass_fold);
            const Graph *folded = module_graph(c.m, "train");
            EvalTensor *after = check_eval(&c, folded);
            assert_int_equal(val_node(folded, folded->out[0])->op, OP_const);
            if (!same_bits(as_f32(before[0].data[0]), after[0].data[0]))
                fail_msg("%s of %g: %g, not %g", op_name(exact[k]), special[i], after[0].data[0],
                         before[0].data[0]);
            check_free(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_bit_changes),
        cmocka_unit_test(test_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
