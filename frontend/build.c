/* build.c - what layers and functions need to make tensors. */
#include "frontend/lower.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static Type ir_type(const Lower *l, Dtype dtype, int ndim, const Dim *dims) {
    int64_t sizes[NDIM_MAX];
    for (int i = 0; i < ndim; i++) sizes[i] = dims[i].value;
    return type_intern(l->mod->types, dtype, ndim, sizes);
}

Type value_ir_type(const Lower *l, const Value *v) {
    return ir_type(l, v->dtype, v->ndim, v->dims);
}

bool shape_fits(Lower *l, Dtype dtype, int ndim, const Dim *dims, Span span) {
    if (ndim > NDIM_MAX) {
        lower_error(l, E026, span, "a tensor of rank %d is over the limit of %d", ndim, NDIM_MAX);
        return false;
    }
    for (int i = 0; i < ndim; i++) {
        if (dims[i].value > 0) continue;
        lower_error(l, E019, span, "dimension %s of %s is not positive",
                    dim_with_value(l->arena, dims[i]), dims_text(l->arena, dims, ndim));
        return false;
    }
    if (ir_type(l, dtype, ndim, dims).id != 0) return true;
    lower_error(l, E026, span, "a tensor %s has more than 2^63 bytes",
                dims_text(l->arena, dims, ndim));
    return false;
}

Value tensor_new(Lower *l, Dtype dtype, int ndim, const Dim *dims, Val val, Span span) {
    Dim *copy = ARENA_ARRAY(l->arena, Dim, ndim + 1);
    if (ndim > 0) memcpy(copy, dims, (size_t)ndim * sizeof(Dim));
    return (Value){
        .kind = VALUE_tensor, .span = span, .dtype = dtype, .ndim = ndim, .dims = copy, .val = val};
}

Value tensor_like(const Value *like, Dtype dtype, Val val, Span span) {
    Value v = *like;
    v.dtype = dtype;
    v.val = val;
    v.span = span;
    v.mean = (MeanOf){0};
    return v;
}

Value value_plain(const Value *v) {
    Value copy = *v;
    copy.mean = (MeanOf){0};
    return copy;
}

bool want_float(Lower *l, const Value *v, const char *what, Span span) {
    if (dtype_is_float(v->dtype)) return true;
    DiagRef e = lower_error(l, E019, span, "%s needs a float tensor, got %s", what,
                            value_type_text(l->arena, v));
    diag_hint(l->diag, e, "cast(x, f32) converts");
    return false;
}

bool want_ndim(Lower *l, const Value *v, int least, int most, const char *what, Span span) {
    if (v->ndim >= least && v->ndim <= most) return true;
    const char *wanted = least == most      ? arena_printf(l->arena, "rank %d", least)
                         : most == NDIM_MAX ? arena_printf(l->arena, "rank %d or more", least)
                                            : arena_printf(l->arena, "rank %d to %d", least, most);
    lower_error(l, E012, span, "%s needs a tensor of %s, got %s", what, wanted,
                dims_text(l->arena, v->dims, v->ndim));
    return false;
}

Val reshape_to(Lower *l, Val x, int ndim, const Dim *dims) {
    int64_t sizes[NDIM_MAX];
    const TypeInfo *now = val_info(l->b.g, x);
    bool same = now->ndim == ndim;
    for (int i = 0; i < ndim; i++) {
        sizes[i] = dims[i].value;
        same = same && now->dim[i] == sizes[i];
    }
    return same ? x : build_reshape(&l->b, x, ndim, sizes);
}

Val broadcast_to(Lower *l, const Value *x, Dtype dtype, int ndim, const Dim *dims) {
    Type to = ir_type(l, dtype, ndim, dims);
    if (val_type(l->b.g, x->val).id == to.id) return x->val;
    int64_t axes[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) axes[i] = ndim - x->ndim + i;
    return build_broadcast(&l->b, x->val, to, axes);
}

Val const_like(Lower *l, double value, const Value *like) {
    return build_const(&l->b, value, value_ir_type(l, like));
}

int axis_of(Lower *l, const Value *axis, int ndim, Span span) {
    int64_t i = axis->dim.value < 0 ? axis->dim.value + ndim : axis->dim.value;
    if (i >= 0 && i < ndim) return (int)i;
    lower_error(l, E019, span, "axis %" PRId64 " is outside a tensor of rank %d", axis->dim.value,
                ndim);
    return -1;
}

static int compare_axes(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int axes_of(Lower *l, const Value *axes, int ndim, int64_t *out, Span span) {
    if (axes->kind == VALUE_none) {
        for (int i = 0; i < ndim; i++) out[i] = i;
        return ndim;
    }
    if (axes->n > ndim) {
        lower_error(l, E019, span, "%d axes are given for a tensor of rank %d", axes->n, ndim);
        return -1;
    }
    for (int i = 0; i < axes->n; i++) {
        out[i] = axis_of(l, &axes->item[i], ndim, span);
        if (out[i] < 0) return -1;
    }
    qsort(out, (size_t)axes->n, sizeof(out[0]), compare_axes);
    for (int i = 1; i < axes->n; i++) {
        if (out[i] != out[i - 1]) continue;
        lower_error(l, E019, span, "axis %" PRId64 " is named twice", out[i]);
        return -1;
    }
    return axes->n;
}
