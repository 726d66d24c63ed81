/* device.h - what kernels run on, reached through one small table of functions.
 *
 * Two implementations: the processor itself (device_cpu.c) and an NVIDIA GPU (device_cuda.c).
 * Work is handed over in submissions: one training step or one evaluation batch. A submission has a
 * ticket, the numbers that the host decides for it; its launches stand between `enter` and `leave`,
 * and after `leave` the scalar region comes back to the host. Submissions run in order.
 *
 * Functions without a result cannot report: the device keeps its first failure, later work does
 * nothing, and `collect` or `finish` returns it.
 */
#ifndef INF_RUNTIME_DEVICE_H
#define INF_RUNTIME_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/plan.h"
#include "runtime/status.h"

/* Opaque: each implementation has its own. */
typedef struct InfDevice InfDevice;

typedef struct InfGroup InfGroup; /* group.h */

/* What is added at once, at most. */
enum { INF_TERMS_MAX = 4 };

/* Submissions that may be on their way at once. */
enum { INF_DEVICE_DEPTH = 4 };

/* Scalars that count updates depend on how many of the steps on their way take effect, which the
 * host does not know yet but the device will: there is a row for each case. */
typedef struct InfTicket {
    InfDeviceMoment moment;
    uint64_t applied; /* updates that took effect before the first step on its way */
    float scalar[INF_DEVICE_DEPTH][HOST_SCALAR_COUNT]; /* [k]: and k of those did, too */
} InfTicket;

typedef struct InfLaunch {
    uint32_t kernel; /* of the plan */
    uint32_t narg;
    void *const *arg; /* addresses on the device */
    const InfEnv *env;
} InfLaunch;

/* One microbatch of a data set on the device into the plan's inputs; those it lacks are NULL. */
typedef struct InfStage {
    const void *rows, *labels; /* labels: of images */
    void *input, *target, *valid;
    uint64_t first; /* sample of the submission */
    int64_t batch;
    int64_t length;      /* pixels of an image, or tokens of a sample */
    int32_t token_bytes; /* 0: images */
} InfStage;

/* One end of a message between devices. */
typedef struct InfHalf {
    bool send;
    int32_t peer; /* rank; perhaps this one: then both halves are in one exchange */
    void *at;     /* on the device */
    uint64_t bytes;
} InfHalf;

/* A vector that replicas add up. */
typedef struct InfAddend {
    float *at;      /* on the device */
    uint64_t count; /* elements */
} InfAddend;

/* The region that a task's window is of. */
static inline PlanRegion inf_window_region(PlanWindow window) {
    static const PlanRegion region[PLAN_WINDOW_COUNT] = {
        [PLAN_WINDOW_data] = PLAN_REGION_data,
        [PLAN_WINDOW_slot] = PLAN_REGION_slot,
        [PLAN_WINDOW_recv] = PLAN_REGION_recv,
        [PLAN_WINDOW_send] = PLAN_REGION_send,
        [PLAN_WINDOW_recv_grad] = PLAN_REGION_recv_grad,
        [PLAN_WINDOW_send_grad] = PLAN_REGION_send_grad};
    return region[window];
}

/* What the device could do at best; 0: unknown. */
typedef struct InfCeiling {
    double bytes_per_s, flops_per_s[PLAN_MATH_COUNT];
} InfCeiling;

