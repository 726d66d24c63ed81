/* lower_map.c - kernels of form "map": every result element depends on its own index alone.
 *
 * Reads   a body of elementwise ops, sources, random numbers and movement; results of one shape.
 * Writes  one nest: a grid axis over the outer dimensions, a vector axis over the innermost one.
 * Why     the iteration space is the shape, among the result's and those that reshapes in the body
 *         mention, whose addresses need the fewest quotients; neighbouring axes are merged as long
 * as that adds none, so that plain elementwise kernels become one flat loop.
 */
#include "codegen/lower_space.h"

LoopKernel *lower_map(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    const TypeInfo *type = val_info(b->body, b->body->out[0]);
    if (type_elems(b->body->mod->types, val_type(b->body, b->body->out[0])) == 0) return b->k;
    LowerSpace space = lower_space_choose(ctx, g, kernel, type);
    LoopIdx index[NDIM_MAX];
    int depth = lower_space_open(b->k, &space, type, index);
    lower_body_store_all(b, index);
    lower_space_close(b->k, depth);
    return b->k;
}
