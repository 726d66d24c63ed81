/* weights.c - parameters from and to weight files, by name. */
#include <stdlib.h>
#include <string.h>

#include "runtime/params.h"
#include "runtime/safetensors.h"

static void to_shape(const PlanParam *block, uint64_t *shape) {
    for (int i = 0; i < block->ndim; i++) shape[i] = (uint64_t)block->dim[i];
}

/* The file's tensor for a parameter; with a checkpoint prefix the file may leave the prefix out. */
static const InfTensor *find_tensor(const InfTensors *set, const Plan *plan, const char *name) {
    const InfTensor *t = inf_tensors_find(set, name);
    const char *prefix = plan->checkpoint_prefix;
    size_t length = prefix ? strlen(prefix) : 0;
    if (!t && length > 0 && strncmp(name, prefix, length) == 0)
        t = inf_tensors_find(set, name + length + (name[length] == '.'));
    return t;
}

static bool same_shape(const PlanParam *block, const InfTensor *t) {
    if (block->ndim != t->ndim) return false;
    for (int i = 0; i < t->ndim; i++)
        if ((uint64_t)block->dim[i] != t->shape[i]) return false;
    return true;
}

/* A tied name stored a second time is accepted: it is an alias, not a stranger. */
static bool is_alias(const Plan *plan, const char *name) {
    for (uint32_t i = 0; i < plan->nalias; i++)
        if (strcmp(plan->alias[i].name, name) == 0) return true;
    return false;
}

typedef struct Report {
    FILE *out;
    int missing, unexpected, misshaped;
} Report;

static void report_missing(Report *r, const InfParams *all, const Plan *plan,
                           const InfTensors *set) {
    for (int i = 0; i < all->count; i++) {
        if (find_tensor(set, plan, all->param[i].name)) continue;
        uint64_t shape[PLAN_NDIM_MAX];
        char text[256];
        const PlanParam *b = all->param[i].block;
        to_shape(b, shape);
        r->missing++;
        fprintf(r->out, "\n  missing     %s %s (declared at %s:%s)", all->param[i].name,
                inf_shape_text(shape, b->ndim, text, sizeof text), plan->file,
                b->place ? b->place : "?");
    }
}

static void report_misshaped(Report *r, const InfParams *all, const Plan *plan,
                             const InfTensors *set) {
    for (int i = 0; i < all->count; i++) {
        const PlanParam *b = all->param[i].block;
        const InfTensor *t = find_tensor(set, plan, all->param[i].name);
        if (!t || same_shape(b, t)) continue;
        uint64_t shape[PLAN_NDIM_MAX];
        char want[256], have[256];
        to_shape(b, shape);
        bool turned =
            b->ndim == 2 && t->ndim == 2 && t->shape[0] == shape[1] && t->shape[1] == shape[0];
        r->misshaped++;
        fprintf(r->out, "\n  mis-shaped  %s is %s in the file, %s in the model%s%s",
                all->param[i].name, inf_shape_text(t->shape, t->ndim, have, sizeof have),
                inf_shape_text(shape, b->ndim, want, sizeof want),
                turned ? "; it is transposed: " : "",
                !turned         ? ""
                : b->transposed ? "Conv1D stores [in, out], the file looks like a Linear's"
                                : "Linear stores [out, in], the file looks like a Conv1D's");
    }
}

static void report_unexpected(Report *r, const InfParams *all, const Plan *plan,
                              const InfTensors *set) {
    bool *used = calloc((size_t)set->count + 1, sizeof *used);
    if (!used) return;
    for (int i = 0; i < all->count; i++) {
        const InfTensor *t = find_tensor(set, plan, all->param[i].name);
        if (t) used[t - set->tensors] = true;
    }
    for (int i = 0; i < set->count; i++) {
        const InfTensor *t = &set->tensors[i];
        char text[256];
        if (used[i] || is_alias(plan, t->name)) continue;
        r->unexpected++;
        fprintf(r->out, "\n  unexpected  %s %s", t->name,
                inf_shape_text(t->shape, t->ndim, text, sizeof text));
    }
    free(used);
}

