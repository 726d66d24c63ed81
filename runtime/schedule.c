/* schedule.c - the task table as text, CSV, JSON, SVG and trace.
 *
 * Reads   Plan.task through the ranks of the train program.
 * Writes  the table; CSV is the format of PyTorch's pipelining (a row a rank, cells
 *         <stage><F|B|I|W><microbatch>), trace is the one of chrome://tracing and Perfetto.
 */
#include "runtime/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"

/* Start and length of every task in unit slots; messages take none. */
typedef struct Timeline {
    const Plan *plan;
    int ranks, chunks;
    int64_t *start; /* by index into Plan.task */
    int64_t *index; /* task_at */
    int64_t end;    /* of the last one, without updates */
} Timeline;

static const char letters[] = {'F', 'B', 'I', 'W', 'U'};
static const int64_t costs[] = {1, 2, 1, 1, 0, 0, 0, 0};
static const char *const kind_names[] = {"forward", "backward", "input", "weight",
                                         "update",  "send",     "recv",  "reduce"};

static bool is_compute(const PlanTask *task) { return task->kind < PTASK_update; }
static bool is_message(const PlanTask *task) {
    return task->kind == PTASK_send || task->kind == PTASK_recv;
}

static const PlanRank *rank_of(const Timeline *t, int rank) {
    return &t->plan->program[0].rank[rank];
}

/* Where (chunk, microbatch) finds its task of a kind; -1: nowhere. */
static int64_t *task_at(const Timeline *t, PlanTaskKind kind, int chunk, int microbatch) {
    const PlanProgram *train = &t->plan->program[0];
    return &t->index[((int64_t)chunk * train->microbatches + microbatch) * PTASK_update + kind];
}

/* The end of the task of this kind, chunk and microbatch; -1 while unknown, 0 when absent. */
static int64_t end_of(const Timeline *t, PlanTaskKind kind, int chunk, int microbatch) {
    if (chunk < 0 || chunk >= t->chunks) return 0;
    int64_t at = *task_at(t, kind, chunk, microbatch);
    if (at < 0) return 0;
    return t->start[at] < 0 ? -1 : t->start[at] + costs[kind];
}

/* When the inputs of a task are there; -1 while one is unknown. */
static int64_t ready_at(const Timeline *t, const PlanTask *task) {
    int chunk = task->chunk, m = task->microbatch;
    int64_t need[3] = {0, 0, 0};
    switch ((PlanTaskKind)task->kind) {
    case PTASK_forward: need[0] = end_of(t, PTASK_forward, chunk - 1, m); break;
    case PTASK_backward:
    case PTASK_input:
        need[0] = end_of(t, PTASK_forward, chunk, m);
        need[1] = end_of(t, PTASK_backward, chunk + 1, m);
        need[2] = end_of(t, PTASK_input, chunk + 1, m);
        break;
    case PTASK_weight: need[0] = end_of(t, PTASK_input, chunk, m); break;
    case PTASK_update:
    case PTASK_send:
    case PTASK_recv:
    case PTASK_reduce: break;
    }
    int64_t ready = 0;
    for (int i = 0; i < 3; i++) {
        if (need[i] < 0) return -1;
        ready = need[i] > ready ? need[i] : ready;
    }
    return ready;
}

/* Places tasks rank by rank until none moves; the compiler has proven that this ends. */
static InfCode simulate(InfError *e, Timeline *t, uint32_t *next, int64_t *clock) {
    bool moved = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < t->ranks; r++)
            for (; next[r] < rank_of(t, r)->ntask; next[r]++) {
                uint32_t at = rank_of(t, r)->task + next[r];
                const PlanTask *task = &t->plan->task[at];
                int64_t ready = ready_at(t, task);
                if (ready < 0) break;
                t->start[at] = ready > clock[r] ? ready : clock[r];
                clock[r] = t->start[at] + costs[task->kind];
                t->end = clock[r] > t->end ? clock[r] : t->end;
                moved = true;
            }
    }
    for (int r = 0; r < t->ranks; r++)
        if (next[r] < rank_of(t, r)->ntask)
            return inf_fail(e, INF_INTERNAL, "the schedule of rank %d waits for ever at task %u", r,
                            next[r]);
    return INF_OK;
}

