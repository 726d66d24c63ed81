/* ordered.c - see ordered.h. */
#include "runtime/ordered.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"

/* Loss, counts and metrics of one microbatch: floats. */
static int64_t figures(const Plan *plan) {
    return plan->ordered ? plan->ordered->figure_bytes / (int64_t)sizeof(float) : 0;
}

static float *figures_at(const InfEngine *m) {
    return inf_engine_at(m, PLAN_REGION_scalar, m->plan->ordered->figure_at);
}

/* What one replica tells the others at a time: a piece of each sum that it is left with. */
enum { TOLD_BYTES = 1 << 20 };

struct InfOrdered {
    float *figure;     /* [replica][microbatch]: loss, counts, metrics */
    float *told, *all; /* of this replica, of each */
    float **part;      /* sums that wait for their other half */
};

/* Floats of a sum that are told at a time. */
static int64_t piece(const Plan *plan) {
    return TOLD_BYTES / (int64_t)sizeof(float) / (plan->ordered->most_kept + 1);
}

InfCode inf_ordered_open(InfError *e, InfEngine *m) {
    const Plan *plan = m->plan;
    uint64_t leaves = 0, bytes = 0, replicas = plan->dp > 1 ? (uint64_t)plan->dp : 0;
    if (!plan->ordered) return INF_OK;
    INF_ASSERT(m->table->shared && figures(plan) * (int64_t)sizeof(float) <= TOLD_BYTES);
    bool fits = inf_mul((uint64_t)plan->dp, (uint64_t)plan->program[0].microbatches, &leaves) &&
                inf_mul(leaves + 1, (uint64_t)figures(plan) * sizeof(float), &bytes);
    InfOrdered *o = m->ordered = fits ? calloc(1, sizeof *o) : NULL;
    if (!o) return inf_fail(e, INF_IO, "out of memory");
    o->figure = calloc(bytes + 1, 1);
    o->part = calloc((size_t)plan->ordered->npart + 1, sizeof *o->part);
    o->told = calloc(replicas ? TOLD_BYTES : 1, 1);
    o->all = calloc(replicas + 1, TOLD_BYTES);
    bool enough = o->figure && o->part && o->told && o->all;
    return enough ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

void inf_ordered_close(InfEngine *m) {
    InfOrdered *o = m->ordered;
    if (!o) return;
    free(o->figure);
    free(o->told);
    free(o->all);
    free(o->part);
    free(o);
    m->ordered = NULL;
}

static const PlanLeaf *leaf_of(const InfEngine *m, const PlanTask *task) {
    const Plan *plan = m->plan;
    int64_t row = (int64_t)task->local * plan->dp + m->replica;
    return &plan->ordered->leaf[row * plan->program[0].microbatches + task->microbatch];
}

static void write_gradients_at(InfEngine *m, uint32_t buffer) {
    int64_t at = (int64_t)buffer * m->plan->ordered->grad_bytes;
    m->base[PLAN_REGION_grad] = m->home[PLAN_REGION_grad] + at;
    m->on_device[PLAN_REGION_grad] = m->home_on_device[PLAN_REGION_grad] + at;
}

void inf_ordered_before(InfEngine *m, const PlanTask *task) {
    if (m->plan->ordered && task->kind < PTASK_update)
        write_gradients_at(m, leaf_of(m, task)->buffer);
}

static void add(float *restrict into, const float *restrict from, int64_t count) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) into[i] += from[i];
}

static float *gradients(const InfEngine *m, uint32_t buffer, const PlanBucket *b) {
    return (float *)(void *)(m->home[PLAN_REGION_grad] +
                             (int64_t)buffer * m->plan->ordered->grad_bytes + b->at);
}

/* One buffer to another, what a chunk of this rank writes of them. */
static void add_chunk(const InfEngine *m, int local, PlanAdd which) {
    for (uint32_t i = 0; i < m->plan->nbucket; i++) {
        const PlanBucket *b = &m->plan->bucket[i];
        if (b->local != local) continue;
        add(gradients(m, which.into, b), gradients(m, which.from, b),
            b->bytes / (int64_t)sizeof(float));
    }
}

static bool is_last_chunk(const Plan *plan, const PlanTask *task) {
    return task->chunk == plan->pp * plan->vpp - 1;
}

void inf_ordered_after(InfEngine *m, const PlanTask *task) {
    const PlanOrdered *o = m->plan->ordered;
    if (!o) return;
    if (task->kind == PTASK_forward && is_last_chunk(m->plan, task)) {
        int64_t leaf = m->replica * m->plan->program[0].microbatches + task->microbatch;
        memcpy(m->ordered->figure + leaf * figures(m->plan), figures_at(m),
               (size_t)o->figure_bytes);
    }
    if (task->kind != PTASK_backward && task->kind != PTASK_weight) return;
    const PlanLeaf *leaf = leaf_of(m, task);
    for (uint32_t i = 0; i < leaf->nadd; i++) add_chunk(m, task->local, o->add[leaf->add + i]);
}

