/* verify_test.c - the verifier refuses a graph that breaks a rule; one test a rule. */
#include "tests/ir/fixture.h"

#include "ir/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A module that verifies; each test breaks one thing in it. */
static const char *const sound =
    "param 0 \"w\" f32[2] init=ones uses=2\n"
    "segment 0 128\n"
    "settings { layout.states = 1 }\n"
    "graph f(%0: f32[2] weight(0), %1: f32[2] weight(0, 1), %2: f32[3,2] data(0), %3: f32[2]) {\n"
    "  %4 = add %0, %1\n"
    "  %5 = repeat %3, %2 {count=3, ncarry=1, nconst=0, reverse=0} {\n"
    "    graph(%0: f32[2], %1: f32[2]) {\n"
    "      %2, %3 = kernel %0, %1 {name=\"k\", form=\"map\", workspace=8} {\n"
    "        graph(%0: f32[2], %1: f32[2]) { %2 = mul %0, %1 return %2 } }\n"
    "      return %2 } }\n"
    "  %6 = mul %4, %5 !I\n"
    "  %7 = reduce_sum %6 {axes=[0]} !W\n"
    "  return %7 loss_sum, %7 loss_count, %6 grad(0), %6 grad(0, 1) }";

typedef void Break(Graph *g);

static void expect(Break *break_it, const char *message) {
    Fixture f;
    fixture_read(&f, sound);
    assert_string_equal(f.message, "");
    assert_null(verify_module(f.m));
    break_it(f.m->graph[0]);
    const char *why = verify_module(f.m);
    if (why == NULL || strstr(why, message) == NULL)
        fail_msg("wanted %s, got %s", message, why != NULL ? why : "nothing");
    fixture_free(&f);
}

static Graph *body_of(Graph *g) { return g->node[1]->body; }

static Graph *kernel_of(Graph *g) { return body_of(g)->node[0]->body; }

static Type f32(Graph *g, int ndim, int64_t dim) {
    return type_intern(g->mod->types, DT_f32, ndim, &dim);
}

static void use_before_definition(Graph *g) { g->node[0]->in[0] = node_out(g->node[2], 0); }
static void use_of_itself(Graph *g) { g->node[0]->in[0] = g->node[0]->out; }
static void use_of_nothing(Graph *g) { g->node[0]->in[0] = (Val){0}; }
static void use_beyond_the_end(Graph *g) { g->node[3]->in[0] = (Val){999}; }
static void too_few_operands(Graph *g) { g->node[0]->nin = 1; }
static void no_op(Graph *g) { g->node[0]->op = OP_none; }
static void bad_phase(Graph *g) { g->node[0]->phase = (Phase)9; }
static void early_phase(Graph *g) { g->node[2]->phase = PHASE_W, g->node[3]->phase = PHASE_I; }
static void other_result_type(Graph *g) { g->val[g->node[0]->out.id].type = f32(g, 0, 0); }
static void operands_differ(Graph *g) { g->node[0]->in[1] = g->in[2]; }
static void missing_attribute(Graph *g) { g->node[3]->nattr = 0; }
static void stolen_result(Graph *g) { g->val[g->node[0]->out.id].node = 4; }
static void no_body(Graph *g) { g->node[1]->body = NULL; }
static void body_without_region(Graph *g) { g->node[0]->body = body_of(g); }
static void carried_type(Graph *g) { body_of(g)->out[0] = (Val){4}; }
static void role_in_body(Graph *g) { body_of(g)->in_port[0].role = ROLE_data; }
static void region_in_kernel(Graph *g) {
    kernel_of(g)->node[0]->op = OP_kernel;
    kernel_of(g)->node[0]->body = kernel_of(g);
}
static void composite_in_kernel(Graph *g) { kernel_of(g)->node[0]->op = OP_softmax; }
static void output_of_nothing(Graph *g) { g->out[0] = (Val){0}; }
static void input_role_as_output(Graph *g) { g->out_port[0].role = ROLE_data; }
static void output_role_as_input(Graph *g) { g->in_port[3].role = ROLE_output; }
static void bad_role(Graph *g) { g->in_port[3].role = (Role)99; }
static void unknown_param(Graph *g) { g->in_port[0].index = 7; }
static void unknown_use(Graph *g) { g->in_port[1].use = 2; }
static void param_type(Graph *g) {
    g->in_port[2] = (Port){.role = ROLE_weight};
    g->in_port[0] = (Port){0};
}
static void same_port_twice(Graph *g) { g->in_port[1].use = 0; }
static void loss_of_a_vector(Graph *g) { g->out[0] = g->node[2]->out; }
static void unknown_scalar(Graph *g) { g->in_port[3] = (Port){.role = ROLE_scalar, .index = 99}; }
static void unknown_segment(Graph *g) {
    g->in_port[3] = (Port){.role = ROLE_flat_grad, .index = 1};
}
static void segment_size(Graph *g) { g->in_port[3] = (Port){.role = ROLE_flat_grad}; }
static void input_without_type(Graph *g) { g->val[g->in[3].id].type = (Type){0}; }
static void moved_input(Graph *g) { g->in[3] = (Val){5}; }
static void bad_alias(Graph *g) { module_add_alias(g->mod, "tied", 3); }
static void bad_stack(Graph *g) { g->mod->param[0].nstack = 2; }

