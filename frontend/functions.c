/* functions.c - the table of functions; elementwise functions and reductions.
 *
 * Each function checks its arguments (shapes, dtypes, ranges) and builds its graph in one place.
 * To add one: a row here, its function in the file that fits, a line in README.md and a test.
 */
#include "frontend/functions.h"

#include <math.h>
#include <string.h>

#define REDUCE_ARGS "x: tensor, axis: ints?, keep: bool = false"

static const FunctionSpec table[] = {
    {"relu", "x: tensor", fn_unary, OP_relu, false},
    {"silu", "x: tensor", fn_unary, OP_silu, false},
    {"sigmoid", "x: tensor", fn_unary, OP_sigmoid, false},
    {"tanh", "x: any", fn_unary, OP_tanh, true},
    {"exp", "x: any", fn_unary, OP_exp, true},
    {"log", "x: any", fn_unary, OP_log, true},
    {"sqrt", "x: any", fn_unary, OP_sqrt, true},
    {"rsqrt", "x: any", fn_unary, OP_rsqrt, true},
    {"abs", "x: any", fn_unary, OP_abs, true},
    {"stop_gradient", "x: tensor", fn_unary, OP_stop_gradient, false},
    {"gelu", "x: tensor, tanh: bool = false", fn_gelu, OP_gelu, false},
    {"cast", "x: tensor, dtype: word(f32|bf16|i32|bool)", fn_cast, OP_cast, false},
    {"where", "cond: tensor, x: any, y: any", fn_where, OP_select, false},
    {"min", "x: any, y: any?, axis: ints?, keep: bool = false", fn_minmax, OP_min, true},
    {"max", "x: any, y: any?, axis: ints?, keep: bool = false", fn_minmax, OP_max, true},
    {"sum", REDUCE_ARGS, fn_reduce, OP_reduce_sum, false},
    {"mean", REDUCE_ARGS, fn_reduce, OP_none, false},
    {"var", "x: tensor, axis: ints?, keep: bool = false, correction: size = 1", fn_var, OP_none,
     false},
    {"softmax", "x: tensor, axis: int = -1", fn_softmax, OP_softmax, false},
    {"log_softmax", "x: tensor, axis: int = -1", fn_softmax, OP_log_softmax, false},
    {"flatten", "x: tensor, begin: size = 0", fn_flatten, OP_reshape, false},
    {"reshape", "x: tensor, shape: ints", fn_reshape, OP_reshape, false},
    {"rearrange", "x: tensor, pattern: pattern", fn_rearrange, OP_transpose, false},
    {"transpose", "x: tensor, a: int = -2, b: int = -1", fn_transpose, OP_transpose, false},
    {"split", "x: tensor, n: count, axis: int = -1", fn_split, OP_slice, false},
    {"concat", "parts: tensors, axis: int = -1", fn_concat, OP_concat, false},
    {"slice", "x: tensor, axis: int, begin: int, end: int, step: count = 1", fn_slice, OP_slice,
     false},
    {"pad", "x: tensor, axis: int, low: size, high: size, value: float = 0", fn_pad, OP_pad, false},
    {"arange", "n: count", fn_arange, OP_iota, false},
    {"positions", "n: count", fn_arange, OP_add, false},
    {"one_hot", "x: tensor, n: count", fn_one_hot, OP_eq, false},
    {"gather", "x: tensor, index: tensor", fn_gather, OP_gather, false},
    {"matmul", "x: tensor, y: tensor", fn_matmul, OP_matmul, false},
    {"einsum", "spec: str, x: tensor, y: tensor?", fn_einsum, OP_matmul, false},
    {"attention", "q: tensor, k: tensor, v: tensor, causal: bool = false, scale: positive?",
     fn_attention, OP_none, false},
    {"rope",
     "x: tensor, theta: positive, style: word(half|interleaved), scaling: positive = 1, "
     "original: count?, low: positive = 1, high: positive = 4",
     fn_rope, OP_none, false},
    {"cross_entropy", "logits: tensor, targets: tensor, ignore: int = -100", fn_cross_entropy,
     OP_cross_entropy, false},
    {"mse", "x: tensor, target: tensor", fn_mse, OP_none, false},
    {"accuracy", "logits: tensor, targets: tensor, ignore: int = -100", fn_accuracy, OP_none,
     false},
    {"topk", "logits: tensor, targets: tensor, k: count, ignore: int = -100", fn_topk, OP_none,
     false},
    {"dropout", "x: tensor, p: share = 0.5", fn_dropout, OP_none, false},
};

