/* whole.h - a random model through the whole path: passes, code generation, the runtime's engine;
 * and what the f64 evaluator says it should give.
 *
 * A case is a random graph with settings, all decided by its seed. It is compiled in several ways;
 * kernels of many programs go into one Object. A run evaluates once and makes one training step of
 * several microbatches, on memory that holds NaN wherever nothing was written yet.
 */
#ifndef INFINIC_TESTS_CODEGEN_WHOLE_H
#define INFINIC_TESTS_CODEGEN_WHOLE_H

#include "ir/eval.h"
#include "runtime/engine.h"
#include "tests/codegen/object.h"
#include "tests/ir/randgraph.h"

enum { WHOLE_MICROBATCHES_MAX = 3, WHOLE_STATES_MAX = 2, WHOLE_ROUNDINGS = 3 };

typedef struct WholeCase {
    RandOptions rand;
    int64_t microbatches;
    Optimizer optimizer;
    double clip; /* 0: off */
    bool half;   /* dtype = bf16 */
} WholeCase;

WholeCase whole_case(uint64_t seed);

/* --- what is expected --- */

/* Sections are named parts of a result: "loss", "grad 3", "eval o1". */
typedef struct WholeSection {
    const char *name;
    int64_t n;
    double *exact;                    /* by the evaluator */
    double *rounded[WHOLE_ROUNDINGS]; /* with every value rounded to f32, each time another way */
} WholeSection;

typedef struct WholeExpected {
    Arena arena;
    Sources sources;
    Diag diag;
    Module *m;
    const WholeCase *c;
    EvalTensor **data;  /* [microbatch][input of the forward graph] */
    EvalTensor *weight; /* by parameter */
    EvalTensor *state[WHOLE_STATES_MAX];
    const Graph *forward;
    VEC(WholeSection) section;
} WholeExpected;

/* `c` must live as long as the result. */
WholeExpected *whole_expect(const WholeCase *c);
void whole_expected_free(WholeExpected *e);

/* --- what is computed --- */

typedef struct WholeVariant {
    bool no_fuse, no_reuse, recompute;
    int64_t bucket; /* bytes of a bucket: laid out as for replicas; 0: dense */
    bool zero;      /* CUDA: with zero = 1, a group of one replica */
} WholeVariant;

typedef struct Whole Whole;

/* Compiles the case down to kernels, which are added to `o`. NULL: replicas cannot share it. */
Whole *whole_new(const WholeCase *c, WholeVariant v, Object *o);
/* The same for replicas, without kernels: how many buckets their gradients have. */
uint32_t whole_buckets(const WholeCase *c, int64_t bucket);
uint32_t whole_steps(const Whole *w); /* steps of all chunks */
int64_t whole_owned(const Whole *w);  /* weights in f32 with their owner only */
void whole_free(Whole *w);

/* All results of one run as f32, sections one after another in the order of their making; equal
 * programs give equal layouts. */
typedef struct WholeResult {
    Arena arena;
    VEC(const char *) name;
    VEC(int64_t) begin; /* where the section begins in `value` */
    VEC(float) value;
} WholeResult;

/* Runs once; `o` is built. Returns NULL or what is wrong with the update or the memory around the
 * results (in r->arena). */
const char *whole_run(Whole *w, const Object *o, const WholeExpected *e, int threads,
                      WholeResult *r);

/* How far a result is from the evaluator's, at most. */
typedef struct WholeShare {
    double share;     /* of what is allowed */
    double relative;  /* norm of the difference over the norm */
    const char *name; /* the section */
} WholeShare;

/* NULL, or which section differs from the evaluator by more than rounding explains. */
const char *whole_compare(const WholeExpected *e, WholeResult *r, WholeShare *worst);
/* NULL, or the first element whose bits differ; with `gradients` what comes after these is free,
 * from section WHOLE_UPDATED on. */
#define WHOLE_UPDATED "norm"
const char *whole_compare_bits(const WholeResult *a, WholeResult *b, bool gradients);
void whole_result_free(WholeResult *r);

#endif
