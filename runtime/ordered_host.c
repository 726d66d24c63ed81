/* ordered_host.c - reduce = "ordered" where kernels work in the host's memory: replicas tell each
 * other all sums, by the transport, when a step's tasks are done. */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/ordered.h"
#include "runtime/pipeline.h"

/* What one replica tells the others at a time, floats: a piece of each sum that it is left with.
 * PLAN_REGION_sum has it of this replica, then of each. */
static int64_t told_most(const Plan *plan) {
    return plan->region_bytes[PLAN_REGION_sum] / (plan->dp + 1) / (int64_t)sizeof(float);
}

static float *told(const InfEngine *m) { return inf_engine_at(m, PLAN_REGION_sum, 0); }

static float *told_by_all(const InfEngine *m) { return told(m) + told_most(m->plan); }

static InfCode open(InfError *e, InfEngine *m) {
    const Plan *plan = m->plan;
    InfOrdered *o = m->ordered;
    uint64_t leaves = 0, bytes = 0;
    INF_ASSERT(plan->dp == 1 || inf_ordered_figures(plan) <= told_most(plan));
    if (!inf_mul((uint64_t)plan->dp, (uint64_t)plan->program[0].microbatches, &leaves) ||
        !inf_mul(leaves, (uint64_t)plan->ordered->figure_bytes, &bytes))
        return inf_fail(e, INF_IO, "out of memory");
    o->figure = calloc(bytes + 1, 1);
    return o->figure ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

static void close(InfOrdered *o) { free(o->figure); }

static float *figures_at(const InfEngine *m) {
    return inf_engine_at(m, PLAN_REGION_scalar, m->plan->ordered->figure_at);
}

static void keep(InfEngine *m, int64_t leaf) {
    memcpy(m->ordered->figure + leaf * inf_ordered_figures(m->plan), figures_at(m),
           (size_t)m->plan->ordered->figure_bytes);
}

/* Elements at a time: so many stay near. */
enum { BLOCK = 1024 };

static void add(InfEngine *m, const InfAddition *sum) {
    const InfAddition s = *sum;
    (void)m;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < s.count; at += BLOCK) {
        int64_t n = s.count - at < BLOCK ? s.count - at : BLOCK;
        float block[BLOCK];
        memcpy(block, s.term[0] + at, (size_t)n * sizeof *block);
        for (uint32_t k = 1; k < s.terms; k++) {
            const float *term = s.term[k] + at;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) block[i] = term[i] + block[i];
        }
        memcpy(s.out + at, block, (size_t)n * sizeof *block);
    }
}

/* All leaves into the first of them: neighbours, then neighbours of these. */
static void add_figures(const InfEngine *m) {
    int64_t n = inf_ordered_figures(m->plan);
    int64_t leaves = m->plan->dp * m->plan->program[0].microbatches;
    for (int64_t apart = 1; apart < leaves; apart *= 2)
        for (int64_t i = 0; i + apart < leaves; i += 2 * apart)
            for (int64_t k = 0; k < n; k++)
                m->ordered->figure[i * n + k] += m->ordered->figure[(i + apart) * n + k];
}

/* Every replica's `count` floats, to everyone. */
static bool tell(const InfEngine *m, int64_t count) {
    InfPipeline *p = m->pipeline;
    InfRequest request = {.busy = false};
    if (!inf_pipeline_works(p)) return false;
    inf_pipeline_note(p, p->transport->collect(&p->error, told(m), (uint64_t)count * sizeof(float),
                                               told_by_all(m), &request));
    if (inf_pipeline_works(p)) inf_pipeline_note(p, p->transport->wait(&p->error, &request));
    return inf_pipeline_works(p);
}

/* Figures of all replicas' microbatches, on the rank that has the loss. */
static void share_figures(InfEngine *m) {
    const Plan *plan = m->plan;
    InfOrdered *o = m->ordered;
    int64_t n = plan->program[0].microbatches, f = inf_ordered_figures(plan);
    int64_t most = told_most(plan) / f;
    for (int64_t first = 0, count; first < n; first += count) {
        count = n - first < most ? n - first : most;
        size_t bytes = (size_t)(count * f) * sizeof(float);
        memcpy(told(m), o->figure + (m->replica * n + first) * f, bytes);
        if (!tell(m, count * f)) return;
        for (int r = 0; r < plan->dp; r++)
            memcpy(o->figure + (r * n + first) * f, told_by_all(m) + r * count * f, bytes);
    }
}

/* Where all that was told has each part. */
static void find_parts(const InfEngine *m, int64_t count) {
    const PlanOrdered *plan = m->plan->ordered;
    uint32_t number = 0;
    for (uint32_t i = 0; i < plan->npart; i++) {
        const PlanPart *p = &plan->part[i];
        number = i > 0 && p[-1].replica == p->replica ? number + 1 : 0;
        m->ordered->part[i] =
            told_by_all(m) + (p->replica * (int64_t)plan->most_kept + number) * count;
    }
}

/* One bucket of all replicas, piece by piece, into the first buffer of each. */
static void join(InfEngine *m, const PlanBucket *b) {
    int64_t left = b->bytes / (int64_t)sizeof(float), most = m->plan->ordered->most_kept;
    const uint32_t *kept = inf_ordered_kept(m, b);
    const int64_t piece = told_most(m->plan) / (most + 1);
    for (int64_t count, at = 0; left > 0; left -= count, at += count) {
        count = left < piece ? left : piece;
        for (int64_t k = 0; k < most; k++)
            memcpy(told(m) + k * count, inf_ordered_at(m, kept[k], b) + at,
                   (size_t)count * sizeof(float));
        if (!tell(m, most * count)) return;
        find_parts(m, count);
        inf_ordered_join(m, inf_ordered_at(m, 0, b) + at, count);
    }
}

static void finish(InfEngine *m) {
    const Plan *plan = m->plan;
    double begin = inf_clock_ms();
    if (plan->dp > 1 && plan->rank == plan->finish.loss_rank) share_figures(m);
    add_figures(m);
    memcpy(figures_at(m), m->ordered->figure, (size_t)plan->ordered->figure_bytes);
    if (plan->dp == 1) return;
    for (uint32_t i = 0; i < plan->nbucket; i++) join(m, &plan->bucket[i]);
    inf_pipeline_waited_since(m->pipeline, begin);
}

const InfOrderedWay inf_ordered_host = {
    .open = open, .close = close, .keep = keep, .add = add, .finish = finish};
