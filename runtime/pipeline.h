/* pipeline.h - one rank's share of the messages of a step.
 *
 * A message is received where the table says so, and waited for by the task that uses it; it is
 * sent where the table says so, and waited for before its window is written again. Every rank posts
 * its halves in the same order, so nobody waits for ever. At the end of a step loss and gradients
 * of shared weights are exchanged, then the squares behind the norm (PlanFinish).
 *
 * Where kernels work in the host's memory, messages go through the transport (pipeline_host.c) and
 * are waited for by the host. Where devices have memory of their own, messages are launches like
 * any other (pipeline_device.c): their place among these, and in a recorded graph what they read
 * and write, makes kernels wait for them.
 *
 * Functions without a result keep the first failure; inf_pipeline_end returns it.
 */
#ifndef INF_RUNTIME_PIPELINE_H
#define INF_RUNTIME_PIPELINE_H

#include "runtime/engine.h"
#include "runtime/group.h"
#include "runtime/kernels.h"
#include "runtime/sum_times.h"
#include "runtime/sums.h"
#include "runtime/transport.h"

/* How long this rank's training steps took up to their update, and how long of that it waited for
 * others, over the steps after the first few. */
typedef struct InfIdle {
    bool on;                     /* between a step's begin and its update */
    double begun_ms, waiting_ms; /* of the step at hand */
    double steps_ms, waited_ms;
    int64_t begun, steps;
} InfIdle;

typedef struct InfShards InfShards;

struct InfPipeline {
    const Plan *plan;
    InfGroup *group; /* who is told where this rank is; NULL: nobody */
    int rank;        /* of plan->ranks; alone where chunks of one rank talk by messages */
    int replica;     /* of `replicas` */
    int replicas;
    int stop; /* a signal that some rank has got, known to all since the last exchange */
    const InfTransport *transport;
    InfRequest *received, *sent; /* by message */
    uint32_t *pending;           /* messages sent and not waited for */
    uint32_t npending;
    bool adds; /* buckets are summed, over the replicas or, where a device is told to, of one */
    const struct InfPipelineWay *way;
    struct InfSums *sums;   /* over the replicas, by messages; NULL: none */
    void *sums_memory;      /* theirs, where the plan has none for them */
    InfRequest *sum;        /* by bucket */
    bool *begun;            /* by bucket: its sum, in this step; NULL on a device */
    uint32_t nbegun, nrow;  /* in this step: buckets begun, rows of the table passed */
    int64_t collectives;    /* buckets summed by the steps so far */
    float *figure;          /* loss, counts and metrics: this replica's, then of each */
    unsigned char *scalars; /* what every process had in PlanFinish.loss after a forward program */
    bool spread;            /* this step's weights have been sent to all replicas */
    uint32_t ngathered;     /* rows of the table that say so */
    InfSumTimes times;      /* of a trace */
    struct InfShards *shards; /* where replicas share the optimizer's work: shards.h; else NULL */
    InfIdle idle;
    InfError error;
    InfCode code;
};

InfCode inf_pipeline_open(InfError *e, const Plan *plan, InfGroup *group, InfPipeline *out);
void inf_pipeline_close(InfPipeline *p);

/* Sums have the memory of PLAN_REGION_sum, or where that is on a device a little of their own. */
InfCode inf_pipeline_place(InfError *e, InfPipeline *p, void *memory, int64_t bytes);

/* Tells where this rank is: task `task` of its list in this step; -1: between steps. */
void inf_pipeline_at(InfPipeline *p, int64_t step, int32_t task);

/* Messages on their way make progress. */
void inf_pipeline_poll(InfPipeline *p);

/* A training step begins; where it is profiled, when every rank is here. */
void inf_pipeline_begin(InfPipeline *p, InfProfile *profile, int64_t step);

/* The share of their time that all ranks waited, 0 to 1, and over how many steps: 0, nothing is
 * known. */
typedef struct InfBubble {
    double share;
    int64_t steps;
} InfBubble;

/* An exchange of its own. */
InfCode inf_pipeline_bubble(InfError *e, InfPipeline *p, InfBubble *out);

/* A line, or keys of an open object: with the plan's prediction; nothing without steps. */
void inf_bubble_print(const InfBubble *b, const Plan *plan, FILE *out);
void inf_bubble_put(const InfBubble *b, const Plan *plan, InfJson *j);

