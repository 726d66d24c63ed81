/* profile.h - where the time of a step goes: one span a launch, added up by kernel and, when asked
 * for, written as a Chrome trace (chrome://tracing, Perfetto).
 *
 * While a profile is on, every launch stands between two marks of the device, nothing is replayed
 * from a graph, and the host waits for each step. Marks cost a microsecond or two a launch.
 */
#ifndef INF_RUNTIME_PROFILE_H
#define INF_RUNTIME_PROFILE_H

#include <stdio.h>

#include "runtime/device.h"
#include "runtime/json.h"

/* One launch of the step at hand. */
typedef struct InfSpan {
    uint32_t kernel; /* Plan.nkernel: the samples of a microbatch are put in place */
    const char *scope;
    int64_t microbatch;
    int64_t iter[PLAN_REPEAT_DEPTH_MAX];
} InfSpan;

typedef struct InfProfile {
    bool on;
    const Plan *plan;
    const InfDeviceTable *table;
    InfDevice *device;
    InfSpan *span;
    uint32_t count, most;
    double *kernel_ms; /* by kernel, staging last, over all steps; NULL before inf_profile_open */
    FILE *trace;       /* NULL: no trace */
    const char *path;
    bool first; /* no event written yet */
    double origin_ms, step_ms;
} InfProfile;

/* Turns a profile on. */
InfCode inf_profile_open(InfError *e, const Plan *plan, const InfDeviceTable *table,
                         InfDevice *device, InfProfile *out);
void inf_profile_close(InfProfile *p);

/* Turns it off; the times stay. */
void inf_profile_stop(InfProfile *p);

/* Also writes the steps into a file; inf_profile_trace_end completes it. */
InfCode inf_profile_trace(InfError *e, InfProfile *p, const char *path);
InfCode inf_profile_trace_end(InfError *e, InfProfile *p);

/* Around a step, whose work is done when it ends; around each launch. */
void inf_profile_step_begin(InfProfile *p);
void inf_profile_step_end(InfProfile *p, int64_t step);
void inf_profile_begin(InfProfile *p, uint32_t kernel, const char *scope, const InfEnv *env);
void inf_profile_end(InfProfile *p);

#endif
