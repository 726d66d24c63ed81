/* schedule_draw.c - see schedule_draw.h. */
#include "runtime/schedule_draw.h"

#include <string.h>

#include "runtime/json.h"
#include "runtime/schedule.h"

/* ---- a picture --- */

enum { SLOT_WIDTH = 28, ROW_HEIGHT = 28, LETTER_WIDTH = 7 };

static const char *const colours[] = {
    [PTASK_forward] = "#9ecae9", [PTASK_backward] = "#88d27a", [PTASK_input] = "#b6e3a8",
    [PTASK_weight] = "#f2cf5b",  [PTASK_update] = "#bab0ac",   [PTASK_reduce] = "#d6a5c9",
    [PTASK_gather] = "#f58518",
};

/* The first lane of a rank: each has one of tasks, and where there are replicas one of sums. */
static int lane_y(const InfTimeline *t, int rank) { return rank * ROW_HEIGHT * (t->sums ? 2 : 1); }

static void draw_task(const InfTimeline *t, int y, uint32_t at, FILE *out) {
    const PlanTask *task = &t->plan->task[at];
    long long x = 40 + t->start[at] * SLOT_WIDTH;
    char name[INF_TASK_NAME_BYTES];
    fprintf(out,
            "<rect x=\"%lld\" y=\"%d\" width=\"%lld\" height=\"%d\" fill=\"%s\" "
            "stroke=\"#444\"/><text x=\"%lld\" y=\"%d\">%s</text>\n",
            x, y + 4, (long long)inf_task_slots(task) * SLOT_WIDTH, ROW_HEIGHT - 4,
            colours[task->kind], x + 3, y + 20, inf_task_name(t->plan, task, name));
}

/* Its name only where there is room. */
static void draw_sum(const InfTimeline *t, int rank, int y, uint32_t at, FILE *out) {
    const PlanTask *task = &t->plan->task[at];
    const Plan *plan = &t->plan[rank];
    bool gather = task->kind == PTASK_gather;
    double x = 40 + t->sum[2 * at] * SLOT_WIDTH, width = t->sum[2 * at + 1] * SLOT_WIDTH;
    char name[INF_TASK_NAME_BYTES];
    inf_task_name(plan, task, name);
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\" stroke=\"#444\">"
            "<title>%s: %s %d, %lld bytes%s</title></rect>",
            x, y + 8, width, ROW_HEIGHT - 12, colours[task->kind], name,
            gather ? "shard" : "bucket", task->message,
            (long long)(gather ? inf_shard_brings(&plan->shard[task->message])
                               : plan->bucket[task->message].bytes),
            gather ? " of each replica" : "");
    if ((double)(LETTER_WIDTH * strlen(name) + 4) <= width)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\">%s</text>", x + 3, y + 20, name);
    fputc('\n', out);
}

/* What colours mean, of the kinds of tasks that there are. Returns where it ends; `out` NULL: that
 * only. */
static int draw_legend(const InfTimeline *t, int y, FILE *out) {
    static const char *const words[] = {
        [PTASK_forward] = "forward",        [PTASK_backward] = "backward",
        [PTASK_input] = "input gradient",   [PTASK_weight] = "weight gradient",
        [PTASK_reduce] = "sum of replicas", [PTASK_gather] = "weights to all replicas",
    };
    bool there[PTASK_gather + 1] = {false};
    int x = 40;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < inf_timeline_rank(t, r)->ntask; i++)
            there[t->plan->task[inf_timeline_rank(t, r)->task + i].kind] = true;
    for (size_t k = 0; k <= PTASK_gather; k++) {
        if (!there[k] || !words[k]) continue;
        if (out)
            fprintf(out,
                    "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\" "
                    "stroke=\"#444\"/><text x=\"%d\" y=\"%d\">%s</text>\n",
                    x, y + 7, colours[k], x + 19, y + 18, words[k]);
        x += 19 + LETTER_WIDTH * (int)strlen(words[k]) + 14;
    }
    return x;
}

