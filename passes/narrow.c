/* narrow.c - rows that nobody reads are not computed.
 *
 * Reads   graphs that begin a text ("prefill.N"): a gather takes a few rows of a computed tensor.
 * Writes  the same rows computed alone: a gather of rows of what the tensor is made of, through
 *         elementwise work, products, norms and shares over the last axis.
 * Keeps   everything else; a row is computed by the same operations as before.
 * Why     only the last token of a prompt needs logits. A vocabulary is tens of times wider than
 *         the model, so without this most of the work of a short prompt would be thrown away.
 *
 * A tensor is seen as rows: its leading axes, R elements together, and the rest, its tail.
 */
#include "passes/rewrite.h"

#include "ir/panic.h"

#include <string.h>

typedef struct Narrow {
    const Graph *from;
    Builder b;
    ValMap map;
    Arena *scratch;
    Val index;    /* i32 [n] of the new graph */
    int64_t rows; /* R */
    int64_t few;  /* n */
} Narrow;

static Val few_rows(Narrow *w, Val v);

/* How many leading axes of v make R rows; -1: none do. */
static int leading_axes(const Narrow *w, Val v) {
    const TypeInfo *t = val_info(w->from, v);
    int64_t product = 1;
    for (int i = 0; i < t->ndim; i++) {
        product *= t->dim[i];
        if (product == w->rows) return i + 1;
        if (product > w->rows) return -1;
    }
    return -1;
}

/* The type of n rows of v: [n, tail..]. */
static Type few_type(const Narrow *w, Val v) {
    const TypeInfo *t = val_info(w->from, v);
    int lead = leading_axes(w, v), ndim = t->ndim - lead + 1;
    int64_t dim[NDIM_MAX] = {w->few};
    for (int i = lead; i < t->ndim; i++) dim[i - lead + 1] = t->dim[i];
    return type_intern(w->b.g->mod->types, t->dtype, ndim, dim);
}

/* Rows that have to be computed are taken out of all of them. */
static Val take_rows(Narrow *w, Val v) {
    const TypeInfo *t = val_info(w->from, v);
    int lead = leading_axes(w, v);
    int64_t dim[NDIM_MAX] = {w->rows};
    for (int i = lead; i < t->ndim; i++) dim[i - lead + 1] = t->dim[i];
    Val all = build_reshape(&w->b, w->map.to[v.id], t->ndim - lead + 1, dim);
    return build2(&w->b, OP_gather, all, w->index);
}

/* Whether few_rows can go through node n, which makes v. */
static bool goes_through(const Narrow *w, const Node *n, Val v) {
    int lead = leading_axes(w, v);
    if (n->out.id != v.id) return false; /* statistics of a norm */
    switch (n->op) {
    case OP_reshape: return leading_axes(w, n->in[0]) > 0;
    case OP_const: return true;
    case OP_matmul: return lead == 1 && val_info(w->from, v)->ndim == 2 && !node_int(n, ATTR_ta, 0);
    case OP_softmax:
    case OP_log_softmax:
    case OP_layer_norm:
    case OP_rms_norm: return lead < val_info(w->from, v)->ndim;
    case OP_broadcast: {
        const Attr *axes = node_attr(n, ATTR_axes);
        for (int i = 0; i < axes->n; i++)
            if (axes->v[i] < lead) return false;
        return true;
    }
    default: return op_kind(n->op) == KIND_elementwise;
    }
}

static Val few_broadcast(Narrow *w, const Node *n, Val v) {
    const Attr *axes = node_attr(n, ATTR_axes);
    int64_t moved[NDIM_MAX];
    for (int i = 0; i < axes->n; i++) moved[i] = axes->v[i] - leading_axes(w, v) + 1;
    return build_broadcast(&w->b, w->map.to[n->in[0].id], few_type(w, v), moved);
}

static Val few_rows(Narrow *w, Val v) {
    const Node *n = val_node(w->from, v);
    if (n == NULL || !goes_through(w, n, v)) return take_rows(w, v);
    w->b.phase = n->phase;
    w->b.span = n->span;
    w->b.scope = n->scope;
    Type type = few_type(w, v);
    const TypeInfo *t = type_info(w->b.g->mod->types, type);
    if (n->op == OP_const) return build_const(&w->b, node_float(n, ATTR_value, 0), type);
    if (n->op == OP_broadcast) return few_broadcast(w, n, v);
    Val *in = ARENA_ARRAY(w->scratch, Val, n->nin);
    bool all = op_kind(n->op) == KIND_elementwise;
    for (int i = 0; i < n->nin; i++)
        in[i] = i == 0 || all ? few_rows(w, n->in[i]) : w->map.to[n->in[i].id];
    w->b.phase = n->phase;
    w->b.span = n->span;
    w->b.scope = n->scope;
    if (n->op == OP_reshape) return build_reshape(&w->b, in[0], t->ndim, t->dim);
    Type given = n->op == OP_cast ? type : (Type){0};
    return graph_add(&w->b, n->op, n->nin, in, n->nattr, n->attr, given)->out;
}

/* A gather of fewer rows than a computed table has. */
static bool is_wanted(const Graph *g, const Node *n) {
    if (n->op != OP_gather || val_node(g, n->in[0]) == NULL) return false;
    const TypeInfo *index = val_info(g, n->in[1]);
    return index->ndim == 1 && index->dim[0] < val_info(g, n->in[0])->dim[0];
}

static Graph *narrow_graph(const Graph *g, Arena *scratch) {
    Narrow w = {.from = g, .b = {.g = graph_new(g->mod, g->name)}, .scratch = scratch};
    w.map = valmap_new(scratch, g);
    graph_copy_inputs(w.b.g, g, &w.map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (!is_wanted(g, n)) {
            graph_copy_node(w.b.g, g, n, &w.map, NULL);
            continue;
        }
        w.index = w.map.to[n->in[1].id];
        w.rows = val_info(g, n->in[0])->dim[0];
        w.few = val_info(g, n->in[1])->dim[0];
        w.map.to[n->out.id] = few_rows(&w, n->in[0]);
    }
    graph_copy_outputs(w.b.g, g, &w.map);
    return w.b.g;
}

bool pass_narrow(PassContext *ctx) {
    Module *m = ctx->mod;
    for (int i = 0; i < m->ngraph; i++)
        if (strncmp(m->graph[i]->name, "prefill.", 8) == 0)
            m->graph[i] = dce_graph(narrow_graph(m->graph[i], ctx->scratch), ctx->scratch);
    return true;
}
