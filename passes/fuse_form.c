/* fuse_form.c - which sets of nodes are one kernel.
 *
 * A kernel computes over one domain, row-major. Its nodes may have any shape with as many elements:
 * elementwise work does not care how axes are split, so a node is computed in the domain's shape
 * and the reshapes between the nodes vanish. Movement may stand only between memory and a node,
 * never between two nodes of a kernel, but for one case: what a row reduction made may be broadcast
 * back into the rows. See fuse.h for the forms.
 */
#include "ir/module.h"
#include "passes/fuse.h"

#include <string.h>

typedef struct Check {
    const Fuse *f;
    const int *node;
    int n;
    FuseForm *form;
} Check;

static bool contains(const Check *c, int index) {
    int low = 0, high = c->n - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        if (c->node[middle] == index) return true;
        if (c->node[middle] < index)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return false;
}

static bool is_trailing(int ndim, int naxes, const int64_t *axes) {
    for (int i = 0; i < naxes; i++)
        if (axes[i] != ndim - naxes + i) return false;
    return true;
}

/* Domain, axes and kept shape from a reduction. */
static void set_reduction(Check *c, int index) {
    const Node *n = c->f->g->node[index];
    const Attr *axes = node_attr(n, ATTR_axes);
    FuseForm *form = c->form;
    form->domain = fuse_shape(c->f, n->in[0]);
    form->kept = fuse_shape(c->f, n->out);
    form->naxes = axes->n;
    memcpy(form->axes, axes->v, (size_t)axes->n * sizeof *axes->v);
    bool rows = is_trailing(form->domain.ndim, axes->n, axes->v) && form->kept.ndim > 0;
    form->kind = rows ? FORM_rows : FORM_columns;
    form->name = "reduce";
    form->main = index;
}

static bool same_reduction(const Check *c, int index) {
    const Node *n = c->f->g->node[index];
    const Attr *axes = node_attr(n, ATTR_axes);
    FuseShape domain = fuse_shape(c->f, n->in[0]);
    return fuse_shape_equal(&domain, &c->form->domain) && axes->n == c->form->naxes &&
           memcmp(axes->v, c->form->axes, (size_t)axes->n * sizeof *axes->v) == 0;
}

/* The map's domain: the shape with the most axes, of those the first. */
static void set_map(Check *c) {
    c->form->kind = FORM_map;
    c->form->name = "map";
    c->form->main = c->node[c->n - 1];
    for (int i = 0; i < c->n; i++) {
        FuseShape s = fuse_shape(c->f, c->f->g->node[c->node[i]]->out);
        if (i == 0 || s.ndim > c->form->domain.ndim) c->form->domain = s;
    }
}

/* Finds the form's kind and shapes; false when nodes of different kinds meet. */
static bool set_form(Check *c) {
    int anchor = -1, reduce = -1;
    for (int i = 0; i < c->n; i++) {
        FuseClass class = c->f->class[c->node[i]];
        if (class == FUSE_repeat || (class == FUSE_anchor && anchor >= 0)) return false;
        if (class == FUSE_anchor) anchor = c->node[i];
        if (class == FUSE_reduce && reduce < 0) reduce = c->node[i];
    }
    if (anchor >= 0 && reduce >= 0) return false;
    /* In place, put makes no values but the new ones. */
    if (anchor >= 0 && c->f->g->node[anchor]->op == OP_put && c->n > 1) return false;
    *c->form = (FuseForm){0};
    if (anchor >= 0) {
        const Node *n = c->f->g->node[anchor];
        c->form->kind = FORM_anchor;
        c->form->name = op_name(n->op);
        c->form->main = anchor;
        c->form->domain = fuse_shape(c->f, n->out);
        c->form->moves = op_kind(n->op) == KIND_attention;
    } else if (reduce >= 0) {
        set_reduction(c, reduce);
    } else {
        set_map(c);
    }
    return true;
}

bool fuse_form_shape(const Fuse *f, const FuseForm *form, int i, FuseShape *shape) {
    FuseShape own = fuse_shape(f, f->g->node[i]->out);
    int64_t elems = fuse_shape_elems(&own), domain = fuse_shape_elems(&form->domain);
    bool kept = form->kind == FORM_rows || form->kind == FORM_columns;
    if (kept && f->class[i] == FUSE_reduce) {
        *shape = form->kept;
        return true;
    }
    if (!kept || fuse_shape_equal(&own, &form->domain)) {
        *shape = form->domain;
        return elems == domain;
    }
    int64_t rows = fuse_shape_elems(&form->kept);
    *shape = elems == rows && (elems != domain || fuse_shape_equal(&own, &form->kept))
                 ? form->kept
                 : form->domain;
    if (elems == domain && elems == rows) return fuse_shape_equal(&own, &form->kept);
    return elems == domain || elems == rows;
}

static bool is_domain(const Check *c, const FuseShape *s) {
    return fuse_shape_equal(s, &c->form->domain);
}

/* A chain from the kept shape into the domain that gives each row one element, in order: what is
 * broadcast leads in its own result, whose axes need not be split as the domain's are. */
