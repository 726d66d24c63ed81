/* sum_times.c - see sum_times.h. */
#include "runtime/sum_times.h"

#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/schedule.h"

/* Weights of one step may still be on their way when the next one's sums begin. */
InfCode inf_sum_times_open(InfError *e, const Plan *plan, InfSumTimes *out) {
    *out = (InfSumTimes){.most = plan->nbucket + plan->nshard};
    out->on_way = calloc((size_t)out->most + 1, sizeof *out->on_way);
    return out->on_way ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

void inf_sum_times_close(InfSumTimes *t) {
    free(t->on_way);
    *t = (InfSumTimes){0};
}

void inf_sum_times_step(InfSumTimes *t, InfProfile *profile, int64_t step) {
    t->profile = profile;
    t->step = step;
}

static bool writes(const InfSumTimes *t) { return t->profile && t->profile->trace.out; }

static bool is_used(const InfSumTimes *t, uint32_t lane) {
    for (uint32_t i = 0; i < t->count; i++)
        if (t->on_way[i].lane == lane) return true;
    return false;
}

static int track_of(uint32_t lane) {
    return lane == 0 ? INF_TRACK_sums : INF_TRACK_more_sums + (int)lane - 1;
}

static uint32_t take_lane(InfSumTimes *t) {
    uint32_t lane = 0;
    while (is_used(t, lane)) lane++;
    if (lane < t->lanes) return lane;
    t->lanes = lane + 1;
    if (lane > 0) inf_trace_name(&t->profile->trace, track_of(lane), "sums of replicas, too");
    return lane;
}

void inf_sum_times_begin(InfSumTimes *t, const InfSumTime *begun) {
    if (!writes(t)) return;
    INF_ASSERT(t->count < t->most);
    InfSumTime own = *begun;
    own.lane = take_lane(t);
    own.begun_ms = inf_clock_ms();
    own.step = t->step;
    t->on_way[t->count++] = own;
}

static void write_event(InfSumTimes *t, const InfSumTime *s) {
    InfTrace *trace = &t->profile->trace;
    const Plan *plan = trace->plan;
    const PlanTask task = {.kind = (uint8_t)s->kind, .message = (int32_t)s->number};
    bool gather = s->kind == PTASK_gather;
    char name[INF_TASK_NAME_BYTES];
    const InfEvent event = {.track = track_of(s->lane),
                            .rank = trace->rank,
                            .name = inf_task_name(plan, &task, name),
                            .category = inf_task_kind_name(&task),
                            .at_ms = s->begun_ms - trace->origin_ms,
                            .ms = inf_clock_ms() - s->begun_ms,
                            .step = s->step};
    InfJson j;
    inf_trace_begin(trace, &event, &j);
    inf_json_put_int(&j, "bytes",
                     gather ? inf_shard_brings(&plan->shard[s->number])
                            : plan->bucket[s->number].bytes);
    inf_trace_finish(&j);
}

static bool is_over(const InfSumTime *s, const InfTransport *transport) {
    InfError e = {0};
    if (s->kind == PTASK_gather && transport->test(&e, s->request) != INF_OK) inf_error_free(&e);
    return !s->request->busy;
}

void inf_sum_times_look(InfSumTimes *t, const InfTransport *transport) {
    uint32_t kept = 0;
    if (!writes(t)) return;
    for (uint32_t i = 0; i < t->count; i++) {
        if (is_over(&t->on_way[i], transport))
            write_event(t, &t->on_way[i]);
        else
            t->on_way[kept++] = t->on_way[i];
    }
    t->count = kept;
}
