/* prove_layout.c - the flat vectors: segments, pieces of parameters, buckets.
 *
 * Knows nothing of how they were laid out: everything is a list of ranges, sorted and compared.
 */
#include "passes/schedule.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct Piece {
    int64_t begin, end; /* in the region of gradients */
    int param, use;
    int local; /* the chunk that computes it; -1: it is in no bucket */
} Piece;

typedef VEC(Piece) Pieces;

static int by_begin(const void *x, const void *y) {
    const Piece *a = x, *b = y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

static void sort_pieces(Pieces *list) {
    if (list->n > 0) qsort(list->data, list->n, sizeof *list->data, by_begin);
}

static const char *prove_segments(Arena *arena, const Module *m) {
    int64_t at = 0;
    for (int s = 0; s < m->nsegment; s++) {
        if (m->segment[s].offset_elems != at)
            return arena_printf(arena, "segment %d does not begin at %" PRId64, s, at);
        if (s > 0 && m->segment[s - 1].owned && !m->segment[s].owned)
            return arena_printf(arena, "segment %d stands behind owned ones", s);
        at += m->segment[s].elems;
    }
    if (at != m->flat_elems) return "the segments do not cover the parameter vector";
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        const Segment *s = &m->segment[p->segment];
        int64_t end = p->offset_elems + param_extent(m, p);
        if (p->offset_elems < s->offset_elems || end > s->offset_elems + s->elems)
            return arena_printf(arena, "parameter '%s' lies outside its segment", p->name);
    }
    return NULL;
}

/* What in f32 only its owner has, nobody reads so, and somebody owns. */
static const char *prove_owned(Arena *arena, const Module *m) {
    for (int i = 0; i < m->ngraph; i++)
        for (int k = 0; k < m->graph[i]->nin; k++) {
            const Port *port = &m->graph[i]->in_port[k];
            if (port->role == ROLE_weight && param_is_owned(m, &m->param[port->index]))
                return arena_printf(arena, "%s reads '%s' in f32, which its owner alone has",
                                    m->graph[i]->name, m->param[port->index].name);
        }
    int64_t *left = ARENA_ARRAY(arena, int64_t, m->nparam + 1);
    for (int i = 0; i < m->nparam; i++)
        left[i] = param_is_owned(m, &m->param[i]) ? param_extent(m, &m->param[i]) : 0;
    FlatPart part;
    for (int k = 0; module_flat_part(m, k, &part); k++)
        for (int i = 0; i < m->nparam && part.owned; i++) {
            int64_t begin = m->param[i].offset_elems, end = begin + param_extent(m, &m->param[i]);
            int64_t from = part.offset_elems, to = from + part.elems * m->parallel.dp;
            int64_t low = begin > from ? begin : from, high = end < to ? end : to;
            if (low < high) left[i] -= high - low;
        }
    for (int i = 0; i < m->nparam; i++)
        if (left[i] != 0)
            return arena_printf(arena, "%" PRId64 " elements of '%s' have no owner", left[i],
                                m->param[i].name);
    return NULL;
}

/* The chunk of this rank that computes the gradient of a use, -1 none. */
static int computed_by(Module *m, int param, int use) {
    for (int c = 0; c < m->nchunk; c++) {
        const Graph *g = module_chunk_graph(m, "train", c);
        for (int k = 0; g != NULL && k < g->nout; k++) {
            const Port *port = &g->out_port[k];
            if (port->role == ROLE_grad && port->index == param && port->use == use) return c;
        }
    }
    return -1;
}

static void list_pieces(Arena *arena, Module *m, int param, int use, Pieces *list) {
    const Param *p = &m->param[param];
    int64_t n = use == 0 && p->stride_elems != 0 ? param_slices(m, p) : 1;
    int64_t elems = type_elems(m->types, p->type) / n;
    Piece piece = {.param = param, .use = use, .local = computed_by(m, param, use)};
    if (!p->trainable) piece.local = -1;
    for (int64_t i = 0; i < n && elems > 0; i++) {
        piece.begin = param_grad_offset(m, p, use) + i * p->stride_elems;
        piece.end = piece.begin + elems;
        vec_push(arena, list, piece);
    }
}

static const char *prove_apart(Arena *arena, const Module *m, const Pieces *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        const Piece *a = &list->data[i], *before = a - 1;
        if (a->begin < 0 || a->end > m->grad_elems)
            return arena_printf(arena, "parameter '%s' lies outside the gradients",
                                m->param[a->param].name);
        if (i > 0 && before->end > a->begin)
            return arena_printf(arena, "parameters '%s' and '%s' overlap",
                                m->param[before->param].name, m->param[a->param].name);
    }
    return NULL;
}

/* ---- buckets ---------------------------------------------------------------------------- */

/* Buckets in order of where they begin, as pieces: `param` is the bucket's number. */
static const char *list_buckets(Arena *arena, const Module *m, Pieces *list) {
    int64_t align = PARAM_ALIGN * m->parallel.dp;
    for (int i = 0; i < m->nbucket; i++) {
        const Bucket *b = &m->bucket[i];
        if (b->elems <= 0 || b->elems % align != 0 || b->offset_elems % PARAM_ALIGN != 0)
            return arena_printf(arena, "bucket %d is not whole blocks of %" PRId64, i, align);
        if (b->offset_elems < 0 || b->offset_elems + b->elems > m->grad_elems)
            return arena_printf(arena, "bucket %d lies outside the gradients", i);
        Piece piece = {.begin = b->offset_elems, .end = b->offset_elems + b->elems, .param = i};
        piece.local = b->local;
        vec_push(arena, list, piece);
    }
    sort_pieces(list);
    for (uint32_t i = 1; i < list->n; i++)
        if (list->data[i - 1].end > list->data[i].begin)
            return arena_printf(arena, "buckets %d and %d overlap", list->data[i - 1].param,
                                list->data[i].param);
    return NULL;
}

static const char *prove_buckets(Arena *arena, Module *m, const Pieces *pieces) {
    Pieces buckets = {0};
    const char *why = list_buckets(arena, m, &buckets);
    uint32_t at = 0;
    for (uint32_t i = 0; i < pieces->n && why == NULL; i++) {
        const Piece *p = &pieces->data[i];
        while (at < buckets.n && buckets.data[at].end <= p->begin) at++;
        const Piece *b = at < buckets.n ? &buckets.data[at] : NULL;
        bool touches = b != NULL && b->begin < p->end,
             inside = touches && b->begin <= p->begin && p->end <= b->end;
        const char *name = m->param[p->param].name;
        if (p->local >= 0 && (!inside || b->local != p->local))
            why = arena_printf(arena, "use %d of parameter '%s' is not in a bucket of chunk %d",
                               p->use, name, p->local);
        if (p->local < 0 && touches)
            why = arena_printf(arena,
                               "bucket %d holds use %d of parameter '%s', which is not "
                               "computed here or not trained",
                               b->param, p->use, name);
    }
    return why;
}

const char *prove_layout(Arena *arena, Module *m) {
    Pieces pieces = {0};
    const char *why = prove_segments(arena, m);
    for (int i = 0; i < m->nparam && why == NULL; i++)
        for (int use = 0; use < m->param[i].uses || use == 0; use++)
            list_pieces(arena, m, i, use, &pieces);
    sort_pieces(&pieces);
    if (why == NULL) why = prove_apart(arena, m, &pieces);
    if (why == NULL && module_is_bucketed(m)) why = prove_buckets(arena, m, &pieces);
    if (why == NULL) why = prove_owned(arena, m);
    return why;
}
