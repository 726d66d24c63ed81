/* lower_expr.c - evaluating expressions: names, literals, tuples, paths, indices. */
#include "frontend/lower.h"
#include "frontend/suggest.h"

#include <string.h>

/* --- names --- */

static Binding *binding_find(const Lower *l, const char *name) {
    if (l->frame == NULL) return NULL;
    for (uint32_t i = l->frame->env.n; i-- > 0;)
        if (strcmp(l->frame->env.data[i].name, name) == 0) return &l->frame->env.data[i];
    Instance *inst = l->frame->instance;
    for (uint32_t i = 0; i < inst->statics.n; i++)
        if (strcmp(inst->statics.data[i].name, name) == 0) return &inst->statics.data[i];
    return NULL;
}

static void report_unknown_name(Lower *l, const Ast *e) {
    Suggest s = suggest_begin(e->text);
    Span place = {0};
    const char *best = NULL;
    for (uint32_t i = 0; l->frame != NULL && i < l->frame->env.n; i++) {
        suggest_offer(&s, l->frame->env.data[i].name);
        if (s.best != best) best = s.best, place = l->frame->env.data[i].span;
    }
    for (Space *space = l->frame != NULL ? l->frame->space : NULL; space != NULL;
         space = space->up) {
        for (uint32_t i = 0; i < space->members.n; i++) {
            suggest_offer(&s, space->members.data[i]->name);
            if (s.best != best) best = s.best, place = space->members.data[i]->span;
        }
    }
    for (uint32_t i = 0; i < l->settings.dims.n; i++) {
        suggest_offer(&s, l->settings.dims.data[i].name);
        if (s.best != best) best = s.best, place = l->settings.dims.data[i].span;
    }
    for (uint32_t i = 0; i < l->settings.config.n; i++) {
        suggest_offer(&s, l->settings.config.data[i].name);
        if (s.best != best) best = s.best, place = l->settings.config.data[i].span;
    }
    const char *advice = "";
    if (best != NULL)
        advice = arena_printf(l->arena, "; did you mean '%s' (defined at %s)?", best,
                              diag_place(l->diag, place, e->span));
    DiagRef r = lower_error(l, E006, e->span, "unknown name '%s'%s", e->text, advice);
    if (best == NULL && function_find(e->text) != NULL)
        diag_hint(l->diag, r, "'%s' is a function: call it or pipe a value into it", e->text);
}

static Value eval_name(Lower *l, const Ast *e) {
    Binding *b = binding_find(l, e->text);
    if (b != NULL) {
        b->used = true;
        return b->value;
    }
    const DimDecl *d = dim_find(l, e->text);
    if (d != NULL) {
        Dim dim;
        if (dim_value(l, d, &dim)) return value_int(dim);
        if (d->is_free && l->frame == NULL)
            lower_error(l, E014, e->span, "'%s' is a free dimension: it has no value here",
                        e->text);
        return (Value){0}; /* a free dim without a value had its message when the program began */
    }
    const Value *c = config_find(l, e->text);
    if (c != NULL) {
        Value v = *c;
        if (v.kind == VALUE_int) v.dim.text = e->text;
        return v;
    }
    Space *space = NULL;
    Member *m = path_member(l, e, &space);
    if (m != NULL) {
        m->uses++;
        lower_error(l, E019, e->span, "member '%s' is used as a value; call it: %s(x)", e->text,
                    e->text);
    } else if (space != NULL) {
        lower_error(l, E019, e->span, "'%s' is a scope, not a value", e->text);
    } else {
        report_unknown_name(l, e);
    }
    return (Value){0};
}

/* --- paths --- */

Member *path_member(Lower *l, const Ast *path, Space **space) {
    *space = NULL;
    if (l->frame == NULL) return NULL;
    if (path->kind == AST_name) {
        if (binding_find(l, path->text) != NULL) return NULL; /* values hide members */
        for (Space *s = l->frame->space; s != NULL; s = s->up) {
            Member *m = member_find(s, path->text);
            if (m != NULL) return m;
            *space = space_find(s, path->text);
            if (*space != NULL) return NULL;
        }
        return NULL;
    }
    if (path->kind != AST_field) return NULL;
    Space *outer = NULL;
    Member *owner = path_member(l, path->child[0], &outer);
    if (owner != NULL && owner->instance != NULL) outer = owner->instance->root;
    if (outer == NULL) return NULL;
    Member *m = member_find(outer, path->text);
    if (m == NULL) *space = space_find(outer, path->text);
    return m;
}

