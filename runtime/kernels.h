/* kernels.h - per kernel: how often a step calls it, its least traffic, its FLOPs, its time. */
#ifndef INF_RUNTIME_KERNELS_H
#define INF_RUNTIME_KERNELS_H

#include <stdio.h>

#include "runtime/engine.h"
#include "runtime/json.h"

/* Launches of each kernel in one training step; `calls` has plan->nkernel entries. */
void inf_kernels_count(const Plan *plan, int64_t *calls);

/* How many launches steps [begin, end) make, and with how many arguments altogether. */
typedef struct InfLaunches {
    int64_t launches, args;
} InfLaunches;
InfLaunches inf_kernels_launches(const Plan *plan, uint32_t begin, uint32_t end);

/* Floating-point operations and bytes of one training step. */
typedef struct InfTraffic {
    int64_t bytes, flops;
} InfTraffic;
InfTraffic inf_kernels_total(const Plan *plan, const int64_t *calls);

/* A table, slowest first when m has times, most FLOPs first when m is NULL.
 *   steps   over how many steps the times were added up */
InfCode inf_kernels_print(InfError *e, const Plan *plan, const InfEngine *m, int64_t steps,
                          FILE *out);

/* The same as a JSON list. */
InfCode inf_kernels_json(InfError *e, const Plan *plan, const InfEngine *m, int64_t steps,
                         InfJson *j);

#endif
