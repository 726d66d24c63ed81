/* randgraph_test.c - the generator itself: graphs verify, read back, and give finite numbers. */
#include "tests/ir/fixture.h"
#include "tests/ir/randgraph.h"

#include "ir/text.h"
#include "ir/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static RandOptions options_of(uint64_t seed) {
    return (RandOptions){.seed = seed,
                         .nodes = 5 + (int)(seed % 40),
                         .composites = seed % 3 != 0,
                         .windows = seed % 2 != 0,
                         .repeats = seed % 5 < 3,
                         .random = seed % 7 == 0,
                         .smooth = seed % 4 == 0,
                         .outputs = seed % 6 == 0};
}

static int seed_count(void) { return getenv("INFINIC_LONG") != NULL ? 5000 : 300; }

static void check_values(const Graph *g, const EvalTensor *out, uint64_t seed) {
    for (int i = 0; i < g->nout; i++)
        for (int64_t k = 0; k < type_elems(g->mod->types, out[i].type); k++)
            if (!(fabs(out[i].data[k]) < 1e6))
                fail_msg("seed %llu: output %d is %g", (unsigned long long)seed, i, out[i].data[k]);
}

static void test_graphs_verify_read_back_and_stay_finite(void **state) {
    (void)state;
    bool seen[OP_count] = {false};
    for (uint64_t seed = 0; seed < (uint64_t)seed_count(); seed++) {
        Fixture f, again;
        fixture_empty(&f);
        RandOptions o = options_of(seed);
        Graph *g = randgraph_make(f.m, &o);
        const char *why = verify_module(f.m);
        if (why != NULL) fail_msg("seed %llu: %s", (unsigned long long)seed, why);
        const char *text = fixture_print(&f, 0);
        fixture_read(&again, text);
        assert_string_equal(again.message, "");
        assert_string_equal(fixture_print(&again, 0), text);
        EvalTensor *in = ARENA_ARRAY(&f.arena, EvalTensor, g->nin);
        EvalTensor *out = ARENA_ARRAY(&f.arena, EvalTensor, g->nout);
        randgraph_inputs(g, seed, &f.arena, in);
        eval_graph(&(EvalContext){.arena = &f.arena}, g, in, out);
        check_values(g, out, seed);
        for (int i = 0; i < g->nnode; i++) seen[g->node[i]->op] = true;
        fixture_free(&f);
        fixture_free(&again);
    }
    for (int op = OP_none + 1; op < OP_count; op++) {
        const char *name = op_name((Op)op);
        bool backward = strstr(name, "_dx") != NULL || strstr(name, "_dw") != NULL ||
                        strstr(name, "_grad") != NULL;
        bool special = op == OP_kernel || op == OP_put; /* made by fuse, by generate's programs */
        if (!seen[op] && !backward && !special) fail_msg("%s never came up", name);
    }
}

static void test_one_seed_gives_one_graph(void **state) {
    (void)state;
    Fixture f, g, h;
    fixture_empty(&f);
    fixture_empty(&g);
    fixture_empty(&h);
    RandOptions o = options_of(11), other = options_of(12);
    other.nodes = o.nodes;
    randgraph_make(f.m, &o);
    randgraph_make(g.m, &o);
    randgraph_make(h.m, &other);
    assert_string_equal(fixture_print(&f, 0), fixture_print(&g, 0));
    assert_string_not_equal(fixture_print(&f, 0), fixture_print(&h, 0));
    fixture_free(&f);
    fixture_free(&g);
    fixture_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_verify_read_back_and_stay_finite),
        cmocka_unit_test(test_one_seed_gives_one_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
