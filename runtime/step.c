/* step.c - submits and finishes steps and evaluation batches. */
#include "runtime/step.h"

#include <math.h>
#include <string.h>

#include "runtime/feed.h"
#include "runtime/kernels.h"
#include "runtime/ordered.h"
#include "runtime/pipeline.h"
#include "runtime/shards.h"
#include "runtime/signals.h"

/* What of a program's tasks to run. */
typedef struct Work {
    uint32_t program;
    uint64_t position, end; /* of the set: this replica's first sample, and where samples end */
    bool update;
    bool bare; /* inputs are where they belong, and no results come back: see inf_forward */
} Work;

uint64_t inf_global_batch(const Plan *plan) {
    const PlanProgram *train = &plan->program[0];
    return (uint64_t)plan->dp * (uint64_t)train->microbatches * (uint64_t)train->batch;
}

/* The scalars of a step before which `updates` took effect. */
static void fill_scalars(const Plan *plan, const InfHost *host, int64_t updates, float *scalar) {
    double t = (double)(updates + 1);
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

/* The samples that the forward of a chunk reads. */
static void stage(InfEngine *m, const InfLoader *l, const Work *work, const PlanTask *task) {
    const PlanProgram *program = &m->plan->program[work->program];
    uint64_t microbatch = task->microbatch > 0 ? (uint64_t)task->microbatch : 0;
    uint64_t first = microbatch * (uint64_t)program->batch;
    bool any = false;
    for (uint32_t i = 0; i < program->ninput; i++)
        any = any || program->input[i].local == task->local;
    if (!any) return;
    uint32_t span = inf_profile_begin(&m->profile, INF_SPAN_stage, 0, NULL, &m->env);
    if (m->table->shared)
        inf_loader_stage(l, m, program, task->local, work->position + first, work->end);
    else
        inf_feed_stage(l, m, program, task->local, first);
    inf_profile_end(&m->profile, span);
}

/* An update that a non-finite loss would spoil: the update's own flag says so too, but a host that
 * can see the loss does not start it. */
static bool spoiled(const InfEngine *m) {
    return m->table->shared && !isfinite(mean_of(m, &m->plan->program[0].metric[0]));
}

static void enter(InfEngine *m, const Work *work) {
    if (work->bare) return;
    inf_engine_use_all(m);
    if (inf_engine_goes(m, 2.0)) m->table->enter(m->device);
}

static void leave(InfEngine *m, const Work *work) {
    if (work->bare) return;
    inf_engine_use_all(m);
    if (inf_engine_goes(m, 2.0)) m->table->leave(m->device, work->update);
}

/* This rank's tasks of a program. */
static const PlanRank *tasks_of(const InfEngine *m, const PlanProgram *program) {
    return &program->rank[m->plan->rank];
}

static bool leaves_out(const InfEngine *m, const Work *work, const PlanTask *task) {
    return task->kind == PTASK_update && (!work->update || spoiled(m));
}

/* What a task waits for before it computes: its message. */
static void await_message(InfEngine *m, const PlanTask *task, uint32_t i) {
    if (!m->pipeline || task->kind == PTASK_update) return;
    uint32_t span = inf_profile_begin_task(&m->profile, INF_SPAN_wait, i);
    inf_pipeline_before(m->pipeline, m, task);
    inf_profile_end(&m->profile, span);
}

/* What ranks exchange before the update, task `i`. */
static void settle(InfEngine *m, uint32_t i) {
    uint32_t span = inf_profile_begin_task(&m->profile, INF_SPAN_exchange, i);
    inf_pipeline_settle(m->pipeline, m, true);
    inf_profile_end(&m->profile, span);
}

static void exchange_norm(InfEngine *m, uint32_t i) {
    uint32_t span = inf_profile_begin_task(&m->profile, INF_SPAN_exchange, i);
    inf_pipeline_norm(m->pipeline, m);
    inf_profile_end(&m->profile, span);
}

/* Returns how many tasks are done: a device may take two messages at once. */
static uint32_t post_messages(InfEngine *m, uint32_t i, uint32_t end) {
    uint32_t span = inf_profile_begin_task(&m->profile, INF_SPAN_task, i);
    uint32_t done = inf_pipeline_message(m->pipeline, m, &m->plan->task[i], end - i);
    inf_profile_end(&m->profile, span);
    return done;
}

/* Where this rank is, for the others; a device that works on its own is somewhere in the step. */
static void tell_place(InfEngine *m, const Work *work, uint32_t i) {
    if (!m->pipeline || work->program != 0 || !m->table->shared) return;
    inf_pipeline_at(m->pipeline, m->env.step,
                    (int32_t)(i - tasks_of(m, &m->plan->program[0])->task));
}

/* Over all replicas; a program that is not the training step has one. */
static int64_t microbatch_of(const InfEngine *m, const Work *work, const PlanTask *task) {
    int64_t before = work->program == 0 ? m->replica * m->plan->program[0].microbatches : 0;
    return task->microbatch >= 0 ? before + task->microbatch : 0;
}

/* Whether there are others whose gradients count, or it is done as if there were. */
static bool adds_replicas(const InfEngine *m) { return m->pipeline && m->pipeline->adds; }

/* Task `i` of the plan, no message; before a forward, its samples. */
static void enqueue_task(InfEngine *m, const InfLoader *l, const Work *work, uint32_t i) {
    const PlanTask *task = &m->plan->task[i];
    m->env.microbatch = microbatch_of(m, work, task);
    await_message(m, task, i);
    uint32_t span = inf_profile_begin_task(&m->profile, INF_SPAN_task, i);
    if (task->kind < PTASK_update) inf_engine_window(m, task);
    if (work->program == 0) inf_ordered_before(m, task);
    if (task->kind == PTASK_forward && !work->bare) stage(m, l, work, task);
    m->reduces = adds_replicas(m) && work->program == 0 && task->last;
    inf_engine_run(m, task->program);
    if (work->program == 0) inf_ordered_after(m, task);
    m->reduces = false;
    inf_profile_end(&m->profile, span);
}

typedef void RunTask(InfEngine *m, const InfLoader *l, const Work *work, uint32_t i);

/* All of a submission; what ranks exchange stands where the table says, and at the end. */
static void walk_tasks(InfEngine *m, const InfLoader *l, const Work *work, RunTask *run) {
    const PlanRank *rank = tasks_of(m, &m->plan->program[work->program]);
    uint32_t end = rank->task + rank->ntask, done;
    bool training = work->program == 0;
    enter(m, work);
    for (uint32_t i = rank->task; i < end; i += done) {
        const PlanTask *task = &m->plan->task[i];
        bool exchanges = m->pipeline && task->kind == PTASK_update;
        done = 1;
        tell_place(m, work, i);
        if (task->kind == PTASK_update) inf_ordered_finish(m);
        if (exchanges) settle(m, i);
        if (leaves_out(m, work, task)) continue;
        if (exchanges) exchange_norm(m, i);
        if (task->kind == PTASK_reduce) {
            if (adds_replicas(m)) inf_pipeline_reduced(m->pipeline, (uint32_t)task->message);
        } else if (task->kind == PTASK_gather) {
            if (adds_replicas(m)) inf_pipeline_gathered(m->pipeline, (uint32_t)task->message);
        } else if (task->kind > PTASK_update)
            done = post_messages(m, i, end);
        else
            run(m, l, work, i);
        if (exchanges && inf_shards_on(m->pipeline)) inf_pipeline_spread(m->pipeline, m);
    }
    if (m->pipeline && training) inf_pipeline_gathered_all(m->pipeline);
    if (m->pipeline && !training) inf_pipeline_settle(m->pipeline, m, false);
    leave(m, work);
}

static void enqueue(InfEngine *m, const InfLoader *l, const Work *work) {
    walk_tasks(m, l, work, enqueue_task);
}

/* --- graphs --- */

static void add_launches(InfLaunches *all, InfLaunches more) {
    all->launches += more.launches;
    all->args += more.args;
}

static InfLaunches chunk_launches(const InfEngine *m, uint32_t index) {
    const PlanChunk *chunk = &m->plan->chunk[index];
    InfLaunches sum = inf_kernels_launches(m->plan, chunk->begin, chunk->end);
    sum.args += sum.launches;
    return sum;
}

/* The plan's kernels between what ranks exchange before and behind an update. */
static InfLaunches finish_launches(const InfEngine *m) {
    const Plan *plan = m->plan;
    InfLaunches all = chunk_launches(m, (uint32_t)plan->finish.norm);
    if (!inf_shards_on(m->pipeline)) return all;
    add_launches(&all, chunk_launches(m, (uint32_t)plan->finish.blocks_program));
    for (uint32_t i = 0; i < plan->nchunk; i++)
        if (strcmp(plan->chunk[i].name, "copy") == 0) add_launches(&all, chunk_launches(m, i));
    return all;
}

/* Launches of tasks [begin, end) and around them, and the arguments of all. */
static InfLaunches count_tasks(const InfEngine *m, uint32_t begin, uint32_t end) {
    const PlanRank *train = tasks_of(m, &m->plan->program[0]);
    bool training = begin >= train->task && end <= train->task + train->ntask;
    InfLaunches all = {2, 2};
    if (m->pipeline) add_launches(&all, inf_pipeline_launches(m->pipeline));
    for (uint32_t i = begin; i < end; i++) {
        const PlanTask *task = &m->plan->task[i];
        all.launches += 1;
        all.args += 3;
        if (task->kind <= PTASK_update) add_launches(&all, chunk_launches(m, task->program));
        if (m->pipeline && task->kind == PTASK_update) add_launches(&all, finish_launches(m));
        if (training) add_launches(&all, inf_ordered_launches(m, task));
    }
    INF_ASSERT(all.launches < UINT32_MAX && all.args < UINT32_MAX);
    return all;
}

/* Records a whole submission, or one task of it, as a graph; in two lanes where that helps. */
static void record(InfEngine *m, const InfLoader *l, const Work *work, const uint32_t *task) {
    const PlanRank *rank = tasks_of(m, &m->plan->program[work->program]);
    uint32_t which = task ? m->plan->nprogram + *task : work->program;
    InfLaunches most = task ? count_tasks(m, *task, *task + 1)
                            : count_tasks(m, rank->task, rank->task + rank->ntask);
    InfError none = {0};
    /* Without memory for it each launch waits for the one before. */
    if (inf_order_open(&none, (uint32_t)most.launches, (uint32_t)most.args, &m->order) != INF_OK)
        inf_error_free(&none);
    uint32_t begun = m->pipeline ? m->pipeline->nbegun : 0;
    for (int round = m->order.on ? 0 : 1; round < 2; round++) {
        if (round == 1) m->table->record(m->device, m->order.on ? m->order.count : 0);
        if (task)
            enqueue_task(m, l, work, *task);
        else
            enqueue(m, l, work);
        if (round == 0) inf_order_plan(&m->order);
    }
    m->table->keep(m->device, (int)which);
    inf_order_close(&m->order);
    m->graph[which] = true;
    if (!m->pipeline) return;
    m->sums[which] = m->pipeline->nbegun - begun;
    m->pipeline->nbegun = begun;
}

static void replay_graph(InfEngine *m, uint32_t which) {
    m->table->replay(m->device, (int)which);
    if (m->pipeline) m->pipeline->nbegun += m->sums[which];
}

/* The same on all ranks: an exchange is recorded by all or by none. */
static InfGraphs choose_graphs(const InfEngine *m, const Work *work) {
    const PlanRank *rank = tasks_of(m, &m->plan->program[work->program]);
    InfLaunches all = count_tasks(m, rank->task, rank->task + rank->ntask);
    bool large = all.launches > m->graph_most;
    if (m->pipeline) large = inf_pipeline_any(m->pipeline, large);
    return large ? INF_GRAPHS_tasks : INF_GRAPHS_one;
}

static void replay_task(InfEngine *m, const InfLoader *l, const Work *work, uint32_t i) {
    uint32_t which = m->plan->nprogram + i;
    if (count_tasks(m, i, i + 1).launches > m->graph_most) {
        enqueue_task(m, l, work, i);
        return;
    }
    if (!m->graph[which]) record(m, l, work, &i);
    replay_graph(m, which);
}

static void replay(InfEngine *m, const InfLoader *l, const Work *work) {
    if (m->graphs[work->program] == INF_GRAPHS_unknown)
        m->graphs[work->program] = (uint8_t)choose_graphs(m, work);
    if (m->graphs[work->program] == INF_GRAPHS_tasks) {
        walk_tasks(m, l, work, replay_task);
        return;
    }
    if (!m->graph[work->program]) record(m, l, work, NULL);
    replay_graph(m, work->program);
}

/* Hands one submission over: replayed from graphs where there are some, recorded the first time. */
static void submit(InfEngine *m, InfLoader *l, const Work *work, InfTicket *ticket, bool graph) {
    ticket->moment.seed = m->env.seed;
    if (!m->table->shared) inf_feed_send(l, m, work->position, &ticket->moment);
    m->table->ticket(m->device, ticket);
    if (graph && m->use_graphs && !m->profile.on)
        replay(m, l, work);
    else
        enqueue(m, l, work);
    if (m->pipeline && work->program == 0 && !m->table->shared)
        inf_pipeline_reduced_all(m->pipeline);
    m->table->submitted(m->device);
}

static void submit_step(const InfSteps *s, InfEngine *m, InfLoader *l, const InfStepInput *in,
                        bool whole) {
    uint64_t own = inf_global_batch(m->plan) / (uint64_t)inf_plan_replicas(m->plan);
    Work work = {.program = 0,
                 .position = in->position + (uint64_t)m->replica * own,
                 .end = l->count,
                 .update = whole};
    InfTicket ticket = {.moment = {.step = (uint64_t)in->step}, .applied = s->applied};
    for (int k = 0; k < INF_DEVICE_DEPTH; k++)
        fill_scalars(m->plan, &in->host, in->host.updates + k, ticket.scalar[k]);
    m->env.step = in->step;
    if (m->pipeline && whole) inf_pipeline_begin(m->pipeline, &m->profile, in->step);
    /* Nothing on the host waits for the step's own exchanges, so ranks agree about signals beside
     * it, while the device is busy with the step before. */
    if (m->pipeline && !m->table->shared) {
        inf_pipeline_at(m->pipeline, in->step, -1);
        inf_pipeline_signal(m->pipeline);
    }
    if (m->profile.on) inf_profile_step_begin(&m->profile);
    submit(m, l, &work, &ticket, whole);
}

static InfCode collect(InfError *e, InfEngine *m, InfStepResult *r) {
    const PlanMetric *loss = &m->plan->program[0].metric[0];
    TRY(m->table->collect(e, m->device, m->base[PLAN_REGION_scalar]));
    if (m->pipeline) TRY(inf_pipeline_end(e, m->pipeline));
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
    submit_step(s, m, l, in, true);
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
    if (out->applied) s->applied++;
    s->count--;
    s->ready--;
    for (int i = 0; i < s->count; i++) s->step[i] = s->step[i + 1];
    return INF_OK;
}

InfCode inf_step_gradients(InfError *e, InfEngine *m, InfLoader *l, const InfStepInput *in,
                           InfStepResult *out) {
    const InfSteps none = {.count = 0};
    *out = (InfStepResult){.input = *in};
    submit_step(&none, m, l, in, false);
    return collect(e, m, out);
}

void inf_forward(InfEngine *m, uint32_t program) {
    Work work = {.program = program, .bare = true};
    if (m->use_graphs && !m->profile.on)
        replay(m, NULL, &work);
    else
        enqueue(m, NULL, &work);
}

/* Replicas that share the batches of an evaluation. */
static int sharers(const InfEngine *m) { return m->pipeline ? inf_plan_replicas(m->plan) : 1; }

/* Sums of one evaluation on their way. */
typedef struct Sums {
    int metrics;
    double sum[INF_METRIC_MAX], count[INF_METRIC_MAX];
} Sums;

/* The sums of a batch, as they are or as another replica has sent them. */
static void add_sums(const InfEngine *m, const unsigned char *scalars, Sums *sums) {
    const PlanProgram *eval = &m->plan->program[1];
    for (int k = 0; k < sums->metrics; k++) {
        sums->sum[k] += (double)*(const float *)(const void *)(scalars + eval->metric[k].sum);
        sums->count[k] += (double)*(const float *)(const void *)(scalars + eval->metric[k].count);
    }
}

/* The oldest submission of a program that only goes forward. */
static InfCode collect_forward(InfError *e, InfEngine *m) {
    TRY(m->table->collect(e, m->device, m->base[PLAN_REGION_scalar]));
    if (!m->pipeline) return INF_OK;
    if (!m->table->shared) inf_pipeline_gather(m->pipeline, m);
    return inf_pipeline_end(e, m->pipeline);
}

/* A batch of each replica, in the order of the set, but for those beyond its end. */
static InfCode add_batches(InfError *e, InfEngine *m, uint64_t at, uint64_t end, Sums *sums) {
    uint64_t batch = (uint64_t)m->plan->program[1].batch;
    int replicas = sharers(m);
    TRY(collect_forward(e, m));
    for (int r = 0; r < replicas && at + (uint64_t)r * batch < end; r++)
        add_sums(m,
                 replicas > 1 ? inf_pipeline_scalars(m->pipeline, r)
                              : inf_engine_at(m, PLAN_REGION_scalar, 0),
                 sums);
    return INF_OK;
}

static void submit_eval(InfEngine *m, InfLoader *l, uint32_t program, uint64_t position) {
    Work work = {.program = program, .position = position, .end = l->count};
    InfTicket ticket = {.moment = {.step = 0}};
    submit(m, l, &work, &ticket, true);
}

InfCode inf_step_forward(InfError *e, InfEngine *m, InfLoader *l, uint32_t program) {
    submit_eval(m, l, program, 0);
    return collect_forward(e, m);
}

static InfCode walk_set(InfError *e, InfEngine *m, InfLoader *l, Sums *sums, bool *stopped) {
    const PlanProgram *eval = &m->plan->program[1];
    uint64_t batch = (uint64_t)eval->batch, round = batch * (uint64_t)sharers(m), added = 0;
    uint64_t depth = m->table->late ? INF_DEVICE_DEPTH - 1 : 0, at = 0;
    for (; at < l->count; at += round) {
        *stopped = inf_engine_stops(m) != 0;
        if (*stopped) break;
        submit_eval(m, l, 1, at + (uint64_t)m->replica * batch);
        if (at - added < depth * round) continue;
        TRY(add_batches(e, m, added, l->count, sums));
        added += round;
    }
    for (; added < at; added += round) TRY(add_batches(e, m, added, l->count, sums));
    return INF_OK;
}

InfCode inf_evaluate(InfError *e, InfEngine *m, InfLoader *l, InfEvaluation *out, bool *stopped) {
    INF_ASSERT(inf_program_find(m->plan, "eval"));
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
