/* step.c - submits and finishes steps and evaluation batches. */
#include "runtime/step.h"

#include <math.h>

#include "runtime/feed.h"
#include "runtime/kernels.h"
#include "runtime/signals.h"

/* What of a program's tasks to run. */
typedef struct Work {
    uint32_t program;
    uint64_t position, end; /* of the set */
    bool update;
} Work;

uint64_t inf_global_batch(const Plan *plan) {
    const PlanProgram *train = &plan->program[0];
    return (uint64_t)plan->dp * (uint64_t)train->microbatches * (uint64_t)train->batch;
}

static void fill_scalars(const Plan *plan, const InfHost *host, float *scalar) {
    double t = (double)(host->updates + 1);
    scalar[HOST_lr] = (float)host->lr;
    scalar[HOST_bias1] = (float)(1.0 - pow(plan->train.beta1, t));
    scalar[HOST_bias2] = (float)(1.0 - pow(plan->train.beta2, t));
    scalar[HOST_weight_decay] = (float)host->weight_decay;
    scalar[HOST_clip] = (float)(host->clip > 0 ? host->clip : HUGE_VAL);
}

static float mean_of(const InfEngine *m, const PlanMetric *metric) {
    float count = inf_engine_scalar(m, metric->count);
    return count > 0 ? inf_engine_scalar(m, metric->sum) / count : 0.0f;
}

static void stage(InfEngine *m, const InfLoader *l, const Work *work, int32_t microbatch) {
    const PlanProgram *program = &m->plan->program[work->program];
    uint64_t first = (uint64_t)microbatch * (uint64_t)program->batch;
    if (m->profile.on) inf_profile_begin(&m->profile, m->plan->nkernel, NULL, &m->env);
    if (m->table->shared)
        inf_loader_stage(l, m, program, work->position + first, work->end);
    else
        inf_feed_stage(l, m, program, first);
    if (m->profile.on) inf_profile_end(&m->profile);
}

/* An update that a non-finite loss would spoil: the update's own flag says so too, but a host that
 * can see the loss does not start it. */
static bool spoiled(const InfEngine *m) {
    return m->table->shared && !isfinite(mean_of(m, &m->plan->program[0].metric[0]));
}

static void enqueue(InfEngine *m, const InfLoader *l, const Work *work) {
    const PlanRank *rank = &m->plan->program[work->program].rank[0];
    int32_t staged = -1;
    inf_engine_use_all(m);
    if (inf_engine_goes(m, 2.0)) m->table->enter(m->device);
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++) {
        const PlanTask *task = &m->plan->task[i];
        if (task->kind == PTASK_update && (!work->update || spoiled(m))) continue;
        m->env.microbatch = task->microbatch > 0 ? task->microbatch : 0;
        if (task->kind != PTASK_update && task->microbatch != staged) {
            /* Only a forward may bring a new batch in: the backward still reads the old one. */
            INF_ASSERT(task->kind == PTASK_forward);
            stage(m, l, work, task->microbatch);
            staged = task->microbatch;
        }
        inf_engine_run(m, task->program);
    }
    inf_engine_use_all(m);
    if (inf_engine_goes(m, 2.0)) m->table->leave(m->device);
}

/* Launches of a submission, and the arguments of all. */
static void count_work(const InfEngine *m, const Work *work, uint32_t *launches, uint32_t *args) {
    const PlanRank *rank = &m->plan->program[work->program].rank[0];
    int64_t n = 2, uses = 2;
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++) {
        const PlanChunk *chunk = &m->plan->chunk[m->plan->task[i].program];
        InfLaunches sum = inf_kernels_launches(m->plan, chunk->begin, chunk->end);
        n += sum.launches + 1;
        uses += sum.launches + sum.args + 3;
    }
    INF_ASSERT(n < UINT32_MAX && uses < UINT32_MAX);
    *launches = (uint32_t)n;
    *args = (uint32_t)uses;
}

/* Records a submission as a graph, in two lanes where that helps. */
static void record(InfEngine *m, const InfLoader *l, const Work *work, uint32_t which) {
    uint32_t launches, args;
    InfError none = {0};
    count_work(m, work, &launches, &args);
    /* Without memory for it each launch waits for the one before. */
    if (inf_order_open(&none, launches, args, &m->order) != INF_OK) inf_error_free(&none);
    if (m->order.on) {
        enqueue(m, l, work);
        inf_order_plan(&m->order);
    }
    m->table->record(m->device, m->order.on ? m->order.count : 0);
    enqueue(m, l, work);
    m->table->keep(m->device, (int)which);
    inf_order_close(&m->order);
    m->graph[which] = true;
}

/* Hands one submission over: replayed from a graph where there is one, recorded the first time. */
static void submit(InfEngine *m, InfLoader *l, const Work *work, InfTicket *ticket, bool graph) {
    uint32_t which = work->program == 0 ? INF_GRAPH_train : INF_GRAPH_eval;
    ticket->moment.seed = m->env.seed;
    if (!m->table->shared) inf_feed_send(l, m, work->position, &ticket->moment);
    m->table->ticket(m->device, ticket);
    if (graph && m->use_graphs && !m->profile.on) {
        if (!m->graph[which]) record(m, l, work, which);
        m->table->replay(m->device, (int)which);
    } else {
        enqueue(m, l, work);
    }
    m->table->submitted(m->device);
}

