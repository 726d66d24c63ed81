/* recompute.c - recompute = layer: the backward pass runs each layer's forward again.
 *
 * Reads   train graphs after autodiff and mixed, in which a forward repeat saves values of every
 *         layer (stacked results) for a backward repeat.
 * Writes  backward repeats that make those values again from what the layer started from and read;
 *         the forward repeat saves that instead where it did not. What is then saved for nobody
 * goes with the next dce. Keeps   every operation, its rounding to bf16 and its random numbers
 * (those of the same iteration), so gradients have the same bits. Why     memory: one value a layer
 * is kept for the backward pass instead of all of them.
 */
#include "passes/pass.h"

typedef struct Recompute {
    const Graph *from;
    Graph *to;
    ValMap map;
    const Node **extra_of; /* by node of `from`: a forward repeat's copy */
    Arena *scratch;
} Recompute;

/* A backward repeat and the forward one whose values it makes again. */
typedef struct Pair {
    const Node *forward, *back;
    bool *again;  /* by operand of `back`: made again */
    bool *needed; /* by value of the forward body */
    int *kept;    /* by carried value of the forward repeat: the stacked result that holds it */
} Pair;

static int attr_of(const Node *n, AttrKey key) { return (int)node_int(n, key, 0); }

static int ncarry_of(const Node *n) { return attr_of(n, ATTR_ncarry); }

static int first_stacked(const Node *n) { return ncarry_of(n) + attr_of(n, ATTR_nconst); }

/* ---- pairs ------------------------------------------------------------------------------ */

/* The repeat that stacked operand k of a repeat, running the other way. */
static const Node *saved_by(const Graph *g, const Node *back, int k) {
    const Node *n = val_node(g, back->in[k]);
    if (k < first_stacked(back) || n == NULL || n->op != OP_repeat) return NULL;
    bool other_way = attr_of(n, ATTR_reverse) != attr_of(back, ATTR_reverse);
    bool stacked = (int)g->val[back->in[k].id].result >= ncarry_of(n);
    return other_way && stacked && attr_of(n, ATTR_count) == attr_of(back, ATTR_count) ? n : NULL;
}

static Val saved_value(const Graph *g, const Node *forward, Val outer) {
    return forward->body->out[g->val[outer.id].result];
}

static void find_needed(Pair *p) {
    const Graph *body = p->forward->body;
    for (int i = body->nnode - 1; i >= 0; i--) {
        const Node *n = body->node[i];
        bool needed = false;
        for (int r = 0; r < n->nout; r++) needed |= p->needed[node_out(n, r).id];
        for (int k = 0; needed && k < n->nin; k++) p->needed[n->in[k].id] = true;
    }
}

/* The stacked result that is what carried value i was in each iteration; -1: none. */
static int find_kept(const Node *forward, int i) {
    const Graph *body = forward->body;
    for (int r = ncarry_of(forward); r < body->nout; r++)
        if (body->out[r].id == body->in[i].id) return r;
    return -1;
}

/* False when `back` reads nothing that could be made again. */
static bool find_pair(const Graph *g, const Node *back, Arena *scratch, Pair *p) {
    *p = (Pair){.back = back, .again = ARENA_ARRAY(scratch, bool, back->nin)};
    bool any = false;
    for (int k = 0; k < back->nin; k++) {
        const Node *n = saved_by(g, back, k);
        if (n == NULL || (p->forward != NULL && p->forward != n)) continue;
        if (p->forward == NULL) p->needed = ARENA_ARRAY(scratch, bool, n->body->nval);
        p->forward = n;
        Val v = saved_value(g, n, back->in[k]);
        if (val_node(n->body, v) == NULL) continue; /* what it started from, or an operand */
        p->again[k] = any = true;
        p->needed[v.id] = true;
    }
    if (!any) return false;
    find_needed(p);
    p->kept = ARENA_ARRAY(scratch, int, ncarry_of(p->forward) + 1);
    for (int i = 0; i < ncarry_of(p->forward); i++) p->kept[i] = find_kept(p->forward, i);
    return true;
}

/* ---- the forward repeat ----------------------------------------------------------------- */

/* Saves each carried value that it did not save. Results beyond the old ones are these, in order.
 */
