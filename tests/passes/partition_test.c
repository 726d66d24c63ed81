/* partition_test.c - chunks of a pipeline against the whole graph: the same loss and the same
 * gradients, bit for bit, however the graph is cut; and how units are split. */
#include "ir/verify.h"
#include "passes/partition.h"
#include "passes/verify_passes.h"
#include "tests/ir/randgraph.h"
#include "tests/passes/check.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- chunks, one after the other --------------------------------------------------------- */

typedef struct Run {
    Check *whole, *cut;
    PassContext ctx;  /* of `cut`: modules by rank, the table */
    EvalTensor **out; /* by chunk */
} Run;

static const PassOptions options = {.stop_after = "partition"};

static void partition(Run *r, Check *c, int pp, int vpp, const char *pipeline) {
    r->ctx = (PassContext){.mod = c->m, .scratch = &c->scratch, .options = &options};
    c->m->parallel.pp = pp;
    c->m->parallel.vpp = vpp;
    c->m->parallel.pipeline = pipeline;
    diag_set_warning(&c->diag, "no-empty-chunk");
    assert_true(pass_partition(&r->ctx));
    arena_reset(&c->scratch);
}

/* One pass on the module of each rank. */
static void each_rank(Run *r, bool (*pass)(PassContext *ctx)) {
    for (int i = 0; i < r->ctx.nrank; i++) {
        PassContext one = r->ctx;
        one.mod = r->ctx.rank[i];
        assert_true(pass(&one));
        r->ctx.table = one.table;
        const char *why = verify_module(one.mod);
        if (why != NULL) fail_msg("%s", why);
    }
}

static Module *module_of(const Run *r, int chunk) { return r->ctx.rank[r->ctx.table->home[chunk]]; }

static Graph *graph_of(const Run *r, int chunk) {
    return module_chunk_graph(module_of(r, chunk), "train", r->ctx.table->local[chunk]);
}

static EvalTensor zeros(Check *c, Type type) {
    int64_t n = type_elems(c->m->types, type);
    return (EvalTensor){.type = type, .data = ARENA_ARRAY(&c->arena, double, n + 1)};
}

static EvalTensor output_of(const Run *r, int chunk, Role role, int index) {
    const Graph *g = graph_of(r, chunk);
    for (int i = 0; i < g->nout; i++)
        if (g->out_port[i].role == role && g->out_port[i].index == index) return r->out[chunk][i];
    fail_msg("chunk %d has no output %d %d", chunk, (int)role, index);
    return (EvalTensor){0};
}

/* Data and weights are those of the whole graph; a slice of a stack is a part of it. */
static EvalTensor outer_input(const Run *r, int chunk, Port port, Type type) {
    const Graph *g = r->whole->forward;
    int64_t at = 0;
    if (port.role == ROLE_weight) {
        const Param *p = &module_of(r, chunk)->param[port.index];
        const TypeInfo *t = type_info(r->cut->m->types, type);
        if (t->ndim > 0) at = p->first * (type_elems(r->cut->m->types, type) / t->dim[0]);
        port.index = p->origin;
    }
    for (int i = 0; i < g->nin; i++)
        if (g->in_port[i].role == port.role && g->in_port[i].index == port.index)
            return (EvalTensor){.type = type, .data = r->whole->in[i].data + at};
    fail_msg("the whole graph has no input %d %d", (int)port.role, port.index);
    return (EvalTensor){0};
}

static void run_chunk(Run *r, int chunk, bool backward) {
    Check *c = r->cut;
    const Graph *g = graph_of(r, chunk);
    EvalTensor *in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin + 1);
    for (int i = 0; i < g->nin; i++) {
        const Port *port = &g->in_port[i];
        Type type = val_type(g, g->in[i]);
        if (port->role == ROLE_recv)
            in[i] = output_of(r, chunk - 1, ROLE_send, port->index);
        else if (port->role == ROLE_recv_grad)
            in[i] =
                backward ? output_of(r, chunk + 1, ROLE_send_grad, port->index) : zeros(c, type);
        else
            in[i] = outer_input(r, chunk, *port, type);
    }
    EvalContext ctx = {.arena = &c->arena};
    r->out[chunk] = ARENA_ARRAY(&c->arena, EvalTensor, g->nout + 1);
    eval_graph(&ctx, g, in, r->out[chunk]);
}

