/* lower_declare.c - declaring members: names, layers, instances of blocks, repetition.
 *
 * Declaring happens once for each place in the tree, before any equation is evaluated, so that all
 * parameters are known when a graph begins and every program shares them.
 */
#include "frontend/lower.h"
#include "frontend/suggest.h"

#include <string.h>

const Ast *block_find(const Lower *l, const char *name) {
    for (uint32_t i = 0; i < l->blocks.n; i++)
        if (strcmp(l->blocks.data[i]->text, name) == 0) return l->blocks.data[i];
    return NULL;
}

Member *member_find(const Space *s, const char *name) {
    for (uint32_t i = 0; i < s->members.n; i++)
        if (strcmp(s->members.data[i]->name, name) == 0) return s->members.data[i];
    return NULL;
}

Space *space_find(const Space *s, const char *name) {
    for (uint32_t i = 0; i < s->spaces.n; i++)
        if (strcmp(s->spaces.data[i]->name, name) == 0) return s->spaces.data[i];
    return NULL;
}

static const char *path_join(Lower *l, const char *path, const char *name) {
    return path[0] == '\0' ? name : arena_printf(l->arena, "%s.%s", path, name);
}

/* E010 when a name is taken in a space. */
static bool name_is_free(Lower *l, const Space *s, const char *name, Span span) {
    const Member *m = member_find(s, name);
    const Space *inner = space_find(s, name);
    if (m == NULL && inner == NULL) return true;
    Span first = m != NULL ? m->span : inner->span;
    lower_error(l, E010, span, "'%s' already declared at %s; checkpoint names must be unique", name,
                diag_place(l->diag, first, span));
    return false;
}

Space *declare_space(Lower *l, const Ast *stmt) {
    Space *up = l->frame->space;
    Space *s = space_find(up, stmt->text);
    if (!l->frame->declaring && s != NULL) return s;
    bool taken = !name_is_free(l, up, stmt->text, stmt->span);
    s = ARENA_NEW(l->arena, Space);
    s->broken = taken;
    s->name = stmt->text;
    s->span = stmt->span;
    s->up = up;
    s->path = path_join(l, up->path, stmt->text);
    s->key = path_join(l, up->key, stmt->text);
    vec_push(l->arena, &up->spaces, s);
    return s;
}

/* --- suffixes --- */

static bool read_count(Lower *l, Member *m, const Ast *suffix) {
    Value v = expr_eval(l, suffix->child[0]);
    m->count_span = suffix->child[0]->span;
    if (v.kind == VALUE_none) return false;
    if (v.kind != VALUE_int || v.dim.value < 1 || v.dim.free != NULL) {
        lower_error(l, E019, m->count_span,
                    "the count of 'x' must be an integer >= 1 that is known, got %s",
                    value_describe(l->arena, &v));
        return false;
    }
    if (v.dim.value > REPEAT_MAX) {
        lower_error(l, E026, m->count_span, "repeat of %lld is over the limit of %d",
                    (long long)v.dim.value, REPEAT_MAX);
        return false;
    }
    m->count = v.dim.value;
    return true;
}

/* `x COUNT` and `as NAME`. *alias is the name in checkpoints. */
static bool read_suffixes(Lower *l, Member *m, const Ast *stmt, const char **alias) {
    for (uint32_t i = 1; i < stmt->n; i++) {
        const Ast *suffix = stmt->child[i];
        if (strcmp(suffix->text, "x") == 0 && m->count == 0) {
            if (!read_count(l, m, suffix)) return false;
        } else if (strcmp(suffix->text, "as") == 0 && suffix->child[0]->kind == AST_string) {
            *alias = suffix->child[0]->text;
            bool plain = **alias != '\0' && strpbrk(*alias, ".*/\" \n\t") == NULL;
            if (!plain) {
                lower_error(l, E019, suffix->child[0]->span,
                            "a checkpoint name has no dots, blanks, '*' or '/'");
                return false;
            }
        } else {
            DiagRef e =
                lower_error(l, E005, suffix->span,
                            "unknown suffix '%s'; repetition is written 'x 3'", suffix->text);
            diag_hint(l->diag, e, "the suffixes are x COUNT and as \"name\"");
            return false;
        }
    }
    return true;
}

/* --- layers and blocks --- */

