/* grad_joint.c - a forward graph with its backward nodes behind it.
 *
 * Every forward value's gradient is the sum of what its consumers contribute, in reverse program
 * order. Nodes are built as W; at the end those that a gradient of a data-dependent value needs
 * become I, so the tag of a helper shared by both is right without any rule knowing of it.
 */
#include "passes/grad.h"

static GradRule *const rule_table[OP_count] = {
#define EW(name, operands, shape, grad, expr)                 [OP_##name] = grad_##grad,
#define RED(name, shape, grad, first, expr)                   [OP_##name] = grad_##grad,
#define OP(name, operands, results, kind, shape, grad, attrs) [OP_##name] = grad_##grad,
#include "ir/ops.def"
};

GradRule *grad_rule(Op op) { return rule_table[op]; }

/* Never asked: nothing flows through such an op, or the pass has ended with E021. */
void grad_zero(Grad *c) { (void)c; }

void grad_missing(Grad *c) { (void)c; }

Joint joint_new(const Graph *from, const Flow *flow, Arena *scratch) {
    Joint j = {.from = from, .flow = flow, .scratch = scratch};
    j.to = graph_new(from->mod, from->name);
    j.map = valmap_new(scratch, from);
    j.grad = ARENA_ARRAY(scratch, Val, from->nval);
    j.plan = ARENA_ARRAY(scratch, RepeatPlan *, from->nnode);
    graph_copy_inputs(j.to, from, &j.map);
    return j;
}

void joint_forward(Joint *j) {
    for (int i = 0; i < j->from->nnode; i++) {
        const Node *n = j->from->node[i];
        if (n->op != OP_repeat || !flow_node_active(j->flow, n)) {
            graph_copy_node(j->to, j->from, n, &j->map, NULL);
            continue;
        }
        Builder b = {.g = j->to, .phase = n->phase, .span = n->span, .scope = n->scope};
        Val *in = ARENA_ARRAY(j->scratch, Val, n->nin);
        for (int k = 0; k < n->nin; k++) in[k] = j->map.to[n->in[k].id];
        j->plan[i] = repeat_plan(n, j->flow->body[i], j->scratch);
        const Node *copy = repeat_add_forward(&b, j->plan[i], n, in);
        for (int k = 0; k < n->nout; k++) j->map.to[node_out(n, k).id] = node_out(copy, k);
    }
    j->nforward = j->to->nnode;
}

void joint_add_grad(Joint *j, Builder *b, Val from, Val grad) {
    if (!flow_active(j->flow, from)) return;
    Val *sum = &j->grad[from.id];
    *sum = sum->id == 0 ? grad : build2(b, OP_add, *sum, grad);
    if (j->flow->bits[from.id] & FLOW_DATA) vec_push(j->scratch, &j->inputs_need, *sum);
}

static void backward_node(Joint *j, const Node *n, const RepeatPlan *plan) {
    Val *dout = ARENA_ARRAY(j->scratch, Val, n->nout);
    bool any = false;
    for (int i = 0; i < n->nout; i++) {
        dout[i] = j->grad[node_out(n, i).id];
        any = any || dout[i].id != 0;
    }
    if (!any) return;
    bool *need = ARENA_ARRAY(j->scratch, bool, n->nin);
    for (int i = 0; i < n->nin; i++) need[i] = flow_active(j->flow, n->in[i]);
    Grad c = {
        .dout = dout, .need = need, .din = ARENA_ARRAY(j->scratch, Val, n->nin), .plan = plan};
    c.b = (Builder){.g = j->to, .phase = PHASE_W, .span = n->span, .scope = n->scope};
    c.n = val_node(j->to, j->map.to[n->out.id]);
    grad_rule(n->op)(&c);
    for (int i = 0; i < n->nin; i++)
        if (c.din[i].id != 0) joint_add_grad(j, &c.b, n->in[i], c.din[i]);
}

void joint_backward(Joint *j) {
    for (int i = j->from->nnode - 1; i >= 0; i--) {
        const Node *n = j->from->node[i];
        if (flow_node_active(j->flow, n)) backward_node(j, n, j->plan[i]);
    }
}

Val joint_grad(Joint *j, Builder *b, Val from) {
    if (j->grad[from.id].id != 0) return j->grad[from.id];
    return build_const(b, 0.0, val_type(j->from, from));
}

/* A repeat is as early as its body. */
static bool body_has_input_grads(const Node *n) {
    for (int i = 0; n->body != NULL && i < n->body->nnode; i++)
        if (n->body->node[i]->phase == PHASE_I) return true;
    return false;
}

void joint_phases(Joint *j) {
    bool *input_needs = ARENA_ARRAY(j->scratch, bool, j->to->nval);
    for (uint32_t i = 0; i < j->inputs_need.n; i++) input_needs[j->inputs_need.data[i].id] = true;
    for (int i = j->to->nnode - 1; i >= j->nforward; i--) {
        Node *n = j->to->node[i];
        n->phase = body_has_input_grads(n) ? PHASE_I : PHASE_W;
        for (int k = 0; k < n->nout; k++)
            if (input_needs[node_out(n, k).id]) n->phase = PHASE_I;
        if (n->phase == PHASE_I)
            for (int k = 0; k < n->nin; k++) input_needs[n->in[k].id] = true;
    }
}
