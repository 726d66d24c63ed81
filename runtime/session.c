/* session.c - opens what a subcommand needs. */
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/check.h"
#include "runtime/feed.h"
#include "runtime/file.h"
#include "runtime/pipeline.h"
#include "runtime/replicas.h"
#include "runtime/shards.h"
#include "runtime/warm.h"

static const char *const example_data = "/usr/share/datasets/fashion-mnist";

static InfCode session_new(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out) {
    int threads = (int)inf_option_whole(o, OPT_threads, 0);
    *out = (InfSession){.plan = plan,
                        .options = o,
                        .seed = (uint64_t)inf_option_whole(o, OPT_seed, plan->train.seed)};
    TRY(inf_warm_messages(e, o->group));
    TRY(inf_warm_up(e, threads, &out->resident_before, &out->workspace_bytes));
    TRY(inf_engine_start(e, plan, o->group, threads, out->seed, &out->engine));
    if (inf_option_given(o, OPT_no_graph)) out->engine.use_graphs = false;
    if (o->command == CMD_eval)
        inf_engine_goes_forward(&out->engine, "eval", NULL);
    else if (o->command == CMD_generate)
        inf_engine_goes_forward(&out->engine, "prefill.", "decode");
    else
        inf_engine_trains(&out->engine, o->command == CMD_verify);
    return INF_OK;
}

static InfCode fail_absent(InfError *e, const Plan *plan, const PlanData *what, const char *command,
                           const char *why) {
    bool here = access(example_data, F_OK) == 0;
    if (what->kind == PLAN_DATA_tokens)
        return inf_fail(e, INF_DATA,
                        "%s\n  = hint: name another file: %s %s --data FILE; tokens are made of a "
                        "text with: infinic tokenize TEXT -o %s",
                        why ? why : "no data", plan->model, command, what->path);
    return inf_fail(e, INF_DATA, "%s\n  = hint: name another folder: %s %s --data %s%s",
                    why ? why : "no data", plan->model, command, here ? example_data : "DIR",
                    here ? ""
                         : " (Debian: apt install dataset-fashion-mnist, then /usr/share/"
                           "datasets/fashion-mnist)");
}

/* Whether a chunk of this rank reads samples. */
static bool reads_samples(const PlanProgram *program) {
    for (uint32_t i = 0; i < program->ninput; i++)
        if (program->input[i].local >= 0) return true;
    return false;
}

/* Of several ranks those in the middle of a pipeline need no samples, but all need to know how many
 * there are: rank 0, which has the first chunk, tells. */
static bool is_told(const InfSession *s, const PlanProgram *program) {
    return s->engine.pipeline && s->engine.table->shared && !reads_samples(program);
}

typedef struct SetFacts {
    uint64_t count, hash;
    uint32_t kind, present;
} SetFacts;

static InfCode share_facts(InfError *e, InfSession *s, const PlanProgram *program, InfLoader *l,
                           bool *present) {
    SetFacts facts = {l->count, 0, l->kind, *present};
    if (!s->engine.pipeline || !s->engine.table->shared) return INF_OK;
    if (inf_engine_leads(&s->engine)) facts.hash = inf_loader_hash(l);
    TRY(s->plan->transport->broadcast(e, 0, &facts, sizeof facts));
    *present = facts.present != 0;
    if (!is_told(s, program)) return INF_OK;
    l->count = facts.count;
    l->hash = facts.hash;
    l->kind = (PlanDataKind)facts.kind;
    return INF_OK;
}

