/* fuse.c - primitives into kernels.
 *
 * Reads   every graph, repeats' bodies included; PassOptions.no_fuse.
 * Writes  graphs of kernel nodes, repeats, and reshapes that are views.
 * Keeps   every operation and the order of its arithmetic: a fused kernel computes each value with
 *         the same operations on the same operands as a kernel of its own would, so --no-fuse gives
 *         the same bits.
 * Why     what stays in registers costs no memory traffic.
 *
 * Greedy, in program order: each node joins the kernels of its operands, latest first, as long as
 * the union is one of the forms that code generation knows (fuse_form.c), runs in one phase, has no
 * more than FUSE_NODES_MAX nodes and FUSE_INPUTS_MAX operands, and does not have to wait for a
 * kernel that waits for it. Column reductions over the same axes of the same operand also join each
 * other, and so do reductions of small tensors to scalars, and arithmetic on scalars; last,
 * elementwise kernels that read the same large tensor. Nothing
 * expensive is computed twice.
 */
#include "passes/fuse.h"
#include "ir/module.h"

#include <string.h>

/* ---- classes ---------------------------------------------------------------------------- */

static FuseClass class_of(const Graph *g, const Node *n) {
    if (fuse_is_widening(g, n)) return FUSE_inline;
    if (n->op == OP_rope) return FUSE_member;
    switch (op_kind(n->op)) {
    case KIND_elementwise:
    case KIND_random: return FUSE_member;
    case KIND_reduce: return n->op == OP_argmax ? FUSE_anchor : FUSE_reduce;
    case KIND_source: return FUSE_inline;
    case KIND_movement: return n->op == OP_concat || n->op == OP_copy ? FUSE_member : FUSE_inline;
    case KIND_region: return FUSE_repeat;
    default: return FUSE_anchor;
    }
}

/* The in-body reshape of what other movement made can only split or merge axes. */
static bool is_hard_reshape(const Fuse *f, const Node *n) {
    const Node *below = val_node(f->g, n->in[0]);
    if (n->op != OP_reshape || below == NULL || below->op == OP_const) return false;
    if (below->op == OP_reshape || f->class[fuse_node_index(f, n->in[0])] != FUSE_inline)
        return false;
    FuseShape from = fuse_shape(f, n->in[0]), to = fuse_shape(f, n->out);
    return !fuse_reshape_is_simple(&from, &to);
}

/* Anchors that read an operand through movement: attention, and what put puts. */
static bool moves_operand(const Node *n, int k) {
    return op_kind(n->op) == KIND_attention || (n->op == OP_put && k == 1);
}

/* Inline nodes whose value must be in memory become members; a reshape passes this on, and so does
 * the widening of what an anchor reads in bf16. Long chains are cut. */
static void classify(Fuse *f) {
    const Graph *g = f->g;
    bool *stored = ARENA_ARRAY(f->scratch, bool, g->nval);
    int *length = ARENA_ARRAY(f->scratch, int, g->nval); /* of the chain above a value */
    for (int i = 0; i < g->nnode; i++) f->class[i] = class_of(g, g->node[i]);
    for (int k = 0; k < g->nout; k++) stored[g->out[k].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        bool view = n->op == OP_reshape;
        if (f->class[i] == FUSE_inline && !view &&
            (stored[n->out.id] || length[n->out.id] >= FUSE_CHAIN_MAX - 1))
            f->class[i] = FUSE_member;
        for (int k = 0; k < n->nin; k++) {
            uint32_t in = n->in[k].id;
            if (f->class[i] == FUSE_anchor && fuse_target_widens(g, n, k))
                stored[val_node(g, n->in[k])->in[0].id] = true;
            else if ((f->class[i] == FUSE_anchor && !moves_operand(n, k)) ||
                     f->class[i] == FUSE_repeat || (view && stored[n->out.id]) ||
                     is_hard_reshape(f, n))
                stored[in] = true;
            int above = f->class[i] == FUSE_inline ? length[n->out.id] + 1 : 0;
            if (above > length[in]) length[in] = above;
        }
    }
}

/* Which grouped nodes read each grouped value, and which values must be results. */
static void find_users(Fuse *f) {
    const Graph *g = f->g;
    for (int i = 0; i < g->nnode; i++) {
        if (f->class[i] == FUSE_inline) continue;
        for (int k = 0; k < g->node[i]->nin; k++) {
            FuseChain c = fuse_chain(f, g->node[i]->in[k]);
            if (c.root.id != 0) vec_push(f->scratch, &f->users[c.root.id], i);
        }
    }
    for (int k = 0; k < g->nout; k++) f->kept[fuse_chain(f, g->out[k]).root.id] = true;
}

