/* check.h - what the unit tests of passes share: modules from text, passes run singly, graphs run
 * by the reference evaluator, gradients against finite differences. */
#ifndef INFINIC_TESTS_PASSES_CHECK_H
#define INFINIC_TESTS_PASSES_CHECK_H

#include "ir/eval.h"
#include "passes/pass.h"

typedef struct Check {
    Arena arena, scratch;
    Sources sources;
    Diag diag;
    Module *m;
    const Graph *forward; /* "train" as read */
    EvalTensor *in;       /* of `forward`, random; a test may change them before it goes on */
} Check;

/* An empty module; a module from text, which must be valid. Free with check_free. */
void check_empty(Check *c);
void check_read(Check *c, const char *text);
void check_free(Check *c);

/* Takes "train" of the module, built by calls, as the forward graph and makes its inputs. */
void check_start(Check *c);

/* Copies `text` with $S, $A and $O replaced by the shape "2,3", its axes "0,1" and the op. */
const char *check_expand(Check *c, const char *text, const char *shape, const char *op);

/* Runs one pass and verifies the module. */
void check_pass(Check *c, bool (*pass)(PassContext *ctx));

/* Runs a graph; inputs are those of the forward graph with the same role and index. */
EvalTensor *check_eval(Check *c, const Graph *g);

/* The tensor of an output; data NULL when there is none. */
EvalTensor check_output(const Graph *g, const EvalTensor *out, Role role, int index, int use);

/* The gradient of parameter `param` that "train" computes, all uses added. */
EvalTensor check_grad(Check *c, const Graph *g, const EvalTensor *out, int param);

typedef struct CheckDiff {
    double tolerance; /* of |computed - difference| / (1 + |difference|) */
    int directions;   /* random directions a parameter; small ones are checked element by element */
} CheckDiff;

/* Runs alias and autodiff, decompose, cleanup, and compares every parameter's gradient with central
 * differences of the forward graph after each of the three. */
void check_gradients(Check *c, CheckDiff diff);
void check_gradients_of(const char *text, double tolerance);

#endif