/* All leaves into the first of them, each sum as soon as both its halves are there. */
static void add_figures(const InfEngine *m) {
    const Plan *plan = m->plan;
    int64_t n = figures(plan), leaves = plan->dp * plan->program[0].microbatches, depth = 0;
    for (int64_t i = 0; i < leaves; i++) {
        memmove(m->ordered->figure + depth++ * n, m->ordered->figure + i * n,
                (size_t)n * sizeof(float));
        for (uint32_t k = 0; k < plan->ordered->joins[i]; k++, depth--)
            for (int64_t j = 0; j < n; j++)
                m->ordered->figure[(depth - 2) * n + j] += m->ordered->figure[(depth - 1) * n + j];
    }
    INF_ASSERT(depth == 1);
}

/* Every replica's `count` floats of `told` into `all`. */
static bool tell(InfPipeline *p, const InfOrdered *o, int64_t count) {
    InfRequest request = {.busy = false};
    if (!inf_pipeline_works(p)) return false;
    inf_pipeline_note(p, p->transport->collect(&p->error, o->told, (uint64_t)count * sizeof(float),
                                               o->all, &request));
    if (inf_pipeline_works(p)) inf_pipeline_note(p, p->transport->wait(&p->error, &request));
    return inf_pipeline_works(p);
}

/* Figures of all replicas' microbatches, on the rank that has the loss. */
static void share_figures(InfEngine *m) {
    const Plan *plan = m->plan;
    InfOrdered *o = m->ordered;
    int64_t n = plan->program[0].microbatches, f = figures(plan), most = TOLD_BYTES / 4 / f;
    for (int64_t first = 0, count; first < n; first += count) {
        count = n - first < most ? n - first : most;
        size_t bytes = (size_t)(count * f) * sizeof(float);
        memcpy(o->told, o->figure + (m->replica * n + first) * f, bytes);
        if (!tell(m->pipeline, o, count * f)) return;
        for (int r = 0; r < plan->dp; r++)
            memcpy(o->figure + (r * n + first) * f, o->all + r * count * f, bytes);
    }
}

/* Where `all` has number `number` of a replica's sums. */
static float *told_at(const InfEngine *m, int replica, uint32_t number, int64_t count) {
    return m->ordered->all + (replica * (int64_t)m->plan->ordered->most_kept + number) * count;
}

/* The sums of all replicas in the order of the tree, into the first. */
static void add_parts(const InfEngine *m, int64_t count) {
    const PlanOrdered *plan = m->plan->ordered;
    uint32_t number = 0, depth = 0;
    float **part = m->ordered->part;
    for (uint32_t i = 0; i < plan->npart; i++) {
        const PlanPart *p = &plan->part[i];
        number = i > 0 && p[-1].replica == p->replica ? number + 1 : 0;
        part[depth++] = told_at(m, p->replica, number, count);
        for (uint32_t k = 0; k < p->joins; k++, depth--)
            add(part[depth - 2], part[depth - 1], count);
    }
    INF_ASSERT(depth == 1);
}

/* One bucket of all replicas, piece by piece, into the first buffer of each. */
static void join(InfEngine *m, const PlanBucket *b) {
    const PlanOrdered *plan = m->plan->ordered;
    int64_t left = b->bytes / (int64_t)sizeof(float), at = 0, most = plan->most_kept;
    const uint32_t *kept = plan->kept + (b->local * (int64_t)m->plan->dp + m->replica) * most;
    for (int64_t count; left > 0; left -= count, at += count) {
        count = left < piece(m->plan) ? left : piece(m->plan);
        size_t bytes = (size_t)count * sizeof(float);
        for (int64_t k = 0; k < most; k++)
            memcpy(m->ordered->told + k * count, gradients(m, kept[k], b) + at, bytes);
        if (!tell(m->pipeline, m->ordered, most * count)) return;
        add_parts(m, count);
        memcpy(gradients(m, 0, b) + at, told_at(m, 0, 0, count), bytes);
    }
}

void inf_ordered_finish(InfEngine *m) {
    const Plan *plan = m->plan;
    if (!plan->ordered) return;
    double begin = inf_clock_ms();
    write_gradients_at(m, 0);
    if (plan->dp > 1 && plan->rank == plan->finish.loss_rank) share_figures(m);
    add_figures(m);
    memcpy(figures_at(m), m->ordered->figure, (size_t)plan->ordered->figure_bytes);
    if (plan->dp == 1) return;
    for (uint32_t i = 0; i < plan->nbucket; i++) join(m, &plan->bucket[i]);
    inf_pipeline_waited_since(m->pipeline, begin);
}
