/* partition_units.c - a model as a chain of units.
 *
 * Nodes that read weights of one layer are a unit, in program order; an iteration of a repeat is
 * one. Every other node belongs to the last unit whose values it reads. Nodes that depend on no
 * weight belong to none: each chunk that needs their results computes them.
 */
#include "ir/cost.h"
#include "passes/partition.h"

#include <string.h>

typedef struct Walk {
    const Graph *g;
    const Flow *flow; /* NULL: units are known */
    UnitList *units;  /* NULL likewise */
    UnitUses *uses;
    int *seen; /* by parameter: consumers so far */
    int *at;   /* by value: its unit; -1 */
    UnitMap map;
    Arena *scratch;
} Walk;

static const Port *weight_port(const Graph *g, Val v) {
    const ValInfo *info = &g->val[v.id];
    const Port *port = info->node == 0 ? &g->in_port[info->result] : NULL;
    return port != NULL && port->role == ROLE_weight ? port : NULL;
}

static bool seen_before(const Node *n, int operand) {
    for (int k = 0; k < operand; k++)
        if (n->in[k].id == n->in[operand].id) return true;
    return false;
}

/* What use `use` of a parameter is called: by its member, or by the member that is tied to it. */
static const char *use_name(const Module *m, int param, int use) {
    for (int i = 0; i < m->nalias; i++)
        if (m->alias[i].param == param && use-- == 1) return m->alias[i].name;
    return m->param[param].name;
}

/* "transformer.wte" of "transformer.wte.weight"; "transformer.h.*" of what is in a repeat. */
static const char *layer_name(const Module *m, Arena *scratch, int param, int use) {
    const char *name = use_name(m, param, use);
    const char *star = strchr(name, '*'), *dot = strrchr(name, '.');
    size_t n = star != NULL  ? (size_t)(star - name) + 1
               : dot != NULL ? (size_t)(dot - name)
                             : strlen(name);
    return arena_strndup(scratch, name, n);
}

/* ---- repeats ------------------------------------------------------------------------------ */

/* Iterations ascend, stacked operands are stacks of weights that only this repeat uses, nothing is
 * stacked,
 * and no gradient is summed over iterations: then iterations can be done by several chunks, in
 * turn. */
static bool can_cut(const Walk *w, int index) {
    const Node *n = w->g->node[index];
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    int nsame = ncarry + (int)node_int(n, ATTR_nconst, 0);
    bool any = false;
    if (n->nout > ncarry || node_int(n, ATTR_reverse, 0) != 0) return false;
    for (int i = ncarry; i < n->nin; i++) {
        const Port *port = weight_port(w->g, n->in[i]);
        if (i < nsame) {
            if (flow_active(w->flow, n->in[i])) return false;
            if (port != NULL) return false;
        } else {
            if (port == NULL || w->g->mod->param[port->index].uses > 1) return false;
            if (w->g->mod->param[port->index].nstack == 0) return false;
            if (seen_before(n, i)) return false;
            any = true;
        }
    }
    return any;
}

/* How much of a node's backward, which takes two forwards, waits for the weight gradients: one
 * forward where it reads something that depends on weights alone, both where nothing else that it
 * reads has a gradient, as in an embedding. */
static double weight_forwards(const Flow *flow, const Node *n) {
    bool weight = false, data = false;
    for (int k = 0; k < n->nin; k++) {
        if (!flow_active(flow, n->in[k])) continue;
        bool depends = (flow->bits[n->in[k].id] & FLOW_DATA) != 0;
        weight |= !depends;
        data |= depends;
    }
    return !weight ? 0 : data ? 1 : 2;
}

/* Arithmetic and traffic of node `index`, which runs `times` times. */
static void add_cost(Unit *unit, const Graph *g, const Flow *flow, int index, double times) {
    const Node *n = g->node[index];
    if (n->op == OP_repeat) {
        double count = (double)node_int(n, ATTR_count, 1);
        for (int i = 0; i < n->body->nnode; i++)
            add_cost(unit, n->body, flow->body[index], i, times * count);
        return;
    }
    OpKind kind = op_kind(n->op);
    if (kind == KIND_movement || kind == KIND_source) return;
    double flops = (double)cost_flops(g, n), bytes = (double)cost_bytes(g, n);
    double cost = times * (flops + COST_PER_BYTE * bytes);
    unit->flops += times * flops;
    unit->cost += cost;
    unit->weight_cost += weight_forwards(flow, n) * cost;
}

/* ---- the walk ----------------------------------------------------------------------------- */

static int new_unit(Walk *w, const char *name, int64_t layer) {
    vec_push(w->scratch, w->units, (Unit){.name = name, .layer = layer});
    return (int)w->units->n - 1;
}

/* The unit of a weight's use; a new one unless it continues the last. */
static int unit_of_use(Walk *w, int param, int use) {
    int *unit = &w->uses->unit[param][use];
    if (*unit >= 0 || w->units == NULL) return *unit;
    const char *name = layer_name(w->g->mod, w->scratch, param, use);
    const Unit *last = w->units->n > 0 ? &w->units->data[w->units->n - 1] : NULL;
    bool same = last != NULL && last->layer < 0 && strcmp(last->name, name) == 0;
    *unit = same ? (int)w->units->n - 1 : new_unit(w, name, -1);
    return *unit;
}

static int next_use(Walk *w, const Port *port) {
    int use = w->seen[port->index]++;
    return w->units != NULL ? port->use : use;
}

