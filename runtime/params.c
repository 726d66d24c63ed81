/* params.c - names, shapes and values of logical tensors. */
#include "runtime/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/shards.h"
#include "runtime/transport.h"

/* The block's name with the '*' replaced by indices, in fresh memory. */
static char *expand_name(const PlanParam *block, const int64_t *index) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    int axis = 0;
    for (const char *c = block->name; *c; c++) {
        if (*c == '*' && axis < block->nstack)
            fprintf(out, "%lld", (long long)index[axis++]);
        else
            fputc(*c, out);
    }
    fclose(out);
    return text;
}

static int64_t product(const int64_t *dim, int n) {
    int64_t total = 1;
    for (int i = 0; i < n; i++) total *= dim[i];
    return total;
}

static int by_name(const void *a, const void *b) {
    const InfParam *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Appends the tensors of one block of a rank. */
static bool add_block(InfParams *all, const PlanParam *block, int rank) {
    int64_t tensors = product(block->stack, block->nstack);
    int64_t stored_bytes = product(block->stored, block->ndim) * (int64_t)sizeof(float);
    int64_t slice_bytes = stored_bytes * product(block->stack + 1, block->nstack - 1);
    for (int64_t i = 0; i < tensors; i++) {
        int64_t index[PLAN_REPEAT_DEPTH_MAX] = {0}, rest = i;
        for (int axis = block->nstack - 1; axis >= 0; axis--) {
            index[axis] = rest % block->stack[axis];
            rest /= block->stack[axis];
        }
        int64_t at = i * stored_bytes;
        if (block->stride != 0) at = index[0] * (block->stride - slice_bytes) + at;
        index[0] += block->first;
        InfParam *p = &all->param[all->count];
        *p = (InfParam){.name = expand_name(block, index),
                        .block = block,
                        .rank = rank,
                        .here = rank == all->plan->rank,
                        .offset = block->offset + at,
                        .use_offset = i * stored_bytes,
                        .halves = block->owned,
                        .count = product(block->dim, block->ndim)};
        if (!p->name) return false;
        all->count++;
    }
    return true;
}

/* Equal names are one tensor on several ranks: this rank's copy stays, with the rank that counts.
 */
static void merge_copies(InfParams *all) {
    int kept = 0;
    for (int i = 0; i < all->count; i++) {
        InfParam *p = &all->param[i], *before = kept > 0 ? &all->param[kept - 1] : NULL;
        if (!before || strcmp(before->name, p->name) != 0) {
            all->param[kept++] = *p;
            continue;
        }
        InfParam *own = p->here ? p : before, *other = p->here ? before : p;
        int rank = before->block->copied ? p->rank : before->rank;
        bool halves = before->halves || p->halves;
        free(other->name);
        *before = *own;
        before->rank = rank;
        before->halves = halves;
    }
    all->count = kept;
}

/* Tied blocks are not stacked: a block's first tensor is the one. */
static const InfParam *tensor_of(const InfParams *all, const PlanParam *block) {
    return inf_params_find(all, block->name);
}

static void list_aliases(InfParams *all, const Plan *plans, int ranks) {
    for (int r = 0; r < ranks; r++)
        for (uint32_t i = 0; i < plans[r].nalias; i++) {
            const PlanAlias *alias = &plans[r].alias[i];
            bool known = false;
            for (int k = 0; k < all->naliases; k++)
                known = known || strcmp(all->alias[k].name, alias->name) == 0;
            const InfParam *p = tensor_of(all, &plans[r].param[alias->param]);
            if (!known && p) all->alias[all->naliases++] = (InfAlias){alias->name, p};
        }
}

InfCode inf_params_open(InfError *e, const Plan *plan, InfParams *out) {
    const Plan *plans = plan - plan->rank;
    int ranks = plan->ranks;
    int64_t total = 0;
    size_t aliases = 0;
    *out = (InfParams){.plan = plan};
    for (int r = 0; r < ranks; r++)
        for (uint32_t i = 0; i < plans[r].nparam; i++)
            total += product(plans[r].param[i].stack, plans[r].param[i].nstack);
    for (int r = 0; r < ranks; r++) aliases += plans[r].nalias;
    out->param = calloc((size_t)total + 1, sizeof *out->param);
    out->alias = calloc(aliases + 1, sizeof *out->alias);
    bool enough = out->param && out->alias;
    for (int r = 0; r < ranks; r++)
        for (uint32_t i = 0; enough && i < plans[r].nparam; i++)
            enough = add_block(out, &plans[r].param[i], r);
    if (!enough) return inf_fail(e, INF_IO, "out of memory");
    qsort(out->param, (size_t)out->count, sizeof *out->param, by_name);
    merge_copies(out);
    list_aliases(out, plans, ranks);
    return INF_OK;
}

void inf_params_close(InfParams *all) {
    for (int i = 0; i < all->count; i++) free(all->param[i].name);
    free(all->param);
    free(all->alias);
    *all = (InfParams){0};
}

const InfParam *inf_params_find(const InfParams *all, const char *name) {
    union {
        const char *in;
        char *out;
    } borrowed = {name};
    InfParam key = {.name = borrowed.out};
    return bsearch(&key, all->param, (size_t)all->count, sizeof key, by_name);
}

bool inf_param_contiguous(const InfParam *p) {
    const PlanParam *b = p->block;
    for (int axis = 1; axis < b->ndim; axis++)
        if (b->stored[axis] != b->dim[axis]) return false;
    return true;
}

int64_t inf_param_row_length(const InfParam *p) {
    return p->block->ndim ? p->block->dim[p->block->ndim - 1] : 1;
}

int64_t inf_param_row_count(const InfParam *p) {
    int64_t length = inf_param_row_length(p);
    return length > 0 ? p->count / length : 0;
}

int64_t inf_param_row_at(const InfParam *p, int64_t row) {
    const PlanParam *b = p->block;
    int64_t at = 0, stride = b->ndim ? b->stored[b->ndim - 1] : 1;
    for (int axis = b->ndim - 2; axis >= 0; axis--) {
        at += row % b->dim[axis] * stride;
        row /= b->dim[axis];
        stride *= b->stored[axis];
    }
    return at;
}

void inf_param_gather(const InfParam *p, const float *stored, float *logical) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    for (int64_t row = 0; row < rows; row++)
        memcpy(logical + row * length, stored + inf_param_row_at(p, row),
               (size_t)length * sizeof(float));
}

