/* kernels.c - tables of kernels. */
#include "runtime/kernels.h"

#include <stdlib.h>
#include <string.h>

static void count_steps(const Plan *plan, uint32_t begin, uint32_t end, int64_t times,
                        int64_t *calls) {
    for (uint32_t s = begin; s < end; s++) {
        const PlanStep *step = &plan->step[s];
        if (step->kind == STEP_LAUNCH) {
            calls[step->kernel] += times;
        } else {
            count_steps(plan, s + 1, s + 1 + step->nbody, times * step->count, calls);
            s += step->nbody;
        }
    }
}

InfLaunches inf_kernels_launches(const Plan *plan, uint32_t begin, uint32_t end) {
    InfLaunches sum = {0, 0};
    for (uint32_t s = begin; s < end; s++) {
        const PlanStep *step = &plan->step[s];
        if (step->kind == STEP_LAUNCH) {
            sum.launches++;
            sum.args += step->narg;
            continue;
        }
        InfLaunches body = inf_kernels_launches(plan, s + 1, s + 1 + step->nbody);
        sum.launches += step->count * body.launches;
        sum.args += step->count * body.args;
        s += step->nbody;
    }
    return sum;
}

void inf_kernels_count(const Plan *plan, int64_t *calls) {
    const PlanRank *rank = &plan->program[0].rank[plan->rank];
    memset(calls, 0, plan->nkernel * sizeof *calls);
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++) {
        if (plan->task[i].kind > PTASK_update) continue;
        const PlanChunk *chunk = &plan->chunk[plan->task[i].program];
        count_steps(plan, chunk->begin, chunk->end, 1, calls);
    }
    if (inf_plan_processes(plan) < 2 || plan->finish.norm < 0) return;
    const PlanChunk *norm = &plan->chunk[plan->finish.norm];
    count_steps(plan, norm->begin, norm->end, 1, calls);
}

InfTraffic inf_kernels_total(const Plan *plan, const int64_t *calls) {
    InfTraffic total = {0, 0};
    for (uint32_t k = 0; k < plan->nkernel; k++) {
        total.bytes += calls[k] * plan->kernel[k].bytes;
        total.flops += calls[k] * plan->kernel[k].flops;
    }
    return total;
}

typedef struct Row {
    const PlanKernel *kernel;
    int64_t calls;
    double ms;  /* a step; 0 without times */
    double key; /* rows are sorted by it, largest first */
} Row;

static int by_key(const void *a, const void *b) {
    const Row *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return strcmp(x->kernel->name, y->kernel->name);
}

/* Rows of the kernels that a training step calls; *count of them, in fresh memory. */
static Row *make_rows(const Plan *plan, const InfEngine *m, int64_t steps, uint32_t *count) {
    int64_t *calls = calloc(plan->nkernel + 1, sizeof *calls);
    Row *rows = calloc(plan->nkernel + 1, sizeof *rows);
    *count = 0;
    if (calls && rows) inf_kernels_count(plan, calls);
    for (uint32_t k = 0; calls && rows && k < plan->nkernel; k++) {
        if (calls[k] == 0) continue;
        Row *r = &rows[(*count)++];
        *r = (Row){.kernel = &plan->kernel[k], .calls = calls[k]};
        r->ms = m && steps > 0 ? m->profile.kernel_ms[k] / (double)steps : 0.0;
        r->key = m ? r->ms : (double)(calls[k] * plan->kernel[k].flops);
    }
    if (!calls) {
        free(rows);
        rows = NULL;
    }
    free(calls);
    if (rows) qsort(rows, *count, sizeof *rows, by_key);
    return rows;
}

/* The least time of a kernel's calls over the time they took: 1 is as good as the device can be. */
static double share_of_floor(const Row *r, const InfCeiling *top) {
    double bytes = (double)(r->calls * r->kernel->bytes), flops = (double)r->kernel->flops;
    double moving = top->bytes_per_s > 0 ? bytes / top->bytes_per_s : 0;
    double rate = top->flops_per_s[r->kernel->math];
    double counting = rate > 0 ? (double)r->calls * flops / rate : 0;
    double floor_ms = 1e3 * (moving > counting ? moving : counting);
    return r->ms > 0 ? floor_ms / r->ms : 0;
}