/* ---- groups ----------------------------------------------------------------------------- */

static void make_groups(Fuse *f) {
    const Graph *g = f->g;
    f->groups = ARENA_ARRAY(f->scratch, FuseGroup, g->nnode);
    for (int i = 0; i < g->nnode; i++) {
        f->group[i] = f->class[i] == FUSE_inline ? -1 : i;
        f->groups[i] = (FuseGroup){.n = 1, .phase = f->phase[i], .dead = f->group[i] < 0};
        f->groups[i].node = ARENA_ARRAY(f->scratch, int, 1);
        f->groups[i].node[0] = i;
    }
}

/* Whether `to` waits for `from` through a third group. Groups beyond node `last` are single nodes
 * that nothing here waits for. */
static bool reaches(Fuse *f, int from, int to, int last) {
    VEC(int) open = {0};
    f->stamp_now++;
    vec_push(f->scratch, &open, from);
    while (open.n > 0) {
        int at = open.data[--open.n];
        const FuseGroup *group = &f->groups[at];
        for (int i = 0; i < group->n; i++) {
            const Node *n = f->g->node[group->node[i]];
            for (int r = 0; r < n->nout; r++) {
                const IntVec *users = &f->users[node_out(n, r).id];
                for (uint32_t k = 0; k < users->n; k++) {
                    int next = f->group[users->data[k]];
                    if (next == to && at != from) return true;
                    if (next == to || next == from || f->stamp[next] == f->stamp_now ||
                        f->groups[next].node[0] > last)
                        continue;
                    f->stamp[next] = f->stamp_now;
                    vec_push(f->scratch, &open, next);
                }
            }
        }
    }
    return false;
}

static bool group_has(const Fuse *f, const FuseGroup *group, FuseClass class) {
    for (int i = 0; i < group->n; i++)
        if (f->class[group->node[i]] == class) return true;
    return false;
}

static int *merged_nodes(Fuse *f, const FuseGroup *a, const FuseGroup *b) {
    int *node = ARENA_ARRAY(f->scratch, int, a->n + b->n);
    int i = 0, k = 0;
    while (i < a->n || k < b->n)
        if (k == b->n || (i < a->n && a->node[i] < b->node[k])) {
            node[i + k] = a->node[i];
            i++;
        } else {
            node[i + k] = b->node[k];
            k++;
        }
    return node;
}

/* Operands from outside and results of a set of nodes stay within the limits. */
static bool fits(const Fuse *f, const int *node, int n) {
    uint32_t roots[FUSE_INPUTS_MAX];
    int nroot = 0, nresult = 0;
    for (int i = 0; i < n; i++) {
        const Node *at = f->g->node[node[i]];
        for (int k = 0; k < at->nin; k++) {
            uint32_t root = fuse_chain(f, at->in[k]).root.id;
            bool known = root == 0;
            for (int r = 0; r < nroot && !known; r++) known = roots[r] == root;
            int made_by = root == 0 ? -1 : fuse_node_index(f, (Val){root});
            for (int r = 0; r < n && !known && made_by >= 0; r++) known = node[r] == made_by;
            if (known) continue;
            if (nroot == FUSE_INPUTS_MAX) return false;
            roots[nroot++] = root;
        }
        for (int r = 0; r < at->nout; r++) {
            Val v = node_out(at, r);
            bool outside = f->kept[v.id];
            for (uint32_t k = 0; k < f->users[v.id].n && !outside; k++) {
                int user = f->users[v.id].data[k];
                outside = true;
                for (int q = 0; q < n && outside; q++) outside = node[q] != user;
            }
            nresult += outside;
        }
    }
    return nresult <= FUSE_RESULTS_MAX;
}

/* Merges group b into a if they can be one kernel; `now` is the node being placed. */
static bool try_merge(Fuse *f, int a, int b, int now) {
    FuseGroup *into = &f->groups[a], *from = &f->groups[b];
    if (a == b || into->phase != from->phase || into->n + from->n > FUSE_NODES_MAX) return false;
    if (group_has(f, into, FUSE_repeat) || group_has(f, from, FUSE_repeat)) return false;
    int *node = merged_nodes(f, into, from);
    int n = into->n + from->n;
    FuseForm form;
    if (!fuse_form(f, node, n, &form) || !fits(f, node, n)) return false;
    if (reaches(f, a, b, now) || reaches(f, b, a, now)) return false;
    for (int i = 0; i < from->n; i++) f->group[from->node[i]] = a;
    from->dead = true;
    into->node = node;
    into->n = n;
    return true;
}

