/* info.c - what an executable knows of itself: layout, plan, memory, kernels. */
#include <stdlib.h>
#include <string.h>

#include "runtime/bench.h"
#include "runtime/json.h"
#include "runtime/kernels.h"

enum { BUFFERS_SHOWN = 10, TIMED_STEPS = 20 };

static const char *const region_names[PLAN_REGION_count] = {
    [PLAN_REGION_none] = "none",         [PLAN_REGION_param] = "parameters",
    [PLAN_REGION_grad] = "gradients",    [PLAN_REGION_state] = "optimizer",
    [PLAN_REGION_copy] = "copy in bf16", [PLAN_REGION_scalar] = "scalars",
    [PLAN_REGION_data] = "batch",        [PLAN_REGION_slot] = "saved",
    [PLAN_REGION_scratch] = "scratch",   [PLAN_REGION_cache] = "cache",
    [PLAN_REGION_message] = "messages",  [PLAN_REGION_sum] = "sums",
};

static const char *const optimizer_names[] = {"sgd", "adam", "adamw"};
static const char *const schedule_names[] = {"constant", "linear", "cosine", "inverse_sqrt", "wsd"};

/* What `info` prints, gathered once. */
typedef struct Facts {
    const Plan *plan;
    int64_t parameters;
    int tensors;
    int64_t region[PLAN_REGION_count]; /* of a training run */
    uint64_t arena_bytes;
    InfTraffic traffic;
    const InfSession *timed; /* NULL without --time */
    double ms;
} Facts;

/* A step of all ranks. */
static InfCode add_traffic(InfError *e, const Plan *plan, InfTraffic *sum) {
    int64_t *calls = calloc(plan->nkernel + 1, sizeof *calls);
    if (!calls) return inf_fail(e, INF_IO, "out of memory");
    inf_kernels_count(plan, calls);
    InfTraffic own = inf_kernels_total(plan, calls);
    free(calls);
    sum->bytes += own.bytes;
    sum->flops += own.flops;
    return INF_OK;
}

static InfCode gather(InfError *e, const Plan *plan, Facts *f) {
    InfParams params;
    InfCode code = inf_params_open(e, plan, &params);
    for (int i = 0; code == INF_OK && i < params.count; i++) f->parameters += params.param[i].count;
    f->tensors = params.count;
    inf_params_close(&params);
    TRY(code);
    for (int r = 0; r < plan->ranks; r++) TRY(add_traffic(e, plan - plan->rank + r, &f->traffic));
    f->traffic.bytes *= inf_plan_replicas(plan);
    f->traffic.flops *= inf_plan_replicas(plan);
    inf_train_regions(plan, false, f->region);
    return inf_engine_bytes(e, f->region, &f->arena_bytes);
}

/* What training takes on one rank. */
typedef struct RankMemory {
    int64_t region[PLAN_REGION_count], total;
} RankMemory;

static RankMemory rank_memory(const Plan *plan, int rank) {
    RankMemory m = {.total = 0};
    inf_train_regions(plan - plan->rank + rank, false, m.region);
    for (int k = PLAN_REGION_param; k < PLAN_REGION_recv; k++) m.total += m.region[k];
    return m;
}

static bool any_has(const Plan *plan, int region) {
    for (int r = 0; r < plan->ranks; r++)
        if (rank_memory(plan, r).region[region] > 0) return true;
    return false;
}

/* "2", or with three replicas "6-8": the processes that run one rank of the pipeline. */
static const char *rank_text(const Plan *plan, int rank, char out[32]) {
    int replicas = inf_plan_replicas(plan), first = rank * replicas;
    snprintf(out, 32, replicas > 1 ? "%d-%d" : "%d", first, first + replicas - 1);
    return out;
}

