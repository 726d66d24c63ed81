/* separate.c - the backward repeat of a stack of layers as two: input gradients, weight gradients.
 *
 * Reads   train graphs after fuse; the table: whether this rank runs the two as tasks of their own;
 *         parallel.together, which says that there is no memory for it.
 * Writes  for each repeat of phase I that also holds work for weight gradients (W), a repeat with
 *         what the gradient of its input needs (I) and behind it one with the rest (W). What W
 *         reads of what I makes or carries is stacked by I, one slice an iteration. Nested repeats
 *         likewise, from the inside out.
 * Keeps   every kernel with its operands, and the order of iterations, so every bit. Repeats where
 *         input and weight gradients run together.
 * Why     a repeat is one node, and as early as its body: in one piece it does all its work in the
 *         input task, and the weight tasks, which are there to fill bubbles, hold almost nothing.
 *         Behind fuse there is nothing to choose: what W reads is in memory, as it reads it.
 */
#include "passes/grad.h"
#include "passes/pass.h"
#include "passes/schedule.h"

enum { INPUT, WEIGHT, PARTS };

/* One repeat that is cut. */
typedef struct Cut {
    const Node *n;
    const Graph *body;
    int ncarry, nsame;  /* carried operands; these and the constant ones */
    const bool *wanted; /* by result: something earlier than W reads it */
    bool *early;        /* by node of the body, views aside: it belongs to I */
    bool *read;         /* by value, views aside: I reads it */
    bool *carried;      /* by carried value: I carries it */
    bool *used[PARTS];  /* by value, views included: this part reads it */
    int *stacked;       /* by value: the result of the I repeat that stacks it for W; -1 */
    Arena *scratch;
} Cut;

/* One of the two repeats. */
typedef struct Part {
    Graph *body;
    ValMap map;
    VEC(Val) in; /* operands, in the new graph */
    int ncarry, nconst;
} Part;

/* The node of the body that makes what v shows; -1: an operand. */
static int maker(const Cut *c, Val v) {
    return (int)c->body->val[val_shown(c->body, v).id].node - 1;
}

static bool is_early(const Cut *c, Val v) { return maker(c, v) >= 0 && c->early[maker(c, v)]; }

/* ---- what belongs to I ---------------------------------------------------------------------- */

/* I needs v; false when that was known. */
static bool need(Cut *c, Val v) {
    int made_by = maker(c, v);
    bool *mark = made_by >= 0 ? &c->early[made_by] : &c->read[val_shown(c->body, v).id];
    bool news = !*mark;
    *mark = true;
    return news;
}

static bool need_operands(Cut *c) {
    bool news = false;
    for (int i = c->body->nnode - 1; i >= 0; i--)
        for (int k = 0; c->early[i] && k < c->body->node[i]->nin; k++)
            news |= need(c, c->body->node[i]->in[k]);
    return news;
}

/* What I reads of the iteration before, I makes. */
static bool need_carried(Cut *c) {
    bool news = false;
    for (int k = 0; k < c->ncarry; k++) {
        bool wanted = c->wanted[k] || c->read[c->body->in[k].id];
        if (!wanted && !is_early(c, c->body->out[k])) continue;
        c->carried[k] = true;
        news |= need(c, c->body->out[k]);
    }
    return news;
}

static void choose_early(Cut *c) {
    for (int i = 0; i < c->body->nnode; i++) {
        const Node *n = c->body->node[i];
        c->early[i] = n->op != OP_reshape && n->phase < PHASE_W;
    }
    for (int r = 0; r < c->n->nout; r++)
        if (c->wanted[r]) need(c, c->body->out[r]);
    for (bool news = true; news;) {
        news = need_operands(c);
        news |= need_carried(c);
    }
}

/* The part that result r belongs to. */
static int part_of(const Cut *c, int r) {
    Val v = val_shown(c->body, c->body->out[r]);
    int made_by = maker(c, v), operand = (int)c->body->val[v.id].result;
    if (r < c->ncarry) return c->carried[r] ? INPUT : WEIGHT;
    if (made_by >= 0) return c->early[made_by] ? INPUT : WEIGHT;
    if (operand < c->ncarry) return c->carried[operand] ? INPUT : WEIGHT;
    return c->wanted[r] ? INPUT : WEIGHT;
}

static void find_used(Cut *c) {
    const Graph *g = c->body;
    for (int r = 0; r < g->nout; r++) c->used[part_of(c, r)][g->out[r].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        for (int p = 0; p < PARTS; p++) {
            bool here = n->op == OP_reshape ? c->used[p][n->out.id] : c->early[i] == (p == INPUT);
            for (int k = 0; here && k < n->nin; k++) c->used[p][n->in[k].id] = true;
        }
    }
}

