/* optimizer.c - optimizer state from and to files: adam.m.<name>, adam.v.<name>, adam.t.
 *
 * Reads   the same; a parameter's index in the list that `params` prints may stand for its name.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint.h"
#include "runtime/safetensors.h"
#include "runtime/shards.h"

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
    return inf_engine_at(m, PLAN_REGION_state, k * m->plan->state_bytes + p->offset);
}

/* Fills rows of the file on rank 0; names and copies are freed by the caller. */
static InfCode collect(InfError *e, const InfParams *params, const InfEngine *m, InfTensorOut *out,
                       char **names, float **copies, int *count) {
    for (int k = 0; k < m->plan->nstate; k++)
        for (int i = 0; i < params->count; i++) {
            const InfParam *p = &params->param[i];
            const float *values;
            TRY(inf_param_values(e, p, m, INF_VALUES_state + k, 1.0f, &values, &copies[*count]));
            if (!values) continue;
            char *name = names[*count] = state_name(m->plan, k, p->name);
            if (!name) return inf_fail(e, INF_IO, "out of memory");
            InfTensorOut *t = &out[(*count)++];
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
    char **names = calloc(tensors + 1, sizeof *names);
    float **copies = calloc(tensors + 1, sizeof *copies);
    int count = 0;
    InfCode code = out && names && copies ? collect(e, params, m, out, names, copies, &count)
                                          : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK && inf_engine_leads(m)) {
        out[count] = (InfTensorOut){.name = state_names[m->plan->train.optimizer].count,
                                    .dtype = INF_DTYPE_I64,
                                    .values = &updates};
        code = inf_tensors_write(e, path, out, count + 1);
    }
    for (size_t i = 0; i < tensors; i++) {
        if (names) free(names[i]);
        if (copies) free(copies[i]);
    }
    free(names);
    free(copies);
    free(out);
    return inf_params_agree(e, m, code);
}

/* --- loading --- */

/* What does not fit, a line each. */
typedef struct Report {
    FILE *out;
    bool *used; /* by tensor of the file */
    int lines;
} Report;

/* The file's tensor for state vector k of parameter i: by the parameter's name, or by its index in
 * the sorted list. */
static const InfTensor *find_state(const InfTensors *set, const Plan *plan, const InfParams *params,
                                   int k, int i) {
    char number[24];
    const InfTensor *t = NULL;
    snprintf(number, sizeof number, "%d", i);
    for (int form = 0; !t && form < 2; form++) {
        char *name = state_name(plan, k, form == 0 ? params->param[i].name : number);
        if (name) t = inf_tensors_find(set, name);
        free(name);
    }
    return t;
}

static bool fits(const InfParam *p, const InfTensor *t) {
    if (t->ndim != p->block->ndim) return false;
    for (int axis = 0; axis < t->ndim; axis++)
        if (t->shape[axis] != (uint64_t)p->block->dim[axis]) return false;
    return true;
}

static void report_state(Report *r, const InfTensors *set, const Plan *plan,
                         const InfParams *params) {
    for (int k = 0; k < plan->nstate; k++)
        for (int i = 0; i < params->count; i++) {
            const InfParam *p = &params->param[i];
            const InfTensor *t = find_state(set, plan, params, k, i);
            const char *prefix = state_names[plan->train.optimizer].vector[k];
            char have[256], want[256];
            uint64_t shape[PLAN_NDIM_MAX];
            if (t) r->used[t - set->tensors] = true;
            if (t && fits(p, t)) continue;
            r->lines++;
            fprintf(r->out, "\n  %s  %s%s", t ? "mis-shaped" : "missing   ", prefix, p->name);
            if (!t) continue;
            for (int axis = 0; axis < p->block->ndim; axis++)
                shape[axis] = (uint64_t)p->block->dim[axis];
            fprintf(r->out, " is %s in the file, %s in the model",
                    inf_shape_text(t->shape, t->ndim, have, sizeof have),
                    inf_shape_text(shape, p->block->ndim, want, sizeof want));
        }
    for (int i = 0; i < set->count; i++) {
        if (r->used[i]) continue;
        r->lines++;
        fprintf(r->out, "\n  unexpected  %s", set->tensors[i].name);
    }
}

