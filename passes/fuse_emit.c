/* fuse_emit.c - groups into kernel nodes.
 *
 * Kernels come in an order that respects what they read, the forward phase first, then by their
 * first node. A body's inputs are the values it reads from memory, in order of first use, seen
 * through reshapes in the shape that the body works in: those reshapes become views between the
 * kernels. Inline nodes are repeated in every body that reads through them.
 */
#include "ir/panic.h"
#include "ir/split.h"
#include "passes/fuse.h"
#include "passes/rewrite.h"

#include <ctype.h>
#include <string.h>

/* A value in memory seen with another shape. */
typedef struct View {
    Val of, view;
    Type type;
} View;

typedef struct Emit {
    const Fuse *f;
    Graph *to;
    Val *map; /* by old value, grouped or input: where it is now, perhaps in another shape */
    VEC(View) views;
} Emit;

static Type typed(const Module *m, Dtype dtype, const FuseShape *s) {
    return type_intern(m->types, dtype, s->ndim, s->dim);
}

static Val as_type(Emit *e, Val v, Type type) {
    if (val_type(e->to, v).id == type.id) return v;
    for (uint32_t i = 0; i < e->views.n; i++) {
        const View *view = &e->views.data[i];
        if (view->of.id == v.id && view->type.id == type.id) return view->view;
    }
    const Node *made_by = val_node(e->to, v);
    Builder b = {.g = e->to};
    if (made_by != NULL) {
        b.phase = made_by->phase;
        b.span = made_by->span;
        b.scope = made_by->scope;
    }
    View view = {.of = v, .type = type};
    view.view = graph_add(&b, OP_reshape, 1, &v, 0, NULL, type)->out;
    vec_push(e->f->scratch, &e->views, view);
    return view.view;
}

/* The new value of a stored old one. */
static Val stored(Emit *e, Val old) {
    FuseChain c = fuse_chain(e->f, old);
    if (!fuse_chain_is_view(&c) || e->map[c.root.id].id == 0)
        panic_graph(e->f->g, (Span){0}, "fuse: value %%%u is not in memory", old.id - 1);
    return as_type(e, e->map[c.root.id], val_type(e->f->g, old));
}

/* ---- one kernel ------------------------------------------------------------------------- */

/* What a body reads from memory: an old value in a shape. */
typedef struct Input {
    Val root;
    Type type;
} Input;

/* A value inside the body: an old value as the body has it. */
typedef struct Inner {
    Val old, inner;
} Inner;

typedef struct Kernel {
    Emit *e;
    const FuseGroup *group;
    FuseForm form;
    Builder b; /* of the body */
    VEC(Input) inputs;
    VEC(Inner) inner;
    bool collecting; /* first pass: only the inputs */
} Kernel;

static Val find_inner(const Kernel *k, Val old, Type type) {
    for (uint32_t i = 0; i < k->inner.n; i++)
        if (k->inner.data[i].old.id == old.id &&
            val_type(k->b.g, k->inner.data[i].inner).id == type.id)
            return k->inner.data[i].inner;
    return (Val){0};
}

static Val keep_inner(Kernel *k, Val old, Val inner) {
    Inner row = {.old = old, .inner = inner};
    vec_push(k->e->f->scratch, &k->inner, row);
    return inner;
}

/* An input of the body; while collecting, only noted. */
static Val body_input(Kernel *k, Val root, Type type) {
    for (uint32_t i = 0; i < k->inputs.n; i++)
        if (k->inputs.data[i].root.id == root.id && k->inputs.data[i].type.id == type.id)
            return k->collecting ? (Val){0} : k->b.g->in[i];
    Input row = {.root = root, .type = type};
    vec_push(k->e->f->scratch, &k->inputs, row);
    return (Val){0};
}

static bool made_here(const Kernel *k, Val root) {
    int i = root.id != 0 ? fuse_node_index(k->e->f, root) : -1;
    return i >= 0 && k->e->f->group[i] == k->e->f->group[k->group->node[0]];
}

