/* attention.h - attention in primitives: its decomposition and the rare half of its derivative. */
#ifndef INFINIC_PASSES_ATTENTION_H
#define INFINIC_PASSES_ATTENTION_H

#include "ir/module.h"

enum { ATTENTION_DIM_STEP = 8, ATTENTION_DIM_MOST = 256 };

/* Whether code generation has kernels for an attention or attention_grad; others become
 * primitives. */
bool attention_has_kernel(const Graph *g, const Node *n);

/* out, lse from q, k, v. */
void attention_forward(Builder *b, const Node *n, const Val *in, Val *out);

/* dq, dk, dv from q, k, v, out, lse, dout. */
void attention_backward(Builder *b, const Node *n, const Val *in, Val *out);

/* What the gradient of lse adds to dq (out[0]) and dk (out[1]); n is the attention in b's graph. */
void attention_backward_lse(Builder *b, const Node *n, Val lse, Val dlse, Val *out);

#endif
