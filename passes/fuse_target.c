/* fuse_target.c - what a target's library can do after a matrix product.
 *
 * On CUDA large products are calls of a library (ir/split.h says which). It can add an
 * old value of the result's shape, then a bias along the last axis, then take the positive part,
 * then round to bf16: exactly what separate kernels would compute. Everything else stays a kernel
 * of its own. Gelu does not belong here: the library's has other bits than ours.
 *
 * Operands in bf16 are read as they are, both or none; bias and old value have the dtype of the
 * result. A product of f32 has other bits, so this does not depend on who else reads the operands.
 */
#include "ir/module.h"
#include "ir/split.h"
#include "passes/fuse.h"

#include <string.h>

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

/* ---- bf16 read as it is ----------------------------------------------------------------- */

static bool reads_half(const Graph *g, const Node *n, int i) {
    if (op_kind(n->op) == KIND_attention)
        return is_widened(g, n->in[i]) && fuse_attention_is_half(g, n);
    return fuse_target_widens(g, n, i);
}

/* By value: a widening that some node reads as bf16, and others, who may need it in memory. */
static bool *find_shared(const Graph *g, Arena *scratch, bool *any) {
    bool *half = ARENA_ARRAY(scratch, bool, g->nval), *wide = ARENA_ARRAY(scratch, bool, g->nval);
    for (int k = 0; k < g->nout; k++) wide[g->out[k].id] = true;
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            Val v = g->node[i]->in[k];
            *(is_widened(g, v) && reads_half(g, g->node[i], k) ? &half[v.id] : &wide[v.id]) = true;
        }
    for (uint32_t v = 1; v < g->nval; v++) *any |= half[v] &= wide[v];
    return half;
}

const Graph *fuse_target_apart(const Graph *g, Arena *scratch) {
    enum { OPERANDS_MAX = 6 /* attention_grad */ };
    bool any = false;
    const bool *shared = find_shared(g, scratch, &any);
    if (!any) return g;
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Builder b = {.g = to, .phase = n->phase, .span = n->span, .scope = n->scope};
        Val was[OPERANDS_MAX] = {{0}};
        for (int k = 0; k < n->nin && k < OPERANDS_MAX; k++) {
            Val v = n->in[k], half = {0};
            was[k] = map.to[v.id];
            if (shared[v.id] && reads_half(g, n, k)) half = map.to[val_node(g, v)->in[0].id];
            if (half.id != 0) map.to[v.id] = build_cast(&b, half, DT_f32);
        }
        graph_copy_node(to, g, n, &map, n->body);
        for (int k = OPERANDS_MAX - 1; k >= 0; k--)
            if (k < n->nin) map.to[n->in[k].id] = was[k];
    }
    graph_copy_outputs(to, g, &map);
    return to;
}

/* ---- epilogues of products -------------------------------------------------------------- */

enum { EPILOGUE_MAX = 8 };

typedef struct Epilogue {
    const Fuse *f;
    int node[EPILOGUE_MAX]; /* of the kernel, ascending; the product is the first */
    int n;
    Dtype dtype; /* of the result */
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

/* A vector along the product's last axis. */
static bool is_bias(const Epilogue *e, Val v) {
    FuseChain c = fuse_chain(e->f, v);
    FuseShape out = fuse_shape(e->f, e->f->g->node[e->node[0]]->out);
    int widened = c.n > 0 && c.inlined[0]->op == OP_cast;
    if (c.root.id == 0 || c.n != 1 + widened || c.inlined[widened]->op != OP_broadcast ||
        out.ndim != 2 || dtype_of(e, c.root) != e->dtype)
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
    return c.root.id != 0 && fuse_chain_is_flat(&c) && dtype_of(e, c.root) == e->dtype &&
           (made_by < 0 || !is_inside(e, made_by));
}

/* What a node of the epilogue does; each may come once, in this order. */
typedef enum Stage { STAGE_none, STAGE_old, STAGE_bias, STAGE_relu, STAGE_round } Stage;

static Stage stage_of(const Epilogue *e, const Node *n, Val before) {
    if (n->op == OP_add) {
        int other = reads(e, n, 0, before) ? 1 : 0;
        if (!reads(e, n, 1 - other, before) || reads(e, n, other, before)) return STAGE_none;
        if (is_bias(e, n->in[other])) return STAGE_bias;
        return is_old(e, n->in[other]) ? STAGE_old : STAGE_none;
    }
    if (!reads(e, n, 0, before)) return STAGE_none;
    if (n->op == OP_relu) return STAGE_relu;
    bool rounds = n->op == OP_cast && dtype_of(e, n->out) == DT_bf16 && is_half_product(e);
    return rounds ? STAGE_round : STAGE_none;
}

static bool check_stages(const Epilogue *e) {
    Stage last = STAGE_none;
    for (int i = 1; i < e->n; i++) {
        const Node *n = e->f->g->node[e->node[i]];
        Val before = e->f->g->node[e->node[i - 1]]->out;
        Stage stage = stage_of(e, n, before);
        if (stage <= last || is_read_outside(e, before)) return false;
        last = stage;
    }
    return true;
}

/* The epilogue with the nodes that will join it: each the only reader of the one before. */
static Epilogue followed(const Epilogue *e) {
    Epilogue all = *e;
    while (all.n < EPILOGUE_MAX) {
        int last = all.node[all.n - 1];
        Val v = e->f->g->node[last]->out;
        const IntVec *users = &e->f->users[v.id];
        if (e->f->kept[v.id] || users->n != 1 || e->f->phase[users->data[0]] != e->f->phase[last])
            break;
        all.node[all.n++] = users->data[0];
        if (e->f->g->node[users->data[0]]->op == OP_cast) break;
    }
    all.dtype = dtype_of(e, e->f->g->node[all.node[all.n - 1]]->out);
    return all;
}

/* Nodes join one after another: what a bias must be is known from where they will end. */
static bool check_epilogue(const Epilogue *e) {
    Epilogue all = followed(e);
    return (all.dtype == DT_bf16 && check_stages(&all)) || check_stages(e);
}

bool fuse_target_allows(const Fuse *f, const int *node, int n, const FuseForm *form) {
    const Graph *g = f->g;
    const Node *main = g->node[form->main];
    if (g->mod->target != TARGET_cuda || form->kind != FORM_anchor || main->op != OP_matmul)
        return true;
    if (!split_cuda_library(g, main)) return true;
    if (n > EPILOGUE_MAX || node[0] != form->main) return false;
    Epilogue e = {.f = f, .n = n, .dtype = val_info(g, g->node[node[n - 1]]->out)->dtype};
    memcpy(e.node, node, (size_t)n * sizeof *node);
    return check_epilogue(&e);
}