/* Repeats inline nodes [0, n) of a chain above `v` (none: from its source). */
static Val repeat_chain(Kernel *k, const FuseChain *c, int n, Val v) {
    const Graph *g = k->e->f->g;
    for (int i = n - 1; i >= 0; i--) {
        const Node *node = c->inlined[i];
        Type type = val_type(g, node->out);
        Val known = find_inner(k, node->out, type);
        if (known.id == 0) {
            Builder b = k->b;
            b.span = node->span;
            known = graph_add(&b, node->op, node->nin, &v, node->nattr, node->attr, type)->out;
            keep_inner(k, node->out, known);
        }
        v = known;
    }
    return v;
}

/* What a row reduction made, back in the rows. */
static Val broadcast_rows(Kernel *k, Val root, Type type) {
    Val known = find_inner(k, root, type);
    if (known.id != 0) return known;
    Type kept = typed(k->b.g->mod, val_info(k->e->f->g, root)->dtype, &k->form.kept);
    int64_t axes[NDIM_MAX];
    for (int i = 0; i < k->form.kept.ndim; i++) axes[i] = i;
    Val v = build_broadcast(&k->b, find_inner(k, root, kept), type, axes);
    return keep_inner(k, root, v);
}

/* Old value v, a flat chain above a value of the body or of memory, with type `type`. */
static Val flat_operand(Kernel *k, Val v, const FuseChain *c, Type type) {
    const Graph *g = k->e->f->g;
    const TypeInfo *t = type_info(g->mod->types, type);
    Type from = type_intern(g->mod->types, val_info(g, c->root)->dtype, t->ndim, t->dim);
    bool here = made_here(k, c->root);
    if (here && k->collecting) return (Val){0};
    Val x = here ? find_inner(k, c->root, from) : body_input(k, c->root, from);
    if (k->collecting || from.id == type.id) return x;
    Val known = find_inner(k, v, type);
    return known.id != 0 ? known : keep_inner(k, v, build_cast(&k->b, x, t->dtype));
}

/* Old value v in the body, with type `type`. */
static Val operand(Kernel *k, Val v, Type type) {
    const Graph *g = k->e->f->g;
    FuseChain c = fuse_chain(k->e->f, v);
    double value;
    if (fuse_chain_is_const(&c, &value))
        return k->collecting ? (Val){0} : build_const(&k->b, value, type);
    if (k->form.moves && made_here(k, c.root)) {
        if (k->collecting) return (Val){0};
        return repeat_chain(k, &c, c.n, find_inner(k, c.root, val_type(g, c.root)));
    }
    if (fuse_chain_is_flat(&c)) return flat_operand(k, v, &c, type);
    if (made_here(k, c.root)) return k->collecting ? (Val){0} : broadcast_rows(k, c.root, type);
    /* Reshapes next to memory are views; the rest is repeated here. */
    int n = c.n;
    while (c.root.id != 0 && n > 0 && c.inlined[n - 1]->op == OP_reshape) n--;
    Val from = {0};
    if (c.root.id != 0) from = body_input(k, c.root, val_type(g, c.inlined[n - 1]->in[0]));
    if (k->collecting) return from;
    from = repeat_chain(k, &c, n, from);
    if (val_type(k->b.g, from).id == type.id) return from;
    return graph_add(&k->b, OP_reshape, 1, &from, 0, NULL, type)->out;
}

/* The type in which the body has operand `i` of a node. */
static Type operand_type(const Kernel *k, int index, int i) {
    const Fuse *f = k->e->f;
    const Node *n = f->g->node[index];
    const TypeInfo *t = val_info(f->g, n->in[i]);
    if (f->class[index] == FUSE_reduce) return typed(f->g->mod, t->dtype, &k->form.domain);
    if (k->form.moves || (op_kind(n->op) != KIND_elementwise && n->op != OP_copy))
        return val_type(f->g, n->in[i]);
    FuseShape s = {0};
    fuse_form_shape(f, &k->form, index, &s);
    return typed(f->g->mod, t->dtype, &s);
}

static Type result_type(const Kernel *k, int index, int i) {
    const Fuse *f = k->e->f;
    Val v = node_out(f->g->node[index], i);
    if (k->form.moves || f->class[index] == FUSE_anchor) return val_type(f->g, v);
    FuseShape s = {0};
    fuse_form_shape(f, &k->form, index, &s);
    return typed(f->g->mod, val_info(f->g, v)->dtype, &s);
}

