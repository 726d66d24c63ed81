/* step.h - one training step and one evaluation, walked over the plan's tasks. */
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
    int64_t updates;               /* applied so far; the bias corrections count from here */
} InfHost;

/* Everything before the update: forward and backward of every microbatch, the first of which
 * stands at `position` of the epoch. Returns the loss, the mean over the counted targets. */
float inf_step_gradients(InfEngine *m, const InfLoader *l, const InfHost *host, uint64_t position);

/* The update; false, with the weights untouched, when a number is not finite. */
bool inf_step_update(InfEngine *m, float loss);

/* Counted targets of the step just accumulated. */
float inf_step_count(const InfEngine *m);

/* Means over a whole set, one per metric of the eval program. */
typedef struct InfEvaluation {
    int count; /* metrics */
    double mean[INF_METRIC_MAX];
    uint64_t samples;
} InfEvaluation;

/* Walks the set once, the last batch padded. False when a signal asked to stop. */
bool inf_evaluate(InfEngine *m, const InfLoader *l, InfEvaluation *out);

#endif
