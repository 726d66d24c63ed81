/* bench.c - how long a training step takes, on synthetic random data.
 *
 * A warm-up, then the median of many steps; staging a batch is part of a step. With --kernels as
 * many steps follow in which every launch is timed.
 */
#include "runtime/bench.h"

#include <stdlib.h>

#include "runtime/json.h"
#include "runtime/kernels.h"
#include "runtime/signals.h"

enum { WARM_UP_STEPS = 5, DEFAULT_STEPS = 50 };

static double one_step(InfSession *s, int64_t step) {
    uint64_t global = inf_global_batch(s->plan);
    const PlanTrain *train = &s->plan->train;
    double start = inf_clock_ms();
    InfHost host = {train->lr, train->decay, train->clip, step};
    s->engine.env.step = step;
    uint64_t position = (uint64_t)step % (s->data.count / global) * global;
    float loss = inf_step_gradients(&s->engine, &s->data, &host, position);
    inf_step_update(&s->engine, loss);
    return inf_clock_ms() - start;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

InfCode inf_bench_steps(InfError *e, InfSession *s, int64_t steps, double *ms) {
    double *times = calloc((size_t)steps, sizeof *times);
    InfCode code = times ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    for (int64_t i = 0; code == INF_OK && i < WARM_UP_STEPS + steps; i++) {
        double time = one_step(s, i);
        if (i >= WARM_UP_STEPS) times[i - WARM_UP_STEPS] = time;
        if (inf_signals_pending())
            code =
                inf_fail(e, INF_STOPPED, "stopped by %s", inf_signal_name(inf_signals_pending()));
    }
    if (code == INF_OK) {
        qsort(times, (size_t)steps, sizeof *times, by_value);
        *ms = steps % 2 ? times[steps / 2] : 0.5 * (times[steps / 2 - 1] + times[steps / 2]);
    }
    free(times);
    return code;
}

InfCode inf_bench_kernels(InfError *e, InfSession *s, int64_t steps) {
    TRY(inf_engine_time_kernels(e, &s->engine));
    for (int64_t i = 0; i < steps && !inf_signals_pending(); i++) one_step(s, i);
    return INF_OK;
}

static InfCode print_json(InfError *e, const InfSession *s, double ms, int64_t steps,
                          bool kernels) {
    InfJson j;
    inf_json_init(&j, stdout);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "model", s->plan->model);
    inf_json_put_text(&j, "target", s->plan->target);
    inf_json_put_int(&j, "threads", s->engine.env.threads);
    inf_json_put_int(&j, "global_batch", (int64_t)inf_global_batch(s->plan));
    inf_json_put_int(&j, "steps", steps);
    inf_json_put_double(&j, "ms_per_step", ms);
    inf_json_put_double(&j, "units_per_s", (double)inf_global_batch(s->plan) / ms * 1e3);
    inf_json_put_int(&j, "peak_bytes", (int64_t)inf_session_measured(s));
    inf_json_put_int(&j, "planned_bytes", (int64_t)s->planned_bytes);
    InfCode code = INF_OK;
    if (kernels) {
        inf_json_key(&j, "kernels");
        code = inf_kernels_json(e, s->plan, &s->engine, steps, &j);
    }
    inf_json_close(&j);
    putchar('\n');
    return code;
}

static InfCode print_text(InfError *e, const InfSession *s, double ms, int64_t steps,
                          bool kernels) {
    printf("%s on %s: %.4f ms a step (median of %lld), %.0f samples/s, %d threads; memory planned "
           "%.1f MB, measured %.1f MB\n",
           s->plan->model, s->plan->target, ms, (long long)steps,
           (double)inf_global_batch(s->plan) / ms * 1e3, s->engine.env.threads,
           (double)s->planned_bytes / 1e6, (double)inf_session_measured(s) / 1e6);
    return kernels ? inf_kernels_print(e, s->plan, &s->engine, steps, stdout) : INF_OK;
}

static InfCode run(InfError *e, InfSession *s) {
    int64_t steps = inf_option_whole(s->options, OPT_steps, DEFAULT_STEPS);
    bool kernels = inf_option_given(s->options, OPT_kernels);
    double ms = 0;
    TRY(inf_bench_steps(e, s, steps, &ms));
    if (kernels) TRY(inf_bench_kernels(e, s, steps));
    return inf_option_given(s->options, OPT_json) ? print_json(e, s, ms, steps, kernels)
                                                  : print_text(e, s, ms, steps, kernels);
}

InfCode inf_bench(InfError *e, const Plan *plan, const InfOptions *o) {
    InfSession s;
    inf_signals_install();
    TRY(inf_session_open_synthetic(e, plan, o, &s));
    InfCode code = run(e, &s);
    inf_session_close(&s);
    return code;
}
