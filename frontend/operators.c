/* operators.c - arithmetic, comparison and logic on static values and tensors.
 *
 * Static integers keep their symbolic form (3*D). Tensors broadcast only when one shape is a
 * suffix of the other or has a literal 1, and never between integers and floats.
 */
#include "frontend/lower.h"

#include <math.h>
#include <string.h>

static bool is_comparison(AstOp op) { return op >= AST_OP_lt && op <= AST_OP_ne; }

/* --- static values --- */

static char dim_op(AstOp op) {
    switch (op) {
    case AST_OP_add: return '+';
    case AST_OP_sub: return '-';
    case AST_OP_mul: return '*';
    case AST_OP_floordiv: return '/';
    case AST_OP_mod: return '%';
    case AST_OP_pow: return '^';
    default: return '\0';
    }
}

static bool compare(AstOp op, double x, double y) {
    switch (op) {
    case AST_OP_lt: return x < y;
    case AST_OP_gt: return x > y;
    case AST_OP_le: return x <= y;
    case AST_OP_ge: return x >= y;
    case AST_OP_eq: return x == y;
    default: return x != y;
    }
}

static double arithmetic(AstOp op, double x, double y) {
    switch (op) {
    case AST_OP_add: return x + y;
    case AST_OP_sub: return x - y;
    case AST_OP_mul: return x * y;
    case AST_OP_div: return x / y;
    case AST_OP_mod: return x - y * floor(x / y);
    case AST_OP_floordiv: return floor(x / y);
    default: return pow(x, y);
    }
}

static Value operate_ints(Lower *l, AstOp op, const Value *x, const Value *y, Span span) {
    Dim result;
    if (is_comparison(op)) {
        int64_t a = x->dim.value, b = y->dim.value;
        bool truth = op == AST_OP_lt   ? a < b
                     : op == AST_OP_gt ? a > b
                     : op == AST_OP_le ? a <= b
                     : op == AST_OP_ge ? a >= b
                     : op == AST_OP_eq ? a == b
                                       : a != b;
        return value_bool(truth);
    }
    bool by_zero =
        y->dim.value == 0 && (op == AST_OP_div || op == AST_OP_floordiv || op == AST_OP_mod);
    if (by_zero) {
        bool named = strcmp(y->dim.text, "0") != 0;
        lower_error(l, E019, span, "division by zero%s%s%s", named ? ": " : "",
                    named ? y->dim.text : "", named ? " is 0" : "");
        return (Value){0};
    }
    if (op == AST_OP_div) return value_float((double)x->dim.value / (double)y->dim.value);
    if (op == AST_OP_pow && y->dim.value < 0)
        return value_float(pow((double)x->dim.value, (double)y->dim.value));
    if (dim_op(op) == '\0') return (Value){0};
    if (!dim_apply(l->arena, dim_op(op), x->dim, y->dim, &result)) {
        lower_error(l, E026, span, "the result of '%s' does not fit into 64 bits", ast_op_text(op));
        return (Value){0};
    }
    return value_int(result);
}

static Value refuse(Lower *l, AstOp op, const Value *x, const Value *y, Span span) {
    lower_error(l, E019, span, "'%s' does not apply to %s and %s", ast_op_text(op),
                value_describe(l->arena, x), value_describe(l->arena, y));
    return (Value){0};
}

static Value operate_static(Lower *l, AstOp op, const Value *x, const Value *y, Span span) {
    double a = 0, b = 0;
    if (op == AST_OP_and || op == AST_OP_or) {
        if (x->kind != VALUE_bool || y->kind != VALUE_bool) return refuse(l, op, x, y, span);
        return value_bool(op == AST_OP_and ? x->truth && y->truth : x->truth || y->truth);
    }
    if (op == AST_OP_matmul) return refuse(l, op, x, y, span);
    if (x->kind == VALUE_int && y->kind == VALUE_int) return operate_ints(l, op, x, y, span);
    if (value_number(x, &a) && value_number(y, &b)) {
        if (is_comparison(op)) return value_bool(compare(op, a, b));
        if (b == 0 && (op == AST_OP_div || op == AST_OP_floordiv || op == AST_OP_mod)) {
            lower_error(l, E019, span, "division by zero");
            return (Value){0};
        }
        return value_float(arithmetic(op, a, b));
    }
    bool equality = op == AST_OP_eq || op == AST_OP_ne;
    if (equality && x->kind == VALUE_str && y->kind == VALUE_str)
        return value_bool((strcmp(x->s, y->s) == 0) == (op == AST_OP_eq));
    if (equality && x->kind == VALUE_bool && y->kind == VALUE_bool)
        return value_bool((x->truth == y->truth) == (op == AST_OP_eq));
    return refuse(l, op, x, y, span);
}

