/* engine.h - one process's device, its memory, and the walk over the plan's tables.
 *
 * All regions are one allocation; nothing is allocated while steps run. Where the device has memory
 * of its own, the host sees each region through a copy that is brought up to date by hand:
 * inf_engine_fetch before reading, inf_engine_push after writing. Where host and device share
 * memory both do nothing.
 * Not thread-safe: one thread walks, the kernels spread themselves over OpenMP's.
 */
#ifndef INF_RUNTIME_ENGINE_H
#define INF_RUNTIME_ENGINE_H

#include <stddef.h>

#include "runtime/device.h"
#include "runtime/order.h"
#include "runtime/plan.h"
#include "runtime/profile.h"
#include "runtime/status.h"

typedef struct InfPipeline InfPipeline; /* pipeline.h */

/* How a program's submissions are replayed: not decided yet, as one graph, as one a task. */
typedef enum InfGraphs { INF_GRAPHS_unknown, INF_GRAPHS_one, INF_GRAPHS_tasks } InfGraphs;

typedef struct InfEngine {
    const Plan *plan;
    const InfDeviceTable *table;
    InfDevice *device;
    int64_t bytes[PLAN_REGION_count];            /* of the regions: the plan's, or less */
    unsigned char *base[PLAN_REGION_count];      /* as the host sees them, through windows */
    unsigned char *on_device[PLAN_REGION_count]; /* as kernels see them, through windows */
    unsigned char *home[PLAN_REGION_count];      /* without windows: host, device */
    unsigned char *home_on_device[PLAN_REGION_count];
    unsigned char *extra; /* on the device, inf_engine_take's `extra` */
    void *mirror;         /* the host's copy; NULL: memory is shared */
    uint64_t mirror_bytes;
    uint64_t memory_bytes; /* taken, extra included */
    int replica;           /* of plan->dp */
    bool reduces;          /* the task at hand is the last that writes its chunk's gradients */
    InfEnv env;
    int64_t slice[PLAN_REPEAT_DEPTH_MAX]; /* of what is stacked, by enclosing repeat */
    void **arg;                           /* the operands of one launch */
    bool use_graphs;
    int64_t graph_most;         /* launches of one graph */
    uint8_t *graphs;            /* InfGraphs by program */
    bool *graph;                /* recorded: by program, then by task */
    uint32_t *sums;             /* of buckets in each of them */
    InfOrder order;             /* while a graph is recorded */
    InfPipeline *pipeline;      /* of a run of several ranks; else NULL */
    struct InfOrdered *ordered; /* with PlanOrdered, see ordered.h; else NULL */
    InfProfile profile;
    InfCeiling ceiling; /* measured with the kernels' times */
} InfEngine;

/* The program of this name; NULL when there is none. */
const PlanProgram *inf_program_find(const Plan *plan, const char *name);

/* The program of this name; NULL when there is none. */
const PlanProgram *inf_program_find(const Plan *plan, const char *name);

/* Checks the plan and opens its device, without memory.
 *   group     this rank and the others; NULL with one rank
 *   threads   of the host; 0: as many as OpenMP would take */
InfCode inf_engine_start(InfError *e, const Plan *plan, InfGroup *group, int threads, uint64_t seed,
                         InfEngine *out);

/* Takes the memory of the plan and `extra` bytes of the device beside it. */
InfCode inf_engine_take(InfError *e, InfEngine *m, uint64_t extra);

/* Both, with nothing extra. */
InfCode inf_engine_open(InfError *e, const Plan *plan, int threads, uint64_t seed, InfEngine *out);
void inf_engine_close(InfEngine *m);

/* Brings the host's copy of a part of a region up to date, or the device's. */
void inf_engine_fetch(InfEngine *m, PlanRegion region, int64_t offset, int64_t bytes);
void inf_engine_push(InfEngine *m, PlanRegion region, int64_t offset, int64_t bytes);
/* Launches what makes the copy of the weights in bf16, where the plan has one. */
void inf_engine_copy_weights(InfEngine *m);
/* After the host wrote weights (inf_param_put): the device gets them, and makes that copy where it
 * has them in f32. Before the host reads them (inf_param_values). */
void inf_engine_push_weights(InfEngine *m);
void inf_engine_fetch_weights(InfEngine *m);
/* The whole region. */
void inf_engine_fetch_all(InfEngine *m, PlanRegion region);
void inf_engine_push_all(InfEngine *m, PlanRegion region);

/* Bytes of regions together, each rounded up to whole pages; checked. */
InfCode inf_engine_bytes(InfError *e, const int64_t region_bytes[PLAN_REGION_count],
                         uint64_t *bytes);

/* Between start and take: regions that a run does not touch take no memory. Training has no caches
 * and, unless they are asked for, no room for outputs; what only goes forward has no gradients and
 * states, and the scratch of programs whose names begin with one of these words (NULL: none). */
void inf_engine_trains(InfEngine *m, bool outputs);
void inf_train_regions(const Plan *plan, bool outputs, int64_t bytes[PLAN_REGION_count]);
void inf_engine_goes_forward(InfEngine *m, const char *word, const char *other);

/* How this process reaches the others; NULL: it is the only one. */
const struct InfTransport *inf_engine_transport(const InfEngine *m);

/* The process of this replica that runs a rank of the pipeline. Process 0 speaks and writes for
 * all. */
static inline int inf_engine_process(const InfEngine *m, int rank) {
    return m->replica + inf_plan_replicas(m->plan) * rank;
}
static inline bool inf_engine_leads(const InfEngine *m) {
    return inf_engine_process(m, m->plan->rank) == 0;
}

/* Refuses a processor without the features that the kernels were compiled for. */
InfCode inf_cpu_check(InfError *e, const Plan *plan);

/* A signal that asks to stop, 0 none; of several ranks, all learn it at once: an exchange. */
int inf_engine_stops(InfEngine *m);

/* From now on regions begin where this task's windows are. */
void inf_engine_window(InfEngine *m, const PlanTask *task);

/* Runs the steps of Plan.chunk[chunk]. */
void inf_engine_run(InfEngine *m, uint32_t chunk);

/* Before each launch. In a survey (order.h): the next launch uses a range on the device, or all
 * memory. inf_engine_goes: it is part of the survey only (false), or goes to the device, behind
 * those it has to wait for. */
void inf_engine_use(InfEngine *m, const void *at, int64_t bytes, bool written);
void inf_engine_use_all(InfEngine *m);
bool inf_engine_goes(InfEngine *m, double cost_us);
/* The same before a message or another exchange between ranks; before what replicas do together. */
bool inf_engine_message_goes(InfEngine *m, double cost_us);
bool inf_engine_replicas_go(InfEngine *m, double cost_us);

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
