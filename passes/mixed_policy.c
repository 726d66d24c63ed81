/* mixed_policy.c - which values dtype = bf16 keeps in bf16; see mixed.h.
 *
 * A value goes into memory in bf16 when an operation of the table makes it or reads it so, when a
 * repeat carries it, when chunks of a pipeline hand it on, or when it is a sum of such values with
 * several readers (the residual stream). A product that only a bias and then such a sum read is
 * rounded after them, not before. Everything that only moves elements hands this on, up and down,
 * and so do repeats between what is outside and inside. Statistics, the loss, and gradients of
 * weights (phase W) stay f32.
 */
#include "passes/mixed.h"

/* By operation: bit i for operand i, bit i for result i. */
typedef struct Policy {
    uint8_t operands, results;
} Policy;

static const Policy policy_table[OP_count] = {
    [OP_matmul] = {3, 1}, [OP_attention] = {7, 1},  [OP_attention_grad] = {0x2f, 7},
    [OP_gather] = {1, 1}, [OP_layer_norm] = {0, 1}, [OP_rms_norm] = {0, 1},
    [OP_put] = {3, 1}, /* caches: every program that has them */
};

typedef struct Choice {
    const Graph *g;
    Halves *h;
    bool policy, top, changed;
    bool products; /* results of products count: after everything else is known */
    uint32_t *uses;
    int *user; /* by value: a node that reads it */
} Choice;

bool mixed_is_movement(Op op) {
    return op_kind(op) == KIND_movement || op == OP_const || op == OP_put;
}

static bool is_float(const Graph *g, Val v) { return dtype_is_float(val_info(g, v)->dtype); }

bool mixed_is_handed(const Graph *g, Val v, const Port *port) {
    bool handed = port->role == ROLE_recv || port->role == ROLE_send ||
                  port->role == ROLE_recv_grad || port->role == ROLE_send_grad;
    return handed && is_float(g, v) && val_info(g, v)->ndim >= 2;
}

/* ---- what follows from one value -------------------------------------------------------- */

/* Value v is to be in bf16, and so is what it is a view of. */
static void demand(Choice *c, Val v) {
    if (c->h->half[v.id] || !is_float(c->g, v)) return;
    c->h->half[v.id] = true;
    c->changed = true;
    const Node *n = val_node(c->g, v);
    for (int i = 0; n != NULL && mixed_is_movement(n->op) && i < n->nin; i++) demand(c, n->in[i]);
}

/* The bias that is the only reader of a product: its sum is what is rounded, not the product. */
static const Node *bias_of(const Choice *c, Val v) {
    if (c->uses[v.id] != 1 || c->user[v.id] < 0) return NULL;
    const Node *n = c->g->node[c->user[v.id]];
    if (n->op != OP_add) return NULL;
    const Node *other = val_node(c->g, n->in[n->in[0].id == v.id ? 1 : 0]);
    if (other == NULL || other->op != OP_broadcast) return NULL;
    const TypeInfo *from = val_info(c->g, other->in[0]), *to = val_info(c->g, v);
    return from->ndim == 1 && from->dim[0] == to->dim[to->ndim - 1] &&
                   node_attr(other, ATTR_axes)->v[0] == to->ndim - 1
               ? n
               : NULL;
}

static bool is_model_output(const Choice *c, Val v) {
    for (int i = 0; c->top && i < c->g->nout; i++)
        if (c->g->out[i].id == v.id && c->g->out_port[i].role == ROLE_output) return true;
    for (int i = 0; i < c->g->nnode && c->uses[v.id] > 0; i++) {
        const Node *n = c->g->node[i];
        if (n->op == OP_reshape && n->in[0].id == v.id && is_model_output(c, n->out)) return true;
    }
    return false;
}

static bool is_weight(const Choice *c, Val v) {
    const Node *n = val_node(c->g, v);
    while (n != NULL && n->nin == 1 && mixed_is_movement(n->op)) {
        v = n->in[0];
        n = val_node(c->g, v);
    }
    return c->top && n == NULL && c->g->in_port[c->g->val[v.id].result].role == ROLE_weight;
}

/* The value, or the view of it that is read, when it has one reader. */
static Val only_view(const Choice *c, Val v) {
    while (c->uses[v.id] == 1 && c->user[v.id] >= 0 && c->g->node[c->user[v.id]]->op == OP_reshape)
        v = c->g->node[c->user[v.id]]->out;
    return v;
}

/* Node index of what a view shows; -1 for an input. */
static int root_index(const Graph *g, Val v) {
    const Node *n = val_node(g, v);
    while (n != NULL && n->op == OP_reshape) {
        v = n->in[0];
        n = val_node(g, v);
    }
    return (int)g->val[v.id].node - 1;
}

/* Notes the sum that only reader of a product (after its bias) takes with a value in bf16 that is
 * there before; false when there is none. */
static bool join_sum(Choice *c, const Node *product, const Node *bias) {
    Val v = only_view(c, bias != NULL ? bias->out : product->out);
    int at = c->user[v.id];
    if (c->uses[v.id] != 1 || at < 0 || c->g->node[at]->op != OP_add) return false;
    const Node *n = c->g->node[at];
    Val other = n->in[n->in[0].id == v.id ? 1 : 0];
    bool before = root_index(c->g, other) < root_index(c->g, product->out);
    if (other.id == v.id || !c->h->half[other.id] || !before || n->phase == PHASE_W ||
        is_model_output(c, n->out))
        return false;
    MixedSum *sum = &c->h->sum[at];
    *sum = (MixedSum){.product = product->out, .other = other};
    if (bias != NULL) sum->bias = bias->in[bias->in[0].id == product->out.id ? 1 : 0];
    demand(c, n->out);
    if (bias != NULL) demand(c, sum->bias);
    return true;
}