static void print_chunks(const Plan *plan, int rank) {
    for (uint32_t c = 0; c < plan->nstage; c++) {
        const PlanStage *s = &plan->stage[c];
        char text[32];
        if (s->rank != rank) continue;
        printf("  rank %-3s chunk %-3u %5.1f%%  ", rank_text(plan, rank, text), c, 100 * s->share);
        if (!s->first)
            puts("no layer");
        else if (strcmp(s->first, s->last) == 0)
            puts(s->first);
        else
            printf("%s .. %s\n", s->first, s->last);
    }
}

/* What replicas add up in a step, one collective each. */
static void print_buckets(const Plan *plan) {
    if (plan->nbucket == 0) return;
    printf("\nbuckets of gradients, each summed over %d replicas once a step\n"
           "  rank bucket  chunk          bytes\n",
           plan->dp);
    for (int r = 0; r < plan->ranks; r++) {
        const Plan *own = plan - plan->rank + r;
        char text[32];
        for (uint32_t i = 0; i < own->nbucket; i++)
            printf("  %4s %6u %6d %14lld\n", rank_text(plan, r, text), i, own->bucket[i].local,
                   (long long)own->bucket[i].bytes);
    }
}

/* What each rank of a pipeline holds, and how much memory that takes. */
static void print_ranks(const Plan *plan) {
    if (inf_plan_processes(plan) < 2) return;
    printf("\nranks, share of the cost\n");
    for (int r = 0; r < plan->ranks; r++) print_chunks(plan, r);
    printf("\nmemory by rank, planned bytes without the data set\n  rank           peak");
    for (int k = PLAN_REGION_param; k < PLAN_REGION_recv; k++)
        if (any_has(plan, k)) printf(" %14s", region_names[k]);
    for (int r = 0; r < plan->ranks; r++) {
        RankMemory m = rank_memory(plan, r);
        char text[32];
        printf("\n  %4s %14lld", rank_text(plan, r, text), (long long)m.total);
        for (int k = PLAN_REGION_param; k < PLAN_REGION_recv; k++)
            if (any_has(plan, k)) printf(" %14lld", (long long)m.region[k]);
    }
    printf("\n");
    print_buckets(plan);
}

static void print_settings(const Plan *plan) {
    printf("fixed at build time:");
    for (uint32_t i = 0; i < plan->nsetting; i++)
        printf(" %s=%s", plan->setting[i].key, plan->setting[i].value);
    printf("\n");
}

/* zero = 1: what a replica keeps of what they share, and for how many elements. */
static void print_shared(const Plan *plan) {
    int64_t elems = 0, bytes = plan->region_bytes[PLAN_REGION_state];
    for (uint32_t i = 0; i < plan->nshard; i++) elems += plan->shard[i].bytes / 4;
    if (elems == 0) return;
    printf("  optimizer: 1/%d of %lld elements with padding, %.2f bytes each: states%s\n",
           inf_plan_replicas(plan), (long long)(elems * inf_plan_replicas(plan)),
           (double)bytes / (double)elems, inf_plan_owns(plan) ? " and f32 weights" : "");
}

static void print_memory(const Facts *f) {
    const Plan *plan = f->plan;
    printf("\nmemory%s, planned: %llu bytes and the data set\n",
           inf_plan_processes(plan) > 1 ? " of rank 0" : "", (unsigned long long)f->arena_bytes);
    for (int r = PLAN_REGION_param; r < PLAN_REGION_recv; r++)
        printf("  %-10s %14lld\n", region_names[r], (long long)f->region[r]);
    print_shared(plan);
    if (f->timed)
        printf("  with synthetic data: planned %llu, measured %llu\n",
               (unsigned long long)f->timed->planned_bytes,
               (unsigned long long)inf_session_measured(f->timed));
    printf("\nlargest buffers\n");
    for (uint32_t i = 0; i < plan->nbuffer && i < BUFFERS_SHOWN; i++) {
        const PlanBuffer *b = &plan->buffer[i];
        printf("  %14lld  %-10s %s (%s:%s)\n", (long long)b->bytes, region_names[b->region],
               b->what, plan->file, b->place ? b->place : "?");
    }
}

