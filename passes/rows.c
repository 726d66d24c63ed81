/* rows.c - composites over the last axis; see rows.h. */
#include "passes/rows.h"

#include <limits.h>
#include <math.h>

Val rows_reduce(Builder *b, Op op, Val x) {
    int64_t last = val_info(b->g, x)->ndim - 1;
    return build_reduce(b, op, x, 1, &last);
}

Val rows_spread(Builder *b, Val r, Val like) {
    TypeInfo to = *val_info(b->g, like);
    to.dtype = val_info(b->g, r)->dtype;
    int64_t axes[NDIM_MAX];
    for (int i = 0; i < NDIM_MAX; i++) axes[i] = i;
    return build_broadcast(b, r, type_intern(b->g->mod->types, to.dtype, to.ndim, to.dim), axes);
}

Val rows_divide(Builder *b, Val x, Val r) {
    if (b->g->mod->target != TARGET_cuda) return build2(b, OP_div, x, rows_spread(b, r, x));
    Val inverse = build2(b, OP_div, build_scalar_like(b, 1.0, r), r);
    return build2(b, OP_mul, x, rows_spread(b, inverse, x));
}

Val rows_mean(Builder *b, Val x) {
    const TypeInfo *info = val_info(b->g, x);
    double extent = (double)info->dim[info->ndim - 1];
    Val sum = rows_reduce(b, OP_reduce_sum, x);
    return build2(b, OP_div, sum, build_scalar_like(b, extent, sum));
}

Val rows_total(Builder *b, Val x) {
    int64_t axes[NDIM_MAX];
    int n = val_info(b->g, x)->ndim - 1;
    for (int i = 0; i < n; i++) axes[i] = i;
    return build_reduce(b, OP_reduce_sum, x, n, axes);
}

RowsExp rows_exp(Builder *b, Val x) {
    RowsExp r;
    Val max = rows_reduce(b, OP_reduce_max, x);
    r.shifted = build2(b, OP_sub, x, rows_spread(b, max, x));
    if (b->g->mod->target == TARGET_cuda) { /* 2^x is one instruction, exp is eight */
        Val scale = build_scalar_like(b, M_LOG2E, r.shifted);
        r.e = build1(b, OP_exp2, build2(b, OP_mul, r.shifted, scale));
    } else {
        r.e = build1(b, OP_exp, r.shifted);
    }
    r.sum = rows_reduce(b, OP_reduce_sum, r.e);
    return r;
}

/* i32 [.., D]: the place in the row. */
static Val places(Builder *b, Val x) {
    const TypeInfo *info = val_info(b->g, x);
    Type type = type_intern(b->g->mod->types, DT_i32, info->ndim, info->dim);
    Attr axis = ATTR_INT(axis, info->ndim - 1);
    return graph_add(b, OP_iota, 0, NULL, 1, &axis, type)->out;
}

Val rows_only(Builder *b, Val x, int64_t count) {
    const TypeInfo *info = val_info(b->g, x);
    if (count >= info->dim[info->ndim - 1]) return x;
    Val place = places(b, x);
    Val real = build2(b, OP_lt, place, build_scalar_like(b, (double)count, place));
    return build3(b, OP_select, real, x, build_scalar_like(b, -INFINITY, x));
}

Val rows_onehot(Builder *b, Val target, Val logits) {
    Val class = places(b, logits);
    return build2(b, OP_eq, class, rows_spread(b, target, class));
}

Val rows_counted(Builder *b, Val target, int64_t ignore) {
    Val padding = build_scalar_like(b, INT32_MIN, target);
    Val counted = build2(b, OP_ne, target, padding);
    if (ignore == INT32_MIN) return counted;
    Val ignored = build_scalar_like(b, (double)ignore, target);
    return build2(b, OP_and, build2(b, OP_ne, target, ignored), counted);
}