const FunctionSpec *function_at(int index) {
    bool valid = index >= 0 && (size_t)index < sizeof(table) / sizeof(table[0]);
    return valid ? &table[index] : NULL;
}

const FunctionSpec *function_find(const char *name) {
    for (int i = 0; function_at(i) != NULL; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

/* --- elementwise --- */

static double unary_number(int op, double x) {
    switch (op) {
    case OP_tanh: return tanh(x);
    case OP_exp: return exp(x);
    case OP_log: return log(x);
    case OP_sqrt: return sqrt(x);
    case OP_rsqrt: return 1.0 / sqrt(x);
    default: return fabs(x);
    }
}

static Value unary_static(Lower *l, const Call *c, const Value *x) {
    double number = 0;
    if (c->fn->op == OP_abs && x->kind == VALUE_int)
        return x->dim.value < 0 ? operate_unary(l, AST_OP_neg, x, c->span) : *x;
    if (!value_number(x, &number)) {
        lower_error(l, E019, c->span, "%s needs a number or a tensor, got %s", c->fn->name,
                    value_describe(l->arena, x));
        return (Value){0};
    }
    double y = unary_number(c->fn->op, number);
    if (isfinite(y)) return value_float(y);
    lower_error(l, E019, c->span, "%s of %s is not a finite number", c->fn->name,
                value_text(l->arena, x));
    return (Value){0};
}

Value fn_unary(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    if (x->kind != VALUE_tensor) return unary_static(l, c, x);
    bool any_dtype = c->fn->op == OP_stop_gradient || (c->fn->op == OP_abs && x->dtype == DT_i32);
    if (!any_dtype && !want_float(l, x, c->fn->name, c->span)) return (Value){0};
    return tensor_like(x, x->dtype, build1(&l->b, (Op)c->fn->op, x->val), c->span);
}

Value fn_gelu(Lower *l, const Call *c) {
    if (!want_float(l, &c->arg[0], "gelu", c->span)) return (Value){0};
    Op op = c->arg[1].truth ? OP_gelu_tanh : OP_gelu;
    return tensor_like(&c->arg[0], c->arg[0].dtype, build1(&l->b, op, c->arg[0].val), c->span);
}

Value fn_cast(Lower *l, const Call *c) {
    Dtype to = dtype_from_name(c->arg[1].s, strlen(c->arg[1].s));
    if (to == c->arg[0].dtype) return c->arg[0];
    return tensor_like(&c->arg[0], to, build_cast(&l->b, c->arg[0].val, to), c->span);
}

Value fn_where(Lower *l, const Call *c) {
    Value cond = c->arg[0], x = c->arg[1], y = c->arg[2];
    if (cond.dtype != DT_bool) {
        DiagRef e = lower_error(l, E019, c->span, "where needs a bool condition, got %s",
                                value_type_text(l->arena, &cond));
        diag_hint(l->diag, e, "comparisons give bool: where(x > 0, a, b)");
        return (Value){0};
    }
    if (x.kind != VALUE_tensor &&
        y.kind != VALUE_tensor) { /* two numbers: f32 of the condition's shape */
        double number = 0;
        if (!value_number(&x, &number)) {
            lower_error(l, E019, c->span, "where needs numbers or tensors, got %s",
                        value_describe(l->arena, &x));
            return (Value){0};
        }
        Value like = tensor_like(&cond, DT_f32, cond.val, c->span);
        x = tensor_like(&like, DT_f32, const_like(l, number, &like), c->span);
    }
    if (!broadcast_pair(l, &x, &y, "where", c->span)) return (Value){0};
    /* The condition joins their shape: broadcast it against a bool of that shape. */
    Dim dims[NDIM_MAX];
    Value shape = tensor_like(&x, DT_bool, (Val){0}, c->span);
    shape.val = const_like(l, 0.0, &shape);
    if (!broadcast_pair(l, &cond, &shape, "where", c->span)) return (Value){0};
    for (int i = 0; i < cond.ndim; i++) dims[i] = cond.dims[i];
    Val xv = broadcast_to(l, &x, x.dtype, cond.ndim, dims),
        yv = broadcast_to(l, &y, y.dtype, cond.ndim, dims);
    return tensor_new(l, x.dtype, cond.ndim, dims, build3(&l->b, OP_select, cond.val, xv, yv),
                      c->span);
}

Value scale_by(Lower *l, const Value *x, double factor, Span span) {
    return tensor_like(x, x->dtype, build2(&l->b, OP_mul, x->val, const_like(l, factor, x)), span);
}

/* --- reductions --- */

Value reduce_axes(Lower *l, const Value *x, Op op, const int64_t *axes, int n, bool keep,
                  Span span) {
    Dim dims[NDIM_MAX], kept[NDIM_MAX];
    int left = 0;
    for (int i = 0, k = 0; i < x->ndim; i++) {
        bool removed = k < n && axes[k] == i;
        k += removed;
        kept[i] = removed ? dim_number(l->arena, 1) : x->dims[i];
        if (!removed) dims[left++] = x->dims[i];
    }
    Val v = n > 0 ? build_reduce(&l->b, op, x->val, n, axes) : x->val;
    for (int i = 0; i < n; i++) caching_note_mix(l, x->dims[axes[i]], "a reduction", v, span);
    if (!keep) return tensor_new(l, x->dtype, left, dims, v, span);
    return tensor_new(l, x->dtype, x->ndim, kept, reshape_to(l, v, x->ndim, kept), span);
}

static double product_of(const Value *x, const int64_t *axes, int n) {
    double product = 1;
    for (int i = 0; i < n; i++) product *= (double)x->dims[axes[i]].value;
    return product;
}

Value fn_reduce(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int64_t axes[NDIM_MAX];
    int n = axes_of(l, &c->arg[1], x->ndim, axes, c->span);
    if (n < 0 || !want_float(l, x, c->fn->name, c->span)) return (Value){0};
    Value sum = reduce_axes(l, x, OP_reduce_sum, axes, n, c->arg[2].truth, c->span);
    return c->fn->op == OP_reduce_sum ? sum
                                      : scale_by(l, &sum, 1.0 / product_of(x, axes, n), c->span);
}

/* Two passes: the mean first, then squares of differences; no cancellation at large means. */
Value fn_var(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int64_t axes[NDIM_MAX];
    int n = axes_of(l, &c->arg[1], x->ndim, axes, c->span);
    if (n < 0 || !want_float(l, x, "var", c->span)) return (Value){0};
    double count = product_of(x, axes, n), left = count - (double)c->arg[3].dim.value;
    if (left <= 0) {
        lower_error(l, E019, c->span, "var over %g elements with correction %s divides by %g",
                    count, c->arg[3].dim.text, left);
        return (Value){0};
    }
    Value mean = reduce_axes(l, x, OP_reduce_sum, axes, n, true, c->span);
    mean = scale_by(l, &mean, 1.0 / count, c->span);
    Value a = *x;
    if (!broadcast_pair(l, &a, &mean, "var", c->span)) return (Value){0};
    Val d = build2(&l->b, OP_sub, a.val, mean.val);
    Value square = tensor_like(x, x->dtype, build2(&l->b, OP_mul, d, d), c->span);
    Value sum = reduce_axes(l, &square, OP_reduce_sum, axes, n, c->arg[2].truth, c->span);
    return scale_by(l, &sum, 1.0 / left, c->span);
}

/* min and max: of two values, or over axes of one. */
Value fn_minmax(Lower *l, const Call *c) {
    Value x = c->arg[0], y = c->arg[1];
    bool is_max = c->fn->op == OP_max;
    if (y.kind == VALUE_none) {
        int64_t axes[NDIM_MAX];
        if (x.kind != VALUE_tensor) {
            lower_error(l, E009, c->span, "%s of one number needs a second", c->fn->name);
            return (Value){0};
        }
        int n = axes_of(l, &c->arg[2], x.ndim, axes, c->span);
        if (n < 0 || !want_float(l, &x, c->fn->name, c->span)) return (Value){0};
        return reduce_axes(l, &x, is_max ? OP_reduce_max : OP_reduce_min, axes, n, c->arg[3].truth,
                           c->span);
    }
    if (c->arg[2].kind != VALUE_none || c->arg[3].truth) {
        lower_error(l, E008, c->span, "%s of two values takes no axis", c->fn->name);
        return (Value){0};
    }
    double a = 0, b = 0;
    if (value_number(&x, &a) && value_number(&y, &b)) return (a < b) == is_max ? y : x;
    if (x.kind != VALUE_tensor && y.kind != VALUE_tensor) {
        lower_error(l, E019, c->span, "%s does not apply to %s and %s", c->fn->name,
                    value_describe(l->arena, &x), value_describe(l->arena, &y));
        return (Value){0};
    }
    if (!broadcast_pair(l, &x, &y, c->fn->name, c->span)) return (Value){0};
    return tensor_like(&x, x.dtype, build2(&l->b, (Op)c->fn->op, x.val, y.val), c->span);
}
