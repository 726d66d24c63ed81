/* lower_generate.c - the programs of section generate.
 *
 * "prefill.N" takes the first N tokens of a text, for every length that the section gives, and
 * "decode" one more; both fill the caches of attention (caching.c) and return the logits that
 * follow the last token. The model's first parameter is tokens, i32 [B, T]; what only the loss
 * reads is a constant here, and goes away with the loss.
 */
#include "frontend/lower.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTHS_MAX = 8 };

typedef struct Generate {
    Lower *l;
    Instance *root;
    const Ast *tokens;                /* the parameter */
    uint32_t batch_dim, length_dim;   /* indices of its dims */
    int64_t length[LENGTHS_MAX];      /* ascending */
    int nlength;
    uint32_t logits; /* which result of the model */
    const char *logits_name;
} Generate;

static DimValue *dim_setting(const Generate *g, uint32_t dim) {
    return &g->l->settings.dim_value[SECTION_generate][dim];
}

static Span section_span(const Lower *l) {
    Span span = l->settings.section_span[SECTION_generate];
    return span.file != 0 ? span : l->model->span;
}

/* --- what the model must be --- */

static bool fail_tokens(Generate *g, Span span) {
    Lower *l = g->l;
    DiagRef e = diag_error(l->diag, E029, span,
                           "generate needs a model whose first parameter is tokens: i32[B, T]");
    diag_note(l->diag, e, "with two free dimensions, texts and tokens of a text");
    diag_note(l->diag, e, "section generate stands at %s",
              diag_place(l->diag, section_span(l), span));
    return false;
}

/* The index of the free dim that an axis of the tokens is written as; -1 when it is none. */
static int free_axis(const Lower *l, const Ast *type, uint32_t axis) {
    const Ast *list = type->child[0];
    if (axis >= list->n || list->child[axis]->kind != AST_name) return -1;
    const DimDecl *d = dim_find(l, list->child[axis]->text);
    return d != NULL && d->is_free ? (int)(d - l->settings.dims.data) : -1;
}

static bool find_tokens(Generate *g) {
    Lower *l = g->l;
    const Ast *params = l->model->child[0];
    for (uint32_t i = 0; i < params->n && g->tokens == NULL; i++)
        if (params->child[i]->child[0]->kind == AST_type) g->tokens = params->child[i];
    if (g->tokens == NULL) return fail_tokens(g, l->model->span);
    const Ast *type = g->tokens->child[0];
    int batch = free_axis(l, type, 0), length = free_axis(l, type, 1);
    bool good = type->text != NULL && strcmp(type->text, "i32") == 0 && type->child[0]->n == 2 &&
                batch >= 0 && length >= 0 && batch != length;
    if (!good) return fail_tokens(g, g->tokens->span);
    g->batch_dim = (uint32_t)batch;
    g->length_dim = (uint32_t)length;
    l->caching.length = &l->settings.dims.data[length];
    return true;
}

/* --- lengths --- */

