/* cost.h - what one node costs, from shapes alone: for pipelines, for threads, for info. */
#ifndef INFINIC_IR_COST_H
#define INFINIC_IR_COST_H

#include "ir/module.h"

/* Traffic in units of arithmetic: roughly how many operations a device does while it moves a byte;
 * and of a byte on its way to another rank, which is read, written, and written and read once more
 * by whoever carries it. */
#define COST_PER_BYTE      16.0
#define COST_PER_BYTE_SENT 64.0

/* Arithmetic operations; a multiply-add is two. Regions and composites count as 0. */
int64_t cost_flops(const Graph *g, const Node *n);

/* Every operand read once, every result written once. */
int64_t cost_bytes(const Graph *g, const Node *n);

/* A kernel's least arithmetic and traffic: what is inside it stays inside. */
typedef struct KernelCost {
    int64_t flops, bytes;
} KernelCost;
KernelCost cost_kernel(const Node *kernel);

/* Arithmetic and traffic in one number, of a kernel or of all iterations of a repeat of kernels;
 * views cost nothing. */
double cost_placed(const Node *n);

#endif
