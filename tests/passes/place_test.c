/* place_test.c - the checker refuses what is wrong: placements are right until one address, stride
 * or size is changed. */
#include "passes/place.h"

#include "tests/passes/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char layers[] =
    "param 0 \"h.*.w\" f32[4,16,16] init=ones stack=1\n"
    "param 1 \"h.*.b\" f32[4,16] init=zeros stack=1\n"
    "param 2 \"wte\" f32[32,16] init=ones\n"
    "graph train(%0: i32[8] data(0, \"tokens\"), %1: i32[8] data(1, \"targets\"),\n"
    "    %2: f32[4,16,16] weight(0), %3: f32[4,16] weight(1), %4: f32[32,16] weight(2)) {\n"
    "  %5 = gather %4, %0 : f32[8,16]\n"
    "  %6 = repeat %5, %2, %3 {count=4, ncarry=1, nconst=0, reverse=0} : f32[8,16] {\n"
    "    graph body(%0: f32[8,16], %1: f32[16,16], %2: f32[16]) {\n"
    "      %3 = matmul %0, %1 {ta=0, tb=1} : f32[8,16]\n"
    "      %4 = broadcast %2 {axes=[1]} : f32[8,16]\n"
    "      %5 = add %3, %4 : f32[8,16]\n"
    "      %6 = gelu %5 : f32[8,16]\n"
    "      %7 = add %0, %6 : f32[8,16]\n"
    "      return %7\n"
    "    }\n"
    "  }\n"
    "  %7 = matmul %6, %4 {ta=0, tb=1} : f32[8,32]\n"
    "  %8, %9 = cross_entropy %7, %1 {ignore=-1} : f32[], f32[]\n"
    "  return %8 loss_sum, %9 loss_count\n"
    "}\n";

/* The module placed; microbatches > 1 adds train.add. */
static void make_placed(Check *c, int64_t microbatches, bool slots) {
    static bool (*const passes[])(PassContext *) = {pass_alias,   pass_autodiff,   pass_decompose,
                                                    pass_cleanup, pass_accumulate, pass_optim,
                                                    pass_fuse,    pass_schedule};
    const PassOptions options = {0};
    check_read(c, layers);
    c->m->train.microbatches = microbatches;
    PassContext ctx = {.mod = c->m, .scratch = &c->scratch, .options = &options};
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) assert_true(passes[i](&ctx));
    if (slots) ctx.table->slots[0] = 2;
    assert_true(pass_place(&ctx));
}

static const char *checked(Check *c, const Graph *g, bool slots) {
    const PlaceOptions options = {.slots = slots};
    return place_check(g, place_fixed_address, &options, &c->arena);
}

static void expect_refused(Check *c, const Graph *g, const char *what) {
    if (checked(c, g, false) == NULL) fail_msg("not noticed: %s", what);
}

/* Moves value v and the views of it. */
static void move(Graph *g, Val v, Addr to) {
    g->val[v.id].addr = to;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_reshape && g->node[i]->in[0].id == v.id)
            move(g, g->node[i]->out, to);
    for (int i = 0; i < g->nnode; i++) /* a repeat's body follows what is outside */
        for (int k = 0; g->node[i]->op == OP_repeat && k < g->node[i]->nin; k++)
            if (g->node[i]->in[k].id == v.id) {
                Addr *inner = &g->node[i]->body->val[g->node[i]->body->in[k].id].addr;
                inner->region = to.region;
                inner->offset_bytes = to.offset_bytes;
            }
}

static int last_read(const Graph *g, Val v) {
    int last = -1;
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            if (g->node[i]->in[k].id == v.id) {
                int inner = g->node[i]->op == OP_reshape ? last_read(g, g->node[i]->out) : i;
                if (inner > last) last = inner;
            }
    return last;
}

/* Result v of a kernel, moved to where `kept` lies. */
static void expect_overlap(Check *c, Graph *g, Val v, Val kept) {
    Addr was = g->val[v.id].addr;
    move(g, v, g->val[kept.id].addr);
    expect_refused(c, g, "two live values at one place");
    move(g, v, was);
}

/* A value written at node i over one that is read after it. */
static void test_overlap(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 2, false);
    int tried = 0;
    for (int q = 0; q < c.m->ngraph; q++) {
        Graph *g = c.m->graph[q];
        for (uint32_t v = 1; v < g->nval; v++)
            for (uint32_t kept = 1; kept < v; kept++) {
                const Node *n = val_node(g, (Val){v});
                if (n == NULL || n->op != OP_kernel || last_read(g, (Val){v}) < 0) continue;
                if (last_read(g, (Val){kept}) < (int)g->val[v].node) continue;
                expect_overlap(&c, g, (Val){v}, (Val){kept});
                tried++;
            }
        assert_null(checked(&c, g, false));
    }
    assert_true(tried > 30);
    check_free(&c);
}

