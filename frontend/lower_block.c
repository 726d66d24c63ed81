/* lower_block.c - a block's equations: statements in order, parameters, results. */
#include "frontend/lower.h"

#include <string.h>

static void bind_value(Lower *l, const char *name, Value v, Span span) {
    for (uint32_t i = 0; i < l->frame->env.n; i++) {
        Binding *b = &l->frame->env.data[i];
        if (strcmp(b->name, name) != 0) continue;
        *b = (Binding){.name = name, .value = v, .span = span};
        return;
    }
    vec_push(l->arena, &l->frame->env, (Binding){.name = name, .value = v, .span = span});
}

/* q, k, v = tuple */
static void bind_names(Lower *l, const Ast *stmt, const Value *v) {
    uint32_t n = stmt->n - 1;
    if (n == 1) {
        bind_value(l, stmt->child[0]->text, *v, stmt->child[0]->span);
        return;
    }
    bool fits = v->kind == VALUE_tuple && (uint32_t)v->n == n;
    if (!fits && v->kind != VALUE_none)
        lower_error(l, E009, stmt->child[n]->span, "%u names are given for %s", n,
                    value_describe(l->arena, v));
    for (uint32_t i = 0; i < n; i++)
        bind_value(l, stmt->child[i]->text, fits ? v->item[i] : (Value){0}, stmt->child[i]->span);
}

static void walk_assign(Lower *l, const Ast *stmt) {
    const Ast *e = stmt->child[stmt->n - 1];
    if (!l->frame->declaring) {
        Value v = expr_eval(l, e);
        if (v.kind == VALUE_int && stmt->n == 2) v.dim.text = stmt->child[0]->text;
        bind_names(l, stmt, &v);
        return;
    }
    /* While declaring only static values are known; others hide what the name was before. */
    Value v = expr_is_static(l, e) ? expr_eval(l, e) : (Value){0};
    bind_names(l, stmt, &v);
}

/* The condition of an `if` or assert. False after an error, with its message. */
static bool static_truth(Lower *l, const Ast *e, const char *what, bool *truth) {
    Value v = expr_eval(l, e);
    if (v.kind == VALUE_bool)
        *truth = v.truth;
    else if (v.kind != VALUE_none)
        lower_error(l, E019, e->span,
                    "the condition of %s must be true or false when compiling, got %s", what,
                    value_describe(l->arena, &v));
    return v.kind == VALUE_bool;
}

static void walk_if(Lower *l, const Ast *stmt) {
    bool truth = false;
    if (!static_truth(l, stmt->child[0], "if", &truth)) return;
    if (truth)
        walk_body(l, stmt->child[1]);
    else if (stmt->n > 2)
        walk_body(l, stmt->child[2]);
}

static void walk_assert(Lower *l, const Ast *stmt) {
    bool truth = false;
    if (l->frame->declaring || !static_truth(l, stmt->child[0], "assert", &truth) || truth) return;
    const char *why = stmt->n > 1 ? stmt->child[1]->text : "it is false for the settings in force";
    lower_error(l, E028, stmt->child[0]->span, "assertion failed: %s", why);
}

static void walk_return(Lower *l, const Ast *stmt) {
    Frame *f = l->frame;
    if (f->declaring) return;
    f->returned = true;
    for (uint32_t i = 0; i < stmt->n; i++)
        vec_push(l->arena, &f->results, expr_eval(l, stmt->child[i]));
}

static void walk_scope(Lower *l, const Ast *stmt) {
    Space *s = declare_space(l, stmt);
    l->frame->space = s;
    walk_body(l, stmt->child[0]);
    l->frame->space = s->up;
}

void walk_body(Lower *l, const Ast *body) {
    for (uint32_t i = 0; i < body->n; i++) {
        const Ast *stmt = body->child[i];
        if (l->frame->returned) {
            lower_error(l, E029, stmt->span, "nothing may follow return");
            return;
        }
        switch (stmt->kind) {
        case AST_member:
            if (l->frame->declaring) declare_member(l, stmt);
            break;
        case AST_assign: walk_assign(l, stmt); break;
        case AST_return: walk_return(l, stmt); break;
        case AST_assert: walk_assert(l, stmt); break;
        case AST_scope: walk_scope(l, stmt); break;
        default: walk_if(l, stmt); break;
        }
    }
}