static const char *const optimizer_names[] = {
    [PLAN_OPTIM_sgd] = "sgd", [PLAN_OPTIM_adam] = "adam", [PLAN_OPTIM_adamw] = "adamw"};

/* The count of updates; a file of another optimizer lacks it. */
static InfCode load_count(InfError *e, const InfTensors *set, const Plan *plan, const char *path,
                          Report *r, int64_t *updates) {
    const char *name = state_names[plan->train.optimizer].count;
    const InfTensor *t = inf_tensors_find(set, name);
    for (size_t i = 0; !t && i < sizeof state_names / sizeof *state_names; i++)
        if (inf_tensors_find(set, state_names[i].count))
            return inf_fail(e, INF_DATA, "%s: is the state of %s; this program trains with %s",
                            path, optimizer_names[i], optimizer_names[plan->train.optimizer]);
    if (!t || t->dtype != INF_DTYPE_I64 || t->count != 1)
        return inf_fail(e, INF_DATA, "%s: '%s' is missing or not one I64", path, name);
    r->used[t - set->tensors] = true;
    TRY(inf_file_read_at(e, &set->files[t->file], t->offset, updates, sizeof *updates));
    if (*updates < 0) return inf_fail(e, INF_DATA, "%s: '%s' is negative", path, name);
    return INF_OK;
}

static InfCode check_state(InfError *e, const InfTensors *set, const Plan *plan,
                           const InfParams *params, const char *path, int64_t *updates) {
    char *text = NULL;
    size_t length = 0;
    Report r = {.out = open_memstream(&text, &length),
                .used = calloc((size_t)set->count + 1, sizeof *r.used)};
    InfCode code = r.out && r.used ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = load_count(e, set, plan, path, &r, updates);
    if (code == INF_OK) report_state(&r, set, plan, params);
    if (r.out) fclose(r.out);
    if (code == INF_OK && r.lines > 0)
        code = inf_fail(e, INF_DATA, "[E025] %s: the optimizer's state does not fit %s%s", path,
                        plan->file, text);
    free(r.used);
    free(text);
    return code;
}

/* What this replica owns of a state. */
static InfCode load_shared(InfError *e, InfEngine *m, const InfTensors *set, const InfTensor *t,
                           const InfParam *p, int k) {
    float *values = malloc((size_t)p->count * sizeof *values + 1);
    float *stored = calloc((size_t)inf_param_stored(p) + 1, sizeof *stored);
    InfCode code = values && stored ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, t, values);
    if (code == INF_OK) inf_param_scatter(p, values, stored);
    if (code == INF_OK) inf_shards_load(p, m, k, stored);
    free(values);
    free(stored);
    return code;
}

static InfCode load_one(InfError *e, InfEngine *m, const InfTensors *set, const InfParams *params,
                        int k, int i) {
    const InfParam *p = &params->param[i];
    const InfTensor *t = find_state(set, m->plan, params, k, i);
    if (inf_shards_on(m->pipeline)) return load_shared(e, m, set, t, p, k);
    if (inf_param_contiguous(p)) return inf_tensors_read_f32(e, set, t, state_at(m, k, p));
    float *values = malloc((size_t)p->count * sizeof *values + 1);
    InfCode code = values ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, t, values);
    if (code == INF_OK) inf_param_scatter(p, values, state_at(m, k, p));
    free(values);
    return code;
}

InfCode inf_optimizer_load(InfError *e, const InfParams *params, InfEngine *m, const char *path,
                           int64_t *updates) {
    InfTensors set;
    TRY(inf_tensors_open(e, path, &set));
    InfCode code = check_state(e, &set, m->plan, params, path, updates);
    for (int k = 0; code == INF_OK && k < m->plan->nstate; k++)
        for (int i = 0; code == INF_OK && i < params->count; i++)
            if (params->param[i].here) code = load_one(e, m, &set, params, k, i);
    inf_tensors_close(&set);
    return code;
}
