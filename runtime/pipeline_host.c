/* pipeline_host.c - messages between ranks whose kernels work in the host's memory: by the
 * transport.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"
#include "runtime/shards.h"
#include "runtime/signals.h"
#include "runtime/step.h"

static void *at(InfEngine *m, PlanRegion region, int64_t offset) {
    return m->home[region] + offset;
}

static void post(InfPipeline *p, InfEngine *m, const PlanTask *task) {
    const PlanMessage *message = &p->plan->message[task->message];
    int tag = task->message;
    uint64_t bytes = (uint64_t)message->bytes;
    if (!inf_pipeline_works(p)) return;
    if (task->kind == PTASK_recv) {
        inf_pipeline_note(p,
                          p->transport->recv(&p->error, inf_pipeline_process(p, message->from_rank),
                                             tag, at(m, PLAN_REGION_message, message->to_at), bytes,
                                             &p->received[task->message]));
        return;
    }
    inf_pipeline_note(p, p->transport->send(&p->error, inf_pipeline_process(p, message->to_rank),
                                            tag, at(m, PLAN_REGION_message, message->from_at),
                                            bytes, &p->sent[task->message]));
    p->pending[p->npending++] = (uint32_t)task->message;
}

/* Waits for the sends out of one window, or for all. */
static void finish_sends(InfPipeline *p, const int64_t *window) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->npending; i++) {
        uint32_t message = p->pending[i];
        if (inf_pipeline_works(p) && (!window || p->plan->message[message].from_at == *window))
            inf_pipeline_await(p, &p->sent[message]);
        else
            p->pending[kept++] = message;
    }
    p->npending = inf_pipeline_works(p) ? kept : 0;
}

static uint32_t message(InfPipeline *p, InfEngine *m, const PlanTask *task, uint32_t count) {
    INF_ASSERT(count > 0);
    post(p, m, task);
    return 1;
}

static void before(InfPipeline *p, const PlanTask *task) {
    bool forward = task->kind == PTASK_forward;
    double begin = inf_clock_ms();
    if (inf_shards_on(p)) inf_shards_await(p, task->local);
    if (task->message >= 0) inf_pipeline_await(p, &p->received[task->message]);
    if (task->kind != PTASK_weight)
        finish_sends(p, &task->window[forward ? PLAN_WINDOW_send : PLAN_WINDOW_send_grad]);
    inf_pipeline_waited_since(p, begin);
}

/* What of a shared gradient this replica has summed: all of it, or the part that it owns. */
static int64_t shared_bytes(const InfPipeline *p, const PlanShare *s) {
    return inf_shards_on(p) ? s->bytes / p->replicas : s->bytes;
}

static void *shared_at(const InfPipeline *p, InfEngine *m, const PlanShare *s, int64_t offset) {
    int64_t skip = inf_shards_on(p) ? p->replica * shared_bytes(p, s) : 0;
    return at(m, PLAN_REGION_grad, offset + skip);
}

static void share_gradients(InfPipeline *p, InfEngine *m) {
    const Plan *plan = p->plan;
    InfRequest *request = plan->nshare ? calloc(plan->nshare, sizeof *request) : NULL;
    if (plan->nshare && !request) {
        inf_pipeline_note(p, inf_fail(&p->error, INF_IO, "out of memory"));
        return;
    }
    for (uint32_t i = 0; i < plan->nshare && inf_pipeline_works(p); i++) {
        const PlanShare *s = &plan->share[i];
        int tag = (int)(plan->nmessage + i);
        uint64_t bytes = (uint64_t)shared_bytes(p, s);
        if (s->from_rank == p->rank)
            inf_pipeline_note(p, p->transport->send(&p->error, inf_pipeline_process(p, s->to_rank),
                                                    tag, shared_at(p, m, s, s->from_at), bytes,
                                                    &request[i]));
        if (s->to_rank == p->rank)
            inf_pipeline_note(
                p, p->transport->recv(&p->error, inf_pipeline_process(p, s->from_rank), tag,
                                      shared_at(p, m, s, s->to_at), bytes, &request[i]));
    }
    for (uint32_t i = 0; i < plan->nshare && inf_pipeline_works(p); i++)
        inf_pipeline_note(p, p->transport->wait(&p->error, &request[i]));
    free(request);
}