static const struct {
    Break *break_it;
    const char *message;
} rules[] = {
    {use_before_definition, "graph f: node 0 (%4 = add): operand 0 is not defined before its use"},
    {use_of_itself, "operand 0 is not defined before its use"},
    {use_of_nothing, "operand 0 is not defined before its use"},
    {use_beyond_the_end, "node 3 (%7 = reduce_sum): operand 0 is not defined before its use"},
    {too_few_operands, "2 operands are needed, got 1"},
    {no_op, "node 0 (%4 = ?): no operation"},
    {bad_phase, "no phase"},
    {early_phase, "phase I, but operand 0 is made in phase W"},
    {other_result_type, "the result is f32[2], not f32[]"},
    {operands_differ, "operands differ: f32[2] and f32[3,2]"},
    {missing_attribute, "attribute 'axes' is missing"},
    {stolen_result, "a result belongs to another node"},
    {no_body, "a region has no body"},
    {body_without_region, "a body, but no region"},
    {carried_type, "carried operand 0 is f32[2], the body has u8[8]"},
    {role_in_body, "node 1 (%5 = repeat): input %0: a body's port has a role"},
    {region_in_kernel, "a region inside a kernel"},
    {composite_in_kernel, "a composite inside a kernel"},
    {output_of_nothing, "output 0 does not exist"},
    {input_role_as_output, "output 0: role data does not belong there"},
    {output_role_as_input, "input %3: role output does not belong there"},
    {bad_role, "no role"},
    {unknown_param, "there is no such parameter"},
    {unknown_use, "use 2 of a parameter with 2"},
    {param_type, "parameter 0 is f32[2], not f32[3,2]"},
    {same_port_twice, "two ports are weight(0, 0)"},
    {loss_of_a_vector, "role loss_sum is f32[]"},
    {unknown_scalar, "role scalar is f32[]"},
    {unknown_segment, "there is no such segment"},
    {segment_size, "segment 0 is f32[128], not f32[2]"},
    {input_without_type, "an input has no type"},
    {moved_input, "inputs are not the first values"},
    {bad_alias, "alias tied names no parameter"},
    {bad_stack, "parameter 0 has 2 stack axes"},
};

static void test_every_broken_rule_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        expect(rules[i].break_it, rules[i].message);
}

static void test_state_and_scalar_numbers_are_known_ones(void **state) {
    (void)state;
    static const struct {
        const char *input, *message;
    } inputs[] = {{"f32[128] flat_state(0, 1)", "there is no such optimizer state"},
                  {"f32[] scalar(99)", "there is no such host scalar"},
                  {"i32[128] flat_weight(0)", "segment 0 is f32[128], not i32[128]"}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "segment 0 128 settings { layout.states = 1 } graph f(%%0: %s) { return %%0 }",
                 inputs[i].input);
        Fixture f;
        fixture_read(&f, text);
        if (f.ok || strstr(f.message, inputs[i].message) == NULL)
            fail_msg("wanted %s, got %s", inputs[i].message, f.message);
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_broken_rule_is_named),
        cmocka_unit_test(test_state_and_scalar_numbers_are_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
