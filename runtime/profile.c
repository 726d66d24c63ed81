/* profile.c - times launches and writes traces. */
#include "runtime/profile.h"

#include <stdlib.h>

#include "runtime/engine.h"
#include "runtime/kernels.h"

/* Launches of one training step, staging included. */
static InfCode count_launches(InfError *e, const Plan *plan, uint32_t *out) {
    int64_t *calls = calloc((size_t)plan->nkernel + 1, sizeof *calls);
    int64_t total = plan->program[0].microbatches;
    if (!calls) return inf_fail(e, INF_IO, "out of memory");
    inf_kernels_count(plan, calls);
    for (uint32_t k = 0; k < plan->nkernel; k++) total += calls[k];
    free(calls);
    INF_ASSERT(total < UINT32_MAX / 4);
    *out = (uint32_t)total;
    return INF_OK;
}

InfCode inf_profile_open(InfError *e, const Plan *plan, const InfDeviceTable *table,
                         InfDevice *device, InfProfile *out) {
    *out = (InfProfile){.plan = plan, .table = table, .device = device};
    TRY(count_launches(e, plan, &out->most));
    out->span = calloc((size_t)out->most + 1, sizeof *out->span);
    out->kernel_ms = calloc((size_t)plan->nkernel + 1, sizeof *out->kernel_ms);
    if (!out->span || !out->kernel_ms) return inf_fail(e, INF_IO, "out of memory");
    TRY(table->marks(e, device, 2 * out->most + 2));
    out->origin_ms = inf_clock_ms();
    out->on = true;
    return INF_OK;
}

void inf_profile_stop(InfProfile *p) { p->on = false; }

void inf_profile_close(InfProfile *p) {
    if (p->trace) fclose(p->trace);
    free(p->span);
    free(p->kernel_ms);
    *p = (InfProfile){0};
}

/* Mark 0 is the step's begin, then two a span. */
void inf_profile_step_begin(InfProfile *p) {
    p->count = 0;
    p->step_ms = inf_clock_ms() - p->origin_ms;
    p->table->mark(p->device, 0);
}

void inf_profile_begin(InfProfile *p, uint32_t kernel, const char *scope, const InfEnv *env) {
    INF_ASSERT(p->count < p->most);
    InfSpan *span = &p->span[p->count];
    *span = (InfSpan){.kernel = kernel, .scope = scope, .microbatch = env->microbatch};
    for (int i = 0; i < PLAN_REPEAT_DEPTH_MAX; i++) span->iter[i] = env->iter[i];
    p->table->mark(p->device, 2 * p->count + 1);
}

void inf_profile_end(InfProfile *p) {
    p->table->mark(p->device, 2 * p->count + 2);
    p->count++;
}

static void write_event(InfProfile *p, const InfSpan *span, double at_ms, double ms, int64_t step) {
    const PlanKernel *kernel =
        span->kernel == p->plan->nkernel ? NULL : &p->plan->kernel[span->kernel];
    InfJson j;
    fputs(p->first ? "\n" : ",\n", p->trace);
    p->first = false;
    inf_json_init(&j, p->trace);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "name", kernel ? kernel->name : "stage");
    inf_json_put_text(&j, "cat", kernel ? kernel->form : "data");
    inf_json_put_text(&j, "ph", "X");
    inf_json_put_double(&j, "ts", (p->step_ms + at_ms) * 1e3);
    inf_json_put_double(&j, "dur", ms * 1e3);
    inf_json_put_int(&j, "pid", 0);
    inf_json_put_int(&j, "tid", 0);
    inf_json_key(&j, "args");
    inf_json_open(&j, '{');
    inf_json_put_int(&j, "step", step + 1);
    inf_json_put_int(&j, "microbatch", span->microbatch);
    if (span->scope) inf_json_put_text(&j, "scope", span->scope);
    if (kernel) {
        inf_json_put_text(&j, "lines", kernel->lines);
        inf_json_put_int(&j, "bytes", kernel->bytes);
        inf_json_put_int(&j, "flops", kernel->flops);
    }
    inf_json_close(&j);
    inf_json_close(&j);
}

void inf_profile_step_end(InfProfile *p, int64_t step) {
    for (uint32_t i = 0; i < p->count; i++) {
        const InfSpan *span = &p->span[i];
        double ms = p->table->between(p->device, 2 * i + 1, 2 * i + 2);
        p->kernel_ms[span->kernel] += ms;
        if (p->trace) write_event(p, span, p->table->between(p->device, 0, 2 * i + 1), ms, step);
    }
}

InfCode inf_profile_trace(InfError *e, InfProfile *p, const char *path) {
    p->path = path;
    p->first = true;
    p->trace = fopen(path, "we");
    if (!p->trace) return inf_fail_errno(e, "open", path);
    fprintf(p->trace, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    return INF_OK;
}

InfCode inf_profile_trace_end(InfError *e, InfProfile *p) {
    if (!p->trace) return INF_OK;
    fprintf(p->trace, "\n]}\n");
    bool failed = fflush(p->trace) != 0 || ferror(p->trace);
    failed = fclose(p->trace) != 0 || failed;
    p->trace = NULL;
    return failed ? inf_fail(e, INF_IO, "%s: could not write the trace", p->path) : INF_OK;
}