static void walk_plain(Walk *w, int index) {
    const Node *n = w->g->node[index];
    int unit = -1;
    for (int k = 0; k < n->nin; k++) {
        const Port *port = weight_port(w->g, n->in[k]);
        int at = w->at[n->in[k].id];
        if (port != NULL && !seen_before(n, k)) at = unit_of_use(w, port->index, next_use(w, port));
        if (at > unit) unit = at;
    }
    w->map.first[index] = w->map.last[index] = unit;
    if (w->units != NULL && unit >= 0) add_cost(&w->units->data[unit], w->g, w->flow, index, 1);
}

/* A repeat that can be cut is one unit an iteration. */
static void walk_repeat(Walk *w, int index) {
    const Node *n = w->g->node[index];
    int64_t count = node_int(n, ATTR_count, 1);
    int first = -1, ncarry = (int)node_int(n, ATTR_ncarry, 0);
    for (int k = n->nin - 1; k >= 0; k--) { /* stacked ones first */
        const Port *port = weight_port(w->g, n->in[k]);
        if (port == NULL || seen_before(n, k)) continue;
        int use = next_use(w, port);
        if (k >= ncarry && w->units != NULL) w->uses->cut[port->index] = true;
        if (w->units != NULL && first < 0) {
            const char *name = layer_name(w->g->mod, w->scratch, port->index, use);
            first = (int)w->units->n;
            for (int64_t i = 0; i < count; i++) new_unit(w, name, i);
        }
        if (w->units != NULL) w->uses->unit[port->index][use] = first;
        first = w->uses->unit[port->index][use];
    }
    w->map.first[index] = first;
    w->map.last[index] = first + (int)count - 1;
    for (int64_t i = 0; w->units != NULL && i < count; i++)
        for (int k = 0; k < n->body->nnode; k++)
            add_cost(&w->units->data[first + i], n->body, w->flow->body[index], k, 1);
}

/* In a graph whose units are known: whether the repeat was cut in train: its last operand is a
 * stacked weight with a unit for each index. */
static bool was_cut(const Walk *w, int index) {
    const Node *n = w->g->node[index];
    const Port *port = n->nin > 0 ? weight_port(w->g, n->in[n->nin - 1]) : NULL;
    return port != NULL && w->uses->cut[port->index];
}

static UnitMap walk(Walk *w) {
    const Graph *g = w->g;
    w->seen = ARENA_ARRAY(w->scratch, int, g->mod->nparam + 1);
    w->at = ARENA_ARRAY(w->scratch, int, g->nval + 1);
    w->map.first = ARENA_ARRAY(w->scratch, int, g->nnode + 1);
    w->map.last = ARENA_ARRAY(w->scratch, int, g->nnode + 1);
    for (uint32_t v = 0; v <= g->nval; v++) w->at[v] = -1;
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        bool cut = n->op == OP_repeat && (w->units != NULL ? can_cut(w, i) : was_cut(w, i));
        if (cut)
            walk_repeat(w, i);
        else
            walk_plain(w, i);
        for (int k = 0; k < n->nout; k++) w->at[node_out(n, k).id] = w->map.last[i];
    }
    return w->map;
}

UnitMap units_of_train(const Graph *g, const Flow *flow, UnitList *units, UnitUses *uses,
                       Arena *scratch) {
    const Module *m = g->mod;
    uses->unit = ARENA_ARRAY(scratch, int *, m->nparam + 1);
    uses->cut = ARENA_ARRAY(scratch, bool, m->nparam + 1);
    for (int i = 0; i < m->nparam; i++) {
        int n = m->param[i].uses > 1 ? m->param[i].uses : 1;
        uses->unit[i] = ARENA_ARRAY(scratch, int, n);
        for (int use = 0; use < n; use++) uses->unit[i][use] = -1;
    }
    Walk w = {.g = g, .flow = flow, .units = units, .uses = uses, .scratch = scratch};
    return walk(&w);
}

/* ---- order ------------------------------------------------------------------------------- */

static bool is_ordered(const UnitMap *map, int nnode) {
    int latest = -1;
    for (int i = 0; i < nnode; i++) {
        if (map->first[i] >= 0 && map->first[i] < latest) return false;
        if (map->last[i] > latest) latest = map->last[i];
    }
    return true;
}

typedef struct Reorder {
    const Graph *g;
    const UnitMap *map;
    Graph *to;
    ValMap values;
    bool *done; /* by node */
} Reorder;

/* A node behind what it needs; only nodes without a unit are not there yet. */
static void put_node(Reorder *r, int index) {
    const Node *n = r->g->node[index];
    if (r->done[index]) return;
    r->done[index] = true;
    for (int k = 0; k < n->nin; k++)
        if (val_node(r->g, n->in[k]) != NULL) put_node(r, (int)r->g->val[n->in[k].id].node - 1);
    graph_copy_node(r->to, r->g, n, &r->values, NULL);
}

Graph *units_in_order(const Graph *g, const UnitMap *map, int units, Arena *scratch) {
    if (is_ordered(map, g->nnode)) return NULL;
    Reorder r = {.g = g,
                 .map = map,
                 .to = graph_new(g->mod, g->name),
                 .values = valmap_new(scratch, g),
                 .done = ARENA_ARRAY(scratch, bool, g->nnode + 1)};
    graph_copy_inputs(r.to, g, &r.values);
    for (int unit = 0; unit < units; unit++)
        for (int i = 0; i < g->nnode; i++)
            if (map->last[i] == unit) put_node(&r, i);
    for (int i = 0; i < g->nnode; i++) put_node(&r, i);
    graph_copy_outputs(r.to, g, &r.values);
    return r.to;
}

UnitMap units_of_graph(const Graph *g, const UnitUses *uses, Arena *scratch) {
    UnitUses known = *uses;
    Walk w = {.g = g, .uses = &known, .scratch = scratch};
    return walk(&w);
}
