/* rope.h - rotary positions in primitives. */
#ifndef INFINIC_PASSES_ROPE_H
#define INFINIC_PASSES_ROPE_H

#include "ir/module.h"

/* The result for operands x, cos, sin of a rope node. */
Val rope_forward(Builder *b, const Node *n, const Val *in);

/* Gradients of cos (which 0) and sin (1), [positions, K / 2], from that of the result. */
Val rope_table_grad(Builder *b, const Node *n, Val dy, int which);

#endif
