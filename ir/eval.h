/* eval.h - the reference evaluator: any graph, slowly and obviously, in f64.
 *
 * The oracle of the random tests and of --verify-passes. Every tensor is an array of double, bool
 * as 0 or 1, integers exact. f32 values are not rounded, unless asked for; bf16 results of
 * elementwise ops are: a cast to bf16 is meant to lose bits.
 */
#ifndef INFINIC_IR_EVAL_H
#define INFINIC_IR_EVAL_H

#include "ir/module.h"

typedef struct EvalTensor {
    Type type;
    double *data; /* type_elems */
} EvalTensor;

/* Numbers for random_uniform: element `index` of stream `stream` in iteration path `iter`. */
typedef double EvalRandom(void *ctx, int64_t stream, const int64_t *iter, int niter, int64_t index);

typedef struct EvalContext {
    Arena *arena;
    EvalRandom *random; /* NULL: a built-in counter-based generator */
    void *random_ctx;
    /* To see what single precision alone costs: 1 rounds every float result of a node to f32;
     * higher numbers choose one of its neighbours, each number others. */
    int round_f32;
} EvalContext;

/* Runs g on in[0 .. g->nin) and fills out[0 .. g->nout) (allocated in ctx->arena). */
void eval_graph(const EvalContext *ctx, const Graph *g, const EvalTensor *in, EvalTensor *out);

#endif
