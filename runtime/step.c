/* step.c - walks the tasks of a step and of an evaluation. */
#include "runtime/step.h"

#include <math.h>

#include "runtime/signals.h"

uint64_t inf_global_batch(const Plan *plan) {
    const PlanProgram *train = &plan->program[0];
    return (uint64_t)plan->dp * (uint64_t)train->microbatches * (uint64_t)train->batch;
}

static void set_host_scalars(InfEngine *m, const InfHost *host) {
    const PlanTrain *train = &m->plan->train;
    double t = (double)(host->updates + 1);
    inf_engine_set(m, HOST_lr, host->lr);
    inf_engine_set(m, HOST_bias1, 1.0 - pow(train->beta1, t));
    inf_engine_set(m, HOST_bias2, 1.0 - pow(train->beta2, t));
    inf_engine_set(m, HOST_weight_decay, host->weight_decay);
    inf_engine_set(m, HOST_clip, host->clip > 0 ? host->clip : HUGE_VAL);
}

static float mean_of(const InfEngine *m, const PlanMetric *metric) {
    float count = inf_engine_scalar(m, metric->count);
    return count > 0 ? inf_engine_scalar(m, metric->sum) / count : 0.0f;
}

float inf_step_gradients(InfEngine *m, const InfLoader *l, const InfHost *host, uint64_t position) {
    const PlanProgram *train = &m->plan->program[0];
    const PlanRank *rank = &train->rank[0];
    int32_t staged = -1;
    set_host_scalars(m, host);
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++) {
        const PlanTask *task = &m->plan->task[i];
        if (task->kind == PTASK_update) continue;
        m->env.microbatch = task->microbatch;
        if (task->microbatch != staged) {
            /* Only a forward may bring a new batch in: the backward still reads the old one. */
            INF_ASSERT(task->kind == PTASK_forward);
            uint64_t at = position + (uint64_t)task->microbatch * (uint64_t)train->batch;
            inf_loader_stage(l, m, train, at, l->count);
            staged = task->microbatch;
        }
        inf_engine_run(m, task->program);
    }
    return mean_of(m, &train->metric[0]);
}

bool inf_step_update(InfEngine *m, float loss) {
    const PlanRank *rank = &m->plan->program[0].rank[0];
    if (!isfinite(loss)) return false;
    m->env.microbatch = 0;
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++)
        if (m->plan->task[i].kind == PTASK_update) inf_engine_run(m, m->plan->task[i].program);
    return inf_engine_scalar(m, m->plan->update_ok) != 0.0f;
}

float inf_step_count(const InfEngine *m) {
    return inf_engine_scalar(m, m->plan->program[0].metric[0].count);
}

bool inf_evaluate(InfEngine *m, const InfLoader *l, InfEvaluation *out) {
    INF_ASSERT(m->plan->nprogram > 1);
    const PlanProgram *eval = &m->plan->program[1];
    const PlanRank *rank = &eval->rank[0];
    double sum[INF_METRIC_MAX] = {0}, count[INF_METRIC_MAX] = {0};
    int metrics = eval->nmetric < INF_METRIC_MAX ? (int)eval->nmetric : INF_METRIC_MAX;
    m->env.microbatch = 0;
    for (uint64_t at = 0; at < l->count; at += (uint64_t)eval->batch) {
        if (inf_signals_pending()) return false;
        inf_loader_stage(l, m, eval, at, l->count);
        for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++)
            inf_engine_run(m, m->plan->task[i].program);
        for (int k = 0; k < metrics; k++) {
            sum[k] += (double)inf_engine_scalar(m, eval->metric[k].sum);
            count[k] += (double)inf_engine_scalar(m, eval->metric[k].count);
        }
    }
    *out = (InfEvaluation){.count = metrics, .samples = l->count};
    for (int k = 0; k < metrics; k++) out->mean[k] = count[k] > 0 ? sum[k] / count[k] : 0.0;
    return true;
}
