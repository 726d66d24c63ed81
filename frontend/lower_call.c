/* lower_call.c - arguments against signatures, and finding out what a call calls. */
#include "frontend/lower.h"
#include "frontend/suggest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- one argument --- */

static bool refuse(Lower *l, const ArgSpec *spec, const Value *v, Span span) {
    if (v->kind == VALUE_none) return false;
    lower_error(l, E019, span, "'%s' must be %s, got %s", spec->name,
                signature_wants(l->arena, spec), value_describe(l->arena, v));
    return false;
}

static bool number_fits(ArgKind kind, double x) {
    switch (kind) {
    case ARG_nonneg: return x >= 0;
    case ARG_positive: return x > 0;
    case ARG_share: return x >= 0 && x <= 1;
    case ARG_shares: return x >= 0 && x < 1;
    default: return true;
    }
}

static bool all_items(const Value *v, ValueKind kind, int64_t least) {
    for (int i = 0; i < v->n; i++)
        if (v->item[i].kind != kind || (kind == VALUE_int && v->item[i].dim.value < least))
            return false;
    return true;
}

/* Make a tuple of one out of a single value of `kind`. */
static void wrap_single(Lower *l, Value *v, ValueKind kind) {
    if (v->kind != kind) return;
    Value *one = ARENA_NEW(l->arena, Value);
    *one = *v;
    *v = (Value){.kind = VALUE_tuple, .span = one->span, .item = one, .n = 1};
}

static bool convert_tuple(Lower *l, const ArgSpec *spec, Value *v, Span span) {
    ValueKind kind = spec->kind == ARG_strs      ? VALUE_str
                     : spec->kind == ARG_tensors ? VALUE_tensor
                                                 : VALUE_int;
    if (spec->kind == ARG_shares) {
        bool fits = v->kind == VALUE_tuple && v->n == 2;
        for (int i = 0; fits && i < 2; i++) {
            double x = 0;
            fits = value_number(&v->item[i], &x) && number_fits(ARG_shares, x);
            if (fits) v->item[i] = value_float(x);
        }
        return fits || refuse(l, spec, v, span);
    }
    wrap_single(l, v, kind);
    if (v->kind != VALUE_tuple || v->n == 0) return refuse(l, spec, v, span);
    for (int i = 0; i < v->n; i++)
        if (v->item[i].kind == VALUE_none) return false;
    if (!all_items(v, kind, spec->kind == ARG_pair ? 0 : INT64_MIN))
        return refuse(l, spec, v, span);
    if (spec->kind != ARG_pair) return true;
    if (v->n > 2) return refuse(l, spec, v, span);
    if (v->n == 1) {
        Value *two = ARENA_ARRAY(l->arena, Value, 2);
        two[0] = two[1] = v->item[0];
        v->item = two;
        v->n = 2;
    }
    return true;
}

bool convert_arg(Lower *l, const ArgSpec *spec, Value *v, Span span) {
    if (v->kind == VALUE_none) return false;
    double x = 0;
    switch (spec->kind) {
    case ARG_any: return true;
    case ARG_tensor: return v->kind == VALUE_tensor || refuse(l, spec, v, span);
    case ARG_int: return v->kind == VALUE_int || refuse(l, spec, v, span);
    case ARG_size:
    case ARG_count: {
        int64_t least = spec->kind == ARG_count ? 1 : 0;
        return (v->kind == VALUE_int && v->dim.value >= least) || refuse(l, spec, v, span);
    }
    case ARG_float:
    case ARG_nonneg:
    case ARG_positive:
    case ARG_share:
        if (!value_number(v, &x) || !number_fits(spec->kind, x)) return refuse(l, spec, v, span);
        v->kind = VALUE_float;
        v->number = x;
        return true;
    case ARG_bool: return v->kind == VALUE_bool || refuse(l, spec, v, span);
    case ARG_str: return v->kind == VALUE_str || refuse(l, spec, v, span);
    case ARG_tensors:
    case ARG_ints:
    case ARG_pair:
    case ARG_shares:
    case ARG_strs: return convert_tuple(l, spec, v, span);
    default: return refuse(l, spec, v, span);
    }
}

static Value eval_word(Lower *l, const ArgSpec *spec, const Ast *e) {
    Value v = {0};
    if (e->kind == AST_name || e->kind == AST_string) {
        if (signature_has_word(spec->words, e->text)) {
            v = value_str(e->text);
            return v;
        }
        lower_error(l, E019, e->span, "'%s' must be %s, got '%s'", spec->name,
                    signature_wants(l->arena, spec), e->text);
        return v;
    }
    Value got = expr_eval(l, e);
    refuse(l, spec, &got, e->span);
    return v;
}

