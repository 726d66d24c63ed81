/* build.c - adding nodes to a graph; see graph.h. */
#include "ir/graph_store.h"
#include "ir/module.h"
#include "ir/panic.h"
#include "ir/shape.h"

#include <string.h>

/* Attributes in the order of the op's row, lists and strings copied into the module, so that equal
 * nodes are equal however they were built. */
static Attr *copy_attrs(Arena *arena, Op op, int nattr, const Attr *attr) {
    Attr *copy = ARENA_ARRAY(arena, Attr, nattr);
    int n = 0;
    const char *list = op_attrs(op);
    bool optional = false;
    for (AttrKey key; (key = op_attr_next(&list, &optional)) != ATTR_none;)
        for (int i = 0; i < nattr; i++) {
            if (attr[i].key != key) continue;
            Attr a = attr[i];
            if (a.v != NULL) {
                int64_t *v = ARENA_ARRAY(arena, int64_t, a.n);
                memcpy(v, a.v, (size_t)a.n * sizeof *v);
                a.v = v;
            }
            if (a.s != NULL) a.s = arena_strdup(arena, a.s);
            copy[n++] = a;
        }
    return copy;
}

static Type *operand_types(const Graph *g, Span span, int nin, const Val *in) {
    Type *type = ARENA_ARRAY(g->mod->arena, Type, nin);
    for (int i = 0; i < nin; i++) {
        type[i] = val_type(g, in[i]);
        if (type[i].id == 0) panic_graph(g, span, "operand %d does not exist", i);
    }
    return type;
}

static Node *push_node(Builder *b, Node n, const Val *in, const Attr *attr, const Type *out) {
    Arena *arena = b->g->mod->arena;
    Node *kept = ARENA_NEW(arena, Node);
    *kept = n;
    kept->phase = b->phase;
    kept->span = b->span;
    kept->scope = b->scope;
    kept->in = ARENA_ARRAY(arena, Val, n.nin);
    if (n.nin > 0) memcpy(kept->in, in, (size_t)n.nin * sizeof *in);
    kept->attr = copy_attrs(arena, n.op, n.nattr, attr);
    graph_push_node(b->g, kept);
    for (int i = 0; i < n.nout; i++) {
        Val v = graph_new_value(b->g, out[i], (uint32_t)b->g->nnode, (uint32_t)i);
        if (i == 0) kept->out = v;
    }
    return kept;
}

Node *graph_add(Builder *b, Op op, int nin, const Val *in, int nattr, const Attr *attr,
                Type given) {
    Module *m = b->g->mod;
    ShapeQuery q = {.types = m->types,
                    .arena = m->arena,
                    .op = op,
                    .nin = nin,
                    .nattr = nattr,
                    .attr = attr,
                    .given = given};
    q.in = operand_types(b->g, b->span, nin, in);
    Type out[SHAPE_RESULTS_MAX] = {{0}};
    const char *why = shape_check(&q, out);
    if (why != NULL) panic_graph(b->g, b->span, "%s: %s", op_name(op), why);
    Node n = {.op = op, .nin = nin, .nattr = nattr, .nout = op_results(op)};
    return push_node(b, n, in, attr, out);
}

Node *graph_add_region(Builder *b, Op op, int nin, const Val *in, int nattr, const Attr *attr,
                       Graph *body) {
    Module *m = b->g->mod;
    ShapeQuery q = {
        .types = m->types, .arena = m->arena, .op = op, .nin = nin, .nattr = nattr, .attr = attr};
    q.in = operand_types(b->g, b->span, nin, in);
    Type *out = NULL;
    int nout = 0;
    const char *why = shape_check_region(&q, body, &out, &nout);
    if (why != NULL) panic_graph(b->g, b->span, "%s: %s", op_name(op), why);
    Node n = {.op = op, .nin = nin, .nattr = nattr, .nout = nout, .body = body};
    return push_node(b, n, in, attr, out);
}

/* ---- shorthands ------------------------------------------------------------------------- */

Val build_op(Builder *b, Op op, int nin, const Val *in) {
    return graph_add(b, op, nin, in, 0, NULL, (Type){0})->out;
}

Val build1(Builder *b, Op op, Val x) { return build_op(b, op, 1, &x); }

Val build2(Builder *b, Op op, Val x, Val y) { return build_op(b, op, 2, (Val[]){x, y}); }

Val build3(Builder *b, Op op, Val x, Val y, Val z) { return build_op(b, op, 3, (Val[]){x, y, z}); }

Val build_const(Builder *b, double value, Type type) {
    return graph_add(b, OP_const, 0, NULL, 1, &ATTR_FLOAT(value, value), type)->out;
}

Val build_scalar_like(Builder *b, double value, Val like) {
    return build_const(b, value, val_type(b->g, like));
}

static Type intern(const Builder *b, Dtype dtype, int ndim, const int64_t *dim) {
    Type t = type_intern(b->g->mod->types, dtype, ndim, dim);
    if (t.id == 0) panic_graph(b->g, b->span, "a type of rank %d is not valid", ndim);
    return t;
}

Val build_cast(Builder *b, Val x, Dtype dtype) {
    const TypeInfo *info = val_info(b->g, x);
    if (info->dtype == dtype) return x;
    Type t = intern(b, dtype, info->ndim, info->dim);
    return graph_add(b, OP_cast, 1, &x, 0, NULL, t)->out;
}

Val build_reshape(Builder *b, Val x, int ndim, const int64_t *dim) {
    Type t = intern(b, val_info(b->g, x)->dtype, ndim, dim);
    if (t.id == val_type(b->g, x).id) return x;
    return graph_add(b, OP_reshape, 1, &x, 0, NULL, t)->out;
}

Val build_transpose(Builder *b, Val x, const int64_t *perm) {
    int ndim = val_info(b->g, x)->ndim;
    return graph_add(b, OP_transpose, 1, &x, 1, &ATTR_INTS(perm, ndim, perm), (Type){0})->out;
}

Val build_broadcast(Builder *b, Val x, Type to, const int64_t *axes) {
    int ndim = val_info(b->g, x)->ndim;
    if (val_type(b->g, x).id == to.id) return x;
    return graph_add(b, OP_broadcast, 1, &x, 1, &ATTR_INTS(axes, ndim, axes), to)->out;
}

Val build_broadcast_suffix(Builder *b, Val x, Type to) {
    int64_t axes[NDIM_MAX];
    int ndim = val_info(b->g, x)->ndim, ndim_to = type_info(b->g->mod->types, to)->ndim;
    for (int i = 0; i < ndim; i++) axes[i] = ndim_to - ndim + i;
    return build_broadcast(b, x, to, axes);
}

Val build_reduce(Builder *b, Op op, Val x, int naxes, const int64_t *axes) {
    if (naxes == 0) return x;
    return graph_add(b, op, 1, &x, 1, &ATTR_INTS(axes, naxes, axes), (Type){0})->out;
}

Val build_slice(Builder *b, Val x, const int64_t *begin, const int64_t *end, const int64_t *step) {
    int n = val_info(b->g, x)->ndim;
    Attr attr[] = {ATTR_INTS(begin, n, begin), ATTR_INTS(end, n, end), ATTR_INTS(step, n, step)};
    return graph_add(b, OP_slice, 1, &x, 3, attr, (Type){0})->out;
}

Val build_matmul(Builder *b, Val x, Val y, bool ta, bool tb) {
    Attr attr[] = {ATTR_INT(ta, ta), ATTR_INT(tb, tb)};
    return graph_add(b, OP_matmul, 2, (Val[]){x, y}, 2, attr, (Type){0})->out;
}
