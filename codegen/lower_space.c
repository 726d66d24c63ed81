/* lower_space.c - choosing and opening the iteration space of a pointwise nest. */
#include "codegen/lower_cuda.h"
#include "codegen/lower_space.h"

#include <string.h>

/* The innermost axis is cut into blocks of VECTOR_BLOCK when it is longer than twice that; outer
 * axes join the grid until it has GRID_MIN iterations. */
enum { VECTOR_BLOCK = 4096, GRID_MIN = 64 };

static LowerSpace space_of(const TypeInfo *t) {
    LowerSpace s = {0};
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] != 1) s.dim[s.n++] = t->dim[i];
    if (s.n == 0) s.dim[s.n++] = 1;
    return s;
}

void lower_space_place(LoopKernel *k, const LowerSpace *s, const LoopIdx *at, const TypeInfo *type,
                       LoopIdx *index) {
    TypeInfo as = {.ndim = s->n};
    memcpy(as.dim, s->dim, sizeof s->dim);
    lower_unflatten(k, type, lower_offset(k, &as, at), index);
}

/* Quotients in the addresses of a nest over this space. */
static int64_t try_space(LowerContext *ctx, const Graph *g, const Node *kernel,
                         const TypeInfo *type, const LowerSpace *s) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    LoopIdx at[NDIM_MAX], index[NDIM_MAX];
    for (int i = 0; i < s->n; i++)
        at[i] = loop_idx_axis(b->k, loop_open(b->k, LOOP_serial, s->dim[i], LOOP_NO_BOUND));
    lower_space_place(b->k, s, at, type, index);
    lower_body_store_all(b, index);
    lower_space_close(b->k, 0);
    return loop_count_quotients(b->k);
}

static LowerSpace merge_axes(const LowerSpace *s, int i) {
    LowerSpace m = *s;
    m.dim[i] *= m.dim[i + 1];
    memmove(&m.dim[i + 1], &m.dim[i + 2], (size_t)(m.n - i - 2) * sizeof m.dim[0]);
    m.n--;
    return m;
}

/* Merges neighbouring axes as long as no quotient is added; returns the quotients left. */
static int64_t merge_all(LowerContext *ctx, const Graph *g, const Node *kernel,
                         const TypeInfo *type, LowerSpace *s) {
    int64_t cost = try_space(ctx, g, kernel, type, s);
    for (int i = s->n - 2; i >= 0; i--) {
        LowerSpace m = merge_axes(s, i);
        if (try_space(ctx, g, kernel, type, &m) <= cost) *s = m;
    }
    return cost;
}

LowerSpace lower_space_choose(LowerContext *ctx, const Graph *g, const Node *kernel,
                              const TypeInfo *type) {
    const Graph *body = kernel->body;
    LowerSpace best = space_of(type);
    int64_t cost = merge_all(ctx, g, kernel, type, &best), elems = 1;
    for (int i = 0; i < type->ndim; i++) elems *= type->dim[i];
    for (int i = 0; i < body->nnode && cost > 0; i++) {
        const Node *n = body->node[i];
        if (n->op != OP_reshape || type_elems(body->mod->types, val_type(body, n->out)) != elems)
            continue;
        const TypeInfo *other[2] = {val_info(body, n->in[0]), val_info(body, n->out)};
        for (int j = 0; j < 2; j++) {
            LowerSpace s = space_of(other[j]);
            int64_t c = merge_all(ctx, g, kernel, type, &s);
            if (c < cost) {
                best = s;
                cost = c;
            }
        }
    }
    return best;
}

void lower_open_grid(LoopKernel *k, int n, const int64_t *dim, LoopIdx *index) {
    TypeInfo grid = {.ndim = n};
    int64_t extent = 1;
    for (int i = 0; i < n; i++) {
        grid.dim[i] = dim[i];
        extent *= dim[i];
    }
    LoopIdx flat = loop_idx_axis(k, loop_open(k, LOOP_grid, extent, LOOP_NO_BOUND));
    lower_unflatten(k, &grid, flat, index);
    for (int i = 0; i < n; i++) index[i] = loop_let(k, index[i], dim[i]);
}

void lower_open_elements(LowerContext *ctx, LoopKernel *k, const TypeInfo *t, LoopIdx *index) {
    if (ctx->target == TARGET_cuda) {
        int64_t elems = 1;
        for (int i = 0; i < t->ndim; i++) elems *= t->dim[i];
        lower_unflatten(k, t, lower_cuda_open_units(k, elems, 1), index);
        return;
    }
    int last = t->ndim - 1;
    lower_open_grid(k, last, t->dim, index);
    index[last] = loop_idx_axis(k, loop_open(k, LOOP_vector, t->dim[last], LOOP_NO_BOUND));
}

int lower_space_open(LoopKernel *k, const LowerSpace *space, const TypeInfo *type, LoopIdx *index) {
    int depth = k->depth, last = space->n - 1;
    int64_t n = space->dim[last];
    bool cut = n > 2 * VECTOR_BLOCK;
    int64_t dim[NDIM_MAX + 1], extent = 1;
    LoopIdx at[NDIM_MAX + 1];
    memcpy(dim, space->dim, sizeof space->dim);
    dim[last] = cut ? (n + VECTOR_BLOCK - 1) / VECTOR_BLOCK : 1;
    int grid = 0, outer = cut ? last + 1 : last;
    while (grid < outer && extent < GRID_MIN) extent *= dim[grid++];
    if (grid > 0) lower_open_grid(k, grid, dim, at);
    for (int i = grid; i < outer; i++)
        at[i] = loop_idx_axis(k, loop_open(k, LOOP_thread, dim[i], LOOP_NO_BOUND));
    LoopIdx begin = {0}, bound = LOOP_NO_BOUND;
    if (cut) {
        begin = loop_idx_scale(k, at[last], VECTOR_BLOCK);
        bound = loop_idx_plus(k, begin, VECTOR_BLOCK);
    }
    at[last] = loop_idx_axis(k, loop_open_range(k, LOOP_vector, n, begin, bound));
    lower_space_place(k, space, at, type, index);
    return depth;
}

void lower_space_close(LoopKernel *k, int depth) {
    while (k->depth > depth) loop_close(k);
}