static const Node *copy_forward(Recompute *r, const Node *n) {
    Val *in = ARENA_ARRAY(r->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = r->map.to[n->in[i].id];
    Graph *body = graph_clone(n->body, n->body->name);
    for (int i = 0; i < ncarry_of(n); i++)
        if (find_kept(n, i) < 0) graph_add_output(body, body->in[i], (Port){.role = ROLE_none});
    Builder b = {.g = r->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&b, OP_repeat, n->nin, in, n->nattr, n->attr, body);
    for (int i = 0; i < n->nout; i++) r->map.to[node_out(n, i).id] = node_out(copy, i);
    return copy;
}

/* What carried value i of the forward repeat was in each iteration, in the new graph. */
static Val started_from(const Recompute *r, const Pair *p, int i) {
    if (p->kept[i] >= 0) return r->map.to[node_out(p->forward, p->kept[i]).id];
    int extra = p->forward->nout;
    for (int k = 0; k < i; k++) extra += p->kept[k] < 0;
    return node_out(r->extra_of[r->from->val[p->forward->out.id].node - 1], extra);
}

/* ---- the backward repeat ---------------------------------------------------------------- */

typedef struct Back {
    Graph *body;
    ValMap forward, back; /* into the new body */
    Val *in;              /* operands in the new graph */
    int nin;
} Back;

/* The body's input for an operand; one for each. */
static Val add_operand(Back *b, int begin, Val outer, Type type) {
    for (int i = begin; i < b->nin; i++)
        if (b->in[i].id == outer.id) return b->body->in[i];
    b->in[b->nin++] = outer;
    return graph_add_input(b->body, type, (Port){.role = ROLE_none});
}

static void add_back(const Recompute *r, const Pair *p, Back *b, int from, int to, int begin) {
    for (int k = from; k < to; k++) {
        Val inner = p->back->body->in[k];
        if (p->again[k]) continue;
        Val outer = r->map.to[p->back->in[k].id];
        Type type = val_type(p->back->body, inner);
        if (begin >= 0) {
            b->back.to[inner.id] = add_operand(b, begin, outer, type);
        } else { /* carried values stay apart even when they start equal */
            b->in[b->nin++] = outer;
            b->back.to[inner.id] = graph_add_input(b->body, type, (Port){.role = ROLE_none});
        }
    }
}

static void add_forward(const Recompute *r, const Pair *p, Back *b, int from, int to, int begin) {
    const Graph *body = p->forward->body;
    for (int i = from; i < to; i++) {
        if (!p->needed[body->in[i].id]) continue;
        Val outer =
            i < ncarry_of(p->forward) ? started_from(r, p, i) : r->map.to[p->forward->in[i].id];
        b->forward.to[body->in[i].id] = add_operand(b, begin, outer, val_type(body, body->in[i]));
    }
}

/* Nodes made again belong to the earliest phase that reads them. */
static void set_phases(Graph *g, int nagain, Arena *scratch) {
    bool *input_needs = ARENA_ARRAY(scratch, bool, g->nval);
    for (int i = g->nnode - 1; i >= 0; i--) {
        Node *n = g->node[i];
        if (i < nagain) n->phase = PHASE_W;
        for (int k = 0; i < nagain && k < n->nout; k++)
            if (input_needs[node_out(n, k).id]) n->phase = PHASE_I;
        for (int k = 0; n->phase == PHASE_I && k < n->nin; k++) input_needs[n->in[k].id] = true;
    }
}

static bool any_needed(const Pair *p, const Node *n) {
    for (int r = 0; r < n->nout; r++)
        if (p->needed[node_out(n, r).id]) return true;
    return false;
}

static void fill_body(const Recompute *r, const Pair *p, Back *b) {
    const Graph *forward = p->forward->body, *back = p->back->body;
    for (int i = 0; i < forward->nnode; i++)
        if (any_needed(p, forward->node[i]))
            graph_copy_node(b->body, forward, forward->node[i], &b->forward, NULL);
    int nagain = b->body->nnode;
    for (int k = 0; k < back->nin; k++)
        if (p->again[k])
            b->back.to[back->in[k].id] =
                b->forward.to[saved_value(r->from, p->forward, p->back->in[k]).id];
    for (int i = 0; i < back->nnode; i++)
        graph_copy_node(b->body, back, back->node[i], &b->back, NULL);
    graph_copy_outputs(b->body, back, &b->back);
    set_phases(b->body, nagain, r->scratch);
}

static void copy_back(Recompute *r, const Pair *p) {
    const Node *n = p->back, *f = p->forward;
    Back b = {.body = graph_new(r->to->mod, n->body->name)};
    b.forward = valmap_new(r->scratch, f->body);
    b.back = valmap_new(r->scratch, n->body);
    b.in = ARENA_ARRAY(r->scratch, Val, n->nin + f->nin);
    int ncarry = ncarry_of(n);
    add_back(r, p, &b, 0, ncarry, -1);
    add_back(r, p, &b, ncarry, first_stacked(n), ncarry);
    add_forward(r, p, &b, ncarry_of(f), first_stacked(f), ncarry);
    int nconst = b.nin - ncarry;
    add_back(r, p, &b, first_stacked(n), n->nin, b.nin);
    int begin = ncarry + nconst;
    add_forward(r, p, &b, 0, ncarry_of(f), begin);
    add_forward(r, p, &b, first_stacked(f), f->nin, begin);
    fill_body(r, p, &b);
    Attr attr[] = {*node_attr(n, ATTR_count), ATTR_INT(ncarry, ncarry), ATTR_INT(nconst, nconst),
                   *node_attr(n, ATTR_reverse)};
    Builder builder = {.g = r->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&builder, OP_repeat, b.nin, b.in, 4, attr, b.body);
    for (int i = 0; i < n->nout; i++) r->map.to[node_out(n, i).id] = node_out(copy, i);
}

/* ---- the pass --------------------------------------------------------------------------- */

static Graph *recompute_graph(const Graph *g, Arena *scratch) {
    Recompute r = {.from = g, .to = graph_new(g->mod, g->name), .scratch = scratch};
    r.map = valmap_new(scratch, g);
    r.extra_of = ARENA_ARRAY(scratch, const Node *, g->nnode);
    Pair *pair = ARENA_ARRAY(scratch, Pair, g->nnode);
    bool *is_forward = ARENA_ARRAY(scratch, bool, g->nnode);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_repeat && find_pair(g, n, scratch, &pair[i]))
            is_forward[g->val[pair[i].forward->out.id].node - 1] = true;
        else
            pair[i].back = NULL;
    }
    graph_copy_inputs(r.to, g, &r.map);
    for (int i = 0; i < g->nnode; i++) {
        if (pair[i].back != NULL)
            copy_back(&r, &pair[i]);
        else if (is_forward[i])
            r.extra_of[i] = copy_forward(&r, g->node[i]);
        else
            graph_copy_node(r.to, g, g->node[i], &r.map, NULL);
    }
    graph_copy_outputs(r.to, g, &r.map);
    return r.to;
}

bool pass_recompute(PassContext *ctx) {
    Module *m = ctx->mod;
    for (int i = 0; m->train.recompute && i < m->ngraph; i++)
        m->graph[i] = recompute_graph(m->graph[i], ctx->scratch);
    return true;
}
