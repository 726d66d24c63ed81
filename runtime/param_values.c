/* param_values.c - the values of logical tensors, brought to rank 0. */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/params.h"
#include "runtime/shards.h"
#include "runtime/transport.h"

enum { VALUES_TAG = INF_TAG_MAX }; /* one at a time, in the order of names */

static const float *stored_at(const InfParam *p, const InfEngine *m, int which) {
    if (which >= INF_VALUES_state)
        return inf_engine_at(m, PLAN_REGION_state,
                             (which - INF_VALUES_state) * m->plan->state_bytes + p->offset);
    return inf_engine_at(m, PLAN_REGION_param, p->offset);
}

/* Whether replicas have a part each. */
static bool are_shared(const InfParam *p, const InfEngine *m, int which) {
    return inf_shards_on(m->pipeline) && (which != INF_VALUES_weights || p->block->owned);
}

/* The values then. */
static InfCode shared_values(InfError *e, const InfParam *p, const InfEngine *m, int which,
                             float scale, const float **at, float **copy) {
    size_t bytes = (size_t)inf_param_stored(p) * sizeof(float);
    float *stored = malloc(bytes + 1);
    *copy = malloc((size_t)p->count * sizeof **copy + 1);
    InfCode code = stored && *copy ? inf_shards_values(e, p, m, which, stored)
                                   : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) inf_param_gather(p, stored, *copy);
    for (int64_t i = 0; which == INF_VALUES_gradients && code == INF_OK && i < p->count; i++)
        (*copy)[i] *= scale;
    free(stored);
    *at = *copy;
    return code;
}

/* The other replicas' part in that. */
static InfCode give_values(InfError *e, const InfParam *p, const InfEngine *m, int which) {
    const float *at;
    float *copy = NULL;
    if (!are_shared(p, m, which) || p->rank != m->plan->rank) return INF_OK;
    InfCode code = shared_values(e, p, m, which, 1.0f, &at, &copy);
    free(copy);
    return code;
}

/* What this rank holds, ready to be written. */
static InfCode own_values(InfError *e, const InfParam *p, const InfEngine *m, int which,
                          float scale, const float **at, float **copy) {
    INF_ASSERT(which != INF_VALUES_weights || !p->block->owned || inf_shards_on(m->pipeline));
    if (are_shared(p, m, which)) return shared_values(e, p, m, which, scale, at, copy);
    const float *stored = stored_at(p, m, which);
    *at = stored;
    if (which != INF_VALUES_gradients && inf_param_contiguous(p)) return INF_OK;
    *copy = malloc((size_t)p->count * sizeof **copy + 1);
    if (!*copy) return inf_fail(e, INF_IO, "out of memory");
    if (which == INF_VALUES_gradients)
        inf_param_gradient(p, m, scale, *copy);
    else
        inf_param_gather(p, stored, *copy);
    *at = *copy;
    return INF_OK;
}

InfCode inf_values_bring(InfError *e, const InfEngine *m, int from, const float *mine,
                         int64_t count, float **copy) {
    const InfTransport *t = inf_engine_transport(m);
    uint64_t bytes = (uint64_t)count * sizeof(float);
    InfRequest request = {.busy = false};
    if (m->replica > 0) return INF_OK;
    if (m->plan->rank == from) {
        TRY(t->send(e, 0, VALUES_TAG, mine, bytes, &request));
    } else if (m->plan->rank == 0) {
        *copy = malloc((size_t)bytes + 1);
        if (!*copy) return inf_fail(e, INF_IO, "out of memory");
        TRY(t->recv(e, inf_engine_process(m, from), VALUES_TAG, *copy, bytes, &request));
    }
    return t->wait(e, &request);
}

InfCode inf_param_values(InfError *e, const InfParam *p, const InfEngine *m, int which, float scale,
                         const float **at, float **copy) {
    int rank = m->plan->rank;
    *at = *copy = NULL;
    if (m->replica > 0) return give_values(e, p, m, which);
    bool alone = !inf_engine_transport(m), holds = p->rank == rank || alone;
    InfCode code = holds ? own_values(e, p, m, which, scale, at, copy) : INF_OK;
    if (alone || p->rank == 0 || code != INF_OK) return code;
    if (!holds) {
        code = inf_values_bring(e, m, p->rank, NULL, p->count, copy);
        *at = *copy;
        return code;
    }
    code = inf_values_bring(e, m, rank, *at, p->count, copy);
    free(*copy);
    *at = *copy = NULL;
    return code;
}

InfCode inf_params_agree(InfError *e, const InfEngine *m, InfCode code) {
    const InfTransport *t = inf_engine_transport(m);
    int32_t result = code;
    if (!t) return code;
    if (code != INF_OK && !inf_engine_leads(m)) return code;
    TRY(t->broadcast(e, 0, &result, sizeof result));
    if (result == INF_OK || inf_engine_leads(m)) return code;
    return inf_fail(e, INF_PEER, "rank 0 gave up");
}
