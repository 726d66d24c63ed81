/* shape_region.c - result types of repeat and kernel nodes: from the body's ports. */
#include "ir/module.h"
#include "ir/shape_rule.h"

static const char *differs(const ShapeQuery *q, const char *what, int i, Type want, Type got) {
    return arena_printf(q->arena, "%s %d is %s, the body has %s", what, i,
                        type_print(q->types, q->arena, want), type_print(q->types, q->arena, got));
}

/* The type with `count` put before its dimensions. */
static const char *stacked(const ShapeQuery *q, int64_t count, Type slice, Type *out) {
    const TypeInfo *info = type_info(q->types, slice);
    if (info->ndim == NDIM_MAX) return "a stacked value has a rank above 8";
    int64_t dim[NDIM_MAX] = {count};
    for (int i = 0; i < info->ndim; i++) dim[i + 1] = info->dim[i];
    return shape_make(q, out, info->dtype, info->ndim + 1, dim);
}

static const char *repeat_types(const ShapeQuery *q, const Graph *body, Type *out) {
    int64_t count = shape_attr(q, ATTR_count)->i, ncarry = shape_attr(q, ATTR_ncarry)->i;
    int64_t nconst = shape_attr(q, ATTR_nconst)->i, reverse = shape_attr(q, ATTR_reverse)->i;
    if (count < 1 || count > REPEAT_COUNT_MAX)
        return arena_printf(q->arena, "count is from 1 to %d", REPEAT_COUNT_MAX);
    if (ncarry < 0 || nconst < 0 || ncarry > q->nin || nconst > q->nin - ncarry ||
        ncarry > body->nout)
        return "ncarry and nconst do not fit the operands and the body's results";
    if (reverse != 0 && reverse != 1) return "reverse is 0 or 1";
    const Attr *first = shape_attr(q, ATTR_first);
    if (first != NULL && (first->i < 0 || first->i > REPEAT_COUNT_MAX - count))
        return "the iterations go beyond the largest number";
    for (int i = 0; i < q->nin; i++) {
        Type want = val_type(body, body->in[i]);
        const char *why = NULL;
        if (i >= ncarry + nconst) why = stacked(q, count, want, &want);
        if (why != NULL) return why;
        if (want.id != q->in[i].id) return differs(q, "operand", i, q->in[i], want);
    }
    for (int i = 0; i < body->nout; i++) {
        out[i] = val_type(body, body->out[i]);
        if (i < ncarry && out[i].id != q->in[i].id)
            return differs(q, "carried operand", i, q->in[i], out[i]);
        const char *why = i < ncarry ? NULL : stacked(q, count, out[i], &out[i]);
        if (why != NULL) return why;
    }
    return NULL;
}

static const char *kernel_types(const ShapeQuery *q, const Graph *body, Type *out, int *nout) {
    for (int i = 0; i < q->nin; i++)
        if (val_type(body, body->in[i]).id != q->in[i].id)
            return differs(q, "operand", i, q->in[i], val_type(body, body->in[i]));
    for (int i = 0; i < body->nout; i++) out[i] = val_type(body, body->out[i]);
    const Attr *workspace = shape_attr(q, ATTR_workspace);
    if (workspace == NULL) return NULL;
    if (workspace->i < 1) return "a workspace has at least one byte";
    return shape_make(q, &out[(*nout)++], DT_u8, 1, &workspace->i);
}

const char *shape_check_region(const ShapeQuery *q, const Graph *body, Type **out, int *nout) {
    *nout = 0;
    *out = NULL;
    if (op_kind(q->op) != KIND_region || body == NULL) return "a region has a body";
    const char *why = shape_check_attrs(q->arena, q->op, q->nattr, q->attr);
    if (why != NULL) return why;
    if (q->nin != body->nin)
        return arena_printf(q->arena, "%d operands are given, the body takes %d", q->nin,
                            body->nin);
    if (body->nout < 1) return "the body returns nothing";
    *out = ARENA_ARRAY(q->arena, Type, body->nout + 1);
    *nout = body->nout;
    return q->op == OP_kernel ? kernel_types(q, body, *out, nout) : repeat_types(q, body, *out);
}
