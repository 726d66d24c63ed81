/* functions_test.c - every function of the language against PyTorch's values.
 *
 * Each case is one expression in a small model; it is checked, lowered and run by the reference
 * evaluator. The values come from tests/reference/make_functions.py.
 */
#include "frontend/lower.h"
#include "ir/eval.h"
#include "ir/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct Case {
    const char *expr;
    int ndim;
    int64_t dims[NDIM_MAX];
    const double *values;
    size_t count;
} Case;

#define LIST(...)                                                                                  \
    { __VA_ARGS__ }
#define CASE(text, rank, shape, numbers)                                                           \
    {.expr = (text),                                                                               \
     .ndim = (rank),                                                                               \
     .dims = LIST shape,                                                                           \
     .values = (const double[])LIST numbers,                                                       \
     .count = sizeof((const double[])LIST numbers) / sizeof(double)},

static const Case cases[] = {
#include "functions_cases.def"
};

static const char model_text[] =
    "config { n = 3 }\n"
    "dim B, T, D = 6, H = 4, G = 2, K = 4, P = 2\n"
    "model m(x: f32[B, T, D], y: f32[B, T, D], p: f32[B, H, T, K], g: f32[B, G, T, K],\n"
    "        v: f32[B, G, T, K], img: f32[B, 2, 5, 5], c: i32[B, T]) {\n"
    "  pool: MaxPool2d(2); pool3: MaxPool2d(3, stride = 1, padding = 1)\n"
    "  mean_pool: AvgPool2d((2, 3), stride = (2, 1))\n"
    "  used = sum(img |> pool) + sum(img |> pool3) + sum(img |> mean_pool)\n"
    "  return used, %s\n"
    "}\n"
    "train { B = 2; T = 3; optimizer = sgd(lr = 0.1) }\n"
    "eval { B = 2 }\n";

/* The numbers of make_functions.py. */
static void fill(const Graph *g, int index, EvalTensor *t, Arena *arena) {
    t->type = val_type(g, g->in[index]);
    int64_t n = type_elems(g->mod->types, t->type);
    t->data = ARENA_ARRAY(arena, double, n);
    if (g->in_port[index].role == ROLE_valid) {
        for (int64_t k = 0; k < n; k++) t->data[k] = 1;
        return;
    }
    int64_t seed = g->in_port[index].index + 1;
    for (int64_t k = 0; k < n; k++) {
        t->data[k] = (double)((k * 7919 + seed * 104729 + 13) % 2001 - 1000) / 500.0;
        if (type_info(g->mod->types, t->type)->dtype == DT_i32)
            t->data[k] = (double)(k < 3 ? k * 5 % 6 : ((k - 3) * 7 + 2) % 6);
    }
}

static const Graph *lower_case(Arena *arena, Sources *sources, Diag *d, const Case *c) {
    const char *text = arena_printf(arena, model_text, c->expr);
    uint32_t file = source_add(sources, c->expr, text, strlen(text));
    Ast *tree = parse_source(arena, sources, d, file);
    Lower lower = {.arena = arena, .diag = d, .sources = sources};
    ModelText program = {0};
    lower.program = &program;
    lower.mod = module_new(arena, sources, d);
    lower.mod->file = "case.it";
    if (tree != NULL && d->error_count == 0) {
        vec_push(arena, &program.files, tree);
        lower_program(&lower, NULL, 0);
    }
    diag_finish(d);
    if (d->error_count > 0) fail_msg("%s: does not compile", c->expr);
    const char *broken = verify_module(lower.mod);
    if (broken != NULL) fail_msg("%s: %s", c->expr, broken);
    return module_graph(lower.mod, "eval");
}

/* The second result: a tensor, or sum / count of a number. */
static void check_result(const Graph *g, const EvalTensor *out, const Case *c) {
    int at = 2;
    bool number = g->out_port[at].role == ROLE_metric_sum;
    const TypeInfo *t = type_info(g->mod->types, out[at].type);
    assert_int_equal(t->ndim, c->ndim);
    for (int i = 0; i < c->ndim; i++) assert_int_equal(t->dim[i], c->dims[i]);
    for (size_t i = 0; i < c->count; i++) {
        double got = number ? out[at].data[0] / out[at + 1].data[0] : out[at].data[i];
        double tolerance = 1e-9 + 1e-7 * fabs(c->values[i]);
        if (!(fabs(got - c->values[i]) <= tolerance))
            fail_msg("%s: element %zu is %.12g, PyTorch has %.12g", c->expr, i, got, c->values[i]);
    }
}

static void check_case(const Case *c) {
    Arena arena = {0};
    Sources sources;
    Diag diag;
    sources_init(&sources, &arena);
    diag_init(&diag, &arena, &sources, stderr);
    const Graph *g = lower_case(&arena, &sources, &diag, c);
    EvalTensor *in = ARENA_ARRAY(&arena, EvalTensor, g->nin + 1);
    EvalTensor *out = ARENA_ARRAY(&arena, EvalTensor, g->nout + 1);
    for (int i = 0; i < g->nin; i++) fill(g, i, &in[i], &arena);
    eval_graph(&(EvalContext){.arena = &arena}, g, in, out);
    check_result(g, out, c);
    arena_free(&arena);
}

static void test_functions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) check_case(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
