/* weights.c - parameters from and to weight files, by name. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/params.h"
#include "runtime/safetensors.h"

static void to_shape(const PlanParam *block, uint64_t *shape) {
    for (int i = 0; i < block->ndim; i++) shape[i] = (uint64_t)block->dim[i];
}

/* A name of the model in the file; with a checkpoint prefix the file may leave the prefix out. */
static const InfTensor *find_name(const InfTensors *set, const Plan *plan, const char *name) {
    const InfTensor *t = inf_tensors_find(set, name);
    const char *prefix = plan->checkpoint_prefix;
    size_t length = prefix ? strlen(prefix) : 0;
    if (!t && length > 0 && strncmp(name, prefix, length) == 0)
        t = inf_tensors_find(set, name + length + (name[length] == '.'));
    return t;
}

/* A parameter's tensor in the file; a tied one may stand there under its other name alone. */
static const InfTensor *find_tensor(const InfTensors *set, const InfParams *all,
                                    const InfParam *p) {
    const InfTensor *t = find_name(set, all->plan, p->name);
    for (int i = 0; !t && i < all->naliases; i++)
        if (p == all->alias[i].param) t = find_name(set, all->plan, all->alias[i].name);
    return t;
}

static bool same_shape(const PlanParam *block, const InfTensor *t) {
    if (block->ndim != t->ndim) return false;
    for (int i = 0; i < t->ndim; i++)
        if ((uint64_t)block->dim[i] != t->shape[i]) return false;
    return true;
}

/* Names that the model's file says are to be ignored: patterns with '*' and '?'. */
static bool is_skipped(const Plan *plan, const char *name) {
    const char *at = plan->checkpoint_skip;
    while (at && *at) {
        char pattern[INF_TENSOR_NAME_MAX + 1];
        size_t length = strcspn(at, " ");
        if (length > 0 && length < sizeof pattern) {
            memcpy(pattern, at, length);
            pattern[length] = '\0';
            if (fnmatch(pattern, name, 0) == 0) return true;
        }
        at += length + strspn(at + length, " ");
    }
    return false;
}

typedef struct Report {
    FILE *out;
    bool *used; /* by tensor of the file: it belongs to a parameter or is another name of one */
    int missing, unexpected, misshaped, untied;
} Report;

static void report_missing(Report *r, const InfParams *all, const Plan *plan,
                           const InfTensors *set) {
    for (int i = 0; i < all->count; i++) {
        const InfTensor *t = find_tensor(set, all, &all->param[i]);
        if (t) r->used[t - set->tensors] = true;
        if (t) continue;
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

static void report_misshaped(Report *r, const InfParams *all, const InfTensors *set) {
    for (int i = 0; i < all->count; i++) {
        const PlanParam *b = all->param[i].block;
        const InfTensor *t = find_tensor(set, all, &all->param[i]);
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

/* Whether two tensors of the file hold the same values. */
static InfCode same_values(InfError *e, const InfTensors *set, const InfTensor *a,
                           const InfTensor *b, bool *same) {
    *same = a->count == b->count;
    if (!*same) return INF_OK;
    float *x = malloc((size_t)a->count * sizeof *x + 1),
          *y = malloc((size_t)a->count * sizeof *y + 1);
    InfCode code = x && y ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, a, x);
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, b, y);
    if (code == INF_OK) *same = memcmp(x, y, (size_t)a->count * sizeof *x) == 0;
    free(x);
    free(y);
    return code;
}

/* A tied parameter stored a second time is no stranger, but other values there would be lost. */
static InfCode report_untied(InfError *e, Report *r, const InfParams *all, const InfTensors *set) {
    for (int i = 0; i < all->naliases; i++) {
        const InfTensor *other = find_name(set, all->plan, all->alias[i].name);
        const InfTensor *t = find_tensor(set, all, all->alias[i].param);
        if (!other || !t) continue;
        bool same = true;
        r->used[other - set->tensors] = true;
        if (other != t) TRY(same_values(e, set, t, other, &same));
        if (same) continue;
        r->untied++;
        fprintf(r->out, "\n  untied      %s has other values than %s; the model ties them",
                other->name, t->name);
    }
    return INF_OK;
}

static void report_unexpected(Report *r, const Plan *plan, const InfTensors *set) {
    for (int i = 0; i < set->count; i++) {
        const InfTensor *t = &set->tensors[i];
        char text[256];
        if (r->used[i] || is_skipped(plan, t->name)) continue;
        r->unexpected++;
        fprintf(r->out, "\n  unexpected  %s %s", t->name,
                inf_shape_text(t->shape, t->ndim, text, sizeof text));
    }
}

/* A prefix that all missing names have and that the file leaves out, as models saved without their
 * head do: the first `length` bytes of the result, "model." of model.norm.weight; NULL: none. */
static const char *left_out(const InfParams *all, const InfTensors *set, size_t *length) {
    const char *first = NULL;
    for (int i = 0; i < all->count; i++) {
        const char *name = all->param[i].name, *dot = strchr(name, '.');
        if (find_tensor(set, all, &all->param[i])) continue;
        if (!dot || !inf_tensors_find(set, dot + 1)) return NULL;
        if (!first) *length = (size_t)(dot + 1 - name);
        if (first && strncmp(first, name, *length) != 0) return NULL;
        first = name;
    }
    return first;
}

static void hint_prefix(Report *r, const InfParams *all, const Plan *plan, const InfTensors *set) {
    size_t length = 0;
    const char *name = left_out(all, set, &length);
    if (name)
        fprintf(r->out,
                "\n  = hint: the file leaves out a prefix; say so in %s: checkpoint { prefix = "
                "\"%.*s\" }",
                plan->file, (int)length, name);
}

/* One report of everything that does not fit. */
static InfCode check_fit(InfError *e, const InfParams *all, const Plan *plan, const InfTensors *set,
                         const char *path) {
    char *text = NULL, untied[32] = "";
    size_t length = 0;
    Report r = {.out = open_memstream(&text, &length),
                .used = calloc((size_t)set->count + 1, sizeof *r.used)};
    InfCode code = r.out && r.used ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) {
        report_missing(&r, all, plan, set);
        report_misshaped(&r, all, set);
        code = report_untied(e, &r, all, set);
        report_unexpected(&r, plan, set);
        hint_prefix(&r, all, plan, set);
    }
    if (r.out) fclose(r.out);
    if (r.untied) snprintf(untied, sizeof untied, ", %d untied", r.untied);
    if (code == INF_OK && r.missing + r.misshaped + r.unexpected + r.untied > 0)
        code = inf_fail(e, INF_DATA,
                        "[E025] %s does not fit %s: %d missing, %d mis-shaped, "
                        "%d unexpected%s%s",
                        path, plan->file, r.missing, r.misshaped, r.unexpected, untied, text);
    free(r.used);
    free(text);
    return code;
}

static InfCode load_one(InfError *e, const InfParam *p, InfEngine *m, const InfTensors *set,
                        const InfTensor *t) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    if (inf_param_contiguous(p) && !p->block->owned)
        return inf_tensors_read_f32(e, set, t, inf_engine_at(m, PLAN_REGION_param, p->offset));
    float *logical = malloc((size_t)p->count * sizeof *logical + 1);
    if (!logical) return inf_fail(e, INF_IO, "out of memory");
    InfCode code = inf_tensors_read_f32(e, set, t, logical);
    for (int64_t row = 0; code == INF_OK && row < rows; row++)
        inf_param_put(p, m, inf_param_row_at(p, row), logical + row * length, length);
    free(logical);
    return code;
}

