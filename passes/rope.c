/* rope.c - see rope.h.
 *
 * Everything is computed with the last axis split into places in a pair and pairs: then each
 * element reads its own place and its partner's through slices that are broadcast, and the tables
 * through broadcasts, so that one pass over x does all.
 */
#include "passes/rope.h"

typedef struct Rope {
    Builder *b;
    Type type;       /* of x with the last axis split */
    int place, pair; /* the two axes of it */
    int64_t axes[2]; /* positions, pairs: where the tables lie in it */
    Val first;       /* bool: the first place of a pair */
} Rope;

static Rope rope_new(Builder *b, const Node *n, Val x) {
    TypeInfo t = *val_info(b->g, x);
    bool adjacent = node_int(n, ATTR_adjacent, 0) == 1;
    Rope r = {.b = b, .place = t.ndim - 1 + adjacent, .pair = t.ndim - adjacent};
    t.dim[r.pair] = t.dim[t.ndim - 1] / 2;
    t.dim[r.place] = 2;
    t.ndim++;
    r.axes[0] = node_int(n, ATTR_axis, 0);
    r.axes[1] = r.pair;
    r.type = type_intern(b->g->mod->types, t.dtype, t.ndim, t.dim);
    Attr axis = ATTR_INT(axis, r.place);
    Type index = type_intern(b->g->mod->types, DT_i32, t.ndim, t.dim);
    Val place = graph_add(b, OP_iota, 0, NULL, 1, &axis, index)->out;
    r.first = build2(b, OP_eq, place, build_scalar_like(b, 0, place));
    return r;
}

static Val split(const Rope *r, Val x) {
    TypeInfo t = *type_info(r->b->g->mod->types, r->type);
    return build_reshape(r->b, x, t.ndim, t.dim);
}

/* x [.. split] at one place of each pair, at both. */
static Val spread_place(const Rope *r, Val x, int place) {
    TypeInfo t = *type_info(r->b->g->mod->types, r->type);
    int64_t begin[NDIM_MAX] = {0}, step[NDIM_MAX], axes[NDIM_MAX];
    for (int i = 0; i < t.ndim; i++) step[i] = 1, axes[i] = i;
    begin[r->place] = place;
    t.dim[r->place] = place + 1;
    return build_broadcast(r->b, build_slice(r->b, x, begin, t.dim, step), r->type, axes);
}

/* Each element's partner. */
static Val partners(const Rope *r, Val x) {
    return build3(r->b, OP_select, r->first, spread_place(r, x, 1), spread_place(r, x, 0));
}

/* x where `sign` says so turned negative: at the first places, or with `back` at the second. */
static Val signs(const Rope *r, Val x, bool back) {
    Val minus = build1(r->b, OP_neg, x);
    return build3(r->b, OP_select, r->first, back ? x : minus, back ? minus : x);
}

Val rope_forward(Builder *b, const Node *n, const Val *in) {
    Rope r = rope_new(b, n, in[0]);
    Val x = split(&r, in[0]);
    Val cosine = build_broadcast(b, in[1], r.type, r.axes);
    Val sine = build_broadcast(b, in[2], r.type, r.axes);
    Val own = build2(b, OP_mul, x, cosine);
    Val other = build2(b, OP_mul, partners(&r, x), signs(&r, sine, node_int(n, ATTR_back, 0) == 1));
    TypeInfo t = *val_info(b->g, in[0]);
    return build_reshape(b, build2(b, OP_add, own, other), t.ndim, t.dim);
}

Val rope_table_grad(Builder *b, const Node *n, Val dy, int which) {
    Rope r = rope_new(b, n, n->in[0]);
    Val x = split(&r, n->in[0]);
    if (which == 1) x = signs(&r, partners(&r, x), node_int(n, ATTR_back, 0) == 1);
    int64_t axes[NDIM_MAX];
    int naxes = 0;
    for (int i = 0; i < type_info(b->g->mod->types, r.type)->ndim; i++)
        if (i != r.axes[0] && i != r.axes[1]) axes[naxes++] = i;
    return build_reduce(b, OP_reduce_sum, build2(b, OP_mul, x, split(&r, dy)), naxes, axes);
}
