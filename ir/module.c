/* module.c - one compiled model: its tables and graphs; see module.h. */
#include "ir/module.h"

#include <string.h>

Module *module_new(Arena *arena, Sources *sources, Diag *diag) {
    Module *m = ARENA_NEW(arena, Module);
    m->arena = arena;
    m->sources = sources;
    m->diag = diag;
    m->types = type_table_new(arena);
    m->train.microbatches = 1;
    m->train.steps = m->train.epochs = -1;
    m->train.dtype = DT_f32;
    m->nchunk = m->nrank = 1;
    m->parallel.dp = m->parallel.tp = m->parallel.pp = m->parallel.vpp = 1;
    module_scope(m, "");
    return m;
}

Scope module_scope(Module *m, const char *path) {
    /* Newest first: nodes are made scope by scope. */
    for (int i = m->nscope - 1; i >= 0; i--)
        if (strcmp(m->scope[i], path) == 0) return (Scope){(uint32_t)i};
    m->scope = vec_reserve_one(m->arena, m->scope, (uint32_t)m->nscope, (uint32_t *)&m->cap_scope,
                               sizeof *m->scope);
    m->scope[m->nscope] = arena_strdup(m->arena, path);
    return (Scope){(uint32_t)m->nscope++};
}

const char *scope_path(const Module *m, Scope s) {
    return s.id < (uint32_t)m->nscope ? m->scope[s.id] : "";
}

int module_add_param(Module *m, Param param) {
    m->param = vec_reserve_one(m->arena, m->param, (uint32_t)m->nparam, (uint32_t *)&m->cap_param,
                               sizeof *m->param);
    m->param[m->nparam] = param;
    return m->nparam++;
}

void module_add_alias(Module *m, const char *name, int param) {
    m->alias = vec_reserve_one(m->arena, m->alias, (uint32_t)m->nalias, (uint32_t *)&m->cap_alias,
                               sizeof *m->alias);
    m->alias[m->nalias++] = (ParamAlias){.name = name, .param = param};
}

void module_add_build(Module *m, const char *key, const char *value) {
    m->build = vec_reserve_one(m->arena, m->build, (uint32_t)m->nbuild, (uint32_t *)&m->cap_build,
                               sizeof *m->build);
    m->build[m->nbuild++] = (BuildSetting){.key = key, .value = value};
}

Graph *module_add_graph(Module *m, Graph *g) {
    m->graph = vec_reserve_one(m->arena, m->graph, (uint32_t)m->ngraph, (uint32_t *)&m->cap_graph,
                               sizeof *m->graph);
    m->graph[m->ngraph++] = g;
    return g;
}

void module_set_graph(Module *m, const char *name, Graph *g) {
    for (int i = 0; i < m->ngraph; i++)
        if (strcmp(m->graph[i]->name, name) == 0) {
            m->graph[i] = g;
            return;
        }
    module_add_graph(m, g);
}

Graph *module_graph(const Module *m, const char *name) {
    for (int i = 0; i < m->ngraph; i++)
        if (strcmp(m->graph[i]->name, name) == 0) return m->graph[i];
    return NULL;
}

/* Whether one rank does alone what replicas do. */
static bool is_alone(const Module *m) { return m->parallel.loopback && m->target == TARGET_cuda; }

bool module_is_bucketed(const Module *m) { return module_has_buckets(m) || m->parallel.bucketed; }

bool module_has_buckets(const Module *m) {
    return m->parallel.dp > 1 || m->parallel.ordered || is_alone(m);
}

Bucket *module_add_bucket(Module *m, Bucket bucket) {
    m->bucket = vec_reserve_one(m->arena, m->bucket, (uint32_t)m->nbucket,
                                (uint32_t *)&m->cap_bucket, sizeof *m->bucket);
    m->bucket[m->nbucket] = bucket;
    return &m->bucket[m->nbucket++];
}

bool module_is_sharded(const Module *m) {
    return m->parallel.zero > 0 && (m->parallel.dp > 1 || is_alone(m));
}

static Segment segment_at(const Module *m, int64_t elem) {
    for (int s = 0; s < m->nsegment; s++)
        if (elem < m->segment[s].offset_elems + m->segment[s].elems) return m->segment[s];
    return (Segment){0};
}

static int tied_at(const Module *m, int64_t elem) {
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].uses > 1 && m->param[i].offset_elems == elem) return i;
    return -1;
}

static bool in_bucket(const Module *m, int64_t elem) {
    for (int i = 0; i < m->nbucket; i++) {
        int64_t at = elem - m->bucket[i].offset_elems;
        if (at >= 0 && at < m->bucket[i].elems) return true;
    }
    return false;
}

/* Ranges of the parameter vector that replicas share: buckets of first uses, then tied weights that
 * have none. The next one from *at on, which begins at 0. */
