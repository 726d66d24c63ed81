/* mixed.h - which values of a graph are kept in bf16: the parts of the pass mixed.
 *
 *   mixed_policy.c  the policy: which values
 *   mixed.c         the graph with casts
 */
#ifndef INFINIC_PASSES_MIXED_H
#define INFINIC_PASSES_MIXED_H

#include "passes/pass.h"

/* A sum that a product joins: other + reshape(product + bias). It is rounded as a whole, and taken
 * in the order (product + other) + bias, which is the library's. */
typedef struct MixedSum {
    Val product; /* id 0: the node is no such sum */
    Val bias;    /* as broadcast; id 0: none */
    Val other;
} MixedSum;

/* Of one graph: half[v], value v is in bf16 wherever it is in memory; by node: sums, and the
 * repeats' bodies. */
typedef struct Halves {
    bool *half;
    MixedSum *sum;
    struct Halves **body;
} Halves;

/* `policy`: dtype = bf16 applies; else only values that are of type bf16 already. */
Halves *mixed_choose(const Graph *g, bool policy, Arena *scratch);

/* What goes from chunk to chunk of a pipeline is an activation, or the gradient of one. Both ends
 * decide this by themselves, so it is a matter of the port alone. */
bool mixed_is_handed(const Graph *g, Val v, const Port *port);

/* Moves elements without computing anything: bf16 in, the same bf16 out. */
bool mixed_is_movement(Op op);

#endif
