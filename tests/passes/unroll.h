/* unroll.h - repeats written out, iteration by iteration: what a repeat and its derivative must
 * equal. */
#ifndef INFINIC_TESTS_PASSES_UNROLL_H
#define INFINIC_TESTS_PASSES_UNROLL_H

#include "ir/module.h"

/* The graph without any repeat; same inputs, outputs and name. */
Graph *unroll_graph(const Graph *g, Arena *scratch);

#endif