static void round_product(Choice *c, const Node *n) {
    const Node *bias = bias_of(c, n->out);
    Val v = bias != NULL ? bias->out : n->out;
    if (join_sum(c, n, bias) || is_model_output(c, v)) return;
    demand(c, v);
    for (int k = 0; bias != NULL && k < 2; k++)
        if (bias->in[k].id != n->out.id) demand(c, bias->in[k]);
}

static void apply_results(Choice *c, const Node *n) {
    if (n->phase == PHASE_W) return;
    if (op_kind(n->op) == KIND_matmul) {
        if (c->products) round_product(c, n);
        return;
    }
    for (int i = 0; i < n->nout; i++)
        if (policy_table[n->op].results >> i & 1 && !is_model_output(c, node_out(n, i)))
            demand(c, node_out(n, i));
}

static void apply_policy(Choice *c, const Node *n) {
    if (op_kind(n->op) == KIND_gather && !is_weight(c, n->in[0])) return;
    for (int i = 0; i < n->nin && i < 8; i++)
        if (policy_table[n->op].operands >> i & 1) demand(c, n->in[i]);
    apply_results(c, n);
    bool residual = n->op == OP_add && n->phase != PHASE_W && c->uses[n->out.id] > 1 &&
                    (c->h->half[n->in[0].id] || c->h->half[n->in[1].id]);
    if (residual) demand(c, n->out);
}

/* ---- repeats ---------------------------------------------------------------------------- */

static void equate(Choice *outer, Val a, Choice *inner, Val b) {
    if (outer->h->half[a.id]) demand(inner, b);
    if (inner->h->half[b.id]) demand(outer, a);
}

static bool is_activation(const Graph *body, int i) {
    Val v = body->out[i];
    const Node *n = val_node(body, v);
    while (n != NULL && n->nin == 1 && mixed_is_movement(n->op)) n = val_node(body, n->in[0]);
    return is_float(body, v) && val_info(body, v)->ndim >= 2 && (n == NULL || n->phase != PHASE_W);
}

static void sweep(Choice *c, Arena *scratch);

static Choice choice_of(const Graph *g, Halves *h, const Choice *like, Arena *scratch);

static void apply_repeat(Choice *c, const Node *n, Halves *h, Arena *scratch) {
    Choice inner = choice_of(n->body, h, c, scratch);
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    for (int i = 0; i < ncarry && c->policy; i++)
        if (is_activation(n->body, i)) demand(&inner, n->body->out[i]);
    for (int i = 0; i < n->nin; i++) equate(c, n->in[i], &inner, n->body->in[i]);
    for (int i = 0; i < n->nout; i++) equate(c, node_out(n, i), &inner, n->body->out[i]);
    for (int i = 0; i < ncarry; i++) equate(&inner, n->body->in[i], &inner, n->body->out[i]);
    sweep(&inner, scratch);
    c->changed |= inner.changed;
}

/* ---- the whole -------------------------------------------------------------------------- */

static void sweep(Choice *c, Arena *scratch) {
    for (int i = 0; i < c->g->nnode; i++) {
        const Node *n = c->g->node[i];
        if (n->op == OP_repeat) {
            apply_repeat(c, n, c->h->body[i], scratch);
            continue;
        }
        if (c->policy) apply_policy(c, n);
        bool all = n->nin > 0 && mixed_is_movement(n->op);
        for (int k = 0; k < n->nin && all; k++) all = c->h->half[n->in[k].id];
        if (all) demand(c, n->out);
    }
}

static Halves *halves_new(const Graph *g, Arena *scratch) {
    Halves *h = ARENA_NEW(scratch, Halves);
    h->half = ARENA_ARRAY(scratch, bool, g->nval);
    h->sum = ARENA_ARRAY(scratch, MixedSum, g->nnode);
    h->body = ARENA_ARRAY(scratch, Halves *, g->nnode);
    for (uint32_t v = 1; v < g->nval; v++) h->half[v] = val_info(g, (Val){v})->dtype == DT_bf16;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_repeat) h->body[i] = halves_new(g->node[i]->body, scratch);
    return h;
}

static Choice choice_of(const Graph *g, Halves *h, const Choice *like, Arena *scratch) {
    Choice c = {.g = g, .h = h, .policy = like->policy, .products = like->products};
    c.uses = graph_count_uses(g, scratch);
    c.user = ARENA_ARRAY(scratch, int, g->nval);
    for (uint32_t v = 0; v < g->nval; v++) c.user[v] = -1;
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++) c.user[g->node[i]->in[k].id] = i;
    return c;
}

static void demand_handed(Choice *c) {
    const Graph *g = c->g;
    for (int i = 0; i < g->nin; i++)
        if (mixed_is_handed(g, g->in[i], &g->in_port[i])) demand(c, g->in[i]);
    for (int i = 0; i < g->nout; i++)
        if (mixed_is_handed(g, g->out[i], &g->out_port[i])) demand(c, g->out[i]);
}

Halves *mixed_choose(const Graph *g, bool policy, Arena *scratch) {
    Halves *h = halves_new(g, scratch);
    Choice like = {.policy = policy};
    Choice c = choice_of(g, h, &like, scratch);
    c.top = true;
    if (policy) demand_handed(&c);
    for (int round = 0; round < 2; round++) {
        c.products = round == 1;
        do {
            c.changed = false;
            sweep(&c, scratch);
        } while (c.changed);
    }
    return h;
}
