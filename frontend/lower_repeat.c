/* lower_repeat.c - calling members; `x N` as one repeat node over stacked parameters. */
#include "frontend/layer_param.h"

#include <string.h>

/* Parameters below a member: its own are sliced by the repeat, others are the same in every
 * iteration. Both in order of first occurrence, each once. */
typedef struct ParamUse {
    VEC(int) own, outer;
} ParamUse;

static bool contains(const int *list, uint32_t n, int value) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == value) return true;
    return false;
}

static void collect_space(Lower *l, const Space *s, const char *key, ParamUse *use);

static void collect_member(Lower *l, const Member *m, const char *key, ParamUse *use) {
    size_t n = strlen(key);
    for (uint32_t i = 0; i < m->params.n; i++) {
        int index = m->params.data[i].param;
        if (index < 0) continue;
        const char *name = l->mod->param[index].name;
        bool own = strncmp(name, key, n) == 0 && name[n] == '.';
        if (own && !contains(use->own.data, use->own.n, index))
            vec_push(l->arena, &use->own, index);
        if (!own && !contains(use->outer.data, use->outer.n, index))
            vec_push(l->arena, &use->outer, index);
    }
    if (m->instance != NULL) collect_space(l, m->instance->root, key, use);
}

static void collect_space(Lower *l, const Space *s, const char *key, ParamUse *use) {
    for (uint32_t i = 0; i < s->members.n; i++) collect_member(l, s->members.data[i], key, use);
    for (uint32_t i = 0; i < s->spaces.n; i++) collect_space(l, s->spaces.data[i], key, use);
}

static Value call_once(Lower *l, Member *m, const Value *args, int n, Span span) {
    if (m->layer == NULL) return instance_call(l, m->instance, args, n, span);
    if (n != 1) {
        lower_error(l, E009, span, "'%s' takes one value, got %d", m->name, n);
        return (Value){0};
    }
    if (args[0].kind != VALUE_tensor) {
        lower_error(l, E019, span, "'%s' takes a tensor, got %s", m->name,
                    value_describe(l->arena, &args[0]));
        return (Value){0};
    }
    Scope scope = l->b.scope;
    l->b.scope = m->scope;
    l->b.span = span;
    Value v = m->layer->apply(l, m, &args[0], span);
    l->b.scope = scope;
    return v;
}

/* The type of one slice along the leading axis. */
static Type slice_type(const Lower *l, Type stacked) {
    const TypeInfo *t = type_info(l->mod->types, stacked);
    return type_intern(l->mod->types, t->dtype, t->ndim - 1, t->dim + 1);
}

static bool same_type(const Value *a, const Value *b) {
    if (a->kind != VALUE_tensor || b->kind != VALUE_tensor || a->dtype != b->dtype ||
        a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (!dim_equal(a->dims[i], b->dims[i])) return false;
    return true;
}

static void report_repeat_type(Lower *l, const Member *m, const Value *in, const Value *out) {
    const char *what = m->layer != NULL ? m->layer->name : m->instance->block->text;
    const char *got = out->kind == VALUE_tensor ? dims_text(l->arena, out->dims, out->ndim)
                                                : value_describe(l->arena, out);
    DiagRef e = lower_error(l, E018, m->span, "%s x %lld: output %s differs from input %s", what,
                            (long long)m->count, got, dims_text(l->arena, in->dims, in->ndim));
    diag_note(l->diag, e, "each repetition takes the output of the one before");
}

/* Build the body graph: inputs carried, constant, sliced; evaluate the member once in it. */
static Value repeat_body(Lower *l, Member *m, const Value *args, int n, const ParamUse *use,
                         CacheUse *caches, Graph *body, Span span) {
    Builder outer = l->b;
    Val *outer_weight = l->weight, outer_valid = l->valid;
    Value inner[ARGS_MAX];
    l->b.g = body;
    l->valid = (Val){0};
    l->weight = ARENA_ARRAY(l->arena, Val, l->mod->nparam + 1);
    for (int i = 0; i < n; i++) {
        inner[i] = value_plain(&args[i]);
        inner[i].val =
            graph_add_input(body, val_type(outer.g, args[i].val), (Port){.role = ROLE_none});
    }
    for (uint32_t i = 0; i < use->outer.n; i++) {
        int p = use->outer.data[i];
        l->weight[p] =
            graph_add_input(body, val_type(outer.g, outer_weight[p]), (Port){.role = ROLE_none});
    }
    caching_enter(l, caches, body);
    for (uint32_t i = 0; i < use->own.n; i++) {
        int p = use->own.data[i];
        Type sliced = slice_type(l, val_type(outer.g, outer_weight[p]));
        l->weight[p] = graph_add_input(body, sliced, (Port){.role = ROLE_none});
    }
    caching_enter_slices(l, caches, body);
    Value v = call_once(l, m, inner, n, span);
    if (v.kind == VALUE_tensor) graph_add_output(body, v.val, (Port){.role = ROLE_none});
    caching_leave(l, caches, body);
    l->b = outer;
    l->weight = outer_weight;
    l->valid = outer_valid;
    return v;
}

static Value call_repeated(Lower *l, Member *m, const Value *args, int n, Span span) {
    for (int i = 0; i < n; i++) {
        if (args[i].kind == VALUE_tensor) continue;
        lower_error(l, E019, span, "'%s' takes tensors, got %s", m->name,
                    value_describe(l->arena, &args[i]));
        return (Value){0};
    }
    if (n == 0) {
        lower_error(l, E009, span, "'%s' needs a value to carry from one repetition to the next",
                    m->name);
        return (Value){0};
    }
    ParamUse use = {0};
    collect_member(l, m, m->key, &use);
    Graph *body = graph_new(l->mod, "");
    CacheUse caches = caching_begin(l);
    Value out = repeat_body(l, m, args, n, &use, &caches, body, span);
    if (out.kind == VALUE_none) return out;
    if (!same_type(&args[0], &out)) {
        report_repeat_type(l, m, &args[0], &out);
        return (Value){0};
    }
    int k = 0, nconst = n - 1 + (int)use.outer.n + caches.nconstant;
    Val *in = ARENA_ARRAY(l->arena, Val, nconst + 1 + (int)use.own.n + caches.n);
    for (int i = 0; i < n; i++) in[k++] = args[i].val;
    for (uint32_t i = 0; i < use.outer.n; i++) in[k++] = l->weight[use.outer.data[i]];
    for (int i = 0; i < caches.nconstant; i++) in[k++] = caches.constant[i];
    for (uint32_t i = 0; i < use.own.n; i++) in[k++] = l->weight[use.own.data[i]];
    for (int i = 0; i < caches.n; i++) in[k++] = l->caching.value[caches.first + i];
    Attr attrs[] = {ATTR_INT(count, m->count), ATTR_INT(ncarry, 1), ATTR_INT(nconst, nconst),
                    ATTR_INT(reverse, 0)};
    Scope scope = l->b.scope;
    l->b.span = span;
    l->b.scope = m->scope;
    Node *node = graph_add_region(&l->b, OP_repeat, k, in, 4, attrs, body);
    caching_end(l, &caches, m->count, node);
    l->b.scope = scope;
    return tensor_new(l, out.dtype, out.ndim, out.dims, node->out, span);
}

Value member_call(Lower *l, Member *m, const Value *args, int n, Span span) {
    m->uses++;
    if (m->broken) return (Value){0};
    return m->count > 0 ? call_repeated(l, m, args, n, span) : call_once(l, m, args, n, span);
}
