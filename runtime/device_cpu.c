/* device_cpu.c - the processor as a device: launches are calls, results are there at once. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/file.h"

enum { PAGE_BYTES = 4096, TEXT_BYTES = 32 };

struct InfDevice {
    const Plan *plan;
    InfTicket ticket;
    float *scalar; /* the host's scalars, at the head of their region */
    void *memory;
    uint64_t memory_bytes;
    double *mark;
    char text[TEXT_BYTES];
};

static InfCode device_open(InfError *e, const Plan *plan, const InfGroup *group, InfDevice **out) {
    (void)group;
    *out = NULL;
    TRY(inf_cpu_check(e, plan));
    *out = calloc(1, sizeof **out);
    if (!*out) return inf_fail(e, INF_IO, "out of memory");
    (*out)->plan = plan;
    return INF_OK;
}

static void device_close(InfDevice *d) {
    if (!d) return;
    inf_unmap_memory(d->memory, d->memory_bytes);
    free(d->mark);
    free(d);
}

static const char *describe(InfDevice *d) {
    int threads = inf_threads_set(0);
    snprintf(d->text, sizeof d->text, "%d thread%s", threads, threads == 1 ? "" : "s");
    return d->text;
}

/* Writes one byte a page, so that the memory is there before the first step, not during it. */
static void touch(unsigned char *at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += PAGE_BYTES) ((volatile unsigned char *)at)[i] = 0;
}

static InfCode take(InfError *e, InfDevice *d, uint64_t bytes, void **out, uint64_t *total) {
    uint64_t available = inf_memory_available();
    *total = bytes;
    if (bytes > available)
        return inf_fail(e, INF_IO,
                        "the plan needs %llu bytes of memory, %llu are available; a "
                        "smaller train.B or more train.microbatches needs less",
                        (unsigned long long)bytes, (unsigned long long)available);
    TRY(inf_map_memory(e, bytes, "the plan", &d->memory));
    d->memory_bytes = bytes;
    /* Large pages where the system has them: fewer misses in the tables of addresses. */
    if (d->memory) madvise(d->memory, (size_t)bytes, MADV_HUGEPAGE);
    touch(d->memory, bytes);
    *out = d->memory;
    return INF_OK;
}

static InfCode place(InfError *e, InfDevice *d, unsigned char *const base[PLAN_REGION_count]) {
    (void)e;
    d->scalar = (float *)(void *)base[PLAN_REGION_scalar];
    return INF_OK;
}

static uint64_t available(InfDevice *d) {
    (void)d;
    return inf_memory_available();
}

/* The process's own peak says it; session.c knows where it began. */
static uint64_t measured(InfDevice *d) {
    (void)d;
    return 0;
}

static void copy(InfDevice *d, void *to, const void *from, uint64_t bytes) {
    (void)d;
    if (to != from) memcpy(to, from, (size_t)bytes);
}

static void *host_take(InfDevice *d, uint64_t bytes) {
    (void)d;
    (void)bytes;
    return NULL;
}

static void ticket(InfDevice *d, const InfTicket *t) { d->ticket = *t; }

/* Nothing is on its way when a submission begins. */
static void enter(InfDevice *d) {
    memcpy(d->scalar, d->ticket.scalar[0], sizeof d->ticket.scalar[0]);
}

static void leave(InfDevice *d, bool update) {
    (void)d;
    (void)update;
}

static void stage(InfDevice *d, const InfStage *s) {
    (void)d;
    (void)s;
    INF_ASSERT(!"the host stages for itself");
}

static void launch(InfDevice *d, const InfLaunch *l) {
    d->plan->kernel[l->kernel].fn(l->arg, l->env);
}

static void nothing(InfDevice *d) { (void)d; }

static InfCode collect(InfError *e, InfDevice *d, void *scalars) {
    (void)e;
    (void)d;
    (void)scalars;
    return INF_OK;
}

static InfCode finish(InfError *e, InfDevice *d) {
    (void)e;
    (void)d;
    return INF_OK;
}

static void no_graph(InfDevice *d, int which) {
    (void)d;
    (void)which;
}

static void follow(InfDevice *d, const uint32_t *launches, uint32_t count) {
    (void)d;
    (void)launches;
    (void)count;
}

static void record(InfDevice *d, uint32_t launches) {
    (void)d;
    (void)launches;
}

static InfCode marks(InfError *e, InfDevice *d, uint32_t count) {
    free(d->mark);
    d->mark = calloc((size_t)count + 1, sizeof *d->mark);
    return d->mark ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

static void mark(InfDevice *d, uint32_t i) { d->mark[i] = inf_clock_ms(); }

static double between(InfDevice *d, uint32_t from, uint32_t to) {
    return d->mark[to] - d->mark[from];
}

static InfCeiling ceiling(InfDevice *d) {
    (void)d;
    return (InfCeiling){0};
}

const InfDeviceTable inf_device_cpu = {
    .target = "cpu",
    .shared = true,
    .open = device_open,
    .close = device_close,
    .describe = describe,
    .take = take,
    .place = place,
    .available = available,
    .measured = measured,
    .copy_in = copy,
    .copy_out = copy,
    .upload = copy,
    .host_take = host_take,
    .ticket = ticket,
    .enter = enter,
    .stage = stage,
    .launch = launch,
    .leave = leave,
    .submitted = nothing,
    .collect = collect,
    .finish = finish,
    .record = record,
    .follow = follow,
    .keep = no_graph,
    .replay = no_graph,
    .marks = marks,
    .mark = mark,
    .between = between,
    .ceiling = ceiling,
};
