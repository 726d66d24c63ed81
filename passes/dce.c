/* dce.c - remove what no output needs.
 *
 * Reads   every graph, regions included.
 * Writes  graphs without dead nodes. A repeat loses the carried values, stacked results and
 *         operands that nothing live needs; a carried value lives when its final value is used or
 *         when the next iteration needs it for something live.
 * Keeps   inputs and outputs of top-level graphs, and everything that is live.
 */
#include "passes/rewrite.h"

typedef struct Live {
    bool *val;          /* by value id */
    struct Live **body; /* by node index, for repeats */
} Live;

static Live *live_graph(const Graph *g, bool *out_live, Arena *scratch);

static bool any_result_live(const Live *l, const Node *n) {
    for (int i = 0; i < n->nout; i++)
        if (l->val[node_out(n, i).id]) return true;
    return false;
}

/* Liveness inside a repeat: the least set of carried values that contains those used outside and
 * those that a live value of the body reads. */
static Live *live_repeat(const Live *outer, const Node *n, Arena *scratch) {
    const Graph *body = n->body;
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    bool *out_live = ARENA_ARRAY(scratch, bool, n->nout);
    for (int i = 0; i < n->nout; i++) out_live[i] = outer->val[node_out(n, i).id];
    for (;;) {
        Live *l = live_graph(body, out_live, scratch);
        bool grown = false;
        for (int i = 0; i < ncarry; i++)
            if (l->val[body->in[i].id] && !out_live[i]) out_live[i] = grown = true;
        if (!grown) {
            for (int i = 0; i < ncarry; i++) /* a result that leaves needs its start */
                if (out_live[i]) l->val[body->in[i].id] = true;
            return l;
        }
    }
}

static Live *live_graph(const Graph *g, bool *out_live, Arena *scratch) {
    Live *l = ARENA_NEW(scratch, Live);
    l->val = ARENA_ARRAY(scratch, bool, g->nval);
    l->body = ARENA_ARRAY(scratch, Live *, g->nnode);
    for (int i = 0; i < g->nout; i++)
        if (out_live == NULL || out_live[i]) l->val[g->out[i].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        if (!any_result_live(l, n)) continue;
        if (n->op == OP_repeat) l->body[i] = live_repeat(l, n, scratch);
        for (int k = 0; k < n->nin; k++)
            if (l->body[i] == NULL || l->body[i]->val[n->body->in[k].id])
                l->val[n->in[k].id] = true;
    }
    return l;
}

static void copy_live_nodes(Graph *to, const Graph *g, const Live *l, ValMap *map, Arena *scratch);

/* The body with its live inputs; a carried result stays exactly when its input does. */
static Graph *copy_body(const Node *n, const Live *outer, const Live *l, Arena *scratch) {
    const Graph *body = n->body;
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    Graph *to = graph_new(body->mod, body->name);
    ValMap map = valmap_new(scratch, body);
    for (int i = 0; i < body->nin; i++)
        if (l->val[body->in[i].id])
            map.to[body->in[i].id] =
                graph_add_input(to, val_type(body, body->in[i]), body->in_port[i]);
    copy_live_nodes(to, body, l, &map, scratch);
    for (int i = 0; i < body->nout; i++)
        if (i < ncarry ? l->val[body->in[i].id] : outer->val[node_out(n, i).id])
            graph_add_output(to, map.to[body->out[i].id], body->out_port[i]);
    return to;
}

static void copy_repeat(Graph *to, const Node *n, const Live *outer, const Live *l, ValMap *map,
                        Arena *scratch) {
    int ncarry = (int)node_int(n, ATTR_ncarry, 0), nconst = (int)node_int(n, ATTR_nconst, 0);
    int nin = 0, carry_kept = 0, const_kept = 0;
    Val *in = ARENA_ARRAY(scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) {
        if (!l->val[n->body->in[i].id]) continue;
        in[nin++] = map->to[n->in[i].id];
        if (i < ncarry)
            carry_kept++;
        else if (i < ncarry + nconst)
            const_kept++;
    }
    Attr attr[] = {*node_attr(n, ATTR_count), ATTR_INT(ncarry, carry_kept),
                   ATTR_INT(nconst, const_kept), *node_attr(n, ATTR_reverse),
                   ATTR_INT(first, node_int(n, ATTR_first, 0))};
    int nattr = node_attr(n, ATTR_first) != NULL ? 5 : 4;
    Builder b = {.g = to, .phase = n->phase, .span = n->span, .scope = n->scope};
    Graph *body = copy_body(n, outer, l, scratch);
    Node *copy = graph_add_region(&b, OP_repeat, nin, in, nattr, attr, body);
    int result = 0;
    for (int i = 0; i < n->nout; i++) {
        Val old = node_out(n, i);
        bool kept = i < ncarry ? l->val[n->body->in[i].id] : outer->val[old.id];
        if (kept) map->to[old.id] = node_out(copy, result++);
    }
}

static void copy_live_nodes(Graph *to, const Graph *g, const Live *l, ValMap *map, Arena *scratch) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (!any_result_live(l, n)) continue;
        if (l->body[i] != NULL)
            copy_repeat(to, n, l, l->body[i], map, scratch);
        else
            graph_copy_node(to, g, n, map, NULL);
    }
}

Graph *dce_graph(const Graph *g, Arena *scratch) {
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(scratch, g);
    const Live *l = live_graph(g, NULL, scratch);
    graph_copy_inputs(to, g, &map);
    copy_live_nodes(to, g, l, &map, scratch);
    graph_copy_outputs(to, g, &map);
    return to;
}

bool pass_dce(PassContext *ctx) {
    rewrite_module(ctx, dce_graph);
    return true;
}

bool pass_cleanup(PassContext *ctx) {
    rewrite_module(ctx, fold_graph);
    rewrite_module(ctx, cse_graph);
    rewrite_module(ctx, dce_graph);
    return true;
}
