/* norm.h - the norm of the gradient, the same bits under every layout. */
#ifndef INFINIC_PASSES_NORM_H
#define INFINIC_PASSES_NORM_H

#include "passes/pass.h"

/* Whether the squares are summed by a graph of their own, "norm", before "update". */
bool norm_is_apart(const Module *m);

/* Whether they are summed in a tree of blocks, which replicas can share. */
bool norm_is_tree(const Module *m);

/* The graph "norm": the sum of squares of the mean gradient of each logical tensor that this rank
 * counts, f32 [n] at role squares. */
Graph *norm_graph(Module *m);

/* With zero = 1, the graph "norm.blocks" before it: sums over the blocks that a replica owns, at
 * role blocks; "norm" then reads those of all. NULL, or the name of a stack whose layers begin
 * between blocks, so that replicas cannot share its norm. */
Graph *norm_blocks_graph(Module *m);
const char *norm_unshared(const Module *m);

/* 1 / counted targets, f32 []. */
Val norm_mean_factor(Builder *b, Val loss_count);

#endif
