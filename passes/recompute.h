/* recompute.h - what the parts of the pass recompute share.
 *
 *   recompute.c         the repeats with values made again
 *   recompute_cheap.c   which values are made again when recompute = none
 */
#ifndef INFINIC_PASSES_RECOMPUTE_H
#define INFINIC_PASSES_RECOMPUTE_H

#include "passes/pass.h"

/* A backward repeat and the forward one whose saved values it reads. */
typedef struct RecomputePair {
    const Graph *g; /* that holds both */
    const Node *forward, *back;
    int *saved;   /* by value of the forward body: the operand of `back` that holds it, or -1 */
    bool *again;  /* by operand of `back`: made again */
    bool *held;   /* by value of the forward body: an operand that stays holds it */
    bool *needed; /* by value of the forward body */
    int *kept;    /* by carried value of the forward repeat: the stacked result that holds it */
} RecomputePair;

/* Sets again[k] for the saved values that cost next to nothing to make again from others. */
void recompute_choose_cheap(RecomputePair *p, Arena *scratch);

/* An elementwise operation that takes many instructions, unlike arithmetic. */
bool recompute_is_function(Op op);

#endif