/* The evaluation set of a training run: another split of the same folder follows --data. */
static InfCode open_test(InfError *e, InfSession *s) {
    const PlanTrain *t = &s->plan->train;
    const PlanProgram *eval = inf_program_find(s->plan, "eval");
    if (!t->eval_present || !eval) return INF_OK;
    const char *given = inf_option_text(s->options, OPT_data, NULL), *path = NULL;
    if (given && t->data.path && t->eval_data.path && strcmp(t->data.path, t->eval_data.path) == 0)
        path = given;
    bool absent = false;
    char *why = NULL;
    InfCode code = INF_OK;
    if (!is_told(s, eval))
        code = inf_loader_open(e, &t->eval_data, eval, path, &s->test, &absent, &why);
    if (code == INF_OK && absent)
        inf_say("%s: notice: no evaluation set, so no evaluation: %s\n", s->plan->model,
                why ? why : "");
    s->has_test = code == INF_OK && !absent;
    free(why);
    return code == INF_OK ? share_facts(e, s, eval, &s->test, &s->has_test) : code;
}

static InfCode open_data(InfError *e, InfSession *s, const PlanData *what,
                         const PlanProgram *program, const char *command) {
    bool absent = false, present = true;
    char *why = NULL;
    const char *path = inf_option_text(s->options, OPT_data, NULL);
    InfCode code = INF_OK;
    if (!is_told(s, program))
        code = inf_loader_open(e, what, program, path, &s->data, &absent, &why);
    if (code == INF_OK && absent) code = fail_absent(e, s->plan, what, command, why);
    free(why);
    if (code == INF_OK) code = share_facts(e, s, program, &s->data, &present);
    if (code == INF_OK && is_told(s, program)) s->data.path = path ? path : what->path;
    s->data.seed = s->seed;
    return code;
}

/* What data sets take of a device's own memory: those that fit beside the plan live there. */
enum { FEEDS = 2 };
static const uint64_t spare_bytes = (uint64_t)512 << 20; /* left for graphs and other programs */

static InfCode plan_feeds(InfError *e, InfSession *s, uint64_t bytes[FEEDS]) {
    InfEngine *m = &s->engine;
    bool training = s->options->command != CMD_eval;
    uint64_t arena = 0, left = m->table->available(m->device);
    uint64_t own = inf_global_batch(s->plan) / (uint64_t)inf_plan_replicas(s->plan);
    uint64_t batch = training ? own : (uint64_t)s->plan->program[1].batch;
    bool stream = inf_option_given(s->options, OPT_stream);
    TRY(inf_engine_bytes(e, s->engine.bytes, &arena));
    if (!inf_add(arena, spare_bytes, &arena)) arena = UINT64_MAX;
    left = left > arena ? left - arena : 0;
    TRY(inf_feed_plan(e, &s->data, batch, left, stream, &bytes[0]));
    left = left > bytes[0] ? left - bytes[0] : 0;
    if (!s->has_test) return INF_OK;
    batch = (uint64_t)s->plan->program[1].batch;
    return inf_feed_plan(e, &s->test, batch, left, stream, &bytes[1]);
}

static InfCode open_device_memory(InfError *e, InfSession *s) {
    uint64_t bytes[FEEDS] = {0, 0}, extra = 0;
    InfEngine *m = &s->engine;
    TRY(plan_feeds(e, s, bytes));
    if (!inf_add(bytes[0], bytes[1], &extra))
        return inf_fail(e, INF_IO, "the data does not fit into 64 bits of memory");
    TRY(inf_engine_take(e, m, extra));
    TRY(inf_feed_place(e, &s->data, m, m->extra));
    if (s->has_test) TRY(inf_feed_place(e, &s->test, m, m->extra + bytes[0]));
    s->planned_bytes = m->memory_bytes;
    return INF_OK;
}

static InfCode open_memory(InfError *e, InfSession *s) {
    TRY(inf_params_open(e, s->plan, &s->params));
    if (!s->engine.table->shared) return open_device_memory(e, s);
    TRY(inf_engine_take(e, &s->engine, 0));
    if (!inf_add(s->engine.memory_bytes, s->workspace_bytes, &s->planned_bytes) ||
        !inf_add(s->planned_bytes, s->data.bytes, &s->planned_bytes) ||
        !inf_add(s->planned_bytes, s->test.bytes, &s->planned_bytes))
        return inf_fail(e, INF_IO, "the data does not fit into 64 bits of memory");
    return INF_OK;
}