static void report_unknown_layer(Lower *l, const Ast *ctor) {
    Suggest s = suggest_begin(ctor->text);
    for (int i = 0; layer_at(i) != NULL; i++) suggest_offer(&s, layer_at(i)->name);
    for (uint32_t i = 0; i < l->blocks.n; i++) suggest_offer(&s, l->blocks.data[i]->text);
    DiagRef e =
        lower_error(l, E007, ctor->span, "unknown layer or block '%s'%s", ctor->text,
                    s.best != NULL ? arena_printf(l->arena, "; did you mean '%s'?", s.best) : "");
    if (function_find(ctor->text) != NULL)
        diag_hint(l->diag, e, "'%s' is a function: use it in an equation, y = x |> %s", ctor->text,
                  ctor->text);
}

/* The instance in which a layer's parameters stand: with one more stack axis when it is repeated.
 */
static Instance *instance_for_layer(Lower *l, const Member *m, Instance *up) {
    Instance *inst = ARENA_NEW(l->arena, Instance);
    *inst = *up;
    inst->key = m->key;
    if (m->count == 0) return inst;
    if (inst->nstack == STACK_MAX) {
        lower_error(l, E026, m->span, "repeats are nested deeper than the limit of %d", STACK_MAX);
        return NULL;
    }
    inst->stack[inst->nstack++] = m->count;
    return inst;
}

static void declare_layer(Lower *l, Member *m, const Ast *ctor) {
    Signature sig = signature_parse(l->arena, m->layer->name, m->layer->signature);
    m->args = ARENA_ARRAY(l->arena, Value, sig.n + 1);
    Instance *inst = instance_for_layer(l, m, l->frame->instance);
    if (inst == NULL ||
        !bind_args(l, &sig, ctor->n > 0 ? ctor->child[0] : NULL, NULL, ctor->span, m->args)) {
        m->broken = true;
        return;
    }
    m->layer->declare(l, m, inst);
}

void declare_member(Lower *l, const Ast *stmt) {
    Space *space = l->frame->space;
    const Ast *ctor = stmt->child[0];
    if (!name_is_free(l, space, stmt->text, stmt->span)) return;
    Member *m = ARENA_NEW(l->arena, Member);
    m->name = stmt->text;
    m->span = stmt->span;
    vec_push(l->arena, &space->members, m);
    const char *alias = stmt->text;
    m->broken = !read_suffixes(l, m, stmt, &alias);
    m->path = path_join(l, space->path, alias);
    m->key = path_join(l, space->key, alias);
    if (m->count > 0) {
        m->path = arena_printf(l->arena, "%s.0", m->path);
        m->key = arena_printf(l->arena, "%s.*", m->key);
    }
    m->scope = module_scope(l->mod, m->key);
    m->layer = layer_find(ctor->text);
    const Ast *block = m->layer == NULL ? block_find(l, ctor->text) : NULL;
    if (m->broken) {
        m->layer = NULL;
    } else if (m->layer != NULL) {
        declare_layer(l, m, ctor);
    } else if (block != NULL) {
        m->instance =
            instance_new(l, block, m, ctor->n > 0 ? ctor->child[0] : NULL, l->frame->instance);
        m->broken = m->instance == NULL;
    } else {
        report_unknown_layer(l, ctor);
        m->broken = true;
    }
}

/* --- instances --- */

/* Static parameters: given by the declaration, else by their default, which sees those before. */
static bool bind_statics(Lower *l, Instance *inst, const Ast *args, Span span) {
    const Ast *params = inst->block->child[0];
    Signature sig = {.name = inst->block->text};
    const Ast *fallback[ARGS_MAX];
    for (uint32_t i = 0; i < params->n; i++) {
        const Ast *p = params->child[i];
        if (p->child[0]->kind == AST_type) continue;
        if (sig.n == ARGS_MAX) {
            lower_error(l, E026, p->span, "a block has at most %d static parameters", ARGS_MAX);
            return false;
        }
        fallback[sig.n] = p->child[0];
        sig.arg[sig.n++] = (ArgSpec){.name = p->text, .kind = ARG_any, .optional = true};
    }
    Value values[ARGS_MAX] = {{0}};
    if (!bind_args(l, &sig, args, NULL, span, values)) return false;
    Frame frame = {.up = l->frame, .instance = inst, .space = inst->root, .declaring = true};
    l->frame = &frame;
    bool good = true;
    for (int i = 0; i < sig.n; i++) {
        if (values[i].kind == VALUE_none) values[i] = expr_eval(l, fallback[i]);
        good &= values[i].kind != VALUE_none;
        if (values[i].kind == VALUE_tensor) {
            lower_error(l, E019, values[i].span,
                        "'%s' of block %s must be known when it is declared", sig.arg[i].name,
                        sig.name);
            good = false;
        }
        vec_push(l->arena, &inst->statics,
                 (Binding){.name = sig.arg[i].name, .value = values[i], .span = fallback[i]->span});
    }
    l->frame = frame.up;
    return good;
}

