/* fuse_copy.c - values that weight gradients compute again instead of reading them back.
 *
 * Work for weight gradients only (W) never shares a kernel with work for input gradients (I), so
 * whatever it takes from there would be stored for it. Where a value is a few elementwise
 * operations away from tensors that are in memory anyway, and these are hardly larger than it, W
 * computes it from them, and it is stored by nobody: the normalised row of a layer norm, which the
 * gradients of its scale read beside those of its input.
 */
#include "passes/fuse.h"

enum { COPY_NODES_MAX = 8, COPY_LEAVES_MAX = 8 };

typedef struct Copy {
    const Graph *g;
    Builder b;
    ValMap map;
    Val *again;   /* by value of the old graph: its copy for W; 0: none yet */
    bool *stored; /* by value: in memory whatever happens here */
} Copy;

typedef struct Tree {
    int nodes, leaves;
    uint32_t leaf[COPY_LEAVES_MAX];
    int64_t bytes; /* of the leaves */
} Tree;

/* What W can do again. Attention is left as it stores its results. */
static bool is_elementwise(const Graph *g, const Node *n) {
    return n != NULL && op_kind(n->op) == KIND_elementwise && !fuse_attention_rounds(g, n);
}

static bool is_movement(const Node *n) { return op_kind(n->op) == KIND_movement; }

static int64_t bytes_of(const Graph *g, Val v) { return type_bytes(g->mod->types, val_type(g, v)); }

static bool add_leaf(const Graph *g, Val v, Tree *t) {
    for (int i = 0; i < t->leaves; i++)
        if (t->leaf[i] == v.id) return true;
    if (t->leaves == COPY_LEAVES_MAX) return false;
    t->leaf[t->leaves++] = v.id;
    t->bytes += bytes_of(g, v);
    return true;
}

/* The elementwise operations that make v, down to what is in memory. */
static bool walk(const Graph *g, Val v, Tree *t) {
    const Node *n = val_node(g, v);
    while (n != NULL && is_movement(n) && n->nin == 1 && n->op != OP_copy) {
        v = n->in[0];
        n = val_node(g, v);
        if (n != NULL && op_kind(n->op) == KIND_elementwise) return add_leaf(g, v, t);
    }
    if (n != NULL && op_kind(n->op) == KIND_source) return true;
    if (!is_elementwise(g, n)) return add_leaf(g, v, t);
    if (n->phase == PHASE_W || ++t->nodes > COPY_NODES_MAX) return false;
    for (int k = 0; k < n->nin; k++)
        if (!walk(g, n->in[k], t)) return false;
    return true;
}

/* Whether W computes v again. */
static bool is_worth(const Copy *c, Val v) {
    const Node *n = val_node(c->g, v);
    if (!is_elementwise(c->g, n) || n->phase >= PHASE_W) return false;
    Tree t = {0};
    if (c->stored[v.id] || fuse_is_widening(c->g, n) || !walk(c->g, v, &t)) return false;
    return t.bytes <= bytes_of(c->g, v) + bytes_of(c->g, v) / 4;
}

static Val copy_tree(Copy *c, Val v) {
    const Node *n = val_node(c->g, v);
    if (!is_elementwise(c->g, n)) return c->map.to[v.id];
    if (c->again[v.id].id != 0) return c->again[v.id];
    Val in[3];
    for (int k = 0; k < n->nin; k++) in[k] = copy_tree(c, n->in[k]);
    c->b.phase = PHASE_W;
    c->b.span = n->span;
    c->b.scope = n->scope;
    c->again[v.id] = graph_add(&c->b, n->op, n->nin, in, n->nattr, n->attr, val_type(c->g, v))->out;
    return c->again[v.id];
}

static bool reads_elements(const Node *n) {
    OpKind kind = op_kind(n->op);
    return kind == KIND_elementwise || (kind == KIND_reduce && n->op != OP_argmax);
}

/* Graph outputs, what anchors and repeats read, what another phase than the maker's or W reads. */
static void find_stored(Copy *c) {
    const Graph *g = c->g;
    for (int k = 0; k < g->nout; k++) c->stored[g->out[k].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++) {
            const Node *made_by = val_node(g, n->in[k]);
            bool apart = made_by != NULL && n->phase != made_by->phase && n->phase != PHASE_W;
            bool passed = is_movement(n) && c->stored[n->out.id];
            if (passed || apart || (!reads_elements(n) && !is_movement(n)))
                c->stored[n->in[k].id] = true;
        }
    }
}

static void copy_node(Copy *c, const Node *n) {
    Val kept[3] = {{0}, {0}, {0}};
    bool reader = n->phase == PHASE_W && reads_elements(n);
    for (int k = 0; reader && k < n->nin; k++) {
        kept[k] = c->map.to[n->in[k].id];
        if (is_worth(c, n->in[k])) c->map.to[n->in[k].id] = copy_tree(c, n->in[k]);
    }
    graph_copy_node(c->b.g, c->g, n, &c->map, n->body);
    for (int k = n->nin - 1; reader && k >= 0; k--) c->map.to[n->in[k].id] = kept[k];
}

Graph *fuse_copies(const Graph *g, Arena *scratch) {
    Copy c = {.g = g, .b = {.g = graph_new(g->mod, g->name)}, .map = valmap_new(scratch, g)};
    c.again = ARENA_ARRAY(scratch, Val, g->nval);
    c.stored = ARENA_ARRAY(scratch, bool, g->nval);
    find_stored(&c);
    graph_copy_inputs(c.b.g, g, &c.map);
    for (int i = 0; i < g->nnode; i++) copy_node(&c, g->node[i]);
    graph_copy_outputs(c.b.g, g, &c.map);
    return c.b.g;
}
