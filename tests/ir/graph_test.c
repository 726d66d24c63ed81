/* graph_test.c - types, graphs, modules, shape rules. */
#include "tests/ir/fixture.h"

#include "ir/shape.h"
#include "ir/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static Type type_of(Fixture *f, Dtype dtype, int ndim, const int64_t *dim) {
    return type_intern(f->m->types, dtype, ndim, dim);
}

static void test_types_are_interned_and_bounded(void **state) {
    (void)state;
    Fixture f;
    fixture_empty(&f);
    const TypeTable *tt = f.m->types;
    Type a = type_of(&f, DT_f32, 2, (int64_t[]){64, 10}), s = type_of(&f, DT_f32, 0, NULL);
    const TypeInfo *info = type_info(tt, a);
    for (int64_t i = 0; i < 1000; i++) assert_int_not_equal(type_of(&f, DT_i32, 1, &i).id, 0);
    assert_ptr_equal(type_info(tt, a), info);
    assert_int_equal(type_of(&f, DT_f32, 2, (int64_t[]){64, 10}).id, a.id);
    assert_int_not_equal(type_of(&f, DT_bf16, 2, (int64_t[]){64, 10}).id, a.id);
    assert_int_not_equal(type_of(&f, DT_f32, 2, (int64_t[]){10, 64}).id, a.id);
    assert_int_equal(type_elems(tt, a), 640);
    assert_int_equal(type_bytes(tt, a), 2560);
    assert_int_equal(type_elems(tt, s), 1);
    assert_string_equal(type_print(tt, &f.arena, a), "f32[64,10]");
    assert_string_equal(type_print(tt, &f.arena, s), "f32[]");
    assert_int_equal(type_of(&f, DT_f32, 1, (int64_t[]){-1}).id, 0);
    assert_int_equal(type_of(&f, DT_f32, 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}).id, 0);
    assert_int_equal(type_of(&f, DT_u8, 2, (int64_t[]){INT64_MAX, 2}).id, 0);
    assert_int_equal(type_of(&f, DT_f32, 1, (int64_t[]){INT64_MAX / 2}).id, 0);
    assert_int_equal(type_of(&f, DT_f32, 3, (int64_t[]){0, INT64_MAX, 2}).id, 0);
    assert_int_not_equal(type_of(&f, DT_u8, 1, (int64_t[]){INT64_MAX}).id, 0);
    assert_int_equal(type_of(&f, DT_none, 0, NULL).id, 0);
    fixture_free(&f);
}

static void test_names_of_dtypes_ops_and_attributes_read_back(void **state) {
    (void)state;
    for (int d = DT_none + 1; d < DT_count; d++)
        assert_int_equal(dtype_from_name(dtype_name((Dtype)d), strlen(dtype_name((Dtype)d))), d);
    for (int op = OP_none + 1; op < OP_count; op++)
        assert_int_equal(op_from_name(op_name((Op)op), strlen(op_name((Op)op))), op);
    for (int k = ATTR_none + 1; k < ATTR_count_; k++)
        assert_int_equal(attr_from_name(attr_name((AttrKey)k), strlen(attr_name((AttrKey)k))), k);
    assert_int_equal(op_from_name("", 0), OP_none);
    assert_int_equal(op_from_name("addx", 4), OP_none);
    assert_int_equal(op_from_name("addx", 3), OP_add);
    assert_string_equal(op_expr(OP_add), "a + b");
    assert_null(op_expr(OP_matmul));
    assert_string_equal(op_reduce_first(OP_reduce_max), "-INFINITY");
    assert_null(op_reduce_first(OP_add));
}

static void test_every_attribute_list_names_known_attributes(void **state) {
    (void)state;
    for (int op = OP_none + 1; op < OP_count; op++) {
        const char *list = op_attrs((Op)op);
        bool optional = false;
        while (op_attr_next(&list, &optional) != ATTR_none) continue;
        assert_string_equal(list, "");
    }
}