static Value eval_setting(Lower *l, const ArgSpec *spec, const Ast *e) {
    SettingKind kind = spec->kind == ARG_init        ? SETTING_INIT
                       : spec->kind == ARG_optimizer ? SETTING_OPTIMIZER
                       : spec->kind == ARG_schedule  ? SETTING_SCHEDULE
                                                     : SETTING_DATA;
    Value v = {0};
    const Ast *name = e->kind == AST_call ? e->child[0] : e;
    if (name->kind != AST_name) {
        Value got = expr_eval(l, e);
        refuse(l, spec, &got, e->span);
        return v;
    }
    const SettingFn *fn = setting_find(kind, name->text);
    if (fn == NULL) {
        Suggest s = suggest_begin(name->text);
        for (int i = 0; i < SETFN_COUNT; i++)
            if (setting_at(i)->kind == kind) suggest_offer(&s, setting_at(i)->name);
        DiagRef r = lower_error(
            l, E007, name->span, "unknown %s '%s'%s", setting_kind_text(kind), name->text,
            s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
        const char *all = "";
        for (int i = 0; i < SETFN_COUNT; i++)
            if (setting_at(i)->kind == kind)
                all = arena_printf(l->arena, "%s%s%s", all, *all != '\0' ? ", " : "",
                                   setting_at(i)->name);
        diag_hint(l->diag, r, "there are %s", all);
        return v;
    }
    Signature sig = signature_parse(l->arena, fn->name, fn->signature);
    Value *args = ARENA_ARRAY(l->arena, Value, sig.n + 1);
    if (!bind_args(l, &sig, e->kind == AST_call ? e->child[1] : NULL, NULL, e->span, args))
        return v;
    return (Value){.kind = VALUE_setting, .span = e->span, .fn = fn, .item = args, .n = sig.n};
}

Value eval_arg(Lower *l, const ArgSpec *spec, const Ast *e) {
    Value v = {0};
    switch (spec->kind) {
    case ARG_word: v = eval_word(l, spec, e); break;
    case ARG_init:
    case ARG_optimizer:
    case ARG_schedule:
    case ARG_data: v = eval_setting(l, spec, e); break;
    case ARG_expr:
    case ARG_path: v = (Value){.kind = VALUE_expr, .ast = e}; break;
    case ARG_pattern:
        if (e->kind == AST_arrow)
            v = (Value){.kind = VALUE_expr, .ast = e};
        else
            lower_error(l, E019, e->span, "'%s' must be %s", spec->name,
                        signature_wants(l->arena, spec));
        break;
    default:
        if (e->kind == AST_arrow) {
            lower_error(l, E019, e->span,
                        "a pattern [..] -> [..] is an argument of rearrange only");
            break;
        }
        v = expr_eval(l, e);
        if (!convert_arg(l, spec, &v, e->span)) v.kind = VALUE_none;
        break;
    }
    v.span = e->span;
    return v;
}

/* The default of an argument, from the text of its signature. */
static Value fallback_value(Lower *l, const ArgSpec *spec) {
    Value v = {0};
    if (spec->fallback == NULL) return v;
    Sources scratch;
    sources_init(&scratch, l->arena);
    uint32_t file = source_add(&scratch, "signature", spec->fallback, strlen(spec->fallback));
    Span all = {file, 0, (uint32_t)strlen(spec->fallback)};
    if (spec->kind == ARG_word) return value_str(spec->fallback);
    const Ast *e = parse_expression(l->arena, &scratch, l->diag, all);
    return e != NULL ? eval_arg(l, spec, e) : v;
}

/* --- a list of arguments --- */

static void report_unknown_arg(Lower *l, const Signature *s, const Ast *arg) {
    Suggest near = suggest_begin(arg->text);
    for (int i = 0; i < s->n; i++) suggest_offer(&near, s->arg[i].name);
    DiagRef e = lower_error(
        l, E008, arg->span, "%s has no argument '%s'%s", s->name, arg->text,
        near.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", near.best) : "");
    diag_note(l->diag, e, "%s", signature_text(l->arena, s));
}

static bool report_surplus(Lower *l, const Signature *s, Span span) {
    DiagRef e = lower_error(l, E009, span, "%s takes %d argument%s at most", s->name, s->n,
                            s->n == 1 ? "" : "s");
    diag_note(l->diag, e, "%s", signature_text(l->arena, s));
    return false;
}

/* Evaluate one written argument into its place. */
static bool bind_one(Lower *l, const Signature *s, const Ast *arg, int *position, bool *given,
                     Value *out) {
    int i = *position;
    if (arg->text != NULL) {
        i = signature_find(s, arg->text);
        if (i < 0) {
            report_unknown_arg(l, s, arg);
            return false;
        }
    } else if (arg->child[0]->kind == AST_arrow) {
        /* A pattern finds its argument by its kind. */
        for (i = 0; i < s->n && s->arg[i].kind != ARG_pattern; i++) {
        }
    } else {
        while (i < s->n && given[i]) i++;
        *position = i + 1;
    }
    if (i >= s->n) return report_surplus(l, s, arg->span);
    if (given[i]) {
        lower_error(l, E009, arg->span, "%s got '%s' twice", s->name, s->arg[i].name);
        return false;
    }
    given[i] = true;
    out[i] = eval_arg(l, &s->arg[i], arg->child[0]);
    return out[i].kind != VALUE_none;
}

bool bind_args(Lower *l, const Signature *s, const Ast *args, const Value *piped, Span span,
               Value *out) {
    bool given[ARGS_MAX] = {false}, good = true;
    int position = 0;
    if (piped != NULL) {
        if (s->n == 0) return report_surplus(l, s, span);
        out[0] = *piped;
        given[0] = true;
        good = convert_arg(l, &s->arg[0], &out[0], piped->span);
        position = 1;
    }
    for (uint32_t i = 0; args != NULL && i < args->n; i++)
        good &= bind_one(l, s, args->child[i], &position, given, out);
    for (int i = 0; i < s->n; i++) {
        if (given[i]) continue;
        if (s->arg[i].optional) {
            out[i] = fallback_value(l, &s->arg[i]);
        } else if (good) {
            lower_error(l, E009, span, "%s needs '%s'", signature_text(l->arena, s),
                        s->arg[i].name);
            good = false;
        }
    }
    return good;
}

/* --- what is called --- */

static void report_unknown_function(Lower *l, const Ast *name) {
    Suggest s = suggest_begin(name->text);
    for (int i = 0; function_at(i) != NULL; i++) suggest_offer(&s, function_at(i)->name);
    for (Space *space = l->frame != NULL ? l->frame->space : NULL; space != NULL; space = space->up)
        for (uint32_t i = 0; i < space->members.n; i++)
            suggest_offer(&s, space->members.data[i]->name);
    DiagRef e =
        lower_error(l, E007, name->span, "unknown layer or function '%s'%s", name->text,
                    s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
    if (layer_find(name->text) != NULL || block_find(l, name->text) != NULL)
        diag_hint(l->diag, e, "'%s' has parameters: declare a member (m: %s%s) and call that",
                  name->text, name->text, layer_find(name->text) != NULL ? "(...)" : "");
}

/* Arguments of a member: tensors by position. */
static Value call_member(Lower *l, Member *m, const Ast *args, const Value *piped, Span span) {
    Value values[ARGS_MAX];
    int n = 0;
    if (piped != NULL) values[n++] = *piped;
    for (uint32_t i = 0; args != NULL && i < args->n; i++) {
        const Ast *arg = args->child[i];
        if (arg->text != NULL || arg->child[0]->kind == AST_arrow || n == ARGS_MAX) {
            lower_error(l, E008, arg->span, "member '%s' is called on values by position", m->name);
            return (Value){0};
        }
        values[n] = expr_eval(l, arg->child[0]);
        values[n].span = arg->span;
        if (values[n].kind == VALUE_none) {
            m->uses++; /* it was called; the mistake is elsewhere */
            return (Value){0};
        }
        n++;
    }
    return member_call(l, m, values, n, span);
}

static Value call_function(Lower *l, const FunctionSpec *fn, const Ast *args, const Value *piped,
                           Span span) {
    Signature sig = signature_parse(l->arena, fn->name, fn->signature);
    Value *values = ARENA_ARRAY(l->arena, Value, sig.n + 1);
    if (!bind_args(l, &sig, args, piped, span, values)) return (Value){0};
    Call c = {.fn = fn, .arg = values, .span = span};
    l->b.span = span;
    Value v = fn->apply(l, &c);
    v.span = span;
    return v;
}

static bool maps_over_tuple(const FunctionSpec *fn, const Value *piped) {
    if (piped == NULL || piped->kind != VALUE_tuple) return false;
    return fn == NULL || strncmp(fn->signature, "parts: tensors", 14) != 0;
}

static Value call_one(Lower *l, Member *m, const FunctionSpec *fn, const Ast *args,
                      const Value *piped, Span span) {
    return m != NULL ? call_member(l, m, args, piped, span)
                     : call_function(l, fn, args, piped, span);
}

Value call_apply(Lower *l, const Ast *callee, const Ast *args, const Value *piped, Span span) {
    Space *space = NULL;
    Member *m = callee->kind == AST_name || callee->kind == AST_field
                    ? path_member(l, callee, &space)
                    : NULL;
    const FunctionSpec *fn =
        m == NULL && callee->kind == AST_name ? function_find(callee->text) : NULL;
    if (m == NULL && fn == NULL) {
        if (callee->kind == AST_name && space == NULL)
            report_unknown_function(l, callee);
        else if (callee->kind != AST_field || space != NULL)
            lower_error(l, E007, callee->span, "'%s' cannot be called", ast_text(l->arena, callee));
        else
            expr_eval(l, callee); /* says which part of the path is unknown */
        return (Value){0};
    }
    if (!maps_over_tuple(fn, piped)) return call_one(l, m, fn, args, piped, span);
    Value v = {.kind = VALUE_tuple,
               .span = span,
               .n = piped->n,
               .item = ARENA_ARRAY(l->arena, Value, piped->n)};
    bool good = true;
    for (int i = 0; i < piped->n; i++) {
        v.item[i] = call_one(l, m, fn, args, &piped->item[i], span);
        good &= v.item[i].kind != VALUE_none;
        if (!good) break;
    }
    return good ? v : (Value){0};
}
