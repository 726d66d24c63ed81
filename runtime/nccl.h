/* nccl.h - messages and exchanges between devices, by NCCL.
 *
 * Loaded with dlopen when a run has messages between devices. There are three communicators: one
 * for messages, one for what all ranks do together, and one for what the replicas of a pipeline's
 * rank do. NCCL has no tags: between two ranks messages match by their order, which the plan proves
 * to be the same at both ends; replicas run one plan. Everything is enqueued on a stream, also on
 * one that is being captured; all connections are made by inf_nccl_open, so that nothing has to be
 * set up during a capture. Whether an exchange is captured must be the same on all ranks.
 *
 * In one stream, what a rank enqueues in the order of its plan never waits for ever: messages alone
 * do not, and between replicas, which are at the same place of the same plan, a sum adds nothing
 * to wait for. In a graph, sums and messages have a lane each (order.h), which leaves out some of
 * that order and adds none; a device has room for one kernel of each at a time beside its own
 * work, which ends. So neither lane can keep the other from running.
 *
 * Memory that NCCL gives is registered for messages and for what replicas do, so that these need
 * no copies between GPUs. What replicas do takes an eighth of the multiprocessors at most: it goes
 * on beside the backward pass, and each of its blocks keeps a multiprocessor from that as long as
 * it lasts.
 */
#ifndef INF_RUNTIME_NCCL_H
#define INF_RUNTIME_NCCL_H

#include "runtime/cuda_types.h"
#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfNccl InfNccl;

/* Whether a run has anything to exchange.
 *   group   NULL: this rank alone, which may send messages to itself */
bool inf_nccl_wanted(const Plan *plan, const InfGroup *group);

/* Loads the library. */
InfCode inf_nccl_load(InfError *e, InfNccl **out);

/* Memory of the device whose context is current, that NCCL can register; freed with it. 0: it has
 * none, which plain memory is as good for. Once. */
CuAddress inf_nccl_take(InfNccl *n, uint64_t bytes);

typedef struct InfNcclPlace {
    CuAddress scratch; /* inf_nccl_scratch bytes of device memory */
    CuStream stream;   /* what is enqueued on it is to be waited for */
    int multiprocessors;
} InfNcclPlace;

/* Connects this rank with all that it has messages for; all ranks together, with the device's
 * context current. */
InfCode inf_nccl_open(InfError *e, InfNccl *n, const Plan *plan, const InfGroup *group,
                      const InfNcclPlace *place);

/* What inf_nccl_open needs to try everything once. */
uint64_t inf_nccl_scratch(const Plan *plan);

/* In good order and in bad: does not wait for other ranks. NULL: nothing. */
void inf_nccl_close(InfNccl *n);

/* All halves at once; none waits for another one. */
InfCode inf_nccl_exchange(InfError *e, InfNccl *n, const InfHalf *half, uint32_t count,
                          CuStream stream);

/* From `root` to all, in place. */
InfCode inf_nccl_broadcast(InfError *e, InfNccl *n, int root, void *at, uint64_t bytes,
                           CuStream stream);

/* Sum over all ranks, in place: exact where at most one has another value than 0. */
InfCode inf_nccl_sum(InfError *e, InfNccl *n, float *at, uint64_t count, CuStream stream);

/* Over the replicas of this rank: sums of some vectors at once, in place; the sum of elements [r *
 * each, (r + 1) * each) to replica r, in place; bytes [r * each, (r + 1) * each) of replica r to
 * all, in place. All replicas get the same bits, and in every run of as many. */
InfCode inf_nccl_add(InfError *e, InfNccl *n, const InfAddend *part, uint32_t count,
                     CuStream stream);
InfCode inf_nccl_scatter(InfError *e, InfNccl *n, float *all, uint64_t each, CuStream stream);
InfCode inf_nccl_spread(InfError *e, InfNccl *n, void *all, uint64_t each, CuStream stream);

/* All halves at once, their peers numbers of replicas. */
InfCode inf_nccl_trade(InfError *e, InfNccl *n, const InfHalf *half, uint32_t count,
                       CuStream stream);

#endif
