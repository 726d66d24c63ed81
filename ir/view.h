/* view.h - tensors inside tensors: where the elements of a value lie when it is only movement away
 * from one in memory.
 *
 * An operand that is a slice, transpose and reshape of a stored tensor can be read in place, and a
 * result whose transpose, reshape or concatenation is what must be stored can be written in place.
 */
#ifndef INFINIC_IR_VIEW_H
#define INFINIC_IR_VIEW_H

#include "ir/graph.h"

/* Element index[] of a value is element offset + sum of index[i] * stride[i] of another. */
typedef struct View {
    int ndim;
    int64_t dim[NDIM_MAX];
    int64_t offset, stride[NDIM_MAX];
} View;

/* v as a view of `base`, through reshape, transpose, slice, casts between floats and rope, which
 * leaves every element in its place. False when v is no such view (a reshape may ask for elements
 * that have no common stride). */
bool view_read(const Graph *g, Val v, Val base, View *view);

/* `made` as a view of `stored`, which is made of it by reshape, transpose, concat, casts between
 * floats and rope. False when there is none, or more than one. */
bool view_written(const Graph *g, Val made, Val stored, View *view);

#endif
