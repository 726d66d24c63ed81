/* repeat_grad.c - the derivative of a repeat: a forward repeat that saves, a backward one that
 * reads what was saved and runs the other way.
 *
 * The body is differentiated as a joint graph whose further inputs are the gradients that arrive
 * (of carried values and stacked results) and the sums so far (of const operands). It is then cut:
 * a forward value that the backward nodes read is an operand of the repeat (const or stacked: given
 * to the backward repeat as it is), cheap to make again (constants, views and broadcasts of what is
 * there, any movement that only attention reads through), or saved: one more stacked result of the
 * forward repeat.
 *
 *   forward   carried, const, stacked                     -> carried, stacked, saved
 *   backward  gradients of carried values, sums | consts | gradients of stacked results,
 *             stacked operands, saved                     -> gradients of carried, const, stacked
 */
#include "passes/grad.h"

/* Where an operand of the backward repeat comes from. */
typedef enum SourceKind {
    FROM_dout,    /* gradient of result `index` of the forward repeat, zeros when none arrived */
    FROM_zero,    /* zeros of `type` */
    FROM_operand, /* operand `index` of the forward repeat */
    FROM_result   /* result `index` of the forward repeat: a saved value */
} SourceKind;

typedef struct BackSource {
    SourceKind kind;
    int index;
    Type type; /* FROM_zero, FROM_dout: of the operand */
} BackSource;

struct RepeatPlan {
    Graph *forward, *backward; /* bodies */
    VEC(BackSource) source;    /* operands of the backward repeat */
    int ncarry, nconst;        /* of the backward repeat */
    VEC(int) grad_of;          /* by result of the backward repeat: which operand's gradient */
    Arena *scratch;
};

/* ---- the joint graph of the body --------------------------------------------------------- */

/* What a repeat's operands and results are, and the inputs that the joint graph has for their
 * gradients (id 0 where none is wanted). */
typedef struct Parts {
    const Node *n;
    int ncarry, nconst;
    Val *din;  /* by operand: carried: gradient of this iteration's result; const: sum so far */
    Val *dout; /* by result: stacked: gradient of its slice */
    Val *grad; /* by operand: the joint graph's answer */
} Parts;

static bool carry_active(const Flow *flow, const Graph *body, int i) {
    return flow_active(flow, body->in[i]) || flow_active(flow, body->out[i]);
}

static bool operand_active(const Parts *p, const Flow *flow, int i) {
    const Graph *body = p->n->body;
    return i < p->ncarry ? carry_active(flow, body, i) : flow_active(flow, body->in[i]);
}

static Parts add_grad_inputs(Joint *j, const Node *n) {
    const Graph *body = n->body;
    const Port port = {.role = ROLE_none};
    Parts p = {.n = n};
    p.ncarry = (int)node_int(n, ATTR_ncarry, 0);
    p.nconst = (int)node_int(n, ATTR_nconst, 0);
    p.din = ARENA_ARRAY(j->scratch, Val, n->nin);
    p.grad = ARENA_ARRAY(j->scratch, Val, n->nin);
    p.dout = ARENA_ARRAY(j->scratch, Val, n->nout);
    for (int i = 0; i < p.ncarry + p.nconst; i++)
        if (operand_active(&p, j->flow, i))
            p.din[i] = graph_add_input(j->to, val_type(body, body->in[i]), port);
    for (int i = p.ncarry; i < n->nout; i++)
        if (flow_active(j->flow, body->out[i]))
            p.dout[i] = graph_add_input(j->to, val_type(body, body->out[i]), port);
    return p;
}

static void differentiate_body(Joint *j, Parts *p) {
    const Graph *body = p->n->body;
    Builder b = {.g = j->to, .phase = PHASE_W, .span = p->n->span, .scope = p->n->scope};
    joint_forward(j);
    for (int i = 0; i < p->n->nout; i++) {
        Val arrived = i < p->ncarry ? p->din[i] : p->dout[i];
        if (arrived.id != 0) joint_add_grad(j, &b, body->out[i], arrived);
    }
    joint_backward(j);
    for (int i = 0; i < p->n->nin; i++) {
        if (!operand_active(p, j->flow, i)) continue;
        p->grad[i] = joint_grad(j, &b, body->in[i]);
        if (i >= p->ncarry && i < p->ncarry + p->nconst)
            p->grad[i] = build2(&b, OP_add, p->din[i], p->grad[i]);
        if (j->flow->bits[body->in[i].id] & FLOW_DATA)
            vec_push(j->scratch, &j->inputs_need, p->grad[i]);
    }
    joint_phases(j);
}

/* ---- the cut ----------------------------------------------------------------------------- */

typedef struct Cut {
    const Joint *j;
    const Parts *p;
    bool *read;  /* by value of the joint graph: the backward part reads it */
    bool *whole; /* by value: and not only through attention, which takes any view of a value */
    bool *again; /* by forward node: made again in the backward part */
    bool *saved; /* by value of the joint graph */
} Cut;

static bool is_cheap(Op op) {
    static const bool table[OP_count] = {
        [OP_const] = true,
        [OP_iota] = true,
        [OP_broadcast] = true,
        [OP_reshape] = true,
    };
    return table[op];
}

