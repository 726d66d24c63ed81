/* work.h - what the usual formula of a language model's work needs beside its parameters. */
#ifndef INFINIC_IR_WORK_H
#define INFINIC_IR_WORK_H

#include "ir/graph.h"

/* L * C: over every attention of the graph as lowered, repeats counted, its heads times their
 * dimension. */
int64_t work_attention_width(const Graph *g);

#endif
