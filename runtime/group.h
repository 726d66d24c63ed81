/* group.h - the ranks of a run: how they start, agree, fail and end.
 *
 *   inf_group_start   a plainly started process becomes the launcher and returns when all is over;
 *                     a rank takes its place, and knows all others when this returns
 *   inf_group_same    before the first step: everyone has the same program, plan and data
 *   inf_group_signal  between steps: whether all stop here
 *   inf_group_at      where this rank is, for the others' messages
 *   inf_group_end     good order: all ranks come here
 *   inf_group_fail    this rank gives up: the others leave within moments, with exit code 7
 *
 * With one rank all of it does nothing, but inf_group_fail prints the message. All functions but
 * inf_group_at belong to the thread that opened the group.
 */
#ifndef INF_RUNTIME_GROUP_H
#define INF_RUNTIME_GROUP_H

#include "runtime/lifeline.h"
#include "runtime/plan.h"
#include "runtime/transport.h"

typedef struct InfGroup {
    int rank, count, local_rank, local_count;
    int replica;                   /* of dp: rank = replica + dp * rank of the pipeline */
    const InfTransport *transport; /* NULL with one rank */
    const Plan *plan;
    InfLifeline *lifeline;
    bool open; /* the transport is */
    /* Every rank ends now because of a signal; inf_group_fail with INF_STOPPED is then good order,
     * too. Set by inf_group_signal, and by whoever has learnt it in another collective. */
    bool agreed;
} InfGroup;

/* *launched: there is nothing more to do for this process but to exit with *exit_code, and all has
 * been said. Else `out` is this rank's; on failure too, for inf_group_fail.
 *   ranks       dp * tp * pp of the plan */
InfCode inf_group_start(InfError *e, const Plan *plan, int ranks, int argc, char **argv,
                        InfGroup *out, bool *launched, int *exit_code);

/* Cheap; from any thread.
 *   task   of this rank's table in the step's program; -1: between tasks */
void inf_group_at(InfGroup *g, int64_t step, int32_t task);

/* Refuses (INF_PEER) when `hash` is not the same on all ranks, and names those that differ.
 *   what   "program", "plan", "data"
 *   hash   0: this rank has none, and nothing to compare */
InfCode inf_group_same(InfError *e, InfGroup *g, const char *what, uint64_t hash);

/* The signal that was sent to any rank, or 0: the same for all, who therefore all stop behind the
 * same step and may still save together. All ranks call it; one small collective.
 * What one rank does alone (reading data) polls inf_signals_pending and fails. */
InfCode inf_group_signal(InfError *e, InfGroup *g, int *number);

/* Tells the others, and prints the text unless another rank's failure came first. The process
 * then ends with `code` without using the transport any more. */
void inf_group_fail(InfGroup *g, InfCode code, const char *text);

void inf_group_end(InfGroup *g);

#endif
