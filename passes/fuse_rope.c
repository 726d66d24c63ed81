/* fuse_rope.c - rotary positions that attention's kernels see to on their way.
 *
 * CUDA. Queries are turned where attention has loaded them, once a tile, and stored as they then
 * are for the backward pass; gradients of queries and keys are turned back where they are stored.
 * Neither costs a pass over memory of its own. Keys are turned by a kernel: every tile of queries
 * loads all of them. In bf16 both roundings stay, before and after the turn, so that a kernel of
 * rope alone has the same bits. All other ropes become primitives here.
 */
#include "passes/fuse.h"
#include "passes/rewrite.h"
#include "passes/rope.h"

#include "ir/module.h"
#include "ir/view.h"

/* Positions and elements of a row in [B, H, T, K]. */
enum { AXIS_position = 2, AXIS_row = 3, HALF_PIECE = 16 };

bool fuse_has_rope(const Graph *g) {
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_rope) return true;
    return false;
}

/* The one grouped node that reads v, -1 when others do or it is kept. */
static int only_reader(const Fuse *f, Val v) {
    return f->users[v.id].n == 1 && !f->kept[v.id] ? f->users[v.id].data[0] : -1;
}

static bool is_stored(const Fuse *f, Val v) {
    int i = fuse_node_index(f, v);
    return i < 0 || f->class[i] != FUSE_inline;
}

static Dtype dtype_of(const Fuse *f, Val v) { return val_info(f->g, v)->dtype; }

/* A rope and what it leaves: itself or, `half`, its rounding. */
typedef struct Turn {
    const Node *n;
    int index, rounding; /* nodes; -1: none */
    Val out;
    bool half;
} Turn;

static Turn read_turn(const Fuse *f, int i) {
    Turn t = {.n = f->g->node[i], .index = i, .rounding = -1, .out = f->g->node[i]->out};
    int reader = only_reader(f, t.out);
    if (reader < 0 || !fuse_is_rounding(f->g, f->g->node[reader]) ||
        f->phase[reader] != f->phase[i] || f->g->node[reader]->in[0].id != t.out.id)
        return t;
    t.rounding = reader;
    t.out = f->g->node[reader]->out;
    t.half = true;
    return t;
}

/* Pairs of what kernels move at once, and tables in f32 that are there before node `index`. */
static bool can_turn(const Fuse *f, const Turn *t, int index) {
    const TypeInfo *x = val_info(f->g, t->n->in[0]);
    bool adjacent = node_int(t->n, ATTR_adjacent, 0) == 1;
    if (t->half && !adjacent && x->dim[x->ndim - 1] % HALF_PIECE != 0) return false;
    for (int k = 1; k < 3; k++)
        if (!is_stored(f, t->n->in[k]) || dtype_of(f, t->n->in[k]) != DT_f32 ||
            fuse_node_index(f, t->n->in[k]) >= index)
            return false;
    return f->phase[t->index] == f->phase[index];
}

/* All elements of the rope's result, its axis of positions where attention has its own. */
static bool is_layout(const Fuse *f, const Turn *t, const View *view) {
    const TypeInfo *x = val_info(f->g, t->n->out);
    int axis = (int)node_int(t->n, ATTR_axis, 0);
    int64_t stride = 1, elems = 1, seen = 1;
    for (int i = 0; i < x->ndim; i++) elems *= x->dim[i];
    for (int i = axis + 1; i < x->ndim; i++) stride *= x->dim[i];
    for (int i = 0; i < view->ndim; i++) seen *= view->dim[i];
    return view->ndim == 4 && view->offset == 0 && seen == elems &&
           view->dim[AXIS_row] == x->dim[x->ndim - 1] && view->stride[AXIS_row] == 1 &&
           view->dim[AXIS_position] == x->dim[axis] &&
           (x->dim[axis] == 1 || view->stride[AXIS_position] == stride);
}

static Val root_of(const Fuse *f, Val v) { return fuse_chain(f, v).root; }