/* --- tensors --- */

/* A static number beside a tensor becomes a constant of the tensor's dtype and no dimensions. */
static bool lift_number(Lower *l, Value *v, Dtype dtype, const char *what, Span span) {
    double number = 0;
    if (v->kind == VALUE_bool && dtype == DT_bool)
        number = v->truth;
    else if (!value_number(v, &number)) {
        lower_error(l, E019, span, "'%s' does not apply to a tensor and %s", what,
                    value_describe(l->arena, v));
        return false;
    } else if (!dtype_is_float(dtype) && v->kind != VALUE_int) {
        lower_error(l, E019, span, "'%s' of %s tensor and %s: there is no implicit conversion",
                    what, dtype_name(dtype), value_describe(l->arena, v));
        return false;
    }
    Type type = type_intern(l->mod->types, dtype, 0, NULL);
    *v = tensor_new(l, dtype, 0, NULL, build_const(&l->b, number, type), v->span);
    return true;
}

static bool join_dtypes(Lower *l, Value *x, Value *y, const char *what, Span span) {
    if (x->dtype == y->dtype) return true;
    if (dtype_is_float(x->dtype) && dtype_is_float(y->dtype)) {
        Value *narrow = x->dtype == DT_f32 ? y : x;
        *narrow = tensor_like(narrow, DT_f32, build_cast(&l->b, narrow->val, DT_f32), narrow->span);
        return true;
    }
    DiagRef e = lower_error(l, E019, span, "'%s' of %s and %s: there is no implicit conversion",
                            what, value_type_text(l->arena, x), value_type_text(l->arena, y));
    diag_hint(l->diag, e, "cast(x, %s) converts", dtype_name(y->dtype));
    return false;
}

/* The common shape of two, aligned at the last axis; false when they do not fit. */
static bool join_shapes(const Value *x, const Value *y, Dim *dims, int *ndim) {
    int n = x->ndim > y->ndim ? x->ndim : y->ndim;
    const Value *longer = x->ndim >= y->ndim ? x : y;
    for (int i = 0; i < n; i++) {
        int xi = i - (n - x->ndim), yi = i - (n - y->ndim);
        if (xi < 0 || yi < 0)
            dims[i] = longer->dims[i];
        else if (dim_equal(x->dims[xi], y->dims[yi]))
            dims[i] = x->dims[xi];
        else if (dim_is_one(x->dims[xi]))
            dims[i] = y->dims[yi];
        else if (dim_is_one(y->dims[yi]))
            dims[i] = x->dims[xi];
        else
            return false;
    }
    *ndim = n;
    return true;
}

/* Two free dimensions that were swapped or mixed up, at the same axis. */
static bool report_mixed_dims(Lower *l, const Value *x, const Value *y, const char *what,
                              Span span) {
    if (x->ndim != y->ndim) return false;
    for (int i = 0; i < x->ndim; i++) {
        Dim a = x->dims[i], b = y->dims[i];
        if (dim_equal(a, b) || a.value != b.value || (a.free == NULL && b.free == NULL)) continue;
        DiagRef e = lower_error(
            l, E014, span,
            "'%s' of %s and %s: '%s' and '%s' are different dims although both are %lld in '%s'",
            what, dims_text(l->arena, x->dims, x->ndim), dims_text(l->arena, y->dims, y->ndim),
            a.text, b.text, (long long)a.value, settings_section_name(l->section));
        diag_hint(l->diag, e, "transpose or rearrange one of them");
        return true;
    }
    return false;
}

