/* shards.c - see shards.h. */
#include "runtime/shards.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/bf16.h"
#include "runtime/check.h"

struct InfShards {
    InfRequest *spread; /* by shard */
    bool spreading;     /* weights are on their way */
};

InfCode inf_shards_open(InfError *e, InfPipeline *p) {
    const Plan *plan = p->plan;
    if (plan->nshard == 0 || !p->adds) return INF_OK;
    InfShards *s = p->shards = calloc(1, sizeof *s);
    if (!s) return inf_fail(e, INF_IO, "out of memory");
    s->spread = calloc((size_t)plan->nshard + 1, sizeof *s->spread);
    return s->spread ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

void inf_shards_close(InfPipeline *p) {
    InfShards *s = p->shards;
    if (!s) return;
    inf_shards_await(p, -1);
    free(s->spread);
    free(s);
    p->shards = NULL;
}

static float *floats_at(const InfEngine *m, PlanRegion region, int64_t offset) {
    return (float *)(void *)(m->home[region] + offset);
}

/* ---- steps --- */

void inf_shards_blocks(InfPipeline *p, InfEngine *m) {
    const PlanFinish *f = &p->plan->finish;
    float *blocks = floats_at(m, PLAN_REGION_scalar, f->blocks);
    memset(blocks, 0, (size_t)f->nblocks * sizeof *blocks);
    inf_engine_run(m, (uint32_t)f->blocks_program);
    double begin = inf_clock_ms();
    if (inf_pipeline_works(p))
        inf_pipeline_note(p, inf_sums_add(&p->error, p->sums, blocks, (uint64_t)f->nblocks));
    inf_pipeline_waited_since(p, begin);
}

void inf_shards_spread(InfPipeline *p, InfEngine *m) {
    InfShards *s = p->shards;
    for (uint32_t i = 0; i < p->plan->nshard && inf_pipeline_works(p); i++) {
        const PlanShard *shard = &p->plan->shard[i];
        uint64_t each = (uint64_t)shard->bytes / sizeof(float);
        INF_ASSERT(!shard->owned); /* copies are what devices have */
        inf_pipeline_note(p, p->transport->spread(&p->error,
                                                  floats_at(m, PLAN_REGION_param, shard->at), each,
                                                  &s->spread[i]));
        inf_sum_times_begin(
            &p->times, &(InfSumTime){.kind = PTASK_gather, .number = i, .request = &s->spread[i]});
    }
    s->spreading = true;
}

void inf_shards_await(InfPipeline *p, int local) {
    InfShards *s = p->shards;
    bool left = false;
    for (uint32_t i = 0; s->spreading && i < p->plan->nshard && inf_pipeline_works(p); i++) {
        int of = p->plan->shard[i].local;
        if (local < 0 || of == local || of < 0) inf_pipeline_await(p, &s->spread[i]);
        left = left || s->spread[i].busy;
    }
    s->spreading = left;
    inf_sum_times_look(&p->times, p->transport);
}

/* ---- values --- */

/* The part of a tensor that a replica owns in a shard: elements of it, and where the shard has
 * the first of them. False: nothing. */
typedef struct Piece {
    int64_t from, to; /* of the tensor */
    int64_t at;       /* of what is owned */
} Piece;

static bool piece_of(const InfParam *p, int replica, const PlanShard *s, Piece *out) {
    int64_t begin = (s->at + replica * s->bytes) / 4, end = begin + s->bytes / 4;
    int64_t first = p->offset / 4, last = first + inf_param_stored(p);
    int64_t low = begin > first ? begin : first, high = end < last ? end : last;
    *out = (Piece){low - first, high - first, low - begin};
    return low < high;
}

static float *state_at(const InfEngine *m, int k, const PlanShard *s) {
    return floats_at(m, PLAN_REGION_state, k * m->plan->state_bytes + s->state_at);
}

/* What a replica owns of a shard: of a state, or the weights. */
static const float *owned_at(const InfEngine *m, int which, const PlanShard *s) {
    if (which >= INF_VALUES_state) return state_at(m, which - INF_VALUES_state, s);
    INF_ASSERT(s->owned && m->bytes[PLAN_REGION_state] > 0);
    return floats_at(m, PLAN_REGION_state, s->master_at);
}

/* Where others have values, here is what changes none of them when it is added: -0, not 0, for
 * which -0 is no zero. */
static void leave_to_others(const InfParam *p, const InfEngine *m, const PlanShard *s,
                            float *stored) {
    Piece piece;
    for (int r = 0; r < m->pipeline->replicas; r++)
        if (r != m->replica && piece_of(p, r, s, &piece))
            for (int64_t i = piece.from; i < piece.to; i++) stored[i] = -0.0f;
}

/* The sum over the uses of elements [from, to) of a tensor's gradient. */
static void add_uses(const InfParam *p, const InfEngine *m, Piece piece, float *stored) {
    for (int use = 0; use < p->block->uses; use++) {
        const float *grad = floats_at(m, PLAN_REGION_grad, inf_param_use_offset(p, use));
        for (int64_t i = piece.from; i < piece.to; i++)
            stored[i] = use == 0 ? grad[i] : stored[i] + grad[i];
    }
}

InfCode inf_shards_values(InfError *e, const InfParam *p, const InfEngine *m, int which,
                          float *stored) {
    int64_t total = inf_param_stored(p);
    Piece piece;
    memset(stored, 0, (size_t)total * sizeof *stored);
    for (uint32_t i = 0; i < m->plan->nshard; i++) {
        const PlanShard *s = &m->plan->shard[i];
        leave_to_others(p, m, s, stored);
        if (!piece_of(p, m->replica, s, &piece)) continue;
        if (which == INF_VALUES_gradients)
            add_uses(p, m, piece, stored);
        else
            memcpy(stored + piece.from, owned_at(m, which, s) + piece.at,
                   (size_t)(piece.to - piece.from) * sizeof *stored);
    }
    if (m->pipeline->replicas == 1) return INF_OK;
    return inf_sums_add(e, m->pipeline->sums, stored, (uint64_t)total);
}

void inf_shards_load(const InfParam *p, InfEngine *m, int k, const float *stored) {
    Piece piece;
    for (uint32_t i = 0; i < m->plan->nshard; i++) {
        const PlanShard *s = &m->plan->shard[i];
        if (piece_of(p, m->replica, s, &piece))
            memcpy(state_at(m, k, s) + piece.at, stored + piece.from,
                   (size_t)(piece.to - piece.from) * sizeof *stored);
    }
}

void inf_shards_put(const InfParam *p, InfEngine *m, int64_t at, const float *values,
                    int64_t count) {
    Piece piece;
    uint16_t *copy = (uint16_t *)(void *)(m->home[PLAN_REGION_copy] + p->offset / 2) + at;
    for (int64_t i = 0; i < count; i++) copy[i] = inf_bf16(values[i]);
    for (uint32_t i = 0; m->bytes[PLAN_REGION_state] > 0 && i < m->plan->nshard; i++) {
        const PlanShard *s = &m->plan->shard[i];
        if (!s->owned || !piece_of(p, m->replica, s, &piece)) continue;
        int64_t low = piece.from > at ? piece.from : at;
        int64_t high = piece.to < at + count ? piece.to : at + count;
        if (low < high)
            memcpy(floats_at(m, PLAN_REGION_state, s->master_at) + piece.at + low - piece.from,
                   values + low - at, (size_t)(high - low) * sizeof *values);
    }
}