/* Attention whose queries the rope makes; -1: none. */
static int find_queries(const Fuse *f, const Turn *t) {
    const IntVec *users = &f->users[t->out.id];
    Val from = root_of(f, t->n->in[0]);
    View view;
    for (uint32_t u = 0; u < users->n; u++) {
        int i = users->data[u];
        const Node *n = f->g->node[i];
        if (n->op != OP_attention || root_of(f, n->in[0]).id != t->out.id) continue;
        bool first = true; /* of its readers, and nothing else of this attention */
        for (uint32_t k = 0; k < users->n; k++) first &= users->data[k] > i || k == u;
        if (!first || !view_read(f->g, n->in[0], t->out, &view) || !is_layout(f, t, &view) ||
            !can_turn(f, t, i) || !fuse_attention_reads(f, t->n->in[0]))
            return -1;
        return dtype_of(f, from) == dtype_of(f, t->out) ? i : -1;
    }
    return -1;
}

/* The gradient of attention whose dq or dk the rope turns back; -1: none. */
static int find_gradient(const Fuse *f, const Turn *t, int *rounding) {
    Val v = root_of(f, t->n->in[0]);
    int made_by = v.id != 0 ? fuse_node_index(f, v) : -1;
    *rounding = -1;
    if (made_by >= 0 && fuse_is_rounding(f->g, f->g->node[made_by])) {
        if (!t->half || only_reader(f, v) != t->index) return -1;
        *rounding = made_by;
        v = f->g->node[made_by]->in[0];
        made_by = fuse_node_index(f, v);
    }
    const Node *n = made_by >= 0 ? f->g->node[made_by] : NULL;
    if (n == NULL || n->op != OP_attention_grad || (*rounding >= 0) != t->half) return -1;
    View view;
    bool known = v.id == node_out(n, 0).id || v.id == node_out(n, 1).id;
    if (!known || only_reader(f, v) != (t->half ? *rounding : t->index)) return -1;
    if (!view_written(f->g, v, t->out, &view) || !is_layout(f, t, &view)) return -1;
    if (!can_turn(f, t, made_by)) return -1;
    return dtype_of(f, root_of(f, n->in[0])) == dtype_of(f, t->out) ? made_by : -1;
}

bool fuse_rope_choose(Fuse *f) {
    bool all = true;
    for (int i = 0; i < f->g->nnode; i++) {
        if (f->g->node[i]->op != OP_rope) continue;
        Turn t = read_turn(f, i);
        int rounding = -1, at = -1;
        if (f->g->mod->target == TARGET_cuda) at = find_queries(f, &t);
        if (f->g->mod->target == TARGET_cuda && at < 0) at = find_gradient(f, &t, &rounding);
        if (at < 0) {
            all = false;
            continue;
        }
        f->inside[i] = at;
        if (rounding >= 0) f->inside[rounding] = at;
        if (t.rounding >= 0) f->inside[t.rounding] = at;
    }
    return all;
}

bool fuse_rope_stores(const Fuse *f, int i) {
    if (f->inside[i] < 0 || f->g->node[f->inside[i]]->op != OP_attention) return false;
    return f->g->node[i]->op != OP_rope || !read_turn(f, i).half;
}

Graph *fuse_rope_decompose(const Fuse *f) {
    Builder b = {.g = graph_new(f->g->mod, f->g->name)};
    ValMap map = valmap_new(f->scratch, f->g);
    graph_copy_inputs(b.g, f->g, &map);
    for (int i = 0; i < f->g->nnode; i++) {
        const Node *n = f->g->node[i];
        if (n->op != OP_rope || f->inside[i] >= 0) {
            graph_copy_node(b.g, f->g, n, &map, n->body);
            continue;
        }
        Val in[3];
        for (int k = 0; k < 3; k++) in[k] = map.to[n->in[k].id];
        b.phase = n->phase;
        b.span = n->span;
        b.scope = n->scope;
        map.to[n->out.id] = rope_forward(&b, n, in);
    }
    graph_copy_outputs(b.g, f->g, &map);
    Graph *folded = fold_graph(b.g, f->scratch);
    return dce_graph(cse_graph(folded, f->scratch), f->scratch);
}
