/* schedule.c - the task table as text, CSV and JSON.
 *
 * Reads   Plan.task through the ranks of the train program.
 * Writes  the table; CSV is the format of PyTorch's pipelining (a row a rank, cells
 *         <stage><F|B|I|W><microbatch>).
 */
#include "runtime/schedule.h"

#include <string.h>

#include "runtime/json.h"
#include "runtime/schedule_draw.h"

static const char letters[] = {'F', 'B', 'I', 'W', 'U'};
static const char *const kind_names[] = {"forward", "backward", "input",  "weight", "update",
                                         "send",    "recv",     "reduce", "gather"};

/* "F3" on one chunk a rank, "F3_1" on several; "U" for the update. */
static void cell_text(const Plan *plan, const PlanTask *task, char *out, size_t bytes) {
    if (task->kind == PTASK_update)
        snprintf(out, bytes, "U");
    else if (task->kind == PTASK_reduce)
        snprintf(out, bytes, "R%d", task->message);
    else if (task->kind == PTASK_gather)
        snprintf(out, bytes, "G%d", task->message);
    else if (plan->vpp > 1)
        snprintf(out, bytes, "%c%d_%d", letters[task->kind], task->microbatch, task->local);
    else
        snprintf(out, bytes, "%c%d", letters[task->kind], task->microbatch);
}

const char *inf_task_kind_name(const PlanTask *task) { return kind_names[task->kind]; }

const char *inf_task_name(const Plan *plan, const PlanTask *task, char out[INF_TASK_NAME_BYTES]) {
    PlanTask of = *task; /* of a message: the task whose letter it bears */
    size_t n = 0;
    if (inf_task_is_message(task)) {
        of.kind = plan->message[task->message].gradient ? PTASK_backward : PTASK_forward;
        n = (size_t)snprintf(out, INF_TASK_NAME_BYTES, "%s", kind_names[task->kind]);
    }
    cell_text(plan, &of, out + n, INF_TASK_NAME_BYTES - n);
    return out;
}

static const PlanMessage *message_of(const InfTimeline *t, const PlanTask *task) {
    return &t->plan->message[task->message];
}

/* "sendF": an activation, "recvB": a gradient. */
static const char *type_text(const InfTimeline *t, const PlanTask *task, char text[16]) {
    snprintf(text, 16, "%s%s", kind_names[task->kind],
             !inf_task_is_message(task)      ? ""
             : message_of(t, task)->gradient ? "B"
                                             : "F");
    return text;
}

/* "bucket 0, 2560 bytes, at 1.250 for 0.310": in the unit of the estimate below the table. */
static void print_sum_row(const InfTimeline *t, int rank, uint32_t step, FILE *out) {
    const PlanTask *task = &t->plan->task[inf_timeline_rank(t, rank)->task + step];
    bool gather = task->kind == PTASK_gather;
    fprintf(out, "%4u %4d %-8s %10s %5s %5d %5s    - ", step, rank, inf_task_kind_name(task), "-",
            "-", task->local, "-");
    if (gather)
        fprintf(out, "shard %d, %lld bytes of each", task->message,
                (long long)inf_shard_brings(&t->plan[rank].shard[task->message]));
    else
        fprintf(out, "bucket %d, %lld bytes", task->message,
                (long long)t->plan[rank].bucket[task->message].bytes);
    if (t->sums) fprintf(out, ", at %.3f for %.3f", task->start, task->length);
    fputc('\n', out);
}

static void print_row(const InfTimeline *t, int rank, uint32_t step, FILE *out) {
    uint32_t at = inf_timeline_rank(t, rank)->task + step;
    const PlanTask *task = &t->plan->task[at];
    char type[16];
    type_text(t, task, type);
    if (task->kind == PTASK_update)
        fprintf(out, "%4u %4d %-8s %10s %5s %5s %5s %4lld\n", step, rank, type, "-", "-", "-", "-",
                (long long)t->start[at]);
    else if (inf_task_is_sum(task))
        print_sum_row(t, rank, step, out);
    else if (inf_task_is_message(task))
        fprintf(out, "%4u %4d %-8s %10d %5d %5d %5d    - %s rank %d\n", step, rank, type,
                task->microbatch, task->chunk, task->local, task->chunk,
                task->kind == PTASK_send ? "to" : "from",
                task->kind == PTASK_send ? message_of(t, task)->to_rank
                                         : message_of(t, task)->from_rank);
    else
        fprintf(out, "%4u %4d %-8s %10d %5d %5d %5d %4lld\n", step, rank, type, task->microbatch,
                task->chunk, task->local, task->chunk, (long long)t->start[at]);
}