typedef struct InfDeviceTable {
    const char *target; /* Plan.target */
    int late;           /* training reads results this many steps late */
    bool shared;        /* kernels work in the host's memory: nothing is copied or staged */
    bool graphs;        /* submissions can be recorded and replayed */

    /* Opens the device, without memory for the plan: this rank's own of its host's.
     *   group   NULL: no other ranks */
    InfCode (*open)(InfError *e, const Plan *plan, const InfGroup *group, InfDevice **out);
    void (*close)(InfDevice *d);
    /* "NVIDIA H200 (sm_90)"; "2 threads". Static or owned by the device. */
    const char *(*describe)(InfDevice *d);

    /* Takes all memory at once, zeroed; called once. *total also counts the device's own needs. */
    InfCode (*take)(InfError *e, InfDevice *d, uint64_t bytes, void **out, uint64_t *total);
    /* Where the regions ended up; after `take`, before any launch. */
    InfCode (*place)(InfError *e, InfDevice *d, unsigned char *const base[PLAN_REGION_count]);
    uint64_t (*available)(InfDevice *d); /* bytes that `take` could give */
    uint64_t (*measured)(InfDevice *d);  /* bytes taken since `open` */

    /* Copies; they wait for everything before them. `upload` does not, and reads host memory of
     * `host_take` during the submission that follows. */
    void (*copy_in)(InfDevice *d, void *to, const void *from, uint64_t bytes);
    void (*copy_out)(InfDevice *d, void *to, const void *from, uint64_t bytes);
    void (*upload)(InfDevice *d, void *to, const void *from, uint64_t bytes);
    void *(*host_take)(InfDevice *d, uint64_t bytes); /* freed with the device */

    void (*ticket)(InfDevice *d, const InfTicket *ticket); /* of the submission that follows */
    void (*enter)(InfDevice *d);
    void (*stage)(InfDevice *d, const InfStage *stage);
    void (*launch)(InfDevice *d, const InfLaunch *launch);
    void (*leave)(InfDevice *d, bool update); /* update: it counts when Plan.update_ok says so */
    void (*submitted)(InfDevice *d);
    /* Waits for the oldest submission; `scalars` receives the scalar region as it left it. */
    InfCode (*collect)(InfError *e, InfDevice *d, void *scalars);
    /* Waits for everything. */
    InfCode (*finish)(InfError *e, InfDevice *d);

    /* What is launched between record and keep is not done but becomes graph `which`, from 0 on.
     * `follow`: the next launch waits for these, counted from record, not for the one before;
     * possible for as many launches as record was told. */
    void (*record)(InfDevice *d, uint32_t launches);
    void (*follow)(InfDevice *d, const uint32_t *launches, uint32_t count);
    void (*keep)(InfDevice *d, int which);
    void (*replay)(InfDevice *d, int which);

    /* Between ranks whose devices have memory of their own; each is a launch like any other, and
     * all ranks do them in one order. `meet` comes first, once, after `place`: all ranks together,
     * before any submission. `exchange`: all halves at once; `broadcast`: from `root` to all;
     * `sum`: over all, in place; `clear`: zeros (that one is of this rank alone). `add`, `scatter`
     * and `spread` are between the replicas of this rank, in place: sums of some vectors at once;
     * the sum of each replica's elements to it; each replica's bytes to all. `trade`: halves
     * between these replicas, peers by their numbers. */
    InfCode (*meet)(InfError *e, InfDevice *d);
    void (*exchange)(InfDevice *d, const InfHalf *half, uint32_t count);
    void (*broadcast)(InfDevice *d, int root, void *at, uint64_t bytes);
    void (*sum)(InfDevice *d, float *at, uint64_t count);
    void (*clear)(InfDevice *d, void *at, uint64_t bytes);
    void (*add)(InfDevice *d, const InfAddend *part, uint32_t count);
    void (*scatter)(InfDevice *d, float *all, uint64_t each);
    void (*spread)(InfDevice *d, void *all, uint64_t each);
    void (*trade)(InfDevice *d, const InfHalf *half, uint32_t count);

    /* Of ordered sums, on a device with memory of its own: out = term[2] + (term[1] + term[0]), of
     * 2 to INF_TERMS_MAX terms, `out` perhaps one of them, `count` a multiple of 4, addresses of 16
     * bytes. `tree`: row i of `width` floats takes up row
     * i + 1 for all even i, row i + 2 for each fourth, and so on; then row 0 goes to `out`. */
    void (*plus)(InfDevice *d, float *out, const float *const *term, uint32_t terms,
                 uint64_t count);
    void (*tree)(InfDevice *d, float *rows, uint32_t count, uint32_t width, float *out);

    /* Points in time between launches: mark number `i` < count; ms between two after `finish`. */
    InfCode (*marks)(InfError *e, InfDevice *d, uint32_t count);
    void (*mark)(InfDevice *d, uint32_t i);
    double (*between)(InfDevice *d, uint32_t from, uint32_t to);
    InfCeiling (*ceiling)(InfDevice *d);
} InfDeviceTable;

extern const InfDeviceTable inf_device_cpu, inf_device_cuda;

/* The table for a plan's target. */
const InfDeviceTable *inf_device_find(const Plan *plan);

#endif
