/* split.h - how work is cut: functions of shapes alone.
 *
 * The order in which a reduction, a matrix product over a long K or a convolution's weight gradient
 * adds its terms is fixed by these rules, so results depend neither on the thread count nor on what
 * a kernel is fused with. fuse asks for the workspace that the parts need; codegen cuts the same way.
 */
#ifndef INFINIC_IR_SPLIT_H
#define INFINIC_IR_SPLIT_H

#include "ir/graph.h"

/* Bytes of scratch that a kernel with this body needs for its partial results; 0 when none. */
int64_t split_workspace_bytes(const Graph *body);

#endif
