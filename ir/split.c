/* split.c - how reductions and scattered sums are cut, and the workspace of any kernel; see
 * split.h. */
#include "ir/split.h"

#include "ir/module.h"

enum {
    RUN_BLOCK = 4096,        /* neighbouring elements of an item */
    COLUMN_BLOCK = 64,       /* reduced places of an item when columns are summed */
    LANES_MAX = 64,          /* partial sums an item is kept in */
    APART_ELEMS_MIN = 65536, /* smaller reductions are not worth two stages ... */
    APART_UNITS_MAX = 16,    /* ... nor those with enough results to share out */
    COLUMN_TILE = 256
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Merges neighbouring axes of one kind, leaving out those of extent 1. */
static void group_axes(const TypeInfo *t, const Attr *axes, ReduceSplit *s) {
    int64_t stride = 1, group[2 * NDIM_MAX], group_stride[2 * NDIM_MAX];
    bool reduced[2 * NDIM_MAX];
    int n = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        bool is_reduced = false;
        for (int j = 0; j < axes->n; j++) is_reduced |= axes->v[j] == i;
        if (t->dim[i] != 1 && n > 0 && reduced[n - 1] == is_reduced) {
            group[n - 1] *= t->dim[i];
        } else if (t->dim[i] != 1) {
            group[n] = t->dim[i];
            group_stride[n] = stride;
            reduced[n++] = is_reduced;
        }
        stride *= t->dim[i];
    }
    bool trivial = n == 0 || (n == 1 && !reduced[0]); // nothing to reduce: runs of one element
    s->inner = trivial || reduced[0];
    s->run = trivial ? 1 : group[0];
    for (int i = n - 1; i >= (trivial ? 0 : 1); i--) { // the innermost group is the run
        SplitAxes *to = reduced[i] ? &s->reduced : &s->kept;
        to->dim[to->n] = group[i];
        to->stride[to->n++] = group_stride[i];
    }
}

static int64_t product(const SplitAxes *a) {
    int64_t p = 1;
    for (int i = 0; i < a->n; i++) p *= a->dim[i];
    return p;
}

/* The power of two that holds n, at most LANES_MAX. */
static int lanes_for(int64_t n) {
    int lanes = 1;
    while (lanes < n && lanes < LANES_MAX) lanes *= 2;
    return lanes;
}

bool split_reduce_is_flat(const Graph *body, const Node *first) {
    const TypeTable *tt = body->mod->types;
    int64_t elems = type_elems(tt, val_type(body, first->out));
    const Attr *axes = node_attr(first, ATTR_axes);
    bool columns = axes->n > 0 && axes->v[axes->n - 1] != val_info(body, first->in[0])->ndim - 1;
    int64_t domain = columns ? type_elems(tt, val_type(body, first->in[0])) : elems;
    for (int i = 0; i < body->nout; i++) {
        int64_t own = type_elems(tt, val_type(body, body->out[i]));
        if (own != elems && own != domain) return false;
    }
    bool after = false; // a value may depend on a reduction only once all reductions are made
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        bool reduces = op_kind(n->op) == KIND_reduce;
        if (reduces && (after || val_info(body, n->out)->dtype != DT_f32)) return false;
        for (int j = 0; j < n->nin && !reduces; j++) {
            const Node *from = val_node(body, n->in[j]);
            after |= from && op_kind(from->op) == KIND_reduce;
        }
    }
    return true;
}

ReduceSplit split_reduce(const Graph *body, const Node *reduce) {
    ReduceSplit s = {0};
    group_axes(val_info(body, reduce->in[0]), node_attr(reduce, ATTR_axes), &s);
    int64_t kept = product(&s.kept), outer = product(&s.reduced), units;
    if (s.inner) {
        s.block = RUN_BLOCK;
        s.blocks = ceil_div(s.run, RUN_BLOCK);
        s.group = s.run > 0 && s.run < RUN_BLOCK ? RUN_BLOCK / s.run : 1;
        s.items = s.blocks * ceil_div(outer, s.group);
        s.results = units = kept;
    } else {
        s.block = COLUMN_BLOCK;
        s.blocks = s.items = ceil_div(outer, COLUMN_BLOCK);
        s.results = kept * s.run;
        s.tile = s.run < COLUMN_TILE ? s.run : COLUMN_TILE;
        units = s.tile ? kept * ceil_div(s.run, s.tile) : 0;
    }
    s.lanes = lanes_for(s.run);
    s.item_lanes = lanes_for(s.items);
    bool outermost =
        s.inner && s.reduced.n > 0 && s.kept.n > 0 && s.reduced.stride[0] > s.kept.stride[0];
    s.apart = s.items > 1 && (units < APART_UNITS_MAX || outermost) &&
              split_reduce_is_flat(body, reduce) && kept * s.run * outer >= APART_ELEMS_MIN;
    return s;
}

static int64_t reduce_workspace(const Graph *body, const Node *first) {
    ReduceSplit s = split_reduce(body, first);
    int64_t count = 0;
    for (int i = 0; i < body->nnode; i++) count += op_kind(body->node[i]->op) == KIND_reduce;
    return s.apart ? 4 * s.results * s.items * count : 0;
}

int64_t split_workspace_bytes(const Graph *body) {
    for (int i = 0; i < body->nnode; i++) {
        const Node *n = body->node[i];
        if (body->mod->target == TARGET_cuda) {
            int64_t bytes = split_cuda_workspace(body, n);
            if (bytes > 0) return bytes;
            continue;
        }
        switch (op_kind(n->op)) {
        case KIND_reduce: return n->op == OP_argmax ? 0 : reduce_workspace(body, n);
        case KIND_conv: return split_conv_workspace(body, n);
        case KIND_matmul: return split_matmul_workspace(body, n);
        case KIND_scatter: {
            if (n->op != OP_gather_dw) return 0;
            const TypeTable *tt = body->mod->types;
            return 4 *
                   (type_elems(tt, val_type(body, n->in[0])) + val_info(body, n->out)->dim[0] + 2);
        }
        default: break;
        }
    }
    return 0;
}
