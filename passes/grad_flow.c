/* grad_flow.c - which values need a gradient: from the weights down, from the loss up.
 *
 * A carried value of a repeat has what its operand has and what the body's result has, so repeats
 * are walked until nothing changes; bits are only ever added, which bounds the rounds.
 */
#include "passes/grad.h"

bool flow_active(const Flow *f, Val v) {
    const uint8_t both = FLOW_WEIGHT | FLOW_LOSS;
    return (f->bits[v.id] & both) == both;
}

bool flow_node_active(const Flow *f, const Node *n) {
    for (int i = 0; i < n->nout; i++)
        if (flow_active(f, node_out(n, i))) return true;
    return false;
}

static Flow *flow_new(const Graph *g, Arena *scratch) {
    Flow *f = ARENA_NEW(scratch, Flow);
    f->bits = ARENA_ARRAY(scratch, uint8_t, g->nval);
    f->body = ARENA_ARRAY(scratch, Flow *, g->nnode);
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_repeat) f->body[i] = flow_new(g->node[i]->body, scratch);
    return f;
}

/* Adds bits to a value; only floats carry gradients. Returns whether that was news. */
static bool add_bits(Flow *f, const Graph *g, Val v, uint8_t bits) {
    if (!dtype_is_float(val_info(g, v)->dtype)) bits &= FLOW_DATA;
    uint8_t old = f->bits[v.id];
    f->bits[v.id] = old | bits;
    return f->bits[v.id] != old;
}

static void flow_down(Flow *f, const Graph *g);

static void flow_down_repeat(Flow *f, const Graph *g, const Node *n, Flow *inner) {
    const Graph *body = n->body;
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    for (int i = 0; i < n->nin; i++) add_bits(inner, body, body->in[i], f->bits[n->in[i].id]);
    bool news = true;
    while (news) {
        news = false;
        flow_down(inner, body);
        for (int i = 0; i < ncarry; i++)
            news |= add_bits(inner, body, body->in[i], inner->bits[body->out[i].id]);
    }
    for (int i = 0; i < n->nout; i++) add_bits(f, g, node_out(n, i), inner->bits[body->out[i].id]);
}

static void flow_down(Flow *f, const Graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (f->body[i] != NULL) {
            flow_down_repeat(f, g, n, f->body[i]);
            continue;
        }
        uint8_t bits = 0;
        for (int k = 0; k < n->nin; k++) bits |= f->bits[n->in[k].id];
        if (grad_rule(n->op) == grad_zero) bits &= FLOW_DATA;
        for (int k = 0; k < n->nout; k++) add_bits(f, g, node_out(n, k), bits & ~FLOW_LOSS);
    }
}

static void flow_up(Flow *f, const Graph *g);

static void flow_up_repeat(Flow *f, const Graph *g, const Node *n, Flow *inner) {
    const Graph *body = n->body;
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    for (int i = 0; i < n->nout; i++)
        add_bits(inner, body, body->out[i], f->bits[node_out(n, i).id] & FLOW_LOSS);
    bool news = true;
    while (news) {
        news = false;
        flow_up(inner, body);
        for (int i = 0; i < ncarry; i++)
            news |= add_bits(inner, body, body->out[i], inner->bits[body->in[i].id] & FLOW_LOSS);
    }
    for (int i = 0; i < n->nin; i++)
        add_bits(f, g, n->in[i], inner->bits[body->in[i].id] & FLOW_LOSS);
}

static void flow_up(Flow *f, const Graph *g) {
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        uint8_t bits = 0;
        for (int k = 0; k < n->nout; k++) bits |= f->bits[node_out(n, k).id] & FLOW_LOSS;
        if (bits == 0 || grad_rule(n->op) == grad_zero) continue;
        if (f->body[i] != NULL) {
            flow_up_repeat(f, g, n, f->body[i]);
            continue;
        }
        for (int k = 0; k < n->nin; k++) add_bits(f, g, n->in[k], bits);
    }
}

Flow *flow_of_graph(const Graph *g, Arena *scratch) {
    Flow *f = flow_new(g, scratch);
    for (int i = 0; i < g->nin; i++) {
        Role role = g->in_port[i].role;
        bool trained = role == ROLE_weight && g->mod->param[g->in_port[i].index].trainable;
        if (trained) add_bits(f, g, g->in[i], FLOW_WEIGHT);
        if (role == ROLE_data || role == ROLE_valid) add_bits(f, g, g->in[i], FLOW_DATA);
        if (role == ROLE_recv)
            add_bits(f, g, g->in[i], FLOW_DATA | (g->in_port[i].use != 0 ? FLOW_WEIGHT : 0));
    }
    flow_down(f, g);
    for (int i = 0; i < g->nout; i++)
        if (g->out_port[i].role == ROLE_loss_sum ||
            (g->out_port[i].role == ROLE_send && g->out_port[i].use != 0))
            add_bits(f, g, g->out[i], FLOW_LOSS);
    flow_up(f, g);
    return f;
}
