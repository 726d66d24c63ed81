/* pipeline.h - one rank's share of the messages of a step.
 *
 * A message is received where the table says so, and waited for by the task that uses it; it is
 * sent where the table says so, and waited for before its window is written again. Every rank posts
 * its halves in the same order, so nobody waits for ever. At the end of a step loss and gradients
 * of shared weights are exchanged, then the squares behind the norm (PlanFinish).
 * Functions without a result keep the first failure; inf_pipeline_end returns it.
 */
#ifndef INF_RUNTIME_PIPELINE_H
#define INF_RUNTIME_PIPELINE_H

#include "runtime/engine.h"
#include "runtime/group.h"
#include "runtime/transport.h"

/* How long this rank's training steps took up to their update, and how long of that it waited for
 * others, over the steps after the first few. */
typedef struct InfIdle {
    bool on;                     /* between a step's begin and its update */
    double begun_ms, waiting_ms; /* of the step at hand */
    double steps_ms, waited_ms;
    int64_t begun, steps;
} InfIdle;

struct InfPipeline {
    const Plan *plan;
    InfGroup *group; /* who is told where this rank is; NULL: nobody */
    int rank;
    int stop; /* a signal that some rank has got, known to all since the last exchange */
    const InfTransport *transport;
    InfRequest *received, *sent; /* by message */
    uint32_t *pending;           /* messages sent and not waited for */
    uint32_t npending;
    InfIdle idle;
    InfError error;
    InfCode code;
};

InfCode inf_pipeline_open(InfError *e, const Plan *plan, InfPipeline *out);
void inf_pipeline_close(InfPipeline *p);

/* Tells where this rank is: task `task` of its list in this step; -1: between steps. */
void inf_pipeline_at(InfPipeline *p, int64_t step, int32_t task);

/* Messages on their way make progress. */
void inf_pipeline_poll(InfPipeline *p);

/* A training step begins; with `together` when every rank is here. */
void inf_pipeline_begin(InfPipeline *p, bool together);

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

/* A task of the table that sends or receives. */
void inf_pipeline_message(InfPipeline *p, InfEngine *m, const PlanTask *task);

/* Before a task that computes: what it uses is there, what it overwrites is gone. */
void inf_pipeline_before(InfPipeline *p, const PlanTask *task);

/* After the last task that computes: everything is sent; every rank has loss, counts and metrics;
 * with `gradients` those of shared weights are complete, too. */
void inf_pipeline_settle(InfPipeline *p, InfEngine *m, bool gradients);

/* The norm's squares of all ranks, before the update. */
void inf_pipeline_norm(InfPipeline *p, InfEngine *m);

/* Whether a signal asks any rank to stop, the same on all ranks at once: an exchange of its own. */
int inf_pipeline_signal(InfPipeline *p);

/* The first failure so far. */
InfCode inf_pipeline_end(InfError *e, InfPipeline *p);

#endif
