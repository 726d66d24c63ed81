/* partition_cut.c - a forward graph cut into chunks.
 *
 * A value that a later chunk needs crosses every cut on the way, one chunk handing it to the next:
 * so its gradient is summed in the order in which the whole graph sums it. What depends on no
 * weight does not cross: who needs it computes it. A repeat is cut between iterations; what it
 * carries crosses.
 */
#include "ir/panic.h"
#include "passes/partition.h"

int cut_chunk(const Cut *c, int unit) {
    if (unit < 0) return -1;
    int chunk = c->chunks - 1;
    while (chunk > 0 && c->begin[chunk] > unit) chunk--;
    return chunk;
}

static bool is_cut(const Cut *c, int node) { return c->map->first[node] != c->map->last[node]; }

static int first_chunk(const Cut *c, int node) { return cut_chunk(c, c->map->first[node]); }

static int last_chunk(const Cut *c, int node) { return cut_chunk(c, c->map->last[node]); }

bool cut_piece(const Cut *c, int node, int chunk, int64_t *begin, int64_t *end) {
    int low = c->begin[chunk], high = c->begin[chunk + 1];
    if (low < c->map->first[node]) low = c->map->first[node];
    if (high > c->map->last[node] + 1) high = c->map->last[node] + 1;
    *begin = low - c->map->first[node];
    *end = high - c->map->first[node];
    return low < high;
}

/* ---- what crosses ------------------------------------------------------------------------- */

static void use_at(Cut *c, Val v, int chunk) {
    if (c->made[v.id] >= 0 && chunk > c->used[v.id]) c->used[v.id] = chunk;
}

static void find_uses(Cut *c) {
    const Graph *g = c->g;
    for (uint32_t v = 0; v <= g->nval; v++) c->made[v] = c->used[v] = -1;
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        int ncarry = is_cut(c, i) ? (int)node_int(n, ATTR_ncarry, 0) : 0;
        for (int k = 0; k < n->nin; k++)
            use_at(c, n->in[k], k < ncarry ? first_chunk(c, i) : last_chunk(c, i));
        for (int k = 0; k < n->nout; k++) {
            c->made[node_out(n, k).id] = first_chunk(c, i);
            use_at(c, node_out(n, k), last_chunk(c, i));
        }
    }
    for (int i = 0; i < g->nout; i++) use_at(c, g->out[i], c->chunks - 1);
}

/* A gradient for value v comes back over the cut behind `chunk`. */
static bool wants_gradient(const Cut *c, Val v, int chunk) {
    if (c->flow == NULL) return false;
    const Node *n = val_node(c->g, v);
    int index = n != NULL ? (int)c->g->val[v.id].node - 1 : -1;
    if (n == NULL || !is_cut(c, index) || chunk >= last_chunk(c, index))
        return flow_active(c->flow, v);
    return flow_active(c->flow->body[index], n->body->in[v.id - n->out.id]);
}

Cut cut_graph(const Graph *g, const UnitMap *map, const Flow *flow, const int *begin, int chunks,
              Arena *scratch) {
    Cut c = {.g = g,
             .map = map,
             .flow = flow,
             .begin = begin,
             .chunks = chunks,
             .scratch = scratch,
             .made = ARENA_ARRAY(scratch, int, g->nval + 1),
             .used = ARENA_ARRAY(scratch, int, g->nval + 1),
             .cross = ARENA_ARRAY(scratch, CrossingList, chunks)};
    find_uses(&c);
    for (int at = 0; at < chunks - 1; at++)
        for (uint32_t v = 1; v < g->nval; v++) {
            if (c.made[v] < 0 || c.made[v] > at || c.used[v] <= at) continue;
            Crossing crossing = {.v = {v}, .gradient = wants_gradient(&c, (Val){v}, at)};
            vec_push(scratch, &c.cross[at], crossing);
        }
    return c;
}

/* ---- one chunk ---------------------------------------------------------------------------- */

typedef struct ChunkBuild {
    const Cut *c;
    const Table *t;
    const ParamSlices *slices;
    int chunk;
    bool *here;   /* by node */
    bool *needed; /* by value: an input or a free value that this chunk reads */
    Graph *to;
    ValMap map;
} ChunkBuild;

static bool is_last(const ChunkBuild *b) { return b->chunk == b->c->chunks - 1; }

/* Nodes of the chunk, and what they need that belongs to none. */
static void choose_nodes(ChunkBuild *b) {
    const Graph *g = b->c->g;
    int64_t begin = 0, end;
    for (int i = 0; i < g->nout && is_last(b); i++) b->needed[g->out[i].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        bool here = is_cut(b->c, i) ? cut_piece(b->c, i, b->chunk, &begin, &end)
                                    : last_chunk(b->c, i) == b->chunk;
        for (int k = 0; k < n->nout && b->c->map->last[i] < 0; k++)
            here = here || b->needed[node_out(n, k).id];
        b->here[i] = here;
        int from = here && is_cut(b->c, i) && begin > 0 ? (int)node_int(n, ATTR_ncarry, 0) : 0;
        for (int k = from; k < n->nin && here; k++) b->needed[n->in[k].id] = true;
    }
}

