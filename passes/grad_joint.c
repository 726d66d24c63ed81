/* grad_joint.c - a forward graph with its backward nodes behind it.
 *
 * Every forward value's gradient is the sum of what its consumers contribute, in reverse program
 * order; slices that cover a value together contribute once. Nodes are built as W; at the end those
 * that a gradient of a data-dependent value needs become I, so the tag of a helper shared by both
 * is right without any rule knowing of it.
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

/* ---- slices that cover a value ----------------------------------------------------------- */

/* The one axis that a slice cuts, in steps of 1; -1 when there is no such axis. */
static int cut_axis(const Graph *g, const Node *n) {
    const TypeInfo *x = val_info(g, n->in[0]);
    const Attr *begin = node_attr(n, ATTR_begin), *end = node_attr(n, ATTR_end);
    int axis = -1;
    for (int i = 0; i < x->ndim; i++) {
        if (node_attr(n, ATTR_step)->v[i] != 1) return -1;
        if (begin->v[i] == 0 && end->v[i] == x->dim[i]) continue;
        if (axis >= 0) return -1;
        axis = i;
    }
    return axis;
}

/* The next slice of v along the axis that begins at `at`, with something in it. */
static const Node *find_part(const Graph *g, Val v, int axis, int64_t at) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_slice && n->in[0].id == v.id && cut_axis(g, n) == axis &&
            node_attr(n, ATTR_begin)->v[axis] == at && node_attr(n, ATTR_end)->v[axis] > at)
            return n;
    }
    return NULL;
}

static Split *find_split(const Graph *g, const Node *n, Arena *scratch) {
    int axis = cut_axis(g, n);
    if (axis < 0) return NULL;
    Split *s = ARENA_NEW(scratch, Split);
    VEC(const Node *) part = {0};
    int64_t at = 0, extent = val_info(g, n->in[0])->dim[axis];
    while (at < extent) {
        const Node *next = find_part(g, n->in[0], axis, at);
        if (next == NULL) return NULL;
        if (part.n == 0 || next->out.id < s->first->out.id) s->first = next;
        vec_push(scratch, &part, next);
        at = node_attr(next, ATTR_end)->v[axis];
    }
    s->axis = axis;
    s->n = (int)part.n;
    s->part = part.data;
    return s;
}

/* Each slice belongs to at most one cover: that of the value's first slice along an axis. */
static Split **find_splits(const Graph *g, Arena *scratch) {
    Split **split = ARENA_ARRAY(scratch, Split *, g->nnode);
    for (int i = 0; i < g->nnode; i++) {
        if (g->node[i]->op != OP_slice || split[i] != NULL) continue;
        Split *s = find_split(g, g->node[i], scratch);
        bool free = s != NULL;
        for (int k = 0; free && k < s->n; k++)
            free = split[g->val[s->part[k]->out.id].node - 1] == NULL;
        for (int k = 0; free && k < s->n; k++) split[g->val[s->part[k]->out.id].node - 1] = s;
    }
    return split;
}

/* The parts' gradients side by side, zeros for those that have none: no padding, no sum. Made when
 * the walk comes to the first part. */
static void backward_split(Joint *j, const Split *s) {
    const Node *n = s->first;
    Builder b = {.g = j->to, .phase = PHASE_W, .span = n->span, .scope = n->scope};
    Val *in = ARENA_ARRAY(j->scratch, Val, s->n);
    bool any = false;
    for (int i = 0; i < s->n; i++) any = any || j->grad[s->part[i]->out.id].id != 0;
    if (!any) return;
    for (int i = 0; i < s->n; i++) in[i] = joint_grad(j, &b, s->part[i]->out);
    Attr axis = ATTR_INT(axis, s->axis);
    Val whole = graph_add(&b, OP_concat, s->n, in, 1, &axis, (Type){0})->out;
    joint_add_grad(j, &b, n->in[0], whole);
}

/* ---- the walk ---------------------------------------------------------------------------- */

Joint joint_new(const Graph *from, const Flow *flow, Arena *scratch) {
    Joint j = {.from = from, .flow = flow, .scratch = scratch};
    j.to = graph_new(from->mod, from->name);
    j.map = valmap_new(scratch, from);
    j.grad = ARENA_ARRAY(scratch, Val, from->nval);
    j.plan = ARENA_ARRAY(scratch, RepeatPlan *, from->nnode);
    j.split = find_splits(from, scratch);
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
        if (j->split[i] != NULL) {
            if (j->split[i]->first == n) backward_split(j, j->split[i]);
        } else if (flow_node_active(j->flow, n)) {
            backward_node(j, n, j->plan[i]);
        }
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