static void fill_index(Timeline *t, size_t units) {
    for (size_t i = 0; i < units; i++) t->index[i] = -1;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            int64_t at = rank_of(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (is_compute(task))
                *task_at(t, (PlanTaskKind)task->kind, task->chunk, task->microbatch) = at;
        }
}

static InfCode timeline_open(InfError *e, const Plan *plan, Timeline *t) {
    *t = (Timeline){.plan = plan, .ranks = plan->pp, .chunks = plan->pp * plan->vpp};
    size_t units = (size_t)t->chunks * (size_t)plan->program[0].microbatches * PTASK_update;
    uint32_t total = 0;
    for (int r = 0; r < t->ranks; r++) {
        uint32_t end = rank_of(t, r)->task + rank_of(t, r)->ntask;
        total = end > total ? end : total;
    }
    t->start = malloc((total + 1) * sizeof *t->start);
    t->index = malloc((units + 1) * sizeof *t->index);
    uint32_t *next = calloc((size_t)t->ranks + 1, sizeof *next);
    int64_t *clock = calloc((size_t)t->ranks + 1, sizeof *clock);
    bool have = t->start && t->index && next && clock;
    InfCode code = have ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) fill_index(t, units);
    for (uint32_t i = 0; code == INF_OK && i < total; i++) t->start[i] = -1;
    if (code == INF_OK) code = simulate(e, t, next, clock);
    free(next);
    free(clock);
    return code;
}

/* "F3" on one chunk a rank, "F3_1" on several; "U" for the update. */
static void cell_text(const Plan *plan, const PlanTask *task, char *out, size_t bytes) {
    if (task->kind == PTASK_update)
        snprintf(out, bytes, "U");
    else if (task->kind == PTASK_reduce)
        snprintf(out, bytes, "R%d", task->message);
    else if (plan->vpp > 1)
        snprintf(out, bytes, "%c%d_%d", letters[task->kind], task->microbatch, task->local);
    else
        snprintf(out, bytes, "%c%d", letters[task->kind], task->microbatch);
}

const char *inf_task_kind_name(const PlanTask *task) { return kind_names[task->kind]; }

const char *inf_task_name(const Plan *plan, const PlanTask *task, char out[INF_TASK_NAME_BYTES]) {
    PlanTask of = *task; /* of a message: the task whose letter it bears */
    size_t n = 0;
    if (is_message(task)) {
        of.kind = plan->message[task->message].gradient ? PTASK_backward : PTASK_forward;
        n = (size_t)snprintf(out, INF_TASK_NAME_BYTES, "%s", kind_names[task->kind]);
    }
    cell_text(plan, &of, out + n, INF_TASK_NAME_BYTES - n);
    return out;
}

static const PlanMessage *message_of(const Timeline *t, const PlanTask *task) {
    return &t->plan->message[task->message];
}

/* "sendF": an activation, "recvB": a gradient. */
static const char *type_text(const Timeline *t, const PlanTask *task, char text[16]) {
    snprintf(text, 16, "%s%s", kind_names[task->kind],
             !is_message(task)               ? ""
             : message_of(t, task)->gradient ? "B"
                                             : "F");
    return text;
}

