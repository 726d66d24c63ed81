/* recompute.c - what the backward pass of a layer makes again instead of reading it back.
 *
 * Reads   train graphs after autodiff and mixed, in which a forward repeat saves values of every
 *         layer (stacked results) for a backward repeat.
 * Writes  backward repeats that make values again: with recompute = layer all of them, from what
 *         the layer started from and read (the forward repeat saves that instead where it did not);
 *         else those that recompute_cheap.c names, from others that are saved. What is then saved
 *         for nobody goes with the next dce.
 * Keeps   every operation, its rounding to bf16 and its random numbers (those of the same
 *         iteration), so gradients have the same bits.
 * Why     memory: with recompute = layer one value a layer is kept for the backward pass instead of
 *         all of them, for the time of another forward pass; the rest costs nothing.
 */
#include "passes/recompute.h"

typedef struct Recompute {
    const Graph *from;
    Graph *to;
    bool layer; /* all of a layer */
    ValMap map;
    const Node **extra_of; /* by node of `from`: a forward repeat's copy */
    Arena *scratch;
} Recompute;

typedef RecomputePair Pair;

static int attr_of(const Node *n, AttrKey key) { return (int)node_int(n, key, 0); }

static int ncarry_of(const Node *n) { return attr_of(n, ATTR_ncarry); }

static int first_stacked(const Node *n) { return ncarry_of(n) + attr_of(n, ATTR_nconst); }

/* ---- pairs ------------------------------------------------------------------------------ */

/* The repeat of the forward pass that stacked operand k of a repeat of the backward pass, which
 * runs the other way. Models may have repeats of their own that do. */
static const Node *saved_by(const Graph *g, const Node *back, int k) {
    const Node *n = val_node(g, back->in[k]);
    if (k < first_stacked(back) || n == NULL || n->op != OP_repeat) return NULL;
    if (n->phase != PHASE_F || back->phase == PHASE_F) return NULL;
    bool other_way = attr_of(n, ATTR_reverse) != attr_of(back, ATTR_reverse);
    bool stacked = (int)g->val[back->in[k].id].result >= ncarry_of(n);
    return other_way && stacked && attr_of(n, ATTR_count) == attr_of(back, ATTR_count) ? n : NULL;
}

static Val saved_value(const Graph *g, const Node *forward, Val outer) {
    return forward->body->out[g->val[outer.id].result];
}

static bool any_needed(const Pair *p, const Node *n) {
    for (int r = 0; r < n->nout; r++)
        if (p->needed[node_out(n, r).id] && !p->held[node_out(n, r).id]) return true;
    return false;
}

static void find_needed(Pair *p) {
    const Graph *body = p->forward->body;
    for (int i = body->nnode - 1; i >= 0; i--) {
        const Node *n = body->node[i];
        for (int k = 0; any_needed(p, n) && k < n->nin; k++) p->needed[n->in[k].id] = true;
    }
}

/* The stacked result that is what carried value i was in each iteration; -1: none. */
static int find_kept(const Node *forward, int i) {
    const Graph *body = forward->body;
    for (int r = ncarry_of(forward); r < body->nout; r++)
        if (body->out[r].id == body->in[i].id) return r;
    return -1;
}

/* The forward repeat whose saved values `back` reads, and which; false when there is none. */
static bool find_saved(const Graph *g, const Node *back, Arena *scratch, Pair *p) {
    *p = (Pair){.g = g, .back = back, .again = ARENA_ARRAY(scratch, bool, back->nin)};
    for (int k = 0; k < back->nin; k++) {
        const Node *n = saved_by(g, back, k);
        if (n == NULL || (p->forward != NULL && p->forward != n)) continue;
        if (p->forward == NULL) {
            p->saved = ARENA_ARRAY(scratch, int, n->body->nval);
            for (uint32_t v = 0; v < n->body->nval; v++) p->saved[v] = -1;
        }
        p->forward = n;
        p->saved[saved_value(g, n, back->in[k]).id] = k;
    }
    return p->forward != NULL;
}

