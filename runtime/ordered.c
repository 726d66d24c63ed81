/* ordered.c - what of reduce = "ordered" is the same on every device; see ordered.h. */
#include "runtime/ordered.h"

#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"

/* Every leaf on the way from the last one to the root at most. */
static size_t most_terms(const Plan *plan) {
    return (size_t)plan->dp * (size_t)plan->program[0].microbatches + 1;
}

InfCode inf_ordered_open(InfError *e, InfEngine *m) {
    if (!m->plan->ordered) return INF_OK;
    InfOrdered *o = m->ordered = calloc(1, sizeof *o);
    if (!o) return inf_fail(e, INF_IO, "out of memory");
    o->way = m->table->shared ? &inf_ordered_host : &inf_ordered_device;
    o->part = calloc((size_t)m->plan->ordered->npart + 1, sizeof *o->part);
    o->term = calloc(most_terms(m->plan), sizeof *o->term);
    return o->part && o->term ? o->way->open(e, m) : inf_fail(e, INF_IO, "out of memory");
}

void inf_ordered_close(InfEngine *m) {
    InfOrdered *o = m->ordered;
    if (!o) return;
    o->way->close(o);
    free(o->part);
    free(o->term);
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

/* Sums of which each is a term of the next one: chain[0] is added to chain[1], that to chain[2]. */
typedef struct Chain {
    float **term;
    uint32_t terms;
} Chain;

/* The last sum goes to `out`; those on the way to it are nobody else's. */
static void add_chain(InfEngine *m, Chain c, float *out, int64_t count, bool joins) {
    for (uint32_t first = 0, n; first + 1 < c.terms; first += n - 1) {
        InfAddition sum = {.count = count, .joins = joins};
        n = c.terms - first < INF_TERMS_MAX ? c.terms - first : INF_TERMS_MAX;
        for (uint32_t i = 0; i < n; i++) sum.term[i] = c.term[first + i];
        sum.terms = n;
        sum.out = first + n == c.terms ? out : c.term[first + n - 1];
        m->ordered->way->add(m, &sum);
    }
}

void inf_ordered_add(InfEngine *m, const PlanBucket *b) {
    const PlanLeaf *leaf = m->ordered->leaf;
    const PlanAdd *add = m->plan->ordered->add + leaf->add;
    float **term = m->ordered->term;
    if (leaf->nadd == 0) return;
    term[0] = inf_ordered_at(m, add[0].from, b);
    for (uint32_t i = 0; i < leaf->nadd; i++) {
        INF_ASSERT(i == 0 || add[i].from == add[i - 1].into);
        term[i + 1] = inf_ordered_at(m, add[i].into, b);
    }
    add_chain(m, (Chain){term, leaf->nadd + 1}, term[leaf->nadd], b->bytes / (int64_t)sizeof(float),
              false);
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
    float **part = m->ordered->part, **term = m->ordered->term;
    uint32_t depth = 0;
    for (uint32_t i = 0; i < plan->npart; i++) {
        uint32_t joins = plan->part[i].joins;
        INF_ASSERT(joins <= depth);
        part[depth++] = part[i];
        for (uint32_t k = 0; k <= joins; k++) term[k] = part[depth - 1 - k];
        depth -= joins;
        add_chain(m, (Chain){term, joins + 1}, i + 1 == plan->npart ? out : term[joins], count,
                  true);
    }
    INF_ASSERT(depth == 1);
}

void inf_ordered_finish(InfEngine *m) {
    if (!m->ordered) return;
    write_gradients_at(m, 0);
    m->ordered->way->finish(m);
}
