/* timeline.h - when each task of the table runs, in slots of unit costs without communication: F 1,
 * B 2, I 1, W 1; messages and updates take none.
 *
 * What replicas do with each other is no task of that kind: its place and length are the predicted
 * ones, a forward of a mean chunk being a slot.
 */
#ifndef INF_RUNTIME_TIMELINE_H
#define INF_RUNTIME_TIMELINE_H

#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfTimeline {
    const Plan *plan;
    int ranks, chunks;
    int64_t *start; /* by index into Plan.task */
    int64_t *index; /* where (chunk, microbatch, kind) is */
    int64_t end;    /* of the last task, without updates */
    bool sums;      /* there are replicas */
    double *sum;    /* by index into Plan.task, twice: begin and length of sums and gathers, and of
                       updates, which wait for sums */
    double sum_end; /* of the last of these */
} InfTimeline;

InfCode inf_timeline_open(InfError *e, const Plan *plan, InfTimeline *out);
void inf_timeline_close(InfTimeline *t);

/* This rank's tasks of a step. */
const PlanRank *inf_timeline_rank(const InfTimeline *t, int rank);

/* What a task takes. */
int64_t inf_task_slots(const PlanTask *task);

static inline bool inf_task_computes(const PlanTask *task) { return task->kind < PTASK_update; }
static inline bool inf_task_is_message(const PlanTask *task) {
    return task->kind == PTASK_send || task->kind == PTASK_recv;
}
static inline bool inf_task_is_sum(const PlanTask *task) {
    return task->kind == PTASK_reduce || task->kind == PTASK_gather;
}

#endif
