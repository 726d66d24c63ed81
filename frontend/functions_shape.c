/* functions_shape.c - functions that move elements, and those that make them from indices. */
#include "frontend/functions.h"

#include <inttypes.h>
#include <string.h>

/* The product of dims, keeping its spelling: 32*24*24. False after an error. */
static bool product_of_dims(Lower *l, const Dim *dims, int n, Dim *out, Span span) {
    *out = n > 0 ? dims[0] : dim_number(l->arena, 1);
    for (int i = 1; i < n; i++) {
        if (dim_apply(l->arena, '*', *out, dims[i], out)) continue;
        lower_error(l, E026, span, "the product of %s does not fit into 64 bits",
                    dims_text(l->arena, dims, n));
        return false;
    }
    return true;
}

Value fn_flatten(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int begin = (int)(c->arg[1].dim.value > NDIM_MAX ? NDIM_MAX : c->arg[1].dim.value);
    Dim dims[NDIM_MAX];
    if (begin >= x->ndim && !(begin == 0 && x->ndim == 0)) {
        lower_error(l, E019, c->span, "flatten from axis %d of a tensor of rank %d", begin,
                    x->ndim);
        return (Value){0};
    }
    for (int i = 0; i < begin; i++) dims[i] = x->dims[i];
    if (!product_of_dims(l, x->dims + begin, x->ndim - begin, &dims[begin], c->span))
        return (Value){0};
    Value v =
        tensor_new(l, x->dtype, begin + 1, dims, reshape_to(l, x->val, begin + 1, dims), c->span);
    v.flattened = x->ndim - begin > 1;
    v.trail = x->trail;
    return v;
}

Value fn_reshape(Lower *l, const Call *c) {
    const Value *x = &c->arg[0], *shape = &c->arg[1];
    Dim dims[NDIM_MAX], have, want = dim_number(l->arena, 1);
    int unknown = -1;
    if (shape->n > NDIM_MAX) {
        lower_error(l, E026, c->span, "a tensor of rank %d is over the limit of %d", shape->n,
                    NDIM_MAX);
        return (Value){0};
    }
    if (!product_of_dims(l, x->dims, x->ndim, &have, c->span)) return (Value){0};
    for (int i = 0; i < shape->n; i++) {
        dims[i] = shape->item[i].dim;
        if (dims[i].value == -1 && unknown < 0)
            unknown = i;
        else if (!dim_apply(l->arena, '*', want, dims[i], &want)) {
            lower_error(l, E026, c->span, "the shape's product does not fit into 64 bits");
            return (Value){0};
        }
    }
    bool fits = want.value > 0 && have.value % want.value == 0;
    if (fits && unknown >= 0) {
        Dim rest;
        fits = dim_apply(l->arena, '/', have, want, &rest);
        dims[unknown] = rest;
        if (rest.free == NULL) dims[unknown] = dim_number(l->arena, rest.value);
    } else {
        fits = fits && have.value == want.value;
    }
    if (!fits) {
        lower_error(l, E012, c->span, "reshape of %s with %" PRId64 " elements to %s",
                    dims_text(l->arena, x->dims, x->ndim), have.value,
                    dims_text(l->arena, dims, shape->n));
        return (Value){0};
    }
    if (!shape_fits(l, x->dtype, shape->n, dims, c->span)) return (Value){0};
    return tensor_new(l, x->dtype, shape->n, dims, reshape_to(l, x->val, shape->n, dims), c->span);
}

Value fn_transpose(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int a = axis_of(l, &c->arg[1], x->ndim, c->span),
        b = a < 0 ? -1 : axis_of(l, &c->arg[2], x->ndim, c->span);
    if (a < 0 || b < 0) return (Value){0};
    Dim dims[NDIM_MAX];
    int64_t perm[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) {
        perm[i] = i == a ? b : i == b ? a : i;
        dims[i] = x->dims[perm[i]];
    }
    return tensor_new(l, x->dtype, x->ndim, dims, build_transpose(&l->b, x->val, perm), c->span);
}

static Val slice_axis(Lower *l, const Value *x, int axis, int64_t from, int64_t to, int64_t by) {
    int64_t begin[NDIM_MAX] = {0}, end[NDIM_MAX], step[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) {
        end[i] = x->dims[i].value;
        step[i] = 1;
    }
    begin[axis] = from;
    end[axis] = to;
    step[axis] = by;
    return build_slice(&l->b, x->val, begin, end, step);
}

