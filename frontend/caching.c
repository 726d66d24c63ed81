/* caching.c - keys and values of earlier tokens in the programs of section generate.
 *
 * A call of attention stores its keys and values into two caches, behind those of earlier tokens; a
 * program that continues a text attends to the caches, one that begins it to the call's own keys.
 * Caches are graph inputs and outputs with ROLE_cache, stacked over the repeats around the call,
 * numbered in the order of calls. What else mixes positions has no cache, so it is an error.
 */
#include "frontend/functions.h"

#include <math.h>
#include <string.h>

/* --- repeats --- */

static Type stacked_type(Lower *l, Type slice, int64_t count) {
    const TypeInfo *t = type_info(l->mod->types, slice);
    int64_t dim[NDIM_MAX] = {count};
    if (t->ndim == NDIM_MAX) return (Type){0};
    memcpy(dim + 1, t->dim, (size_t)t->ndim * sizeof dim[0]);
    return type_intern(l->mod->types, t->dtype, t->ndim + 1, dim);
}

CacheUse caching_begin(Lower *l) {
    Caching *c = &l->caching;
    CacheUse use = {.first = c->next, .position = c->position, .seen = c->seen, .value = c->value,
                    .outer = l->b.g};
    if (!c->on) return use;
    use.constant[use.nconstant++] = c->position;
    if (c->seen.id != 0) use.constant[use.nconstant++] = c->seen;
    use.call = c->next_repeat++;
    if (c->counting)
        vec_push(l->arena, &c->repeats, 0);
    else
        use.n = c->repeats.data[use.call];
    return use;
}

void caching_enter(Lower *l, CacheUse *use, Graph *body) {
    Caching *c = &l->caching;
    Val *inner[2] = {&c->position, &c->seen};
    for (int i = 0; i < use->nconstant; i++)
        *inner[i] = graph_add_input(body, val_type(use->outer, use->constant[i]),
                                    (Port){.role = ROLE_none});
}

void caching_enter_slices(Lower *l, CacheUse *use, Graph *body) {
    Caching *c = &l->caching;
    if (use->n == 0) return;
    c->value = ARENA_ARRAY(l->arena, Val, c->types.n);
    for (int i = use->first; i < use->first + use->n; i++) {
        /* Its place in the stack of repeats is found from the outside in. */
        const TypeInfo *t = type_info(l->mod->types, c->types.data[i]);
        int depth = c->depth + 1;
        Type slice = type_intern(l->mod->types, t->dtype, t->ndim - depth, t->dim + depth);
        c->value[i] = graph_add_input(body, slice, (Port){.role = ROLE_none});
    }
    c->depth++;
}

void caching_leave(Lower *l, CacheUse *use, Graph *body) {
    Caching *c = &l->caching;
    for (int i = use->first; i < use->first + use->n; i++)
        graph_add_output(body, c->value[i], (Port){.role = ROLE_none});
    if (use->n > 0) c->depth--;
    c->position = use->position;
    c->seen = use->seen;
    c->value = use->value;
}

void caching_end(Lower *l, const CacheUse *use, int64_t count, const Node *node) {
    Caching *c = &l->caching;
    if (!c->on) return;
    for (int i = 0; i < use->n; i++) c->value[use->first + i] = node_out(node, 1 + i);
    if (!c->counting) return;
    c->repeats.data[use->call] = c->next - use->first;
    for (int i = use->first; i < c->next; i++)
        c->types.data[i] = stacked_type(l, c->types.data[i], count);
}

/* --- positions --- */

bool caching_is_length(const Lower *l, Dim d) {
    const Caching *c = &l->caching;
    return c->on && d.free != NULL && strcmp(d.free, c->length->name) == 0;
}

void caching_note_mix(Lower *l, Dim d, const char *what, Val result, Span span) {
    Caching *c = &l->caching;
    if (!c->counting || !caching_is_length(l, d)) return;
    Mixing row = {.what = what, .span = span, .inside = l->b.g != c->top, .result = result};
    vec_push(l->arena, &c->mixing, row);
}