static void reduce(InfPipeline *p, InfEngine *m, uint32_t bucket) {
    const PlanBucket *b = &p->plan->bucket[bucket];
    float *from = at(m, PLAN_REGION_grad, b->at);
    uint64_t count = (uint64_t)b->bytes / sizeof *from;
    INF_ASSERT(!p->begun[bucket]);
    p->begun[bucket] = true;
    p->nbegun++;
    if (p->plan->ordered) return; /* at the end of the step: inf_ordered_finish */
    const InfSummand all = {from, count, inf_shards_on(p)};
    if (!inf_pipeline_works(p)) return;
    inf_pipeline_note(p, inf_sums_begin(&p->error, p->sums, &all, &p->sum[bucket]));
    inf_sum_times_begin(
        &p->times,
        &(InfSumTime){.kind = PTASK_reduce, .number = bucket, .request = &p->sum[bucket]});
}

/* Every bucket is summed, once. */
static void finish_sums(InfPipeline *p) {
    uint32_t n = p->plan->nbucket;
    if (p->replicas == 1) return;
    INF_ASSERT(p->nbegun == n && p->nrow == n);
    for (uint32_t i = 0; i < n && inf_pipeline_works(p); i++) {
        inf_pipeline_note(p, inf_sums_wait(&p->error, p->sums, &p->sum[i]));
        inf_sum_times_look(&p->times, p->transport);
    }
    memset(p->begun, 0, n * sizeof *p->begun);
    p->nrow = 0;
    inf_pipeline_reduced_all(p);
}

/* Loss, counts and metrics of the replicas of the last chunk, in the order of these. */
static void add_losses(InfPipeline *p, InfEngine *m) {
    const PlanProgram *train = &p->plan->program[0];
    float *figure[2 * INF_METRIC_MAX];
    uint32_t n = 0;
    INF_ASSERT(train->nmetric <= INF_METRIC_MAX);
    bool mine = p->rank == p->plan->finish.loss_rank && !p->plan->ordered;
    if (p->replicas == 1 || !mine || !inf_pipeline_works(p)) return;
    for (uint32_t i = 0; i < train->nmetric; i++) {
        figure[n++] = at(m, PLAN_REGION_scalar, train->metric[i].sum);
        figure[n++] = at(m, PLAN_REGION_scalar, train->metric[i].count);
    }
    for (uint32_t i = 0; i < n; i++) p->figure[i] = *figure[i];
    InfRequest request = {.busy = false};
    inf_pipeline_note(p, p->transport->collect(&p->error, p->figure, n * sizeof *p->figure,
                                               p->figure + n, &request));
    inf_pipeline_await(p, &request);
    for (uint32_t i = 0; i < n && inf_pipeline_works(p); i++) {
        *figure[i] = p->figure[n + i];
        for (int r = 1; r < p->replicas; r++) *figure[i] += p->figure[n + (uint32_t)r * n + i];
    }
}

static void settle(InfPipeline *p, InfEngine *m, bool gradients) {
    const PlanFinish *f = &p->plan->finish;
    double begin = inf_clock_ms();
    finish_sends(p, NULL);
    if (gradients) finish_sums(p);
    if (gradients) add_losses(p, m);
    if (!gradients && p->replicas > 1)
        inf_pipeline_gather(p, m);
    else if (inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->broadcast(&p->error, p->replicas * f->loss_rank,
                                                     at(m, PLAN_REGION_scalar, f->loss),
                                                     (uint64_t)f->loss_bytes));
    if (gradients) share_gradients(p, m);
    inf_pipeline_waited_since(p, begin);
}

static void norm(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *squares = at(m, PLAN_REGION_scalar, f->squares);
    memset(squares, 0, (size_t)f->nsquares * sizeof *squares);
    if (inf_shards_on(p)) inf_shards_blocks(p, m);
    /* Replicas have the same gradients: one of them says how large they are. */
    if (p->replica == 0) inf_engine_run(m, (uint32_t)f->norm);
    squares[f->nsquares] = inf_signals_pending() ? 1.0f : 0.0f;
    double begin = inf_clock_ms();
    if (inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->sum(&p->error, squares, (uint64_t)f->nsquares + 1));
    inf_pipeline_waited_since(p, begin);
    inf_pipeline_step_ends(p);
    if (squares[f->nsquares] > 0) p->stop = inf_pipeline_stop_signal(p);
}

const InfPipelineWay inf_pipeline_host = {.message = message,
                                          .before = before,
                                          .reduce = reduce,
                                          .settle = settle,
                                          .norm = norm,
                                          .spread = inf_shards_spread};
