/* verify_passes.c - compare graphs before and after a pass by the evaluator; see verify_passes.h.
 */
#include "passes/verify_passes.h"

#include "ir/bf16.h"
#include "ir/limits.h"
#include "ir/panic.h"

#include <math.h>
#include <string.h>

struct VerifyGraphs {
    Arena arena;
    const Graph **graph;
    int n;
};

/* Rounding may differ: constants are folded in f32, sums may be taken in another order. In bf16 the
 * smallest difference can become one of the last place, and the pass mixed introduces it. */
static const double exact = 1e-5, rounded = 0.05;

VerifyGraphs *verify_passes_before(const Module *m) {
    VerifyGraphs *v = mem_alloc(sizeof *v);
    v->n = m->ngraph;
    v->graph = ARENA_ARRAY(&v->arena, const Graph *, m->ngraph);
    for (int i = 0; i < m->ngraph; i++) v->graph[i] = m->graph[i];
    return v;
}

void verify_passes_free(VerifyGraphs *before) {
    if (before == NULL) return;
    arena_free(&before->arena);
    mem_free(before);
}

/* ---- random inputs ----------------------------------------------------------------------- */

static uint64_t scramble(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* In [0, 1), a multiple of 2^-20: exact in f32. */
static double uniform(uint64_t key, int64_t element) {
    return (double)(scramble(key ^ scramble((uint64_t)element)) >> 44) * 0x1p-20;
}

static double element_value(Role role, Dtype dtype, double u, int64_t limit) {
    if (dtype == DT_bool) return u < 0.5;
    if (!dtype_is_float(dtype)) return floor(u * (double)limit);
    switch (role) {
    case ROLE_valid: return 1.0;
    case ROLE_scalar: /* rates, shares and second moments are positive */
    case ROLE_flat_state:
    case ROLE_loss_count: return 0.25 + u;
    default: return 2.0 * u - 1.0;
    }
}

EvalTensor verify_random_input(const Module *m, Arena *arena, Port port, Type type, int64_t limit) {
    int64_t n = type_elems(m->types, type);
    EvalTensor t = {.type = type, .data = ARENA_ARRAY(arena, double, n)};
    Dtype dtype = type_info(m->types, type)->dtype;
    if (port.role == ROLE_weight_copy) port.role = ROLE_weight; /* the same numbers, rounded */
    int32_t use = port.role == ROLE_weight ? 0 : port.use;
    uint64_t key = scramble((uint64_t)port.role << 48 ^ (uint64_t)port.index << 16 ^ (uint64_t)use);
    if (dtype == DT_u8) limit = 256;
    if (port.role == ROLE_position) limit = 1; /* what a prefill adds must fit behind it */
    for (int64_t i = 0; i < n; i++)
        t.data[i] = element_value(port.role, dtype, uniform(key, i), limit);
    for (int64_t i = 0; dtype == DT_bf16 && i < n; i++)
        t.data[i] = (double)bf16_round((float)t.data[i]);
    return t;
}

/* Limits are found from uses that later passes rewrite: a small number that fits the commonest. */
static int64_t integer_limit(const Graph *g, Port port) {
    DataLimit found = limits_of_input(g, port.index);
    return found.limit == INT64_MAX ? 2 : found.limit;
}

static EvalTensor *run(const Graph *g, const Graph *limits, Arena *arena) {
    EvalTensor *in = ARENA_ARRAY(arena, EvalTensor, g->nin);
    EvalTensor *out = ARENA_ARRAY(arena, EvalTensor, g->nout);
    for (int i = 0; i < g->nin; i++) {
        Role role = g->in_port[i].role;
        int64_t limit = role == ROLE_data ? integer_limit(limits, g->in_port[i]) : 2;
        if (role == ROLE_position) limit = 1; /* the first call, so that all tokens have places */
        in[i] = verify_random_input(g->mod, arena, g->in_port[i], val_type(g, g->in[i]), limit);
    }
    EvalContext ctx = {.arena = arena};
    eval_graph(&ctx, g, in, out);
    return out;
}

/* ---- comparison -------------------------------------------------------------------------- */

static bool same_port(const Port *a, const Port *b) {
    if (a->role != b->role || a->index != b->index || a->use != b->use) return false;
    if (a->name == NULL || b->name == NULL) return a->name == b->name;
    return strcmp(a->name, b->name) == 0;
}

static bool has_half(const Graph *g) {
    for (uint32_t v = 1; v < g->nval; v++)
        if (val_info(g, (Val){v})->dtype == DT_bf16) return true;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->body != NULL && has_half(g->node[i]->body)) return true;
    return false;
}

static bool close_enough(double a, double b, double scale, double tolerance) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b)) return a == b;
    return fabs(a - b) <= tolerance * (1.0 + scale);
}

static void compare(const Graph *g, int output, const EvalTensor *a, const EvalTensor *b,
                    const char *pass) {
    int64_t n = type_elems(g->mod->types, b->type);
    if (type_elems(g->mod->types, a->type) != n)
        panic_graph(g, (Span){0}, "%s changed the size of output %d of '%s'", pass, output,
                    g->name);
    double scale = 0.0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(a->data[i]) && fabs(a->data[i]) > scale) scale = fabs(a->data[i]);
    for (int64_t i = 0; i < n; i++)
        if (!close_enough(a->data[i], b->data[i], scale, has_half(g) ? rounded : exact))
            panic_graph(g, (Span){0},
                        "%s changed output %d of '%s': element %lld was %.9g, is %.9g", pass,
                        output, g->name, (long long)i, a->data[i], b->data[i]);
}

void verify_passes_after(VerifyGraphs *before, const Module *m, const char *pass) {
    for (int i = 0; i < before->n; i++) {
        const Graph *old = before->graph[i], *new = module_graph(m, old->name);
        if (new == NULL || new == old) continue;
        Arena arena = {0};
        EvalTensor *was = run(old, old, &arena), *is = run(new, old, &arena);
        for (int a = 0; a < old->nout; a++)
            for (int b = 0; b < new->nout; b++)
                if (same_port(&old->out_port[a], &new->out_port[b]))
                    compare(new, b, &was[a], &is[b], pass);
        arena_free(&arena);
    }
}
