/* place_copy.c - copies where a value cannot be where it must end up.
 *
 * A value has a home when it is an output with an address of its own, the next value of what a
 * repeat carries, a slice of what it stacks, or the first value that a repeat carries. Its maker
 * can write there at once unless the value has two homes, is a graph input, or would overwrite an
 * old value (the occupant: the input with the same home) that is still to be read. Then one kernel
 * copies it, right after both the value is made and the occupant was read for the last time.
 */
#include "passes/place.h"

#include "ir/panic.h"

typedef struct Copier {
    const Graph *from;
    const PlaceOptions *options;
    PlaceScan scan;
    Arena *scratch;
    const int *occupant; /* by output: the input with the same home, -1 none */
    bool *taken;         /* by base: has a home already */
    bool *direct;        /* by output: its maker writes to its home */
    bool *is_home;       /* by output: it has a home at all */
    int *late;           /* by output: the copy comes after this node; -1 at the very beginning */
    Graph *to;
    ValMap map;
} Copier;

static Graph *copy_body(const Graph *g, const int *occupant, const PlaceOptions *options,
                        Arena *scratch);

static int last_use(const Copier *c, Val base) {
    const PlaceUses *uses = &c->scan.uses[base.id];
    return uses->n > 0 ? uses->data[uses->n - 1].node : -1;
}

static int count_uses_at(const Copier *c, Val base, int node) {
    const PlaceUses *uses = &c->scan.uses[base.id];
    int n = 0;
    for (uint32_t k = 0; k < uses->n; k++) n += uses->data[k].node == node;
    return n;
}

static bool is_carried(const Node *n, int index) { return index < node_int(n, ATTR_ncarry, 0); }

static bool is_stacked_operand(const Node *n, int index) {
    return index >= node_int(n, ATTR_ncarry, 0) + node_int(n, ATTR_nconst, 0);
}

/* Repeat `maker` may write its result r over x, which only it reads, as operand i: slice by slice,
 * or as the same carried value. */
static bool repeat_replaces(const Node *maker, int i, int r) {
    if (is_carried(maker, r)) return i == r;
    return is_stacked_operand(maker, i);
}

/* Every output that shows input x is copied from it before anything else happens. */
static bool saved_first(const Copier *c, Val x) {
    for (int k = 0; k < c->from->nout; k++)
        if (c->scan.base[c->from->out[k].id].id == x.id && (!c->is_home[k] || c->occupant[k] >= 0))
            return false;
    return true;
}

/* Whether the maker of `base` can write over input x. */
static bool can_replace(const Copier *c, Val base, Val x) {
    int maker = place_maker(c->from, base), r = (int)c->from->val[base.id].result;
    const Node *n = c->from->node[maker];
    if (!saved_first(c, x)) return false;
    const PlaceUses *uses = &c->scan.uses[x.id];
    if (n->op == OP_repeat && uses->n > 0)
        return uses->n == 1 && uses->data[0].node == maker &&
               repeat_replaces(n, uses->data[0].operand, r);
    for (uint32_t k = 0; k < uses->n; k++) {
        if (uses->data[k].node > maker) return false;
        if (uses->data[k].node == maker && !place_is_pointwise(n, uses->data[k].operand, r))
            return false;
    }
    return true;
}

/* Decides for each output with a home whether its maker writes there. */
static void decide_outputs(Copier *c) {
    const Graph *g = c->from;
    for (int k = 0; k < g->nout; k++) {
        if (!c->is_home[k]) continue;
        Val base = c->scan.base[g->out[k].id];
        Val x = c->occupant[k] >= 0 ? g->in[c->occupant[k]] : (Val){0};
        int maker = place_maker(g, base);
        if (base.id == x.id && c->scan.outputs[x.id] == 1) {
            c->direct[k] = true; /* it is there already */
            continue;
        }
        c->direct[k] = maker >= 0 && !c->taken[base.id] && !place_is_workspace(g, base) &&
                       (x.id == 0 || can_replace(c, base, x));
        if (c->direct[k]) c->taken[base.id] = true;
        c->late[k] = maker;
        if (x.id != 0 && last_use(c, x) > maker) c->late[k] = last_use(c, x);
    }
}