/* Tasks that send or receive, the first of `count`: returns how many of them it took. */
uint32_t inf_pipeline_message(InfPipeline *p, InfEngine *m, const PlanTask *task, uint32_t count);

/* The sum of a bucket over the replicas begins; its row of the table, behind the task in which it
 * has begun. */
void inf_pipeline_reduce(InfPipeline *p, InfEngine *m, uint32_t bucket);
void inf_pipeline_reduced(InfPipeline *p, uint32_t bucket);

/* A step's work is handed over: every bucket is summed in it, once. */
void inf_pipeline_reduced_all(InfPipeline *p);

/* What a program that only goes forward has left in the scalars that the host sees: each replica's
 * own, to all of its ranks; and everyone has them all. Where work is done beside the host, once it
 * has come back. */
void inf_pipeline_gather(InfPipeline *p, InfEngine *m);

/* Replica r's scalar region after that: loss, counts and metrics of it may be read. With several
 * replicas only. */
const unsigned char *inf_pipeline_scalars(const InfPipeline *p, int r);

/* Before a task that computes: what it uses is there, what it overwrites is gone. */
void inf_pipeline_before(InfPipeline *p, const InfEngine *m, const PlanTask *task);

/* After the last task that computes: everything is sent; every rank has loss, counts and metrics;
 * with `gradients` these are of all replicas, all buckets are summed, and the gradients of shared
 * weights are complete, too. */
void inf_pipeline_settle(InfPipeline *p, InfEngine *m, bool gradients);

/* The norm's squares of all ranks, before the update. */
void inf_pipeline_norm(InfPipeline *p, InfEngine *m);

/* With zero = 1, behind the update: what it changed goes to all replicas. The table's rows of that;
 * at the step's end there was one for each shard. */
void inf_pipeline_spread(InfPipeline *p, InfEngine *m);
void inf_pipeline_gathered(InfPipeline *p, uint32_t shard);
void inf_pipeline_gathered_all(InfPipeline *p);

/* How many launches buckets, settle, norm and spread add to a step on a device, the plan's own
 * kernels apart, and with how many arguments. */
InfLaunches inf_pipeline_launches(const InfPipeline *p);

/* Whether a signal asks any rank to stop, the same on all ranks at once: an exchange of its own. */
int inf_pipeline_signal(InfPipeline *p);

/* The signal that any rank has got, the same on all; 0: none. An exchange. */
int inf_pipeline_stop_signal(InfPipeline *p);

/* Whether `mine` is true on any rank: an exchange of its own, between steps. */
bool inf_pipeline_any(InfPipeline *p, bool mine);

/* The first failure so far. */
InfCode inf_pipeline_end(InfError *e, InfPipeline *p);

/* --- the two ways --- */

static inline bool inf_pipeline_works(const InfPipeline *p) { return p->code == INF_OK; }

/* Keeps the first failure: after it nothing is posted any more. */
static inline void inf_pipeline_note(InfPipeline *p, InfCode code) {
    if (p->code == INF_OK) p->code = code;
}

/* The process of this replica that runs a rank of the pipeline. */
static inline int inf_pipeline_process(const InfPipeline *p, int rank) {
    return p->replica + p->replicas * rank;
}

/* Until a request of this rank's is over; sums go on meanwhile. */
void inf_pipeline_await(InfPipeline *p, InfRequest *r);

/* In a training step: what has passed since `ms` was waiting; its update begins. */
void inf_pipeline_waited_since(InfPipeline *p, double ms);
void inf_pipeline_step_ends(InfPipeline *p);

typedef struct InfPipelineWay {
    uint32_t (*message)(InfPipeline *p, InfEngine *m, const PlanTask *task, uint32_t count);
    void (*before)(InfPipeline *p, const PlanTask *task); /* NULL: nothing */
    void (*reduce)(InfPipeline *p, InfEngine *m, uint32_t bucket);
    void (*settle)(InfPipeline *p, InfEngine *m, bool gradients);
    void (*norm)(InfPipeline *p, InfEngine *m);
    void (*spread)(InfPipeline *p, InfEngine *m);
} InfPipelineWay;

extern const InfPipelineWay inf_pipeline_host, inf_pipeline_device;

#endif