static bool is_row_broadcast(const Check *c, const FuseChain *chain, const FuseShape *to) {
    if (c->form->kind != FORM_rows || !is_domain(c, to)) return false;
    const Node *top = chain->inlined[0];
    if (top->op != OP_broadcast) return false;
    for (int i = 1; i < chain->n; i++)
        if (chain->inlined[i]->op != OP_reshape) return false;
    FuseShape from = fuse_shape(c->f, top->in[0]), into = fuse_shape(c->f, top->out);
    const Attr *axes = node_attr(top, ATTR_axes);
    int lead = 0;
    for (int i = 0; i < from.ndim; i++) {
        if (from.dim[i] == 1) continue;
        while (into.dim[lead] == 1) lead++;
        if (axes->v[i] != lead) return false;
        lead++;
    }
    return true;
}

/* An operand whose root is a node of the kernel: `to` is the shape of the reader. */
static bool check_inner(const Check *c, const FuseChain *chain, const FuseShape *to) {
    int root = fuse_node_index(c->f, chain->root);
    FuseShape made;
    if (!fuse_form_shape(c->f, c->form, root, &made)) return false;
    if (fuse_chain_is_flat(chain)) return fuse_shape_equal(&made, to);
    return fuse_shape_equal(&made, &c->form->kept) && is_row_broadcast(c, chain, to);
}

/* Movement that an anchor's epilogue may see operands through. */
static bool anchor_reads(const Check *c, Op op) {
    bool gather = c->f->g->node[c->form->main]->op == OP_gather;
    return op == OP_broadcast || op == OP_reshape || op == OP_cast || (gather && op == OP_slice);
}

/* An operand from memory or from a source, whose value has shape `from`, read in shape `to`. */
static bool check_outer(const Check *c, const FuseChain *chain, const FuseShape *from,
                        const FuseShape *to) {
    double value;
    if (fuse_chain_is_flat(chain) || fuse_chain_is_const(chain, &value)) return true;
    if (c->form->kind == FORM_anchor)
        for (int i = 0; i < chain->n; i++)
            if (!anchor_reads(c, chain->inlined[i]->op)) return false;
    return fuse_reshape_is_simple(from, to);
}

/* Operand v read in shape `to`. */
static bool check_operand(const Check *c, Val v, const FuseShape *to) {
    FuseChain chain = fuse_chain(c->f, v);
    int root = chain.root.id != 0 ? fuse_node_index(c->f, chain.root) : -1;
    if (root >= 0 && contains(c, root)) return check_inner(c, &chain, to);
    FuseShape from = fuse_shape(c->f, v);
    return check_outer(c, &chain, &from, to);
}

/* Anchors and movement read memory only, in the shape that is written. */
static bool check_reads_memory(const Check *c, const Node *n) {
    for (int k = 0; k < n->nin; k++) {
        FuseChain chain = fuse_chain(c->f, n->in[k]);
        int root = chain.root.id != 0 ? fuse_node_index(c->f, chain.root) : -1;
        if (root >= 0 && contains(c, root)) return false;
    }
    return true;
}

static bool check_node(const Check *c, int index) {
    const Node *n = c->f->g->node[index];
    FuseClass class = c->f->class[index];
    if (class == FUSE_anchor) return check_reads_memory(c, n);
    if (class == FUSE_reduce)
        return same_reduction(c, index) && check_operand(c, n->in[0], &c->form->domain);
    FuseShape to;
    if (!fuse_form_shape(c->f, c->form, index, &to)) return false;
    OpKind kind = op_kind(n->op);
    if (kind != KIND_elementwise && c->form->kind != FORM_map) return false;
    if ((kind == KIND_movement && n->op != OP_copy) || n->op == OP_iota) {
        FuseShape own = fuse_shape(c->f, n->out);
        return fuse_shape_equal(&own, &to) && check_reads_memory(c, n);
    }
    for (int k = 0; k < n->nin; k++)
        if (!check_operand(c, n->in[k], &to)) return false;
    return true;
}

static bool is_read_outside(const Check *c, int index) {
    const Node *n = c->f->g->node[index];
    for (int r = 0; r < n->nout; r++) {
        Val v = node_out(n, r);
        if (c->f->kept[v.id]) return true;
        for (uint32_t k = 0; k < c->f->users[v.id].n; k++)
            if (!contains(c, c->f->users[v.id].data[k])) return true;
    }
    return false;
}

/* A kernel of column sums that may also store what it adds up: CUDA's, where the innermost axis is
 * kept and every element is met once. */
static bool columns_store(const Check *c) {
    const FuseForm *form = c->form;
    return c->f->g->mod->target == TARGET_cuda && form->kept.ndim > 0 &&
           form->axes[form->naxes - 1] != form->domain.ndim - 1;
}

bool fuse_form(const Fuse *f, const int *node, int n, FuseForm *form) {
    Check c = {.f = f, .node = node, .n = n, .form = form};
    if (!set_form(&c)) return false;
    if (form->moves) return fuse_attention_allows(f, node, n, form->main);
    for (int i = 0; i < n; i++) {
        if (!check_node(&c, node[i])) return false;
        FuseShape s;
        if (form->kind != FORM_columns || f->class[node[i]] == FUSE_reduce || columns_store(&c))
            continue;
        if (fuse_form_shape(f, form, node[i], &s) && is_domain(&c, &s) &&
            is_read_outside(&c, node[i]))
            return false;
    }
    return fuse_target_allows(f, node, n, form);
}