/* Whether carried operand i of node q can be made in the repeat's own buffer. */
static bool carried_is_direct(Copier *c, int q, int i) {
    const Graph *g = c->from;
    const Node *n = g->node[q];
    Val base = c->scan.base[n->in[i].id];
    if (place_maker(g, base) < 0) {
        /* What this body carries itself, replaced by the repeat inside it. */
        for (int k = 0; k < g->nout; k++)
            if (c->is_home[k] && c->direct[k] && c->occupant[k] >= 0 &&
                g->in[c->occupant[k]].id == base.id &&
                c->scan.base[g->out[k].id].id == node_out(n, i).id)
                return true;
        return false;
    }
    if (c->taken[base.id] || c->scan.outputs[base.id] > 0 || place_is_workspace(g, base))
        return false;
    if (last_use(c, base) != q || count_uses_at(c, base, q) != 1) return false;
    /* A window holds nothing for a later task. */
    const Node *maker = g->node[place_maker(g, base)];
    if (c->options->windows && place_task(maker, c->options) != place_task(n, c->options))
        return false;
    c->taken[base.id] = true;
    return true;
}

Val place_add_copy(Graph *to, Val v, Phase phase, const Node *near) {
    Module *m = to->mod;
    Builder inner = {.g = graph_new(m, "body"), .phase = phase};
    if (near != NULL) inner.span = near->span, inner.scope = near->scope;
    Val x = graph_add_input(inner.g, val_type(to, v), (Port){0});
    graph_add_output(inner.g, build1(&inner, OP_copy, x), (Port){0});
    Attr attr[] = {ATTR_STR(name, "copy"), ATTR_STR(form, "map")};
    Builder b = inner;
    b.g = to;
    return graph_add_region(&b, OP_kernel, 1, &v, 2, attr, inner.g)->out;
}

/* Occupants of a repeat's body: carried values keep their home; a stacked result that replaces a
 * stacked operand does so slice by slice. */
static int *body_occupants(const Copier *c, const Node *n) {
    int *occupant = ARENA_ARRAY(c->scratch, int, n->nout);
    for (int r = 0; r < n->nout; r++) {
        occupant[r] = is_carried(n, r) ? r : -1;
        if (occupant[r] >= 0) continue;
        for (int k = 0; k < c->from->nout; k++) {
            Val base = c->scan.base[c->from->out[k].id];
            if (!c->is_home[k] || !c->direct[k] || base.id != node_out(n, r).id) continue;
            if (c->occupant[k] < 0) continue;
            uint32_t x = c->from->in[c->occupant[k]].id;
            for (int i = 0; i < n->nin; i++)
                if (is_stacked_operand(n, i) && c->scan.base[n->in[i].id].id == x) occupant[r] = i;
        }
    }
    return occupant;
}

static void copy_repeat(Copier *c, int q) {
    const Node *n = c->from->node[q];
    Val *in = ARENA_ARRAY(c->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) {
        in[i] = c->map.to[n->in[i].id];
        if (is_carried(n, i) && !carried_is_direct(c, q, i))
            in[i] = place_add_copy(c->to, in[i], n->phase, n);
    }
    Graph *body = copy_body(n->body, body_occupants(c, n), c->options, c->scratch);
    Builder b = {.g = c->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&b, OP_repeat, n->nin, in, n->nattr, n->attr, body);
    for (int r = 0; r < n->nout; r++) c->map.to[node_out(n, r).id] = node_out(copy, r);
}

/* Whether output k shows an input whose home another output overwrites, while its own home is not
 * free from the beginning: then it is copied aside before anything else happens. */
static bool must_save(const Copier *c, int k) {
    Val base = c->scan.base[c->from->out[k].id];
    if (place_maker(c->from, base) >= 0 || c->occupant[k] < 0) return false;
    for (int j = 0; j < c->from->nout; j++)
        if (j != k && c->is_home[j] && c->occupant[j] >= 0 &&
            c->from->in[c->occupant[j]].id == base.id)
            return true;
    return false;
}