static void run_chunks(Run *r) {
    int n = r->ctx.table->chunks;
    r->out = ARENA_ARRAY(&r->cut->arena, EvalTensor *, n);
    for (int c = 0; c < n; c++) run_chunk(r, c, false);
    for (int c = n - 1; c >= 0; c--) run_chunk(r, c, true);
}

/* ---- against the whole ------------------------------------------------------------------- */

static void expect_same(const double *a, const double *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(a[i] == 0 && b[i] == 0))
            fail_msg("%s, element %" PRId64 ": %.17g, in one piece %.17g", what, i, a[i], b[i]);
}

/* Every element of every use's gradient comes from exactly one chunk. */
static void expect_same_gradients(const Run *r, const Graph *whole, const EvalTensor *out) {
    const Table *t = r->ctx.table;
    for (int i = 0; i < whole->nout; i++) {
        const Port *port = &whole->out_port[i];
        if (port->role != ROLE_grad) continue;
        int64_t total = type_elems(r->whole->m->types, out[i].type), covered = 0;
        for (int c = 0; c < t->chunks; c++) {
            Module *m = module_of(r, c);
            const Graph *g = graph_of(r, c);
            for (int k = 0; k < g->nout; k++) {
                const Param *p = &m->param[g->out_port[k].index];
                if (g->out_port[k].role != ROLE_grad || p->origin != port->index ||
                    g->out_port[k].use != port->use)
                    continue;
                const TypeInfo *type = type_info(m->types, p->type);
                int64_t n = type_elems(m->types, p->type);
                int64_t at = type->ndim > 0 ? p->first * (n / type->dim[0]) : 0;
                expect_same(r->out[c][k].data, out[i].data + at, n, p->name);
                covered += n;
            }
        }
        assert_int_equal(covered, total);
    }
}

/* ---- repeats cut in two ------------------------------------------------------------------- */

static int weight_repeats; /* made so far */

static bool has_both(const Graph *body) {
    bool phase[PHASE_U + 1] = {false};
    for (int i = 0; i < body->nnode; i++)
        if (body->node[i]->op != OP_reshape) phase[body->node[i]->phase] = true;
    return phase[PHASE_I] && phase[PHASE_W];
}

/* No repeat of an input task computes weight gradients, too: what can wait is in the weight tasks.
 */
static void expect_apart(const Graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op != OP_repeat) continue;
        weight_repeats += n->phase == PHASE_W;
        if (n->phase == PHASE_I && has_both(n->body)) fail_msg("%s: a repeat has both", g->name);
        expect_apart(n->body);
    }
}

static EvalTensor *run_random(Check *c, const Graph *g) {
    EvalTensor *in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin + 1);
    EvalTensor *out = ARENA_ARRAY(&c->arena, EvalTensor, g->nout + 1);
    for (int i = 0; i < g->nin; i++)
        in[i] = verify_random_input(g->mod, &c->arena, g->in_port[i], val_type(g, g->in[i]), 2);
    EvalContext ctx = {.arena = &c->arena};
    eval_graph(&ctx, g, in, out);
    return out;
}

/* Pass separate changes no bit of any graph, and nothing where the backward is one task. */
static void separate_chunks(Run *r) {
    for (int k = 0; k < r->ctx.nrank; k++) {
        Module *m = r->ctx.rank[k];
        Graph **old = ARENA_ARRAY(&r->cut->arena, Graph *, m->ngraph + 1);
        bool splits = table_splits_backward(r->ctx.table, k);
        for (int i = 0; i < m->ngraph; i++) old[i] = m->graph[i];
        PassContext one = r->ctx;
        one.mod = m;
        assert_true(pass_separate(&one));
        const char *why = verify_module(m);
        if (why != NULL) fail_msg("%s", why);
        for (int i = 0; i < m->ngraph; i++) {
            const Graph *g = m->graph[i];
            if (!splits) assert_ptr_equal(g, old[i]);
            if (!splits || strncmp(g->name, "train", 5) != 0) continue;
            expect_apart(g);
            const EvalTensor *was = run_random(r->cut, old[i]), *is = run_random(r->cut, g);
            for (int o = 0; o < g->nout; o++)
                expect_same(is[o].data, was[o].data, type_elems(m->types, is[o].type), g->name);
        }
    }
}

