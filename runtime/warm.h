/* warm.h - starts what has memory of its own before memory is counted.
 *
 * Threads and the matrix library bring code pages and generated kernels along, MPI its pools and
 * memory shared with neighbours, which are no part of any plan. The library's packing buffers are:
 * they are found by asking it for a large product.
 */
#ifndef INF_RUNTIME_WARM_H
#define INF_RUNTIME_WARM_H

#include <stdint.h>

#include "runtime/group.h"

/* First, with several ranks: messages between those that will talk in a step, so that MPI has
 * taken what it keeps for them. NULL: none. */
InfCode inf_warm_messages(InfError *e, const InfGroup *group);

/*   threads    0: as many as OpenMP would take; they stay set
 *   resident   VmRSS with everything started and no buffer taken
 *   workspace  bytes of packing buffers that stay with the threads; 0 when nothing calls it
 */
InfCode inf_warm_up(InfError *e, int threads, uint64_t *resident, uint64_t *workspace);

#endif
