/* train.c - the training loop: steps, evaluations, checkpoints, and every way to end.
 *
 * Reads   the session's data and weights.
 * Writes  results on stdout, progress on stderr, metrics, weights, checkpoints.
 * Keeps   the weights finite: a step whose loss or gradient is not is not applied.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/checkpoint.h"
#include "runtime/file.h"
#include "runtime/metrics.h"
#include "runtime/progress.h"
#include "runtime/rate.h"
#include "runtime/session.h"
#include "runtime/signals.h"

typedef struct Trainer {
    InfSession s;
    InfMetrics metrics;
    InfProgress progress;
    InfState state;
    FILE *results;   /* stdout, or stderr when the metrics go to stdout */
    const char *out; /* --out or NULL */
    int64_t steps;   /* the last step */
    int64_t per_epoch;
    int64_t skipped;   /* steps not applied */
    int64_t evaluated; /* step of the last evaluation, -1 before any */
    bool show_norm;
    double lr, decay, clip, last_lr;
    float last_loss;
    double started_ms;
} Trainer;

static double samples_per_s(const Trainer *t, double ms) {
    return ms > 0 ? (double)inf_global_batch(t->s.plan) / ms * 1e3 : 0.0;
}

/* How many steps, from flags and from the plan. */
static void decide_length(Trainer *t) {
    const InfOptions *o = t->s.options;
    const PlanTrain *plan = &t->s.plan->train;
    t->per_epoch = (int64_t)(t->s.data.count / inf_global_batch(t->s.plan));
    bool flags = inf_option_given(o, OPT_steps) || inf_option_given(o, OPT_epochs);
    int64_t steps = inf_option_whole(o, OPT_steps, flags ? -1 : plan->steps);
    int64_t epochs = inf_option_whole(o, OPT_epochs, flags ? -1 : plan->epochs);
    if (steps < 0 && epochs < 0) epochs = 1;
    t->steps = steps >= 0 ? steps : INT64_MAX;
    if (epochs >= 0 && epochs <= INT64_MAX / t->per_epoch && epochs * t->per_epoch < t->steps)
        t->steps = epochs * t->per_epoch;
}

static void announce(Trainer *t) {
    const Plan *plan = t->s.plan;
    uint64_t global = inf_global_batch(plan), rest = t->s.data.count % global;
    int64_t parameters = 0;
    for (int i = 0; i < t->s.params.count; i++) parameters += t->s.params.param[i].count;
    if (!inf_option_given(t->s.options, OPT_quiet)) {
        fprintf(stderr,
                "%s: %lld parameters; %llu samples in %s; global batch %llu = %d x %lld x "
                "%lld (replicas, microbatches, B); %lld steps, %lld an epoch; %d thread%s\n",
                plan->model, (long long)parameters, (unsigned long long)t->s.data.count,
                t->s.data.path, (unsigned long long)global, plan->dp,
                (long long)plan->program[0].microbatches, (long long)plan->program[0].batch,
                (long long)t->steps, (long long)t->per_epoch, t->s.engine.env.threads,
                t->s.engine.env.threads == 1 ? "" : "s");
        if (rest)
            fprintf(stderr,
                    "%s: the last %llu samples of each epoch's order do not fill a global "
                    "batch and are dropped\n",
                    plan->model, (unsigned long long)rest);
    }
    if (!inf_metrics_begin(&t->metrics, "start")) return;
    InfJson *j = &t->metrics.json;
    inf_json_put_text(j, "model", plan->model);
    inf_json_put_text(j, "target", plan->target);
    inf_json_put_int(j, "parameters", parameters);
    inf_json_put_int(j, "samples", (int64_t)t->s.data.count);
    inf_json_put_int(j, "global_batch", (int64_t)global);
    inf_json_put_int(j, "dropped_per_epoch", (int64_t)rest);
    inf_json_put_int(j, "steps", t->steps);
    inf_json_put_int(j, "steps_per_epoch", t->per_epoch);
    inf_json_put_int(j, "seed", (int64_t)t->s.seed);
    inf_json_put_bool(j, "shuffle", t->s.data.shuffle);
    inf_json_put_int(j, "planned_bytes", (int64_t)t->s.planned_bytes);
    inf_metrics_end(&t->metrics);
}

static void evaluate(Trainer *t) {
    InfEvaluation r;
    if (!t->s.has_test || t->evaluated == t->state.step) return;
    inf_progress_break(&t->progress);
    if (!inf_evaluate(&t->s.engine, &t->s.test, &r)) return;
    const PlanProgram *eval = &t->s.plan->program[1];
    t->evaluated = t->state.step;
    inf_metrics_eval(&t->metrics, t->state.step, eval, &r);
    fprintf(t->results, "step %lld: eval", (long long)t->state.step);
    for (int k = 0; k < r.count; k++)
        fprintf(t->results, " %s %.4f", eval->metric[k].name, r.mean[k]);
    fprintf(t->results, " (%llu samples)\n", (unsigned long long)r.samples);
    fflush(t->results);
}

