/* accumulate_test.c - train on one batch, then train.add on another, is the sum of train on both:
 * gradients, also those that repeats stack, loss, counts. Exactly, on random graphs. */
#include "tests/ir/randgraph.h"
#include "tests/passes/check.h"

#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed_count(void) { return getenv("INFINIC_LONG") != NULL ? 3000 : 300; }

static bool same_port(const Port *a, const Port *b) {
    return a->role == b->role && a->index == b->index && a->use == b->use;
}

/* Runs g: batch tensors of seed `data`, weights of seed 0, sums so far from `old` (may be NULL). */
static EvalTensor *run(Check *c, const Graph *g, uint64_t data, const Graph *train,
                       const EvalTensor *old) {
    EvalTensor *in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    EvalTensor *weights = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    EvalTensor *out = ARENA_ARRAY(&c->arena, EvalTensor, g->nout);
    randgraph_inputs(g, data, &c->arena, in);
    randgraph_inputs(g, 0, &c->arena, weights);
    for (int i = 0; i < g->nin; i++) {
        if (g->in_port[i].role == ROLE_weight) in[i] = weights[i];
        for (int k = 0; old != NULL && k < train->nout; k++)
            if (same_port(&g->in_port[i], &train->out_port[k])) in[i] = old[k];
    }
    EvalContext ctx = {.arena = &c->arena};
    eval_graph(&ctx, g, in, out);
    return out;
}

/* Up to the order of terms: a repeat's sum goes on from the old value. */
static bool is_sum(double got, double a, double b) {
    return got == a + b || fabs(got - (a + b)) <= 1e-12 * (fabs(a) + fabs(b));
}

static void check_seed(uint64_t seed) {
    static bool (*const passes[])(PassContext *) = {pass_alias, pass_autodiff, pass_decompose,
                                                    pass_cleanup, pass_accumulate};
    Check c;
    RandOptions o = {.seed = seed,
                     .nodes = 5 + (int)(seed % 30),
                     .composites = seed % 2 == 0,
                     .windows = seed % 5 == 1,
                     .repeats = seed % 3 < 2};
    check_empty(&c);
    randgraph_make(c.m, &o);
    c.m->train.microbatches = 2;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) check_pass(&c, passes[i]);
    const Graph *train = module_graph(c.m, "train"), *add = module_graph(c.m, "train.add");
    assert_non_null(add);
    const EvalTensor *first = run(&c, train, seed + 1, NULL, NULL);
    const EvalTensor *second = run(&c, train, seed + 2, NULL, NULL);
    const EvalTensor *both = run(&c, add, seed + 2, train, first);
    assert_int_equal(train->nout, add->nout);
    for (int k = 0; k < train->nout; k++)
        for (int64_t i = 0; i < type_elems(c.m->types, both[k].type); i++)
            if (!is_sum(both[k].data[i], first[k].data[i], second[k].data[i]))
                fail_msg("seed %llu: output %d, element %lld is %.17g, not %.17g + %.17g",
                         (unsigned long long)seed, k, (long long)i, both[k].data[i],
                         first[k].data[i], second[k].data[i]);
    check_free(&c);
}

static void test_sums(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < seed_count(); seed++) check_seed(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
