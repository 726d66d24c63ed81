/* profile.c - times launches and tasks. */
#include "runtime/profile.h"

#include <stdlib.h>

#include "runtime/costs.h"
#include "runtime/engine.h"
#include "runtime/kernels.h"
#include "runtime/schedule.h"

/* Spans of one training step: launches, staging, and up to three a task. */
static InfCode count_spans(InfError *e, const Plan *plan, uint32_t *out) {
    int64_t *calls = calloc((size_t)plan->nkernel + 1, sizeof *calls);
    const PlanRank *rank = &plan->program[0].rank[plan->rank];
    int64_t total = 3 * (int64_t)rank->ntask + 1;
    if (!calls) return inf_fail(e, INF_IO, "out of memory");
    inf_kernels_count(plan, calls);
    for (uint32_t k = 0; k < plan->nkernel; k++) total += calls[k];
    for (uint32_t i = 0; i < rank->ntask; i++)
        total += plan->task[rank->task + i].kind == PTASK_forward;
    free(calls);
    INF_ASSERT(total < UINT32_MAX / 4);
    *out = (uint32_t)total;
    return INF_OK;
}

InfCode inf_profile_open(InfError *e, const Plan *plan, const InfDeviceTable *table,
                         InfDevice *device, InfProfile *out) {
    *out = (InfProfile){.plan = plan, .table = table, .device = device};
    TRY(count_spans(e, plan, &out->most));
    out->span = calloc((size_t)out->most + 1, sizeof *out->span);
    out->kernel_ms = calloc((size_t)plan->nkernel + 1, sizeof *out->kernel_ms);
    if (!out->span || !out->kernel_ms) return inf_fail(e, INF_IO, "out of memory");
    TRY(table->marks(e, device, 2 * out->most + 2));
    out->on = true;
    return INF_OK;
}

void inf_profile_stop(InfProfile *p) { p->on = false; }

void inf_profile_close(InfProfile *p) {
    inf_trace_close(&p->trace);
    free(p->span);
    free(p->kernel_ms);
    free(p->unit_ms);
    *p = (InfProfile){0};
}

InfCode inf_profile_trace(InfError *e, InfProfile *p, int replica, const char *path) {
    return inf_trace_open(e, p->plan, replica, path, &p->trace);
}

/* Mark 0 is the step's begin, then two a span. */
void inf_profile_step_begin(InfProfile *p) {
    p->count = 0;
    p->step_ms = inf_clock_ms();
    p->table->mark(p->device, 0);
}

static uint32_t begin(InfProfile *p, const InfSpan *span) {
    if (!p->on) return 0;
    INF_ASSERT(p->count < p->most);
    uint32_t number = p->count++;
    p->span[number] = *span;
    p->table->mark(p->device, 2 * number + 1);
    return number;
}

uint32_t inf_profile_begin_task(InfProfile *p, InfSpanKind kind, uint32_t task) {
    InfSpan span = {.kind = kind, .task = task};
    p->task = task;
    return begin(p, &span);
}

uint32_t inf_profile_begin(InfProfile *p, InfSpanKind kind, uint32_t kernel, const char *scope,
                           const InfEnv *env) {
    InfSpan span = {.kind = kind,
                    .kernel = kernel,
                    .task = p->task,
                    .scope = scope,
                    .microbatch = env->microbatch};
    return begin(p, &span);
}

void inf_profile_end(InfProfile *p, uint32_t span) {
    if (p->on) p->table->mark(p->device, 2 * span + 2);
}

/* ---- the trace --- */

static void trace_launch(InfProfile *p, const InfSpan *span, const InfEvent *times) {
    bool launch = span->kind == INF_SPAN_launch;
    const PlanKernel *kernel = launch ? &p->plan->kernel[span->kernel] : NULL;
    InfEvent event = *times;
    InfJson j;
    event.track = INF_TRACK_kernels;
    event.name = kernel ? kernel->name : "stage";
    event.category = kernel ? kernel->form : "data";
    inf_trace_begin(&p->trace, &event, &j);
    inf_json_put_int(&j, "microbatch", span->microbatch);
    if (span->scope) inf_json_put_text(&j, "scope", span->scope);
    if (kernel) {
        inf_json_put_text(&j, "lines", kernel->lines);
        inf_json_put_int(&j, "bytes", kernel->bytes);
        inf_json_put_int(&j, "flops", kernel->flops);
    }
    inf_trace_finish(&j);
}

static void trace_task(InfProfile *p, const InfSpan *span, const InfEvent *times) {
    const PlanTask *task = &p->plan->task[span->task];
    bool itself = span->kind == INF_SPAN_task;
    char name[INF_TASK_NAME_BYTES];
    InfEvent event = *times;
    InfJson j;
    event.track = INF_TRACK_tasks;
    event.name = itself                            ? inf_task_name(p->plan, task, name)
                 : span->kind == INF_SPAN_exchange ? "exchange"
                                                   : "wait";
    event.category = itself ? inf_task_kind_name(task) : event.name;
    inf_trace_begin(&p->trace, &event, &j);
    inf_json_put_int(&j, "position", span->task - p->plan->program[0].rank[p->plan->rank].task);
    if (task->microbatch >= 0) inf_json_put_int(&j, "microbatch", task->microbatch);
    if (task->chunk >= 0) inf_json_put_int(&j, "chunk", task->chunk);
    inf_trace_finish(&j);
    if (itself && task->kind == PTASK_send)
        inf_trace_arrow(&p->trace, false, event.step, task->message, event.at_ms);
    if (itself && task->kind < PTASK_update && task->message >= 0 && p->plan->ranks > 1)
        inf_trace_arrow(&p->trace, true, event.step, task->message, event.at_ms);
}

/* A wait that is only the question whether there is one. */
#define WAIT_SHOWN_MS 2e-3

static void write_span(InfProfile *p, uint32_t i, int64_t step) {
    const InfSpan *span = &p->span[i];
    InfEvent event = {.rank = p->trace.rank, .step = step};
    event.at_ms = p->step_ms - p->trace.origin_ms + p->table->between(p->device, 0, 2 * i + 1);
    event.ms = p->table->between(p->device, 2 * i + 1, 2 * i + 2);
    if (span->kind == INF_SPAN_wait && event.ms < WAIT_SHOWN_MS) return;
    if (span->kind == INF_SPAN_launch || span->kind == INF_SPAN_stage)
        trace_launch(p, span, &event);
    else
        trace_task(p, span, &event);
    bool update = p->plan->task[span->task].kind == PTASK_update;
    if (span->kind == INF_SPAN_task && update)
        inf_trace_predict(&p->trace, step, p->step_ms - p->trace.origin_ms,
                          event.at_ms - p->step_ms + p->trace.origin_ms);
}

void inf_profile_step_end(InfProfile *p, int64_t step) {
    for (uint32_t i = 0; i < p->count; i++) {
        const InfSpan *span = &p->span[i];
        if (span->kind == INF_SPAN_launch)
            p->kernel_ms[span->kernel] += p->table->between(p->device, 2 * i + 1, 2 * i + 2);
        if (p->trace.out) write_span(p, i, step);
    }
    if (p->unit_ms) inf_costs_add(p);
}