/* Whether W reads v and I has it. */
static bool crosses(const Cut *c, Val v) {
    const Node *n = val_node(c->body, v);
    if (!c->used[WEIGHT][v.id] || (n != NULL && n->op == OP_reshape)) return false;
    uint32_t operand = c->body->val[v.id].result;
    return n != NULL ? is_early(c, v) : operand < (uint32_t)c->ncarry && c->carried[operand];
}

/* ---- the two bodies ------------------------------------------------------------------------- */

static void add_operand(Part *p, const Cut *c, Val outer, Val inner) {
    Type type = val_type(c->body, inner);
    vec_push(c->scratch, &p->in, outer);
    p->map.to[inner.id] = graph_add_input(p->body, type, (Port){.role = ROLE_none});
}

static Part part_new(const Cut *c, int part, const ValMap *outer) {
    const Graph *g = c->body;
    Part p = {.body = graph_new(g->mod, g->name), .map = valmap_new(c->scratch, g)};
    for (int i = 0; i < c->n->nin; i++) {
        bool here = i < c->ncarry ? c->carried[i] == (part == INPUT) : c->used[part][g->in[i].id];
        if (!here) continue;
        add_operand(&p, c, outer->to[c->n->in[i].id], g->in[i]);
        if (i < c->ncarry)
            p.ncarry++;
        else if (i < c->nsame)
            p.nconst++;
    }
    return p;
}

static void copy_nodes(Part *p, const Cut *c, int part) {
    for (int i = 0; i < c->body->nnode; i++) {
        const Node *n = c->body->node[i];
        bool view = n->op == OP_reshape;
        if (view ? !c->used[part][n->out.id] : c->early[i] != (part == INPUT)) continue;
        Node *copy = graph_copy_node(p->body, c->body, n, &p->map, NULL);
        if (part == WEIGHT) copy->phase = PHASE_W;
        if (part == INPUT && copy->phase == PHASE_W) copy->phase = PHASE_I;
    }
}

/* Results of the repeat that belong to a part, in their order. */
static void add_results(Part *p, const Cut *c, int part) {
    for (int r = 0; r < c->n->nout; r++)
        if (part_of(c, r) == part)
            graph_add_output(p->body, p->map.to[c->body->out[r].id], (Port){.role = ROLE_none});
}

static const Node *add_repeat(Graph *to, const Part *p, const Node *n, Phase phase) {
    Builder b = {.g = to, .phase = phase, .span = n->span, .scope = n->scope};
    Attr attr[] = {*node_attr(n, ATTR_count), ATTR_INT(ncarry, p->ncarry),
                   ATTR_INT(nconst, p->nconst), *node_attr(n, ATTR_reverse),
                   ATTR_INT(first, node_int(n, ATTR_first, 0))};
    int nattr = node_attr(n, ATTR_first) != NULL ? 5 : 4;
    return graph_add_region(&b, OP_repeat, (int)p->in.n, p->in.data, nattr, attr, p->body);
}

/* Stacks what W reads; what is stacked already, once. */
static void add_stacked(Part *p, Cut *c) {
    Builder b = {.g = p->body, .phase = PHASE_I, .span = c->n->span, .scope = c->n->scope};
    int result = 0;
    for (uint32_t v = 0; v < c->body->nval; v++) c->stacked[v] = -1;
    for (int r = 0; r < c->n->nout; r++) {
        if (part_of(c, r) != INPUT) continue;
        if (r >= c->ncarry) c->stacked[val_shown(c->body, c->body->out[r]).id] = result;
        result++;
    }
    for (uint32_t v = 1; v < c->body->nval; v++) {
        if (!crosses(c, (Val){v}) || c->stacked[v] >= 0) continue;
        Val slice = repeat_stackable(&b, p->map.to[v]);
        graph_add_output(p->body, slice, (Port){.role = ROLE_none});
        c->stacked[v] = result++;
    }
}

/* W's operands for what I stacked. */
static void read_stacked(Part *p, const Cut *c, const Node *input) {
    const Graph *g = c->body;
    VEC(Val) flat = {0};
    for (uint32_t v = 1; v < g->nval; v++) {
        if (!crosses(c, (Val){v})) continue;
        Type type = val_type(input->body, input->body->out[c->stacked[v]]);
        vec_push(c->scratch, &p->in, node_out(input, c->stacked[v]));
        p->map.to[v] = graph_add_input(p->body, type, (Port){.role = ROLE_none});
        if (type.id != g->val[v].type.id) vec_push(c->scratch, &flat, (Val){v});
    }
    Builder b = {.g = p->body, .phase = PHASE_W, .span = c->n->span, .scope = c->n->scope};
    for (uint32_t i = 0; i < flat.n; i++) {
        Val *at = &p->map.to[flat.data[i].id];
        const TypeInfo *info = val_info(g, flat.data[i]);
        *at = build_reshape(&b, *at, info->ndim, info->dim);
    }
}

/* ---- repeats -------------------------------------------------------------------------------- */

