/* pipeline.c - messages of one rank; see pipeline.h. */
#include "runtime/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/signals.h"

InfCode inf_pipeline_open(InfError *e, const Plan *plan, InfPipeline *out) {
    size_t n = (size_t)plan->nmessage + 1;
    *out = (InfPipeline){.plan = plan, .rank = plan->rank, .transport = plan->transport};
    out->received = calloc(n, sizeof *out->received);
    out->sent = calloc(n, sizeof *out->sent);
    out->pending = calloc(n, sizeof *out->pending);
    if (!out->received || !out->sent || !out->pending) return inf_fail(e, INF_IO, "out of memory");
    return INF_OK;
}

void inf_pipeline_close(InfPipeline *p) {
    free(p->received);
    free(p->sent);
    free(p->pending);
    inf_error_free(&p->error);
    *p = (InfPipeline){0};
}

/* ---- time --- */

/* Caches, pages and connections are new to these steps; they count when there are no others. */
enum { WARM_UP_STEPS = 3 };

static void waited_since(InfPipeline *p, double ms) {
    if (p->idle.on) p->idle.waiting_ms += inf_clock_ms() - ms;
}

static void step_ends(InfPipeline *p) {
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
    int count = p->plan->ranks;
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

void inf_pipeline_poll(InfPipeline *p) {
    if (p->npending > 0) p->transport->poll();
}

void inf_pipeline_at(InfPipeline *p, int64_t step, int32_t task) {
    if (p->group) inf_group_at(p->group, step, task);
}

/* Keeps the first failure: after it nothing is posted any more. */
static bool works(const InfPipeline *p) { return p->code == INF_OK; }

static void note(InfPipeline *p, InfCode code) {
    if (works(p)) p->code = code;
}

static void *at(InfEngine *m, PlanRegion region, int64_t offset) {
    return m->home[region] + offset;
}

void inf_pipeline_message(InfPipeline *p, InfEngine *m, const PlanTask *task) {
    const PlanMessage *message = &p->plan->message[task->message];
    int tag = task->message;
    uint64_t bytes = (uint64_t)message->bytes;
    if (!works(p)) return;
    if (task->kind == PTASK_recv) {
        note(p, p->transport->recv(&p->error, message->from_rank, tag,
                                   at(m, PLAN_REGION_message, message->to_at), bytes,
                                   &p->received[task->message]));
        return;
    }
    note(p, p->transport->send(&p->error, message->to_rank, tag,
                               at(m, PLAN_REGION_message, message->from_at), bytes,
                               &p->sent[task->message]));
    p->pending[p->npending++] = (uint32_t)task->message;
}

/* Waits for the sends out of one window, or for all. */
static void finish_sends(InfPipeline *p, const int64_t *window) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->npending; i++) {
        uint32_t message = p->pending[i];
        if (works(p) && (!window || p->plan->message[message].from_at == *window))
            note(p, p->transport->wait(&p->error, &p->sent[message]));
        else
            p->pending[kept++] = message;
    }
    p->npending = works(p) ? kept : 0;
}

void inf_pipeline_begin(InfPipeline *p, bool together) {
    InfIdle *t = &p->idle;
    float nothing = 0;
    if (together && works(p)) note(p, p->transport->sum(&p->error, &nothing, 1));
    if (t->begun == 1 || t->begun == WARM_UP_STEPS) *t = (InfIdle){.begun = t->begun};
    t->begun++;
    t->on = true;
    t->waiting_ms = 0;
    t->begun_ms = inf_clock_ms();
}

void inf_pipeline_before(InfPipeline *p, const PlanTask *task) {
    bool forward = task->kind == PTASK_forward;
    double begin = inf_clock_ms();
    if (works(p) && task->message >= 0)
        note(p, p->transport->wait(&p->error, &p->received[task->message]));
    if (task->kind != PTASK_weight)
        finish_sends(p, &task->window[forward ? PLAN_WINDOW_send : PLAN_WINDOW_send_grad]);
    waited_since(p, begin);
}

static void share_gradients(InfPipeline *p, InfEngine *m) {
    const Plan *plan = p->plan;
    InfRequest *request = plan->nshare ? calloc(plan->nshare, sizeof *request) : NULL;
    if (plan->nshare && !request) {
        note(p, inf_fail(&p->error, INF_IO, "out of memory"));
        return;
    }
    for (uint32_t i = 0; i < plan->nshare && works(p); i++) {
        const PlanShare *s = &plan->share[i];
        int tag = (int)(plan->nmessage + i);
        if (s->from_rank == p->rank)
            note(p,
                 p->transport->send(&p->error, s->to_rank, tag, at(m, PLAN_REGION_grad, s->from_at),
                                    (uint64_t)s->bytes, &request[i]));
        if (s->to_rank == p->rank)
            note(p,
                 p->transport->recv(&p->error, s->from_rank, tag, at(m, PLAN_REGION_grad, s->to_at),
                                    (uint64_t)s->bytes, &request[i]));
    }
    for (uint32_t i = 0; i < plan->nshare && works(p); i++)
        note(p, p->transport->wait(&p->error, &request[i]));
    free(request);
}

void inf_pipeline_settle(InfPipeline *p, InfEngine *m, bool gradients) {
    const PlanFinish *f = &p->plan->finish;
    double begin = inf_clock_ms();
    finish_sends(p, NULL);
    if (works(p))
        note(p, p->transport->broadcast(&p->error, f->loss_rank, at(m, PLAN_REGION_scalar, f->loss),
                                        (uint64_t)f->loss_bytes));
    if (gradients) share_gradients(p, m);
    waited_since(p, begin);
}

/* The signal that any rank has got, the same on all: an exchange. */
static int stop_signal(InfPipeline *p) {
    int number = 0;
    if (!p->group) return inf_signals_pending();
    if (works(p)) note(p, inf_group_signal(&p->error, p->group, &number));
    return number;
}

void inf_pipeline_norm(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *squares = at(m, PLAN_REGION_scalar, f->squares);
    memset(squares, 0, (size_t)f->nsquares * sizeof *squares);
    inf_engine_run(m, (uint32_t)f->norm);
    squares[f->nsquares] = inf_signals_pending() ? 1.0f : 0.0f;
    double begin = inf_clock_ms();
    if (works(p)) note(p, p->transport->sum(&p->error, squares, (uint64_t)f->nsquares + 1));
    waited_since(p, begin);
    step_ends(p);
    if (squares[f->nsquares] > 0) p->stop = stop_signal(p);
}

int inf_pipeline_signal(InfPipeline *p) {
    int number = stop_signal(p);
    if (number) p->stop = number;
    return p->stop;
}

InfCode inf_pipeline_end(InfError *e, InfPipeline *p) {
    if (works(p)) return INF_OK;
    return inf_fail(e, p->code, "%s", p->error.text ? p->error.text : "messages failed");
}
