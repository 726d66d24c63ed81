/* pipeline_device.c - messages between devices that have memory of their own, as launches.
 *
 * Nothing is waited for by the host. Kernels wait because launches run one after another, or in a
 * recorded graph because a message says what memory it reads and writes. A send and a receive that
 * follow each other go in both directions at once.
 */
#include <stdlib.h>

#include "runtime/check.h"
#include "runtime/pipeline.h"

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
                     .peer = send ? message->to_rank : message->from_rank,
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
        uint64_t bytes = (uint64_t)s->bytes;
        if (s->from_rank == p->rank)
            half[count++] = (InfHalf){true, s->to_rank, at(m, PLAN_REGION_grad, s->from_at), bytes};
        if (s->to_rank == p->rank)
            half[count++] =
                (InfHalf){false, s->from_rank, at(m, PLAN_REGION_grad, s->to_at), bytes};
    }
    if (count > 0) exchange(m, half, count);
    free(half);
}

static void settle(InfPipeline *p, InfEngine *m, bool gradients) {
    const PlanFinish *f = &p->plan->finish;
    void *loss = at(m, PLAN_REGION_scalar, f->loss);
    inf_engine_use(m, loss, f->loss_bytes, true);
    if (inf_engine_message_goes(m, MESSAGE_US))
        m->table->broadcast(m->device, f->loss_rank, loss, (uint64_t)f->loss_bytes);
    if (gradients) share_gradients(p, m);
}

static void norm(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *squares = (float *)(void *)at(m, PLAN_REGION_scalar, f->squares);
    int64_t bytes = f->nsquares * (int64_t)sizeof *squares;
    inf_engine_use(m, squares, bytes, true);
    if (inf_engine_goes(m, 1)) m->table->clear(m->device, squares, (uint64_t)bytes);
    inf_engine_run(m, (uint32_t)f->norm);
    inf_engine_use(m, squares, bytes, true);
    if (inf_engine_message_goes(m, MESSAGE_US))
        m->table->sum(m->device, squares, (uint64_t)f->nsquares);
    (void)p;
}

InfLaunches inf_pipeline_launches(const InfPipeline *p) {
    return (InfLaunches){.launches = 4, .args = 8 + 2 * (int64_t)p->plan->nshare};
}

const InfPipelineWay inf_pipeline_device = {.message = message, .settle = settle, .norm = norm};