/* Attributes are kept in the order of the op's row. */
static void test_builders_make_the_nodes_they_name(void **state) {
    (void)state;
    Fixture f;
    fixture_empty(&f);
    Graph *g = module_add_graph(f.m, graph_new(f.m, "g"));
    Type t = type_of(&f, DT_f32, 2, (int64_t[]){2, 3});
    Val x = graph_add_input(g, t, (Port){0});
    Val bias = graph_add_input(g, type_of(&f, DT_f32, 1, (int64_t[]){3}), (Port){0});
    Builder b = {.g = g, .phase = PHASE_I, .scope = module_scope(f.m, "a.b")};
    Val y = build2(&b, OP_add, x, build_broadcast_suffix(&b, bias, t));
    assert_int_equal(build_cast(&b, y, DT_f32).id, y.id);
    assert_int_equal(build_reshape(&b, y, 2, (int64_t[]){2, 3}).id, y.id);
    assert_int_equal(build_broadcast(&b, y, t, (int64_t[]){0, 1}).id, y.id);
    assert_int_equal(build_reduce(&b, OP_reduce_sum, y, 0, NULL).id, y.id);
    Val z = build_matmul(&b, y, build_transpose(&b, y, (int64_t[]){1, 0}), false, false);
    Attr attr[] = {ATTR_INTS(step, 2, ((int64_t[]){1, 2})), ATTR_INTS(end, 2, ((int64_t[]){2, 2})),
                   ATTR_INTS(begin, 2, ((int64_t[]){0, 0}))};
    Val w = graph_add(&b, OP_slice, 1, &z, 3, attr, (Type){0})->out;
    graph_add_output(g, build_scalar_like(&b, 2, w), (Port){0});
    assert_string_equal(fixture_print(&f, 0),
                        "graph g(%0: f32[2,3], %1: f32[3]) {\n"
                        "  %2 = broadcast %1 {axes=[1]} : f32[2,3] !I\n"
                        "  %3 = add %0, %2 : f32[2,3] !I\n"
                        "  %4 = transpose %3 {perm=[1,0]} : f32[3,2] !I\n"
                        "  %5 = matmul %3, %4 {ta=0, tb=0} : f32[2,2] !I\n"
                        "  %6 = slice %5 {begin=[0,0], end=[2,2], step=[1,2]} : f32[2,1] !I\n"
                        "  %7 = const {value=2} : f32[2,1] !I\n"
                        "  return %7\n"
                        "}\n");
    assert_string_equal(scope_path(f.m, val_node(g, y)->scope), "a.b");
    assert_null(val_node(g, x));
    uint32_t *uses = graph_count_uses(g, &f.arena);
    assert_int_equal(uses[y.id], 2);
    assert_int_equal(uses[w.id], 0);
    fixture_free(&f);
}

static void test_a_clone_is_equal_and_apart(void **state) {
    (void)state;
    Fixture f;
    fixture_read(&f,
                 "graph f(%0: f32[2] @data+8, %1: f32[3,2]) {\n"
                 "%2 = repeat %0, %1 {count=3, ncarry=1, nconst=0, reverse=0} {\n"
                 "graph(%0: f32[2], %1: f32[2]) { %2 = mul %0, %1 @scratch+16[8] return %2 } }\n"
                 "return %2 output(0, \"y\") }");
    assert_string_equal(f.message, "");
    const Graph *g = f.m->graph[0];
    Graph *copy = graph_clone(g, "f");
    assert_string_equal(text_graph_string(copy, &f.arena), text_graph_string(g, &f.arena));
    assert_ptr_not_equal(copy->node[0]->body, g->node[0]->body);
    Builder b = {.g = copy->node[0]->body};
    build1(&b, OP_neg, b.g->in[0]);
    assert_int_equal(g->node[0]->body->nnode, 1);
    fixture_free(&f);
}

static void test_graphs_are_replaced_by_name(void **state) {
    (void)state;
    Fixture f;
    fixture_empty(&f);
    Graph *a = module_add_graph(f.m, graph_new(f.m, "a")), *b = graph_new(f.m, "b");
    module_set_graph(f.m, "b", b);
    assert_int_equal(f.m->ngraph, 2);
    Graph *c = graph_new(f.m, "a");
    module_set_graph(f.m, "a", c);
    assert_int_equal(f.m->ngraph, 2);
    assert_ptr_equal(module_graph(f.m, "a"), c);
    assert_ptr_not_equal(module_graph(f.m, "a"), a);
    assert_null(module_graph(f.m, "z"));
    assert_int_equal(module_scope(f.m, "x.y").id, module_scope(f.m, "x.y").id);
    assert_string_equal(scope_path(f.m, (Scope){0}), "");
    fixture_free(&f);
}

