/* ordered_device.c - reduce = "ordered" on devices that have memory of their own: everything is a
 * launch, with its place among the others like a message (pipeline_device.c).
 *
 * Where a bucket is complete, each replica gets the others' sums of its share of it, adds them in
 * the tree's order, and shows the result to all; with zero = 1 it keeps it, because it owns it.
 * These launches have the lane of what replicas do together: the rest of the backward goes on
 * beside them. What is received lies behind the buffers, piece by piece.
 */
#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/ordered.h"
#include "runtime/pipeline.h"
#include "runtime/shards.h"

/* About how long an exchange takes, and the memory that a microsecond of kernels goes through. */
enum { EXCHANGE_US = 5, BYTES_US = 100000, KERNEL_BYTES_US = 3000000 };

static float *room_at(const InfEngine *m, int64_t at) {
    return (float *)(void *)(m->home_on_device[PLAN_REGION_grad] + at);
}

static float *figures_at(const InfEngine *m) {
    return (float *)(void *)(m->home_on_device[PLAN_REGION_scalar] + m->plan->ordered->figure_at);
}

/* Halves of an exchange: each sum of this replica to all others, and all that others have. */
static uint64_t most_halves(const Plan *plan) {
    return (uint64_t)plan->dp * plan->ordered->most_kept + plan->ordered->npart;
}

