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

/* Every reader of body value x is elementwise. */
static bool read_elementwise(const Graph *body, Val x) {
    for (int i = 0; i < body->nnode; i++)
        for (int k = 0; k < body->node[i]->nin; k++)
            if (body->node[i]->in[k].id == x.id && op_kind(body->node[i]->op) != KIND_elementwise &&
                body->node[i]->op != OP_copy)
                return false;
    for (int k = 0; k < body->nout; k++)
        if (body->out[k].id == x.id) return false;
    return true;
}

static bool same_dims(const TypeInfo *a, const TypeInfo *b) {
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

/* In a kernel with reductions only what has their results' shape is written once for each place. */
static bool written_at_once(const Graph *body, Val y) {
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        if (op_kind(n->op) == KIND_reduce && n->op != OP_argmax &&
            !same_dims(val_info(body, n->out), val_info(body, y)))
            return false;
    }
    return true;
}

bool place_is_pointwise(const Node *n, int i, int r) {
    const Graph *body = n->body;
    if (n->op != OP_kernel || r >= body->nout) return false;
    Val x = body->in[i], y = body->out[r];
    return val_type(body, x).id == val_type(body, y).id && read_elementwise(body, x) &&
           written_at_once(body, y);
}

int64_t place_slice_bytes(const Graph *g, Val stacked, const Node *repeat) {
    int64_t count = node_int(repeat, ATTR_count, 1);
    return type_bytes(g->mod->types, val_type(g, stacked)) / (count > 0 ? count : 1);
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
