/* param_values.c - the values of logical tensors, brought to rank 0. */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/params.h"
#include "runtime/transport.h"

enum { VALUES_TAG = INF_TAG_MAX }; /* one at a time, in the order of names */

static const float *stored_at(const InfParam *p, const InfEngine *m, int which) {
    if (which >= INF_VALUES_state)
        return inf_engine_at(m, PLAN_REGION_state,
                             (which - INF_VALUES_state) * m->plan->flat_bytes + p->offset);
    return inf_engine_at(m, PLAN_REGION_param, p->offset);
}

/* What this rank holds, ready to be written. */
static InfCode own_values(InfError *e, const InfParam *p, const InfEngine *m, int which,
                          float scale, const float **at, float **copy) {
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

InfCode inf_param_values(InfError *e, const InfParam *p, const InfEngine *m, int which, float scale,
                         const float **at, float **copy) {
    const InfTransport *t = m->plan->transport;
    int rank = m->plan->rank;
    uint64_t bytes = (uint64_t)p->count * sizeof(float);
    InfRequest request = {.busy = false};
    *at = *copy = NULL;
    if (!t || (p->rank == 0 && rank == 0)) return own_values(e, p, m, which, scale, at, copy);
    if (rank == 0) {
        *copy = malloc((size_t)bytes + 1);
        if (!*copy) return inf_fail(e, INF_IO, "out of memory");
        *at = *copy;
        TRY(t->recv(e, p->rank, VALUES_TAG, *copy, bytes, &request));
        return t->wait(e, &request);
    }
    if (p->rank != rank) return INF_OK;
    InfCode code = own_values(e, p, m, which, scale, at, copy);
    if (code == INF_OK) code = t->send(e, 0, VALUES_TAG, *at, bytes, &request);
    if (code == INF_OK) code = t->wait(e, &request);
    free(*copy);
    *at = *copy = NULL;
    return code;
}

InfCode inf_params_agree(InfError *e, const InfEngine *m, InfCode code) {
    const InfTransport *t = m->plan->transport;
    int32_t result = code;
    if (!t) return code;
    if (code != INF_OK && m->plan->rank != 0) return code;
    TRY(t->broadcast(e, 0, &result, sizeof result));
    if (result == INF_OK || m->plan->rank == 0) return code;
    return inf_fail(e, INF_PEER, "rank 0 could not write the file");
}