/* False when `back` reads nothing that is to be made again. */
static bool find_pair(const Recompute *r, const Node *back, Pair *p) {
    if (!find_saved(r->from, back, r->scratch, p)) return false;
    const Graph *body = p->forward->body;
    bool any = false;
    p->held = ARENA_ARRAY(r->scratch, bool, body->nval);
    p->needed = ARENA_ARRAY(r->scratch, bool, body->nval);
    if (!r->layer) recompute_choose_cheap(p, r->scratch);
    for (uint32_t v = 1; v < body->nval; v++) {
        if (p->saved[v] < 0) continue;
        bool *again = &p->again[p->saved[v]];
        *again |= r->layer && val_node(body, (Val){v}) != NULL; /* not what it started from */
        p->needed[v] = *again;
        p->held[v] = !r->layer && !*again;
        any |= *again;
    }
    if (!any) return false;
    find_needed(p);
    p->kept = ARENA_ARRAY(r->scratch, int, ncarry_of(p->forward) + 1);
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
        if (!p->needed[body->in[i].id] || p->held[body->in[i].id]) continue;
        Val outer =
            i < ncarry_of(p->forward) ? started_from(r, p, i) : r->map.to[p->forward->in[i].id];
        b->forward.to[body->in[i].id] = add_operand(b, begin, outer, val_type(body, body->in[i]));
    }
}

static bool reads_for_input(const Graph *g, const Node *n, const bool *input_needs) {
    for (int k = 0; k < n->nin; k++) {
        const Node *made_by = val_node(g, n->in[k]);
        bool source = made_by != NULL && op_kind(made_by->op) == KIND_source;
        if (!source && !input_needs[n->in[k].id]) return false;
    }
    return true;
}

/* By node: it is made again, or it was early, a cast of what was saved, and reads what is now. */
static bool *find_again(const Recompute *r, const Graph *g, int nagain) {
    bool *again = ARENA_ARRAY(r->scratch, bool, g->nnode + 1);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        again[i] = i < nagain;
        for (int k = 0; n->phase == PHASE_F && k < n->nin; k++) {
            int made_by = (int)g->val[n->in[k].id].node - 1;
            again[i] = again[i] || (made_by >= 0 && again[made_by]);
        }
    }
    return again;
}

/* Nodes made again belong to the earliest phase that reads them. What is cheap where its operands
 * pass by belongs to the input gradient when that reads all of these. */
static void set_phases(const Recompute *r, Graph *g, int nagain) {
    bool *input_needs = ARENA_ARRAY(r->scratch, bool, g->nval), *again = find_again(r, g, nagain);
    for (int i = g->nnode - 1; i >= 0; i--) {
        Node *n = g->node[i];
        if (again[i]) n->phase = PHASE_W;
        for (int k = 0; again[i] && k < n->nout; k++)
            if (input_needs[node_out(n, k).id]) n->phase = PHASE_I;
        for (int k = 0; n->phase == PHASE_I && k < n->nin; k++) input_needs[n->in[k].id] = true;
    }
    for (int i = 0; i < nagain && !r->layer; i++) {
        Node *n = g->node[i];
        if (!reads_for_input(g, n, input_needs)) continue;
        n->phase = PHASE_I;
        for (int k = 0; k < n->nout; k++) input_needs[node_out(n, k).id] = true;
    }
}

static void fill_body(const Recompute *r, const Pair *p, Back *b) {
    const Graph *forward = p->forward->body, *back = p->back->body;
    for (uint32_t v = 1; v < forward->nval; v++)
        if (p->held[v]) b->forward.to[v] = b->back.to[back->in[p->saved[v]].id];
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
    set_phases(r, b->body, nagain);
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
    Attr *attr = ARENA_ARRAY(r->scratch, Attr, n->nattr);
    for (int i = 0; i < n->nattr; i++) {
        attr[i] = n->attr[i];
        if (attr[i].key == ATTR_nconst) attr[i] = ATTR_INT(nconst, nconst);
    }
    Builder builder = {.g = r->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&builder, OP_repeat, b.nin, b.in, n->nattr, attr, b.body);
    for (int i = 0; i < n->nout; i++) r->map.to[node_out(n, i).id] = node_out(copy, i);
}

/* ---- the pass --------------------------------------------------------------------------- */

static Graph *recompute_graph(const Graph *g, bool layer, Arena *scratch) {
    Recompute r = {.from = g, .to = graph_new(g->mod, g->name), .layer = layer};
    r.scratch = scratch;
    r.map = valmap_new(scratch, g);
    r.extra_of = ARENA_ARRAY(scratch, const Node *, g->nnode);
    Pair *pair = ARENA_ARRAY(scratch, Pair, g->nnode);
    bool *is_forward = ARENA_ARRAY(scratch, bool, g->nnode);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_repeat && find_pair(&r, n, &pair[i]))
            is_forward[g->val[pair[i].forward->out.id].node - 1] = layer;
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
    for (int i = 0; i < m->ngraph; i++)
        m->graph[i] = recompute_graph(m->graph[i], m->train.recompute, ctx->scratch);
    return true;
}