static int last_node(const FuseGroup *group) { return group->node[group->n - 1]; }

/* The operands' groups, latest first, each once. */
static int find_producers(const Fuse *f, int index, int *found, int max) {
    const Node *n = f->g->node[index];
    int count = 0;
    for (int k = 0; k < n->nin; k++) {
        FuseChain c = fuse_chain(f, n->in[k]);
        int made_by = c.root.id != 0 ? fuse_node_index(f, c.root) : -1;
        if (made_by < 0 || f->group[made_by] < 0) continue;
        int group = f->group[made_by], at = count;
        bool known = group == f->group[index];
        for (int i = 0; i < count && !known; i++) known = found[i] == group;
        if (known || count == max) continue;
        while (at > 0 && last_node(&f->groups[found[at - 1]]) < last_node(&f->groups[group])) {
            found[at] = found[at - 1];
            at--;
        }
        found[at] = group;
        count++;
    }
    return count;
}

static bool read_by_both_only(const Fuse *f, const Node *n, int a, int b) {
    for (int r = 0; r < n->nout; r++) {
        Val v = node_out(n, r);
        if (f->kept[v.id]) return false;
        for (uint32_t k = 0; k < f->users[v.id].n; k++) {
            int user = f->group[f->users[v.id].data[k]];
            if (user != a && user != b) return false;
        }
    }
    return true;
}

enum { FLOW_DEPTH_MAX = 12 };

static bool is_row_reduction(const Fuse *f, int index) {
    const Node *n = f->g->node[index];
    const Attr *axes = node_attr(n, ATTR_axes);
    int ndim = val_info(f->g, n->in[0])->ndim;
    return f->class[index] == FUSE_reduce && axes->n < ndim && axes->v[0] == ndim - axes->n;
}

/* Elementwise work leads from this node to a reduction of rows in the same phase. */
static bool flows_into_rows(const Fuse *f, int index, int depth) {
    const IntVec *users = &f->users[f->g->node[index]->out.id];
    for (uint32_t k = 0; k < users->n && depth < FLOW_DEPTH_MAX; k++) {
        int user = users->data[k];
        if (f->phase[user] != f->phase[index]) continue;
        if (is_row_reduction(f, user)) return true;
        if (op_kind(f->g->node[user]->op) == KIND_elementwise &&
            flows_into_rows(f, user, depth + 1))
            return true;
    }
    return false;
}

/* The node reads something that group a must write anyway. */
static bool reads_result(const Fuse *f, int index, int a) {
    const Node *n = f->g->node[index];
    for (int k = 0; k < n->nin; k++) {
        Val root = fuse_chain(f, n->in[k]).root;
        int made_by = root.id != 0 ? fuse_node_index(f, root) : -1;
        if (made_by < 0 || f->group[made_by] != a) continue;
        if (f->kept[root.id]) return true;
        for (uint32_t u = 0; u < f->users[root.id].n; u++) {
            int user = f->users[root.id].data[u];
            if (user != index && f->group[user] != a) return true;
        }
    }
    return false;
}

/* An anchor is busy enough: besides the node being placed it takes in only what nobody else needs,
 * and it leaves to a reduction of rows what that can compute from a result written anyway. */
static bool wants(const Fuse *f, int a, int b, int index) {
    bool anchor = group_has(f, &f->groups[a], FUSE_anchor);
    if (anchor == group_has(f, &f->groups[b], FUSE_anchor)) return true;
    const FuseGroup *other = &f->groups[anchor ? b : a];
    if (reads_result(f, index, anchor ? a : b) && flows_into_rows(f, index, 0)) return false;
    for (int i = 0; i < other->n; i++)
        if (other->node[i] != index && !read_by_both_only(f, f->g->node[other->node[i]], a, b))
            return false;
    return true;
}

/* A bias's gradient adds up columns of what an elementwise kernel for the input's gradient makes:
 * it goes along, and so runs with that (phase I), under any schedule. */
static void join_gradient(Fuse *f, int index) {
    int mine = f->group[index];
    FuseChain c = fuse_chain(f, f->g->node[index]->in[0]);
    int made_by = c.root.id != 0 && fuse_chain_is_flat(&c) ? fuse_node_index(f, c.root) : -1;
    FuseForm form;
    if (f->g->mod->target != TARGET_cuda || f->phase[index] != PHASE_W || made_by < 0) return;
    if (f->phase[made_by] != PHASE_I || f->group[made_by] < 0 || f->groups[mine].n != 1) return;
    const FuseGroup *maker = &f->groups[f->group[made_by]];
    if (!fuse_form(f, maker->node, maker->n, &form) || form.kind != FORM_map) return;
    f->phase[index] = f->groups[mine].phase = PHASE_I;
    if (!try_merge(f, f->group[made_by], mine, index))
        f->phase[index] = f->groups[mine].phase = PHASE_W;
}

