/* pipeline.c - what of a rank's messages is the same on every device; see pipeline.h. */
#include "runtime/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/shards.h"
#include "runtime/signals.h"
#include "runtime/step.h"

/* What the host exchanges with the other replicas. */
static InfCode open_replicas(InfError *e, InfPipeline *p) {
    const Plan *plan = p->plan;
    bool host = p->way == &inf_pipeline_host;
    p->scalars = calloc((size_t)inf_plan_processes(plan), (size_t)plan->finish.loss_bytes + 1);
    p->figure = calloc((size_t)p->replicas + 1, 2 * INF_METRIC_MAX * sizeof *p->figure);
    p->sum = calloc((size_t)plan->nbucket + 1, sizeof *p->sum);
    if (host) p->begun = calloc((size_t)plan->nbucket + 1, sizeof *p->begun);
    if (!p->scalars || !p->figure || !p->sum || (host && !p->begun))
        return inf_fail(e, INF_IO, "out of memory");
    if (!host && !p->shards) return INF_OK;
    InfSumsOf of = {.transport = p->transport,
                    .replica = p->replica,
                    .replicas = p->replicas,
                    .first = p->replicas * p->rank,
                    .most = plan->nbucket + 1};
    return inf_sums_open(e, &of, &p->sums);
}

InfCode inf_pipeline_open(InfError *e, const Plan *plan, InfGroup *group, InfPipeline *out) {
    size_t n = (size_t)plan->nmessage + 1;
    bool shared = inf_device_find(plan)->shared;
    *out = (InfPipeline){.plan = plan,
                         .group = group,
                         .rank = plan->rank,
                         .replica = group ? group->replica : 0,
                         .replicas = group ? inf_plan_replicas(plan) : 1,
                         .transport = group ? group->transport : NULL,
                         .way = shared ? &inf_pipeline_host : &inf_pipeline_device};
    out->adds = out->replicas > 1 || (!shared && inf_plan_adds(plan));
    out->received = calloc(n, sizeof *out->received);
    out->sent = calloc(n, sizeof *out->sent);
    out->pending = calloc(n, sizeof *out->pending);
    if (!out->received || !out->sent || !out->pending) return inf_fail(e, INF_IO, "out of memory");
    TRY(inf_shards_open(e, out));
    TRY(inf_sum_times_open(e, plan, &out->times));
    return out->replicas > 1 ? open_replicas(e, out) : INF_OK;
}

/* What tensors of a checkpoint are summed in on the host of a device. */
enum { HOST_SUMS_BYTES = 4 << 20 };

InfCode inf_pipeline_place(InfError *e, InfPipeline *p, void *memory, int64_t bytes) {
    if (!p->sums) return INF_OK;
    if (p->way == &inf_pipeline_host) {
        inf_sums_place(p->sums, memory, (uint64_t)bytes);
        return INF_OK;
    }
    p->sums_memory = malloc(HOST_SUMS_BYTES);
    if (!p->sums_memory) return inf_fail(e, INF_IO, "out of memory");
    inf_sums_place(p->sums, p->sums_memory, HOST_SUMS_BYTES);
    return INF_OK;
}

void inf_pipeline_close(InfPipeline *p) {
    inf_shards_close(p);
    inf_sum_times_close(&p->times);
    free(p->received);
    free(p->sent);
    free(p->pending);
    inf_sums_close(p->sums);
    free(p->sums_memory);
    free(p->sum);
    free(p->begun);
    free(p->figure);
    free(p->scalars);
    inf_error_free(&p->error);
    *p = (InfPipeline){0};
}

/* ---- time --- */

/* Caches, pages and connections are new to these steps; they count when there are no others. */
enum { WARM_UP_STEPS = 3 };

void inf_pipeline_waited_since(InfPipeline *p, double ms) {
    if (p->idle.on) p->idle.waiting_ms += inf_clock_ms() - ms;
}

void inf_pipeline_step_ends(InfPipeline *p) {
    InfIdle *t = &p->idle;
    if (!t->on) return;
    t->on = false;
    t->steps_ms += inf_clock_ms() - t->begun_ms;
    t->waited_ms += t->waiting_ms;
    t->steps++;
}

InfCode inf_pipeline_bubble(InfError *e, InfPipeline *p, InfBubble *out) {
    const double mine[2] = {p->idle.steps_ms, p->idle.waited_ms};
    double sum[2] = {0, 0};
    int count = inf_plan_processes(p->plan);
    *out = (InfBubble){.steps = 0};
    if (!p->transport) return INF_OK;
    double *all = calloc((size_t)count, sizeof mine);
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = p->transport->gather(e, mine, sizeof mine, all);
    for (int i = 0; i < 2 * count; i++) sum[i % 2] += all[i];
    free(all);
    *out = (InfBubble){.share = sum[0] > 0 ? sum[1] / sum[0] : 0, .steps = p->idle.steps};
    return code;
}

void inf_bubble_print(const InfBubble *b, const Plan *plan, FILE *out) {
    if (b->steps == 0) return;
    fprintf(out, "bubble: %.1f %% measured over %lld steps, %.1f %% predicted\n", 100 * b->share,
            (long long)b->steps, 100 * plan->bubble);
}