/* A misfit in graph_add is our mistake: message, graph, exit code 3. */
static void test_a_misfit_in_graph_add_ends_with_code_3(void **state) {
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(99);
        Fixture f;
        fixture_empty(&f);
        Graph *g = graph_new(f.m, "g");
        Val x = graph_add_input(g, type_of(&f, DT_f32, 1, (int64_t[]){2}), (Port){0});
        Val y = graph_add_input(g, type_of(&f, DT_f32, 1, (int64_t[]){3}), (Port){0});
        Builder b = {.g = g};
        build2(&b, OP_add, x, y);
        _exit(98);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

/* ---- shape rules that refuse -------------------------------------------------------------- */

typedef struct Misfit {
    const char *inputs, *node, *why;
} Misfit;

static const Misfit misfits[] = {
    {"%0: i32[2]", "%1 = exp %0", "exp: a float is needed, got i32[2]"},
    {"%0: bool[2]", "%1 = neg %0", "neg: a float or i32 is needed, got bool[2]"},
    {"%0: f32[2]", "%1 = not %0", "not: a bool is needed, got f32[2]"},
    {"%0: f32[]", "%1 = softmax %0", "softmax: a last axis is needed, got f32[]"},
    {"%0: f32[2], %1: f32[2]", "%2 = select %0, %0, %1", "the condition is bool"},
    {"%0: f32[2,3]", "%1 = reduce_sum %0 {axes=[1,0]}", "axes are ascending"},
    {"%0: f32[2,3]", "%1 = reduce_sum %0 {axes=[2]}", "axes are ascending and within the rank"},
    {"%0: f32[2,3]", "%1 = argmax %0 {axis=-1}", "axis -1 of a tensor of rank 2"},
    {"%0: f32[2,0]", "%1 = argmax %0 {axis=1}", "the axis has from 1 to"},
    {"%0: f32[2,3]", "%1 = transpose %0 {perm=[0,0]}", "perm names every axis once"},
    {"%0: f32[2,3]", "%1 = slice %0 {begin=[0,2], end=[2,1], step=[1,1]}", "begin <= end"},
    {"%0: f32[2,3]", "%1 = slice %0 {begin=[0,0], end=[2,4], step=[1,1]}", "end <= size"},
    {"%0: f32[2,3]", "%1 = slice %0 {begin=[0,0], end=[2,3], step=[1,0]}", "step >= 1"},
    {"%0: f32[2,3], %1: f32[3,3]", "%2 = concat %0, %1 {axis=1}", "differ in more than the axis"},
    {"%0: f32[2,3], %1: f32[2]", "%2 = concat %0, %1 {axis=1}", "differ in more than the axis"},
    {"%0: u8[4611686018427387904]", "%1 = concat %0, %0 {axis=0}", "too large"},
    {"%0: f32[2]", "%1 = pad %0 {low=[-1], high=[0], value=0}", "padding is at least 0"},
    {"%0: f32[2]", "%1 = pad %0 {low=[9223372036854775807], high=[0], value=0}", "too large"},
    {"%0: f32[2,3]", "%1 = reshape %0 : f32[5]", "f32[5] has not the elements of f32[2,3]"},
    {"%0: f32[2,3]", "%1 = reshape %0 : i32[6]", "has not the elements"},
    {"%0: f32[3]", "%1 = broadcast %0 {axes=[0]} : f32[2,3]", "has neither 1 nor 2 elements"},
    {"%0: f32[2,3]", "%1 = broadcast %0 {axes=[1,0]} : f32[3,2]", "axes are ascending"},
    {"%0: f32[2,3]", "%1 = cast %0 : i32[3,2]", "a cast keeps the shape"},
    {"", "%0 = iota {axis=0} : f32[2]", "iota is i32"},
    {"", "%0 = random_uniform {stream=0} : i32[2]", "random_uniform is f32"},
    {"%0: f32[2,3], %1: f32[2,3]", "%2 = matmul %0, %1 {ta=0, tb=0}", "inner dimensions differ"},
    {"%0: f32[2,3], %1: f32[3,2]", "%2 = matmul %0, %1 {ta=0, tb=2}", "ta and tb are 0 or 1"},
    {"%0: f32[1,2,3], %1: f32[2,3,2]", "%2 = matmul %0, %1 {ta=0, tb=0}", "batch axes differ"},
    {"%0: f32[1,2,4,4], %1: f32[3,1,3,3]", "%2 = conv2d %0, %1 {stride=[1,1], padding=[0,0]}",
     "the input has 2 channels, the weight takes 1"},
    {"%0: f32[1,2,4,4], %1: f32[3,2,5,5]", "%2 = conv2d %0, %1 {stride=[1,1], padding=[0,0]}",
     "the window 5 does not fit into 4 with padding 0"},
    {"%0: f32[1,2,4,4], %1: f32[3,2,3,3]", "%2 = conv2d %0, %1 {stride=[0,1], padding=[0,0]}",
     "strides are at least 1"},
    {"%0: f32[1,2,4,4], %1: f32[3,2,3,3]", "%2 = conv2d %0, %1 {stride=[1,1], padding=[0]}",
     "two values each"},
    {"%0: f32[1,3,2,2], %1: f32[3,2,3,3]",
     "%2 = conv2d_dx %0, %1 {stride=[1,1], padding=[0,0]} : f32[1,2,5,5]",
     "the gradient is f32[1,3,2,2], the convolution gives f32[1,3,3,3]"},
    {"%0: f32[1,2,4,4]", "%1, %2 = max_pool2d %0 {window=[2,2], stride=[1,1], padding=[2,0]}",
     "smaller than its window"},
    {"%0: f32[1,2,4,4]", "%1 = avg_pool2d %0 {window=[5,2], stride=[1,1], padding=[0,0]}",
     "does not fit into 4"},
    {"%0: f32[4,2], %1: f32[3]", "%2 = gather %0, %1", "an i32 index are needed"},
    {"%0: i32[3], %1: f32[3,2]", "%2 = gather_dw %0, %1 : f32[4,3]", "of a table [V, D..]"},
    {"%0: f32[4,2], %1: f32[4,1], %2: i32[1]", "%3 = put %0, %1, %2 {axis=0}", "along one axis"},
    {"%0: f32[4,2], %1: f32[1,2], %2: i32[2]", "%3 = put %0, %1, %2 {axis=0}",
     "the place is i32[1]"},
    {"%0: f32[2,3], %1: f32[2]", "%2, %3, %4 = layer_norm %0, %1, %1 {eps=1}", "needs vectors [D]"},
    {"%0: f32[2,3], %1: i32[3]", "%2, %3 = cross_entropy %0, %1 {ignore=0}", "i32 targets [..]"},
    {"%0: f32[2]",
     "%1 = repeat %0 {count=0, ncarry=1, nconst=0, reverse=0} { graph(%0: f32[2]) { return %0 } }",
     "count is from 1 to 65536"},
    {"%0: f32[2]",
     "%1 = repeat %0 {count=2, ncarry=2, nconst=0, reverse=0} { graph(%0: f32[2]) { return %0, %0 "
     "} }",
     "do not fit the operands"},
    {"%0: f32[2]",
     "%1 = repeat %0 {count=3, ncarry=0, nconst=0, reverse=0} { graph(%0: f32[]) { return %0 } }",
     "operand 0 is f32[2], the body has f32[3]"},
    {"%0: f32[2]",
     "%1 = repeat %0 {count=3, ncarry=1, nconst=0, reverse=0} { graph(%0: f32[2]) { %1 = "
     "reduce_sum %0 {axes=[0]} return %1 } }",
     "carried operand 0 is f32[2], the body has f32[]"},
    {"%0: f32[2]",
     "%1 = repeat %0 {count=3, ncarry=1, nconst=0, reverse=0} { graph() { %0 = const {value=0} : "
     "f32[2] return %0 } }",
     "1 operands are given, the body takes 0"},
    {"%0: f32[2]",
     "%1, %2 = kernel %0 {name=\"k\", form=\"map\", workspace=0} { graph(%0: f32[2]) { return %0 } "
     "}",
     "a workspace has at least one byte"},
};

static void test_shape_rules_refuse_in_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        char text[600];
        snprintf(text, sizeof text, "graph f(%s) { %s return %%0 }", misfits[i].inputs,
                 misfits[i].node);
        Fixture f;
        fixture_read(&f, text);
        if (f.ok || strstr(f.message, misfits[i].why) == NULL)
            fail_msg("%s\nwanted %s\ngot %s", text, misfits[i].why, f.message);
        fixture_free(&f);
    }
}

static void test_window_sizes(void **state) {
    (void)state;
    assert_int_equal(shape_window(28, 3, 1, 0), 26);
    assert_int_equal(shape_window(28, 2, 2, 0), 14);
    assert_int_equal(shape_window(5, 3, 2, 1), 3);
    assert_int_equal(shape_window(6, 3, 2, 0), 2);
    assert_int_equal(shape_window(2, 3, 1, 0), 0);
    assert_int_equal(shape_window(3, 3, 1, 0), 1);
    assert_int_equal(shape_window(INT64_MAX, 1, 1, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_are_interned_and_bounded),
        cmocka_unit_test(test_names_of_dtypes_ops_and_attributes_read_back),
        cmocka_unit_test(test_every_attribute_list_names_known_attributes),
        cmocka_unit_test(test_builders_make_the_nodes_they_name),
        cmocka_unit_test(test_a_clone_is_equal_and_apart),
        cmocka_unit_test(test_graphs_are_replaced_by_name),
        cmocka_unit_test(test_a_misfit_in_graph_add_ends_with_code_3),
        cmocka_unit_test(test_shape_rules_refuse_in_words),
        cmocka_unit_test(test_window_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