static InfCode save_checkpoint(InfError *e, Trainer *t) {
    char *folder = NULL;
    InfCode code = inf_checkpoint_save(e, &t->s.params, &t->s.engine, t->out, &t->state, &folder);
    if (code == INF_OK && inf_metrics_begin(&t->metrics, "checkpoint")) {
        inf_json_put_int(&t->metrics.json, "step", t->state.step);
        inf_json_put_text(&t->metrics.json, "path", folder);
        inf_metrics_end(&t->metrics);
    }
    free(folder);
    return code;
}

/* A step that was not applied: named, counted, and the end unless --on-nan=skip. */
static InfCode handle_nonfinite(InfError *e, Trainer *t, float loss) {
    const InfParam *bad = inf_params_find_nonfinite(&t->s.params, &t->s.engine);
    const char *name = bad ? bad->name : NULL;
    bool skip = strcmp(inf_option_text(t->s.options, OPT_on_nan, "stop"), "skip") == 0;
    t->skipped++;
    if (inf_metrics_begin(&t->metrics, "nan")) {
        inf_json_put_int(&t->metrics.json, "step", t->state.step + 1);
        inf_json_put_float(&t->metrics.json, "loss", loss);
        inf_json_put_text(&t->metrics.json, "tensor", name);
        inf_json_put_bool(&t->metrics.json, "skipped", skip);
        inf_metrics_end(&t->metrics);
    }
    inf_progress_break(&t->progress);
    char what[64];
    if (isfinite(loss))
        snprintf(what, sizeof what, "the gradient's norm is not finite");
    else
        snprintf(what, sizeof what, "the loss is %s", isnan(loss) ? "NaN" : "infinite");
    if (!skip)
        return inf_fail(e, INF_NONFINITE,
                        "step %lld: %s; first bad tensor: %s%s; the weights are "
                        "those of the step before\n  = hint: a smaller --lr, --clip 1, or "
                        "--on-nan=skip",
                        (long long)t->state.step + 1, what,
                        name ? "the gradient of " : "the loss itself, every gradient is finite",
                        name ? name : "");
    fprintf(stderr, "%s: step %lld: %s; first bad tensor: %s; update skipped (%lld so far)\n",
            t->s.plan->model, (long long)t->state.step + 1, what, name ? name : "the loss",
            (long long)t->skipped);
    return INF_OK;
}

/* The gradients of the run's first step, averaged over the counted targets, before clipping. */
static InfCode dump_gradients(InfError *e, Trainer *t, int64_t step) {
    const char *path = inf_option_text(t->s.options, OPT_dump_grads, NULL);
    float count = inf_step_count(&t->s.engine);
    if (!path || step != t->progress.first) return INF_OK;
    return inf_params_save(e, &t->s.params, &t->s.engine, path, INF_VALUES_gradients,
                           count > 0 ? 1.0f / count : 0.0f);
}

/* A batch without a counted target has loss 0 and no gradient; the user may not expect that. */
static void warn_uncounted(Trainer *t) {
    inf_progress_break(&t->progress);
    fprintf(stderr, "%s: notice: step %lld has no counted target: its loss is 0\n",
            t->s.plan->model, (long long)t->state.step + 1);
    inf_metrics_warn(&t->metrics, "a step has no counted target");
}

static InfCode train_step(InfError *e, Trainer *t) {
    InfEngine *m = &t->s.engine;
    int64_t step = t->state.step, in_epoch = step % t->per_epoch;
    uint64_t global = inf_global_batch(t->s.plan);
    double start = inf_clock_ms();
    if (in_epoch == 0) inf_loader_begin(&t->s.data, (uint64_t)(step / t->per_epoch));
    m->env.step = step;
    t->last_lr = inf_rate_at(&t->s.plan->train, t->lr, step, t->steps);
    InfHost host = {t->last_lr, t->decay, t->clip, t->state.updates};
    float loss = inf_step_gradients(m, &t->s.data, &host, (uint64_t)in_epoch * global);
    TRY(dump_gradients(e, t, step));
    if (inf_step_count(m) <= 0) warn_uncounted(t);
    bool applied = inf_step_update(m, loss);
    double ms = inf_clock_ms() - start;

    if (applied)
        t->state.updates++;
    else
        TRY(handle_nonfinite(e, t, loss));
    t->state.step++;
    t->state.samples += global;
    t->state.microbatches += (uint64_t)(t->s.plan->dp * t->s.plan->program[0].microbatches);
    t->last_loss = loss;
    InfStepRecord record = {.step = t->state.step,
                            .loss = loss,
                            .lr = t->last_lr,
                            .ms = ms,
                            .units_per_s = samples_per_s(t, ms),
                            .has_norm = t->show_norm,
                            .grad_norm = inf_engine_scalar(m, t->s.plan->grad_norm)};
    inf_metrics_step(&t->metrics, &record);
    inf_progress_step(&t->progress, t->state.step, loss, record.units_per_s);
    return INF_OK;
}

