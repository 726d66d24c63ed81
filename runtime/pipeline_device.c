/* pipeline_device.c - messages between devices that have memory of their own, as launches.
 *
 * Nothing is waited for by the host. Kernels wait because launches run one after another, or in a
 * recorded graph because a message says what memory it reads and writes. A send and a receive that
 * follow each other go in both directions at once.
 */
#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/ordered.h"
#include "runtime/pipeline.h"
#include "runtime/shards.h"
#include "runtime/step.h"

/* A message costs this, and a microsecond for this many bytes: enough to order by. */
enum { MESSAGE_US = 5, BYTES_US = 100000 };

static unsigned char *at(const InfEngine *m, PlanRegion region, int64_t offset) {
    return m->home_on_device[region] + offset;
}

/* Enqueues the halves, at once. */
static void exchange(InfEngine *m, const InfHalf *half, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        inf_engine_use(m, half[i].at, (int64_t)half[i].bytes, !half[i].send);
        bytes += half[i].bytes;
    }
    if (inf_engine_message_goes(m, MESSAGE_US + (double)bytes / BYTES_US))
        m->table->exchange(m->device, half, count);
}

static InfHalf half_of(const InfPipeline *p, const InfEngine *m, const PlanTask *task) {
    const PlanMessage *message = &p->plan->message[task->message];
    bool send = task->kind == PTASK_send;
    return (InfHalf){.send = send,
                     .peer = inf_pipeline_process(p, send ? message->to_rank : message->from_rank),
                     .at = at(m, PLAN_REGION_message, send ? message->from_at : message->to_at),
                     .bytes = (uint64_t)message->bytes};
}

static bool is_message(const PlanTask *task) {
    return task->kind == PTASK_send || task->kind == PTASK_recv;
}

/* One send with one receive, never more: both ends make progress together then, whatever else they
 * wait for. */
static uint32_t message(InfPipeline *p, InfEngine *m, const PlanTask *task, uint32_t count) {
    bool both = count > 1 && is_message(&task[1]) && task[0].kind != task[1].kind;
    InfHalf half[2] = {half_of(p, m, &task[0])};
    if (both) half[1] = half_of(p, m, &task[1]);
    exchange(m, half, both ? 2 : 1);
    return both ? 2 : 1;
}

/* --- between replicas --- */

static double cost_of(uint64_t bytes) { return MESSAGE_US + (double)bytes / BYTES_US; }

/* The whole vectors are written; in a recorded graph kernels that use them wait for that. */
static void add(InfEngine *m, const InfAddend *part, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        inf_engine_use(m, part[i].at, (int64_t)(part[i].count * sizeof(float)), true);
        bytes += part[i].count * sizeof(float);
    }
    if (inf_engine_replicas_go(m, cost_of(bytes))) m->table->add(m->device, part, count);
}

static void reduce(InfPipeline *p, InfEngine *m, uint32_t bucket) {
    const PlanBucket *b = &p->plan->bucket[bucket];
    float *from = (float *)(void *)at(m, PLAN_REGION_grad, b->at);
    uint64_t count = (uint64_t)b->bytes / sizeof *from;
    if (m->ordered) {
        p->nbegun += inf_ordered_reduce(m, bucket);
        return;
    }
    inf_engine_use(m, from, b->bytes, true);
    if (!inf_engine_replicas_go(m, cost_of((uint64_t)b->bytes))) return;
    if (inf_shards_on(p))
        m->table->scatter(m->device, from, count / (uint64_t)p->replicas);
    else
        m->table->add(m->device, &(InfAddend){from, count}, 1);
    p->nbegun++;
}

/* Loss, counts and metrics of the replicas of the last chunk. */
static void add_losses(InfPipeline *p, InfEngine *m) {
    const PlanProgram *train = &p->plan->program[0];
    InfAddend part[2 * INF_METRIC_MAX];
    uint32_t n = 0;
    INF_ASSERT(train->nmetric <= INF_METRIC_MAX);
    if (!p->adds || p->plan->ordered || p->rank != p->plan->finish.loss_rank) return;
    for (uint32_t i = 0; i < 2 * train->nmetric; i++) {
        const PlanMetric *metric = &train->metric[i / 2];
        int64_t where = i % 2 ? metric->count : metric->sum;
        part[n++] = (InfAddend){(float *)(void *)at(m, PLAN_REGION_scalar, where), 1};
    }
    add(m, part, n);
}

/* --- the end of a step --- */