/* One n-th of a dimension: 3*D by 3 is D. */
static Dim divide_dim(Lower *l, Dim d, Dim by) {
    Dim part;
    const char *text = NULL;
    const char *star = strchr(d.text, '*');
    if (star != NULL && strlen(by.text) == (size_t)(star - d.text) &&
        strncmp(d.text, by.text, strlen(by.text)) == 0)
        text = star + 1;
    if (!dim_apply(l->arena, '/', d, by, &part)) return d;
    if (text != NULL)
        part.text = text;
    else if (part.free == NULL && strchr(d.text, '*') == NULL)
        part = dim_number(l->arena, part.value);
    return part;
}

Value fn_split(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int64_t n = c->arg[1].dim.value;
    int axis = axis_of(l, &c->arg[2], x->ndim, c->span);
    if (axis < 0) return (Value){0};
    Dim whole = x->dims[axis];
    if (whole.value % n != 0 || n > 1024) {
        lower_error(l, E012, c->span, "split(%" PRId64 ") does not divide %s", n,
                    dim_with_value(l->arena, whole));
        return (Value){0};
    }
    Dim dims[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    dims[axis] = divide_dim(l, whole, c->arg[1].dim);
    int64_t size = whole.value / n;
    Value v = {
        .kind = VALUE_tuple, .span = c->span, .n = (int)n, .item = ARENA_ARRAY(l->arena, Value, n)};
    for (int i = 0; i < n; i++)
        v.item[i] = tensor_new(l, x->dtype, x->ndim, dims,
                               slice_axis(l, x, axis, i * size, (i + 1) * size, 1), c->span);
    return v;
}

Value fn_concat(Lower *l, const Call *c) {
    const Value *parts = &c->arg[0], *first = &parts->item[0];
    int axis = axis_of(l, &c->arg[1], first->ndim, c->span);
    if (axis < 0) return (Value){0};
    Dim dims[NDIM_MAX];
    Val *vals = ARENA_ARRAY(l->arena, Val, parts->n);
    for (int i = 0; i < first->ndim; i++) dims[i] = first->dims[i];
    for (int p = 0; p < parts->n; p++) {
        const Value *x = &parts->item[p];
        bool same = x->ndim == first->ndim && x->dtype == first->dtype;
        for (int i = 0; same && i < x->ndim; i++)
            same = i == axis || dim_equal(x->dims[i], first->dims[i]);
        if (same && p > 0) same = dim_apply(l->arena, '+', dims[axis], x->dims[axis], &dims[axis]);
        if (!same) {
            lower_error(l, E012, c->span, "concat on axis %d of %s and %s", axis,
                        value_type_text(l->arena, first), value_type_text(l->arena, x));
            return (Value){0};
        }
        vals[p] = x->val;
    }
    if (!shape_fits(l, first->dtype, first->ndim, dims, c->span)) return (Value){0};
    Attr attr = ATTR_INT(axis, axis);
    Val v = parts->n == 1 ? vals[0]
                          : graph_add(&l->b, OP_concat, parts->n, vals, 1, &attr, (Type){0})->out;
    caching_note_mix(l, first->dims[axis], "concat", v, c->span);
    return tensor_new(l, first->dtype, first->ndim, dims, v, c->span);
}

Value fn_slice(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int axis = axis_of(l, &c->arg[1], x->ndim, c->span);
    if (axis < 0) return (Value){0};
    int64_t size = x->dims[axis].value, begin = c->arg[2].dim.value, end = c->arg[3].dim.value,
            step = c->arg[4].dim.value;
    if (begin < 0) begin += size;
    if (end < 0) end += size;
    if (begin < 0 || end > size || begin >= end) {
        lower_error(l, E019, c->span, "slice [%" PRId64 ", %" PRId64 ") of an axis of size %s",
                    begin, end, dim_with_value(l->arena, x->dims[axis]));
        return (Value){0};
    }
    Dim dims[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    bool whole = begin == 0 && end == size && step == 1;
    if (!whole) {
        Dim d;
        bool known = step == 1 && dim_apply(l->arena, '-', c->arg[3].dim, c->arg[2].dim, &d) &&
                     d.value == end - begin;
        dims[axis] = known ? d : dim_number(l->arena, (end - begin - 1) / step + 1);
        if (known && d.free == NULL) dims[axis] = dim_number(l->arena, d.value);
        if (known && begin == 0) dims[axis] = c->arg[3].dim;
    }
    Val v = slice_axis(l, x, axis, begin, end, step);
    if (!whole) caching_note_mix(l, x->dims[axis], "slice", v, c->span);
    return tensor_new(l, x->dtype, x->ndim, dims, v, c->span);
}

Value fn_pad(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int axis = axis_of(l, &c->arg[1], x->ndim, c->span);
    if (axis < 0) return (Value){0};
    Dim dims[NDIM_MAX];
    int64_t low[NDIM_MAX] = {0}, high[NDIM_MAX] = {0};
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    bool fits = true;
    for (int side = 2; side < 4; side++)
        if (c->arg[side].dim.value > 0)
            fits = fits && dim_apply(l->arena, '+', dims[axis], c->arg[side].dim, &dims[axis]);
    if (!fits) {
        lower_error(l, E026, c->span, "the padded size does not fit into 64 bits");
        return (Value){0};
    }
    if (!shape_fits(l, x->dtype, x->ndim, dims, c->span)) return (Value){0};
    low[axis] = c->arg[2].dim.value;
    high[axis] = c->arg[3].dim.value;
    Attr attrs[] = {ATTR_INTS(low, x->ndim, low), ATTR_INTS(high, x->ndim, high),
                    ATTR_FLOAT(value, c->arg[4].number)};
    Val v = graph_add(&l->b, OP_pad, 1, &x->val, 3, attrs, (Type){0})->out;
    caching_note_mix(l, x->dims[axis], "pad", v, c->span);
    return tensor_new(l, x->dtype, x->ndim, dims, v, c->span);
}

/* 0, 1, .. n-1 as i32 [n]; positions goes on after the tokens that the caches hold. */
Value fn_arange(Lower *l, const Call *c) {
    Dim n = c->arg[0].dim;
    bool in_text = c->fn->op == OP_add;
    if (!shape_fits(l, DT_i32, 1, &n, c->span)) return (Value){0};
    Value v = tensor_new(l, DT_i32, 1, &n, (Val){0}, c->span);
    Attr attr = ATTR_INT(axis, 0);
    v.val = graph_add(&l->b, OP_iota, 0, NULL, 1, &attr, value_ir_type(l, &v))->out;
    if (in_text) v.val = caching_positions(l, v.val);
    if (!in_text) caching_note_mix(l, n, "arange", v.val, c->span);
    return v;
}

Value fn_one_hot(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    Dim dims[NDIM_MAX + 1];
    if (x->dtype != DT_i32) {
        lower_error(l, E019, c->span, "one_hot takes i32 classes, got %s",
                    value_type_text(l->arena, x));
        return (Value){0};
    }
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    dims[x->ndim] = c->arg[1].dim;
    if (!shape_fits(l, DT_f32, x->ndim + 1, dims, c->span)) return (Value){0};
    Value v = tensor_new(l, DT_i32, x->ndim + 1, dims, (Val){0}, c->span);
    int64_t axes[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) axes[i] = i;
    Attr attr = ATTR_INT(axis, x->ndim);
    Val classes = graph_add(&l->b, OP_iota, 0, NULL, 1, &attr, value_ir_type(l, &v))->out;
    Val wide = build_broadcast(&l->b, x->val, value_ir_type(l, &v), axes);
    return tensor_like(&v, DT_f32, build_cast(&l->b, build2(&l->b, OP_eq, wide, classes), DT_f32),
                       c->span);
}

/* Rows of x [V, D..] by i32 indices [I..]: [I.., D..]. */
Value fn_gather(Lower *l, const Call *c) {
    const Value *x = &c->arg[0], *index = &c->arg[1];
    Dim dims[2 * NDIM_MAX];
    if (index->dtype != DT_i32) {
        lower_error(l, E019, c->span, "gather takes i32 indices, got %s",
                    value_type_text(l->arena, index));
        return (Value){0};
    }
    if (!want_ndim(l, x, 1, NDIM_MAX, "gather", c->span)) return (Value){0};
    int n = 0;
    for (int i = 0; i < index->ndim; i++) dims[n++] = index->dims[i];
    for (int i = 1; i < x->ndim; i++) dims[n++] = x->dims[i];
    if (!shape_fits(l, x->dtype, n, dims, c->span)) return (Value){0};
    return tensor_new(l, x->dtype, n, dims, build2(&l->b, OP_gather, x->val, index->val), c->span);
}