/* The seed's weights, or those of a file. */
static InfCode open_weights(InfError *e, InfSession *s, const char *init) {
    inf_params_init(&s->params, &s->engine, s->seed);
    char *path = init ? inf_weights_path(init) : NULL;
    InfCode code = init && !path ? inf_fail(e, INF_IO, "out of memory") : INF_OK;
    if (path) code = inf_params_load(e, &s->params, &s->engine, path);
    free(path);
    if (code == INF_OK) inf_engine_push_weights(&s->engine);
    return code == INF_OK ? inf_replicas_same(e, &s->params, &s->engine, 0) : code;
}

InfCode inf_session_weights(InfError *e, InfSession *s) {
    const char *given = inf_option_text(s->options, OPT_weights, NULL);
    if (!given) {
        inf_say("%s: notice: no --weights, so these are the initial weights of seed %llu\n",
                s->plan->model, (unsigned long long)s->seed);
        return INF_OK;
    }
    char *path = inf_weights_path(given);
    InfCode code = path ? inf_params_load(e, &s->params, &s->engine, path)
                        : inf_fail(e, INF_IO, "out of memory");
    free(path);
    if (code == INF_OK) inf_engine_push_weights(&s->engine);
    return code == INF_OK ? inf_replicas_same(e, &s->params, &s->engine, 0) : code;
}

static InfCode check_count(InfError *e, const InfSession *s) {
    const PlanProgram *train = &s->plan->program[0];
    uint64_t need = inf_global_batch(s->plan), tokens = 0;
    if (s->data.count >= need) return INF_OK;
    if (s->data.kind != PLAN_DATA_tokens)
        return inf_fail(e, INF_DATA, "%s: holds %llu samples; one step needs %llu", s->data.path,
                        (unsigned long long)s->data.count, (unsigned long long)need);
    bool fits = inf_mul(need, inf_units(train), &tokens) && inf_add(tokens, 1, &tokens);
    INF_ASSERT(fits);
    return inf_fail(e, INF_DATA,
                    "%s: holds %llu tokens, so %llu samples of T = %llu; one step needs %llu "
                    "tokens: %llu samples and the token behind them",
                    s->data.path, (unsigned long long)s->data.tokens.tokens,
                    (unsigned long long)s->data.count, (unsigned long long)inf_units(train),
                    (unsigned long long)tokens, (unsigned long long)need);
}

/* Releases everything when opening failed half way. */
static InfCode finish_open(InfSession *s, InfCode code) {
    if (code != INF_OK) inf_session_close(s);
    return code;
}

/* Ranks on several hosts may find other files under the same names. */
static InfCode compare_data(InfError *e, const InfSession *s) {
    struct InfGroup *group = s->options->group;
    if (!group) return INF_OK;
    uint64_t hash = inf_loader_hash(&s->data) ^ (inf_loader_hash(&s->test) << 1);
    return inf_group_same(e, group, "data", hash);
}

static InfCode open_train(InfError *e, InfSession *s, const char *command) {
    TRY(open_data(e, s, &s->plan->train.data, &s->plan->program[0], command));
    TRY(check_count(e, s));
    s->data.training = true;
    if (s->options->command == CMD_train) TRY(open_test(e, s));
    TRY(compare_data(e, s));
    TRY(open_memory(e, s));
    return open_weights(e, s, inf_option_text(s->options, OPT_init, NULL));
}

InfCode inf_session_open_train(InfError *e, const Plan *plan, const InfOptions *o,
                               InfSession *out) {
    const char *command = o->command == CMD_verify ? "verify" : "train";
    InfCode code = session_new(e, plan, o, out);
    return finish_open(out, code == INF_OK ? open_train(e, out, command) : code);
}