void inf_param_put(const InfParam *p, InfEngine *m, int64_t at, const float *values,
                   int64_t count) {
    if (p->block->owned)
        inf_shards_put(p, m, at, values, count);
    else
        memcpy((float *)inf_engine_at(m, PLAN_REGION_param, p->offset) + at, values,
               (size_t)count * sizeof *values);
}

void inf_param_scatter(const InfParam *p, const float *logical, float *stored) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    for (int64_t row = 0; row < rows; row++)
        memcpy(stored + inf_param_row_at(p, row), logical + row * length,
               (size_t)length * sizeof(float));
}

int64_t inf_param_stored(const InfParam *p) { return product(p->block->stored, p->block->ndim); }

int64_t inf_param_use_offset(const InfParam *p, int use) {
    if (use == 0) return p->offset;
    return p->block->use_offset + (use - 1) * p->block->use_stride + p->use_offset;
}

static const float *use_at(const InfParam *p, const InfEngine *m, int use) {
    return inf_engine_at(m, PLAN_REGION_grad, inf_param_use_offset(p, use));
}

void inf_param_gradient(const InfParam *p, const InfEngine *m, float scale, float *to) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = inf_param_row_at(p, row);
        for (int64_t i = 0; i < length; i++) {
            float sum = use_at(p, m, 0)[at + i];
            for (int use = 1; use < p->block->uses; use++) sum += use_at(p, m, use)[at + i];
            to[row * length + i] = sum * scale;
        }
    }
}

static bool has_nonfinite(const InfParam *p, const float *stored) {
    int64_t length = inf_param_row_length(p), rows = inf_param_row_count(p);
    for (int64_t row = 0; row < rows; row++) {
        const float *at = stored + inf_param_row_at(p, row);
        for (int64_t i = 0; i < length; i++)
            if (!isfinite(at[i])) return true;
    }
    return false;
}

static int first_nonfinite(const InfParams *all, const InfEngine *m) {
    for (int i = 0; i < all->count; i++) {
        const InfParam *p = &all->param[i];
        for (int use = 0; p->here && p->block->trainable && use < p->block->uses; use++)
            if (has_nonfinite(p, use_at(p, m, use))) return i;
    }
    return all->count;
}

InfCode inf_params_find_nonfinite(InfError *e, const InfParams *all, const InfEngine *m,
                                  const InfParam **out) {
    const struct InfTransport *t = inf_engine_transport(m);
    int processes = inf_plan_processes(m->plan);
    int first = first_nonfinite(all, m), *others = NULL;
    if (t) {
        others = calloc((size_t)processes, sizeof *others);
        InfCode code = others ? t->gather(e, &first, sizeof first, others)
                              : inf_fail(e, INF_IO, "out of memory");
        for (int r = 0; code == INF_OK && r < processes; r++)
            if (others[r] < first) first = others[r];
        free(others);
        TRY(code);
    }
    *out = first < all->count ? &all->param[first] : NULL;
    return INF_OK;
}
