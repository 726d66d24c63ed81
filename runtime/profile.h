/* profile.h - where the time of a step goes: one span a launch and a task, added up by kernel and,
 * when asked for, written as a trace.
 *
 * While a profile is on, every launch and every task stands between two marks of the device,
 * nothing is replayed from a graph, and the host waits for each step. Marks cost a microsecond or
 * two a launch.
 */
#ifndef INF_RUNTIME_PROFILE_H
#define INF_RUNTIME_PROFILE_H

#include "runtime/device.h"
#include "runtime/trace.h"

typedef enum InfSpanKind {
    INF_SPAN_launch,
    INF_SPAN_stage,    /* the samples of a microbatch are put in place */
    INF_SPAN_task,     /* all of a task but its waits */
    INF_SPAN_wait,     /* a task waits for its message, or for the memory that it writes */
    INF_SPAN_exchange, /* before the update: loss, shared gradients, the norm's squares */
} InfSpanKind;

/* A piece of the step at hand. */
typedef struct InfSpan {
    InfSpanKind kind;
    uint32_t kernel; /* of a launch */
    uint32_t task;   /* index into Plan.task: which it is, or the one that it belongs to */
    const char *scope;
    int64_t microbatch;
} InfSpan;

typedef struct InfProfile {
    bool on;
    const Plan *plan;
    const InfDeviceTable *table;
    InfDevice *device;
    InfSpan *span;
    uint32_t count, most;
    uint32_t task;     /* the one at hand */
    double *kernel_ms; /* by kernel, over all steps; NULL before inf_profile_open */
    double *unit_ms;   /* by unit of the plan and kind of task; NULL: not wanted (costs.h) */
    double step_ms;    /* the step's begin, by the clock */
    InfTrace trace;
} InfProfile;

/* Turns a profile on. */
InfCode inf_profile_open(InfError *e, const Plan *plan, const InfDeviceTable *table,
                         InfDevice *device, InfProfile *out);
void inf_profile_close(InfProfile *p);

/* Turns it off; the times stay. */
void inf_profile_stop(InfProfile *p);

/* Also writes the steps into a file; inf_trace_end completes it. */
InfCode inf_profile_trace(InfError *e, InfProfile *p, int replica, const char *path);

/* Around a step, whose work is done when it ends. */
void inf_profile_step_begin(InfProfile *p);
void inf_profile_step_end(InfProfile *p, int64_t step);

/* Around anything in it; what begins returns its number for the end. Nothing is done, and any
 * number is good, while the profile is off. */
uint32_t inf_profile_begin_task(InfProfile *p, InfSpanKind kind, uint32_t task);
uint32_t inf_profile_begin(InfProfile *p, InfSpanKind kind, uint32_t kernel, const char *scope,
                           const InfEnv *env);
void inf_profile_end(InfProfile *p, uint32_t span);

#endif