static Cut cut_new(const Node *n, const Graph *body, const bool *wanted, Arena *scratch) {
    Cut c = {.n = n, .body = body, .wanted = wanted, .scratch = scratch};
    c.ncarry = (int)node_int(n, ATTR_ncarry, 0);
    c.nsame = c.ncarry + (int)node_int(n, ATTR_nconst, 0);
    c.early = ARENA_ARRAY(scratch, bool, body->nnode + 1);
    c.read = ARENA_ARRAY(scratch, bool, body->nval);
    c.carried = ARENA_ARRAY(scratch, bool, c.ncarry + 1);
    c.stacked = ARENA_ARRAY(scratch, int, body->nval);
    for (int p = 0; p < PARTS; p++) c.used[p] = ARENA_ARRAY(scratch, bool, body->nval);
    choose_early(&c);
    find_used(&c);
    return c;
}

/* Whether both parts run something and make something of it. */
static bool has_both(const Cut *c) {
    bool runs[PARTS] = {false, false}, makes[PARTS] = {false, false};
    for (int i = 0; i < c->body->nnode; i++)
        if (c->body->node[i]->op != OP_reshape) runs[c->early[i] ? INPUT : WEIGHT] = true;
    for (int r = 0; r < c->n->nout; r++) makes[part_of(c, r)] = true;
    for (uint32_t v = 1; v < c->body->nval; v++) makes[INPUT] |= crosses(c, (Val){v});
    return runs[INPUT] && runs[WEIGHT] && makes[INPUT] && makes[WEIGHT];
}

static void cut_repeat(Graph *to, Cut *c, ValMap *map) {
    Part input = part_new(c, INPUT, map), weight = part_new(c, WEIGHT, map);
    copy_nodes(&input, c, INPUT);
    add_results(&input, c, INPUT);
    add_stacked(&input, c);
    const Node *made[PARTS] = {add_repeat(to, &input, c->n, c->n->phase), NULL};
    read_stacked(&weight, c, made[INPUT]);
    copy_nodes(&weight, c, WEIGHT);
    add_results(&weight, c, WEIGHT);
    made[WEIGHT] = add_repeat(to, &weight, c->n, PHASE_W);
    int next[PARTS] = {0, 0};
    for (int r = 0; r < c->n->nout; r++) {
        int part = part_of(c, r);
        map->to[node_out(c->n, r).id] = node_out(made[part], next[part]++);
    }
}

/* A repeat in one piece: what was tagged W, but I needs, is I. */
static void keep_repeat(Graph *to, const Graph *g, const Cut *c, Graph *body, ValMap *map) {
    for (int i = 0; i < body->nnode; i++) {
        Node *n = body->node[i];
        bool input = n->op == OP_reshape ? c->used[INPUT][n->out.id] : c->early[i];
        if (input && n->phase == PHASE_W) n->phase = PHASE_I;
    }
    graph_copy_node(to, g, c->n, map, body);
}

/* By value: something earlier than W reads it, or it is handed on. */
static bool *find_wanted(const Graph *g, Arena *scratch) {
    bool *wanted = ARENA_ARRAY(scratch, bool, g->nval);
    for (int k = 0; k < g->nout; k++)
        if (g->out_port[k].role == ROLE_send_grad) wanted[g->out[k].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        bool here = n->op == OP_reshape ? wanted[n->out.id] : n->phase < PHASE_W;
        for (int k = 0; here && k < n->nin; k++) wanted[n->in[k].id] = true;
    }
    return wanted;
}

/* A view is no earlier than what it shows, which may be W's now. */
static void copy_other(Graph *to, const Graph *g, const Node *n, ValMap *map) {
    Node *copy = graph_copy_node(to, g, n, map, NULL);
    const Node *of = copy->op == OP_reshape ? val_node(to, copy->in[0]) : NULL;
    if (of != NULL && of->phase > copy->phase) copy->phase = of->phase;
}

static Graph *separate_graph(const Graph *g, Arena *scratch) {
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(scratch, g);
    const bool *wanted = find_wanted(g, scratch);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op != OP_repeat || n->phase != PHASE_I) {
            copy_other(to, g, n, &map);
            continue;
        }
        Graph *body = separate_graph(n->body, scratch);
        Cut c = cut_new(n, body, wanted + n->out.id, scratch);
        if (has_both(&c))
            cut_repeat(to, &c, &map);
        else
            keep_repeat(to, g, &c, body, &map);
    }
    graph_copy_outputs(to, g, &map);
    return to;
}

bool pass_separate(PassContext *ctx) {
    Module *m = ctx->mod;
    const Table *t = ctx->table != NULL ? ctx->table : schedule_begin(ctx);
    if (t == NULL) return false;
    if (!table_splits_backward(t, m->rank) || m->parallel.together) return true;
    for (int i = 0; i < m->ngraph; i++) m->graph[i] = separate_graph(m->graph[i], ctx->scratch);
    return true;
}
