/* nccl.h - messages and exchanges between devices, by NCCL.
 *
 * Loaded with dlopen when a run has messages between devices. There are two communicators: one for
 * messages and one for what all ranks do together. NCCL has no tags: between two ranks messages
 * match by their order, which the plan proves to be the same at both ends. Everything is enqueued
 * on a stream, also on one that is being captured; all connections are made by inf_nccl_open, so
 * that nothing has to be set up during a capture. Whether an exchange is captured must be the same
 * on all ranks.
 */
#ifndef INF_RUNTIME_NCCL_H
#define INF_RUNTIME_NCCL_H

#include "runtime/cuda_types.h"
#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfNccl InfNccl;

/* Loads the library and connects this rank with all that it has messages for; all ranks together,
 * with the device's context current. What is enqueued on `stream` is to be waited for.
 *   group     NULL: this rank alone, which may send messages to itself
 *   scratch   8 bytes of device memory */
InfCode inf_nccl_open(InfError *e, const Plan *plan, const InfGroup *group, CuAddress scratch,
                      CuStream stream, InfNccl **out);

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

#endif
