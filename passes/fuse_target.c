/* fuse_target.c - what a target's library can do after a matrix product.
 *
 * On CUDA large products are calls of a library (ir/split.h says which). It can add a bias along
 * the last axis, then take the positive part, then round to bf16; or add an old value of the
 * result's shape: exactly what separate kernels would compute. Everything else stays a kernel of
 * its own. Gelu does not belong here: the library's has other bits than ours.
 *
 * Operands in bf16 are read as they are, both or none; bias and old value have the dtype of the
 * result.
 */
#include "ir/module.h"
#include "ir/split.h"
#include "passes/fuse.h"

static bool is_widened(const Graph *g, Val v) {
    const Node *n = val_node(g, v);
    return n != NULL && fuse_is_widening(g, n);
}

bool fuse_target_widens(const Graph *g, const Node *n, int i) {
    if (g->mod->target != TARGET_cuda || !is_widened(g, n->in[i])) return false;
    switch (op_kind(n->op)) {
    case KIND_matmul: return is_widened(g, n->in[1 - i]);
    case KIND_gather:
    case KIND_scatter: return true;
    default: return false;
    }
}

typedef struct Epilogue {
    const Fuse *f;
    const int *node; /* of the kernel, ascending; the product is the first */
    int n;
} Epilogue;

static bool is_inside(const Epilogue *e, int index) {
    for (int i = 0; i < e->n; i++)
        if (e->node[i] == index) return true;
    return false;
}

static bool is_read_outside(const Epilogue *e, Val v) {
    if (e->f->kept[v.id]) return true;
    for (uint32_t i = 0; i < e->f->users[v.id].n; i++)
        if (!is_inside(e, e->f->users[v.id].data[i])) return true;
    return false;
}

/* Operand i of a node is the value before it, only seen with another shape. */
static bool reads(const Epilogue *e, const Node *n, int i, Val before) {
    FuseChain c = fuse_chain(e->f, n->in[i]);
    return c.root.id == before.id && fuse_chain_is_view(&c);
}

static Dtype dtype_of(const Epilogue *e, Val v) { return val_info(e->f->g, v)->dtype; }

/* The library rounds only what it made of bf16. */
static bool is_half_product(const Epilogue *e) {
    return is_widened(e->f->g, e->f->g->node[e->node[0]]->in[0]);
}

/* The dtype that the product is stored in: that of its last node, or of the rounding that is the
 * only reader of that and will join. */
static Dtype result_dtype(const Epilogue *e) {
    Val last = e->f->g->node[e->node[e->n - 1]]->out;
    const IntVec *users = &e->f->users[last.id];
    if (!is_half_product(e) || e->f->kept[last.id] || users->n != 1) return dtype_of(e, last);
    const Node *user = e->f->g->node[users->data[0]];
    return user->op == OP_cast && reads(e, user, 0, last) ? dtype_of(e, user->out)
                                                          : dtype_of(e, last);
}

/* A vector along the product's last axis. */
static bool is_bias(const Epilogue *e, Val v) {
    FuseChain c = fuse_chain(e->f, v);
    FuseShape out = fuse_shape(e->f, e->f->g->node[e->node[0]]->out);
    int widened = c.n > 0 && c.inlined[0]->op == OP_cast;
    if (c.root.id == 0 || c.n != 1 + widened || c.inlined[widened]->op != OP_broadcast ||
        out.ndim != 2 || dtype_of(e, c.root) != result_dtype(e))
        return false;
    FuseShape from = fuse_shape(e->f, c.inlined[widened]->in[0]), to = fuse_shape(e->f, v);
    const Attr *axes = node_attr(c.inlined[widened], ATTR_axes);
    return fuse_shape_equal(&to, &out) && from.ndim == 1 && axes->v[0] == 1 &&
           from.dim[0] == out.dim[1];
}

/* A tensor of the result's size from memory. */
static bool is_old(const Epilogue *e, Val v) {
    FuseChain c = fuse_chain(e->f, v);
    int made_by = c.root.id != 0 ? fuse_node_index(e->f, c.root) : -1;
    return c.root.id != 0 && fuse_chain_is_flat(&c) && dtype_of(e, c.root) == result_dtype(e) &&
           (made_by < 0 || !is_inside(e, made_by));
}

/* What the second node adds to the product; *old: no activation may follow. */
static bool check_add(const Epilogue *e, const Node *n, Val product, bool *old) {
    int other = reads(e, n, 0, product) ? 1 : 0;
    if (!reads(e, n, 1 - other, product) || reads(e, n, other, product)) return false;
    *old = is_old(e, n->in[other]);
    return *old || is_bias(e, n->in[other]);
}

static bool check_epilogue(const Epilogue *e) {
    const Graph *g = e->f->g;
    bool rounded = false, old = false, added = false;
    for (int i = 1; i < e->n; i++) {
        const Node *n = g->node[e->node[i]];
        Val before = g->node[e->node[i - 1]]->out;
        bool follows = reads(e, n, 0, before);
        if (rounded || is_read_outside(e, before)) return false;
        if (n->op == OP_cast && dtype_of(e, n->out) == DT_bf16 && follows && is_half_product(e)) {
            rounded = true;
        } else if (n->op == OP_add && !added) {
            if (!check_add(e, n, before, &old)) return false;
            added = true;
        } else if (n->op == OP_relu && follows && !old) {
            added = old = true;
        } else {
            return false;
        }
    }
    return true;
}

bool fuse_target_allows(const Fuse *f, const int *node, int n, const FuseForm *form) {
    const Graph *g = f->g;
    const Node *main = g->node[form->main];
    if (g->mod->target != TARGET_cuda || form->kind != FORM_anchor || main->op != OP_matmul)
        return true;
    if (!split_cuda_library(g, main)) return true;
    Epilogue e = {.f = f, .node = node, .n = n};
    return node[0] == form->main && check_epilogue(&e);
}
