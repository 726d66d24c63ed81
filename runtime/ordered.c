/* ordered.c - what of reduce = "ordered" is the same on every device; see ordered.h. */
#include "runtime/ordered.h"

#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"

InfCode inf_ordered_open(InfError *e, InfEngine *m) {
    if (!m->plan->ordered) return INF_OK;
    InfOrdered *o = m->ordered = calloc(1, sizeof *o);
    if (!o) return inf_fail(e, INF_IO, "out of memory");
    o->way = m->table->shared ? &inf_ordered_host : &inf_ordered_device;
    o->part = calloc((size_t)m->plan->ordered->npart + 1, sizeof *o->part);
    return o->part ? o->way->open(e, m) : inf_fail(e, INF_IO, "out of memory");
}

void inf_ordered_close(InfEngine *m) {
    InfOrdered *o = m->ordered;
    if (!o) return;
    o->way->close(o);
    free(o->part);
    free(o);
    m->ordered = NULL;
}

/* --- microbatches --- */

const PlanLeaf *inf_ordered_leaf(const Plan *plan, const PlanTask *task, int replica) {
    int64_t row = (int64_t)task->local * plan->dp + replica;
    return &plan->ordered->leaf[row * plan->program[0].microbatches + task->microbatch];
}

static void write_gradients_at(InfEngine *m, uint32_t buffer) {
    int64_t at = (int64_t)buffer * m->plan->ordered->grad_bytes;
    m->base[PLAN_REGION_grad] = m->home[PLAN_REGION_grad] + at;
    m->on_device[PLAN_REGION_grad] = m->home_on_device[PLAN_REGION_grad] + at;
}

void inf_ordered_before(InfEngine *m, const PlanTask *task) {
    if (!m->ordered || task->kind >= PTASK_update) return;
    m->ordered->leaf = inf_ordered_leaf(m->plan, task, m->replica);
    write_gradients_at(m, m->ordered->leaf->buffer);
}

float *inf_ordered_at(const InfEngine *m, uint32_t buffer, const PlanBucket *b) {
    return (float *)(void *)(m->home_on_device[PLAN_REGION_grad] +
                             (int64_t)buffer * m->plan->ordered->grad_bytes + b->at);
}

void inf_ordered_add(InfEngine *m, const PlanBucket *b) {
    const PlanLeaf *leaf = m->ordered->leaf;
    for (uint32_t i = leaf->add; i < leaf->add + leaf->nadd; i++) {
        PlanAdd which = m->plan->ordered->add[i];
        float *into = inf_ordered_at(m, which.into, b);
        InfAddition sum = {.out = into,
                           .a = into,
                           .b = inf_ordered_at(m, which.from, b),
                           .count = b->bytes / (int64_t)sizeof(float)};
        m->ordered->way->add(m, &sum);
    }
}

static bool is_last_chunk(const Plan *plan, const PlanTask *task) {
    return task->chunk == plan->pp * plan->vpp - 1;
}

void inf_ordered_after(InfEngine *m, const PlanTask *task) {
    const Plan *plan = m->plan;
    if (!m->ordered) return;
    if (task->kind == PTASK_forward && is_last_chunk(plan, task))
        m->ordered->way->keep(m, m->replica * plan->program[0].microbatches + task->microbatch);
    if (task->kind != PTASK_backward && task->kind != PTASK_weight) return;
    /* Those of the last one may be on their way already: inf_ordered_reduce. */
    if (m->reduces && !m->table->shared) return;
    for (uint32_t i = 0; i < plan->nbucket; i++)
        if (plan->bucket[i].local == task->local) inf_ordered_add(m, &plan->bucket[i]);
}

/* --- replicas --- */

const uint32_t *inf_ordered_kept(const InfEngine *m, const PlanBucket *b) {
    const PlanOrdered *o = m->plan->ordered;
    return o->kept + (b->local * (int64_t)m->plan->dp + m->replica) * o->most_kept;
}

void inf_ordered_join(InfEngine *m, float *out, int64_t count) {
    const PlanOrdered *plan = m->plan->ordered;
    float **part = m->ordered->part;
    uint32_t depth = 0, left = plan->npart - 1;
    for (uint32_t i = 0; i < plan->npart; i++) {
        part[depth++] = part[i];
        for (uint32_t k = 0; k < plan->part[i].joins; k++, left--) {
            float *a = part[depth - 2], *b = part[--depth];
            InfAddition sum = {left == 1 ? out : a, a, b, count, true};
            m->ordered->way->add(m, &sum);
        }
    }
    INF_ASSERT(depth == 1 && left == 0);
}

void inf_ordered_finish(InfEngine *m) {
    if (!m->ordered) return;
    write_gradients_at(m, 0);
    m->ordered->way->finish(m);
}