/* What happens between steps: the end of an epoch, evaluations, checkpoints. */
static InfCode between_steps(InfError *e, Trainer *t) {
    int64_t step = t->state.step, every = t->s.plan->train.eval_every;
    int64_t save_every = inf_option_whole(t->s.options, OPT_save_every, 0);
    bool epoch_end = step % t->per_epoch == 0;
    if (epoch_end && inf_metrics_begin(&t->metrics, "epoch")) {
        inf_json_put_int(&t->metrics.json, "epoch", step / t->per_epoch);
        inf_json_put_int(&t->metrics.json, "step", step);
        inf_metrics_end(&t->metrics);
    }
    if (every > 0 ? step % every == 0 : epoch_end) evaluate(t);
    if (save_every > 0 && step % save_every == 0) TRY(save_checkpoint(e, t));
    return INF_OK;
}

static InfCode stop_by_signal(InfError *e, Trainer *t, int number) {
    inf_progress_break(&t->progress);
    if (!t->out)
        return inf_fail(e, INF_STOPPED,
                        "stopped by %s after step %lld; nothing saved, because "
                        "there is no --out",
                        inf_signal_name(number), (long long)t->state.step);
    TRY(save_checkpoint(e, t));
    return inf_fail(e, INF_STOPPED,
                    "stopped by %s after step %lld; saved in %s; go on with "
                    "--out %s --resume",
                    inf_signal_name(number), (long long)t->state.step, t->out, t->out);
}

static InfCode save_final(InfError *e, Trainer *t) {
    if (!t->out) return INF_OK;
    TRY(inf_dir_make(e, t->out));
    char *path = inf_path_join(t->out, "model.safetensors");
    if (!path) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = inf_params_save(e, &t->s.params, &t->s.engine, path, INF_VALUES_weights, 1.0f);
    if (code == INF_OK) fprintf(t->results, "weights: %s\n", path);
    free(path);
    return code;
}

static void summarise(Trainer *t) {
    double seconds = (inf_clock_ms() - t->started_ms) / 1e3;
    uint64_t measured = inf_session_measured(&t->s);
    char loss[32];
    fprintf(t->results,
            "trained %lld steps in %.1f s: loss %s; memory planned %.1f MB, measured %.1f "
            "MB",
            (long long)(t->state.step - t->progress.first), seconds,
            inf_float_text(t->last_loss, loss), (double)t->s.planned_bytes / 1e6,
            (double)measured / 1e6);
    if (t->skipped) fprintf(t->results, "; %lld steps skipped", (long long)t->skipped);
    fputc('\n', t->results);
    fflush(t->results);
    if (!inf_metrics_begin(&t->metrics, "end")) return;
    inf_json_put_int(&t->metrics.json, "step", t->state.step);
    inf_json_put_float(&t->metrics.json, "loss", t->last_loss);
    inf_json_put_float(&t->metrics.json, "seconds", (float)seconds);
    inf_json_put_int(&t->metrics.json, "skipped", t->skipped);
    inf_json_put_int(&t->metrics.json, "planned_bytes", (int64_t)t->s.planned_bytes);
    inf_json_put_int(&t->metrics.json, "measured_bytes", (int64_t)measured);
    inf_metrics_end(&t->metrics);
}

static InfCode loop(InfError *e, Trainer *t) {
    if (t->state.step % t->per_epoch != 0)
        inf_loader_begin(&t->s.data, (uint64_t)(t->state.step / t->per_epoch));
    while (t->state.step < t->steps && !inf_signals_pending()) {
        TRY(train_step(e, t));
        if (!inf_signals_pending()) TRY(between_steps(e, t));
    }
    if (inf_signals_pending()) return stop_by_signal(e, t, inf_signals_pending());
    evaluate(t);
    if (inf_signals_pending()) return stop_by_signal(e, t, inf_signals_pending());
    TRY(save_final(e, t));
    summarise(t);
    return INF_OK;
}

