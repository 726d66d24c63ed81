/* alias.c - one graph input per use of a weight.
 *
 * Reads   "train": weights, and the nodes that consume them.
 * Writes  a weight read by k > 1 nodes becomes k inputs, side by side, with use numbers 0 .. k-1 in
 *         program order of the nodes; Param.uses = k.
 * Keeps   everything else; "eval" has no gradients and is not touched. Tied members name one Param
 *         since lowering.
 * Why     each use's gradient has an accumulation buffer of its own, and they are added once a
 *         step in order of use: anything else gives other bits when the uses sit on different
 *         pipeline stages.
 */
#include "passes/pass.h"

typedef struct Uses {
    int *count; /* by input: nodes that read it */
    Val *first; /* by input: the new input of its first use */
    int *next;  /* by input: the use that the next node takes */
} Uses;

/* The number of the weight input that v is, or -1. */
static int weight_input(const Graph *g, Val v) {
    const ValInfo *info = &g->val[v.id];
    return info->node == 0 && g->in_port[info->result].role == ROLE_weight ? (int)info->result : -1;
}

static bool seen_before(const Node *n, int operand) {
    for (int k = 0; k < operand; k++)
        if (n->in[k].id == n->in[operand].id) return true;
    return false;
}

static Uses count_uses(const Graph *g, Arena *scratch) {
    Uses u = {.count = ARENA_ARRAY(scratch, int, g->nin),
              .first = ARENA_ARRAY(scratch, Val, g->nin),
              .next = ARENA_ARRAY(scratch, int, g->nin)};
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            int input = weight_input(g, g->node[i]->in[k]);
            if (input >= 0 && !seen_before(g->node[i], k)) u.count[input]++;
        }
    return u;
}

static void add_inputs(Graph *to, const Graph *g, Uses *u, ValMap *map) {
    for (int i = 0; i < g->nin; i++) {
        Port port = g->in_port[i];
        int uses = u->count[i] > 1 ? u->count[i] : 1;
        for (int use = 0; use < uses; use++) {
            if (port.role == ROLE_weight) port.use = use;
            Val v = graph_add_input(to, val_type(g, g->in[i]), port);
            if (use == 0) u->first[i] = map->to[g->in[i].id] = v;
        }
        if (port.role == ROLE_weight) to->mod->param[port.index].uses = uses;
    }
}

bool pass_alias(PassContext *ctx) {
    const Graph *g = module_graph(ctx->mod, "train");
    if (g == NULL) return true;
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(ctx->scratch, g);
    Uses u = count_uses(g, ctx->scratch);
    add_inputs(to, g, &u, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++) {
            int input = weight_input(g, n->in[k]);
            if (input < 0 || seen_before(n, k)) continue;
            map.to[n->in[k].id] = (Val){u.first[input].id + (uint32_t)u.next[input]++};
        }
        graph_copy_node(to, g, n, &map, NULL);
    }
    for (int i = 0; i < ctx->mod->nparam; i++)
        if (ctx->mod->param[i].uses < 1) ctx->mod->param[i].uses = 1;
    graph_copy_outputs(to, g, &map);
    module_set_graph(ctx->mod, g->name, to);
    return true;
}