bool broadcast_pair(Lower *l, Value *x, Value *y, const char *what, Span span) {
    Dim dims[NDIM_MAX];
    int ndim = 0;
    if (x->kind != VALUE_tensor && !lift_number(l, x, y->dtype, what, span)) return false;
    if (y->kind != VALUE_tensor && !lift_number(l, y, x->dtype, what, span)) return false;
    if (!join_dtypes(l, x, y, what, span)) return false;
    if (!join_shapes(x, y, dims, &ndim)) {
        if (report_mixed_dims(l, x, y, what, span)) return false;
        DiagRef e = lower_error(l, E015, span, "'%s' of %s and %s needs an explicit 1 or rearrange",
                                what, dims_text(l->arena, x->dims, x->ndim),
                                dims_text(l->arena, y->dims, y->ndim));
        diag_hint(l->diag, e,
                  "shapes broadcast when one is a suffix of the other or has a literal 1");
        return false;
    }
    if (!shape_fits(l, x->dtype, ndim, dims, span)) return false;
    Val xv = broadcast_to(l, x, x->dtype, ndim, dims),
        yv = broadcast_to(l, y, y->dtype, ndim, dims);
    const char *trail = x->trail != NULL ? x->trail : y->trail;
    *x = tensor_new(l, x->dtype, ndim, dims, xv, x->span);
    *y = tensor_new(l, y->dtype, ndim, dims, yv, y->span);
    x->trail = trail;
    return true;
}

static Op tensor_op(AstOp op) {
    switch (op) {
    case AST_OP_or: return OP_or;
    case AST_OP_and: return OP_and;
    case AST_OP_lt: return OP_lt;
    case AST_OP_gt: return OP_gt;
    case AST_OP_le: return OP_le;
    case AST_OP_ge: return OP_ge;
    case AST_OP_eq: return OP_eq;
    case AST_OP_ne: return OP_ne;
    case AST_OP_add: return OP_add;
    case AST_OP_sub: return OP_sub;
    case AST_OP_mul: return OP_mul;
    case AST_OP_div: return OP_div;
    case AST_OP_pow: return OP_pow;
    default: return OP_none;
    }
}

static bool dtype_allows(Op op, Dtype dtype) {
    if (op == OP_and || op == OP_or) return dtype == DT_bool;
    if (op == OP_div || op == OP_pow) return dtype_is_float(dtype);
    if (op == OP_add || op == OP_sub || op == OP_mul) return dtype != DT_bool && dtype != DT_u8;
    return true;
}

Value operate(Lower *l, AstOp op, const Value *x, const Value *y, Span span) {
    if (x->kind == VALUE_none || y->kind == VALUE_none) return (Value){0};
    if (x->kind != VALUE_tensor && y->kind != VALUE_tensor)
        return operate_static(l, op, x, y, span);
    l->b.span = span;
    if (op == AST_OP_matmul) {
        const FunctionSpec *fn = function_find("matmul");
        Value args[2] = {*x, *y};
        if (x->kind != VALUE_tensor || y->kind != VALUE_tensor) return refuse(l, op, x, y, span);
        return fn->apply(l, &(Call){.fn = fn, .arg = args, .span = span});
    }
    Op tensor = tensor_op(op);
    if (tensor == OP_none) {
        lower_error(l, E019, span, "'%s' is not defined for tensors", ast_op_text(op));
        return (Value){0};
    }
    Value a = *x, b = *y;
    if (!broadcast_pair(l, &a, &b, ast_op_text(op), span)) return (Value){0};
    if (!dtype_allows(tensor, a.dtype)) {
        lower_error(l, E019, span, "'%s' is not defined for %s tensors", ast_op_text(op),
                    dtype_name(a.dtype));
        return (Value){0};
    }
    Dtype dtype = is_comparison(op) ? DT_bool : a.dtype;
    return tensor_like(&a, dtype, build2(&l->b, tensor, a.val, b.val), span);
}

Value operate_unary(Lower *l, AstOp op, const Value *x, Span span) {
    l->b.span = span;
    if (x->kind == VALUE_none) return *x;
    if (op == AST_OP_not) {
        if (x->kind == VALUE_bool) return value_bool(!x->truth);
        if (x->kind == VALUE_tensor && x->dtype == DT_bool)
            return tensor_like(x, DT_bool, build1(&l->b, OP_not, x->val), span);
    } else {
        if (x->kind == VALUE_float) return value_float(-x->number);
        if (x->kind == VALUE_int) {
            Dim zero = dim_number(l->arena, 0), result;
            if (dim_apply(l->arena, '-', zero, x->dim, &result)) {
                result.text = arena_printf(l->arena, "-%s", x->dim.text);
                return value_int(result);
            }
        }
        if (x->kind == VALUE_tensor && x->dtype != DT_bool && x->dtype != DT_u8)
            return tensor_like(x, x->dtype, build1(&l->b, OP_neg, x->val), span);
    }
    lower_error(l, E019, span, "'%s' does not apply to %s", ast_op_text(op),
                value_describe(l->arena, x));
    return (Value){0};
}
