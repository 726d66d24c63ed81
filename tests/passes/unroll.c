/* unroll.c - repeats written out; see unroll.h. */
#include "tests/passes/unroll.h"

static void unroll_nodes(Builder *b, const Graph *g, ValMap *map, Arena *scratch);

/* Slice i of x [count, ..] without the leading axis. */
static Val slice_of(Builder *b, Val x, int64_t i) {
    TypeInfo info = *val_info(b->g, x);
    int64_t begin[NDIM_MAX] = {i}, step[NDIM_MAX];
    for (int k = 0; k < info.ndim; k++) step[k] = 1;
    info.dim[0] = i + 1;
    return build_reshape(b, build_slice(b, x, begin, info.dim, step), info.ndim - 1, info.dim + 1);
}

static Val as_slice(Builder *b, Val x) {
    TypeInfo info = *val_info(b->g, x);
    int64_t dim[NDIM_MAX] = {1};
    for (int k = 0; k < info.ndim; k++) dim[k + 1] = info.dim[k];
    return build_reshape(b, x, info.ndim + 1, dim);
}

static void unroll_repeat(Builder *b, const Node *n, ValMap *map, Arena *scratch) {
    const Graph *body = n->body;
    int count = (int)node_int(n, ATTR_count, 0), ncarry = (int)node_int(n, ATTR_ncarry, 0);
    int nconst = (int)node_int(n, ATTR_nconst, 0);
    Val *carry = ARENA_ARRAY(scratch, Val, n->nin);
    Val *slices = ARENA_ARRAY(scratch, Val, count * n->nout);
    for (int k = 0; k < ncarry; k++) carry[k] = map->to[n->in[k].id];
    for (int round = 0; round < count; round++) {
        int i = node_int(n, ATTR_reverse, 0) != 0 ? count - 1 - round : round;
        ValMap inner = valmap_new(scratch, body);
        for (int k = 0; k < n->nin; k++) {
            Val x = k < ncarry ? carry[k] : map->to[n->in[k].id];
            inner.to[body->in[k].id] = k < ncarry + nconst ? x : slice_of(b, x, i);
        }
        unroll_nodes(b, body, &inner, scratch);
        for (int k = 0; k < n->nout; k++) {
            Val out = inner.to[body->out[k].id];
            if (k < ncarry)
                carry[k] = out;
            else
                slices[k * count + i] = as_slice(b, out);
        }
    }
    const Attr axis = ATTR_INT(axis, 0);
    for (int k = 0; k < n->nout; k++)
        map->to[node_out(n, k).id] =
            k < ncarry
                ? carry[k]
                : graph_add(b, OP_concat, count, slices + k * count, 1, &axis, (Type){0})->out;
}

static void unroll_nodes(Builder *b, const Graph *g, ValMap *map, Arena *scratch) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        b->phase = n->phase;
        if (n->op == OP_repeat)
            unroll_repeat(b, n, map, scratch);
        else
            graph_copy_node(b->g, g, n, map, NULL);
    }
}

Graph *unroll_graph(const Graph *g, Arena *scratch) {
    Builder b = {.g = graph_new(g->mod, g->name)};
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(b.g, g, &map);
    unroll_nodes(&b, g, &map, scratch);
    graph_copy_outputs(b.g, g, &map);
    return b.g;
}