/* Every value one byte further, and then in another region. */
static void test_moved(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 2, false);
    for (int q = 0; q < c.m->ngraph; q++) {
        Graph *g = c.m->graph[q];
        for (uint32_t v = 1; v < g->nval; v++) {
            if (last_read(g, (Val){v}) < 0) continue;
            Addr was = g->val[v].addr;
            const Node *n = val_node(g, (Val){v});
            if (n != NULL && n->op == OP_kernel) continue; /* a buffer of its own may move */
            g->val[v].addr.offset_bytes += 1;
            expect_refused(&c, g, "an input, a view or a repeat's result moved by a byte");
            g->val[v].addr = was;
            g->val[v].addr.region = REGION_none;
            expect_refused(&c, g, "no region");
            g->val[v].addr = was;
        }
    }
    check_free(&c);
}

static void test_strides(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 2, false);
    int tried = 0;
    for (int q = 0; q < c.m->ngraph; q++) {
        const Graph *g = c.m->graph[q];
        for (int i = 0; i < g->nnode; i++) {
            if (g->node[i]->op != OP_repeat) continue;
            Graph *body = g->node[i]->body;
            for (uint32_t v = 1; v < body->nval; v++) {
                int64_t *stride = &body->val[v].addr.stride_bytes[0];
                if (*stride == 0) continue;
                *stride -= 64;
                expect_refused(&c, g, "a stride too short");
                *stride += 64;
                tried++;
            }
        }
    }
    assert_true(tried >= 8);
    check_free(&c);
}

static void test_regions(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 1, false);
    for (int r = REGION_param; r < REGION_count; r++) {
        int64_t was = c.m->region_bytes[r];
        if (was == 0) continue;
        c.m->region_bytes[r] = was / 2;
        bool noticed = false;
        for (int q = 0; q < c.m->ngraph; q++)
            noticed = noticed || checked(&c, c.m->graph[q], false) != NULL;
        if (!noticed) fail_msg("not noticed: region %d is half as large", r);
        c.m->region_bytes[r] = was;
    }
    check_free(&c);
}

/* With slots nothing in scratch survives from the forward to the backward. */
static void test_slots(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 2, true);
    assert_true(c.m->region_bytes[REGION_slot] > 0);
    for (int q = 0; q < c.m->ngraph; q++) assert_null(checked(&c, c.m->graph[q], true));
    check_free(&c);
    make_placed(&c, 2, false);
    assert_int_equal(c.m->region_bytes[REGION_slot], 0);
    assert_non_null(checked(&c, module_graph(c.m, "train"), true));
    check_free(&c);
}

static bool is_gradient(const Graph *g, Val v) {
    for (int k = 0; k < g->nout; k++)
        if (g->out[k].id == v.id) return g->out_port[k].role == ROLE_grad;
    return false;
}

/* Values of train that lie where gradients will be; each of them is then moved to the bytes between
 * the gradients, which nobody may write. */
static int try_lent(Check *c) {
    Graph *g = module_graph(c->m, "train");
    int lent = 0;
    const Param *b = &c->m->param[1];
    int64_t gap = (b->offset_elems + type_elems(c->m->types, b->type)) * (int64_t)sizeof(float);
    for (uint32_t v = 1; v < g->nval; v++) {
        const Node *n = val_node(g, (Val){v});
        Addr was = g->val[v].addr;
        if (n == NULL || n->op != OP_kernel || was.region != REGION_grad ||
            is_gradient(g, (Val){v}))
            continue;
        lent++;
        move(g, (Val){v}, (Addr){.region = REGION_grad, .offset_bytes = gap});
        expect_refused(c, g, "a value between gradients");
        move(g, (Val){v}, was);
    }
    return lent;
}

static void test_lent(void **state) {
    (void)state;
    Check c;
    make_placed(&c, 1, false);
    assert_true(try_lent(&c) > 0);
    check_free(&c);
    make_placed(&c, 2, false);
    assert_int_equal(try_lent(&c), 0);
    check_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlap), cmocka_unit_test(test_moved),
        cmocka_unit_test(test_strides), cmocka_unit_test(test_regions),
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_lent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