static void submit_step(InfEngine *m, InfLoader *l, const InfStepInput *in, bool whole) {
    Work work = {.program = 0, .position = in->position, .end = l->count, .update = whole};
    InfTicket ticket = {.moment = {.step = (uint64_t)in->step}};
    fill_scalars(m->plan, &in->host, ticket.scalar);
    m->env.step = in->step;
    if (m->profile.on) inf_profile_step_begin(&m->profile);
    submit(m, l, &work, &ticket, whole);
}

static InfCode collect(InfError *e, InfEngine *m, InfStepResult *r) {
    const PlanMetric *loss = &m->plan->program[0].metric[0];
    TRY(m->table->collect(e, m->device, m->base[PLAN_REGION_scalar]));
    r->loss = mean_of(m, loss);
    r->count = inf_engine_scalar(m, loss->count);
    r->grad_norm = inf_engine_scalar(m, m->plan->grad_norm);
    r->applied = isfinite(r->loss) && inf_engine_scalar(m, m->plan->update_ok) != 0.0f;
    if (!m->profile.on) return INF_OK;
    TRY(m->table->finish(e, m->device));
    inf_profile_step_end(&m->profile, r->input.step);
    return INF_OK;
}

void inf_step_submit(InfSteps *s, InfEngine *m, InfLoader *l, const InfStepInput *in) {
    INF_ASSERT(s->count < INF_DEVICE_DEPTH);
    INF_ASSERT(!m->profile.on || s->count == 0);
    s->step[s->count++] = (InfStepResult){.input = *in};
    submit_step(m, l, in, true);
}

InfCode inf_step_wait(InfError *e, InfSteps *s, InfEngine *m) {
    for (; s->ready < s->count; s->ready++) TRY(collect(e, m, &s->step[s->ready]));
    return INF_OK;
}

InfCode inf_step_finish(InfError *e, InfSteps *s, InfEngine *m, InfStepResult *out) {
    INF_ASSERT(s->count > 0);
    if (s->ready == 0) {
        TRY(collect(e, m, &s->step[0]));
        s->ready = 1;
    }
    *out = s->step[0];
    s->count--;
    s->ready--;
    for (int i = 0; i < s->count; i++) s->step[i] = s->step[i + 1];
    return INF_OK;
}

InfCode inf_step_gradients(InfError *e, InfEngine *m, InfLoader *l, const InfStepInput *in,
                           InfStepResult *out) {
    *out = (InfStepResult){.input = *in};
    submit_step(m, l, in, false);
    return collect(e, m, out);
}

/* Sums of one evaluation on their way. */
typedef struct Sums {
    int metrics;
    double sum[INF_METRIC_MAX], count[INF_METRIC_MAX];
} Sums;

static InfCode add_batch(InfError *e, InfEngine *m, Sums *sums) {
    const PlanProgram *eval = &m->plan->program[1];
    TRY(m->table->collect(e, m->device, m->base[PLAN_REGION_scalar]));
    for (int k = 0; k < sums->metrics; k++) {
        sums->sum[k] += (double)inf_engine_scalar(m, eval->metric[k].sum);
        sums->count[k] += (double)inf_engine_scalar(m, eval->metric[k].count);
    }
    return INF_OK;
}

static InfCode walk_set(InfError *e, InfEngine *m, InfLoader *l, Sums *sums, bool *stopped) {
    const PlanProgram *eval = &m->plan->program[1];
    int depth = m->table->late ? INF_DEVICE_DEPTH - 1 : 0, pending = 0;
    for (uint64_t at = 0; at < l->count; at += (uint64_t)eval->batch) {
        *stopped = inf_signals_pending() != 0;
        if (*stopped) break;
        Work work = {.program = 1, .position = at, .end = l->count};
        InfTicket ticket = {.moment = {.step = 0}};
        submit(m, l, &work, &ticket, true);
        if (++pending > depth) {
            TRY(add_batch(e, m, sums));
            pending--;
        }
    }
    for (; pending > 0; pending--) TRY(add_batch(e, m, sums));
    return INF_OK;
}

InfCode inf_evaluate(InfError *e, InfEngine *m, InfLoader *l, InfEvaluation *out, bool *stopped) {
    INF_ASSERT(m->plan->nprogram > 1);
    const PlanProgram *eval = &m->plan->program[1];
    Sums sums = {.metrics = eval->nmetric < INF_METRIC_MAX ? (int)eval->nmetric : INF_METRIC_MAX};
    bool profiled = m->profile.on;
    m->profile.on = false;
    *stopped = false;
    InfCode code = walk_set(e, m, l, &sums, stopped);
    m->profile.on = profiled;
    TRY(code);
    *out = (InfEvaluation){.count = sums.metrics, .samples = l->count};
    for (int k = 0; k < sums.metrics; k++)
        out->mean[k] = sums.count[k] > 0 ? sums.sum[k] / sums.count[k] : 0.0;
    return INF_OK;
}
