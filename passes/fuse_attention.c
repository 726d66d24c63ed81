/* fuse_attention.c - attention takes in the movement around it.
 *
 * Its kernels go where their operands' elements lie, so slices, transposes and reshapes of what is
 * in memory are read in place; a result that is only transposed, reshaped or put beside others is
 * written in place. Codegen finds the places again with the same functions (ir/view.h).
 *
 * Storage has one dtype: q, k, v, out and their gradients all lie in memory in f32, or all in bf16
 * with casts next to the operation. The two are kernels of other arithmetic, so which of them runs
 * is a fact of the operation and these casts, whoever else reads the same values: a forward pass
 * that recompute = layer runs again has the same bits.
 */
#include "ir/module.h"
#include "ir/view.h"
#include "passes/fuse.h"

static bool is_attention(const Node *n) { return op_kind(n->op) == KIND_attention; }

/* lse, as result of attention or operand of its gradient, is f32 [B, H, T] and stays as it is. */
static bool is_plain(const Graph *g, Val v) { return val_info(g, v)->ndim == 3; }

static bool is_contiguous(const View *view) {
    return view->dim[view->ndim - 1] == 1 || view->stride[view->ndim - 1] == 1;
}

bool fuse_is_rounding(const Graph *g, const Node *n) {
    return n->op == OP_cast && val_info(g, n->in[0])->dtype == DT_f32 &&
           val_info(g, n->out)->dtype == DT_bf16;
}

bool fuse_attention_rounds(const Graph *g, const Node *n) {
    const Node *made_by = fuse_is_rounding(g, n) ? val_node(g, n->in[0]) : NULL;
    return made_by != NULL && is_attention(made_by);
}

/* ---- one layout of a result ------------------------------------------------------------- */

/* A transpose that reads attention's result v, perhaps rounded, among nodes before `end`; NULL when
 * there is none. */
static const Node *find_transpose(const Graph *g, Val v, int end) {
    const Node *made_by = val_node(g, v);
    Val out = v;
    if (made_by != NULL && fuse_is_rounding(g, made_by)) {
        out = made_by->in[0];
        made_by = val_node(g, out);
    }
    if (made_by == NULL || made_by->op != OP_attention || made_by->out.id != out.id) return NULL;
    for (int i = 0; i < end; i++)
        if (g->node[i]->op == OP_transpose && g->node[i]->in[0].id == v.id) return g->node[i];
    return NULL;
}

/* Its inverse on the new graph's value v, for node n, which reads f32. */
static Val transpose_back(Graph *to, const Node *n, const Node *transpose, Val v) {
    Builder b = {.g = to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Attr *perm = node_attr(transpose, ATTR_perm);
    int64_t inverse[NDIM_MAX];
    for (int k = 0; k < perm->n; k++) inverse[perm->v[k]] = k;
    return build_cast(&b, build_transpose(&b, v, inverse), DT_f32);
}

Graph *fuse_attention_results(const Graph *g, Arena *scratch) {
    enum { OUT = 3 };
    Graph *to = graph_new(g->mod, g->name);
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Val out = n->op == OP_attention_grad ? n->in[OUT] : (Val){0};
        const Node *wide = out.id != 0 ? val_node(g, out) : NULL;
        Val narrow = wide != NULL && fuse_is_widening(g, wide) ? wide->in[0] : out;
        const Node *moved = out.id != 0 ? find_transpose(g, narrow, i) : NULL;
        Val as_it_was = map.to[out.id];
        if (moved != NULL) map.to[out.id] = transpose_back(to, n, moved, map.to[moved->out.id]);
        graph_copy_node(to, g, n, &map, n->body);
        if (moved != NULL) map.to[out.id] = as_it_was;
    }
    graph_copy_outputs(to, g, &map);
    return to;
}

/* ---- operands --------------------------------------------------------------------------- */

bool fuse_attention_reads(const Fuse *f, Val v) {
    FuseChain c = fuse_chain(f, v);
    View view;
    if (c.root.id == 0 || is_plain(f->g, v)) return fuse_chain_is_view(&c);
    return view_read(f->g, v, c.root, &view) && is_contiguous(&view);
}

/* The uppermost inline node of a chain that is no reshape becomes a kernel. */
static void store_operand(Fuse *f, Val v) {
    FuseChain c = fuse_chain(f, v);
    for (int i = 0; i < c.n; i++)
        if (c.inlined[i]->op != OP_reshape) {
            f->class[fuse_node_index(f, c.inlined[i]->out)] = FUSE_member;
            return;
        }
}

static Dtype stored_dtype(const Fuse *f, Val v) {
    Val root = fuse_chain(f, v).root;
    return val_info(f->g, root.id != 0 ? root : v)->dtype;
}

