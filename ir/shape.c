/* shape.c - result types: checking of operands and attributes, and most shape rules; see shape.h.
 * Rules of convolution and pooling stand in shape_window.c, of attention in shape_attention.c, of
 * regions in shape_region.c. */
#include "ir/shape.h"

#include "ir/shape_rule.h"

#include <string.h>

/* ---- what rules ask ----------------------------------------------------------------------- */

const TypeInfo *shape_in(const ShapeQuery *q, int i) { return type_info(q->types, q->in[i]); }

const TypeInfo *shape_given_type(const ShapeQuery *q) { return type_info(q->types, q->given); }

const Attr *shape_attr(const ShapeQuery *q, AttrKey key) {
    for (int i = 0; i < q->nattr; i++)
        if (q->attr[i].key == key) return &q->attr[i];
    return NULL;
}

const char *shape_make(const ShapeQuery *q, Type *out, Dtype dtype, int ndim, const int64_t *dim) {
    if (ndim > NDIM_MAX)
        return arena_printf(q->arena, "the result has rank %d; at most %d is possible", ndim,
                            NDIM_MAX);
    *out = type_intern(q->types, dtype, ndim, dim);
    return out->id == 0 ? "the result has more bytes than fit into 63 bits" : NULL;
}

const char *shape_pair(const ShapeQuery *q, const char *what, int i, int j) {
    return arena_printf(q->arena, "%s: %s and %s", what, type_print(q->types, q->arena, q->in[i]),
                        type_print(q->types, q->arena, q->in[j]));
}

const char *shape_one(const ShapeQuery *q, const char *what, int i) {
    return arena_printf(q->arena, "%s, got %s", what, type_print(q->types, q->arena, q->in[i]));
}

const char *shape_mismatch(const ShapeQuery *q, Type right) {
    return arena_printf(q->arena, "the result is %s, not %s", type_print(q->types, q->arena, right),
                        type_print(q->types, q->arena, q->given));
}