static bool shared_range(const Module *m, int *at, int64_t *offset, int64_t *elems) {
    for (; *at < m->nbucket; ++*at) {
        const Bucket *b = &m->bucket[*at];
        *offset = b->offset_elems, *elems = b->elems;
        if (*offset < m->flat_elems) return ++*at, true;
    }
    for (; *at < m->nbucket + m->nparam; ++*at) {
        const Param *p = &m->param[*at - m->nbucket];
        if (p->uses < 2 || !p->trainable || in_bucket(m, p->offset_elems)) continue;
        *offset = p->offset_elems, *elems = param_use_stride(m, p);
        return ++*at, true;
    }
    return false;
}

bool module_flat_segment(const Module *m, int index, FlatPart *out) {
    if (index < 0 || index >= m->nsegment) return false;
    const Segment *s = &m->segment[index];
    *out = (FlatPart){.offset_elems = s->offset_elems,
                      .elems = s->elems,
                      .state_elems = s->offset_elems,
                      .decay = s->decay,
                      .owned = s->owned,
                      .tied = -1};
    return true;
}

bool module_flat_part(const Module *m, int index, FlatPart *out) {
    if (index < 0) return false;
    if (!module_is_sharded(m)) return module_flat_segment(m, index, out);
    int64_t offset = 0, elems = 0, state = 0, master = 0;
    Segment segment = {0};
    for (int i = 0, at = 0; i <= index; i++) {
        state += elems / m->parallel.dp;
        master += segment.owned ? elems / m->parallel.dp : 0;
        if (!shared_range(m, &at, &offset, &elems)) return false;
        segment = segment_at(m, offset);
    }
    *out = (FlatPart){.offset_elems = offset,
                      .elems = elems / m->parallel.dp,
                      .state_elems = state,
                      .master_elems = master,
                      .decay = segment.decay,
                      .owned = segment.owned,
                      .tied = tied_at(m, offset)};
    return true;
}

int64_t module_state_elems(const Module *m) {
    int64_t total = 0;
    FlatPart part;
    for (int i = 0; module_flat_part(m, i, &part); i++) total += part.elems;
    return total;
}

int64_t module_whole_elems(const Module *m) {
    int64_t total = 0;
    for (int s = 0; s < m->nsegment; s++)
        if (!m->segment[s].owned) total += m->segment[s].elems;
    return total;
}

int64_t module_master_elems(const Module *m) {
    int64_t total = 0;
    FlatPart part;
    for (int i = 0; module_flat_part(m, i, &part); i++) total += part.owned ? part.elems : 0;
    return total;
}

bool param_is_owned(const Module *m, const Param *p) {
    return p->segment < m->nsegment && m->segment[p->segment].owned;
}

int64_t param_slices(const Module *m, const Param *p) {
    return p->nstack > 0 ? type_info(m->types, p->type)->dim[0] : 1;
}

int64_t param_slice_elems(const Module *m, const Param *p) {
    int64_t n = param_slices(m, p);
    return n > 0 ? type_elems(m->types, p->type) / n : 0;
}

int64_t param_slice_stride(const Module *m, const Param *p) {
    return p->stride_elems != 0 ? p->stride_elems : param_slice_elems(m, p);
}

int64_t param_extent(const Module *m, const Param *p) {
    int64_t n = param_slices(m, p);
    return n > 0 ? (n - 1) * param_slice_stride(m, p) + param_slice_elems(m, p) : 0;
}

int64_t param_use_stride(const Module *m, const Param *p) {
    int64_t align = PARAM_ALIGN * (module_is_bucketed(m) ? m->parallel.dp : 1);
    return (type_elems(m->types, p->type) + align - 1) / align * align;
}

int64_t param_grad_offset(const Module *m, const Param *p, int use) {
    if (use == 0) return p->offset_elems;
    return p->use_offset_elems + (use - 1) * param_use_stride(m, p);
}

int64_t param_tensors(const Module *m, const Param *p) {
    const TypeInfo *t = type_info(m->types, p->type);
    int64_t n = 1;
    for (int a = 0; a < p->nstack; a++) n *= t->dim[a];
    return n;
}

void module_number_tensors(Module *m) {
    m->ntensor = 0;
    for (int i = 0; i < m->nparam; i++) {
        m->param[i].tensor = m->ntensor;
        m->ntensor += param_tensors(m, &m->param[i]);
    }
}

int64_t module_metrics(const Module *m) {
    int64_t metrics = m->nmetric;
    for (int i = 0; i < m->ngraph; i++)
        for (int k = 0; k < m->graph[i]->nout; k++) {
            const Port *port = &m->graph[i]->out_port[k];
            if (port->role == ROLE_metric_sum && port->index >= metrics) metrics = port->index + 1;
        }
    return metrics;
}

const char *module_chunk_name(Module *m, const char *name, int chunk) {
    return m->nchunk == 1 ? name : arena_printf(m->arena, "%s.%d", name, chunk);
}

Graph *module_chunk_graph(Module *m, const char *name, int chunk) {
    return module_graph(m, module_chunk_name(m, name, chunk));
}