static Value eval_field(Lower *l, const Ast *e) {
    Space *space = NULL, *outer = NULL;
    Member *m = path_member(l, e, &space);
    if (m != NULL || space != NULL) {
        if (m != NULL) m->uses++;
        lower_error(l, E019, e->span, "'%s' is used as a value; call it", ast_text(l->arena, e));
        return (Value){0};
    }
    Member *owner = path_member(l, e->child[0], &outer);
    if (owner != NULL && owner->instance != NULL) outer = owner->instance->root;
    if (owner != NULL && outer == NULL) {
        lower_error(l, E006, e->span,
                    "'%s' has no member '%s'; parameters are named only in weight = ...",
                    owner->name, e->text);
    } else if (outer != NULL) {
        Suggest s = suggest_begin(e->text);
        for (uint32_t i = 0; i < outer->members.n; i++)
            suggest_offer(&s, outer->members.data[i]->name);
        lower_error(l, E006, e->span, "'%s' has no member '%s'%s", ast_text(l->arena, e->child[0]),
                    e->text,
                    s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
    } else {
        Value v = expr_eval(l, e->child[0]);
        if (v.kind != VALUE_none)
            lower_error(l, E019, e->span, "%s has no field '%s'", value_describe(l->arena, &v),
                        e->text);
    }
    return (Value){0};
}

/* --- tuples and indices --- */

static Value eval_tuple(Lower *l, const Ast *e) {
    Value v = {.kind = VALUE_tuple, .n = (int)e->n, .item = ARENA_ARRAY(l->arena, Value, e->n + 1)};
    bool good = true;
    for (uint32_t i = 0; i < e->n; i++) {
        if (e->child[i]->kind == AST_group) {
            lower_error(l, E019, e->child[i]->span,
                        "a group (H K) belongs in the pattern of rearrange");
            return (Value){0};
        }
        v.item[i] = expr_eval(l, e->child[i]);
        good &= v.item[i].kind != VALUE_none;
    }
    return good ? v : (Value){0};
}

static Value eval_index(Lower *l, const Ast *e) {
    Value v = expr_eval(l, e->child[0]);
    const Ast *list = e->child[1];
    if (v.kind == VALUE_none) return v;
    if (list->n != 1 || v.kind != VALUE_tuple) {
        DiagRef r =
            lower_error(l, E019, e->span, "%s cannot be indexed", value_describe(l->arena, &v));
        if (v.kind == VALUE_tensor)
            diag_hint(l->diag, r, "slice(x, axis, begin, end) takes a part of a tensor");
        return (Value){0};
    }
    Value at = expr_eval(l, list->child[0]);
    if (at.kind == VALUE_none) return at;
    int64_t i = at.dim.value < 0 ? at.dim.value + v.n : at.dim.value;
    if (at.kind != VALUE_int || i < 0 || i >= v.n) {
        lower_error(l, E019, list->span, "index must be an integer below %d, got %s", v.n,
                    value_describe(l->arena, &at));
        return (Value){0};
    }
    return v.item[i];
}

/* --- operators --- */

static Value eval_pipe(Lower *l, const Ast *e) {
    Value piped = expr_eval(l, e->child[0]);
    const Ast *to = e->child[1];
    const Ast *callee = to->kind == AST_call ? to->child[0] : to;
    if (piped.kind == VALUE_none) {
        /* What stands to the right was called all the same: it is not an unused member. */
        Space *space = NULL;
        Member *m = path_member(l, callee, &space);
        if (m != NULL) m->uses++;
        return piped;
    }
    piped.span = e->child[0]->span;
    if (callee->kind != AST_name && callee->kind != AST_field) {
        lower_error(l, E007, to->span, "a value is piped into a function or a member, not into %s",
                    ast_text(l->arena, to));
        return (Value){0};
    }
    return call_apply(l, callee, to->kind == AST_call ? to->child[1] : NULL, &piped, to->span);
}

static Value eval_logic(Lower *l, const Ast *e) {
    Value x = expr_eval(l, e->child[0]);
    if (x.kind == VALUE_bool && x.truth == (e->op == AST_OP_or)) return x; /* decided */
    Value y = expr_eval(l, e->child[1]);
    return operate(l, e->op, &x, &y, e->span);
}

Value expr_eval(Lower *l, const Ast *e) {
    Value v = {0};
    l->b.span = e->span;
    switch (e->kind) {
    case AST_name: v = eval_name(l, e); break;
    case AST_number:
        v = e->is_integer ? value_int(dim_bound(e->integer, e->text)) : value_float(e->u.number);
        if (e->is_integer && strpbrk(e->text, "KMGBi") != NULL)
            v.dim = dim_number(l->arena, e->integer);
        break;
    case AST_string: v = value_str(e->text); break;
    case AST_bool: v = value_bool(e->u.truth); break;
    case AST_list:
    case AST_tuple: v = eval_tuple(l, e); break;
    case AST_field: v = eval_field(l, e); break;
    case AST_index: v = eval_index(l, e); break;
    case AST_call: v = call_apply(l, e->child[0], e->child[1], NULL, e->span); break;
    case AST_unary: {
        Value x = expr_eval(l, e->child[0]);
        v = operate_unary(l, e->op, &x, e->span);
        break;
    }
    case AST_binary:
        if (e->op == AST_OP_pipe)
            v = eval_pipe(l, e);
        else if (e->op == AST_OP_and || e->op == AST_OP_or)
            v = eval_logic(l, e);
        else {
            Value x = expr_eval(l, e->child[0]), y = expr_eval(l, e->child[1]);
            v = operate(l, e->op, &x, &y, e->span);
        }
        break;
    default: lower_error(l, E019, e->span, "this cannot stand in an expression"); break;
    }
    v.span = e->span;
    return v;
}

static bool name_is_static(const Lower *l, const char *name) {
    const Binding *b = binding_find(l, name);
    if (b != NULL) return value_is_static(&b->value);
    return dim_find(l, name) != NULL || config_find(l, name) != NULL;
}

bool expr_is_static(const Lower *l, const Ast *e) {
    if (e->kind == AST_name) return name_is_static(l, e->text);
    if (e->kind == AST_field) return false;
    if (e->kind == AST_call) {
        const FunctionSpec *fn =
            e->child[0]->kind == AST_name ? function_find(e->child[0]->text) : NULL;
        if (fn == NULL || !fn->is_static) return false;
        return expr_is_static(l, e->child[1]);
    }
    if (e->kind == AST_binary && e->op == AST_OP_pipe) return false;
    for (uint32_t i = 0; i < e->n; i++)
        if (!expr_is_static(l, e->child[i])) return false;
    return true;
}
