/* ordered.h - reduce = "ordered": a step's microbatches as leaves of one tree (PlanOrdered).
 *
 * Each microbatch writes gradients, loss, counts and metrics afresh; here they are added, in an
 * order that depends on the number of microbatches of all replicas only. Where the plan has no
 * PlanOrdered nothing is done. For devices that share the host's memory.
 */
#ifndef INF_RUNTIME_ORDERED_H
#define INF_RUNTIME_ORDERED_H

#include "runtime/engine.h"

typedef struct InfOrdered InfOrdered;

InfCode inf_ordered_open(InfError *e, InfEngine *m);
void inf_ordered_close(InfEngine *m);

/* Before a task: gradients are written into its microbatch's buffer. */
void inf_ordered_before(InfEngine *m, const PlanTask *task);

/* Behind it: complete sums are added; loss, counts and metrics of the last chunk are kept. */
void inf_ordered_after(InfEngine *m, const PlanTask *task);

/* Behind a step's last task: gradients of all replicas are in the first buffer; loss, counts and
 * metrics are where the plan has them, on the rank of the last chunk. */
void inf_ordered_finish(InfEngine *m);

#endif