static int compare_lengths(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The lengths of prompts, each once, and the context: as long as the model can be, else the longest
 * prompt. */
static bool read_lengths(Generate *g) {
    Lower *l = g->l;
    DimValue *v = dim_setting(g, g->length_dim);
    const DimDecl *d = l->caching.length;
    bool bounded = d->bound != INT64_MAX, many = v->given && v->all.kind == VALUE_tuple;
    int n = many ? v->all.n : 1;
    if (v->given && v->value == 0) return false; /* it had its message */
    if (n > LENGTHS_MAX) {
        diag_error(l->diag, E026, v->span, "%d lengths of prompts, at most %d are possible", n,
                   LENGTHS_MAX);
        return false;
    }
    if (!v->given && bounded) v->value = d->bound;
    for (int i = 0; i < n; i++) g->length[i] = many ? v->all.item[i].dim.value : v->value;
    qsort(g->length, (size_t)n, sizeof g->length[0], compare_lengths);
    for (int i = 0; i < n; i++)
        if (g->nlength == 0 || g->length[g->nlength - 1] != g->length[i])
            g->length[g->nlength++] = g->length[i];
    l->caching.context = bounded ? d->bound : g->length[g->nlength - 1];
    if (l->caching.context <= INT32_MAX) return true;
    diag_error(l->diag, E026, d->span, "a context of %" PRId64 " tokens is over the limit of 2^31",
               l->caching.context);
    return false;
}

/* One text at a time, unless the section says otherwise. */
static void read_batch(Generate *g) {
    DimValue *v = dim_setting(g, g->batch_dim);
    if (!v->given) v->value = 1;
    g->l->mod->generate.batch = v->value;
    g->l->mod->generate.context = g->l->caching.context;
}

/* --- one walk over the model --- */

typedef struct Walk {
    const char *name;
    int64_t length;
    bool decode, counting;
} Walk;

static Val index_input(Lower *l, Role role) {
    int64_t one = 1;
    return graph_add_input(l->b.g, type_intern(l->mod->types, DT_i32, 1, &one),
                           (Port){.role = role});
}

/* The graph's inputs. While counting, every parameter of the model is one. */
static bool add_inputs(Generate *g, const Walk *w, Value *args, int *n, Val *last) {
    Lower *l = g->l;
    Caching *c = &l->caching;
    if (!lower_data_params(l, g->root, w->counting, args, n)) return false;
    if (!w->counting)
        args[0].val = graph_add_input(l->b.g, value_ir_type(l, &args[0]),
                                      (Port){.role = ROLE_data, .name = g->tokens->text});
    c->position = index_input(l, ROLE_position);
    *last = w->decode || w->counting ? (Val){0} : index_input(l, ROLE_last);
    c->value = ARENA_ARRAY(l->arena, Val, c->types.n + 1);
    for (uint32_t i = 0; i < c->types.n && !w->counting; i++)
        c->value[i] = graph_add_input(l->b.g, c->types.data[i],
                                      (Port){.role = ROLE_cache, .index = (int)i});
    lower_weight_inputs(l);
    c->seen = (Val){0};
    if (w->decode) caching_begin_decode(l);
    for (int i = 1; i < *n && !w->counting; i++)
        args[i].val = build_const(&l->b, 0.0, value_ir_type(l, &args[i]));
    return true;
}

/* The model's results for a call of w->length tokens; VALUE_none after an error. */
static Value walk_model(Generate *g, const Walk *w, Val *last) {
    Lower *l = g->l;
    Value args[ARGS_MAX];
    int n = 0;
    l->caching.counting = w->counting;
    l->caching.decode = w->decode;
    l->caching.next = l->caching.next_repeat = l->caching.depth = 0;
    dim_setting(g, g->length_dim)->value = w->length;
    l->call_count = 0;
    l->valid = (Val){0};
    l->b = (Builder){.g = graph_new(l->mod, w->name), .span = l->model->span};
    l->caching.top = l->b.g;
    if (!lower_check_binding(l) || !add_inputs(g, w, args, &n, last)) return (Value){0};
    Value v = instance_call(l, g->root, args, n, l->model->span);
    return l->diag->error_count > 0 ? (Value){0} : v;
}

/* --- the first walk --- */

static bool is_logits(const Generate *g, const Value *v) {
    const DimDecl *dims = g->l->settings.dims.data;
    return v->kind == VALUE_tensor && v->ndim == 3 && v->dtype == DT_f32 &&
           v->dims[0].free != NULL && strcmp(v->dims[0].free, dims[g->batch_dim].name) == 0 &&
           v->dims[1].free != NULL && strcmp(v->dims[1].free, dims[g->length_dim].name) == 0 &&
           v->dims[0].factor == 1 && v->dims[1].factor == 1;
}

/* The result called logits, else the first of their shape. */
static bool find_logits(Generate *g, const Value *result) {
    Lower *l = g->l;
    bool found = false;
    for (int i = 1; result->kind == VALUE_tuple && i < result->n; i++) {
        const char *name = lower_result_name(l, &result->item[i], (uint32_t)i);
        bool named = strcmp(name, "logits") == 0;
        if (!is_logits(g, &result->item[i]) || (found && !named)) continue;
        g->logits = (uint32_t)i;
        g->logits_name = name;
        found = true;
        if (named) break;
    }
    if (found) return true;
    DiagRef e = diag_error(l->diag, E029, section_span(l),
                           "generate needs the model to return logits f32[%s, %s, V]",
                           l->settings.dims.data[g->batch_dim].name, l->caching.length->name);
    diag_hint(l->diag, e, "return cross_entropy(logits, targets), logits");
    return false;
}

/* Which values of the graph at hand v depends on. */
static bool *find_needed(const Lower *l, Val v) {
    const Graph *g = l->b.g;
    bool *needed = ARENA_ARRAY(l->arena, bool, g->nval);
    needed[v.id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        bool wanted = false;
        for (int r = 0; r < n->nout; r++) wanted = wanted || needed[node_out(n, r).id];
        for (int k = 0; k < n->nin && wanted; k++) needed[n->in[k].id] = true;
    }
    return needed;
}

/* Logits come from the tokens alone. */
static bool check_inputs(Generate *g, Val logits) {
    Lower *l = g->l;
    const bool *needed = find_needed(l, logits);
    for (int i = 0; i < l->b.g->nin; i++) {
        const Port *port = &l->b.g->in_port[i];
        bool tokens = port->role == ROLE_data && port->index == 0;
        if (port->role != ROLE_data || tokens == needed[l->b.g->in[i].id]) continue;
        if (tokens) return fail_tokens(g, g->tokens->span);
        DiagRef e = diag_error(l->diag, E029, section_span(l),
                               "'%s' depends on '%s', which is not known when a text is generated",
                               g->logits_name, port->name);
        diag_note(l->diag, e, "only the loss may read it");
        return false;
    }
    return caching_check_mix(l, needed);
}

/* Which caches there are, which result is wanted, and whether it can be had. */
static bool count_caches(Generate *g) {
    Val none;
    Walk first = {.name = "generate", .length = g->length[0], .counting = true};
    Value v = walk_model(g, &first, &none);
    if (v.kind == VALUE_none || !find_logits(g, &v)) return false;
    if (!check_inputs(g, v.item[g->logits].val)) return false;
    if (g->l->caching.types.n > 0) return true;
    DiagRef e = diag_error(g->l->diag, E029, section_span(g->l),
                           "generate needs a model with attention: nothing in '%s' sees earlier "
                           "tokens",
                           g->l->model->text);
    diag_hint(g->l->diag, e, "without the section generate the model can be trained and evaluated");
    return false;
}

/* --- the programs --- */

/* logits [B, T, V] of the last token: [B, V]. */
static Val last_row(Lower *l, const Value *logits, Val last) {
    const TypeInfo *t = val_info(l->b.g, logits->val);
    int64_t batch = t->dim[0], length = t->dim[1], flat[2] = {batch * length, t->dim[2]};
    Val rows = build_reshape(&l->b, logits->val, 2, flat);
    if (last.id == 0) return rows;
    Type type = type_intern(l->mod->types, DT_i32, 1, &batch);
    Attr axis = ATTR_INT(axis, 0);
    int64_t same = 0;
    Val text = graph_add(&l->b, OP_iota, 0, NULL, 1, &axis, type)->out;
    Val first = build2(&l->b, OP_mul, text, build_const(&l->b, (double)length, type));
    Val index = build2(&l->b, OP_add, first, build_broadcast(&l->b, last, type, &same));
    return build2(&l->b, OP_gather, rows, index);
}

static void lower_one(Generate *g, const Walk *w) {
    Lower *l = g->l;
    Val last;
    Value v = walk_model(g, w, &last);
    if (v.kind == VALUE_none) return;
    Val logits = last_row(l, &v.item[g->logits], last);
    for (uint32_t i = 0; i < l->caching.types.n; i++)
        graph_add_output(l->b.g, l->caching.value[i], (Port){.role = ROLE_cache, .index = (int)i});
    graph_add_output(l->b.g, logits, (Port){.role = ROLE_output, .name = g->logits_name});
    module_add_graph(l->mod, l->b.g);
}

void lower_generate(Lower *l, Instance *root) {
    Generate g = {.l = l, .root = root};
    l->section = SECTION_generate;
    l->training = false;
    l->caching = (Caching){.on = true};
    if (find_tokens(&g) && read_lengths(&g)) {
        int64_t longest = g.length[g.nlength - 1];
        read_batch(&g);
        bool good = count_caches(&g);
        for (int i = 0; i < g.nlength && good; i++) {
            Walk w = {.name = arena_printf(l->arena, "prefill.%" PRId64, g.length[i]),
                      .length = g.length[i]};
            lower_one(&g, &w);
        }
        if (good) lower_one(&g, &(Walk){.name = "decode", .length = 1, .decode = true});
        dim_setting(&g, g.length_dim)->value = longest;
    }
    l->caching.on = false;
}
