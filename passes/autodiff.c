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

static void add_grad_output(Joint *j, int param, int use) {
    const Param *p = &j->from->mod->param[param];
    Builder b = {.g = j->to, .phase = PHASE_W, .span = p->span, .scope = p->scope};
    Val w = weight_input(j->from, param, use);
    Val grad = w.id != 0 ? joint_grad(j, &b, w) : build_const(&b, 0.0, p->type);
    graph_add_output(j->to, grad, (Port){.role = ROLE_grad, .index = param, .use = use});
}

/* One gradient for each use of each parameter; in a chunk, for those that it has. */
static void add_grad_outputs(Joint *j) {
    const Module *m = j->from->mod;
    for (int param = 0; param < m->nparam; param++) {
        int uses = m->param[param].uses > 1 ? m->param[param].uses : 1;
        for (int use = 0; use < uses; use++)
            if (m->chunk == NULL || weight_input(j->from, param, use).id != 0)
                add_grad_output(j, param, use);
    }
}

/* The gradients of what was received go back. */
static void add_sent_gradients(Joint *j) {
    const Graph *g = j->from;
    for (int i = 0; i < g->nin; i++) {
        const Port *port = &g->in_port[i];
        if (port->role != ROLE_recv || port->use == 0) continue;
        Builder b = {.g = j->to, .phase = PHASE_I};
        graph_add_output(j->to, joint_grad(j, &b, g->in[i]),
                         (Port){.role = ROLE_send_grad, .index = port->index, .use = 1});
    }
}

/* Where gradients begin: 1 for the loss; for what was sent, what comes back, latest chunk first. */
static void seed(Joint *j, const Val *received) {
    const Graph *g = j->from;
    for (int i = 0; i < g->nout; i++) {
        const Node *n = val_node(g, g->out[i]);
        Builder b = {.g = j->to, .phase = PHASE_W};
        if (n != NULL) b.span = n->span, b.scope = n->scope;
        if (received[i].id != 0)
            joint_add_grad(j, &b, g->out[i], received[i]);
        else if (g->out_port[i].role == ROLE_loss_sum && flow_active(j->flow, g->out[i]))
            joint_add_grad(j, &b, g->out[i], build_const(&b, 1.0, val_type(g, g->out[i])));
    }
}

/* An input for each gradient that comes back, by output. */
static const Val *add_received(Joint *j, Arena *scratch) {
    const Graph *g = j->from;
    Val *received = ARENA_ARRAY(scratch, Val, g->nout + 1);
    for (int i = 0; i < g->nout; i++) {
        const Port *port = &g->out_port[i];
        if (port->role != ROLE_send || port->use == 0) continue;
        received[i] =
            graph_add_input(j->to, val_type(g, g->out[i]),
                            (Port){.role = ROLE_recv_grad, .index = port->index, .use = 1});
    }
    return received;
}

static void differentiate(Module *m, const Graph *g, const Flow *flow, Arena *scratch) {
    Joint j = joint_new(g, flow, scratch);
    const Val *received = add_received(&j, scratch);
    joint_forward(&j);
    seed(&j, received);
    joint_backward(&j);
    graph_copy_outputs(j.to, g, &j.map);
    add_grad_outputs(&j);
    add_sent_gradients(&j);
    joint_phases(&j);
    module_set_graph(m, g->name, j.to);
}

bool pass_autodiff(PassContext *ctx) {
    Module *m = ctx->mod;
    const Flow **flow = ARENA_ARRAY(ctx->scratch, const Flow *, m->nchunk);
    NodeList missing = {0};
    if (module_chunk_graph(m, "train", 0) == NULL) return true;
    for (int c = 0; c < m->nchunk; c++) {
        const Graph *g = module_chunk_graph(m, "train", c);
        flow[c] = flow_of_graph(g, ctx->scratch);
        find_missing(flow[c], g, &missing, ctx->scratch);
    }
    if (missing.n > 0) {
        report_missing(m, &missing);
        return false;
    }
    for (int c = 0; c < m->nchunk; c++)
        differentiate(m, module_chunk_graph(m, "train", c), flow[c], ctx->scratch);
    return true;
}