/* --resume: weights, optimizer, position and seed from the newest good checkpoint. */
static InfCode resume(InfError *e, Trainer *t) {
    const InfOptions *o = t->s.options;
    const char *from = inf_option_text(o, OPT_resume, t->out);
    char *folder = NULL;
    if (!from) return inf_fail(e, INF_USAGE, "--resume needs a folder: --resume=DIR, or --out DIR");
    InfCode code = inf_checkpoint_load(e, &t->s.params, &t->s.engine, from, &t->state, &folder);
    uint64_t global = inf_global_batch(t->s.plan);
    if (code == INF_OK && t->state.samples != (uint64_t)t->state.step * global)
        code = inf_fail(e, INF_DATA,
                        "%s: was saved after %llu samples in %lld steps; this program "
                        "takes %llu a step",
                        folder, (unsigned long long)t->state.samples, (long long)t->state.step,
                        (unsigned long long)global);
    if (code == INF_OK && inf_option_given(o, OPT_seed) && t->state.seed != t->s.seed)
        code = inf_fail(e, INF_USAGE, "--seed %llu differs from the seed %llu of %s",
                        (unsigned long long)t->s.seed, (unsigned long long)t->state.seed, folder);
    if (code == INF_OK) {
        t->s.seed = t->s.data.seed = t->s.engine.env.seed = t->state.seed;
        fprintf(stderr, "%s: going on from %s\n", t->s.plan->model, folder);
        if (inf_metrics_begin(&t->metrics, "resume")) {
            inf_json_put_int(&t->metrics.json, "step", t->state.step);
            inf_json_put_text(&t->metrics.json, "path", folder);
            inf_metrics_end(&t->metrics);
        }
    }
    free(folder);
    return code;
}

/* The folder of --out, with room for one checkpoint and the final weights. */
static InfCode prepare_out(InfError *e, const Trainer *t) {
    const Plan *plan = t->s.plan;
    uint64_t bytes = 0;
    TRY(inf_dir_make(e, t->out));
    if (!inf_mul((uint64_t)plan->flat_bytes, (uint64_t)plan->nstate + 2, &bytes))
        bytes = UINT64_MAX;
    return inf_disk_check(e, t->out, bytes);
}

static InfCode prepare(InfError *e, Trainer *t) {
    const InfOptions *o = t->s.options;
    const PlanTrain *plan = &t->s.plan->train;
    const char *path = inf_option_text(o, OPT_metrics, NULL);
    t->results = path && strcmp(path, "-") == 0 ? stderr : stdout;
    t->lr = inf_option_real(o, OPT_lr, plan->lr);
    t->decay = inf_option_real(o, OPT_weight_decay, plan->decay);
    t->clip = inf_option_real(o, OPT_clip, plan->clip);
    t->show_norm = t->clip > 0 || inf_option_given(o, OPT_grad_norm);
    t->s.data.shuffle = !inf_option_given(o, OPT_no_shuffle);
    t->evaluated = -1;
    TRY(inf_metrics_open(e, path, inf_option_given(o, OPT_resume), &t->metrics));
    if (t->out) TRY(prepare_out(e, t));
    if (inf_option_given(o, OPT_resume))
        TRY(resume(e, t));
    else
        t->state.seed = t->s.seed;
    decide_length(t);
    announce(t);
    t->started_ms = inf_clock_ms();
    inf_progress_open(&t->progress, inf_option_given(o, OPT_quiet), t->state.step, t->steps,
                      t->per_epoch);
    return INF_OK;
}

/* Which parameters decay is part of the code; a flag cannot add what was not built. */
static InfCode check_decay(InfError *e, const Plan *plan, const InfOptions *o) {
    bool decays = inf_option_real(o, OPT_weight_decay, 0) <= 0;
    for (uint32_t i = 0; i < plan->nparam; i++) decays = decays || plan->param[i].decay;
    if (decays) return INF_OK;
    return inf_fail(e, INF_USAGE,
                    "no parameter of this program decays, so --weight-decay cannot act; build it "
                    "in: decay = %s in the optimizer of %s",
                    inf_option_text(o, OPT_weight_decay, "0.1"), plan->file);
}

InfCode inf_train(InfError *e, const Plan *plan, const InfOptions *o) {
    Trainer t = {.out = inf_option_text(o, OPT_out, NULL)};
    if (inf_option_given(o, OPT_save_every) && !t.out)
        return inf_fail(e, INF_USAGE, "--save-every needs --out DIR");
    TRY(check_decay(e, plan, o));
    inf_signals_install();
    TRY(inf_session_open_train(e, plan, o, &t.s));
    InfCode code = prepare(e, &t);
    if (code == INF_OK) code = loop(e, &t);
    inf_progress_break(&t.progress);
    InfCode closed = inf_metrics_close(e, &t.metrics);
    inf_session_close(&t.s);
    return code != INF_OK ? code : closed;
}
