/* fuse_chain.c - operands seen through inline nodes; see fuse.h. */
#include "ir/panic.h"
#include "passes/fuse.h"

#include <string.h>

int fuse_node_index(const Fuse *f, Val v) { return (int)f->g->val[v.id].node - 1; }

FuseChain fuse_chain(const Fuse *f, Val v) {
    FuseChain c = {.root = v};
    while (c.root.id != 0) {
        int i = fuse_node_index(f, c.root);
        if (i < 0 || f->class[i] != FUSE_inline) break;
        const Node *n = f->g->node[i];
        if (c.n == FUSE_CHAIN_MAX) panic_graph(f->g, n->span, "fuse: a chain of views is too long");
        c.inlined[c.n++] = n;
        c.root = n->nin > 0 ? n->in[0] : (Val){0};
    }
    return c;
}

bool fuse_chain_is_view(const FuseChain *c) {
    for (int i = 0; i < c->n; i++)
        if (c->inlined[i]->op != OP_reshape) return false;
    return c->root.id != 0;
}

bool fuse_chain_is_flat(const FuseChain *c) {
    for (int i = 0; i < c->n; i++)
        if (c->inlined[i]->op != OP_reshape && c->inlined[i]->op != OP_cast) return false;
    return c->root.id != 0;
}

bool fuse_is_widening(const Graph *g, const Node *n) {
    return n->op == OP_cast && val_info(g, n->in[0])->dtype == DT_bf16 &&
           val_info(g, n->out)->dtype == DT_f32;
}

bool fuse_chain_is_const(const FuseChain *c, double *value) {
    if (c->root.id != 0) return false;
    const Node *source = c->inlined[c->n - 1];
    for (int i = 0; i < c->n; i++)
        if (c->inlined[i]->op == OP_pad) return false;
    *value = node_float(source, ATTR_value, 0);
    return source->op == OP_const;
}

FuseShape fuse_shape(const Fuse *f, Val v) {
    const TypeInfo *t = val_info(f->g, v);
    FuseShape s = {.ndim = t->ndim};
    memcpy(s.dim, t->dim, sizeof s.dim);
    return s;
}

bool fuse_shape_equal(const FuseShape *a, const FuseShape *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t fuse_shape_elems(const FuseShape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) n *= s->dim[i];
    return n;
}

bool fuse_reshape_is_simple(const FuseShape *from, const FuseShape *to) {
    int i = 0, k = 0;
    while (i < from->ndim || k < to->ndim) {
        /* The smallest groups of axes, ones apart, with equal products. */
        int64_t a = 1, b = 1;
        int na = 0, nb = 0;
        do {
            bool left = i < from->ndim && (a <= b || k >= to->ndim);
            if (left) {
                na += from->dim[i] != 1;
                a *= from->dim[i++];
            } else {
                nb += to->dim[k] != 1;
                b *= to->dim[k++];
            }
        } while (a != b && (i < from->ndim || k < to->ndim));
        if (na > 1 && nb > 1) return false;
    }
    return true;
}