static InfCode open_eval(InfError *e, InfSession *s) {
    const Plan *plan = s->plan;
    if (!inf_program_find(plan, "eval"))
        return inf_fail(e, INF_USAGE,
                        "%s has no evaluation program; add a section: eval { data = "
                        "mnist(\"DIR\", split = \"test\"); B = 1000 }",
                        plan->file);
    const PlanData *what = plan->train.eval_present ? &plan->train.eval_data : &plan->train.data;
    TRY(open_data(e, s, what, &plan->program[1], "eval"));
    TRY(compare_data(e, s));
    TRY(open_memory(e, s));
    return open_weights(e, s, NULL);
}

InfCode inf_session_open_eval(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out) {
    InfCode code = session_new(e, plan, o, out);
    return finish_open(out, code == INF_OK ? open_eval(e, out) : code);
}

/* A file holds every weight, so the seed's are made only where there is none. */
static InfCode open_generate(InfError *e, InfSession *s) {
    TRY(open_memory(e, s));
    if (!inf_option_given(s->options, OPT_weights)) TRY(open_weights(e, s, NULL));
    return inf_session_weights(e, s);
}

InfCode inf_session_open_generate(InfError *e, const Plan *plan, const InfOptions *o,
                                  InfSession *out) {
    InfCode code = session_new(e, plan, o, out);
    return finish_open(out, code == INF_OK ? open_generate(e, out) : code);
}

static InfCode open_synthetic(InfError *e, InfSession *s) {
    /* Several different batches, so that no cache holds a whole run. */
    uint64_t samples = 0;
    if (!inf_mul(inf_global_batch(s->plan), 8, &samples))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    TRY(inf_loader_synthetic(e, &s->plan->program[0], samples, s->seed, &s->data));
    TRY(open_memory(e, s));
    return open_weights(e, s, NULL);
}

InfCode inf_session_open_synthetic(InfError *e, const Plan *plan, const InfOptions *o,
                                   InfSession *out) {
    InfCode code = session_new(e, plan, o, out);
    return finish_open(out, code == INF_OK ? open_synthetic(e, out) : code);
}

void inf_session_close(InfSession *s) {
    inf_feed_close(&s->data);
    inf_feed_close(&s->test);
    inf_engine_close(&s->engine);
    inf_params_close(&s->params);
    inf_loader_close(&s->data);
    inf_loader_close(&s->test);
}

uint64_t inf_session_measured(const InfSession *s) {
    if (!s->engine.table->shared) return s->engine.table->measured(s->engine.device);
    uint64_t peak = inf_memory_now().peak;
    return peak > s->resident_before ? peak - s->resident_before : 0;
}

InfCode inf_session_use(InfError *e, const InfSession *s, InfUse *out) {
    const InfTransport *t = inf_engine_transport(&s->engine);
    InfUse own = {s->planned_bytes, inf_session_measured(s), t ? s->options->group->rank : -1};
    *out = own;
    if (!t) return INF_OK;
    int count = inf_plan_processes(s->plan);
    InfUse *all = calloc((size_t)count, sizeof *all);
    InfCode code = all ? t->gather(e, &own, sizeof own, all) : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) *out = all[0];
    for (int r = 1; code == INF_OK && r < count; r++)
        if (all[r].reserved > out->reserved) *out = all[r];
    free(all);
    return code;
}

InfCode inf_session_trace(InfError *e, InfSession *s) {
    const char *path = inf_option_text(s->options, OPT_trace, NULL);
    InfEngine *m = &s->engine;
    if (!path) return INF_OK;
    TRY(inf_profile_open(e, s->plan, m->table, m->device, &m->profile));
    return inf_profile_trace(e, &m->profile, m->replica, path);
}

/* The last step's weights may still be on their way. */
InfCode inf_session_trace_end(InfError *e, InfSession *s) {
    InfEngine *m = &s->engine;
    if (m->table->shared && inf_shards_on(m->pipeline)) inf_shards_await(m->pipeline, -1);
    inf_profile_stop(&m->profile);
    return inf_trace_end(e, &m->profile.trace);
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