static bool same_dims(const TypeInfo *a, const TypeInfo *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

/* ---- element types ------------------------------------------------------------------------ */

/* Which dtypes an elementwise op or a reduction takes; what is not listed takes floats only. */
typedef enum DtypeClass { CLASS_float, CLASS_number, CLASS_bool, CLASS_any } DtypeClass;

static const DtypeClass dtype_class[OP_count] = {
    [OP_neg] = CLASS_number,
    [OP_add] = CLASS_number,
    [OP_sub] = CLASS_number,
    [OP_mul] = CLASS_number,
    [OP_max] = CLASS_number,
    [OP_min] = CLASS_number,
    [OP_reduce_sum] = CLASS_number,
    [OP_reduce_max] = CLASS_number,
    [OP_reduce_min] = CLASS_number,
    [OP_argmax] = CLASS_number,
    [OP_not] = CLASS_bool,
    [OP_and] = CLASS_bool,
    [OP_or] = CLASS_bool,
    [OP_cast] = CLASS_any,
    [OP_stop_gradient] = CLASS_any,
    [OP_lt] = CLASS_number,
    [OP_le] = CLASS_number,
    [OP_gt] = CLASS_number,
    [OP_ge] = CLASS_number,
    [OP_eq] = CLASS_any,
    [OP_ne] = CLASS_any,
    [OP_select] = CLASS_any,
    [OP_copy] = CLASS_any,
};

static const char *check_class(const ShapeQuery *q, int i) {
    Dtype dtype = shape_in(q, i)->dtype;
    switch (dtype_class[q->op]) {
    case CLASS_float: return dtype_is_float(dtype) ? NULL : shape_one(q, "a float is needed", i);
    case CLASS_number:
        if (dtype_is_float(dtype) || dtype == DT_i32) return NULL;
        return shape_one(q, "a float or i32 is needed", i);
    case CLASS_bool: return dtype == DT_bool ? NULL : shape_one(q, "a bool is needed", i);
    case CLASS_any: break;
    }
    return NULL;
}

/* ---- elementwise, reductions, sources ----------------------------------------------------- */

static const char *shape_same(const ShapeQuery *q, Type *out) {
    for (int i = 1; i < q->nin; i++)
        if (q->in[i].id != q->in[0].id) return shape_pair(q, "operands differ", 0, i);
    const char *why = check_class(q, 0);
    if (why != NULL) return why;
    if (op_kind(q->op) == KIND_composite && shape_in(q, 0)->ndim == 0)
        return shape_one(q, "a last axis is needed", 0);
    *out = q->in[0];
    return NULL;
}

static const char *shape_predicate(const ShapeQuery *q, Type *out) {
    const char *why = shape_same(q, out);
    if (why != NULL) return why;
    const TypeInfo *x = shape_in(q, 0);
    return shape_make(q, out, DT_bool, x->ndim, x->dim);
}

static const char *shape_select(const ShapeQuery *q, Type *out) {
    if (q->in[1].id != q->in[2].id) return shape_pair(q, "operands differ", 1, 2);
    if (shape_in(q, 0)->dtype != DT_bool || !same_dims(shape_in(q, 0), shape_in(q, 1)))
        return shape_pair(q, "the condition is bool of the operands' shape", 0, 1);
    *out = q->in[1];
    return NULL;
}

static const char *shape_reduce(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const Attr *axes = shape_attr(q, ATTR_axes);
    const char *why = check_class(q, 0);
    if (why != NULL) return why;
    int64_t dim[NDIM_MAX];
    int n = 0, next = 0;
    for (int i = 0; i < axes->n; i++)
        if (axes->v[i] < 0 || axes->v[i] >= x->ndim || (i > 0 && axes->v[i] <= axes->v[i - 1]))
            return shape_one(q, "axes are ascending and within the rank", 0);
    for (int i = 0; i < x->ndim; i++) {
        if (next < axes->n && axes->v[next] == i)
            next++;
        else
            dim[n++] = x->dim[i];
    }
    return shape_make(q, out, x->dtype, n, dim);
}

static const char *check_axis(const ShapeQuery *q, const TypeInfo *x) {
    int64_t axis = shape_attr(q, ATTR_axis)->i;
    if (axis >= 0 && axis < x->ndim) return NULL;
    return arena_printf(q->arena, "axis %lld of a tensor of rank %d", (long long)axis, x->ndim);
}

static const char *shape_argmax(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const char *why = check_class(q, 0);
    if (why == NULL) why = check_axis(q, x);
    if (why != NULL) return why;
    int64_t dim[NDIM_MAX], axis = shape_attr(q, ATTR_axis)->i;
    if (x->dim[axis] < 1 || x->dim[axis] > INT32_MAX)
        return shape_one(q, "the axis has from 1 to 2^31 - 1 elements", 0);
    int n = 0;
    for (int i = 0; i < x->ndim; i++)
        if (i != axis) dim[n++] = x->dim[i];
    return shape_make(q, out, DT_i32, n, dim);
}

/* ---- movement ----------------------------------------------------------------------------- */

static const char *shape_transpose(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const Attr *perm = shape_attr(q, ATTR_perm);
    if (perm->n != x->ndim) return shape_one(q, "perm names every axis once", 0);
    int64_t dim[NDIM_MAX];
    bool seen[NDIM_MAX] = {false};
    for (int i = 0; i < perm->n; i++) {
        int64_t p = perm->v[i];
        if (p < 0 || p >= x->ndim || seen[p]) return shape_one(q, "perm names every axis once", 0);
        seen[p] = true;
        dim[i] = x->dim[p];
    }
    return shape_make(q, out, x->dtype, x->ndim, dim);
}

static const char *shape_slice(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const Attr *begin = shape_attr(q, ATTR_begin), *end = shape_attr(q, ATTR_end);
    const Attr *step = shape_attr(q, ATTR_step);
    if (begin->n != x->ndim || end->n != x->ndim || step->n != x->ndim)
        return shape_one(q, "begin, end and step have a value for every axis", 0);
    int64_t dim[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) {
        if (begin->v[i] < 0 || begin->v[i] > end->v[i] || end->v[i] > x->dim[i] || step->v[i] < 1)
            return shape_one(q, "0 <= begin <= end <= size and step >= 1", 0);
        int64_t n = end->v[i] - begin->v[i];
        dim[i] = n == 0 ? 0 : (n - 1) / step->v[i] + 1;
    }
    return shape_make(q, out, x->dtype, x->ndim, dim);
}

static const char *shape_concat(const ShapeQuery *q, Type *out) {
    if (q->nin < 1) return "at least one operand is needed";
    TypeInfo sum = *shape_in(q, 0);
    const char *why = check_axis(q, &sum);
    if (why != NULL) return why;
    int64_t axis = shape_attr(q, ATTR_axis)->i;
    for (int i = 1; i < q->nin; i++) {
        TypeInfo x = *shape_in(q, i);
        int64_t n = x.dim[x.ndim > axis ? axis : 0];
        if (x.ndim == sum.ndim) x.dim[axis] = sum.dim[axis];
        if (!same_dims(&x, &sum) || x.dtype != sum.dtype)
            return shape_pair(q, "operands differ in more than the axis", 0, i);
        if (n > INT64_MAX - sum.dim[axis]) return "the result is too large";
        sum.dim[axis] += n;
    }
    return shape_make(q, out, sum.dtype, sum.ndim, sum.dim);
}

static const char *shape_pad(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const Attr *low = shape_attr(q, ATTR_low), *high = shape_attr(q, ATTR_high);
    if (low->n != x->ndim || high->n != x->ndim)
        return shape_one(q, "low and high have a value for every axis", 0);
    int64_t dim[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) {
        if (low->v[i] < 0 || high->v[i] < 0) return "padding is at least 0";
        if (low->v[i] > INT64_MAX - x->dim[i] || high->v[i] > INT64_MAX - x->dim[i] - low->v[i])
            return "the result is too large";
        dim[i] = x->dim[i] + low->v[i] + high->v[i];
    }
    return shape_make(q, out, x->dtype, x->ndim, dim);
}

/* ---- results that are written in the IR --------------------------------------------------- */

static const char *given_reshape(const ShapeQuery *q, Type *out) {
    *out = q->given;
    if (shape_in(q, 0)->dtype != shape_given_type(q)->dtype ||
        type_elems(q->types, q->in[0]) != type_elems(q->types, q->given))
        return arena_printf(q->arena, "%s has not the elements of %s",
                            type_print(q->types, q->arena, q->given),
                            type_print(q->types, q->arena, q->in[0]));
    return NULL;
}

static const char *given_broadcast(const ShapeQuery *q, Type *out) {
    *out = q->given;
    const TypeInfo *x = shape_in(q, 0), *y = shape_given_type(q);
    const Attr *axes = shape_attr(q, ATTR_axes);
    if (axes->n != x->ndim || x->dtype != y->dtype)
        return shape_one(q, "axes has a result axis for every axis, and the dtype stays", 0);
    for (int i = 0; i < x->ndim; i++) {
        int64_t a = axes->v[i];
        if (a < 0 || a >= y->ndim || (i > 0 && a <= axes->v[i - 1]))
            return shape_one(q, "axes are ascending and within the result's rank", 0);
        if (x->dim[i] != 1 && x->dim[i] != y->dim[a])
            return arena_printf(q->arena, "axis %d of %s has neither 1 nor %lld elements", i,
                                type_print(q->types, q->arena, q->in[0]), (long long)y->dim[a]);
    }
    return NULL;
}

static const char *given_gather_dw(const ShapeQuery *q, Type *out) {
    *out = q->given;
    const TypeInfo *index = shape_in(q, 0), *dy = shape_in(q, 1), *table = shape_given_type(q);
    int rest = table->ndim - 1;
    bool fits = index->dtype == DT_i32 && dy->dtype == table->dtype && dtype_is_float(dy->dtype) &&
                rest >= 0 && dy->ndim == index->ndim + rest;
    for (int i = 0; fits && i < index->ndim; i++) fits = dy->dim[i] == index->dim[i];
    for (int i = 0; fits && i < rest; i++) fits = dy->dim[index->ndim + i] == table->dim[1 + i];
    if (fits) return NULL;
    return shape_pair(q, "index i32 [I..] and gradient [I.., D..] of a table [V, D..]", 0, 1);
}

static const char *given_source(const ShapeQuery *q, Type *out) {
    *out = q->given;
    if (q->op == OP_iota) {
        if (shape_given_type(q)->dtype != DT_i32) return "iota is i32";
        return check_axis(q, shape_given_type(q));
    }
    if (q->op == OP_random_uniform && shape_given_type(q)->dtype != DT_f32)
        return "random_uniform is f32";
    return NULL;
}

static const char *given_cast(const ShapeQuery *q, Type *out) {
    *out = q->given;
    return same_dims(shape_in(q, 0), shape_given_type(q)) ? NULL : "a cast keeps the shape";
}

/* How a written result type is checked, by op. */
static ShapeRule *const given_table[OP_count] = {
    [OP_cast] = given_cast,
    [OP_const] = given_source,
    [OP_iota] = given_source,
    [OP_random_uniform] = given_source,
    [OP_reshape] = given_reshape,
    [OP_broadcast] = given_broadcast,
    [OP_conv2d_dx] = shape_conv2d_dx,
    [OP_conv2d_dw] = shape_conv2d_dw,
    [OP_max_pool2d_dx] = shape_max_pool2d_dx,
    [OP_avg_pool2d_dx] = shape_avg_pool2d_dx,
    [OP_gather_dw] = given_gather_dw,
};

static const char *shape_given(const ShapeQuery *q, Type *out) {
    return q->given.id == 0 ? "the result type must be written" : given_table[q->op](q, out);
}

/* ---- products, tables, composites --------------------------------------------------------- */

static const char *shape_matmul(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0), *y = shape_in(q, 1);
    if (x->ndim < 2 || x->ndim != y->ndim || x->dtype != y->dtype || !dtype_is_float(x->dtype))
        return shape_pair(q, "two float matrices of one rank and dtype are needed", 0, 1);
    int64_t ta = shape_attr(q, ATTR_ta)->i, tb = shape_attr(q, ATTR_tb)->i;
    if (ta < 0 || ta > 1 || tb < 0 || tb > 1) return "ta and tb are 0 or 1";
    int n = x->ndim - 2;
    int64_t dim[NDIM_MAX];
    for (int i = 0; i < n; i++) {
        if (x->dim[i] != y->dim[i]) return shape_pair(q, "batch axes differ", 0, 1);
        dim[i] = x->dim[i];
    }
    if (x->dim[ta ? n : n + 1] != y->dim[tb ? n + 1 : n])
        return shape_pair(q, "inner dimensions differ", 0, 1);
    dim[n] = x->dim[ta ? n + 1 : n];
    dim[n + 1] = y->dim[tb ? n : n + 1];
    return shape_make(q, out, x->dtype, x->ndim, dim);
}

