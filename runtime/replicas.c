/* replicas.c - hashes of logical tensors, compared between ranks.
 *
 * Reads   every logical tensor that this rank holds, padding left out, so that a tied weight on two
 *         ranks of a pipeline has one hash, too. Of weights in f32 with their owners only
 *         (PlanParam.owned), the copy in bf16.
 * Writes  nothing: the first tensor that differs is named, with the ranks.
 * Why     equal replicas are what makes one checkpoint of replica 0 the whole truth. They are equal
 *         by construction; other files, another processor or a broken one would go unnoticed.
 */
#include "runtime/replicas.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/bf16.h"
#include "runtime/transport.h"

/* Hashes that a rank tells at once. */
enum { HASHES_MAX = 1 << 16 };

/* Elements have `size` bytes. */
static uint64_t hash_tensor(const InfParam *p, const void *stored, size_t size,
                            XXH3_state_t *state) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    const char *at = stored;
    if (inf_param_contiguous(p)) return XXH3_64bits(at, (size_t)p->count * size) | 1;
    XXH3_64bits_reset(state);
    for (int64_t row = 0; row < rows; row++)
        XXH3_64bits_update(state, at + (size_t)inf_param_row_at(p, row) * size,
                           (size_t)length * size);
    return XXH3_64bits_digest(state) | 1; /* 0: not here */
}

/* The hash of the copy in bf16 of what is here in f32. */
static uint64_t hash_rounded(const InfParam *p, const float *stored, XXH3_state_t *state) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    uint16_t piece[256];
    const int64_t most = sizeof piece / sizeof *piece;
    XXH3_64bits_reset(state);
    for (int64_t row = 0; row < rows; row++) {
        const float *at = stored + inf_param_row_at(p, row);
        for (int64_t done = 0, n; done < length; done += n) {
            n = length - done < most ? length - done : most;
            for (int64_t i = 0; i < n; i++) piece[i] = inf_bf16(at[done + i]);
            XXH3_64bits_update(state, piece, (size_t)n * sizeof *piece);
        }
    }
    return XXH3_64bits_digest(state) | 1;
}

static uint64_t hash_weight(const InfParam *p, const InfEngine *m, XXH3_state_t *state) {
    if (p->block->owned)
        return hash_tensor(p, inf_engine_at(m, PLAN_REGION_copy, p->offset / 2), sizeof(uint16_t),
                           state);
    const float *stored = inf_engine_at(m, PLAN_REGION_param, p->offset);
    return p->halves ? hash_rounded(p, stored, state)
                     : hash_tensor(p, stored, sizeof *stored, state);
}

/* By state vector (first the weights), then by tensor. */
static void hash_all(const InfParams *all, const InfEngine *m, int vectors, XXH3_state_t *state,
                     uint64_t *hash) {
    for (int k = 0; k < vectors; k++)
        for (int i = 0; i < all->count; i++) {
            const InfParam *p = &all->param[i];
            int64_t at = (k - 1) * m->plan->state_bytes + p->offset;
            *hash = 0;
            if (p->here && k == 0) *hash = hash_weight(p, m, state);
            if (p->here && k > 0)
                *hash =
                    hash_tensor(p, inf_engine_at(m, PLAN_REGION_state, at), sizeof(float), state);
            hash++;
        }
}

/* Which ranks have another hash than the first that has one; the text begins with that one. */
static int compare(const uint64_t *all, int ranks, int count, int which, char *text, size_t bytes) {
    int first = -1, differ = 0;
    size_t length = 0;
    for (int r = 0; r < ranks; r++) {
        uint64_t hash = all[(size_t)r * (size_t)count + (size_t)which];
        if (hash == 0) continue;
        if (first < 0) first = r;
        if (hash == all[(size_t)first * (size_t)count + (size_t)which]) continue;
        if (length < bytes - 16)
            length +=
                (size_t)snprintf(text + length, bytes - length, "%s%d", differ ? ", " : "", r);
        differ++;
    }
    if (differ && length < bytes - 32)
        snprintf(text + length, bytes - length, " from rank %d", first);
    return differ;
}

static InfCode fail_different(InfError *e, const Plan *plan, const char *what, const char *name,
                              const char *ranks, int64_t step) {
    if (step > 0)
        return inf_fail(e, INF_INTERNAL,
                        "the replicas went apart by step %lld: %s '%s' differs on rank %s\n"
                        "  = hint: start again from a checkpoint before it; ranks need the same "
                        "executable, flags, libraries and kind of processor",
                        (long long)step, what, name, ranks);
    return inf_fail(e, INF_PEER,
                    "the replicas of %s do not begin alike: %s '%s' differs on rank %s\n"
                    "  = hint: every rank needs the same weight files and the same flags",
                    plan->model, what, name, ranks);
}

static InfCode compare_all(InfError *e, const InfParams *all, const InfEngine *m,
                           const uint64_t *mine, uint64_t *theirs, int total, int64_t step) {
    int ranks = inf_plan_processes(m->plan);
    char text[256];
    for (int done = 0, n; done < total; done += n) {
        n = total - done < HASHES_MAX ? total - done : HASHES_MAX;
        TRY(inf_engine_transport(m)->gather(e, mine + done, (uint64_t)n * sizeof *mine, theirs));
        for (int i = 0; i < n; i++) {
            if (compare(theirs, ranks, n, i, text, sizeof text) == 0) continue;
            int k = (done + i) / all->count;
            const char *name = all->param[(done + i) % all->count].name;
            return fail_different(e, m->plan, k == 0 ? "parameter" : "the optimizer's state of",
                                  name, text, step);
        }
    }
    return INF_OK;
}

InfCode inf_replicas_same(InfError *e, const InfParams *all, InfEngine *m, int64_t step) {
    bool states = m->bytes[PLAN_REGION_state] > 0;
    int vectors = 1 + (states && m->plan->nshard == 0 ? m->plan->nstate : 0),
        total = vectors * all->count;
    int most = total < HASHES_MAX ? total : HASHES_MAX;
    if (!inf_engine_transport(m) || inf_plan_replicas(m->plan) == 1) return INF_OK;
    inf_engine_fetch_all(m, PLAN_REGION_param);
    if (inf_plan_owns(m->plan)) inf_engine_fetch_all(m, PLAN_REGION_copy);
    if (states) inf_engine_fetch_all(m, PLAN_REGION_state);
    TRY(m->table->finish(e, m->device));
    XXH3_state_t *state = XXH3_createState();
    uint64_t *mine = calloc((size_t)total + 1, sizeof *mine);
    uint64_t *theirs =
        calloc((size_t)most * (size_t)inf_plan_processes(m->plan) + 1, sizeof *theirs);
    InfCode code = state && mine && theirs ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) {
        hash_all(all, m, vectors, state, mine);
        code = compare_all(e, all, m, mine, theirs, total, step);
    }
    XXH3_freeState(state);
    free(mine);
    free(theirs);
    return code;
}
