/* random_test.c - 1,000 random graphs: passes keep their meaning, gradients agree with finite
 * differences along sampled directions, repeats with the same graph written out. */
#include "tests/ir/randgraph.h"
#include "tests/passes/check.h"
#include "tests/passes/unroll.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed_count(void) { return getenv("INFINIC_LONG") != NULL ? 10000 : 1000; }

static RandOptions options_of(uint64_t seed) {
    return (RandOptions){.seed = seed,
                         .nodes = 5 + (int)(seed % 30),
                         .composites = seed % 3 != 0,
                         .windows = seed % 4 == 1,
                         .repeats = seed % 5 < 3,
                         .random = seed % 7 == 0,
                         .smooth = true,
                         .outputs = true};
}

static void make(Check *c, const RandOptions *o) {
    check_empty(c);
    randgraph_make(c->m, o);
    check_start(c);
    randgraph_inputs(c->forward, o->seed, &c->arena, c->in);
}

static bool close_to(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * (1.0 + fabs(b));
}

/* ---- passes keep meaning ----------------------------------------------------------------- */

static void expect_same_outputs(Check *c, uint64_t seed, const char *after) {
    const Graph *g = module_graph(c->m, "train");
    const EvalTensor *was = check_eval(c, c->forward), *is = check_eval(c, g);
    assert_int_equal(c->forward->nout, g->nout);
    for (int i = 0; i < g->nout; i++)
        for (int64_t k = 0; k < type_elems(c->m->types, is[i].type); k++)
            if (!close_to(is[i].data[k], was[i].data[k], 1e-5))
                fail_msg("seed %llu, %s: output %d, element %lld became %.9g from %.9g",
                         (unsigned long long)seed, after, i, (long long)k, is[i].data[k],
                         was[i].data[k]);
}

static void test_meaning_stays(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool (*run)(PassContext *);
    } passes[] = {{"fold", pass_fold},           {"cse", pass_cse},         {"dce", pass_dce},
                  {"decompose", pass_decompose}, {"cleanup", pass_cleanup}, {"alias", pass_alias}};
    for (uint64_t seed = 0; seed < seed_count(); seed++) {
        Check c;
        RandOptions o = options_of(seed);
        o.smooth = seed % 2 == 0;
        make(&c, &o);
        for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
            check_pass(&c, passes[i].run);
            expect_same_outputs(&c, seed, passes[i].name);
        }
        check_free(&c);
    }
}

/* ---- gradients --------------------------------------------------------------------------- */

/* d loss along one direction through all weights at once, by a difference of fourth order. */
static double difference(Check *c, double **direction, double h) {
    static const double step[4] = {-2, -1, 1, 2},
                        share[4] = {1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12};
    const Graph *g = c->forward;
    double sum = 0.0;
    EvalTensor *kept = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    for (int i = 0; i < g->nin; i++) kept[i] = c->in[i];
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < g->nin; i++) {
            if (direction[i] == NULL) continue;
            int64_t n = type_elems(c->m->types, kept[i].type);
            c->in[i].data = ARENA_ARRAY(&c->arena, double, n);
            for (int64_t k = 0; k < n; k++)
                c->in[i].data[k] = kept[i].data[k] + step[s] * h * direction[i][k];
        }
        sum += share[s] * check_output(g, check_eval(c, g), ROLE_loss_sum, 0, 0).data[0];
    }
    for (int i = 0; i < g->nin; i++) c->in[i] = kept[i];
    return sum / h;
}

/* One direction in the weights, random numbers of the inputs of another seed. */
static double **sample_direction(Check *c, uint64_t seed) {
    const Graph *g = c->forward;
    double **direction = ARENA_ARRAY(&c->arena, double *, g->nin);
    EvalTensor *values = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    randgraph_inputs(g, seed, &c->arena, values);
    for (int i = 0; i < g->nin; i++)
        if (g->in_port[i].role == ROLE_weight) direction[i] = values[i].data;
    return direction;
}

static double along(Check *c, double **direction, const EvalTensor *out) {
    const Graph *g = module_graph(c->m, "train");
    double sum = 0.0;
    for (int i = 0; i < c->forward->nin; i++) {
        if (direction[i] == NULL) continue;
        EvalTensor grad = check_grad(c, g, out, c->forward->in_port[i].index);
        for (int64_t k = 0; k < type_elems(c->m->types, grad.type); k++)
            sum += grad.data[k] * direction[i][k];
    }
    return sum;
}

static void test_gradients(void **state) {
    (void)state;
    int flat = 0;
    for (uint64_t seed = 0; seed < seed_count(); seed++) {
        Check c;
        const RandOptions o = options_of(seed);
        make(&c, &o);
        check_pass(&c, pass_alias);
        check_pass(&c, pass_autodiff);
        const EvalTensor *first = check_eval(&c, module_graph(c.m, "train"));
        double **direction = sample_direction(&c, seed + 1000000);
        double got = along(&c, direction, first), want = difference(&c, direction, 1e-4);
        check_pass(&c, pass_decompose);
        check_pass(&c, pass_cleanup);
        const EvalTensor *last = check_eval(&c, module_graph(c.m, "train"));
        double cleaned = along(&c, direction, last);
        if (!close_to(got, want, 1e-6) || !close_to(cleaned, want, 1e-5))
            fail_msg("seed %llu: %.9g and after cleanup %.9g, difference %.9g",
                     (unsigned long long)seed, got, cleaned, want);
        flat += want == 0.0;
        check_free(&c);
    }
    assert_true((uint64_t)flat < seed_count() / 20); /* most losses depend on their weights */
}

/* A graph with repeats and the same without have the same gradients. Numbers of a random stream
 * differ by iteration, so there are none. */
static void test_repeats(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < seed_count(); seed += 3) {
        Check a, b;
        RandOptions o = options_of(seed);
        o.repeats = true;
        o.random = false;
        make(&a, &o);
        make(&b, &o);
        Graph *unrolled = unroll_graph(b.forward, &b.arena);
        module_set_graph(b.m, "train", unrolled);
        b.forward = unrolled;
        double value[2];
        for (int i = 0; i < 2; i++) {
            Check *c = i == 0 ? &a : &b;
            check_pass(c, pass_alias);
            check_pass(c, pass_autodiff);
            check_pass(c, pass_decompose);
            check_pass(c, pass_cleanup);
            double **direction = sample_direction(c, seed + 2000000);
            value[i] = along(c, direction, check_eval(c, module_graph(c->m, "train")));
        }
        if (!close_to(value[0], value[1], 1e-5))
            fail_msg("seed %llu: %.17g, written out %.17g", (unsigned long long)seed, value[0],
                     value[1]);
        check_free(&a);
        check_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meaning_stays),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
