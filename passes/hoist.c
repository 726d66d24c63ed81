/* hoist.c - what every pass through a repeat makes alike is made once, before it.
 *
 * Reads   every graph, repeats inside repeats too.
 * Writes  elementwise values that take a function (cos, exp, ..) and depend on nothing but sources
 *         and const operands are made in front of the repeat and become const operands of it.
 * Keeps   every value. Movement of such values, and arithmetic alone, stay: a reader does them on
 *         its way.
 * Why     tables of rotary positions are the same in all layers: one kernel instead of one a
 *         layer, and nothing of them to save for each layer's backward pass.
 */
#include "passes/recompute.h"
#include "passes/rewrite.h"

enum { HOIST_BYTES_MAX = 64 << 20 };

typedef struct Hoist {
    const Node *n; /* the repeat */
    const Graph *body;
    bool *alike;    /* by value of the body: the same every time */
    bool *function; /* by value: alike, and made by a function */
    bool *root;     /* by value: to be made outside */
    int nroot, ncarry, nconst;
} Hoist;

static bool is_elementwise(const Node *n) { return op_kind(n->op) == KIND_elementwise; }

static bool can_leave(const Node *n) {
    OpKind kind = op_kind(n->op);
    return kind == KIND_source || kind == KIND_elementwise || kind == KIND_movement;
}

static void find_alike(Hoist *h) {
    for (int i = h->ncarry; i < h->ncarry + h->nconst; i++) h->alike[h->body->in[i].id] = true;
    for (int i = 0; i < h->body->nnode; i++) {
        const Node *n = h->body->node[i];
        bool alike = can_leave(n), function = is_elementwise(n) && recompute_is_function(n->op);
        for (int k = 0; k < n->nin; k++) {
            alike = alike && h->alike[n->in[k].id];
            function |= h->function[n->in[k].id];
        }
        h->alike[n->out.id] = alike;
        h->function[n->out.id] = alike && function;
    }
}

static bool is_made_outside(const Hoist *h, const Node *n) {
    return h->function[n->out.id] && is_elementwise(n) &&
           type_bytes(h->body->mod->types, val_type(h->body, n->out)) <= HOIST_BYTES_MAX;
}

/* What is made outside and read inside. */
static void find_roots(Hoist *h) {
    for (int i = 0; i < h->body->nnode; i++) {
        const Node *n = h->body->node[i];
        if (is_made_outside(h, n)) continue;
        for (int k = 0; k < n->nin; k++) {
            const Node *made_by = val_node(h->body, n->in[k]);
            if (made_by == NULL || !is_made_outside(h, made_by) || h->root[n->in[k].id]) continue;
            h->root[n->in[k].id] = true;
            h->nroot++;
        }
    }
}

static Hoist hoist_new(const Node *n, const Graph *body, Arena *scratch) {
    Hoist h = {.n = n, .body = body};
    h.ncarry = (int)node_int(n, ATTR_ncarry, 0);
    h.nconst = (int)node_int(n, ATTR_nconst, 0);
    h.alike = ARENA_ARRAY(scratch, bool, body->nval);
    h.function = ARENA_ARRAY(scratch, bool, body->nval);
    h.root = ARENA_ARRAY(scratch, bool, body->nval);
    find_alike(&h);
    find_roots(&h);
    return h;
}

/* Value v of the body in the graph around the repeat, where `map` has the body's const operands. */
static Val make_outside(const Hoist *h, Graph *to, ValMap *map, Val v) {
    if (map->to[v.id].id != 0) return map->to[v.id];
    const Node *n = val_node(h->body, v);
    for (int k = 0; k < n->nin; k++) make_outside(h, to, map, n->in[k]);
    return graph_copy_node(to, h->body, n, map, NULL)->out;
}

static Graph *body_without(const Hoist *h, Arena *scratch) {
    const Graph *body = h->body;
    Graph *to = graph_new(body->mod, body->name);
    ValMap map = valmap_new(scratch, body);
    for (int i = 0; i <= body->nin; i++) {
        for (uint32_t v = 1; i == h->ncarry + h->nconst && v < body->nval; v++)
            if (h->root[v])
                map.to[v] =
                    graph_add_input(to, val_type(body, (Val){v}), (Port){.role = ROLE_none});
        if (i < body->nin)
            map.to[body->in[i].id] =
                graph_add_input(to, val_type(body, body->in[i]), body->in_port[i]);
    }
    for (int i = 0; i < body->nnode; i++)
        if (!h->root[body->node[i]->out.id])
            graph_copy_node(to, body, body->node[i], &map, body->node[i]->body);
    graph_copy_outputs(to, body, &map);
    return to;
}

/* The repeat in the new graph, whose values `map` has. */
static void hoist_repeat(const Hoist *h, Graph *to, ValMap *map, Arena *scratch) {
    const Node *n = h->n;
    ValMap outside = valmap_new(scratch, h->body);
    int nin = 0, begin = h->ncarry + h->nconst;
    Val *in = ARENA_ARRAY(scratch, Val, n->nin + h->nroot);
    for (int i = 0; i < begin; i++) in[nin++] = map->to[n->in[i].id];
    for (int i = h->ncarry; i < begin; i++) outside.to[h->body->in[i].id] = in[i];
    for (uint32_t v = 1; v < h->body->nval; v++)
        if (h->root[v]) in[nin++] = make_outside(h, to, &outside, (Val){v});
    for (int i = begin; i < n->nin; i++) in[nin++] = map->to[n->in[i].id];
    Attr attr[] = {*node_attr(n, ATTR_count), ATTR_INT(ncarry, h->ncarry),
                   ATTR_INT(nconst, h->nconst + h->nroot), *node_attr(n, ATTR_reverse),
                   ATTR_INT(first, node_int(n, ATTR_first, 0))};
    int nattr = node_attr(n, ATTR_first) != NULL ? 5 : 4;
    Builder b = {.g = to, .phase = n->phase, .span = n->span, .scope = n->scope};
    Graph *body = body_without(h, scratch);
    Node *copy = graph_add_region(&b, OP_repeat, nin, in, nattr, attr, body);
    for (int i = 0; i < n->nout; i++) map->to[node_out(n, i).id] = node_out(copy, i);
}

static Graph *hoist_nodes(const Graph *g, Arena *scratch, bool *changed) {
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Graph *body = n->op == OP_repeat ? hoist_nodes(n->body, scratch, changed) : NULL;
        Hoist h = {0};
        if (body != NULL) h = hoist_new(n, body, scratch);
        *changed |= h.nroot > 0;
        if (h.nroot > 0)
            hoist_repeat(&h, to, &map, scratch);
        else
            graph_copy_node(to, g, n, &map, body);
    }
    graph_copy_outputs(to, g, &map);
    return to;
}

static Graph *hoist_graph(const Graph *g, Arena *scratch) {
    bool changed = false;
    Graph *to = hoist_nodes(g, scratch, &changed);
    return changed ? dce_graph(to, scratch) : to;
}

bool pass_hoist(PassContext *ctx) {
    rewrite_module(ctx, hoist_graph);
    return true;
}