static const char *shape_gather(const ShapeQuery *q, Type *out) {
    const TypeInfo *table = shape_in(q, 0), *index = shape_in(q, 1);
    if (table->ndim < 1 || index->dtype != DT_i32 || !dtype_is_float(table->dtype))
        return shape_pair(q, "a float table [V, D..] and an i32 index are needed", 0, 1);
    int n = index->ndim + table->ndim - 1;
    if (n > NDIM_MAX) return shape_pair(q, "the result's rank is above 8", 0, 1);
    int64_t dim[NDIM_MAX];
    for (int i = 0; i < n; i++)
        dim[i] = i < index->ndim ? index->dim[i] : table->dim[i - index->ndim + 1];
    return shape_make(q, out, table->dtype, n, dim);
}

static const char *shape_put(const ShapeQuery *q, Type *out) {
    const TypeInfo *old = shape_in(q, 0), *new = shape_in(q, 1), *at = shape_in(q, 2);
    int64_t axis = shape_attr(q, ATTR_axis)->i;
    if (at->dtype != DT_i32 || at->ndim != 1 || at->dim[0] != 1)
        return shape_one(q, "the place is i32[1]", 2);
    bool fits = old->ndim == new->ndim && old->dtype == new->dtype &&axis >= 0 && axis < old->ndim;
    for (int i = 0; fits && i < old->ndim; i++) fits = i == axis || old->dim[i] == new->dim[i];
    if (!fits) return shape_pair(q, "two tensors that differ along one axis are needed", 0, 1);
    *out = q->in[0];
    return NULL;
}

