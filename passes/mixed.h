/* mixed.h - which values of a graph are kept in bf16: the parts of the pass mixed.
 *
 *   mixed_policy.c  the policy: which values
 *   mixed.c         the graph with casts
 */
#ifndef INFINIC_PASSES_MIXED_H
#define INFINIC_PASSES_MIXED_H

#include "passes/pass.h"

/* Of one graph: half[v], value v is in bf16 wherever it is in memory; and of the repeats' bodies,
 * by node. */
typedef struct Halves {
    bool *half;
    struct Halves **body;
} Halves;

/* `policy`: dtype = bf16 applies; else only values that are of type bf16 already. */
Halves *mixed_choose(const Graph *g, bool policy, Arena *scratch);

/* Moves elements without computing anything: bf16 in, the same bf16 out. */
bool mixed_is_movement(Op op);

#endif
