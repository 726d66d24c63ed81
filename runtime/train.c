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
#include "runtime/pipeline.h"
#include "runtime/progress.h"
#include "runtime/rate.h"
#include "runtime/replicas.h"
#include "runtime/session.h"
#include "runtime/signals.h"
#include "runtime/work.h"

typedef struct Trainer {
    InfSession s;
    InfMetrics metrics;
    InfProgress progress;
    InfState state;    /* of the steps that are done */
    InfSteps sent;     /* those on their way */
    int64_t submitted; /* steps */
    FILE *results;     /* stdout, or stderr when the metrics go to stdout */
    const char *out;   /* --out or NULL */
    int64_t steps;     /* the last step */
    int64_t per_epoch;
    int64_t skipped;   /* steps not applied */
    int64_t evaluated; /* step of the last evaluation, -1 before any */
    bool show_norm;
    double lr, decay, clip;
    float last_loss;
    InfUse memory;                  /* of the rank that has taken the most, as of the last look */
    double started_ms, finished_ms; /* finished_ms: when the last step was done */
} Trainer;

static double units_per_s(const Trainer *t, double ms) {
    uint64_t units = inf_global_batch(t->s.plan) * inf_units(&t->s.plan->program[0]);
    return ms > 0 ? (double)units / ms * 1e3 : 0.0;
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
        inf_say("%s: %lld parameters; %llu samples in %s; global batch %llu = %d x %lld x "
                "%lld (replicas, microbatches, B); %lld steps, %lld an epoch; %s\n",
                plan->model, (long long)parameters, (unsigned long long)t->s.data.count,
                t->s.data.path, (unsigned long long)global, plan->dp,
                (long long)plan->program[0].microbatches, (long long)plan->program[0].batch,
                (long long)t->steps, (long long)t->per_epoch,
                t->s.engine.table->describe(t->s.engine.device));
        if (rest)
            inf_say("%s: the last %llu samples of each epoch's order do not fill a global "
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

static InfCode evaluate(InfError *e, Trainer *t) {
    InfEvaluation r;
    bool stopped = false;
    if (!t->s.has_test || t->evaluated == t->state.step) return INF_OK;
    inf_progress_break(&t->progress);
    TRY(inf_evaluate(e, &t->s.engine, &t->s.test, &r, &stopped));
    if (stopped) return INF_OK;
    const PlanProgram *eval = &t->s.plan->program[1];
    t->evaluated = t->state.step;
    inf_metrics_eval(&t->metrics, t->state.step, eval, &r);
    fprintf(t->results, "step %lld: eval", (long long)t->state.step);
    for (int k = 0; k < r.count; k++)
        fprintf(t->results, " %s %.4f", eval->metric[k].name, r.mean[k]);
    if (inf_has_perplexity(eval)) fprintf(t->results, " perplexity %.4g", exp(r.mean[0]));
    fprintf(t->results, " (%llu samples)\n", (unsigned long long)r.samples);
    fflush(t->results);
    return INF_OK;
}

static InfCode save_checkpoint(InfError *e, Trainer *t) {
    char *folder = NULL;
    inf_engine_fetch_weights(&t->s.engine);
    inf_engine_fetch_all(&t->s.engine, PLAN_REGION_state);
    TRY(t->s.engine.table->finish(e, t->s.engine.device));
    InfCode code = inf_checkpoint_save(e, &t->s.params, &t->s.engine, t->out, &t->state, &folder);
    if (code == INF_OK && inf_metrics_begin(&t->metrics, "checkpoint")) {
        inf_json_put_int(&t->metrics.json, "step", t->state.step);
        inf_json_put_text(&t->metrics.json, "path", folder);
        inf_metrics_end(&t->metrics);
    }
    free(folder);
    return code;
}

/* The first bad tensor of a step that was not applied. Where the gradients are no longer those of
 * that step, because the next one is already on its way, the step is taken again: its weights are
 * the same unless that next one could be applied. */
static InfCode find_bad(InfError *e, Trainer *t, const InfStepInput *in, const char **name) {
    InfEngine *m = &t->s.engine;
    if (m->table->late) {
        InfStepResult again;
        TRY(inf_step_wait(e, &t->sent, m));
        TRY(inf_step_gradients(e, m, &t->s.data, in, &again));
        inf_engine_fetch_all(m, PLAN_REGION_grad);
        TRY(m->table->finish(e, m->device));
    }
    const InfParam *bad = NULL;
    TRY(inf_params_find_nonfinite(e, &t->s.params, m, &bad));
    *name = bad ? bad->name : NULL;
    return INF_OK;
}

/* A step that was not applied: named, counted, and the end unless --on-nan=skip. */
static InfCode handle_nonfinite(InfError *e, Trainer *t, const InfStepResult *r) {
    const char *name = NULL;
    float loss = r->loss;
    TRY(find_bad(e, t, &r->input, &name));
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
    inf_say("%s: step %lld: %s; first bad tensor: %s; update skipped (%lld so far)\n",
            t->s.plan->model, (long long)t->state.step + 1, what, name ? name : "the loss",
            (long long)t->skipped);
    return INF_OK;
}

static bool dumps(const Trainer *t, int64_t step) {
    return inf_option_given(t->s.options, OPT_dump_grads) && step == t->progress.first;
}

/* The gradients of the run's first step, averaged over the counted targets, before clipping. */
static InfCode dump_gradients(InfError *e, Trainer *t, const InfStepResult *r) {
    const char *path = inf_option_text(t->s.options, OPT_dump_grads, NULL);
    if (!dumps(t, r->input.step)) return INF_OK;
    inf_engine_fetch_all(&t->s.engine, PLAN_REGION_grad);
    TRY(t->s.engine.table->finish(e, t->s.engine.device));
    return inf_params_save(e, &t->s.params, &t->s.engine, path, INF_VALUES_gradients,
                           r->count > 0 ? 1.0f / r->count : 0.0f);
}

/* A batch without a counted target has loss 0 and no gradient; the user may not expect that. */
static void warn_uncounted(Trainer *t) {
    inf_progress_break(&t->progress);
    inf_say("%s: notice: step %lld has no counted target: its loss is 0\n", t->s.plan->model,
            (long long)t->state.step + 1);
    inf_metrics_warn(&t->metrics, "a step has no counted target");
}

static void submit_step(Trainer *t) {
    int64_t step = t->submitted, in_epoch = step % t->per_epoch;
    if (in_epoch == 0) inf_loader_begin(&t->s.data, (uint64_t)(step / t->per_epoch));
    if (t->sent.count == 0) t->finished_ms = inf_clock_ms();
    InfStepInput in = {
        .step = step,
        .position = (uint64_t)in_epoch * inf_global_batch(t->s.plan),
        .host = {inf_rate_at(&t->s.plan->train, t->lr, step, t->steps), t->decay, t->clip,
                 t->state.updates},
    };
    inf_step_submit(&t->sent, &t->s.engine, &t->s.data, &in);
    t->submitted++;
}

/* Ranks look at each other's memory behind the run's first, second, fourth, eighth.. step and the
 * last: nearly all of it is taken by then, and an exchange a step would cost time. */
static InfCode look_at_memory(InfError *e, Trainer *t) {
    int64_t done = t->state.step - t->progress.first;
    bool looks = (done & (done - 1)) == 0 || t->state.step == t->steps;
    return looks ? inf_session_use(e, &t->s, &t->memory) : INF_OK;
}

static void note_step(Trainer *t, const InfStepResult *r) {
    double now = inf_clock_ms(), ms = now - t->finished_ms;
    const char *device = t->s.engine.table->describe(t->s.engine.device);
    t->finished_ms = now;
    t->last_loss = r->loss;
    InfStepRecord record = {.step = t->state.step,
                            .loss = r->loss,
                            .lr = r->input.host.lr,
                            .ms = ms,
                            .units_per_s = units_per_s(t, ms),
                            .mfu = inf_work_share(t->s.plan, device, ms),
                            .has_norm = t->show_norm,
                            .grad_norm = r->grad_norm,
                            .memory = t->memory};
    inf_metrics_step(&t->metrics, &record);
    inf_progress_step(&t->progress, &record);
}

/* Waits for the oldest step on its way and does what follows from it. */
static InfCode finish_step(InfError *e, Trainer *t) {
    InfStepResult r;
    TRY(inf_step_finish(e, &t->sent, &t->s.engine, &r));
    TRY(dump_gradients(e, t, &r));
    if (r.count <= 0) warn_uncounted(t);
    if (r.applied)
        t->state.updates++;
    else
        TRY(handle_nonfinite(e, t, &r));
    t->state.step++;
    t->state.samples += inf_global_batch(t->s.plan);
    t->state.microbatches += (uint64_t)(t->s.plan->dp * t->s.plan->program[0].microbatches);
    TRY(look_at_memory(e, t));
    note_step(t, &r);
    if (t->s.engine.profile.on && t->state.step - t->progress.first == INF_TRACE_STEPS) {
        TRY(inf_session_trace_end(e, &t->s));
    }
    return INF_OK;
}

static int64_t save_every(const Trainer *t) {
    return inf_option_whole(t->s.options, OPT_save_every, 0);
}

static bool evaluates_after(const Trainer *t, int64_t step) {
    int64_t every = t->s.plan->train.eval_every;
    return every > 0 ? step % every == 0 : step % t->per_epoch == 0;
}

static bool checks_after(const Trainer *t, int64_t step) {
    int64_t every = inf_option_whole(t->s.options, OPT_check_replicas, 0);
    return every > 0 && step % every == 0;
}

/* Whether the weights of just this step are wanted, so that the next one has to wait. */
static bool pauses_after(const Trainer *t, int64_t step) {
    return step == t->steps || step % t->per_epoch == 0 || evaluates_after(t, step) ||
           (save_every(t) > 0 && step % save_every(t) == 0) || checks_after(t, step) ||
           dumps(t, step - 1) || t->s.engine.profile.on;
}

/* What happens between steps: the end of an epoch, evaluations, checkpoints. */
static InfCode between_steps(InfError *e, Trainer *t) {
    int64_t step = t->state.step;
    if (step % t->per_epoch == 0 && inf_metrics_begin(&t->metrics, "epoch")) {
        inf_json_put_int(&t->metrics.json, "epoch", step / t->per_epoch);
        inf_json_put_int(&t->metrics.json, "step", step);
        inf_metrics_end(&t->metrics);
    }
    if (checks_after(t, step)) TRY(inf_replicas_same(e, &t->s.params, &t->s.engine, step));
    if (evaluates_after(t, step)) TRY(evaluate(e, t));
    if (save_every(t) > 0 && step % save_every(t) == 0) TRY(save_checkpoint(e, t));
    return INF_OK;
}

/* The signal that ends the run; of several ranks, as of their last exchange. */
static int asked_to_stop(const Trainer *t) {
    const InfPipeline *p = t->s.engine.pipeline;
    return p ? p->stop : inf_signals_pending();
}

/* Submits a step, then finishes as many as have to be: all of them before a pause. */
static InfCode train_step(InfError *e, Trainer *t) {
    submit_step(t);
    bool pause = pauses_after(t, t->submitted);
    while (t->sent.count > (pause ? 0 : t->s.engine.table->late)) TRY(finish_step(e, t));
    return pause && !asked_to_stop(t) ? between_steps(e, t) : INF_OK;
}

static InfCode stop_by_signal(InfError *e, Trainer *t, int number) {
    if (t->s.options->group) t->s.options->group->agreed = true;
    while (t->sent.count > 0) TRY(finish_step(e, t));
    TRY(inf_session_trace_end(e, &t->s));
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
    if (inf_engine_leads(&t->s.engine)) TRY(inf_dir_make(e, t->out));
    char *path = inf_path_join(t->out, "model.safetensors");
    if (!path) return inf_fail(e, INF_IO, "out of memory");
    inf_engine_fetch_weights(&t->s.engine);
    InfCode code = t->s.engine.table->finish(e, t->s.engine.device);
    if (code == INF_OK)
        code = inf_params_save(e, &t->s.params, &t->s.engine, path, INF_VALUES_weights, 1.0f);
    if (code == INF_OK) fprintf(t->results, "weights: %s\n", path);
    free(path);
    return code;
}

static void put_end(Trainer *t, double seconds) {
    InfJson *j = &t->metrics.json;
    inf_json_put_int(j, "step", t->state.step);
    inf_json_put_float(j, "loss", t->last_loss);
    inf_json_put_float(j, "seconds", (float)seconds);
    inf_json_put_int(j, "skipped", t->skipped);
    inf_json_put_int(j, "planned_bytes", (int64_t)t->memory.used);
    inf_json_put_int(j, "measured_bytes", (int64_t)t->memory.reserved);
    if (t->memory.rank >= 0) inf_json_put_int(j, "mem_rank", t->memory.rank);
    const InfPipeline *p = t->s.engine.pipeline;
    if (p && p->replicas > 1) inf_json_put_int(j, "collectives", p->collectives);
}

static InfCode summarise(InfError *e, Trainer *t) {
    double seconds = (inf_clock_ms() - t->started_ms) / 1e3;
    char loss[32], rank[32];
    TRY(inf_session_use(e, &t->s, &t->memory));
    fprintf(t->results,
            "trained %lld steps in %.2f s: loss %s; memory planned %.1f MB, measured %.1f "
            "MB%s",
            (long long)(t->state.step - t->progress.first), seconds,
            inf_float_text(t->last_loss, loss), (double)t->memory.used / 1e6,
            (double)t->memory.reserved / 1e6, inf_use_rank(&t->memory, rank));
    if (t->skipped) fprintf(t->results, "; %lld steps skipped", (long long)t->skipped);
    fputc('\n', t->results);
    InfBubble bubble = {.steps = 0};
    if (t->s.engine.pipeline) TRY(inf_pipeline_bubble(e, t->s.engine.pipeline, &bubble));
    inf_bubble_print(&bubble, t->s.plan, t->results);
    fflush(t->results);
    if (!inf_metrics_begin(&t->metrics, "end")) return INF_OK;
    put_end(t, seconds);
    inf_bubble_put(&bubble, t->s.plan, &t->metrics.json);
    inf_metrics_end(&t->metrics);
    return INF_OK;
}
static InfCode loop(InfError *e, Trainer *t) {
    if (t->state.step % t->per_epoch != 0)
        inf_loader_begin(&t->s.data, (uint64_t)(t->state.step / t->per_epoch));
    while (t->submitted < t->steps && !asked_to_stop(t)) TRY(train_step(e, t));
    if (asked_to_stop(t)) return stop_by_signal(e, t, asked_to_stop(t));
    TRY(evaluate(e, t));
    if (asked_to_stop(t)) return stop_by_signal(e, t, asked_to_stop(t));
    TRY(inf_session_trace_end(e, &t->s));
    TRY(save_final(e, t));
    return summarise(e, t);
}

/* Another data order, or another model, is not a continuation. */
static InfCode check_resumed(InfError *e, const Trainer *t, const char *folder) {
    const InfState *was = &t->state;
    uint64_t global = inf_global_batch(t->s.plan);
    if (was->samples != (uint64_t)was->step * global)
        return inf_fail(e, INF_DATA,
                        "%s: was saved after %llu samples in %lld steps; this program "
                        "takes %llu a step",
                        folder, (unsigned long long)was->samples, (long long)was->step,
                        (unsigned long long)global);
    if (inf_option_given(t->s.options, OPT_seed) && was->seed != t->s.seed)
        return inf_fail(e, INF_USAGE, "--seed %llu differs from the seed %llu of %s",
                        (unsigned long long)t->s.seed, (unsigned long long)was->seed, folder);
    if (was->shuffle != t->s.data.shuffle)
        return inf_fail(e, INF_USAGE, "%s was trained %s --no-shuffle; go on in the same order",
                        folder, was->shuffle ? "without" : "with");
    if (was->set != t->s.data.count)
        return inf_fail(e, INF_DATA,
                        "%s: was trained on %llu samples, %s holds %llu; to train its weights on "
                        "other data, start with --init %s",
                        folder, (unsigned long long)was->set, t->s.data.path,
                        (unsigned long long)t->s.data.count, folder);
    return INF_OK;
}

/* --resume: weights, optimizer, position and seed from the newest good checkpoint. */
static InfCode resume(InfError *e, Trainer *t) {
    const char *from = inf_option_text(t->s.options, OPT_resume, t->out);
    char *folder = NULL;
    if (!from) return inf_fail(e, INF_USAGE, "--resume needs a folder: --resume=DIR, or --out DIR");
    InfCode code = inf_checkpoint_load(e, &t->s.params, &t->s.engine, from, &t->state, &folder);
    if (code == INF_OK) code = check_resumed(e, t, folder);
    if (code == INF_OK) {
        inf_engine_push_weights(&t->s.engine);
        inf_engine_push_all(&t->s.engine, PLAN_REGION_state);
        code = inf_replicas_same(e, &t->s.params, &t->s.engine, 0);
    }
    if (code == INF_OK) {
        t->s.seed = t->s.data.seed = t->s.engine.env.seed = t->state.seed;
        inf_say("%s: going on from %s\n", t->s.plan->model, folder);
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
    inf_checkpoint_clean(t->out);
    if (!inf_mul((uint64_t)plan->flat_bytes, (uint64_t)plan->nstate + 2, &bytes))
        bytes = UINT64_MAX;
    return inf_disk_check(e, t->out, bytes);
}

static InfCode prepare(InfError *e, Trainer *t) {
    const InfOptions *o = t->s.options;
    const PlanTrain *plan = &t->s.plan->train;
    const char *path = inf_says() ? inf_option_text(o, OPT_metrics, NULL) : NULL;
    t->results = path && strcmp(path, "-") == 0 ? stderr : stdout;
    t->lr = inf_option_real(o, OPT_lr, plan->lr);
    t->decay = inf_option_real(o, OPT_weight_decay, plan->decay);
    t->clip = inf_option_real(o, OPT_clip, plan->clip);
    t->show_norm = t->clip > 0 || inf_option_given(o, OPT_grad_norm);
    t->s.data.shuffle = !inf_option_given(o, OPT_no_shuffle);
    t->evaluated = -1;
    TRY(inf_metrics_open(e, path, inf_option_given(o, OPT_resume), &t->metrics));
    if (t->out && inf_engine_leads(&t->s.engine)) TRY(prepare_out(e, t));
    if (inf_option_given(o, OPT_resume))
        TRY(resume(e, t));
    else
        t->state =
            (InfState){.seed = t->s.seed, .set = t->s.data.count, .shuffle = t->s.data.shuffle};
    t->submitted = t->state.step;
    decide_length(t);
    announce(t);
    TRY(inf_session_trace(e, &t->s));
    t->started_ms = inf_clock_ms();
    inf_progress_open(&t->progress, inf_option_given(o, OPT_quiet) || !inf_says(), t->state.step,
                      t->steps, t->per_epoch, inf_unit_name(&t->s.plan->program[0]));
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
    TRY(inf_signals_install(e));
    TRY(inf_session_open_train(e, plan, o, &t.s));
    InfCode code = prepare(e, &t);
    if (code == INF_OK) code = loop(e, &t);
    inf_progress_break(&t.progress);
    InfCode closed = inf_metrics_close(e, &t.metrics);
    inf_session_close(&t.s);
    return code != INF_OK ? code : closed;
}