void inf_schedule_draw_svg(const InfTimeline *t, FILE *out) {
    double end = 40 + (t->sums ? t->sum_end : (double)t->end) * SLOT_WIDTH;
    int legend = t->sums ? draw_legend(t, 0, NULL) : 0;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%d\" "
            "font-family=\"monospace\" font-size=\"11\">\n",
            (long long)(end > legend ? end : legend) + 8,
            lane_y(t, t->ranks) + (t->sums ? ROW_HEIGHT : 0) + 8);
    for (int r = 0; r < t->ranks; r++) {
        const PlanRank *rank = inf_timeline_rank(t, r);
        int y = lane_y(t, r);
        fprintf(out, "<text x=\"4\" y=\"%d\">r%d</text>\n", y + 20, r);
        for (uint32_t at = rank->task; at < rank->task + rank->ntask; at++)
            if (inf_task_computes(&t->plan->task[at])) draw_task(t, y, at, out);
        if (!t->sums) continue;
        fprintf(out, "<text x=\"4\" y=\"%d\">sums</text>\n", y + ROW_HEIGHT + 20);
        for (uint32_t at = rank->task; at < rank->task + rank->ntask; at++)
            if (inf_task_is_sum(&t->plan->task[at])) draw_sum(t, r, y + ROW_HEIGHT, at, out);
    }
    if (t->sums) draw_legend(t, lane_y(t, t->ranks), out);
    fputs("</svg>\n", out);
}

/* ---- a trace --- */

static void put_names(const InfTimeline *t, InfJson *j) {
    for (int tid = 0; tid < 2 * t->ranks; tid++) {
        bool sums = tid >= t->ranks;
        char name[64];
        snprintf(name, sizeof name, "rank %d%s", tid % t->ranks, sums ? ", sums of replicas" : "");
        inf_json_open(j, '{');
        inf_json_put_text(j, "name", "thread_name");
        inf_json_put_text(j, "ph", "M");
        inf_json_put_int(j, "pid", 0);
        inf_json_put_int(j, "tid", tid);
        inf_json_key(j, "args");
        inf_json_open(j, '{');
        inf_json_put_text(j, "name", name);
        inf_json_close(j);
        inf_json_close(j);
    }
}

/* One slot is drawn as a millisecond. Sums of rank r are track ranks + r. */
static void put_event(const InfTimeline *t, InfJson *j, int rank, uint32_t at) {
    const PlanTask *task = &t->plan->task[at];
    bool sum = inf_task_is_sum(task), waits = t->sums && task->kind == PTASK_update;
    char name[INF_TASK_NAME_BYTES];
    inf_json_open(j, '{');
    inf_json_put_text(j, "name", inf_task_name(t->plan, task, name));
    inf_json_put_text(j, "cat", inf_task_kind_name(task));
    inf_json_put_text(j, "ph", "X");
    inf_json_put_int(j, "pid", 0);
    inf_json_put_int(j, "tid", sum ? t->ranks + rank : rank);
    if (sum || waits) {
        inf_json_put_double(j, "ts", t->sum[2 * at] * 1000);
        inf_json_put_double(j, "dur", t->sum[2 * at + 1] * 1000);
    } else {
        inf_json_put_int(j, "ts", t->start[at] * 1000);
        inf_json_put_int(j, "dur", inf_task_slots(task) * 1000);
    }
    inf_json_close(j);
}

void inf_schedule_draw_trace(const InfTimeline *t, FILE *out) {
    InfJson j;
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_key(&j, "traceEvents");
    inf_json_open(&j, '[');
    if (t->sums) put_names(t, &j);
    for (int r = 0; r < t->ranks; r++) {
        const PlanRank *rank = inf_timeline_rank(t, r);
        for (uint32_t at = rank->task; at < rank->task + rank->ntask; at++) {
            const PlanTask *task = &t->plan->task[at];
            if (inf_task_is_message(task) || (inf_task_is_sum(task) && !t->sums)) continue;
            put_event(t, &j, r, at);
        }
    }
    inf_json_close(&j);
    inf_json_close(&j);
    fputc('\n', out);
}