/* The other passes; the checker of place knows what a task may read. Fused or one kernel an op. */
static void place_chunks(Run *r) {
    static bool (*const passes[])(PassContext *) = {pass_mixed,   pass_recompute,  pass_decompose,
                                                    pass_cleanup, pass_accumulate, pass_optim,
                                                    pass_fuse,    pass_schedule};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) each_rank(r, passes[i]);
    separate_chunks(r);
    each_rank(r, pass_place);
}

static void compare(Check *whole, Check *cut, int pp, int vpp, const char *pipeline) {
    Run r = {.whole = whole, .cut = cut};
    check_pass(whole, pass_alias);
    partition(&r, whole, 1, 1, "1f1b");
    check_pass(whole, pass_autodiff);
    check_pass(cut, pass_alias);
    partition(&r, cut, pp, vpp, pipeline);
    assert_int_equal(r.ctx.nrank, pp);
    each_rank(&r, pass_autodiff);
    const Graph *g = module_graph(whole->m, "train");
    const EvalTensor *out = check_eval(whole, g);
    run_chunks(&r);
    for (int i = 0; i < g->nout; i++) {
        Role role = g->out_port[i].role;
        if (role != ROLE_loss_sum && role != ROLE_loss_count) continue;
        EvalTensor got = output_of(&r, r.ctx.table->chunks - 1, role, 0);
        expect_same(got.data, out[i].data, type_elems(whole->m->types, out[i].type), "loss");
    }
    expect_same_gradients(&r, g, out);
    place_chunks(&r);
    check_free(whole);
    check_free(cut);
}

static void compare_text(const char *text, int pp, int vpp, const char *pipeline) {
    Check whole, cut;
    check_read(&whole, text);
    check_read(&cut, text);
    compare(&whole, &cut, pp, vpp, pipeline);
}

/* ---- models ------------------------------------------------------------------------------- */

/* An embedding tied to the head, `layers` residual layers with dropout, a constant beside them. */
static const char *model_text(char *text, size_t bytes, int layers) {
    snprintf(
        text, bytes,
        "param 0 \"wte\" f32[7,4] init=normal(1) uses=1\n"
        "param 1 \"h.*.w\" f32[%d,4,4] init=normal(1) stack=1 uses=1\n"
        "param 2 \"h.*.b\" f32[%d,4] init=normal(1) stack=1 uses=1\n"
        "param 3 \"ln.g\" f32[4] init=normal(1) uses=1\n"
        "param 4 \"ln.b\" f32[4] init=normal(1) uses=1\n"
        "graph train(%%0: i32[3] data(0, \"x\"), %%1: i32[3] data(1, \"y\"), "
        "%%2: f32[7,4] weight(0), %%3: f32[%d,4,4] weight(1), %%4: f32[%d,4] weight(2), "
        "%%5: f32[4] weight(3), %%6: f32[4] weight(4)) {\n"
        "  %%7 = gather %%2, %%0 : f32[3,4]\n"
        "  %%8 = const {value=0.5} : f32[3,4]\n"
        "  %%9 = repeat %%7, %%8, %%3, %%4 {count=%d, ncarry=1, nconst=1, reverse=0} : f32[3,4] {\n"
        "    graph (%%0: f32[3,4], %%1: f32[3,4], %%2: f32[4,4], %%3: f32[4]) {\n"
        "      %%4 = matmul %%0, %%2 {ta=0, tb=0} : f32[3,4]\n"
        "      %%5 = broadcast %%3 {axes=[1]} : f32[3,4]\n"
        "      %%6 = add %%4, %%5 : f32[3,4]\n"
        "      %%7 = tanh %%6 : f32[3,4]\n"
        "      %%8 = random_uniform {stream=0} : f32[3,4]\n"
        "      %%9 = lt %%8, %%1 : bool[3,4]\n"
        "      %%10 = const {value=0} : f32[3,4]\n"
        "      %%11 = select %%9, %%7, %%10 : f32[3,4]\n"
        "      %%12 = add %%0, %%11 : f32[3,4]\n"
        "      return %%12\n"
        "    }\n"
        "  }\n"
        "  %%10 = add %%9, %%7 : f32[3,4]\n"
        "  %%11, %%12, %%13 = layer_norm %%10, %%5, %%6 {eps=1e-05} : f32[3,4], f32[3], f32[3]\n"
        "  %%14 = matmul %%11, %%2 {ta=0, tb=1} : f32[3,7]\n"
        "  %%15, %%16 = cross_entropy %%14, %%1 {ignore=-1} : f32[], f32[]\n"
        "  return %%15 loss_sum, %%16 loss_count\n"
        "}\n",
        layers, layers, layers, layers, layers);
    return text;
}