/* Movement that costs nothing where the reader of `v` goes where the elements are. */
static bool is_free_view(const Cut *cut, Op op, Val v) {
    return (op == OP_transpose || op == OP_slice) && !cut->whole[v.id];
}

static void cut_read(Cut *cut, Val v, bool whole) {
    cut->read[v.id] = true;
    cut->whole[v.id] |= whole;
}

static Cut cut_joint(const Joint *j, const Parts *p) {
    const Graph *g = j->to;
    Cut cut = {.j = j, .p = p};
    cut.read = ARENA_ARRAY(j->scratch, bool, g->nval);
    cut.whole = ARENA_ARRAY(j->scratch, bool, g->nval);
    cut.again = ARENA_ARRAY(j->scratch, bool, g->nnode);
    cut.saved = ARENA_ARRAY(j->scratch, bool, g->nval);
    for (int i = j->nforward; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            cut_read(&cut, g->node[i]->in[k], g->node[i]->op != OP_attention_grad);
    for (int i = 0; i < p->n->nin; i++) cut_read(&cut, p->grad[i], true);
    for (int i = j->nforward - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nout; k++) {
            if (!cut.read[node_out(n, k).id]) continue;
            if (is_cheap(n->op) || is_free_view(&cut, n->op, n->out))
                cut.again[i] = true;
            else
                cut.saved[node_out(n, k).id] = true;
        }
        for (int k = 0; cut.again[i] && k < n->nin; k++)
            cut_read(&cut, n->in[k], cut.whole[n->out.id]);
    }
    for (int i = 0; i < p->ncarry; i++) cut.saved[g->in[i].id] = cut.read[g->in[i].id];
    return cut;
}

Val repeat_stackable(Builder *b, Val v) {
    const TypeInfo *info = val_info(b->g, v);
    if (info->ndim < NDIM_MAX) return v;
    int64_t elems = type_elems(b->g->mod->types, val_type(b->g, v));
    return build_reshape(b, v, 1, &elems);
}

static Graph *forward_body(const Cut *cut) {
    const Joint *j = cut->j;
    const Graph *body = cut->p->n->body;
    Graph *to = graph_new(j->to->mod, body->name);
    ValMap map = valmap_new(j->scratch, j->to);
    for (int i = 0; i < body->nin; i++)
        map.to[j->to->in[i].id] =
            graph_add_input(to, val_type(body, body->in[i]), body->in_port[i]);
    for (int i = 0; i < j->nforward; i++) graph_copy_node(to, j->to, j->to->node[i], &map, NULL);
    for (int i = 0; i < body->nout; i++)
        graph_add_output(to, map.to[j->map.to[body->out[i].id].id], body->out_port[i]);
    Builder b = {.g = to, .phase = PHASE_F, .span = cut->p->n->span, .scope = cut->p->n->scope};
    for (uint32_t v = 1; v < j->to->nval; v++)
        if (cut->saved[v])
            graph_add_output(to, repeat_stackable(&b, map.to[v]), (Port){.role = ROLE_none});
    return to;
}

/* An input of the backward body that stands for value v of the joint graph. */
static Val add_back_input(RepeatPlan *plan, const Cut *cut, ValMap *map, Val v, BackSource source) {
    source.type = val_type(cut->j->to, v);
    vec_push(plan->scratch, &plan->source, source);
    Val input = graph_add_input(plan->backward, source.type, (Port){.role = ROLE_none});
    map->to[v.id] = input;
    return input;
}

/* Carried gradients, sums and const operands, then gradients of slices and stacked operands. */
static void add_back_inputs(RepeatPlan *plan, const Cut *cut, ValMap *map) {
    const Parts *p = cut->p;
    const Graph *g = cut->j->to;
    int first_stacked = p->ncarry + p->nconst;
    for (int i = 0; i < first_stacked; i++) {
        if (p->din[i].id == 0) continue;
        BackSource source = {.kind = i < p->ncarry ? FROM_dout : FROM_zero, .index = i};
        add_back_input(plan, cut, map, p->din[i], source);
        plan->ncarry++;
    }
    for (int i = p->ncarry; i < first_stacked; i++) {
        if (!cut->read[g->in[i].id]) continue;
        add_back_input(plan, cut, map, g->in[i], (BackSource){.kind = FROM_operand, .index = i});
        plan->nconst++;
    }
    for (int i = p->ncarry; i < p->n->nout; i++)
        if (p->dout[i].id != 0)
            add_back_input(plan, cut, map, p->dout[i], (BackSource){.kind = FROM_dout, .index = i});
    for (int i = first_stacked; i < p->n->nin; i++)
        if (cut->read[g->in[i].id])
            add_back_input(plan, cut, map, g->in[i],
                           (BackSource){.kind = FROM_operand, .index = i});
}

