/* bench.c - how long a training step takes, on synthetic random data.
 *
 * A warm-up, then the median of many steps, taken as a training loop takes them; staging a batch is
 * part of a step. With --kernels as many steps follow in which every launch is timed.
 */
#include "runtime/bench.h"

#include <stdlib.h>

#include "runtime/costs.h"
#include "runtime/json.h"
#include "runtime/kernels.h"
#include "runtime/pipeline.h"
#include "runtime/signals.h"
#include "runtime/work.h"

enum { WARM_UP_STEPS = 5, DEFAULT_STEPS = 50 };

static void submit(InfSession *s, InfSteps *sent, int64_t step) {
    uint64_t global = inf_global_batch(s->plan);
    const PlanTrain *train = &s->plan->train;
    InfStepInput in = {.step = step,
                       .position = (uint64_t)step % (s->data.count / global) * global,
                       .host = {train->lr, train->decay, train->clip, step}};
    inf_step_submit(sent, &s->engine, &s->data, &in);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps one behind the other as a training loop takes them; times[i] is from the end of one to the
 * end of the next. */
static InfCode take_steps(InfError *e, InfSession *s, int64_t steps, double *times) {
    InfSteps sent = {.count = 0};
    InfStepResult result;
    double last = inf_clock_ms();
    for (int64_t i = 0, done = 0; done < steps; i++) {
        int late = i < steps ? s->engine.table->late : 0;
        if (i < steps) submit(s, &sent, i);
        for (; sent.count > late; done++) {
            TRY(inf_step_finish(e, &sent, &s->engine, &result));
            double now = inf_clock_ms();
            times[done] = now - last;
            last = now;
        }
        if (inf_signals_pending())
            return inf_fail(e, INF_STOPPED, "stopped by %s",
                            inf_signal_name(inf_signals_pending()));
    }
    return INF_OK;
}

InfCode inf_bench_steps(InfError *e, InfSession *s, int64_t steps, double *ms) {
    double *times = calloc((size_t)steps + WARM_UP_STEPS, sizeof *times);
    if (!times) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = take_steps(e, s, steps + WARM_UP_STEPS, times);
    if (code == INF_OK) {
        double *timed = times + WARM_UP_STEPS;
        qsort(timed, (size_t)steps, sizeof *timed, by_value);
        *ms = steps % 2 ? timed[steps / 2] : 0.5 * (timed[steps / 2 - 1] + timed[steps / 2]);
    }
    free(times);
    return code;
}

/* Steps one by one, with marks around every launch. */
static InfCode take_profiled(InfError *e, InfSession *s, int64_t steps) {
    InfSteps sent = {.count = 0};
    InfStepResult result;
    for (int64_t i = 0; i < steps && !inf_signals_pending(); i++) {
        submit(s, &sent, i);
        TRY(inf_step_finish(e, &sent, &s->engine, &result));
    }
    return INF_OK;
}

InfCode inf_bench_kernels(InfError *e, InfSession *s, int64_t steps) {
    InfEngine *m = &s->engine;
    TRY(inf_profile_open(e, s->plan, m->table, m->device, &m->profile));
    TRY(take_profiled(e, s, steps));
    inf_profile_stop(&m->profile);
    m->ceiling = m->table->ceiling(m->device);
    return m->table->finish(e, m->device);
}

static InfCode trace(InfError *e, InfSession *s) {
    if (!inf_option_given(s->options, OPT_trace)) return INF_OK;
    TRY(inf_session_trace(e, s));
    TRY(take_profiled(e, s, INF_TRACE_STEPS));
    TRY(inf_session_trace_end(e, s));
    inf_profile_close(&s->engine.profile);
    return INF_OK;
}

/* --costs: a layer's launches, each between two marks. */
static InfCode write_costs(InfError *e, InfSession *s, int64_t steps) {
    const char *path = inf_option_text(s->options, OPT_costs, NULL);
    InfEngine *m = &s->engine;
    if (!path) return INF_OK;
    TRY(inf_profile_open(e, s->plan, m->table, m->device, &m->profile));
    TRY(inf_costs_open(e, &m->profile));
    TRY(take_profiled(e, s, steps));
    TRY(inf_costs_write(e, s, steps, path));
    inf_profile_close(&m->profile);
    return INF_OK;
}

static double units_per_s(const InfSession *s, double ms) {
    return (double)(inf_global_batch(s->plan) * inf_units(&s->plan->program[0])) / ms * 1e3;
}

/* What was measured. */
typedef struct Figures {
    double ms; /* a step */
    int64_t steps;
    bool kernels;
    InfBubble bubble; /* of several ranks */
    InfUse memory;
} Figures;

static InfCode print_json(InfError *e, const InfSession *s, const Figures *f) {
    InfJson j;
    inf_json_init(&j, stdout);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "model", s->plan->model);
    inf_json_put_text(&j, "target", s->plan->target);
    inf_json_put_text(&j, "device", s->engine.table->describe(s->engine.device));
    inf_json_put_int(&j, "threads", s->engine.env.threads);
    inf_json_put_int(&j, "global_batch", (int64_t)inf_global_batch(s->plan));
    inf_json_put_int(&j, "steps", f->steps);
    inf_json_put_double(&j, "ms_per_step", f->ms);
    inf_json_put_double(&j, "units_per_s", units_per_s(s, f->ms));
    double mfu = inf_work_share(s->plan, s->engine.table->describe(s->engine.device), f->ms);
    if (mfu > 0) inf_json_put_double(&j, "mfu", mfu);
    inf_json_put_int(&j, "peak_bytes", (int64_t)f->memory.reserved);
    inf_json_put_int(&j, "planned_bytes", (int64_t)f->memory.used);
    if (f->memory.rank >= 0) inf_json_put_int(&j, "mem_rank", f->memory.rank);
    inf_bubble_put(&f->bubble, s->plan, &j);
    InfCode code = INF_OK;
    if (f->kernels) {
        inf_json_key(&j, "kernels");
        code = inf_kernels_json(e, s->plan, &s->engine, f->steps, &j);
    }
    inf_json_close(&j);
    putchar('\n');
    return code;
}