static int cell_width(const InfTimeline *t) {
    char cell[32];
    size_t width = 1;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            const PlanTask *task = &t->plan->task[inf_timeline_rank(t, r)->task + i];
            if (task->kind > PTASK_update) continue;
            cell_text(t->plan, task, cell, sizeof cell);
            width = strlen(cell) > width ? strlen(cell) : width;
        }
    return (int)width;
}

/* A row a rank, a column a slot; what takes two slots goes on as "-". */
static void print_grid(const InfTimeline *t, FILE *out) {
    char cell[32];
    int width = cell_width(t);
    for (int r = 0; r < t->ranks; r++) {
        fprintf(out, "r%-3d", r);
        int64_t clock = 0;
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            uint32_t at = inf_timeline_rank(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (task->kind > PTASK_update) continue;
            for (; clock < t->start[at]; clock++) fprintf(out, " %-*s", width, ".");
            cell_text(t->plan, task, cell, sizeof cell);
            if (task->kind == PTASK_update)
                fprintf(out, " %s", cell);
            else
                fprintf(out, " %-*s", width, cell);
            for (clock++; clock < t->start[at] + inf_task_slots(task); clock++)
                fprintf(out, " %-*s", width, "-");
        }
        fputc('\n', out);
    }
}

/* Which layers each chunk has, and how much of the model that is. */
static void print_stages(const InfTimeline *t, FILE *out) {
    const Plan *plan = t->plan;
    if (plan->nstage < 2) return;
    fputs("\nstage rank chunk   parameters          FLOPs  share  layers\n", out);
    for (uint32_t c = 0; c < plan->nstage; c++) {
        const PlanStage *s = &plan->stage[c];
        fprintf(out, "%5u %4d %5d %12lld %14.0f %5.1f%%  ", c, s->rank, s->local,
                (long long)s->parameters, s->flops, 100 * s->share);
        if (s->first == NULL)
            fputs("none\n", out);
        else if (strcmp(s->first, s->last) == 0)
            fprintf(out, "%s\n", s->first);
        else
            fprintf(out, "%s .. %s\n", s->first, s->last);
    }
}

static void print_table(const InfTimeline *t, FILE *out) {
    print_grid(t, out);
    fputs("\nstep rank type     microbatch chunk local stage slot\n", out);
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) print_row(t, r, i, out);
    print_stages(t, out);
    if (t->plan->schedule_summary) fprintf(out, "\n%s\n", t->plan->schedule_summary);
    if (t->plan->schedule_estimate) fprintf(out, "%s\n", t->plan->schedule_estimate);
}

static void print_csv(const InfTimeline *t, FILE *out) {
    for (int r = 0; r < t->ranks; r++) {
        bool first = true;
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            const PlanTask *task = &t->plan->task[inf_timeline_rank(t, r)->task + i];
            if (!inf_task_computes(task)) continue;
            fprintf(out, "%s%d%c%d", first ? "" : ",", task->chunk, letters[task->kind],
                    task->microbatch);
            first = false;
        }
        fputc('\n', out);
    }
}

static void put_sum(InfJson *j, const InfTimeline *t, int rank, const PlanTask *task) {
    bool gather = task->kind == PTASK_gather;
    const Plan *plan = &t->plan[rank];
    inf_json_put_int(j, gather ? "shard" : "bucket", task->message);
    inf_json_put_int(j, "local", task->local);
    inf_json_put_int(j, "bytes",
                     gather ? inf_shard_brings(&plan->shard[task->message])
                            : plan->bucket[task->message].bytes);
    if (!t->sums) return;
    inf_json_put_double(j, "start", task->start);
    inf_json_put_double(j, "length", task->length);
}

