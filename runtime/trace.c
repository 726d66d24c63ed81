/* trace.c - events of all ranks in one file. */
#include "runtime/trace.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/engine.h"
#include "runtime/schedule.h"
#include "runtime/transport.h"

enum { TRACE_TAG = INF_TAG_MAX };

/* Whose clock a moment was read on: processes of one kernel share theirs. */
typedef struct Moment {
    char kernel[40];
    double ms;
} Moment;

static Moment moment_now(void) {
    Moment now = {.ms = inf_clock_ms()};
    FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!in) return now;
    if (!fgets(now.kernel, sizeof now.kernel, in)) now.kernel[0] = '\0';
    fclose(in);
    return now;
}

/* The origin is rank 0's; a rank of another machine takes the moment at which it has heard of it.
 */
static InfCode agree_on_origin(InfError *e, InfTrace *t) {
    Moment mine = moment_now();
    const Plan *plan = t->plan;
    t->origin_ms = mine.ms;
    if (!plan->transport) return INF_OK;
    Moment *all = calloc((size_t)inf_plan_processes(plan), sizeof *all);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = plan->transport->gather(e, &mine, sizeof mine, all);
    bool shared = mine.kernel[0] && strcmp(all[0].kernel, mine.kernel) == 0;
    t->origin_ms = shared ? all[0].ms : inf_clock_ms();
    free(all);
    return code;
}

InfCode inf_trace_open(InfError *e, const Plan *plan, int replica, const char *path,
                       InfTrace *out) {
    int rank = replica + inf_plan_replicas(plan) * plan->rank;
    *out = (InfTrace){.plan = plan, .replica = replica, .rank = rank, .path = path, .first = true};
    out->out = rank == 0 ? fopen(path, "we") : open_memstream(&out->text, &out->bytes);
    if (!out->out) return inf_fail_errno(e, "open", path);
    if (rank == 0) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", out->out);
    return agree_on_origin(e, out);
}

void inf_trace_close(InfTrace *t) {
    if (t->out) fclose(t->out);
    free(t->text);
    *t = (InfTrace){0};
}

/* ---- events --- */

static void next_event(InfTrace *t, InfJson *j) {
    fputs(t->first ? "\n" : ",\n", t->out);
    t->first = false;
    inf_json_init(j, t->out);
    inf_json_open(j, '{');
}

void inf_trace_begin(InfTrace *t, const InfEvent *event, InfJson *j) {
    next_event(t, j);
    inf_json_put_text(j, "name", event->name);
    inf_json_put_text(j, "cat", event->category);
    inf_json_put_text(j, "ph", "X");
    inf_json_put_double(j, "ts", event->at_ms * 1e3);
    inf_json_put_double(j, "dur", event->ms * 1e3);
    inf_json_put_int(j, "pid", event->rank);
    inf_json_put_int(j, "tid", event->track);
    inf_json_key(j, "args");
    inf_json_open(j, '{');
    inf_json_put_int(j, "step", event->step + 1);
}

void inf_trace_finish(InfJson *j) {
    inf_json_close(j);
    inf_json_close(j);
}

void inf_trace_arrow(InfTrace *t, bool ends, int64_t step, int32_t message, double at_ms) {
    InfJson j;
    next_event(t, &j);
    inf_json_put_text(&j, "name", "message");
    inf_json_put_text(&j, "cat", "message");
    inf_json_put_text(&j, "ph", ends ? "f" : "s");
    if (ends) inf_json_put_text(&j, "bp", "e");
    int64_t number = step * t->plan->nmessage + message;
    inf_json_put_int(&j, "id", number * inf_plan_replicas(t->plan) + t->replica);
    inf_json_put_double(&j, "ts", at_ms * 1e3);
    inf_json_put_int(&j, "pid", t->rank);
    inf_json_put_int(&j, "tid", INF_TRACK_tasks);
    inf_json_close(&j);
}

/* ---- the table --- */

static InfTrack track_of(const PlanTask *task) {
    if (task->kind <= PTASK_update) return INF_TRACK_table;
    bool message = task->kind == PTASK_send || task->kind == PTASK_recv;
    return message ? INF_TRACK_messages : INF_TRACK_sums_table;
}

static void predict_rank(InfTrace *t, int rank, const InfEvent *step, double scale) {
    const PlanRank *tasks = &t->plan->program[0].rank[rank / inf_plan_replicas(t->plan)];
    char name[INF_TASK_NAME_BYTES];
    for (uint32_t i = 0; i < tasks->ntask; i++) {
        const PlanTask *task = &t->plan->task[tasks->task + i];
        InfEvent event = *step;
        InfJson j;
        if (task->length <= 0) continue;
        event.rank = rank;
        event.track = track_of(task);
        event.name = inf_task_name(t->plan, task, name);
        event.category = "predicted";
        event.at_ms += task->start * scale;
        event.ms = task->length * scale;
        inf_trace_begin(t, &event, &j);
        inf_json_put_int(&j, "position", i);
        inf_trace_finish(&j);
    }
}

