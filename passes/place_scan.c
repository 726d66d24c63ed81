/* place_scan.c - reading a graph through its views; see place.h. */
#include "passes/place.h"

#include <string.h>

PlaceScan place_scan(const Graph *g, Arena *arena) {
    PlaceScan s = {.g = g,
                   .base = ARENA_ARRAY(arena, Val, g->nval),
                   .uses = ARENA_ARRAY(arena, PlaceUses, g->nval),
                   .outputs = ARENA_ARRAY(arena, int, g->nval)};
    for (uint32_t v = 1; v < g->nval; v++) s.base[v] = (Val){v};
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_reshape) {
            s.base[n->out.id] = s.base[n->in[0].id];
            continue;
        }
        for (int k = 0; k < n->nin; k++) {
            PlaceUse use = {.node = i, .operand = k};
            vec_push(arena, &s.uses[s.base[n->in[k].id].id], use);
        }
    }
    for (int k = 0; k < g->nout; k++) s.outputs[s.base[g->out[k].id].id]++;
    return s;
}

int place_maker(const Graph *g, Val v) { return (int)g->val[v.id].node - 1; }

bool place_is_workspace(const Graph *g, Val v) {
    const Node *n = val_node(g, v);
    return n != NULL && n->op == OP_kernel && (int)g->val[v.id].result >= n->body->nout;
}

static bool same_dims(const TypeInfo *a, const TypeInfo *b) {
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

/* The reduction that gives a kernel its form; NULL when there is none. */
static const Node *find_reduction(const Graph *body) {
    for (int i = 0; i < body->nnode; i++)
        if (op_kind(body->node[i]->op) == KIND_reduce && body->node[i]->op != OP_argmax)
            return body->node[i];
    return NULL;
}

/* Rows are finished one after another: each is read before it is written. */
static bool reduces_rows(const Graph *body, const Node *reduction) {
    const Attr *axes = node_attr(reduction, ATTR_axes);
    int ndim = val_info(body, reduction->in[0])->ndim;
    for (int i = 0; i < axes->n; i++)
        if (axes->v[i] != ndim - axes->n + i) return false;
    return axes->n < ndim;
}

/* Operand k of a node may lie where its result is written: it is read there only. */
static bool keeps_place(const Node *n, int k) {
    return op_kind(n->op) == KIND_elementwise || n->op == OP_copy || (n->op == OP_put && k == 0);
}

/* Every reader of body value x is elementwise, or a reduction where that is allowed. */
static bool read_in_step(const Graph *body, Val x, bool reductions, bool input) {
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        bool reduces = reductions && op_kind(n->op) == KIND_reduce;
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].id == x.id && !reduces && !keeps_place(n, k)) return false;
        /* Who reads x in another dtype reads x. */
        bool widened = n->op == OP_cast && n->in[0].id == x.id;
        if (widened && !read_in_step(body, n->out, reductions, false)) return false;
    }
    for (int k = 0; k < body->nout && input; k++)
        if (body->out[k].id == x.id) return false;
    return true;
}

bool place_is_pointwise(const Node *n, int i, int r) {
    const Graph *body = n->body;
    if (n->op != OP_kernel || r >= body->nout) return false;
    Val x = body->in[i], y = body->out[r];
    if (val_type(body, x).id != val_type(body, y).id) return false;
    const Node *reduction = find_reduction(body);
    if (reduction == NULL || same_dims(val_info(body, y), val_info(body, reduction->out)))
        return read_in_step(body, x, false, true);
    return reduces_rows(body, reduction) && read_in_step(body, x, true, true);
}

int64_t place_slice_bytes(const Graph *g, Val stacked, const Node *repeat) {
    int64_t count = node_int(repeat, ATTR_count, 1);
    return type_bytes(g->mod->types, val_type(g, stacked)) / (count > 0 ? count : 1);
}

int64_t place_extent(const Graph *g, Val v, int64_t pitch_bytes) {
    const TypeInfo *t = val_info(g, v);
    int64_t bytes = type_bytes(g->mod->types, val_type(g, v));
    if (pitch_bytes == 0 || t->ndim == 0 || t->dim[0] == 0) return bytes;
    return (t->dim[0] - 1) * pitch_bytes + bytes / t->dim[0];
}

bool place_role_is_fixed(Role role) { return role != ROLE_none && role != ROLE_output; }

int place_occupant(const Graph *g, int k) {
    const Port *out = &g->out_port[k];
    if (!place_role_is_fixed(out->role)) return -1;
    for (int i = 0; i < g->nin; i++) {
        const Port *in = &g->in_port[i];
        if (in->role == out->role && in->index == out->index && in->use == out->use) return i;
    }
    return -1;
}