/* x [.., D] and vectors [D]; statistics are f32 [..]. */
static const char *norm_types(const ShapeQuery *q, Type *out, int nstat) {
    const TypeInfo *x = shape_in(q, 0);
    if (x->ndim < 1 || !dtype_is_float(x->dtype) || x->dim[x->ndim - 1] < 1)
        return shape_one(q, "a float tensor [.., D] is needed", 0);
    for (int i = 1; i < q->nin; i++) {
        const TypeInfo *v = shape_in(q, i);
        if (v->ndim != 1 || v->dim[0] != x->dim[x->ndim - 1] || !dtype_is_float(v->dtype))
            return shape_pair(q, "[.., D] needs vectors [D]", 0, i);
    }
    out[0] = q->in[0];
    for (int i = 1; i <= nstat; i++) {
        const char *why = shape_make(q, &out[i], DT_f32, x->ndim - 1, x->dim);
        if (why != NULL) return why;
    }
    return NULL;
}

static const char *shape_layer_norm(const ShapeQuery *q, Type *out) {
    return norm_types(q, out, 2);
}

static const char *shape_rms_norm(const ShapeQuery *q, Type *out) { return norm_types(q, out, 1); }

static const char *shape_rope(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0), *cosine = shape_in(q, 1);
    int64_t axis = shape_attr(q, ATTR_axis)->i;
    int last = x->ndim - 1;
    if (!dtype_is_float(x->dtype) || last < 1 || last >= NDIM_MAX - 1 || x->dim[last] % 2 != 0)
        return shape_one(q, "a float tensor [.., T, .., K] of rank 2 to 7 with an even K is needed",
                         0);
    if (axis < 0 || axis >= last) return "the axis of positions comes before the last one";
    if (q->in[1].id != q->in[2].id || cosine->dtype != x->dtype || cosine->ndim != 2 ||
        cosine->dim[0] != x->dim[axis] || cosine->dim[1] != x->dim[last] / 2)
        return shape_pair(q, "cos and sin are [positions, K / 2] of the tensor's dtype", 0, 1);
    for (int i = 1; i <= 2; i++) {
        int64_t flag = shape_attr(q, i == 1 ? ATTR_adjacent : ATTR_back)->i;
        if (flag != 0 && flag != 1) return "adjacent and back are 0 or 1";
    }
    *out = q->in[0];
    return NULL;
}