static void test_layers(void **state) {
    (void)state;
    char text[4000];
    for (int layers = 1; layers <= 7; layers += 2)
        for (int pp = 2; pp <= 4; pp++)
            compare_text(model_text(text, sizeof text, layers), pp, 1, "1f1b");
    compare_text(model_text(text, sizeof text, 7), 2, 2, "1f1b");
    assert_int_equal(weight_repeats, 0);
    compare_text(model_text(text, sizeof text, 7), 2, 2, "zb-v");
    assert_int_equal(weight_repeats, 4);                          /* one a chunk */
    compare_text(model_text(text, sizeof text, 3), 4, 4, "1f1b"); /* empty chunks */
}

/* On the V, embedding and head are on one rank: one parameter. On a line they are on two. */
static void test_tied_weights(void **state) {
    (void)state;
    char text[4000];
    const struct {
        const char *pipeline;
        int vpp, copies;
    } rows[] = {{"1f1b", 1, 2}, {"zb-v", 2, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Check c;
        Run r = {.cut = &c};
        check_read(&c, model_text(text, sizeof text, 6));
        check_pass(&c, pass_alias);
        partition(&r, &c, 2, rows[i].vpp, rows[i].pipeline);
        int copies = 0;
        for (int k = 0; k < 2; k++)
            for (int p = 0; p < r.ctx.rank[k]->nparam; p++) {
                const Param *param = &r.ctx.rank[k]->param[p];
                copies += param->origin == 0;
                if (param->origin == 0) assert_int_equal(param->uses, 2);
            }
        assert_int_equal(copies, rows[i].copies);
        check_free(&c);
    }
}

/* What a repeat reads index by index is a stack of parameters, as in models. */
static void stack_weights(Module *m) {
    const Graph *g = module_graph(m, "train");
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        int first = (int)(node_int(n, ATTR_ncarry, 0) + node_int(n, ATTR_nconst, 0));
        for (int k = first; n->op == OP_repeat && k < n->nin; k++) {
            const ValInfo *v = &g->val[n->in[k].id];
            if (v->node != 0 || g->in_port[v->result].role != ROLE_weight) continue;
            Param *p = &m->param[g->in_port[v->result].index];
            if (p->nstack == 0) memmove(p->logical, p->logical + 1, sizeof p->logical - 8);
            p->nstack = 1;
        }
    }
}

static void test_random_graphs(void **state) {
    (void)state;
    uint64_t seeds = getenv("INFINIC_LONG") != NULL ? 5000 : 500;
    weight_repeats = 0;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        const RandOptions o = {.seed = seed,
                               .nodes = 5 + (int)(seed % 30),
                               .composites = seed % 3 != 0,
                               .windows = seed % 4 == 1,
                               .repeats = seed % 5 < 3,
                               .random = seed % 7 == 0};
        Check c[2];
        for (int i = 0; i < 2; i++) {
            check_empty(&c[i]);
            randgraph_make(c[i].m, &o);
            stack_weights(c[i].m);
            check_start(&c[i]);
            randgraph_inputs(c[i].forward, o.seed, &c[i].arena, c[i].in);
        }
        static const struct {
            const char *pipeline;
            int vpp;
        } layouts[] = {{"1f1b", 1}, {"zb-v", 2}, {"gpipe", 1}, {"1f1b", 2}, {"zb-h1", 1}};
        size_t k = seed % (sizeof layouts / sizeof *layouts);
        c[1].m->train.microbatches = 1 + (int64_t)(seed % 6);
        c[1].m->train.recompute = seed % 3 == 1;
        for (int i = 0; i < 2 && seed / 5 % 3 == 1; i++) { /* each pipeline in bf16, too */
            c[i].m->train.dtype = DT_bf16;
            c[i].m->target = TARGET_cuda;
        }
        int pp = layouts[k].vpp == 1 ? 2 + (int)(seed % 3) : 1 + (int)(seed % 4);
        compare(&c[0], &c[1], pp, layouts[k].vpp, layouts[k].pipeline);
    }
    printf("%d repeats of weight gradients\n", weight_repeats);
    assert_true(weight_repeats > (int)seeds / 10);
}