bool caching_check_mix(Lower *l, const bool *needed) {
    const Caching *c = &l->caching;
    for (uint32_t i = 0; i < c->mixing.n; i++) {
        const Mixing *m = &c->mixing.data[i];
        if (!m->inside && !needed[m->result.id]) continue;
        DiagRef e = diag_error(l->diag, E029, m->span, "%s along '%s' mixes the tokens of a text",
                               m->what, c->length->name);
        diag_note(l->diag, e,
                  "where a text is generated, only attention and positions know earlier tokens");
        bool counts = strcmp(m->what, "arange") == 0;
        diag_hint(l->diag, e, "%s",
                  counts ? "positions counts on after the tokens before"
                         : "without the section generate the model can be trained and evaluated");
        return false;
    }
    return true;
}

Val caching_positions(Lower *l, Val index) {
    int64_t axes[1];
    if (!l->caching.on) return index;
    const TypeInfo *t = val_info(l->b.g, index);
    axes[0] = t->ndim - 1; /* one element: any axis does */
    Val before = build_broadcast(&l->b, l->caching.position, val_type(l->b.g, index), axes);
    return build2(&l->b, OP_add, index, before);
}

/* --- attention --- */

static bool store_one(Lower *l, const Value *x) {
    Caching *c = &l->caching;
    int at = c->next++;
    if (c->counting) {
        int64_t dim[4];
        for (int i = 0; i < 4; i++) dim[i] = i == 2 ? c->context : x->dims[i].value;
        Type type = type_intern(l->mod->types, x->dtype, 4, dim);
        vec_push(l->arena, &c->types, type);
        return type.id != 0;
    }
    Val in[3] = {c->value[at], x->val, c->position};
    Attr axis = ATTR_INT(axis, 2);
    c->value[at] = graph_add(&l->b, OP_put, 3, in, 1, &axis, (Type){0})->out;
    return true;
}

void caching_begin_decode(Lower *l) {
    Caching *c = &l->caching;
    int64_t axis = 0;
    Type keys = type_intern(l->mod->types, DT_i32, 1, &c->context);
    Attr attr = ATTR_INT(axis, 0);
    Val key = graph_add(&l->b, OP_iota, 0, NULL, 1, &attr, keys)->out;
    c->seen = build2(&l->b, OP_le, key, build_broadcast(&l->b, c->position, keys, &axis));
}

bool caching_store(Lower *l, const Value qkv[3], bool causal, Span span) {
    const Caching *c = &l->caching;
    if (!c->on) return true;
    Dim keys = qkv[1].dims[2];
    if (!causal || !caching_is_length(l, keys)) {
        DiagRef e = lower_error(l, E029, span,
                                causal ? "attention over %s does not go along the tokens '%s'"
                                       : "attention over %s lets a token see those after it",
                                dim_with_value(l->arena, keys), c->length->name);
        diag_hint(l->diag, e, "to generate: attention(q, k, v, causal = true) along '%s'",
                  c->length->name);
        return false;
    }
    if (store_one(l, &qkv[1]) && store_one(l, &qkv[2])) return true;
    lower_error(l, E026, span, "the keys of %lld tokens have more than 2^63 bytes",
                (long long)c->context);
    return false;
}

/* Scores of keys that are not there yet become -inf. */
static Val mask_later(Lower *l, Val scores) {
    int64_t last = 3;
    const TypeInfo *t = val_info(l->b.g, scores);
    Type type = type_intern(l->mod->types, DT_bool, t->ndim, t->dim);
    Val wide = build_broadcast(&l->b, l->caching.seen, type, &last);
    return build3(&l->b, OP_select, wide, scores, build_scalar_like(&l->b, -HUGE_VAL, scores));
}

Val caching_attend(Lower *l, const Value qkv[3], double scale, Span span) {
    const Caching *c = &l->caching;
    const Value *q = &qkv[0];
    Val k = c->value[c->next - 2], v = c->value[c->next - 1];
    int64_t groups = val_info(l->b.g, k)->dim[1], tokens = q->dims[2].value;
    /* Heads that share keys become rows of one product. */
    int64_t rows[4] = {q->dims[0].value, groups, q->dims[1].value / groups * tokens,
                       q->dims[3].value};
    Value scaled = scale_by(l, q, scale, span);
    Val scores = build_matmul(&l->b, build_reshape(&l->b, scaled.val, 4, rows), k, false, true);
    Val shares = build1(&l->b, OP_softmax, mask_later(l, scores));
    Val out = build_matmul(&l->b, shares, v, false, false);
    int64_t dims[4] = {rows[0], q->dims[1].value, tokens, qkv[2].dims[3].value};
    return build_reshape(&l->b, out, 4, dims);
}
