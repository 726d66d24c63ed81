/* pipeline_host.c - messages between ranks whose kernels work in the host's memory: by the
 * transport.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"
#include "runtime/signals.h"

static void *at(InfEngine *m, PlanRegion region, int64_t offset) {
    return m->home[region] + offset;
}

static void post(InfPipeline *p, InfEngine *m, const PlanTask *task) {
    const PlanMessage *message = &p->plan->message[task->message];
    int tag = task->message;
    uint64_t bytes = (uint64_t)message->bytes;
    if (!inf_pipeline_works(p)) return;
    if (task->kind == PTASK_recv) {
        inf_pipeline_note(p, p->transport->recv(&p->error, message->from_rank, tag,
                                                at(m, PLAN_REGION_message, message->to_at), bytes,
                                                &p->received[task->message]));
        return;
    }
    inf_pipeline_note(p, p->transport->send(&p->error, message->to_rank, tag,
                                            at(m, PLAN_REGION_message, message->from_at), bytes,
                                            &p->sent[task->message]));
    p->pending[p->npending++] = (uint32_t)task->message;
}

/* Waits for the sends out of one window, or for all. */
static void finish_sends(InfPipeline *p, const int64_t *window) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->npending; i++) {
        uint32_t message = p->pending[i];
        if (inf_pipeline_works(p) && (!window || p->plan->message[message].from_at == *window))
            inf_pipeline_note(p, p->transport->wait(&p->error, &p->sent[message]));
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
    if (inf_pipeline_works(p) && task->message >= 0)
        inf_pipeline_note(p, p->transport->wait(&p->error, &p->received[task->message]));
    if (task->kind != PTASK_weight)
        finish_sends(p, &task->window[forward ? PLAN_WINDOW_send : PLAN_WINDOW_send_grad]);
    inf_pipeline_waited_since(p, begin);
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
        if (s->from_rank == p->rank)
            inf_pipeline_note(p, p->transport->send(&p->error, s->to_rank, tag,
                                                    at(m, PLAN_REGION_grad, s->from_at),
                                                    (uint64_t)s->bytes, &request[i]));
        if (s->to_rank == p->rank)
            inf_pipeline_note(p, p->transport->recv(&p->error, s->from_rank, tag,
                                                    at(m, PLAN_REGION_grad, s->to_at),
                                                    (uint64_t)s->bytes, &request[i]));
    }
    for (uint32_t i = 0; i < plan->nshare && inf_pipeline_works(p); i++)
        inf_pipeline_note(p, p->transport->wait(&p->error, &request[i]));
    free(request);
}

static void settle(InfPipeline *p, InfEngine *m, bool gradients) {
    const PlanFinish *f = &p->plan->finish;
    double begin = inf_clock_ms();
    finish_sends(p, NULL);
    if (inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->broadcast(&p->error, f->loss_rank,
                                                     at(m, PLAN_REGION_scalar, f->loss),
                                                     (uint64_t)f->loss_bytes));
    if (gradients) share_gradients(p, m);
    inf_pipeline_waited_since(p, begin);
}

static void norm(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *squares = at(m, PLAN_REGION_scalar, f->squares);
    memset(squares, 0, (size_t)f->nsquares * sizeof *squares);
    inf_engine_run(m, (uint32_t)f->norm);
    squares[f->nsquares] = inf_signals_pending() ? 1.0f : 0.0f;
    double begin = inf_clock_ms();
    if (inf_pipeline_works(p))
        inf_pipeline_note(p, p->transport->sum(&p->error, squares, (uint64_t)f->nsquares + 1));
    inf_pipeline_waited_since(p, begin);
    inf_pipeline_step_ends(p);
    if (squares[f->nsquares] > 0) p->stop = inf_pipeline_stop_signal(p);
}

const InfPipelineWay inf_pipeline_host = {
    .message = message, .before = before, .settle = settle, .norm = norm};
