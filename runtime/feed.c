/* feed.c - brings samples to a device. */
#include "runtime/feed.h"

#include <string.h>

#include "runtime/check.h"

enum { ALIGNMENT = 256 };

static uint64_t sample_pixels(const InfLoader *l) {
    return (uint64_t)l->images.rows * l->images.columns;
}

/* Samples that the device holds at a time. */
static uint64_t held(const InfFeed *f, const InfLoader *l) {
    return f->resident ? l->count : f->batch * INF_DEVICE_DEPTH;
}

static bool bytes_of(const InfLoader *l, uint64_t *pixels, uint64_t *bytes) {
    uint64_t labels = 0, samples = held(&l->feed, l);
    return inf_mul(samples, sample_pixels(l), pixels) && inf_round_up(*pixels, ALIGNMENT, pixels) &&
           inf_round_up(samples, ALIGNMENT, &labels) && inf_add(*pixels, labels, bytes);
}

InfCode inf_feed_plan(InfError *e, InfLoader *l, uint64_t batch, uint64_t left, bool stream,
                      uint64_t *bytes) {
    uint64_t pixels = 0;
    l->feed = (InfFeed){.resident = true, .batch = batch};
    if (stream || !bytes_of(l, &pixels, bytes) || *bytes > left) l->feed.resident = false;
    if (!bytes_of(l, &pixels, bytes))
        return inf_fail(e, INF_IO, "the batch does not fit into 64 bits of memory");
    return INF_OK;
}

InfCode inf_feed_place(InfError *e, InfLoader *l, InfEngine *m, unsigned char *at) {
    uint64_t pixels = 0, bytes = 0;
    bool fits = bytes_of(l, &pixels, &bytes);
    INF_ASSERT(fits);
    l->feed.pixels = at;
    l->feed.labels = at + pixels;
    if (l->feed.resident) {
        m->table->copy_in(m->device, l->feed.pixels, l->images.pixels, l->count * sample_pixels(l));
        m->table->copy_in(m->device, l->feed.labels, l->images.labels, l->count);
        return INF_OK;
    }
    l->feed.outgoing = m->table->host_take(m->device, bytes);
    return l->feed.outgoing ? INF_OK
                            : inf_fail(e, INF_IO, "no memory for the batches on their way");
}

/* Collects a submission's samples, in their order, in the outgoing buffers of one slot. */
static void gather(const InfLoader *l, uint64_t position, uint64_t count, unsigned char *pixels,
                   unsigned char *labels) {
    uint64_t n = sample_pixels(l);
#pragma omp parallel for schedule(static) if (count * n > 1 << 20)
    for (uint64_t i = 0; i < count; i++) {
        uint64_t sample = inf_loader_sample(l, position + i);
        memcpy(pixels + i * n, l->images.pixels + sample * n, (size_t)n);
        labels[i] = l->images.labels[sample];
    }
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
    uint64_t begin = f->next++ % INF_DEVICE_DEPTH * f->batch, n = sample_pixels(l);
    uint64_t real = l->count - position < f->batch ? l->count - position : f->batch;
    unsigned char *pixels = f->outgoing + begin * n;
    unsigned char *labels = f->outgoing + (f->labels - f->pixels) + begin;
    gather(l, position, real, pixels, labels);
    m->table->upload(m->device, f->pixels + begin * n, pixels, real * n);
    m->table->upload(m->device, f->labels + begin, labels, real);
    out->position = begin;
    out->end = begin + real;
    out->key = out->half_bits = 0;
}

/* Where an input is; every kind has four bytes an element. */
static void *input_at(InfEngine *m, const PlanInput *input) {
    if (!input) return NULL;
    void *at = m->on_device[input->at.region] + input->at.offset;
    inf_engine_use(m, at, input->dim[0] * inf_input_elements(input) * 4, true);
    return at;
}

void inf_feed_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program, uint64_t first) {
    InfStage stage = {
        .pixels = l->feed.pixels,
        .labels = l->feed.labels,
        .image = input_at(m, inf_input_find(program, PLAN_INPUT_image)),
        .label = input_at(m, inf_input_find(program, PLAN_INPUT_label)),
        .valid = input_at(m, inf_input_find(program, PLAN_INPUT_valid)),
        .first = first,
        .batch = program->batch,
        .sample_pixels = (int64_t)sample_pixels(l),
    };
    if (inf_engine_goes(m, 2.0)) m->table->stage(m->device, &stage);
}
