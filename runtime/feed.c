/* feed.c - brings samples to a device. */
#include "runtime/feed.h"

#include <string.h>

#include "runtime/check.h"

enum { ALIGNMENT = 256, THREADS_MAX = 4 };

/* Samples that the device holds at a time. */
static uint64_t held(const InfFeed *f, const InfLoader *l) {
    return f->resident ? l->count : f->batch * INF_DEVICE_DEPTH;
}

/* Bytes of so many samples: rows, rounded up, then labels. */
static bool bytes_of(const InfLoader *l, uint64_t samples, uint64_t *rows, uint64_t *bytes) {
    uint64_t labels = 0;
    return inf_mul(samples, l->row_bytes, rows) && inf_round_up(*rows, ALIGNMENT, rows) &&
           inf_round_up(l->labels ? samples : 0, ALIGNMENT, &labels) &&
           inf_add(*rows, labels, bytes);
}

InfCode inf_feed_plan(InfError *e, InfLoader *l, uint64_t batch, uint64_t left, bool stream,
                      uint64_t *bytes) {
    uint64_t rows = 0;
    InfFeed *f = &l->feed;
    *f = (InfFeed){.resident = true, .batch = batch};
    if (stream || !bytes_of(l, held(f, l), &rows, bytes) || *bytes > left) f->resident = false;
    if (!inf_mul(batch, INF_DEVICE_DEPTH, &rows) || !bytes_of(l, held(f, l), &rows, bytes))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    return INF_OK;
}

/* Collects the samples of a batch, in their order, in a slot; the loader thread does. */
static void fill(const void *context, const InfBatch *batch, unsigned char *slot) {
    const InfLoader *l = context;
    uint64_t n = l->row_bytes;
    unsigned char *labels = slot + l->feed.slot_rows;
    bool large = batch->count * n > 1 << 16;
#pragma omp parallel for schedule(static) num_threads(l->feed.threads) if (large)
    for (uint64_t i = 0; i < batch->count; i++) {
        uint64_t sample = batch->position + i;
        if (batch->order.half_bits) sample = inf_permutation_at(&batch->order, sample);
        memcpy(slot + i * n, l->rows + sample * n, (size_t)n);
        if (l->labels) labels[i] = l->labels[sample];
    }
}

/* One slot more than submissions on their way: it is filled while the device reads the others. */
static InfCode start_stream(InfError *e, InfLoader *l, InfEngine *m) {
    InfFeed *f = &l->feed;
    InfSlots slots = {.count = INF_DEVICE_DEPTH + 1};
    uint64_t all = 0;
    if (!bytes_of(l, f->batch, &f->slot_rows, &slots.bytes) ||
        !inf_mul(slots.bytes, (uint64_t)slots.count, &all))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    slots.at = m->table->host_take(m->device, all);
    if (!slots.at) return inf_fail(e, INF_IO, "no memory for the batches on their way");
    f->threads = m->env.threads < THREADS_MAX ? m->env.threads : THREADS_MAX;
    return inf_prefetch_open(e, fill, l, slots, &f->prefetch);
}

InfCode inf_feed_place(InfError *e, InfLoader *l, InfEngine *m, unsigned char *at) {
    uint64_t rows = 0, bytes = 0;
    bool fits = bytes_of(l, held(&l->feed, l), &rows, &bytes);
    INF_ASSERT(fits);
    l->feed.before = (uint64_t)m->replica * l->feed.batch;
    l->feed.stride = (uint64_t)inf_plan_replicas(m->plan) * l->feed.batch;
    l->feed.rows = at;
    l->feed.labels = at + rows;
    if (!l->feed.resident) return start_stream(e, l, m);
    m->table->copy_in(m->device, l->feed.rows, l->rows, l->count * l->row_bytes);
    if (l->labels) m->table->copy_in(m->device, l->feed.labels, l->labels, l->count);
    return INF_OK;
}

void inf_feed_close(InfLoader *l) {
    inf_prefetch_close(l->feed.prefetch);
    l->feed.prefetch = NULL;
}

/* The batch at a position of the epoch. */
static InfBatch batch_at(const InfLoader *l, uint64_t position) {
    uint64_t left = position < l->count ? l->count - position : 0, most = l->feed.batch;
    InfBatch batch = {.position = position, .count = left < most ? left : most};
    if (l->shuffle) batch.order = l->order;
    return batch;
}

/* The one that most likely follows: of the next epoch when training, where all replicas together
 * take whole batches. */
static InfBatch batch_after(const InfLoader *l, const InfBatch *now) {
    const InfFeed *f = &l->feed;
    uint64_t position = now->position + f->stride, first = position - f->before;
    uint64_t least = l->training ? f->stride : 1;
    if (first <= l->count && l->count - first >= least) return batch_at(l, position);
    InfBatch batch = batch_at(l, f->before);
    if (l->shuffle) batch.order = inf_permutation_make(l->count, l->seed, l->epoch + 1);
    return batch;
}

void inf_feed_send(InfLoader *l, InfEngine *m, uint64_t position, InfDeviceMoment *out) {
    InfFeed *f = &l->feed;
    out->count = l->count;
    if (f->resident) {
        out->position = position;
        out->end = l->count;
        out->key = l->order.key;
        out->half_bits = l->shuffle ? l->order.half_bits : 0;
        return;
    }
    uint64_t begin = f->next++ % INF_DEVICE_DEPTH * f->batch, n = l->row_bytes;
    InfBatch now = batch_at(l, position), after = batch_after(l, &now);
    unsigned char *slot = inf_prefetch_take(f->prefetch, &now, &after);
    if (now.count > 0) m->table->upload(m->device, f->rows + begin * n, slot, now.count * n);
    if (now.count > 0 && l->labels)
        m->table->upload(m->device, f->labels + begin, slot + f->slot_rows, now.count);
    out->position = begin;
    out->end = begin + now.count;
    out->key = out->half_bits = 0;
}

/* Where the input of a kind that chunk `local` reads is, NULL if there is none; every kind has four
 * bytes an element. */
static void *input_at(InfEngine *m, const PlanProgram *program, int32_t local, PlanInputKind kind) {
    for (uint32_t i = 0; i < program->ninput; i++) {
        const PlanInput *input = &program->input[i];
        if (input->kind != kind || input->local != local) continue;
        void *at = m->on_device[input->at.region] + input->at.offset;
        inf_engine_use(m, at, input->dim[0] * inf_input_elements(input) * 4, true);
        return at;
    }
    return NULL;
}

void inf_feed_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program, int32_t local,
                    uint64_t first) {
    bool tokens = l->kind == PLAN_DATA_tokens;
    InfStage stage = {
        .rows = l->feed.rows,
        .labels = l->feed.labels,
        .input = input_at(m, program, local, tokens ? PLAN_INPUT_tokens : PLAN_INPUT_image),
        .target = input_at(m, program, local, tokens ? PLAN_INPUT_targets : PLAN_INPUT_label),
        .valid = input_at(m, program, local, PLAN_INPUT_valid),
        .first = first,
        .batch = program->batch,
        .length = (int64_t)(tokens ? l->tokens.length : l->row_bytes),
        .token_bytes = tokens ? (int32_t)l->tokens.width : 0,
    };
    if (inf_engine_goes(m, 2.0)) m->table->stage(m->device, &stage);
}