static bool instance_allowed(Lower *l, const Ast *block, const Instance *up, Span span) {
    for (const Instance *i = up; i != NULL; i = i->up) {
        if (i->block != block) continue;
        lower_error(l, E029, span, "block '%s' contains itself", block->text);
        return false;
    }
    if (up != NULL && up->depth >= CALL_DEPTH_MAX) {
        lower_error(l, E026, span, "blocks are nested deeper than the limit of %d", CALL_DEPTH_MAX);
        return false;
    }
    if (++l->instance_count == INSTANCES_MAX + 1)
        lower_error(l, E026, span, "the model has more than %d instances of blocks", INSTANCES_MAX);
    return l->instance_count <= INSTANCES_MAX;
}

Instance *instance_new(Lower *l, const Ast *block, const Member *m, const Ast *args, Instance *up) {
    Span span = m != NULL ? m->span : block->span;
    if (!instance_allowed(l, block, up, span)) return NULL;
    Instance *inst = ARENA_NEW(l->arena, Instance);
    inst->block = block;
    inst->up = up;
    inst->path = m != NULL ? m->path : "";
    inst->key = m != NULL ? m->key : "";
    inst->scope = m != NULL ? m->scope : (Scope){0};
    inst->declared = span;
    if (up != NULL) {
        inst->depth = up->depth + 1;
        inst->repeated = up->repeated;
        inst->nstack = up->nstack;
        memcpy(inst->stack, up->stack, sizeof(inst->stack));
    }
    if (m != NULL && m->count > 0) {
        inst->repeated = m->span;
        if (inst->nstack == STACK_MAX) {
            lower_error(l, E026, span, "repeats are nested deeper than the limit of %d", STACK_MAX);
            return NULL;
        }
        inst->stack[inst->nstack++] = m->count;
    }
    for (uint32_t i = 0; i < l->blocks.n; i++)
        if (l->blocks.data[i] == block) l->block_used[i] = true;
    inst->root = ARENA_NEW(l->arena, Space);
    inst->root->path = inst->path;
    inst->root->key = inst->key;
    if (!bind_statics(l, inst, args, span)) return NULL;
    Frame frame = {.up = l->frame, .instance = inst, .space = inst->root, .declaring = true};
    for (uint32_t i = 0; i < block->child[0]->n; i++) { /* tensors: not known yet, but they hide */
        const Ast *p = block->child[0]->child[i];
        if (p->child[0]->kind == AST_type)
            vec_push(l->arena, &frame.env, (Binding){.name = p->text, .span = p->span});
    }
    l->frame = &frame;
    walk_body(l, block->child[2]);
    l->frame = frame.up;
    return inst;
}

/* --- unused members --- */

static void report_unused_in(Lower *l, const Space *s) {
    if (s->broken) return;
    for (uint32_t i = 0; i < s->members.n; i++) {
        const Member *m = s->members.data[i];
        if (m->uses == 0 && !m->broken) {
            DiagRef e = lower_error(
                l, E011, m->span,
                "'%s' is declared but never called; its parameters would get no gradient", m->name);
            diag_hint(l->diag, e, "call it in an equation or remove the declaration");
        } else if (m->instance != NULL && m->instance->evaluated) {
            report_unused_members(l, m->instance);
        }
    }
    for (uint32_t i = 0; i < s->spaces.n; i++) report_unused_in(l, s->spaces.data[i]);
}

void report_unused_members(Lower *l, const Instance *inst) {
    Frame frame = {.up = l->frame, .instance = (Instance *)(uintptr_t)inst, .space = inst->root};
    l->frame = &frame;
    report_unused_in(l, inst->root);
    l->frame = frame.up;
}