/* ---- splits ------------------------------------------------------------------------------- */

static double cost_of(const UnitList *units, const int *begin, int chunks) {
    double most = 0;
    for (int c = 0; c < chunks; c++) {
        double sum = 0;
        for (int u = begin[c]; u < begin[c + 1]; u++) sum += units->data[u].cost;
        most = sum > most ? sum : most;
    }
    return most;
}

/* The cheapest way that trying all of them finds. */
static double best_of(const UnitList *units, int from, int chunks) {
    double best = 1e300, sum = 0;
    if (chunks == 1) {
        for (uint32_t u = (uint32_t)from; u < units->n; u++) sum += units->data[u].cost;
        return sum;
    }
    for (int to = from + 1; to <= (int)units->n - chunks + 1; to++) {
        sum += units->data[to - 1].cost;
        double rest = best_of(units, to, chunks - 1), both = rest > sum ? rest : sum;
        best = both < best ? both : best;
    }
    return best;
}

static void test_split_is_best(void **state) {
    (void)state;
    Arena a = {0};
    uint32_t random = 1;
    for (int n = 1; n <= 10; n++)
        for (int chunks = 1; chunks <= n; chunks++)
            for (int k = 0; k < 20; k++) {
                UnitList units = {0};
                for (int u = 0; u < n; u++) {
                    random = random * 1664525u + 1013904223u;
                    vec_push(&a, &units, (Unit){.cost = (double)(random >> 20) + 1});
                }
                const int *begin = split_units(&units, chunks, &a);
                for (int c = 0; c < chunks; c++) assert_true(begin[c] < begin[c + 1]);
                assert_float_equal(cost_of(&units, begin, chunks), best_of(&units, 0, chunks), 0);
            }
    arena_free(&a);
}

static void expect_begin(const UnitList *units, const int64_t *layers, int n, const int *want) {
    Arena a = {0};
    const char *why = NULL;
    const int *begin = split_by_hand(units, layers, n, &a, &why);
    assert_non_null(begin);
    for (int c = 0; c <= n; c++) assert_int_equal(begin[c], want[c]);
    arena_free(&a);
}

static void test_split_by_hand(void **state) {
    (void)state;
    Arena a = {0};
    UnitList units = {0};
    const char *why = NULL;
    vec_push(&a, &units, (Unit){.name = "wte", .layer = -1});
    for (int i = 0; i < 7; i++) vec_push(&a, &units, (Unit){.name = "h.*", .layer = i});
    vec_push(&a, &units, (Unit){.name = "ln_f", .layer = -1});
    vec_push(&a, &units, (Unit){.name = "head", .layer = -1});
    expect_begin(&units, (const int64_t[]){3, 4}, 2, (const int[]){0, 4, 10});
    expect_begin(&units, (const int64_t[]){0, 3, 4, 0}, 4, (const int[]){0, 1, 4, 8, 10});
    assert_null(split_by_hand(&units, (const int64_t[]){3, 3}, 2, &a, &why));
    assert_string_equal(why, "the model has 7 layers, split has 6");
    assert_null(split_by_hand(&units, (const int64_t[]){3, INT64_MAX}, 2, &a, &why));
    assert_string_equal(why, "the model has 7 layers, split has more");
    const int *begin = split_units(&units, 12, &a);
    assert_int_equal(begin[11], 9);
    assert_int_equal(begin[12], 10);
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),        cmocka_unit_test(test_tied_weights),
        cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_split_is_best),
        cmocka_unit_test(test_split_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
