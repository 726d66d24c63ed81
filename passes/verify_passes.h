/* verify_passes.h - does a pass keep the meaning of the graphs? Asked of the reference evaluator,
 * on random inputs, with --verify-passes. */
#ifndef INFINIC_PASSES_VERIFY_PASSES_H
#define INFINIC_PASSES_VERIFY_PASSES_H

#include "ir/eval.h"

/* The graphs as they are before a pass. Owns its memory. */
typedef struct VerifyGraphs VerifyGraphs;

VerifyGraphs *verify_passes_before(const Module *m);

/* Runs each graph that existed before as it was and as it is and compares the outputs that both
 * have, by role, index, use and name. A difference is an internal error that names the pass. */
void verify_passes_after(VerifyGraphs *before, const Module *m, const char *pass);

/* NULL is fine. */
void verify_passes_free(VerifyGraphs *before);

/* The tensor that an input with this port and type gets; the same for all uses of one weight.
 * `limit` bounds i32 values. */
EvalTensor verify_random_input(const Module *m, Arena *arena, Port port, Type type, int64_t limit);

#endif
