/* randgraph.h - random valid graphs, the same for the same seed.
 *
 * For tests that compare two ways of computing one graph: the evaluator before and after a pass,
 * evaluator and C target, fused and unfused, gradients and finite differences. Shapes are small.
 * Values are benign by construction: bounds are tracked and scaled down, logarithms and roots see
 * numbers in [0.5, 1.5], and what has a kink or a tie gets an offset before it, so that rounding
 * does not decide.
 */
#ifndef INFINIC_TESTS_IR_RANDGRAPH_H
#define INFINIC_TESTS_IR_RANDGRAPH_H

#include "ir/eval.h"

typedef struct RandOptions {
    uint64_t seed;
    int nodes;       /* about how many the graph has, beside those that keep values benign */
    bool composites; /* softmax, norms, cross_entropy, attention, rope */
    bool windows;    /* convolutions and poolings */
    bool repeats;
    bool random;  /* random_uniform, now and then */
    bool dropout; /* random_uniform deciding about elements, often */
    bool smooth;  /* no kinks and jumps: for finite differences */
    bool outputs; /* besides the loss up to four values as ROLE_output */
    bool large;   /* extents beyond the 16 lanes of a vector, values up to 6,000 elements */
    bool huge;    /* with `large`: sums cut into parts, products split along their inner axis */
    bool pads;    /* some targets of cross_entropy are the padding that is never counted */
} RandOptions;

/* Adds parameters and a graph "train" to an empty module: data inputs (f32 and i32), weights, and
 * the outputs loss_sum and loss_count, both f32 []. */
Graph *randgraph_make(Module *m, const RandOptions *o);

/* Values for the graph's inputs: floats in [-1.5, 1.5), integers in [0, 3), which every table and
 * row of classes allows. In `arena`. Inputs of later graphs with the same ports get the same. */
void randgraph_inputs(const Graph *g, uint64_t seed, Arena *arena, EvalTensor *in);

#endif