/* What of a shared gradient this replica has summed: all of it, or the part that it owns. */
static InfHalf shared_half(const InfPipeline *p, const InfEngine *m, const PlanShare *s,
                           bool send) {
    int64_t bytes = inf_shards_on(p) ? s->bytes / p->replicas : s->bytes;
    int64_t skip = inf_shards_on(p) ? p->replica * bytes : 0;
    return (InfHalf){.send = send,
                     .peer = inf_pipeline_process(p, send ? s->to_rank : s->from_rank),
                     .at = at(m, PLAN_REGION_grad, (send ? s->from_at : s->to_at) + skip),
                     .bytes = (uint64_t)bytes};
}

static void share_gradients(InfPipeline *p, InfEngine *m) {
    const Plan *plan = p->plan;
    InfHalf *half = plan->nshare ? calloc(2 * (size_t)plan->nshare, sizeof *half) : NULL;
    uint32_t count = 0;
    if (plan->nshare && !half) {
        inf_pipeline_note(p, inf_fail(&p->error, INF_IO, "out of memory"));
        return;
    }
    for (uint32_t i = 0; i < plan->nshare; i++) {
        const PlanShare *s = &plan->share[i];
        if (s->from_rank == p->rank) half[count++] = shared_half(p, m, s, true);
        if (s->to_rank == p->rank) half[count++] = shared_half(p, m, s, false);
    }
    if (count > 0) exchange(m, half, count);
    free(half);
}

static void settle(InfPipeline *p, InfEngine *m, bool gradients) {
    const PlanFinish *f = &p->plan->finish;
    void *loss = at(m, PLAN_REGION_scalar, f->loss);
    if (gradients) add_losses(p, m);
    if (!gradients && p->replicas > 1) return; /* on the host: inf_pipeline_gather */
    inf_engine_use(m, loss, f->loss_bytes, true);
    if (inf_engine_message_goes(m, MESSAGE_US))
        m->table->broadcast(m->device, p->replicas * f->loss_rank, loss, (uint64_t)f->loss_bytes);
    if (gradients) share_gradients(p, m);
}

static void clear(InfEngine *m, float *at, int64_t count) {
    int64_t bytes = count * (int64_t)sizeof *at;
    inf_engine_use(m, at, bytes, true);
    if (inf_engine_goes(m, 1)) m->table->clear(m->device, at, (uint64_t)bytes);
}

/* zero = 1: sums of the norm's blocks that this replica owns, then of all; exact, because in each
 * block others have zero. */
static void sum_blocks(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *blocks = (float *)(void *)at(m, PLAN_REGION_scalar, f->blocks);
    clear(m, blocks, f->nblocks);
    inf_engine_run(m, (uint32_t)f->blocks_program);
    add(m, &(InfAddend){blocks, (uint64_t)f->nblocks}, 1);
}

static void norm(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *squares = (float *)(void *)at(m, PLAN_REGION_scalar, f->squares);
    if (inf_shards_on(p)) sum_blocks(p, m);
    clear(m, squares, f->nsquares);
    /* Replicas have the same gradients: one of them says how large they are. */
    if (p->replica == 0) inf_engine_run(m, (uint32_t)f->norm);
    inf_engine_use(m, squares, f->nsquares * (int64_t)sizeof *squares, true);
    if (inf_engine_message_goes(m, MESSAGE_US))
        m->table->sum(m->device, squares, (uint64_t)f->nsquares);
}

/* What is read in f32 goes to all so, and each replica makes the copy in bf16 of it; of other
 * weights the copy goes to all, as the update left it. */
static void spread(InfPipeline *p, InfEngine *m) {
    for (uint32_t i = 0; i < p->plan->nshard; i++) {
        const PlanShard *shard = &p->plan->shard[i];
        bool half = shard->owned;
        int64_t each = inf_shard_brings(shard), all = each * p->replicas;
        unsigned char *from =
            half ? at(m, PLAN_REGION_copy, shard->at / 2) : at(m, PLAN_REGION_param, shard->at);
        inf_engine_use(m, from, all, true);
        if (inf_engine_replicas_go(m, cost_of((uint64_t)all)))
            m->table->spread(m->device, from, (uint64_t)each);
    }
    inf_engine_copy_weights(m);
}

/* Of the loss: its sum over replicas and to all; of the norm: two times zeros, sums of blocks and
 * of squares; the shares. */
InfLaunches inf_pipeline_launches(const InfPipeline *p) {
    const Plan *plan = p->plan;
    InfLaunches all = {.launches = 4, .args = 8 + 2 * (int64_t)plan->nshare};
    if (!p->adds) return all;
    all.launches += 3 + plan->nbucket + plan->nshard;
    all.args += 6 + 2 * INF_METRIC_MAX + 2 * ((int64_t)plan->nbucket + plan->nshard);
    return all;
}

const InfPipelineWay inf_pipeline_device = {
    .message = message, .reduce = reduce, .settle = settle, .norm = norm, .spread = spread};