static void join_producers(Fuse *f, int index) {
    if (f->class[index] == FUSE_reduce) join_gradient(f, index);
    int producer[FUSE_INPUTS_MAX];
    int n = find_producers(f, index, producer, FUSE_INPUTS_MAX);
    for (int i = 0; i < n; i++)
        if (!f->groups[producer[i]].dead && wants(f, f->group[index], producer[i], index))
            try_merge(f, producer[i], f->group[index], index);
}

enum { SMALL_ELEMS = 65536 };

static bool share_operand(const Fuse *f, int a, int b) {
    const FuseGroup *ga = &f->groups[a];
    for (int i = 0; i < ga->n; i++)
        for (int k = 0; k < f->g->node[ga->node[i]]->nin; k++) {
            Val root = fuse_chain(f, f->g->node[ga->node[i]]->in[k]).root;
            if (root.id == 0) continue;
            const IntVec *users = &f->users[root.id];
            for (uint32_t u = 0; u < users->n; u++)
                if (f->group[users->data[u]] == b) return true;
        }
    return false;
}

/* Column reductions next to each other: one pass over what they share. */
static void join_siblings(Fuse *f, int index) {
    FuseForm form, other;
    int mine = f->group[index];
    if (!fuse_form(f, f->groups[mine].node, f->groups[mine].n, &form)) return;
    if (form.kind != FORM_columns) return;
    bool small = form.kept.ndim == 0 && fuse_shape_elems(&form.domain) <= SMALL_ELEMS;
    for (int i = 0; i < index; i++) {
        if (f->class[i] != FUSE_reduce) continue;
        int b = f->group[i];
        mine = f->group[index];
        if (b == mine || f->groups[b].phase != f->groups[mine].phase) continue;
        if (!fuse_form(f, f->groups[b].node, f->groups[b].n, &other)) continue;
        if (other.kind != FORM_columns || !fuse_shape_equal(&other.domain, &form.domain)) continue;
        if (small || share_operand(f, mine, b)) try_merge(f, b, mine, index);
    }
}

/* Group b reads value v, or with `flat` anything of that tensor. */
static bool reads_too(const Fuse *f, Val v, Val root, bool flat, int b) {
    const IntVec *users = &f->users[root.id];
    for (uint32_t u = 0; u < users->n; u++) {
        const Node *n = f->g->node[users->data[u]];
        if (f->group[users->data[u]] != b) continue;
        for (int k = 0; k < n->nin; k++)
            if (flat || n->in[k].id == v.id) return true;
    }
    return false;
}

/* Both groups read a large tensor from memory, the first one in its own order, or the same view. */
static bool share_memory(const Fuse *f, int a, int b) {
    const FuseGroup *ga = &f->groups[a];
    for (int i = 0; i < ga->n; i++)
        for (int k = 0; k < f->g->node[ga->node[i]]->nin; k++) {
            FuseChain c = fuse_chain(f, f->g->node[ga->node[i]]->in[k]);
            Val v = f->g->node[ga->node[i]]->in[k];
            FuseShape shape = fuse_shape(f, v);
            int made_by = c.root.id != 0 ? fuse_node_index(f, c.root) : -1;
            if (c.root.id == 0 || fuse_shape_elems(&shape) <= SMALL_ELEMS) continue;
            if (made_by >= 0 && (f->group[made_by] == a || f->group[made_by] == b)) continue;
            if (reads_too(f, v, c.root, fuse_chain_is_flat(&c), b)) return true;
        }
    return false;
}

/* Elementwise kernels side by side over the same tensors: one pass, when everything else is
 * settled. */
static void join_maps(Fuse *f) {
    FuseForm form, other;
    int n = f->g->nnode;
    for (int a = 0; a < n; a++) {
        if (f->groups[a].dead || !fuse_form(f, f->groups[a].node, f->groups[a].n, &form)) continue;
        if (form.kind != FORM_map) continue;
        for (int b = a + 1; b < n; b++) {
            const FuseGroup *group = &f->groups[b];
            if (group->dead || group->phase != f->groups[a].phase || !share_memory(f, a, b))
                continue;
            if (fuse_form(f, group->node, group->n, &other) && other.kind == FORM_map &&
                fuse_shape_elems(&other.domain) == fuse_shape_elems(&form.domain))
                try_merge(f, a, b, n - 1);
        }
    }
}