/* Weights that nothing uses are at home in chunk 0, so that their gradient, zero, has a place. */
static bool is_unused(const ChunkBuild *b, Val v) {
    if (b->chunk != 0 || b->c->flow == NULL) return false;
    for (int i = 0; i < b->c->g->nnode; i++)
        for (int k = 0; k < b->c->g->node[i]->nin; k++)
            if (b->c->g->node[i]->in[k].id == v.id) return false;
    return true;
}

static void add_inputs(ChunkBuild *b) {
    const Graph *g = b->c->g;
    for (int i = 0; i < g->nin; i++) {
        Port port = g->in_port[i];
        bool weight = port.role == ROLE_weight;
        if (!b->needed[g->in[i].id] && !(weight && is_unused(b, g->in[i]))) continue;
        Type type = val_type(g, g->in[i]);
        if (weight) {
            const ParamSlice *s = slice_find(b->slices, g->mod, b->t, port.index, b->chunk);
            port.index = s->index;
            type = s->param.type;
        }
        b->map.to[g->in[i].id] = graph_add_input(b->to, type, port);
    }
    if (b->chunk == 0) return;
    const CrossingList *cross = &b->c->cross[b->chunk - 1];
    for (uint32_t k = 0; k < cross->n; k++) {
        Port port = {.role = ROLE_recv, .index = (int)k, .use = cross->data[k].gradient};
        Val v = cross->data[k].v;
        b->map.to[v.id] = graph_add_input(b->to, val_type(g, v), port);
    }
}

static void move_graph(Graph *g, Module *to) {
    g->mod = to;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->body != NULL) move_graph(g->node[i]->body, to);
}

/* A body of the whole module as one of the chunk's. */
static Graph *copy_body(const ChunkBuild *b, const Graph *body) {
    if (body == NULL) return NULL;
    Graph *copy = graph_clone(body, body->name);
    move_graph(copy, b->to->mod);
    return copy;
}

static void copy_piece(ChunkBuild *b, int node, int64_t begin, int64_t end) {
    const Node *n = b->c->g->node[node];
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    bool starts = begin == 0;
    Val *in = ARENA_ARRAY(b->c->scratch, Val, n->nin);
    for (int k = 0; k < n->nin; k++)
        in[k] = b->map.to[k < ncarry && !starts ? node_out(n, k).id : n->in[k].id];
    Attr attr[] = {ATTR_INT(count, end - begin), *node_attr(n, ATTR_ncarry),
                   *node_attr(n, ATTR_nconst), *node_attr(n, ATTR_reverse),
                   ATTR_INT(first, node_int(n, ATTR_first, 0) + begin)};
    Builder build = {.g = b->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *piece = graph_add_region(&build, OP_repeat, n->nin, in, attr[4].i > 0 ? 5 : 4, attr,
                                         copy_body(b, n->body));
    for (int k = 0; k < n->nout; k++) b->map.to[node_out(n, k).id] = node_out(piece, k);
}

static void copy_nodes(ChunkBuild *b) {
    const Graph *g = b->c->g;
    int64_t begin, end;
    for (int i = 0; i < g->nnode; i++) {
        if (!b->here[i]) continue;
        if (is_cut(b->c, i) && cut_piece(b->c, i, b->chunk, &begin, &end))
            copy_piece(b, i, begin, end);
        else
            graph_copy_node(b->to, g, g->node[i], &b->map, copy_body(b, g->node[i]->body));
    }
}

static void add_outputs(ChunkBuild *b) {
    const Graph *g = b->c->g;
    if (is_last(b)) {
        graph_copy_outputs(b->to, g, &b->map);
        return;
    }
    const CrossingList *cross = &b->c->cross[b->chunk];
    for (uint32_t k = 0; k < cross->n; k++) {
        Port port = {.role = ROLE_send, .index = (int)k, .use = cross->data[k].gradient};
        graph_add_output(b->to, b->map.to[cross->data[k].v.id], port);
    }
}

Graph *cut_chunk_graph(const Cut *c, int chunk, const Table *t, const ParamSlices *slices,
                       Module *to) {
    const Graph *g = c->g;
    ChunkBuild b = {.c = c,
                    .t = t,
                    .slices = slices,
                    .chunk = chunk,
                    .here = ARENA_ARRAY(c->scratch, bool, g->nnode + 1),
                    .needed = ARENA_ARRAY(c->scratch, bool, g->nval + 1),
                    .to = graph_new(to, module_chunk_name(to, g->name, t->local[chunk])),
                    .map = valmap_new(c->scratch, g)};
    choose_nodes(&b);
    add_inputs(&b);
    copy_nodes(&b);
    add_outputs(&b);
    return b.to;
}