static void emit_node(Kernel *k, int index) {
    const Fuse *f = k->e->f;
    const Node *n = f->g->node[index];
    Val *in = ARENA_ARRAY(f->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = operand(k, n->in[i], operand_type(k, index, i));
    if (k->collecting) return;
    Builder b = k->b;
    b.span = n->span;
    b.scope = n->scope;
    const Node *copy =
        graph_add(&b, n->op, n->nin, in, n->nattr, n->attr, result_type(k, index, 0));
    for (int r = 0; r < n->nout; r++) keep_inner(k, node_out(n, r), node_out(copy, r));
}

static bool read_elsewhere(const Kernel *k, Val v) {
    const Fuse *f = k->e->f;
    if (f->kept[v.id]) return true;
    for (uint32_t i = 0; i < f->users[v.id].n; i++)
        if (f->group[f->users[v.id].data[i]] != f->group[k->group->node[0]]) return true;
    return false;
}

/* "conv1_conv2d_relu": where it stands in the model, its main operation, its last one. */
static const char *kernel_name(const Kernel *k) {
    const Graph *g = k->e->f->g;
    const Node *main = g->node[k->form.main], *last = g->node[k->group->node[k->group->n - 1]];
    const char *scope = scope_path(g->mod, main->scope);
    char name[64];
    size_t n = 0;
    for (const char *s = scope; *s != '\0' && n < 40; s++) {
        if (isalnum((unsigned char)*s))
            name[n++] = *s;
        else if (n > 0 && name[n - 1] != '_')
            name[n++] = '_';
    }
    if (n > 0 && name[n - 1] != '_') name[n++] = '_';
    name[n] = '\0';
    if (last == main) return arena_printf(g->mod->arena, "%s%s", name, op_name(main->op));
    return arena_printf(g->mod->arena, "%s%s_%s", name, op_name(main->op), op_name(last->op));
}

/* Attention's lse, and queries that it turned, are results even where nobody reads them: training
 * and evaluation share the kernel. */
static bool is_always_result(const Fuse *f, int index, int r) {
    return (f->g->node[index]->op == OP_attention && r == 1) || fuse_rope_stores(f, index);
}

/* Gives the body its results; returns how many, the old values in results[]. */
static int emit_results(Kernel *k, Val *results) {
    const Fuse *f = k->e->f;
    int n = 0;
    for (int i = 0; i < k->group->n; i++) {
        int index = k->group->node[i];
        for (int r = 0; r < f->g->node[index]->nout; r++) {
            Val v = node_out(f->g->node[index], r);
            if (!read_elsewhere(k, v) && !is_always_result(f, index, r)) continue;
            graph_add_output(k->b.g, find_inner(k, v, result_type(k, index, r)), (Port){0});
            results[n++] = v;
        }
    }
    return n;
}

static void emit_nodes(Kernel *k, bool collecting) {
    k->collecting = collecting;
    for (int i = 0; i < k->group->n; i++) emit_node(k, k->group->node[i]);
}

static void emit_kernel(Emit *e, const FuseGroup *group) {
    const Graph *g = e->f->g;
    Kernel k = {.e = e, .group = group};
    if (!fuse_form(e->f, group->node, group->n, &k.form))
        panic_graph(g, g->node[group->node[0]]->span, "fuse: a group has no form");
    const Node *main = g->node[k.form.main];
    k.b = (Builder){.g = graph_new(g->mod, "body"),
                    .phase = group->phase,
                    .span = main->span,
                    .scope = main->scope};
    emit_nodes(&k, true);
    for (uint32_t i = 0; i < k.inputs.n; i++)
        graph_add_input(k.b.g, k.inputs.data[i].type, (Port){0});
    emit_nodes(&k, false);
    Val *results = ARENA_ARRAY(e->f->scratch, Val, 2 * group->n);
    int nresult = emit_results(&k, results);
    if (nresult == 0) return;                      /* nobody reads it */
    Graph *body = cse_graph(k.b.g, e->f->scratch); /* inline nodes were repeated by each reader */

    Val *in = ARENA_ARRAY(e->f->scratch, Val, k.inputs.n);
    for (uint32_t i = 0; i < k.inputs.n; i++)
        in[i] = as_type(e, e->map[k.inputs.data[i].root.id], k.inputs.data[i].type);
    int64_t workspace = split_workspace_bytes(body);
    Attr attr[] = {ATTR_STR(name, kernel_name(&k)), ATTR_STR(form, k.form.name),
                   ATTR_INT(workspace, workspace)};
    Builder b = k.b;
    b.g = e->to;
    const Node *kernel =
        graph_add_region(&b, OP_kernel, (int)k.inputs.n, in, workspace > 0 ? 3 : 2, attr, body);
    for (int i = 0; i < nresult; i++) e->map[results[i].id] = node_out(kernel, i);
}

static void emit_repeat(Emit *e, const Node *n, Graph *body) {
    Val *in = ARENA_ARRAY(e->f->scratch, Val, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = stored(e, n->in[i]);
    Builder b = {.g = e->to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&b, OP_repeat, n->nin, in, n->nattr, n->attr, body);
    for (int i = 0; i < n->nout; i++) e->map[node_out(n, i).id] = node_out(copy, i);
}

/* ---- the whole graph -------------------------------------------------------------------- */

/* How many different groups each group still waits for. */
static int *count_waits(const Fuse *f, int ngroup) {
    int *waits = ARENA_ARRAY(f->scratch, int, ngroup);
    for (int i = 0; i < f->g->nnode; i++)
        for (int r = 0; f->group[i] >= 0 && r < f->g->node[i]->nout; r++) {
            const IntVec *users = &f->users[node_out(f->g->node[i], r).id];
            for (uint32_t k = 0; k < users->n; k++)
                if (f->group[users->data[k]] != f->group[i]) waits[f->group[users->data[k]]]++;
        }
    return waits;
}

static void release_users(const Fuse *f, int group, int *waits) {
    for (int i = 0; i < f->groups[group].n; i++) {
        const Node *n = f->g->node[f->groups[group].node[i]];
        for (int r = 0; r < n->nout; r++) {
            const IntVec *users = &f->users[node_out(n, r).id];
            for (uint32_t k = 0; k < users->n; k++)
                if (f->group[users->data[k]] != group) waits[f->group[users->data[k]]]--;
        }
    }
}

/* The next group that waits for nothing: forward first, then the one with the first node. */
static int next_group(const Fuse *f, int ngroup, const int *waits, const bool *done) {
    int best = -1;
    for (int i = 0; i < ngroup; i++) {
        if (f->groups[i].dead || done[i] || waits[i] > 0) continue;
        if (best < 0) {
            best = i;
            continue;
        }
        bool early = f->groups[i].phase == PHASE_F, best_early = f->groups[best].phase == PHASE_F;
        if (early != best_early ? early : f->groups[i].node[0] < f->groups[best].node[0]) best = i;
    }
    return best;
}

Graph *fuse_emit(const Fuse *f, int ngroup, Graph *const *bodies) {
    const Graph *g = f->g;
    Emit e = {.f = f, .to = graph_new(g->mod, g->name)};
    ValMap inputs = valmap_new(f->scratch, g);
    graph_copy_inputs(e.to, g, &inputs);
    e.map = inputs.to;
    int *waits = count_waits(f, ngroup);
    bool *done = ARENA_ARRAY(f->scratch, bool, ngroup);
    int left = 0;
    for (int i = 0; i < ngroup; i++) left += !f->groups[i].dead;
    for (; left > 0; left--) {
        int at = next_group(f, ngroup, waits, done);
        if (at < 0) panic_graph(g, (Span){0}, "fuse: kernels wait for each other");
        int first = f->groups[at].node[0];
        if (f->class[first] == FUSE_repeat)
            emit_repeat(&e, g->node[first], bodies[first]);
        else
            emit_kernel(&e, &f->groups[at]);
        done[at] = true;
        release_users(f, at, waits);
    }
    for (int i = 0; i < g->nout; i++) graph_add_output(e.to, stored(&e, g->out[i]), g->out_port[i]);
    return e.to;
}
