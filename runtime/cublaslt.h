/* cublaslt.h - the one door to the device's matrix library.
 *
 * Descriptors and algorithm of every product of the plan are fixed at start: they depend on shape,
 * types, epilogue, alignment, device and library version only. An algorithm that splits k adds its
 * parts in the workspace in a fixed order, so the same input gives the same bits.
 */
#ifndef INF_RUNTIME_CUBLASLT_H
#define INF_RUNTIME_CUBLASLT_H

#include "runtime/cuda_types.h"
#include "runtime/plan.h"
#include "runtime/status.h"

enum { INF_LT_WORKSPACE_BYTES = 32 << 20, INF_LT_ALIGNMENT_MAX = 256 };

typedef struct InfLt InfLt;

/* Loads the library; with the driver's context current. */
InfCode inf_lt_open(InfError *e, const Plan *plan, InfLt **out);
void inf_lt_close(InfLt *lt);

/* Prepares every product. Called once, when the addresses are known.
 *   base       address of each region, to tell how its operands are aligned
 *   workspace  INF_LT_WORKSPACE_BYTES of device memory */
InfCode inf_lt_prepare(InfError *e, InfLt *lt, const CuAddress base[PLAN_REGION_count],
                       CuAddress workspace);

/* Enqueues product `index` on the step's arguments. */
InfCode inf_lt_run(InfError *e, InfLt *lt, uint32_t index, void *const *arg, CuStream stream);

#endif
