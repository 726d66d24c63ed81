/* shards.h - zero = 1: replicas share the optimizer's work and states (PlanShard).
 *
 * Each bucket's gradients are summed where they are owned (reduce-scatter), the norm's blocks of
 * all owners are brought together, each updates the weights that it owns, and these go to all
 * (all-gather) while the next step begins: whoever reads a chunk's weights waits for them first.
 * Where the plan has no PlanShard nothing is done. Steps are for devices that share the host's
 * memory, values for all.
 *
 * An owned weight (PlanParam.owned) is in bf16 on every replica, in f32 in parts with their owners.
 */
#ifndef INF_RUNTIME_SHARDS_H
#define INF_RUNTIME_SHARDS_H

#include "runtime/params.h"
#include "runtime/pipeline.h"

InfCode inf_shards_open(InfError *e, InfPipeline *p);
void inf_shards_close(InfPipeline *p);

/* Whether replicas share here. */
static inline bool inf_shards_on(const InfPipeline *p) { return p && p->shards; }

/* Sums of the norm's blocks, of all replicas. */
void inf_shards_blocks(InfPipeline *p, InfEngine *m);

/* Behind an update: the weights that this replica owns go to all. */
void inf_shards_spread(InfPipeline *p, InfEngine *m);

/* Until the weights that a chunk of this rank reads first are there; -1: all. Its time is counted
 * by the caller. */
void inf_shards_await(InfPipeline *p, int local);

/* What of a tensor this replica owns, of state vector k, of the gradient (INF_VALUES_gradients: the
 * sum over its uses) or of the weights where these are owned, summed over the replicas into
 * `stored`, as long as the stored tensor: its values, on every replica. Called by all replicas that
 * hold the tensor. */
InfCode inf_shards_values(InfError *e, const InfParam *p, const InfEngine *m, int which,
                          float *stored);

/* The values of a state vector into what this replica owns. */
void inf_shards_load(const InfParam *p, InfEngine *m, int k, const float *stored);

/* Elements [at, at + count) of an owned weight as stored: rounded into the copy, and what this
 * replica owns of them as they are, unless it only goes forward. Threads may have different rows.
 */
void inf_shards_put(const InfParam *p, InfEngine *m, int64_t at, const float *values,
                    int64_t count);

#endif
