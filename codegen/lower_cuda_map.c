/* lower_cuda_map.c - kernels of form "map" for CUDA: a thread makes one element, or four
 * or eight neighbours.
 *
 * The iteration space is chosen as on the CPU (lower_map.c). When its innermost axis is a multiple
 * of four, a thread takes four neighbours, so that accesses along it are 16 bytes wide (eight where
 * bf16 is among the arguments); in large tensors it takes two such groups, so that more loads are
 * under way.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_space.h"

#include <string.h>

enum { LARGE_UNITS = 1 << 20 };

LoopKernel *lower_cuda_map(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    LoopKernel *k = b->k;
    const TypeInfo *type = val_info(b->body, b->body->out[0]);
    int64_t elems = type_elems(b->body->mod->types, val_type(b->body, b->body->out[0]));
    if (elems == 0) return k;
    LowerSpace space = lower_space_choose(ctx, g, kernel, type);
    int last = space.n - 1;
    int64_t vector = lower_cuda_vector(k, space.dim[last]), units = elems / vector;
    TypeInfo outer = {.ndim = space.n};
    memcpy(outer.dim, space.dim, sizeof space.dim);
    outer.dim[last] /= vector;
    LoopIdx at[NDIM_MAX + 1], index[NDIM_MAX];
    LoopIdx unit = lower_cuda_open_units(k, units, units >= LARGE_UNITS ? 2 : 1);
    lower_unflatten(k, &outer, unit, at);
    if (vector > 1) {
        for (int i = 0; i < last; i++) at[i] = loop_let(k, at[i], space.dim[i]);
        LoopIdx lane = loop_idx_axis(k, loop_open(k, LOOP_vector, vector, LOOP_NO_BOUND));
        at[last] = loop_idx_add(k, loop_idx_scale(k, at[last], vector), lane);
    }
    lower_space_place(k, &space, at, type, index);
    lower_body_store_all(b, index);
    lower_space_close(k, 0);
    return k;
}