void inf_bubble_put(const InfBubble *b, const Plan *plan, InfJson *j) {
    if (b->steps == 0) return;
    inf_json_put_double(j, "bubble", b->share);
    inf_json_put_double(j, "bubble_predicted", plan->bubble);
    inf_json_put_int(j, "bubble_steps", b->steps);
}

void inf_pipeline_begin(InfPipeline *p, InfProfile *profile, int64_t step) {
    InfIdle *t = &p->idle;
    float nothing = 0;
    inf_sum_times_step(&p->times, profile, step);
    if (profile->on && p->transport && inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->sum(&p->error, &nothing, 1));
    if (t->begun == 1 || t->begun == WARM_UP_STEPS) *t = (InfIdle){.begun = t->begun};
    t->begun++;
    t->on = true;
    t->waiting_ms = 0;
    t->begun_ms = inf_clock_ms();
}

/* ---- messages --- */

void inf_pipeline_poll(InfPipeline *p) {
    if (p->way != &inf_pipeline_host) return;
    if (p->nbegun > 0 && p->sums && inf_pipeline_works(p))
        inf_pipeline_note(p, inf_sums_poll(&p->error, p->sums));
    if (p->npending > 0 || p->shards) p->transport->poll();
    inf_sum_times_look(&p->times, p->transport);
}

void inf_pipeline_await(InfPipeline *p, InfRequest *r) {
    for (int turn = 0; inf_pipeline_works(p) && r->busy; turn += turn < INT32_MAX) {
        inf_pipeline_note(p, p->transport->test(&p->error, r));
        if (!r->busy) break;
        inf_pipeline_poll(p);
        p->transport->rest(turn);
    }
}

void inf_pipeline_at(InfPipeline *p, int64_t step, int32_t task) {
    if (p->group) inf_group_at(p->group, step, task);
}

uint32_t inf_pipeline_message(InfPipeline *p, InfEngine *m, const PlanTask *task, uint32_t count) {
    return p->way->message(p, m, task, count);
}

void inf_pipeline_before(InfPipeline *p, const InfEngine *m, const PlanTask *task) {
    if (p->way->before) p->way->before(p, task);
    (void)m;
}

void inf_pipeline_reduce(InfPipeline *p, InfEngine *m, uint32_t bucket) {
    INF_ASSERT(p->adds && bucket < p->plan->nbucket);
    p->way->reduce(p, m, bucket);
}

void inf_pipeline_reduced(InfPipeline *p, uint32_t bucket) {
    INF_ASSERT(p->adds && bucket < p->plan->nbucket);
    if (!p->begun) return;
    INF_ASSERT(p->begun[bucket]);
    p->nrow++;
}

void inf_pipeline_reduced_all(InfPipeline *p) {
    if (!p->adds) return;
    INF_ASSERT(p->nbegun == p->plan->nbucket);
    p->collectives += p->nbegun;
    p->nbegun = 0;
}

void inf_pipeline_gather(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    unsigned char *own = m->home[PLAN_REGION_scalar] + f->loss;
    if (p->replicas == 1 || !inf_pipeline_works(p)) return;
    inf_pipeline_note(p, p->transport->gather(&p->error, own, (uint64_t)f->loss_bytes, p->scalars));
    memcpy(own, inf_pipeline_scalars(p, p->replica) + f->loss, (size_t)f->loss_bytes);
}

const unsigned char *inf_pipeline_scalars(const InfPipeline *p, int r) {
    const PlanFinish *f = &p->plan->finish;
    int process = r + p->replicas * f->loss_rank;
    return p->scalars + (int64_t)process * f->loss_bytes - f->loss;
}

void inf_pipeline_settle(InfPipeline *p, InfEngine *m, bool gradients) {
    p->way->settle(p, m, gradients);
}

void inf_pipeline_norm(InfPipeline *p, InfEngine *m) { p->way->norm(p, m); }

void inf_pipeline_spread(InfPipeline *p, InfEngine *m) {
    p->way->spread(p, m);
    p->spread = true;
}

void inf_pipeline_gathered(InfPipeline *p, uint32_t shard) {
    INF_ASSERT(shard < p->plan->nshard);
    p->ngathered += p->spread;
}

/* One replica alone has no rows for what it hands to nobody. */
void inf_pipeline_gathered_all(InfPipeline *p) {
    INF_ASSERT(p->ngathered == (p->spread && p->replicas > 1 ? p->plan->nshard : 0));
    p->spread = false;
    p->ngathered = 0;
}

int inf_pipeline_stop_signal(InfPipeline *p) {
    int number = 0;
    if (!p->group) return inf_signals_pending();
    if (inf_pipeline_works(p)) inf_pipeline_note(p, inf_group_signal(&p->error, p->group, &number));
    return number;
}

bool inf_pipeline_any(InfPipeline *p, bool mine) {
    float flag = mine ? 1.0f : 0.0f;
    if (p->transport && inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->sum(&p->error, &flag, 1));
    return flag > 0;
}

int inf_pipeline_signal(InfPipeline *p) {
    int number = inf_pipeline_stop_signal(p);
    if (number) p->stop = number;
    return p->stop;
}

InfCode inf_pipeline_end(InfError *e, InfPipeline *p) {
    if (inf_pipeline_works(p)) return INF_OK;
    return inf_fail(e, p->code, "%s", p->error.text ? p->error.text : "messages failed");
}
