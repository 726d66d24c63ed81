/* autodiff.c - add the backward pass to "train".
 *
 * Reads   "train" after alias: weights, data and the loss by their ports.
 * Writes  backward nodes behind all forward nodes and one output ROLE_grad(param, use) for every
 *         use of every parameter, in that order: the gradient of the loss SUM (the update divides
 *         by the count once). Zeros where no path leads from the weight to the loss. Backward nodes
 *         are tagged I when the gradient of a value that depends on data needs them, else W.
 *         Repeats grow saved results and get a backward repeat (repeat_grad.c).
 * Keeps   the forward pass and its outputs. No gradient toward data is built.
 * Why     gradients are graph like everything else: every later pass and both targets get them for
 *         nothing. A rule a name in ops.def's grad column; an op without a rule between a weight
 *         and the loss is E021, all of them in one diagnostic, before anything is built.
 */
#include "passes/grad.h"

typedef VEC(const Node *) NodeList;

static void find_missing(const Flow *f, const Graph *g, NodeList *list, Arena *scratch) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (!flow_node_active(f, n)) continue;
        if (f->body[i] != NULL)
            find_missing(f->body[i], n->body, list, scratch);
        else if (grad_rule(n->op) == grad_missing)
            vec_push(scratch, list, n);
    }
}

static void report_missing(Module *m, const NodeList *list) {
    Span first = list->data[0]->span;
    DiagRef ref;
    if (list->n == 1)
        ref = diag_error(m->diag, E021, first, "'%s' has no gradient rule",
                         op_name(list->data[0]->op));
    else
        ref = diag_error(m->diag, E021, first, "%u operations have no gradient rule", list->n);
    for (uint32_t i = 0; list->n > 1 && i < list->n; i++) {
        const Node *n = list->data[i];
        const char *scope = scope_path(m, n->scope);
        diag_note(m->diag, ref, "%s at %s%s%s", op_name(n->op), diag_place(m->diag, n->span, first),
                  scope[0] != '\0' ? " in " : "", scope);
    }
    diag_hint(m->diag, ref, "stop_gradient(x) says that no gradient is wanted through x");
}

/* The input that is use `use` of parameter `param`; none when the graph lacks it. */
static Val weight_input(const Graph *g, int param, int use) {
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in_port[i];
        if (p->role == ROLE_weight && p->index == param && p->use == use) return g->in[i];
    }
    return (Val){0};
}

static void add_grad_outputs(Joint *j) {
    Module *m = j->from->mod;
    for (int param = 0; param < m->nparam; param++) {
        const Param *p = &m->param[param];
        Builder b = {.g = j->to, .phase = PHASE_W, .span = p->span, .scope = p->scope};
        for (int use = 0; use < (p->uses > 1 ? p->uses : 1); use++) {
            Val w = weight_input(j->from, param, use);
            Val grad = w.id != 0 ? joint_grad(j, &b, w) : build_const(&b, 0.0, p->type);
            graph_add_output(j->to, grad, (Port){.role = ROLE_grad, .index = param, .use = use});
        }
    }
}

bool pass_autodiff(PassContext *ctx) {
    const Graph *g = module_graph(ctx->mod, "train");
    if (g == NULL) return true;
    const Flow *flow = flow_of_graph(g, ctx->scratch);
    NodeList missing = {0};
    find_missing(flow, g, &missing, ctx->scratch);
    if (missing.n > 0) {
        report_missing(ctx->mod, &missing);
        return false;
    }
    Joint j = joint_new(g, flow, ctx->scratch);
    joint_forward(&j);
    for (int i = 0; i < g->nout; i++) {
        if (g->out_port[i].role != ROLE_loss_sum || !flow_active(flow, g->out[i])) continue;
        const Node *n = val_node(g, g->out[i]);
        Builder b = {.g = j.to, .phase = PHASE_W};
        if (n != NULL) b.span = n->span, b.scope = n->scope;
        joint_add_grad(&j, &b, g->out[i], build_const(&b, 1.0, val_type(g, g->out[i])));
    }
    joint_backward(&j);
    graph_copy_outputs(j.to, g, &j.map);
    add_grad_outputs(&j);
    joint_phases(&j);
    module_set_graph(ctx->mod, g->name, j.to);
    return true;
}