static InfCode print_text(InfError *e, const Facts *f) {
    const Plan *plan = f->plan;
    const PlanTrain *t = &plan->train;
    printf("%s, built from %s by infinic %s for %s (%s), plan %016llx\n", plan->model, plan->file,
           plan->compiler, plan->target,
           plan->cpu_features && *plan->cpu_features ? plan->cpu_features : "any processor",
           (unsigned long long)plan->hash);
    printf("parameters: %lld in %d tensors, %s\n", (long long)f->parameters, f->tensors,
           t->dtype ? t->dtype : "f32");
    printf("layout: dp %d, tp %d, pp %d, vpp %d, schedule %s\n", plan->dp, plan->tp, plan->pp,
           plan->vpp, plan->pipeline ? plan->pipeline : "none");
    printf("batch: %llu = %d x %lld x %lld (replicas, microbatches, B)\n",
           (unsigned long long)inf_global_batch(plan), plan->dp,
           (long long)plan->program[0].microbatches, (long long)plan->program[0].batch);
    printf("optimizer: %s, lr %g %s\n", optimizer_names[t->optimizer], t->lr,
           schedule_names[t->schedule]);
    print_settings(plan);
    if (plan->schedule_summary) printf("schedule: %s\n", plan->schedule_summary);
    if (plan->schedule_estimate) printf("  with %s\n", plan->schedule_estimate);
    print_ranks(plan);
    print_memory(f);
    printf("\na step: %lld FLOPs, at least %lld bytes", (long long)f->traffic.flops,
           (long long)f->traffic.bytes);
    if (f->timed)
        printf(", %.4f ms = %.2f GFLOP/s on %s", f->ms, (double)f->traffic.flops / f->ms / 1e6,
               f->timed->engine.table->describe(f->timed->engine.device));
    printf("\n");
    return inf_kernels_print(e, plan, f->timed ? &f->timed->engine : NULL, TIMED_STEPS, stdout);
}

static void json_buckets(const Plan *plan, InfJson *j) {
    if (plan->nbucket == 0) return;
    inf_json_key(j, "buckets");
    inf_json_open(j, '[');
    for (uint32_t i = 0; i < plan->nbucket; i++) {
        inf_json_open(j, '{');
        inf_json_put_int(j, "chunk", plan->bucket[i].local);
        inf_json_put_int(j, "bytes", plan->bucket[i].bytes);
        inf_json_close(j);
    }
    inf_json_close(j);
}

/* Of the pipeline; each is run by all replicas. */
static void json_ranks(const Plan *plan, InfJson *j) {
    if (inf_plan_processes(plan) < 2) return;
    inf_json_key(j, "ranks");
    inf_json_open(j, '[');
    for (int r = 0; r < plan->ranks; r++) {
        RankMemory m = rank_memory(plan, r);
        inf_json_open(j, '{');
        inf_json_put_int(j, "rank", r);
        inf_json_put_int(j, "planned_bytes", m.total);
        inf_json_key(j, "regions");
        inf_json_open(j, '{');
        for (int k = PLAN_REGION_param; k < PLAN_REGION_recv; k++)
            inf_json_put_int(j, region_names[k], m.region[k]);
        inf_json_close(j);
        inf_json_key(j, "chunks");
        inf_json_open(j, '[');
        for (uint32_t c = 0; c < plan->nstage; c++) {
            const PlanStage *s = &plan->stage[c];
            if (s->rank != r) continue;
            inf_json_open(j, '{');
            inf_json_put_int(j, "chunk", c);
            inf_json_put_text(j, "first", s->first);
            inf_json_put_text(j, "last", s->last);
            inf_json_put_double(j, "share", s->share);
            inf_json_close(j);
        }
        inf_json_close(j);
        json_buckets(plan - plan->rank + r, j);
        inf_json_close(j);
    }
    inf_json_close(j);
}