/* One report of everything that does not fit. */
static InfCode check_fit(InfError *e, const InfParams *all, const Plan *plan, const InfTensors *set,
                         const char *path) {
    char *text = NULL;
    size_t length = 0;
    Report r = {.out = open_memstream(&text, &length)};
    if (!r.out) return inf_fail(e, INF_IO, "out of memory");
    report_missing(&r, all, plan, set);
    report_misshaped(&r, all, plan, set);
    report_unexpected(&r, all, plan, set);
    fclose(r.out);
    InfCode code = INF_OK;
    if (r.missing + r.misshaped + r.unexpected > 0)
        code = inf_fail(e, INF_DATA,
                        "[E025] %s does not fit %s: %d missing, %d mis-shaped, "
                        "%d unexpected%s",
                        path, plan->file, r.missing, r.misshaped, r.unexpected, text);
    free(text);
    return code;
}

static InfCode load_one(InfError *e, const InfParam *p, InfEngine *m, const InfTensors *set,
                        const InfTensor *t) {
    float *stored = inf_engine_at(m, PLAN_REGION_param, p->offset);
    if (inf_param_contiguous(p)) return inf_tensors_read_f32(e, set, t, stored);
    float *logical = malloc((size_t)p->count * sizeof *logical);
    if (!logical) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = inf_tensors_read_f32(e, set, t, logical);
    if (code == INF_OK) inf_param_scatter(p, logical, stored);
    free(logical);
    return code;
}

InfCode inf_params_load(InfError *e, const InfParams *all, InfEngine *m, const char *path) {
    InfTensors set;
    TRY(inf_tensors_open(e, path, &set));
    InfCode code = check_fit(e, all, m->plan, &set, path);
    for (int i = 0; code == INF_OK && i < all->count; i++)
        code = load_one(e, &all->param[i], m, &set, find_tensor(&set, m->plan, all->param[i].name));
    inf_tensors_close(&set);
    return code;
}

/* Values of one tensor ready to be written: where they lie, or a copy that the caller frees. */
static const float *values_of(const InfParam *p, const InfEngine *m, InfValues which, float scale,
                              float **copy) {
    const float *stored = inf_engine_at(m, PLAN_REGION_param, p->offset);
    *copy = NULL;
    if (which == INF_VALUES_weights && inf_param_contiguous(p)) return stored;
    *copy = malloc((size_t)p->count * sizeof **copy + 1);
    if (!*copy) return NULL;
    if (which == INF_VALUES_gradients)
        inf_param_gradient(p, m, scale, *copy);
    else
        inf_param_gather(p, stored, *copy);
    return *copy;
}

InfCode inf_params_save(InfError *e, const InfParams *all, const InfEngine *m, const char *path,
                        InfValues which, float scale) {
    InfTensorOut *out = calloc((size_t)all->count + 1, sizeof *out);
    float **copies = calloc((size_t)all->count + 1, sizeof *copies);
    InfCode code = out && copies ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    int count = 0;
    for (int i = 0; code == INF_OK && i < all->count; i++) {
        const InfParam *p = &all->param[i];
        if (which == INF_VALUES_gradients && !p->block->trainable) continue;
        InfTensorOut *t = &out[count];
        *t = (InfTensorOut){.name = p->name, .dtype = INF_DTYPE_F32, .ndim = p->block->ndim};
        to_shape(p->block, t->shape);
        t->values = values_of(p, m, which, scale, &copies[count++]);
        if (!t->values) code = inf_fail(e, INF_IO, "out of memory");
    }
    if (code == INF_OK) code = inf_tensors_write(e, path, out, count);
    for (int i = 0; copies && i < count; i++) free(copies[i]);
    free(copies);
    free(out);
    return code;
}