/* --- calling an instance --- */

static const char *instance_name(Lower *l, const Instance *inst) {
    const char *dot = strrchr(inst->path, '.');
    if (inst->up == NULL) return inst->block->text;
    const char *name = dot != NULL ? dot + 1 : inst->path;
    return arena_printf(l->arena, "%s", name);
}

/* Check the arguments against the block's tensor parameters and bind them. */
static bool bind_params(Lower *l, Instance *inst, Frame *frame, const Value *args, int n,
                        Span span) {
    const Ast *params = inst->block->child[0];
    int next = 0;
    bool good = true;
    for (uint32_t i = 0; i < params->n; i++) {
        const Ast *p = params->child[i];
        if (p->child[0]->kind != AST_type) continue;
        if (next == n) {
            lower_error(l, E009, span, "block %s needs '%s'", inst->block->text, p->text);
            return false;
        }
        const char *what =
            arena_printf(l->arena, "'%s' expects %s:", instance_name(l, inst), p->text);
        /* The type sees the block's static parameters, a mismatch is the caller's mistake. */
        TypeWant want;
        l->frame = frame;
        bool known = eval_type(l, p->child[0], &want);
        l->frame = frame->up;
        good = known && check_type(l, &want, &args[next], what, span) && good;
        vec_push(l->arena, &frame->env,
                 (Binding){.name = p->text, .value = args[next], .span = p->span});
        next++;
    }
    if (next == n) return good;
    lower_error(l, E009, span, "block %s takes %d value%s, got %d", inst->block->text, next,
                next == 1 ? "" : "s", n);
    return false;
}

static Value check_results(Lower *l, const Instance *inst, const Frame *frame) {
    const Ast *types = inst->block->child[1];
    bool good = true;
    if (!frame->returned) {
        lower_error(l, E029, inst->block->span, "block '%s' returns nothing", inst->block->text);
        return (Value){0};
    }
    for (uint32_t i = 0; i < frame->results.n; i++)
        good &= frame->results.data[i].kind != VALUE_none;
    if (!good) return (Value){0};
    if (types->n > 0 && types->n != frame->results.n) {
        lower_error(l, E009, frame->results.data[0].span,
                    "block '%s' returns %u values, its head says %u", inst->block->text,
                    frame->results.n, types->n);
        return (Value){0};
    }
    for (uint32_t i = 0; i < types->n; i++) {
        const char *what = arena_printf(l->arena, "'%s' is declared to return", inst->block->text);
        const Value *v = &frame->results.data[i];
        TypeWant want;
        good =
            eval_type(l, types->child[i], &want) && check_type(l, &want, v, what, v->span) && good;
    }
    if (!good) return (Value){0};
    if (frame->results.n == 1) return frame->results.data[0];
    return (Value){.kind = VALUE_tuple, .n = (int)frame->results.n, .item = frame->results.data};
}

Value instance_call(Lower *l, Instance *inst, const Value *args, int n, Span span) {
    if (++l->call_count > CALLS_MAX) {
        if (l->call_count == CALLS_MAX + 1)
            lower_error(l, E026, span, "the model calls its members more than %d times", CALLS_MAX);
        return (Value){0};
    }
    Frame frame = {.up = l->frame, .instance = inst, .space = inst->root};
    inst->evaluated = true;
    if (!bind_params(l, inst, &frame, args, n, span)) return (Value){0};
    Scope scope = l->b.scope;
    l->frame = &frame;
    l->b.scope = inst->scope;
    walk_body(l, inst->block->child[2]);
    Value v = check_results(l, inst, &frame);
    l->frame = frame.up;
    l->b.scope = scope;
    v.trail = NULL;
    return v;
}
