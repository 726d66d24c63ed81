/* work.h - model FLOPs by the usual formula, and what a device could do at best.
 *
 * A token costs 6 N for the parameters' products, forward and backward, and 6 L C T for causal
 * attention over T tokens: N parameters (a tied one once, padding rows not counted), L layers of
 * attention of C = heads * dimension. What is computed again is not counted. MFU is that work over
 * the device's dense bf16 peak.
 */
#ifndef INF_RUNTIME_WORK_H
#define INF_RUNTIME_WORK_H

#include "runtime/plan.h"

/* Of one training step over all replicas; 0 for a program without tokens. */
double inf_work_step(const Plan *plan);

/* MFU of a step that takes `ms` on so many devices of a kind as there are ranks; 0: not known. */
double inf_work_share(const Plan *plan, const char *device, double ms);

/* FLOP/s of dense bf16 products with f32 sums; 0 for a device that is not in the table.
 *   device   as its driver calls it, "NVIDIA H200 (sm_90)" */
double inf_work_peak(const char *device);

#endif