/* Each value of rank 4 that n makes is rounded by its one reader, in the same phase. */
static bool results_are_rounded(const Graph *g, const Node *n) {
    for (int r = 0; r < n->nout; r++) {
        Val v = node_out(n, r);
        int readers = 0, rounded = 0;
        if (is_plain(g, v)) continue;
        for (int i = 0; i < g->nnode; i++)
            for (int k = 0; k < g->node[i]->nin; k++) {
                if (g->node[i]->in[k].id != v.id) continue;
                readers++;
                rounded += fuse_is_rounding(g, g->node[i]) && g->node[i]->phase == n->phase;
            }
        for (int i = 0; i < g->nout; i++) readers += g->out[i].id == v.id;
        if (readers > 1 || rounded < readers) return false;
    }
    return true;
}

bool fuse_attention_is_half(const Graph *g, const Node *n) {
    if (g->mod->target != TARGET_cuda || !is_attention(n)) return false;
    for (int k = 0; k < n->nin; k++) {
        const Node *made_by = val_node(g, n->in[k]);
        if (is_plain(g, n->in[k])) continue;
        if (made_by == NULL || !fuse_is_widening(g, made_by)) return false;
    }
    return results_are_rounded(g, n);
}

void fuse_attention_operands(Fuse *f) {
    for (int i = 0; i < f->g->nnode; i++) {
        const Node *n = f->g->node[i];
        if (!is_attention(n)) continue;
        bool half = fuse_attention_is_half(f->g, n);
        for (int k = 0; k < n->nin; k++) {
            Val v = n->in[k];
            bool reads = fuse_attention_reads(f, v);
            if (half && !is_plain(f->g, v)) {
                if (!reads) store_operand(f, val_node(f->g, v)->in[0]);
            } else if (!reads || stored_dtype(f, v) != val_info(f->g, v)->dtype) {
                store_operand(f, v);
            }
        }
    }
}

/* ---- results ---------------------------------------------------------------------------- */

typedef struct Layout {
    const Fuse *f;
    const int *node;
    int n;
    const Node *anchor;
} Layout;

static bool is_inside(const Layout *l, int index) {
    for (int i = 0; i < l->n; i++)
        if (l->node[i] == index) return true;
    return false;
}

/* How often nodes of the kernel read v. */
static int count_inside(const Layout *l, Val v) {
    int count = 0;
    for (int i = 0; i < l->n; i++) {
        const Node *n = l->f->g->node[l->node[i]];
        for (int k = 0; n != l->anchor && k < n->nin; k++)
            count += fuse_chain(l->f, n->in[k]).root.id == v.id;
    }
    return count;
}

static bool is_outside(const Layout *l, Val v) {
    const IntVec *users = &l->f->users[v.id];
    for (uint32_t i = 0; i < users->n; i++)
        if (!is_inside(l, users->data[i])) return true;
    return l->f->kept[v.id];
}

/* The node only says where elements of the kernel's own values go. */
static bool only_moves(const Layout *l, const Node *n) {
    const Graph *g = l->f->g;
    bool half = stored_dtype(l->f, l->anchor->in[0]) == DT_bf16;
    if (n->op != OP_transpose && n->op != OP_concat && !(half && fuse_is_rounding(g, n)))
        return false;
    for (int k = 0; k < n->nin; k++) {
        FuseChain c = fuse_chain(l->f, n->in[k]);
        int root = c.root.id != 0 ? fuse_node_index(l->f, c.root) : -1;
        if (root < 0 || !is_inside(l, root)) return false;
        for (int i = 0; i < c.n; i++)
            if (c.inlined[i]->op != OP_reshape && c.inlined[i]->op != OP_transpose) return false;
    }
    return true;
}

/* Result v of the anchor goes to exactly one place in memory: as it is, or moved. */
static bool has_one_place(const Layout *l, Val v) {
    const Graph *g = l->f->g;
    for (int i = 0; i < l->n; i++) {
        Val out = g->node[l->node[i]]->out;
        View view;
        if (g->node[l->node[i]] == l->anchor || !is_outside(l, out)) continue;
        if (view_written(g, v, out, &view)) return is_contiguous(&view) && !is_plain(g, v);
    }
    return count_inside(l, v) == 0;
}

static bool check_value(const Layout *l, Val v) {
    int inside = count_inside(l, v);
    return inside == 0 || (inside == 1 && !is_outside(l, v));
}

bool fuse_attention_allows(const Fuse *f, const int *node, int n, int anchor) {
    Layout l = {.f = f, .node = node, .n = n, .anchor = f->g->node[anchor]};
    for (int i = 0; i < n; i++) {
        const Node *at = f->g->node[node[i]];
        if (at == l.anchor || f->inside[node[i]] == anchor) continue;
        if (!only_moves(&l, at) || !check_value(&l, at->out)) return false;
    }
    for (int r = 0; r < l.anchor->nout; r++) {
        Val v = node_out(l.anchor, r);
        if (!check_value(&l, v) || !has_one_place(&l, v)) return false;
    }
    return true;
}