static bool has_floor(const InfEngine *m) { return m && m->ceiling.bytes_per_s > 0; }

static int name_width(const Row *rows, uint32_t count) {
    size_t width = strlen("kernel");
    for (uint32_t i = 0; i < count; i++)
        if (strlen(rows[i].kernel->name) > width) width = strlen(rows[i].kernel->name);
    return (int)width;
}

static const char *const math_name[PLAN_MATH_COUNT] = {"f32", "tf32", "bf16"};

/* What a share is of: the rates of the units that some kernel uses. */
static void print_floor(const Row *rows, uint32_t count, const InfCeiling *top, FILE *out) {
    fprintf(out, "floor: the larger of bytes at %.0f GB/s (measured copy) and flops at %.0f ",
            top->bytes_per_s / 1e9, top->flops_per_s[PLAN_MATH_f32] / 1e9);
    fputs("GFLOP/s (f32", out);
    for (int math = PLAN_MATH_f32 + 1; math < PLAN_MATH_COUNT; math++) {
        uint32_t i = 0;
        while (i < count && rows[i].kernel->math != math) i++;
        if (i < count) fprintf(out, "; %s: %.0f", math_name[math], top->flops_per_s[math] / 1e9);
    }
    fputs("), over the time taken\n", out);
}

InfCode inf_kernels_print(InfError *e, const Plan *plan, const InfEngine *m, int64_t steps,
                          FILE *out) {
    uint32_t count;
    Row *rows = make_rows(plan, m, steps, &count);
    if (!rows) return inf_fail(e, INF_IO, "out of memory");
    int width = name_width(rows, count);
    fprintf(out, "%-*s  %-12s %6s %12s %12s", width, "kernel", "form", "calls", "bytes", "flops");
    if (m) fprintf(out, " %9s %8s %8s", "ms/step", "GB/s", "GFLOP/s");
    if (has_floor(m)) fprintf(out, " %7s", "floor");
    fputs("  lines\n", out);
    for (uint32_t i = 0; i < count; i++) {
        const Row *r = &rows[i];
        const PlanKernel *k = r->kernel;
        fprintf(out, "%-*s  %-12s %6lld %12lld %12lld", width, k->name, k->form,
                (long long)r->calls, (long long)k->bytes, (long long)k->flops);
        double seconds = r->ms / 1e3;
        if (m && seconds > 0)
            fprintf(out, " %9.4f %8.2f %8.2f", r->ms, (double)(r->calls * k->bytes) / seconds / 1e9,
                    (double)(r->calls * k->flops) / seconds / 1e9);
        if (has_floor(m)) fprintf(out, " %5.1f %%", 100.0 * share_of_floor(r, &m->ceiling));
        fprintf(out, "  %s\n", k->lines ? k->lines : "");
    }
    if (has_floor(m)) print_floor(rows, count, &m->ceiling, out);
    free(rows);
    return INF_OK;
}

InfCode inf_kernels_json(InfError *e, const Plan *plan, const InfEngine *m, int64_t steps,
                         InfJson *j) {
    uint32_t count;
    Row *rows = make_rows(plan, m, steps, &count);
    if (!rows) return inf_fail(e, INF_IO, "out of memory");
    inf_json_open(j, '[');
    for (uint32_t i = 0; i < count; i++) {
        inf_json_open(j, '{');
        inf_json_put_text(j, "name", rows[i].kernel->name);
        inf_json_put_text(j, "form", rows[i].kernel->form);
        inf_json_put_int(j, "calls", rows[i].calls);
        inf_json_put_int(j, "bytes", rows[i].kernel->bytes);
        inf_json_put_int(j, "flops", rows[i].kernel->flops);
        inf_json_put_text(j, "math", math_name[rows[i].kernel->math]);
        if (m) inf_json_put_float(j, "ms", (float)rows[i].ms);
        if (has_floor(m))
            inf_json_put_float(j, "floor_share", (float)share_of_floor(&rows[i], &m->ceiling));
        inf_json_put_text(j, "lines", rows[i].kernel->lines);
        inf_json_close(j);
    }
    inf_json_close(j);
    free(rows);
    return INF_OK;
}