/* Saved values become inputs; those that were flattened get their shape back. */
static void add_saved_inputs(RepeatPlan *plan, const Cut *cut, ValMap *map) {
    const Graph *g = cut->j->to;
    int result = cut->p->n->nout;
    for (uint32_t v = 1; v < g->nval; v++) {
        if (!cut->saved[v]) continue;
        Type type = val_type(plan->forward, plan->forward->out[result]);
        BackSource source = {.kind = FROM_result, .index = result++, .type = type};
        vec_push(plan->scratch, &plan->source, source);
        map->to[v] = graph_add_input(plan->backward, type, (Port){.role = ROLE_none});
    }
    Builder b = {.g = plan->backward, .phase = PHASE_W};
    b.span = cut->p->n->span;
    b.scope = cut->p->n->scope;
    for (uint32_t v = 1; v < g->nval; v++) {
        if (!cut->saved[v] || val_type(plan->backward, map->to[v]).id == g->val[v].type.id)
            continue;
        const TypeInfo *info = type_info(g->mod->types, g->val[v].type);
        map->to[v] = build_reshape(&b, map->to[v], info->ndim, info->dim);
    }
}

/* Nodes made again belong to the earliest phase that reads them. */
static void phases_again(Graph *g, int ncopied, Arena *scratch) {
    bool *input_needs = ARENA_ARRAY(scratch, bool, g->nval);
    for (int i = g->nnode - 1; i >= 0; i--) {
        Node *n = g->node[i];
        if (i < ncopied) n->phase = PHASE_W;
        for (int k = 0; i < ncopied && k < n->nout; k++)
            if (input_needs[node_out(n, k).id]) n->phase = PHASE_I;
        if (n->phase != PHASE_I) continue;
        for (int k = 0; k < n->nin; k++) input_needs[n->in[k].id] = true;
    }
}

static void backward_body(RepeatPlan *plan, const Cut *cut) {
    const Joint *j = cut->j;
    const Parts *p = cut->p;
    ValMap map = valmap_new(j->scratch, j->to);
    plan->backward = graph_new(j->to->mod, p->n->body->name);
    add_back_inputs(plan, cut, &map);
    add_saved_inputs(plan, cut, &map);
    for (int i = 0; i < j->nforward; i++)
        if (cut->again[i]) graph_copy_node(plan->backward, j->to, j->to->node[i], &map, NULL);
    int ncopied = plan->backward->nnode;
    for (int i = j->nforward; i < j->to->nnode; i++)
        graph_copy_node(plan->backward, j->to, j->to->node[i], &map, NULL);
    phases_again(plan->backward, ncopied, j->scratch);
    for (int i = 0; i < p->n->nin; i++) {
        if (p->grad[i].id == 0) continue;
        graph_add_output(plan->backward, map.to[p->grad[i].id], (Port){.role = ROLE_none});
        vec_push(plan->scratch, &plan->grad_of, i);
    }
}

RepeatPlan *repeat_plan(const Node *n, const Flow *flow, Arena *scratch) {
    RepeatPlan *plan = ARENA_NEW(scratch, RepeatPlan);
    plan->scratch = scratch;
    Joint j = joint_new(n->body, flow, scratch);
    Parts p = add_grad_inputs(&j, n);
    differentiate_body(&j, &p);
    Cut cut = cut_joint(&j, &p);
    plan->forward = forward_body(&cut);
    backward_body(plan, &cut);
    return plan;
}

Node *repeat_add_forward(Builder *b, const RepeatPlan *plan, const Node *n, const Val *in) {
    return graph_add_region(b, OP_repeat, n->nin, in, n->nattr, n->attr, plan->forward);
}

/* ---- the rule ---------------------------------------------------------------------------- */

/* The operand of the backward repeat: of the body's type, stacked behind the const ones. */
static Val back_operand(Grad *c, int i) {
    const BackSource *s = &c->plan->source.data[i];
    switch (s->kind) {
    case FROM_operand: return c->n->in[s->index];
    case FROM_result: return node_out(c->n, s->index);
    case FROM_dout:
        if (c->dout[s->index].id != 0) return c->dout[s->index];
        return build_const(&c->b, 0.0, val_type(c->b.g, node_out(c->n, s->index)));
    case FROM_zero: break;
    }
    return build_const(&c->b, 0.0, s->type);
}

void grad_repeat(Grad *c) {
    const RepeatPlan *plan = c->plan;
    int nin = (int)plan->source.n;
    Val *in = ARENA_ARRAY(plan->scratch, Val, nin);
    for (int i = 0; i < nin; i++) in[i] = back_operand(c, i);
    Attr attr[] = {*node_attr(c->n, ATTR_count), ATTR_INT(ncarry, plan->ncarry),
                   ATTR_INT(nconst, plan->nconst),
                   ATTR_INT(reverse, !node_int(c->n, ATTR_reverse, 0)),
                   ATTR_INT(first, node_int(c->n, ATTR_first, 0))};
    int nattr = node_attr(c->n, ATTR_first) != NULL ? 5 : 4;
    const Node *back = graph_add_region(&c->b, OP_repeat, nin, in, nattr, attr, plan->backward);
    for (int i = 0; i < back->nout; i++) {
        int operand = plan->grad_of.data[i];
        if (c->need[operand]) c->din[operand] = node_out(back, i);
    }
}
