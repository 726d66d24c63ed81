/* step.h - training steps and evaluations, walked over the plan's tasks.
 *
 * A step is submitted and finished. On a device that works beside the host, some steps are on
 * their way between the two: table->late of them in a training loop, INF_DEVICE_DEPTH at most.
 */
#ifndef INF_RUNTIME_STEP_H
#define INF_RUNTIME_STEP_H

#include "runtime/engine.h"
#include "runtime/loader.h"

enum { INF_METRIC_MAX = 16 };

/* Samples of one step over all replicas. */
uint64_t inf_global_batch(const Plan *plan);

/* What the host computes for a step. */
typedef struct InfHost {
    double lr, weight_decay, clip; /* clip 0: off */
    int64_t updates; /* applied, of the steps that are finished; the device counts on from there */
} InfHost;

typedef struct InfStepInput {
    int64_t step;      /* of the run, from 0 */
    uint64_t position; /* in the epoch, of the first sample */
    InfHost host;
} InfStepInput;

typedef struct InfStepResult {
    InfStepInput input;
    float loss;  /* mean over the counted targets */
    float count; /* of targets */
    float grad_norm;
    bool applied; /* false: a number is not finite, and the weights are as before */
} InfStepResult;

/* Steps submitted and not finished, oldest first; the results of the first `ready` are here
 * already. Zero-initialise. */
typedef struct InfSteps {
    InfStepResult step[INF_DEVICE_DEPTH];
    int count, ready;
    uint64_t applied; /* of all that are finished */
} InfSteps;

/* Enqueues a whole step: forward and backward of every microbatch, then the update. */
void inf_step_submit(InfSteps *s, InfEngine *m, InfLoader *l, const InfStepInput *in);

/* Waits for the oldest. */
InfCode inf_step_finish(InfError *e, InfSteps *s, InfEngine *m, InfStepResult *out);

/* Waits for all, so that other work may follow; their results come with inf_step_finish. */
InfCode inf_step_wait(InfError *e, InfSteps *s, InfEngine *m);

/* Everything before the update, and waits for it; nothing else may be on its way. */
InfCode inf_step_gradients(InfError *e, InfEngine *m, InfLoader *l, const InfStepInput *in,
                           InfStepResult *out);

/* A program with the inputs of eval on the first samples, and waits for it: its outputs are then
 * where the plan puts them. */
InfCode inf_step_forward(InfError *e, InfEngine *m, InfLoader *l, uint32_t program);

/* Means over a whole set, one per metric of the eval program. */
typedef struct InfEvaluation {
    int count; /* metrics */
    double mean[INF_METRIC_MAX];
    uint64_t samples;
} InfEvaluation;

/* Walks the set once, the last batch padded; nothing else may be on its way. *stopped: a signal
 * asked to stop, and there is no result. */
InfCode inf_evaluate(InfError *e, InfEngine *m, InfLoader *l, InfEvaluation *out, bool *stopped);

/* Runs a program that only goes forward, on inputs that are in the data region already. */
void inf_forward(InfEngine *m, uint32_t program);

#endif