static void print_row(const Timeline *t, int rank, uint32_t step, FILE *out) {
    uint32_t at = rank_of(t, rank)->task + step;
    const PlanTask *task = &t->plan->task[at];
    char type[16];
    type_text(t, task, type);
    if (task->kind == PTASK_update)
        fprintf(out, "%4u %4d %-8s %10s %5s %5s %5s %4lld\n", step, rank, type, "-", "-", "-", "-",
                (long long)t->start[at]);
    else if (task->kind == PTASK_reduce)
        fprintf(out, "%4u %4d %-8s %10s %5s %5d %5s    - bucket %d, %lld bytes\n", step, rank, type,
                "-", "-", task->local, "-", task->message,
                (long long)t->plan[rank].bucket[task->message].bytes);
    else if (is_message(task))
        fprintf(out, "%4u %4d %-8s %10d %5d %5d %5d    - %s rank %d\n", step, rank, type,
                task->microbatch, task->chunk, task->local, task->chunk,
                task->kind == PTASK_send ? "to" : "from",
                task->kind == PTASK_send ? message_of(t, task)->to_rank
                                         : message_of(t, task)->from_rank);
    else
        fprintf(out, "%4u %4d %-8s %10d %5d %5d %5d %4lld\n", step, rank, type, task->microbatch,
                task->chunk, task->local, task->chunk, (long long)t->start[at]);
}

static int cell_width(const Timeline *t) {
    char cell[32];
    size_t width = 1;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            const PlanTask *task = &t->plan->task[rank_of(t, r)->task + i];
            if (is_message(task) || task->kind == PTASK_reduce) continue;
            cell_text(t->plan, task, cell, sizeof cell);
            width = strlen(cell) > width ? strlen(cell) : width;
        }
    return (int)width;
}

/* A row a rank, a column a slot; what takes two slots goes on as "-". */
static void print_grid(const Timeline *t, FILE *out) {
    char cell[32];
    int width = cell_width(t);
    for (int r = 0; r < t->ranks; r++) {
        fprintf(out, "r%-3d", r);
        int64_t clock = 0;
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            uint32_t at = rank_of(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (is_message(task) || task->kind == PTASK_reduce) continue;
            for (; clock < t->start[at]; clock++) fprintf(out, " %-*s", width, ".");
            cell_text(t->plan, task, cell, sizeof cell);
            if (task->kind == PTASK_update)
                fprintf(out, " %s", cell);
            else
                fprintf(out, " %-*s", width, cell);
            for (clock++; clock < t->start[at] + costs[task->kind]; clock++)
                fprintf(out, " %-*s", width, "-");
        }
        fputc('\n', out);
    }
}

/* Which layers each chunk has, and how much of the model that is. */
static void print_stages(const Timeline *t, FILE *out) {
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

static void print_table(const Timeline *t, FILE *out) {
    print_grid(t, out);
    fputs("\nstep rank type     microbatch chunk local stage slot\n", out);
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) print_row(t, r, i, out);
    print_stages(t, out);
    if (t->plan->schedule_summary) fprintf(out, "\n%s\n", t->plan->schedule_summary);
    if (t->plan->schedule_estimate) fprintf(out, "%s\n", t->plan->schedule_estimate);
}

static void print_csv(const Timeline *t, FILE *out) {
    for (int r = 0; r < t->ranks; r++) {
        bool first = true;
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            const PlanTask *task = &t->plan->task[rank_of(t, r)->task + i];
            if (!is_compute(task)) continue;
            fprintf(out, "%s%d%c%d", first ? "" : ",", task->chunk, letters[task->kind],
                    task->microbatch);
            first = false;
        }
        fputc('\n', out);
    }
}