static void put_task(InfJson *j, const InfTimeline *t, int rank, uint32_t at) {
    const PlanTask *task = &t->plan->task[at];
    char type[16];
    inf_json_put_text(j, "type", type_text(t, task, type));
    if (inf_task_is_sum(task)) {
        put_sum(j, t, rank, task);
        return;
    }
    inf_json_put_int(j, "microbatch", task->microbatch);
    inf_json_put_int(j, "chunk", task->chunk);
    inf_json_put_int(j, "local", task->local);
    if (t->plan->schedule_estimate) {
        inf_json_put_double(j, "start", task->start);
        inf_json_put_double(j, "length", task->length);
    }
    if (inf_task_is_message(task)) {
        const PlanMessage *m = message_of(t, task);
        bool sends = task->kind == PTASK_send;
        inf_json_put_int(j, sends ? "to_rank" : "from_rank", sends ? m->to_rank : m->from_rank);
        inf_json_put_int(j, sends ? "to_chunk" : "from_chunk", sends ? m->to : m->from);
        return;
    }
    inf_json_put_int(j, "slot", t->start[at]);
    inf_json_put_int(j, "slots", inf_task_slots(task));
}

static void put_stages(InfJson *j, const Plan *plan) {
    inf_json_key(j, "stages");
    inf_json_open(j, '[');
    for (uint32_t c = 0; c < plan->nstage; c++) {
        const PlanStage *s = &plan->stage[c];
        inf_json_open(j, '{');
        inf_json_put_int(j, "rank", s->rank);
        inf_json_put_int(j, "chunk", s->local);
        inf_json_put_text(j, "first", s->first);
        inf_json_put_text(j, "last", s->last);
        inf_json_put_int(j, "parameters", s->parameters);
        inf_json_put_double(j, "flops", s->flops);
        inf_json_put_double(j, "cost", s->cost);
        inf_json_put_double(j, "share", s->share);
        inf_json_close(j);
    }
    inf_json_close(j);
}

static void print_json(const InfTimeline *t, FILE *out) {
    const Plan *plan = t->plan;
    InfJson j;
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "model", plan->model);
    inf_json_put_text(&j, "pipeline", plan->pipeline);
    inf_json_put_text(&j, "summary", plan->schedule_summary);
    if (plan->schedule_estimate) inf_json_put_text(&j, "estimate", plan->schedule_estimate);
    inf_json_put_int(&j, "dp", plan->dp);
    inf_json_put_int(&j, "tp", plan->tp);
    inf_json_put_int(&j, "pp", plan->pp);
    inf_json_put_int(&j, "vpp", plan->vpp);
    inf_json_put_int(&j, "microbatches", plan->program[0].microbatches);
    inf_json_put_int(&j, "makespan", t->end);
    put_stages(&j, plan);
    inf_json_key(&j, "ranks");
    inf_json_open(&j, '[');
    for (int r = 0; r < t->ranks; r++) {
        inf_json_open(&j, '[');
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++) {
            uint32_t at = inf_timeline_rank(t, r)->task + i;
            inf_json_open(&j, '{');
            put_task(&j, t, r, at);
            inf_json_close(&j);
        }
        inf_json_close(&j);
    }
    inf_json_close(&j);
    inf_json_close(&j);
    fputc('\n', out);
}

static const struct {
    const char *name;
    void (*print)(const InfTimeline *t, FILE *out);
} formats[] = {
    {"table", print_table},
    {"csv", print_csv},
    {"json", print_json},
    {"svg", inf_schedule_draw_svg},
    {"trace", inf_schedule_draw_trace},
};

InfCode inf_schedule_print(InfError *e, const Plan *plan, const char *format, FILE *out) {
    InfTimeline t;
    InfCode code = inf_timeline_open(e, plan, &t);
    bool known = false;
    for (size_t i = 0; code == INF_OK && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, format) == 0) {
            formats[i].print(&t, out);
            known = true;
        }
    if (code == INF_OK && !known)
        code =
            inf_fail(e, INF_USAGE, "unknown format '%s'; table, csv, json, svg or trace", format);
    inf_timeline_close(&t);
    return code;
}
