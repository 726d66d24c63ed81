/* lower_space.h - the iteration space of a pointwise nest. */
#ifndef INFINIC_CODEGEN_LOWER_SPACE_H
#define INFINIC_CODEGEN_LOWER_SPACE_H

#include "codegen/lower.h"

typedef struct LowerSpace {
    int n;
    int64_t dim[NDIM_MAX]; /* none is 1, unless it is the only one */
} LowerSpace;

/* The space for storing every result of the body, all of shape `type` (not empty): see lower_map.c.
 */
LowerSpace lower_space_choose(LowerContext *ctx, const Graph *g, const Node *kernel,
                              const TypeInfo *type);

/* Opens grid, thread and vector loops over the space; `index` is the place in `type`. Returns the
 * depth to hand to lower_space_close. */
int lower_space_open(LoopKernel *k, const LowerSpace *space, const TypeInfo *type, LoopIdx *index);
void lower_space_close(LoopKernel *k, int depth);

/* The place in `type` of the element whose place in the space is at[]. */
void lower_space_place(LoopKernel *k, const LowerSpace *s, const LoopIdx *at, const TypeInfo *type,
                       LoopIdx *index);

/* Opens one grid loop over dims[0 .. n) taken together; index[i] is the place in dims[i]. */
void lower_open_grid(LoopKernel *k, int n, const int64_t *dim, LoopIdx *index);

#endif
