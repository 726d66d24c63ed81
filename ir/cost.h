/* cost.h - what one node costs, from shapes alone: for pipelines, for threads, for info. */
#ifndef INFINIC_IR_COST_H
#define INFINIC_IR_COST_H

#include "ir/module.h"

/* Arithmetic operations; a multiply-add is two. Regions and composites count as 0. */
int64_t cost_flops(const Graph *g, const Node *n);

/* Every operand read once, every result written once. */
int64_t cost_bytes(const Graph *g, const Node *n);

#endif
