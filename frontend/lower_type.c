/* lower_type.c - types of parameters and results: evaluating them, checking values against them. */
#include "frontend/lower.h"
#include "frontend/suggest.h"

#include <string.h>

static bool eval_dtype(Lower *l, const Ast *type, Dtype *dtype) {
    *dtype = DT_f32;
    if (type->text == NULL) return true;
    *dtype = dtype_from_name(type->text, strlen(type->text));
    if (*dtype != DT_none) return true;
    Suggest s = suggest_begin(type->text);
    for (int d = 1; d < DT_count; d++) suggest_offer(&s, dtype_name((Dtype)d));
    lower_error(l, E019, type->span, "unknown dtype '%s'%s", type->text,
                s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best)
                               : "; there are f32, bf16, i32, u8 and bool");
    return false;
}

bool eval_type(Lower *l, const Ast *type, TypeWant *want) {
    const Ast *list = type->child[0];
    if (!eval_dtype(l, type, &want->dtype)) return false;
    if (list->n > NDIM_MAX) {
        lower_error(l, E026, type->span, "a tensor of rank %u is over the limit of %d", list->n,
                    NDIM_MAX);
        return false;
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const Ast *e = list->child[i];
        if (e->kind == AST_group) {
            lower_error(
                l, E019, e->span,
                "a group (H K) belongs in the pattern of rearrange; a product is written H*K");
            return false;
        }
        Value v = expr_eval(l, e);
        if (v.kind == VALUE_none) return false;
        if (v.kind != VALUE_int) {
            lower_error(l, E019, e->span, "a dimension must be an integer, got %s",
                        value_describe(l->arena, &v));
            return false;
        }
        want->dims[i] = v.dim;
    }
    want->ndim = (int)list->n;
    return shape_fits(l, want->dtype, want->ndim, want->dims, type->span);
}

/* The first axis at which two shapes of one rank differ; -1 when none does. */
static int first_difference(const Dim *want, const Value *v) {
    for (int i = 0; i < v->ndim; i++)
        if (!dim_equal(want[i], v->dims[i])) return i;
    return -1;
}

bool check_type(Lower *l, const TypeWant *want, const Value *v, const char *what, Span span) {
    Dtype dtype = want->dtype;
    const Dim *dims = want->dims;
    int ndim = want->ndim;
    if (v->kind == VALUE_none) return false;
    if (v->kind != VALUE_tensor) {
        lower_error(l, E019, span, "%s %s %s, got %s", what, dtype_name(dtype),
                    dims_text(l->arena, dims, ndim), value_describe(l->arena, v));
        return false;
    }
    const char *wanted =
        arena_printf(l->arena, "%s %s", dtype_name(dtype), dims_text(l->arena, dims, ndim));
    if (v->dtype != dtype) {
        lower_error(l, E019, span, "%s %s, got %s", what, wanted, value_type_text(l->arena, v));
        return false;
    }
    int axis = v->ndim == ndim ? first_difference(dims, v) : 0;
    if (v->ndim == ndim && axis < 0) return true;
    if (v->ndim == ndim) {
        Dim wish = dims[axis], got = v->dims[axis];
        if (wish.value == got.value || (wish.free != NULL && got.free != NULL)) {
            const char *both =
                wish.value == got.value
                    ? arena_printf(l->arena, " although both are %lld in '%s'",
                                   (long long)got.value, settings_section_name(l->section))
                    : "";
            DiagRef e =
                lower_error(l, E014, span, "%s %s, got %s: '%s' and '%s' are different dims%s",
                            what, wanted, value_type_text(l->arena, v), wish.text, got.text, both);
            diag_hint(l->diag, e, "transpose or rearrange the value");
            return false;
        }
        DiagRef e = lower_error(l, E012, span, "dimension mismatch: %s %s, got %s", what, wanted,
                                value_type_text(l->arena, v));
        diag_label(l->diag, e, "axis %d: %s against %s", axis, dim_with_value(l->arena, wish),
                   dim_with_value(l->arena, got));
        return false;
    }
    lower_error(l, E012, span, "dimension mismatch: %s %s, got %s", what, wanted,
                value_type_text(l->arena, v));
    return false;
}