void inf_trace_predict(InfTrace *t, int64_t step, double at_ms, double ms) {
    const InfEvent event = {.at_ms = at_ms, .step = step};
    int processes = inf_plan_processes(t->plan);
    if (t->plan->makespan <= 0 || t->rank != 0) return;
    for (int r = 0; r < processes; r++) predict_rank(t, r, &event, ms / t->plan->makespan);
}

/* ---- names --- */

static void put_name(InfTrace *t, int rank, int track, const char *kind, const char *name) {
    InfJson j;
    next_event(t, &j);
    inf_json_put_text(&j, "name", kind);
    inf_json_put_text(&j, "ph", "M");
    inf_json_put_int(&j, "pid", rank);
    if (track >= 0) inf_json_put_int(&j, "tid", track);
    inf_json_key(&j, "args");
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "name", name);
    inf_json_close(&j);
    inf_json_close(&j);
}

void inf_trace_name(InfTrace *t, int track, const char *name) {
    put_name(t, t->rank, track, "thread_name", name);
}

static void put_names(InfTrace *t) {
    static const char *const tracks[] = {
        [INF_TRACK_tasks] = "tasks, measured",
        [INF_TRACK_table] = "tasks, predicted",
        [INF_TRACK_messages] = "messages, predicted",
        [INF_TRACK_kernels] = "kernels",
        [INF_TRACK_sums] = "sums of replicas, measured",
        [INF_TRACK_sums_table] = "sums of replicas, predicted",
    };
    int replicas = inf_plan_replicas(t->plan), processes = inf_plan_processes(t->plan);
    for (int r = 0; r < processes; r++) {
        char name[96];
        snprintf(name, sizeof name, "rank %d", r);
        if (replicas > 1)
            snprintf(name, sizeof name, "rank %d: replica %d of pipeline rank %d", r, r % replicas,
                     r / replicas);
        put_name(t, r, -1, "process_name", name);
        for (int k = 0; k < (int)(sizeof tracks / sizeof *tracks); k++) {
            bool there = k == INF_TRACK_messages ? t->plan->ranks > 1
                         : k >= INF_TRACK_sums   ? replicas > 1
                                                 : true;
            if (there) put_name(t, r, k, "thread_name", tracks[k]);
        }
    }
}

/* ---- the end --- */

static InfCode send_events(InfError *e, InfTrace *t) {
    const InfTransport *link = t->plan->transport;
    InfRequest request = {0};
    bool failed = fclose(t->out) != 0;
    uint64_t bytes = t->bytes;
    t->out = NULL;
    if (failed) return inf_fail(e, INF_IO, "out of memory");
    TRY(link->send(e, 0, TRACE_TAG, &bytes, sizeof bytes, &request));
    TRY(link->wait(e, &request));
    TRY(link->send(e, 0, TRACE_TAG, t->text, bytes, &request));
    return link->wait(e, &request);
}

static InfCode add_events(InfError *e, InfTrace *t, int rank) {
    const InfTransport *link = t->plan->transport;
    InfRequest request = {0};
    uint64_t bytes = 0;
    TRY(link->recv(e, rank, TRACE_TAG, &bytes, sizeof bytes, &request));
    TRY(link->wait(e, &request));
    char *text = malloc(bytes + 1);
    if (!text) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = link->recv(e, rank, TRACE_TAG, text, bytes, &request);
    if (code == INF_OK) code = link->wait(e, &request);
    if (code == INF_OK && bytes > 0) {
        if (!t->first) fputc(',', t->out);
        t->first = false;
        fwrite(text, 1, bytes, t->out);
    }
    free(text);
    return code;
}

InfCode inf_trace_end(InfError *e, InfTrace *t) {
    if (!t->out) return INF_OK;
    int processes = inf_plan_processes(t->plan);
    if (t->rank > 0) return send_events(e, t);
    for (int r = 1; r < processes; r++) TRY(add_events(e, t, r));
    put_names(t);
    fputs("\n]}\n", t->out);
    bool failed = fflush(t->out) != 0 || ferror(t->out);
    failed = fclose(t->out) != 0 || failed;
    t->out = NULL;
    return failed ? inf_fail(e, INF_IO, "%s: could not write the trace", t->path) : INF_OK;
}