InfCode inf_params_load(InfError *e, const InfParams *all, InfEngine *m, const char *path) {
    InfTensors set;
    TRY(inf_tensors_open(e, path, &set));
    InfCode code = check_fit(e, all, m->plan, &set, path);
    for (int i = 0; code == INF_OK && i < all->count; i++)
        if (all->param[i].here)
            code = load_one(e, &all->param[i], m, &set, find_tensor(&set, all, &all->param[i]));
    inf_tensors_close(&set);
    return code;
}

/* Numbers that are not finite are never saved as weights. */
static InfCode check_finite(InfError *e, const InfParam *p, const float *values, const char *path) {
    for (int64_t i = 0; i < p->count; i++)
        if (!isfinite(values[i]))
            return inf_fail(e, INF_NONFINITE,
                            "%s: not written, because '%s' holds a number that is not finite\n"
                            "  = hint: a smaller --lr, or --clip 1",
                            path, p->name);
    return INF_OK;
}

/* Fills rows of the file on rank 0; the copies are freed by the caller. */
static InfCode collect(InfError *e, const InfParams *all, const InfEngine *m, const char *path,
                       InfValues which, float scale, InfTensorOut *out, float **copies,
                       int *count) {
    for (int i = 0; i < all->count; i++) {
        const InfParam *p = &all->param[i];
        const float *values;
        if (which == INF_VALUES_gradients && !p->block->trainable) continue;
        TRY(inf_param_values(e, p, m, which, scale, &values, &copies[*count]));
        if (!values) continue;
        InfTensorOut *t = &out[(*count)++];
        *t = (InfTensorOut){
            .name = p->name, .dtype = INF_DTYPE_F32, .ndim = p->block->ndim, .values = values};
        to_shape(p->block, t->shape);
        if (which == INF_VALUES_weights) TRY(check_finite(e, p, values, path));
    }
    return INF_OK;
}

InfCode inf_params_save(InfError *e, const InfParams *all, const InfEngine *m, const char *path,
                        InfValues which, float scale) {
    InfTensorOut *out = calloc((size_t)all->count + 1, sizeof *out);
    float **copies = calloc((size_t)all->count + 1, sizeof *copies);
    InfCode code = out && copies ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    int count = 0;
    if (code == INF_OK) code = collect(e, all, m, path, which, scale, out, copies, &count);
    if (code == INF_OK && inf_engine_leads(m)) code = inf_tensors_write(e, path, out, count);
    for (int i = 0; copies && i < all->count; i++) free(copies[i]);
    free(copies);
    free(out);
    return inf_params_agree(e, m, code);
}