/* Scalars that nobody waits for yet: one kernel instead of many tiny ones. */
static void join_scalars(Fuse *f, int index) {
    FuseShape own = fuse_shape(f, f->g->node[index]->out);
    if (own.ndim > 0 || f->class[index] == FUSE_anchor) return;
    for (int i = 0; i < index; i++) {
        if (f->group[i] < 0 || f->group[i] == f->group[index]) continue;
        FuseShape other = fuse_shape(f, f->g->node[i]->out);
        if (other.ndim == 0) try_merge(f, f->group[i], f->group[index], index);
    }
}

/* Ropes that attention takes in, with it. */
static void join_ropes(Fuse *f) {
    for (int i = 0; i < f->g->nnode; i++) {
        if (f->inside[i] < 0) continue;
        int a = f->group[f->inside[i]], b = f->group[i];
        FuseGroup *into = &f->groups[a], *from = &f->groups[b];
        into->node = merged_nodes(f, into, from);
        into->n += from->n;
        from->dead = true;
        f->group[i] = a;
    }
}

/* ---- the pass --------------------------------------------------------------------------- */

/* What is known of the nodes before any of them are joined. */
static Fuse fuse_start(const Graph *g, PassContext *ctx) {
    Arena *a = ctx->scratch;
    g = fuse_target_apart(g, a);
    Fuse f = {.g = g, .scratch = a};
    f.class = ARENA_ARRAY(a, FuseClass, g->nnode);
    f.phase = ARENA_ARRAY(a, Phase, g->nnode);
    f.group = ARENA_ARRAY(a, int, g->nnode);
    f.inside = ARENA_ARRAY(a, int, g->nnode);
    f.kept = ARENA_ARRAY(a, bool, g->nval);
    f.users = ARENA_ARRAY(a, IntVec, g->nval);
    f.stamp = ARENA_ARRAY(a, int, g->nnode);
    for (int i = 0; i < g->nnode; i++) f.phase[i] = g->node[i]->phase, f.inside[i] = -1;
    classify(&f);
    fuse_attention_operands(&f);
    find_users(&f);
    return f;
}

/* Ropes are in kernels of attention, or primitives. */
static Fuse settle_ropes(const Graph *g, PassContext *ctx) {
    Fuse f = fuse_start(g, ctx);
    while (ctx->options->no_fuse ? fuse_has_rope(g) : !fuse_rope_choose(&f)) {
        g = fuse_rope_decompose(&f);
        f = fuse_start(g, ctx);
    }
    return f;
}

static Graph *fuse_graph(const Graph *g, PassContext *ctx, bool top) {
    Arena *a = ctx->scratch;
    bool fusing = !ctx->options->no_fuse;
    g = fuse_attention_results(g, a);
    if (fuse_has_rope(g)) g = settle_ropes(g, ctx).g;
    if (fusing) g = fuse_copies(g, a);
    Fuse f = settle_ropes(g, ctx);
    g = f.g;
    Graph **bodies = ARENA_ARRAY(a, Graph *, g->nnode);
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_repeat) bodies[i] = fuse_graph(g->node[i]->body, ctx, false);
    if (fusing && top) fuse_early(&f);
    make_groups(&f);
    join_ropes(&f);
    for (int i = 0; i < g->nnode; i++) {
        if (f.class[i] == FUSE_inline || f.class[i] == FUSE_repeat) continue;
        if (!fusing && !fuse_attention_rounds(g, g->node[i])) continue;
        join_producers(&f, i);
        if (f.class[i] == FUSE_reduce)
            join_siblings(&f, i);
        else
            join_scalars(&f, i);
    }
    if (fusing) join_maps(&f);
    return fuse_emit(&f, g->nnode, bodies);
}

/* In the pipeline all nodes are primitives; a module read from text can hold others. */
static bool primitives_only(Diag *d, const Graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_repeat && !primitives_only(d, n->body)) return false;
        if (n->op == OP_rope || (n->op != OP_kernel && op_kind(n->op) != KIND_composite)) continue;
        DiagRef ref = diag_error(d, E030, n->span, "%s is no primitive operation", op_name(n->op));
        diag_hint(d, ref, "fuse comes after decompose, and once");
        return false;
    }
    return true;
}

bool pass_fuse(PassContext *ctx) {
    for (int i = 0; i < ctx->mod->ngraph; i++)
        if (!primitives_only(ctx->mod->diag, ctx->mod->graph[i])) return false;
    for (int i = 0; i < ctx->mod->ngraph; i++)
        ctx->mod->graph[i] = fuse_graph(ctx->mod->graph[i], ctx, true);
    return true;
}
