/* rewrite.h - graph to graph functions that several passes use.
 *
 * Each takes a whole graph, regions included, and returns a new one in the module's arena with the
 * same inputs, outputs and meaning; `scratch` holds what is needed only meanwhile.
 */
#ifndef INFINIC_PASSES_REWRITE_H
#define INFINIC_PASSES_REWRITE_H

#include "passes/pass.h"

typedef Graph *GraphRewrite(const Graph *g, Arena *scratch);

GraphRewrite fold_graph, cse_graph, dce_graph;

/* Replaces every graph of the module. */
void rewrite_module(PassContext *ctx, GraphRewrite *rewrite);

/* The value of a const node, rounded to its dtype; false when v is anything else. */
bool const_value(const Graph *g, Val v, double *value);

/* ---- scalars: fold_scalar.c ---- */

/* One elementwise op on constants as the target computes it: f32 arithmetic in f32, bf16 rounded
 * after each op, i32 exact. `from` is the operands' dtype (of the second operand for select), `to`
 * the result's. False when the result is not certain to be what the target computes. */
bool scalar_eval(Op op, Dtype from, Dtype to, const double x[3], double *result);

/* x as a value of the dtype. */
double scalar_round(Dtype dtype, double x);

/* Equal as bits: -0 differs from 0, a NaN equals itself. */
bool scalar_same(double x, double y);

#endif
