/* optimizer.c - optimizer state from and to files: adam.m.<name>, adam.v.<name>, adam.t. */
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint.h"
#include "runtime/safetensors.h"

enum { STATE_MAX = 2 };

/* What the state vectors of an optimizer are called in files. */
static const struct {
    const char *vector[STATE_MAX];
    const char *count;
} state_names[] = {
    [PLAN_OPTIM_sgd] = {{"sgd.momentum.", NULL}, "sgd.t"},
    [PLAN_OPTIM_adam] = {{"adam.m.", "adam.v."}, "adam.t"},
    [PLAN_OPTIM_adamw] = {{"adam.m.", "adam.v."}, "adam.t"},
};

static char *state_name(const Plan *plan, int k, const char *param) {
    const char *prefix = state_names[plan->train.optimizer].vector[k];
    char *name = NULL;
    INF_ASSERT(k < STATE_MAX && prefix);
    return asprintf(&name, "%s%s", prefix, param) < 0 ? NULL : name;
}

static float *state_at(const InfEngine *m, int k, const InfParam *p) {
    return inf_engine_at(m, PLAN_REGION_state, k * m->plan->flat_bytes + p->offset);
}

/* Fills rows of the file; *copies and names are freed by the caller. */
static InfCode collect(InfError *e, const InfParams *params, const InfEngine *m, InfTensorOut *out,
                       void **owned) {
    int count = 0;
    for (int k = 0; k < m->plan->nstate; k++)
        for (int i = 0; i < params->count; i++) {
            const InfParam *p = &params->param[i];
            char *name = state_name(m->plan, k, p->name);
            float *values = malloc((size_t)p->count * sizeof *values + 1);
            owned[2 * count] = name;
            owned[2 * count + 1] = values;
            if (!name || !values) return inf_fail(e, INF_IO, "out of memory");
            inf_param_gather(p, state_at(m, k, p), values);
            InfTensorOut *t = &out[count++];
            *t = (InfTensorOut){
                .name = name, .dtype = INF_DTYPE_F32, .ndim = p->block->ndim, .values = values};
            for (int axis = 0; axis < p->block->ndim; axis++)
                t->shape[axis] = (uint64_t)p->block->dim[axis];
        }
    return INF_OK;
}

InfCode inf_optimizer_save(InfError *e, const InfParams *params, const InfEngine *m,
                           const char *path, int64_t updates) {
    size_t tensors = (size_t)params->count * (size_t)m->plan->nstate;
    InfTensorOut *out = calloc(tensors + 1, sizeof *out);
    void **owned = calloc(2 * tensors + 1, sizeof *owned);
    InfCode code =
        out && owned ? collect(e, params, m, out, owned) : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) {
        out[tensors] = (InfTensorOut){.name = state_names[m->plan->train.optimizer].count,
                                      .dtype = INF_DTYPE_I64,
                                      .values = &updates};
        code = inf_tensors_write(e, path, out, (int)tensors + 1);
    }
    for (size_t i = 0; owned && i < 2 * tensors; i++) free(owned[i]);
    free(owned);
    free(out);
    return code;
}

static InfCode load_one(InfError *e, InfEngine *m, const InfTensors *set, const InfParam *p, int k,
                        const char *path) {
    char *name = state_name(m->plan, k, p->name);
    float *values = malloc((size_t)p->count * sizeof *values + 1);
    InfCode code = name && values ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    const InfTensor *t = code == INF_OK ? inf_tensors_find(set, name) : NULL;
    if (code == INF_OK && (!t || t->count != (uint64_t)p->count))
        code = inf_fail(e, INF_DATA, "%s: '%s' is %s", path, name, t ? "mis-shaped" : "missing");
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, t, values);
    if (code == INF_OK) inf_param_scatter(p, values, state_at(m, k, p));
    free(values);
    free(name);
    return code;
}

static InfCode load_count(InfError *e, const InfTensors *set, const char *name, const char *path,
                          int64_t *updates) {
    const InfTensor *t = inf_tensors_find(set, name);
    if (!t || t->dtype != INF_DTYPE_I64 || t->count != 1)
        return inf_fail(e, INF_DATA, "%s: '%s' is missing or not one I64", path, name);
    return inf_file_read_at(e, &set->files[t->file], t->offset, updates, sizeof *updates);
}

InfCode inf_optimizer_load(InfError *e, const InfParams *params, InfEngine *m, const char *path,
                           int64_t *updates) {
    InfTensors set;
    TRY(inf_tensors_open(e, path, &set));
    InfCode code = load_count(e, &set, state_names[m->plan->train.optimizer].count, path, updates);
    for (int k = 0; code == INF_OK && k < m->plan->nstate; k++)
        for (int i = 0; code == INF_OK && i < params->count; i++)
            code = load_one(e, m, &set, &params->param[i], k, path);
    inf_tensors_close(&set);
    return code;
}
