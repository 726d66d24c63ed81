/* session.c - opens what a subcommand needs. */
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/check.h"
#include "runtime/file.h"
#include "runtime/warm.h"

static const char *const example_data = "/usr/share/datasets/fashion-mnist";

static InfCode session_new(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out) {
    *out = (InfSession){.plan = plan,
                        .options = o,
                        .seed = (uint64_t)inf_option_whole(o, OPT_seed, plan->train.seed)};
    return inf_warm_up(e, plan, (int)inf_option_whole(o, OPT_threads, 0), &out->resident_before,
                       &out->workspace_bytes);
}

static InfCode fail_absent(InfError *e, const Plan *plan, const char *command, const char *why) {
    bool here = access(example_data, F_OK) == 0;
    return inf_fail(e, INF_DATA, "%s\n  = hint: name another folder: %s %s --data %s%s",
                    why ? why : "no data", plan->model, command, here ? example_data : "DIR",
                    here ? ""
                         : " (Debian: apt install dataset-fashion-mnist, then /usr/share/"
                           "datasets/fashion-mnist)");
}

/* The evaluation set of a training run: another split of the same folder follows --data. */
static InfCode open_test(InfError *e, InfSession *s) {
    const PlanTrain *t = &s->plan->train;
    if (!t->eval_present || s->plan->nprogram < 2) return INF_OK;
    const char *given = inf_option_text(s->options, OPT_data, NULL), *path = NULL;
    if (given && t->data.path && t->eval_data.path && strcmp(t->data.path, t->eval_data.path) == 0)
        path = given;
    bool absent = false;
    char *why = NULL;
    InfCode code =
        inf_loader_open(e, &t->eval_data, &s->plan->program[1], path, &s->test, &absent, &why);
    if (code == INF_OK && absent)
        fprintf(stderr, "%s: notice: no evaluation set, so no evaluation: %s\n", s->plan->model,
                why ? why : "");
    s->has_test = code == INF_OK && !absent;
    free(why);
    return code;
}

static InfCode open_data(InfError *e, InfSession *s, const PlanData *what,
                         const PlanProgram *program, const char *command) {
    bool absent = false;
    char *why = NULL;
    InfCode code = inf_loader_open(e, what, program, inf_option_text(s->options, OPT_data, NULL),
                                   &s->data, &absent, &why);
    if (code == INF_OK && absent) code = fail_absent(e, s->plan, command, why);
    free(why);
    s->data.seed = s->seed;
    return code;
}

static InfCode open_memory(InfError *e, InfSession *s) {
    TRY(inf_params_open(e, s->plan, &s->params));
    TRY(inf_engine_open(e, s->plan, (int)inf_option_whole(s->options, OPT_threads, 0), s->seed,
                        &s->engine));
    if (!inf_add(s->engine.memory_bytes, s->workspace_bytes, &s->planned_bytes) ||
        !inf_add(s->planned_bytes, s->data.bytes, &s->planned_bytes) ||
        !inf_add(s->planned_bytes, s->test.bytes, &s->planned_bytes))
        return inf_fail(e, INF_IO, "the data does not fit into 64 bits of memory");
    return INF_OK;
}

static InfCode check_count(InfError *e, const InfSession *s) {
    uint64_t need = inf_global_batch(s->plan);
    if (s->data.count < need)
        return inf_fail(e, INF_DATA, "%s: holds %llu samples; one step needs %llu", s->data.path,
                        (unsigned long long)s->data.count, (unsigned long long)need);
    return INF_OK;
}

/* Releases everything when opening failed half way. */
static InfCode finish_open(InfSession *s, InfCode code) {
    if (code != INF_OK) inf_session_close(s);
    return code;
}

static InfCode open_train(InfError *e, InfSession *s, const char *command) {
    TRY(open_data(e, s, &s->plan->train.data, &s->plan->program[0], command));
    TRY(check_count(e, s));
    if (s->options->command == CMD_train) TRY(open_test(e, s));
    TRY(open_memory(e, s));
    const char *init = inf_option_text(s->options, OPT_init, NULL);
    inf_params_init(&s->params, &s->engine, s->seed);
    return init ? inf_params_load(e, &s->params, &s->engine, init) : INF_OK;
}

InfCode inf_session_open_train(InfError *e, const Plan *plan, const InfOptions *o,
                               InfSession *out) {
    TRY(session_new(e, plan, o, out));
    return finish_open(out, open_train(e, out, o->command == CMD_verify ? "verify" : "train"));
}

static InfCode open_eval(InfError *e, InfSession *s) {
    const Plan *plan = s->plan;
    if (plan->nprogram < 2)
        return inf_fail(e, INF_USAGE,
                        "%s has no evaluation program; add a section: eval { data = "
                        "mnist(\"DIR\", split = \"test\"); B = 1000 }",
                        plan->file);
    const PlanData *what = plan->train.eval_present ? &plan->train.eval_data : &plan->train.data;
    TRY(open_data(e, s, what, &plan->program[1], "eval"));
    TRY(open_memory(e, s));
    inf_params_init(&s->params, &s->engine, s->seed);
    return INF_OK;
}

InfCode inf_session_open_eval(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out) {
    TRY(session_new(e, plan, o, out));
    return finish_open(out, open_eval(e, out));
}

static InfCode open_synthetic(InfError *e, InfSession *s) {
    /* Several different batches, so that no cache holds a whole run. */
    uint64_t samples = 0;
    if (!inf_mul(inf_global_batch(s->plan), 8, &samples))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    TRY(inf_loader_synthetic(e, &s->plan->program[0], samples, s->seed, &s->data));
    TRY(open_memory(e, s));
    inf_params_init(&s->params, &s->engine, s->seed);
    return INF_OK;
}

InfCode inf_session_open_synthetic(InfError *e, const Plan *plan, const InfOptions *o,
                                   InfSession *out) {
    TRY(session_new(e, plan, o, out));
    return finish_open(out, open_synthetic(e, out));
}

void inf_session_close(InfSession *s) {
    inf_engine_close(&s->engine);
    inf_params_close(&s->params);
    inf_loader_close(&s->data);
    inf_loader_close(&s->test);
}

uint64_t inf_session_measured(const InfSession *s) {
    uint64_t peak = inf_memory_now().peak;
    return peak > s->resident_before ? peak - s->resident_before : 0;
}

char *inf_weights_path(const char *path) {
    struct stat st;
    char *plain = inf_path_join(path, "model.safetensors");
    char *latest = inf_path_join(path, "latest");
    char name[64] = "";
    char *out = NULL;
    FILE *in =
        stat(path, &st) == 0 && S_ISDIR(st.st_mode) && plain && access(plain, F_OK) != 0 && latest
            ? fopen(latest, "re")
            : NULL;
    if (in) {
        if (fscanf(in, "%63[A-Za-z0-9-]", name) != 1) name[0] = '\0';
        fclose(in);
    }
    out = name[0] ? inf_path_join(path, name) : strdup(path);
    free(plain);
    free(latest);
    return out;
}
