/* ordered.h - reduce = "ordered": a step's microbatches as leaves of one tree (PlanOrdered).
 *
 * Each microbatch writes gradients, loss, counts and metrics afresh; here they are added, in an
 * order that depends on the number of microbatches of all replicas only. Where the plan has no
 * PlanOrdered nothing is done.
 *
 * Where kernels work in the host's memory, the host adds, and replicas tell each other everything
 * when a step's tasks are done (ordered_host.c). Where devices have memory of their own, additions
 * are launches, and buckets go to the others as soon as they are complete: each replica adds up its
 * share, and shows it to all (ordered_device.c).
 */
#ifndef INF_RUNTIME_ORDERED_H
#define INF_RUNTIME_ORDERED_H

#include "runtime/engine.h"
#include "runtime/kernels.h"

typedef struct InfOrdered InfOrdered;

InfCode inf_ordered_open(InfError *e, InfEngine *m);
void inf_ordered_close(InfEngine *m);

/* Before a task: gradients are written into its microbatch's buffer. */
void inf_ordered_before(InfEngine *m, const PlanTask *task);

/* Behind it: complete sums are added; loss, counts and metrics of the last chunk are kept. */
void inf_ordered_after(InfEngine *m, const PlanTask *task);

/* On a device, with several replicas: a bucket is complete in the task at hand, the last of its
 * chunk. False: this was the survey only (engine.h). */
bool inf_ordered_reduce(InfEngine *m, uint32_t bucket);

/* Behind a step's last task: gradients of all replicas are in the first buffer, with zero = 1 on a
 * device what this replica owns of them; loss, counts and metrics are where the plan has them, on
 * the rank of the last chunk. */
void inf_ordered_finish(InfEngine *m);

/* How many launches a task is followed by on a device at most, the same on all replicas; buckets
 * that are complete in it and, of the update, the step's end included. */
InfLaunches inf_ordered_launches(const InfEngine *m, const PlanTask *task);

/* --- the two ways --- */

/* Additions one after another, elementwise: out = term[2] + (term[1] + term[0]). `out` may be one
 * of the terms; the others stay what they are. */
typedef struct InfAddition {
    float *out;
    const float *term[INF_TERMS_MAX];
    uint32_t terms;
    int64_t count;
    bool joins; /* what several replicas have told each other: has the order of exchanges */
} InfAddition;

typedef struct InfOrderedWay {
    InfCode (*open)(InfError *e, InfEngine *m);
    void (*close)(InfOrdered *o);
    void (*keep)(InfEngine *m, int64_t leaf); /* figures of a microbatch */
    void (*add)(InfEngine *m, const InfAddition *sum);
    void (*finish)(InfEngine *m);
} InfOrderedWay;

extern const InfOrderedWay inf_ordered_host, inf_ordered_device;

struct InfOrdered {
    const InfOrderedWay *way;
    float *figure;        /* [replica][microbatch]: loss, counts, metrics */
    float **part;         /* by PlanPart: one of a bucket's sums */
    float **term;         /* of additions one after another */
    InfHalf *half;        /* of an exchange between devices */
    const PlanLeaf *leaf; /* of the task at hand */
};

/* Loss, counts and metrics of one microbatch: floats. */
static inline int64_t inf_ordered_figures(const Plan *plan) {
    return plan->ordered->figure_bytes / (int64_t)sizeof(float);
}

/* Of a task's microbatch, on a replica. */
const PlanLeaf *inf_ordered_leaf(const Plan *plan, const PlanTask *task, int replica);

/* What a buffer has of a bucket, as kernels see it. */
float *inf_ordered_at(const InfEngine *m, uint32_t buffer, const PlanBucket *b);

/* The buffers of this replica's sums of a bucket. */
const uint32_t *inf_ordered_kept(const InfEngine *m, const PlanBucket *b);

/* The additions behind the task at hand, of one bucket. */
void inf_ordered_add(InfEngine *m, const PlanBucket *b);

/* `count` elements of all parts, in o->part, in the order of the tree; with several replicas. */
void inf_ordered_join(InfEngine *m, float *out, int64_t count);

#endif