static void json_memory(const Facts *f, InfJson *j) {
    const Plan *plan = f->plan;
    inf_json_put_int(j, "arena_bytes", (int64_t)f->arena_bytes);
    inf_json_key(j, "regions");
    inf_json_open(j, '{');
    for (int r = PLAN_REGION_param; r < PLAN_REGION_recv; r++)
        inf_json_put_int(j, region_names[r], f->region[r]);
    inf_json_close(j);
    inf_json_key(j, "buffers");
    inf_json_open(j, '[');
    for (uint32_t i = 0; i < plan->nbuffer && i < BUFFERS_SHOWN; i++) {
        inf_json_open(j, '{');
        inf_json_put_text(j, "what", plan->buffer[i].what);
        inf_json_put_text(j, "place", plan->buffer[i].place);
        inf_json_put_text(j, "region", region_names[plan->buffer[i].region]);
        inf_json_put_int(j, "bytes", plan->buffer[i].bytes);
        inf_json_close(j);
    }
    inf_json_close(j);
    if (f->timed) {
        inf_json_put_int(j, "planned_bytes", (int64_t)f->timed->planned_bytes);
        inf_json_put_int(j, "measured_bytes", (int64_t)inf_session_measured(f->timed));
        inf_json_put_double(j, "ms_per_step", f->ms);
    }
}

static InfCode print_json(InfError *e, const Facts *f) {
    const Plan *plan = f->plan;
    char hash[17];
    InfJson j;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)plan->hash);
    inf_json_init(&j, stdout);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "model", plan->model);
    inf_json_put_text(&j, "file", plan->file);
    inf_json_put_text(&j, "compiler", plan->compiler);
    inf_json_put_text(&j, "target", plan->target);
    inf_json_put_text(&j, "plan", hash);
    inf_json_put_int(&j, "parameters", f->parameters);
    inf_json_put_int(&j, "tensors", f->tensors);
    inf_json_put_int(&j, "dp", plan->dp);
    inf_json_put_int(&j, "tp", plan->tp);
    inf_json_put_int(&j, "pp", plan->pp);
    inf_json_put_int(&j, "vpp", plan->vpp);
    inf_json_put_int(&j, "microbatches", plan->program[0].microbatches);
    inf_json_put_int(&j, "global_batch", (int64_t)inf_global_batch(plan));
    inf_json_put_text(&j, "schedule", plan->schedule_summary);
    inf_json_key(&j, "settings");
    inf_json_open(&j, '{');
    for (uint32_t i = 0; i < plan->nsetting; i++)
        inf_json_put_text(&j, plan->setting[i].key, plan->setting[i].value);
    inf_json_close(&j);
    if (plan->schedule_estimate) inf_json_put_text(&j, "estimate", plan->schedule_estimate);
    json_ranks(plan, &j);
    json_memory(f, &j);
    inf_json_put_int(&j, "flops_per_step", f->traffic.flops);
    inf_json_put_int(&j, "bytes_per_step", f->traffic.bytes);
    inf_json_key(&j, "kernels");
    InfCode code = inf_kernels_json(e, plan, f->timed ? &f->timed->engine : NULL, TIMED_STEPS, &j);
    inf_json_close(&j);
    putchar('\n');
    return code;
}

static InfCode print(InfError *e, const InfOptions *o, const Facts *f) {
    return inf_option_given(o, OPT_json) ? print_json(e, f) : print_text(e, f);
}

InfCode inf_info(InfError *e, const Plan *plan, const InfOptions *o) {
    Facts f = {.plan = plan};
    TRY(gather(e, plan, &f));
    if (!inf_option_given(o, OPT_time)) return print(e, o, &f);
    InfSession s;
    TRY(inf_session_open_synthetic(e, plan, o, &s));
    InfCode code = inf_bench_steps(e, &s, TIMED_STEPS, &f.ms);
    if (code == INF_OK) code = inf_bench_kernels(e, &s, TIMED_STEPS);
    f.timed = &s;
    if (code == INF_OK) code = print(e, o, &f);
    inf_session_close(&s);
    return code;
}