static Phase first_phase(const Graph *g) { return g->nnode > 0 ? g->node[0]->phase : PHASE_F; }

/* Copies that belong after node i (-1: before all nodes). */
static void copy_outputs_after(Copier *c, int i, Val *out) {
    const Graph *g = c->from;
    for (int k = 0; k < g->nout; k++) {
        if (!c->is_home[k] || c->direct[k] || c->late[k] != i) continue;
        const Node *near = i >= 0 ? g->node[i] : NULL;
        Val v = out[k].id != 0 ? out[k] : c->map.to[c->scan.base[g->out[k].id].id];
        out[k] = place_add_copy(c->to, v, near != NULL ? near->phase : first_phase(g), near);
    }
}

/* Output k, whose base was copied to `copy` (none: not copied), with its own shape. */
static Val finish_output(Copier *c, int k, Val copy) {
    Val old = c->from->out[k];
    if (copy.id == 0) return c->map.to[old.id];
    Type type = val_type(c->from, old);
    if (val_type(c->to, copy).id == type.id) return copy;
    const Node *n = val_node(c->to, copy);
    Builder b = {.g = c->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    return graph_add(&b, OP_reshape, 1, &copy, 0, NULL, type)->out;
}

static Graph *copy_graph(const Graph *g, const int *occupant, const bool *is_home, bool *direct,
                         const PlaceOptions *options, Arena *scratch) {
    Copier c = {
        .from = g, .options = options, .scratch = scratch, .occupant = occupant, .direct = direct};
    c.scan = place_scan(g, scratch);
    c.taken = ARENA_ARRAY(scratch, bool, g->nval);
    c.late = ARENA_ARRAY(scratch, int, g->nout);
    c.is_home = ARENA_ARRAY(scratch, bool, g->nout);
    for (int k = 0; k < g->nout; k++) c.is_home[k] = is_home[k];
    c.to = graph_new(g->mod, g->name);
    c.map = valmap_new(scratch, g);
    Val *out = ARENA_ARRAY(scratch, Val, g->nout);
    decide_outputs(&c);
    graph_copy_inputs(c.to, g, &c.map);
    for (int k = 0; k < g->nout; k++)
        if (c.is_home[k] && !c.direct[k] && must_save(&c, k))
            out[k] =
                place_add_copy(c.to, c.map.to[c.scan.base[g->out[k].id].id], first_phase(g), NULL);
    copy_outputs_after(&c, -1, out);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_repeat)
            copy_repeat(&c, i);
        else
            graph_copy_node(c.to, g, n, &c.map, NULL);
        copy_outputs_after(&c, i, out);
    }
    for (int k = 0; k < g->nout; k++)
        graph_add_output(c.to, finish_output(&c, k, out[k]), g->out_port[k]);
    return c.to;
}

static Graph *copy_body(const Graph *g, const int *occupant, const PlaceOptions *options,
                        Arena *scratch) {
    bool *is_home = ARENA_ARRAY(scratch, bool, g->nout);
    bool *direct = ARENA_ARRAY(scratch, bool, g->nout);
    for (int k = 0; k < g->nout; k++) is_home[k] = true;
    return copy_graph(g, occupant, is_home, direct, options, scratch);
}

Graph *place_copies(const Graph *g, const PlaceOptions *options, Arena *scratch) {
    int *occupant = ARENA_ARRAY(scratch, int, g->nout);
    bool *is_home = ARENA_ARRAY(scratch, bool, g->nout);
    bool *direct = ARENA_ARRAY(scratch, bool, g->nout);
    for (int k = 0; k < g->nout; k++) {
        occupant[k] = place_occupant(g, k);
        is_home[k] = place_role_is_fixed(g->out_port[k].role);
    }
    return copy_graph(g, occupant, is_home, direct, options, scratch);
}