static const char *shape_cross_entropy(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0), *target = shape_in(q, 1);
    bool fits = x->ndim >= 1 && dtype_is_float(x->dtype) && target->dtype == DT_i32 &&
                target->ndim == x->ndim - 1;
    for (int i = 0; fits && i < target->ndim; i++) fits = target->dim[i] == x->dim[i];
    if (!fits) return shape_pair(q, "float logits [.., V] and i32 targets [..] are needed", 0, 1);
    const Attr *classes = shape_attr(q, ATTR_classes);
    if (classes != NULL && (classes->i < 1 || classes->i > x->dim[x->ndim - 1]))
        return shape_pair(q, "`classes` is not in [1, V] for logits [.., V]", 0, 1);
    const char *why = shape_make(q, &out[0], DT_f32, 0, NULL);
    return why != NULL ? why : shape_make(q, &out[1], DT_f32, 0, NULL);
}

/* ---- the table ---------------------------------------------------------------------------- */

static const char *shape_repeat(const ShapeQuery *q, Type *out) {
    (void)q, (void)out;
    return "a region's result types come from its body";
}

static const char *shape_kernel(const ShapeQuery *q, Type *out) { return shape_repeat(q, out); }

static ShapeRule *const rule_table[OP_count] = {
#define EW(name, operands, shape, grad, expr)                 [OP_##name] = shape_##shape,
#define RED(name, shape, grad, first, expr)                   [OP_##name] = shape_##shape,
#define OP(name, operands, results, kind, shape, grad, attrs) [OP_##name] = shape_##shape,
#include "ir/ops.def"
};

/* ---- attributes --------------------------------------------------------------------------- */

static const char *check_attr_value(Arena *arena, const Attr *a) {
    AttrKind kind = attr_kind(a->key);
    if (kind == ATTRKIND_ints && (a->n < 0 || a->n > NDIM_MAX || (a->n > 0 && a->v == NULL)))
        return arena_printf(arena, "attribute '%s' has more than %d values", attr_name(a->key),
                            NDIM_MAX);
    if (kind == ATTRKIND_str && a->s == NULL)
        return arena_printf(arena, "attribute '%s' has no text", attr_name(a->key));
    return NULL;
}

static int count_key(int nattr, const Attr *attr, AttrKey key) {
    int n = 0;
    for (int i = 0; i < nattr; i++) n += attr[i].key == key;
    return n;
}

const char *shape_check_attrs(Arena *arena, Op op, int nattr, const Attr *attr) {
    int known = 0;
    bool optional = false;
    const char *list = op_attrs(op);
    for (AttrKey key; (key = op_attr_next(&list, &optional)) != ATTR_none;) {
        int n = count_key(nattr, attr, key);
        if (n > 1) return arena_printf(arena, "attribute '%s' is given twice", attr_name(key));
        if (n == 0 && !optional)
            return arena_printf(arena, "attribute '%s' is missing", attr_name(key));
        known += n;
    }
    if (known != nattr)
        for (int i = 0; i < nattr; i++) {
            list = op_attrs(op);
            AttrKey key = ATTR_none;
            while ((key = op_attr_next(&list, &optional)) != ATTR_none)
                if (key == attr[i].key) break;
            if (key == ATTR_none)
                return arena_printf(arena, "no attribute '%s' is known here",
                                    attr_name(attr[i].key));
        }
    for (int i = 0; i < nattr; i++) {
        const char *why = check_attr_value(arena, &attr[i]);
        if (why != NULL) return why;
    }
    return NULL;
}

const char *shape_check(const ShapeQuery *q, Type out[SHAPE_RESULTS_MAX]) {
    int want = op_operands(q->op);
    if (want >= 0 && want != q->nin)
        return arena_printf(q->arena, "%d operand%s needed, got %d", want,
                            want == 1 ? " is" : "s are", q->nin);
    const char *why = shape_check_attrs(q->arena, q->op, q->nattr, q->attr);
    if (why == NULL) why = rule_table[q->op](q, out);
    if (why == NULL && q->given.id != 0 && q->given.id != out[0].id)
        return shape_mismatch(q, out[0]);
    return why;
}
