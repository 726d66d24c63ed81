/* engine.h - one process's memory and the walk over the plan's tables.
 *
 * All regions are one allocation made by inf_engine_open; nothing is allocated while steps run.
 * Not thread-safe: one thread walks, the kernels spread themselves over OpenMP's.
 */
#ifndef INF_RUNTIME_ENGINE_H
#define INF_RUNTIME_ENGINE_H

#include <stddef.h>

#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfEngine {
    const Plan *plan;
    unsigned char *base[PLAN_REGION_count];
    void *memory;
    uint64_t memory_bytes;
    InfEnv env;
    void **arg;        /* the operands of one launch */
    double *kernel_ms; /* by kernel; NULL: launches are not timed */
    int64_t *kernel_calls;
} InfEngine;

/* Checks the plan, the processor and the memory that is free, then takes the memory.
 *   threads   0: as many as OpenMP would take */
InfCode inf_engine_open(InfError *e, const Plan *plan, int threads, uint64_t seed, InfEngine *out);
void inf_engine_close(InfEngine *m);

/* Bytes of the regions together, each rounded up to whole pages; checked. */
InfCode inf_engine_bytes(InfError *e, const Plan *plan, uint64_t *bytes);

/* Refuses a processor without the features that the kernels were compiled for. */
InfCode inf_cpu_check(InfError *e, const Plan *plan);

/* Runs the steps of Plan.chunk[chunk]. */
void inf_engine_run(InfEngine *m, uint32_t chunk);

/* From now on the time of every launch is added up by kernel; frees with inf_engine_close. */
InfCode inf_engine_time_kernels(InfError *e, InfEngine *m);

static inline void *inf_engine_at(const InfEngine *m, PlanRegion region, int64_t offset) {
    return m->base[region] + offset;
}

static inline float inf_engine_scalar(const InfEngine *m, int64_t offset) {
    return *(const float *)inf_engine_at(m, PLAN_REGION_scalar, offset);
}

static inline void inf_engine_set(InfEngine *m, HostScalar which, double value) {
    ((float *)inf_engine_at(m, PLAN_REGION_scalar, 0))[which] = (float)value;
}

/* From now on parallel regions have this many threads, 0: as many as OpenMP would take. Returns how
 * many that is. */
int inf_threads_set(int threads);

/* Now, in milliseconds of a clock that never goes back. */
double inf_clock_ms(void);

/* VmRSS and VmHWM of this process in bytes, 0 when /proc does not tell; and the memory that the
 * system can still give, UINT64_MAX when it does not tell. */
typedef struct InfMemory {
    uint64_t resident, peak;
} InfMemory;
InfMemory inf_memory_now(void);
uint64_t inf_memory_available(void);

#endif
