/* eval_test.c - the evaluator against PyTorch's results (eval_cases.def) and closed forms. */
#include "tests/ir/fixture.h"

#include "ir/eval.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct EvalCase {
    const char *name, *graph, *in, *out;
} EvalCase;

static const EvalCase cases[] = {
#define CASE(name, graph, in, out) {#name, graph, in, out},
#include "tests/ir/eval_cases.def"
#undef CASE
};

enum { CASE_COUNT = sizeof cases / sizeof cases[0], PORTS_MAX = 8 };

/* Reads the numbers of one tensor and steps over the '|' behind them. */
static EvalTensor read_tensor(Fixture *f, Type t, const char **text) {
    int64_t n = type_elems(f->m->types, t);
    EvalTensor x = {t, ARENA_ARRAY(&f->arena, double, n)};
    for (int64_t i = 0; i < n; i++) {
        char *end = NULL;
        x.data[i] = strtod(*text, &end);
        assert_ptr_not_equal(end, *text);
        *text = end;
    }
    assert_true(**text == '|' || **text == '\0');
    if (**text == '|') (*text)++;
    return x;
}

static bool close_enough(double a, double b) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b)) return a == b;
    return fabs(a - b) <= 1e-12 + 1e-11 * fabs(b);
}

static void run_case(const EvalCase *c) {
    Fixture f;
    fixture_read(&f, c->graph);
    if (!f.ok) fail_msg("%s: %s", c->name, f.message);
    const Graph *g = f.m->graph[0];
    EvalTensor in[PORTS_MAX], out[PORTS_MAX];
    assert_true(g->nin <= PORTS_MAX && g->nout <= PORTS_MAX);
    const char *text = c->in;
    for (int i = 0; i < g->nin; i++) in[i] = read_tensor(&f, val_type(g, g->in[i]), &text);
    eval_graph(&(EvalContext){.arena = &f.arena}, g, in, out);
    text = c->out;
    for (int i = 0; i < g->nout; i++) {
        EvalTensor want = read_tensor(&f, val_type(g, g->out[i]), &text);
        for (int64_t k = 0; k < type_elems(f.m->types, want.type); k++)
            if (!close_enough(out[i].data[k], want.data[k]))
                fail_msg("%s: result %d, element %d: got %.17g, want %.17g", c->name, i, (int)k,
                         out[i].data[k], want.data[k]);
    }
    assert_string_equal(text, "");
    fixture_free(&f);
}

static void test_every_case_gives_the_literal_values(void **state) {
    (void)state;
    for (int i = 0; i < CASE_COUNT; i++) run_case(&cases[i]);
}

static void test_every_op_has_a_case(void **state) {
    (void)state;
    for (int op = OP_none + 1; op < OP_count; op++) {
        char word[64];
        snprintf(word, sizeof word, " = %s ", op_name((Op)op));
        bool found = op == OP_random_uniform; /* below */
        for (int i = 0; i < CASE_COUNT && !found; i++) found = strstr(cases[i].graph, word) != NULL;
        if (!found) fail_msg("no case for %s", op_name((Op)op));
    }
}

/* Numbers lie in [0, 1), differ by stream, element and iteration, and are the same every time. */
static void test_random_numbers_depend_on_their_place_only(void **state) {
    (void)state;
    Fixture f;
    fixture_read(&f, "graph f() {\n"
                     "%0 = random_uniform {stream=0} : f32[1000]\n"
                     "%1 = random_uniform {stream=1} : f32[1000]\n"
                     "%2 = repeat {count=2, ncarry=0, nconst=0, reverse=0} {\n"
                     "graph() { %0 = random_uniform {stream=0} : f32[1000] return %0 } }\n"
                     "return %0, %1, %2 }");
    assert_string_equal(f.message, "");
    EvalTensor a[3], b[3];
    EvalContext ctx = {.arena = &f.arena};
    eval_graph(&ctx, f.m->graph[0], NULL, a);
    eval_graph(&ctx, f.m->graph[0], NULL, b);
    double mean = 0;
    int same_stream = 0, same_iteration = 0;
    for (int i = 0; i < 1000; i++) {
        assert_true(a[0].data[i] >= 0 && a[0].data[i] < 1);
        assert_true(a[0].data[i] == b[0].data[i]);
        mean += a[0].data[i] / 1000;
        same_stream += a[0].data[i] == a[1].data[i];
        same_iteration += a[2].data[i] == a[2].data[1000 + i];
    }
    assert_true(fabs(mean - 0.5) < 0.03); /* 3 standard deviations */
    assert_true(same_stream < 3 && same_iteration < 3);
    fixture_free(&f);
}

typedef struct Asked {
    int64_t stream, iter[2], index;
    int niter, calls;
} Asked;

static double remember(void *ctx, int64_t stream, const int64_t *iter, int niter, int64_t index) {
    Asked *a = ctx;
    *a = (Asked){
        stream, {niter > 0 ? iter[0] : -1, niter > 1 ? iter[1] : -1}, index, niter, a->calls + 1};
    return 0.25;
}

static void test_a_given_generator_is_asked_with_the_iteration(void **state) {
    (void)state;
    Fixture f;
    fixture_read(&f, "graph f() {\n"
                     "%0 = repeat {count=3, ncarry=0, nconst=0, reverse=0} { graph() {\n"
                     "%0 = repeat {count=2, ncarry=0, nconst=0, reverse=1} { graph() {\n"
                     "%0 = random_uniform {stream=5} : f32[4] return %0 } } return %0 } }\n"
                     "return %0 }");
    assert_string_equal(f.message, "");
    Asked asked = {0};
    EvalTensor out[1];
    EvalContext ctx = {.arena = &f.arena, .random = remember, .random_ctx = &asked};
    eval_graph(&ctx, f.m->graph[0], NULL, out);
    assert_int_equal(asked.calls, 24);
    assert_int_equal(asked.stream, 5);
    assert_int_equal(asked.niter, 2);
    assert_int_equal(asked.iter[0], 2);
    assert_int_equal(asked.iter[1], 0);
    assert_int_equal(asked.index, 3);
    assert_true(out[0].data[23] == 0.25);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case_gives_the_literal_values),
        cmocka_unit_test(test_every_op_has_a_case),
        cmocka_unit_test(test_random_numbers_depend_on_their_place_only),
        cmocka_unit_test(test_a_given_generator_is_asked_with_the_iteration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