static InfCode open(InfError *e, InfEngine *m) {
    InfOrdered *o = m->ordered;
    o->half = calloc(most_halves(m->plan), sizeof *o->half);
    return o->half ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

static void close(InfOrdered *o) { free(o->half); }

static void use(InfEngine *m, const float *at, int64_t count, bool written) {
    inf_engine_use(m, at, count * (int64_t)sizeof *at, written);
}

static double kernel_us(int64_t elements) {
    return 1.5 + (double)elements * sizeof(float) / KERNEL_BYTES_US;
}

static void add(InfEngine *m, const InfAddition *sum) {
    double us = kernel_us(sum->count * (sum->terms + 1));
    for (uint32_t i = 0; i < sum->terms; i++) use(m, sum->term[i], sum->count, false);
    use(m, sum->out, sum->count, true);
    if (sum->joins ? inf_engine_replicas_go(m, us) : inf_engine_goes(m, us))
        m->table->plus(m->device, sum->out, sum->term, sum->terms, (uint64_t)sum->count);
}

/* The tree of `leaves` rows of figures, in place, and its root to `out`. */
static void add_figures(InfEngine *m, float *rows, int64_t leaves, float *out) {
    int64_t width = inf_ordered_figures(m->plan);
    use(m, rows, leaves * width, leaves > 1);
    use(m, out, width, true);
    if (inf_engine_goes(m, kernel_us(3 * leaves * width)))
        m->table->tree(m->device, rows, (uint32_t)leaves, (uint32_t)width, out);
}

static void keep(InfEngine *m, int64_t leaf) {
    float *to = room_at(m, m->plan->ordered->figures_at) + leaf * inf_ordered_figures(m->plan);
    add_figures(m, figures_at(m), 1, to);
}

/* --- buckets --- */

/* Elements of a bucket that a replica adds up, and of a piece of them. */
static int64_t share_of(const Plan *plan, const PlanBucket *b) {
    return b->bytes / (int64_t)sizeof(float) / plan->dp;
}

static int64_t piece_of(const Plan *plan) {
    return plan->ordered->told_bytes / (int64_t)sizeof(float);
}

/* A piece of a share: `count` elements from `at` on. */
typedef struct Piece {
    const PlanBucket *bucket;
    int64_t at, count;
} Piece;

static float *own_at(const InfEngine *m, const Piece *p, uint32_t number, int replica) {
    return inf_ordered_at(m, inf_ordered_kept(m, p->bucket)[number], p->bucket) +
           replica * share_of(m->plan, p->bucket) + p->at;
}

/* Where each part of this replica's piece is: its own in their buffers, others' where they are
 * received. Returns how many are its own. */
static uint32_t find_parts(const InfEngine *m, const Piece *p) {
    const PlanOrdered *plan = m->plan->ordered;
    uint32_t own = 0;
    for (uint32_t i = 0; i < plan->npart; i++)
        m->ordered->part[i] = plan->part[i].replica == m->replica
                                  ? own_at(m, p, own++, m->replica)
                                  : room_at(m, plan->told_at) + i * p->count;
    return own;
}

/* Between two replicas sends match receives in their order: that of the parts. */
static void trade(InfEngine *m, const Piece *p, uint32_t own) {
    const PlanOrdered *plan = m->plan->ordered;
    InfHalf *half = m->ordered->half;
    uint64_t bytes = (uint64_t)p->count * sizeof(float);
    uint32_t n = 0;
    for (int peer = 0; peer < m->plan->dp; peer++)
        for (uint32_t k = 0; k < own && peer != m->replica; k++)
            half[n++] = (InfHalf){true, peer, own_at(m, p, k, peer), bytes};
    for (uint32_t i = 0; i < plan->npart; i++)
        if (plan->part[i].replica != m->replica)
            half[n++] = (InfHalf){false, plan->part[i].replica, m->ordered->part[i], bytes};
    INF_ASSERT(n <= most_halves(m->plan));
    for (uint32_t i = 0; i < n; i++) use(m, half[i].at, p->count, !half[i].send);
    if (inf_engine_replicas_go(m, EXCHANGE_US + (double)(n * bytes) / BYTES_US))
        m->table->trade(m->device, half, n);
}

/* Each replica's `each` elements of `all` to all of them. */
static void show(InfEngine *m, float *all, int64_t each) {
    int64_t count = each * m->plan->dp;
    use(m, all, count, true);
    if (inf_engine_replicas_go(m, EXCHANGE_US + (double)count * sizeof(float) / BYTES_US))
        m->table->spread(m->device, all, (uint64_t)each * sizeof(float));
}

bool inf_ordered_reduce(InfEngine *m, uint32_t bucket) {
    const Plan *plan = m->plan;
    const PlanBucket *b = &plan->bucket[bucket];
    int64_t share = share_of(plan, b), piece = piece_of(plan);
    inf_ordered_add(m, b);
    for (int64_t at = 0; plan->dp > 1 && at < share; at += piece) {
        Piece p = {b, at, share - at < piece ? share - at : piece};
        trade(m, &p, find_parts(m, &p));
        inf_ordered_join(m, inf_ordered_at(m, 0, b) + m->replica * share + at, p.count);
    }
    if (plan->dp > 1 && !inf_shards_on(m->pipeline)) show(m, inf_ordered_at(m, 0, b), share);
    return !m->order.surveying;
}

/* --- the end of a step --- */

static void finish(InfEngine *m) {
    const Plan *plan = m->plan;
    float *rows = room_at(m, plan->ordered->figures_at);
    int64_t n = plan->program[0].microbatches;
    if (plan->rank != plan->finish.loss_rank) return;
    if (plan->dp > 1) show(m, rows, n * inf_ordered_figures(plan));
    add_figures(m, rows, plan->dp * n, figures_at(m));
}

static int64_t most_adds(const Plan *plan, const PlanTask *task) {
    uint32_t most = 0;
    for (int r = 0; r < plan->dp; r++) {
        const PlanLeaf *l = inf_ordered_leaf(plan, task, r);
        if (l->nadd > most) most = l->nadd;
    }
    return most;
}

/* What a task of a chunk does to one of its buckets. */
static InfLaunches count_bucket(const Plan *plan, const PlanTask *task, const PlanBucket *b) {
    int64_t adds = most_adds(plan, task), piece = piece_of(plan), parts = plan->ordered->npart;
    InfLaunches all = {adds, 3 * adds};
    if (!task->last || plan->dp == 1) return all;
    int64_t pieces = (share_of(plan, b) + piece - 1) / piece;
    all.launches += pieces * parts + 1;
    all.args += pieces * ((int64_t)most_halves(plan) + 1 + 4 * parts) + 2;
    return all;
}

InfLaunches inf_ordered_launches(const InfEngine *m, const PlanTask *task) {
    const Plan *plan = m->plan;
    if (!m->ordered || task->kind > PTASK_update) return (InfLaunches){0, 0};
    InfLaunches all = {2, 5}; /* of figures: kept behind a forward, added at the end */
    if (task->kind != PTASK_backward && task->kind != PTASK_weight) return all;
    for (uint32_t i = 0; i < plan->nbucket; i++) {
        if (plan->bucket[i].local != task->local) continue;
        InfLaunches more = count_bucket(plan, task, &plan->bucket[i]);
        all.launches += more.launches;
        all.args += more.args;
    }
    return all;
}

const InfOrderedWay inf_ordered_device = {
    .open = open, .close = close, .keep = keep, .add = add, .finish = finish};