static void put_task(InfJson *j, const Timeline *t, int rank, uint32_t at) {
    const PlanTask *task = &t->plan->task[at];
    char type[16];
    inf_json_put_text(j, "type", type_text(t, task, type));
    if (task->kind == PTASK_reduce) {
        const PlanBucket *b = &t->plan[rank].bucket[task->message];
        inf_json_put_int(j, "bucket", task->message);
        inf_json_put_int(j, "local", task->local);
        inf_json_put_int(j, "bytes", b->bytes);
        return;
    }
    inf_json_put_int(j, "microbatch", task->microbatch);
    inf_json_put_int(j, "chunk", task->chunk);
    inf_json_put_int(j, "local", task->local);
    if (t->plan->schedule_estimate) {
        inf_json_put_double(j, "start", task->start);
        inf_json_put_double(j, "length", task->length);
    }
    if (is_message(task)) {
        const PlanMessage *m = message_of(t, task);
        bool sends = task->kind == PTASK_send;
        inf_json_put_int(j, sends ? "to_rank" : "from_rank", sends ? m->to_rank : m->from_rank);
        inf_json_put_int(j, sends ? "to_chunk" : "from_chunk", sends ? m->to : m->from);
        return;
    }
    inf_json_put_int(j, "slot", t->start[at]);
    inf_json_put_int(j, "slots", costs[task->kind]);
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

static void print_json(const Timeline *t, FILE *out) {
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
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            uint32_t at = rank_of(t, r)->task + i;
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

enum { SLOT_WIDTH = 28, ROW_HEIGHT = 28 };

static void print_svg(const Timeline *t, FILE *out) {
    static const char *const colours[] = {"#9ecae9", "#88d27a", "#b6e3a8", "#f2cf5b", "#bab0ac"};
    char cell[32];
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%d\" "
            "font-family=\"monospace\" font-size=\"11\">\n",
            (long long)(40 + t->end * SLOT_WIDTH + 8), t->ranks * ROW_HEIGHT + 8);
    for (int r = 0; r < t->ranks; r++) {
        fprintf(out, "<text x=\"4\" y=\"%d\">r%d</text>\n", r * ROW_HEIGHT + 20, r);
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            uint32_t at = rank_of(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (!is_compute(task)) continue;
            long long x = 40 + t->start[at] * SLOT_WIDTH;
            cell_text(t->plan, task, cell, sizeof cell);
            fprintf(out,
                    "<rect x=\"%lld\" y=\"%d\" width=\"%lld\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"#444\"/><text x=\"%lld\" y=\"%d\">%s</text>\n",
                    x, r * ROW_HEIGHT + 4, (long long)costs[task->kind] * SLOT_WIDTH,
                    ROW_HEIGHT - 4, colours[task->kind], x + 3, r * ROW_HEIGHT + 20, cell);
        }
    }
    fputs("</svg>\n", out);
}

/* One slot is drawn as a millisecond. */
static void print_trace(const Timeline *t, FILE *out) {
    char cell[32];
    InfJson j;
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_key(&j, "traceEvents");
    inf_json_open(&j, '[');
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < rank_of(t, r)->ntask; i++) {
            uint32_t at = rank_of(t, r)->task + i;
            const PlanTask *task = &t->plan->task[at];
            if (is_message(task) || task->kind == PTASK_reduce) continue;
            cell_text(t->plan, task, cell, sizeof cell);
            inf_json_open(&j, '{');
            inf_json_put_text(&j, "name", cell);
            inf_json_put_text(&j, "cat", kind_names[task->kind]);
            inf_json_put_text(&j, "ph", "X");
            inf_json_put_int(&j, "pid", 0);
            inf_json_put_int(&j, "tid", r);
            inf_json_put_int(&j, "ts", t->start[at] * 1000);
            inf_json_put_int(&j, "dur", costs[task->kind] * 1000);
            inf_json_close(&j);
        }
    inf_json_close(&j);
    inf_json_close(&j);
    fputc('\n', out);
}

static const struct {
    const char *name;
    void (*print)(const Timeline *t, FILE *out);
} formats[] = {
    {"table", print_table}, {"csv", print_csv},     {"json", print_json},
    {"svg", print_svg},     {"trace", print_trace},
};

InfCode inf_schedule_print(InfError *e, const Plan *plan, const char *format, FILE *out) {
    Timeline t;
    InfCode code = timeline_open(e, plan, &t);
    bool known = false;
    for (size_t i = 0; code == INF_OK && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, format) == 0) {
            formats[i].print(&t, out);
            known = true;
        }
    if (code == INF_OK && !known)
        code =
            inf_fail(e, INF_USAGE, "unknown format '%s'; table, csv, json, svg or trace", format);
    free(t.start);
    free(t.index);
    return code;
}
