/* fuse_target.c - what a target's library can do after a matrix product.
 *
 * On CUDA large products are calls of a library (ir/split.h says which). It can add a bias along
 * the last axis and then take the positive part, or add an old value of the result's shape: exactly
 * what separate kernels would compute. Everything else stays a kernel of its own. Gelu does not
 * belong here: the library's has other bits than ours.
 */
#include "ir/module.h"
#include "ir/split.h"
#include "passes/fuse.h"

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

/* A vector along the product's last axis. */
static bool is_bias(const Epilogue *e, Val v) {
    FuseChain c = fuse_chain(e->f, v);
    FuseShape out = fuse_shape(e->f, e->f->g->node[e->node[0]]->out);
    if (c.root.id == 0 || c.n != 1 || c.inlined[0]->op != OP_broadcast || out.ndim != 2)
        return false;
    FuseShape from = fuse_shape(e->f, c.inlined[0]->in[0]), to = fuse_shape(e->f, v);
    const Attr *axes = node_attr(c.inlined[0], ATTR_axes);
    return fuse_shape_equal(&to, &out) && from.ndim == 1 && axes->v[0] == 1 &&
           from.dim[0] == out.dim[1];
}

/* A tensor of the result's size from memory. */
static bool is_old(const Epilogue *e, Val v) {
    FuseChain c = fuse_chain(e->f, v);
    int made_by = c.root.id != 0 ? fuse_node_index(e->f, c.root) : -1;
    return c.root.id != 0 && fuse_chain_is_view(&c) && (made_by < 0 || !is_inside(e, made_by));
}

/* What the second node adds to the product; *old: nothing may follow. */
static bool check_add(const Epilogue *e, const Node *n, Val product, bool *old) {
    int other = reads(e, n, 0, product) ? 1 : 0;
    if (!reads(e, n, 1 - other, product) || reads(e, n, other, product)) return false;
    *old = is_old(e, n->in[other]);
    return *old || is_bias(e, n->in[other]);
}

static bool check_epilogue(const Epilogue *e) {
    const Graph *g = e->f->g;
    bool done = false, added = false;
    for (int i = 1; i < e->n; i++) {
        const Node *n = g->node[e->node[i]];
        Val before = g->node[e->node[i - 1]]->out;
        if (done || is_read_outside(e, before)) return false;
        if (n->op == OP_add) {
            if (added || !check_add(e, n, before, &done)) return false;
            added = true;
        } else if (n->op == OP_relu && reads(e, n, 0, before)) {
            done = true;
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
