/* value.c - making and describing values; see value.h. */
#include "frontend/value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/settings.h"

Value value_int(Dim dim) { return (Value){.kind = VALUE_int, .dim = dim}; }

Value value_float(double number) { return (Value){.kind = VALUE_float, .number = number}; }

Value value_bool(bool truth) { return (Value){.kind = VALUE_bool, .truth = truth}; }

Value value_str(const char *s) { return (Value){.kind = VALUE_str, .s = s}; }

const char *value_type_text(Arena *a, const Value *v) {
    return arena_printf(a, "%s %s", dtype_name(v->dtype), dims_text(a, v->dims, v->ndim));
}

const char *value_describe(Arena *a, const Value *v) {
    switch (v->kind) {
    case VALUE_int: return arena_printf(a, "the integer %" PRId64, v->dim.value);
    case VALUE_float: return arena_printf(a, "the number %s", value_text(a, v));
    case VALUE_bool: return v->truth ? "true" : "false";
    case VALUE_str: return arena_printf(a, "the string \"%s\"", v->s);
    case VALUE_tuple: return arena_printf(a, "a tuple of %d", v->n);
    case VALUE_tensor: return arena_printf(a, "a tensor %s", value_type_text(a, v));
    case VALUE_setting: return arena_printf(a, "%s(...)", v->fn->name);
    case VALUE_expr: return "an expression";
    case VALUE_none: break;
    }
    return "nothing";
}

/* The shortest decimal that reads back to the same double. */
static const char *float_text(Arena *a, double x) {
    for (int digits = 1; digits <= 17; digits++) {
        const char *text = arena_printf(a, "%.*g", digits, x);
        if (strtod(text, NULL) == x) return text;
    }
    return arena_printf(a, "%.17g", x);
}

static const char *items_text(Arena *a, const Value *v) {
    const char *text = "(";
    for (int i = 0; i < v->n; i++)
        text = arena_printf(a, "%s%s%s", text, i > 0 ? ", " : "", value_text(a, &v->item[i]));
    return arena_printf(a, "%s)", text);
}

const char *value_text(Arena *a, const Value *v) {
    switch (v->kind) {
    case VALUE_int: return arena_printf(a, "%" PRId64, v->dim.value);
    case VALUE_float: return float_text(a, v->number);
    case VALUE_bool: return v->truth ? "true" : "false";
    case VALUE_str: return v->s;
    case VALUE_tuple: return items_text(a, v);
    case VALUE_setting: return v->fn->name;
    case VALUE_expr: return ast_text(a, v->ast);
    default: return "";
    }
}

bool value_is_static(const Value *v) {
    if (v->kind == VALUE_tuple) {
        for (int i = 0; i < v->n; i++)
            if (!value_is_static(&v->item[i])) return false;
        return true;
    }
    return v->kind != VALUE_tensor && v->kind != VALUE_none;
}

bool value_number(const Value *v, double *number) {
    if (v->kind == VALUE_int)
        *number = (double)v->dim.value;
    else if (v->kind == VALUE_float)
        *number = v->number;
    else
        return false;
    return true;
}
