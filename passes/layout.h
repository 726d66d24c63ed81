/* layout.h - where parameters and their gradients lie in the flat vectors.
 *
 * Dense: blocks in order of their indices. Bucketed (module_is_bucketed): in the order in which
 * their gradients are complete, cut into buckets; stacks of one repeat layer by layer. */
#ifndef INFINIC_PASSES_LAYOUT_H
#define INFINIC_PASSES_LAYOUT_H

#include "passes/pass.h"

/* Whether all blocks together can be counted in bytes, with states and later uses. */
bool layout_fits(const Module *m);

/* Fills segment, offsets and strides of every parameter, the module's segments, buckets and
 * lengths. */
void layout_params(Module *m, Arena *scratch);

/* Gradients of later uses of tied weights, behind the vector. */
void layout_uses(Module *m);

/* The bucketed layout (bucket.c). */
void bucket_params(Module *m, Arena *scratch);

/* The segment that a parameter belongs to: of those with weight decay or of the others. */
static inline bool layout_decays(const Param *p) { return p->decay && p->trainable; }

static inline int64_t layout_round(int64_t elems, int64_t align) {
    return (elems + align - 1) / align * align;
}

#endif