static InfCode print_text(InfError *e, const InfSession *s, const Figures *f) {
    char rank[32];
    printf("%s on %s: %.4f ms a step (median of %lld), %.0f %s/s, %s; memory planned "
           "%.1f MB, measured %.1f MB%s\n",
           s->plan->model, s->plan->target, f->ms, (long long)f->steps, units_per_s(s, f->ms),
           inf_unit_name(&s->plan->program[0]), s->engine.table->describe(s->engine.device),
           (double)f->memory.used / 1e6, (double)f->memory.reserved / 1e6,
           inf_use_rank(&f->memory, rank));
    inf_bubble_print(&f->bubble, s->plan, stdout);
    return f->kernels ? inf_kernels_print(e, s->plan, &s->engine, f->steps, stdout) : INF_OK;
}

static InfCode run(InfError *e, InfSession *s) {
    Figures f = {.steps = inf_option_whole(s->options, OPT_steps, DEFAULT_STEPS),
                 .kernels = inf_option_given(s->options, OPT_kernels)};
    TRY(inf_bench_steps(e, s, f.steps, &f.ms));
    if (s->engine.pipeline) TRY(inf_pipeline_bubble(e, s->engine.pipeline, &f.bubble));
    TRY(inf_session_use(e, s, &f.memory));
    TRY(trace(e, s));
    TRY(write_costs(e, s, f.steps));
    if (f.kernels) TRY(inf_bench_kernels(e, s, f.steps));
    return inf_option_given(s->options, OPT_json) ? print_json(e, s, &f) : print_text(e, s, &f);
}

InfCode inf_bench(InfError *e, const Plan *plan, const InfOptions *o) {
    InfSession s;
    if (inf_plan_processes(plan) > 1 && inf_option_given(o, OPT_costs))
        return inf_fail(e, INF_USAGE,
                        "costs are measured on one rank: infinic %s -D parallel.dp=1 -D "
                        "parallel.pp=1 -D parallel.vpp=1",
                        plan->file);
    TRY(inf_signals_install(e));
    TRY(inf_session_open_synthetic(e, plan, o, &s));
    InfCode code = run(e, &s);
    inf_session_close(&s);
    return code;
}
