/* bucket.c - gradients in buckets that replicas add up.
 *
 * Reads   parameters, the graphs before fuse, parallel.dp and parallel.bucket.
 * Writes  offsets and strides of all parameters, the module's segments and buckets.
 * Keeps   all graphs.
 * Why     a bucket is one collective, begun as soon as its last gradient is there. Pieces that are
 *         complete one after another lie behind each other, so that buckets fill early and most of
 *         them travel while the backward pass still runs.
 *
 * A piece is a tensor, or of a stack that only repeats read and make, one layer's slice: then layer
 * i of all stacks of the repeat lies together, or in parts where a layer is more than a bucket.
 * Pieces begin at whole blocks of PARAM_ALIGN elements, buckets at whole blocks for each replica,
 * so that replicas can share a bucket evenly. A bucket is of one chunk and one segment. A tied
 * weight's uses each have one of their own: they are complete at different times, perhaps on
 * different ranks. What is not trained, or computed elsewhere, comes last and is in none.
 *
 * Where replicas share the update and graphs read bf16 copies, a weight that no graph reads in f32
 * is in a segment of its kind (Segment.owned): its f32 values are needed by the one replica that
 * updates them.
 */
#include "passes/layout.h"

#include <stdlib.h>

/* The first bucket of a rank is small: it travels early. */
enum { FIRST_BYTES = 1000000, ELEM_BYTES = 4 };

/* A gradient of a first use that a chunk of this rank computes. */
typedef struct Made {
    int param;
    int node;     /* of the chunk's graph; -1: it comes in from elsewhere */
    int inner;    /* of the body, where a repeat stacks it and nothing else touches it; else -1 */
    int order;    /* among the graph's outputs */
    bool stacked; /* layer by layer: `inner` says when */
} Made;

/* A segment that is being filled: offsets count from its own begin until all is known. */
typedef struct Fill {
    int64_t at;    /* elements */
    int64_t begin; /* of the open bucket */
} Fill;

typedef struct Buckets {
    Module *m;
    Arena *scratch;
    int64_t align; /* elements */
    int64_t bytes; /* of a bucket */
    int local;     /* chunk of this rank */
    Fill fill[SEGMENT_MAX];
    bool *placed;     /* by parameter */
    int *kind;        /* by parameter: which fill it belongs to */
    VEC(int) segment; /* of each bucket of the module: which fill it counts from */
} Buckets;

/* ---- which stacks may be taken apart ---------------------------------------------------- */

static bool is_stacked_operand(const Node *n, int k) {
    return n->op == OP_repeat && k >= node_int(n, ATTR_ncarry, 0) + node_int(n, ATTR_nconst, 0);
}

/* Whether repeats only read v, slice by slice, and no output shows it. */
static bool read_by_slices(const Graph *g, Val v, int readers_max) {
    int readers = 0;
    for (int k = 0; k < g->nout; k++)
        if (g->out[k].id == v.id) return false;
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            if (g->node[i]->in[k].id != v.id) continue;
            if (!is_stacked_operand(g->node[i], k) || ++readers > readers_max) return false;
        }
    return true;
}

static bool is_made_by_slices(const Graph *g, Val v) {
    const Node *n = val_node(g, v);
    int shown = 0;
    if (n == NULL || n->op != OP_repeat) return false;
    if ((int64_t)g->val[v.id].result < node_int(n, ATTR_ncarry, 0)) return false;
    for (int k = 0; k < g->nout; k++) shown += g->out[k].id == v.id;
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            if (g->node[i]->in[k].id == v.id) return false;
    return shown == 1;
}

static bool graph_takes_apart(const Graph *g, int param) {
    for (int i = 0; i < g->nin; i++) {
        const Port *port = &g->in_port[i];
        bool weight = port->role == ROLE_weight || port->role == ROLE_weight_copy;
        if (port->index != param || (!weight && port->role != ROLE_grad)) continue;
        if (!read_by_slices(g, g->in[i], weight ? INT32_MAX : 1)) return false;
    }
    for (int k = 0; k < g->nout; k++)
        if (g->out_port[k].role == ROLE_grad && g->out_port[k].index == param &&
            !is_made_by_slices(g, g->out[k]))
            return false;
    return true;
}

static bool is_apart(const Module *m, int param) {
    const Param *p = &m->param[param];
    if (p->nstack == 0 || p->uses > 1) return false;
    for (int i = 0; i < m->ngraph; i++)
        if (!graph_takes_apart(m->graph[i], param)) return false;
    return true;
}

/* ---- in which order gradients are complete ---------------------------------------------- */

static Made made_by(const Module *m, const Graph *g, int k) {
    const Port *port = &g->out_port[k];
    Val v = val_shown(g, g->out[k]);
    Made made = {.param = port->index,
                 .node = (int)g->val[v.id].node - 1,
                 .inner = -1,
                 .order = k,
                 .stacked = is_apart(m, port->index)};
    if (!made.stacked) return made;
    const Graph *body = g->node[made.node]->body;
    Val slice = val_shown(body, body->out[g->val[v.id].result]);
    made.inner = (int)body->val[slice.id].node - 1;
    return made;
}

/* What a repeat makes layer by layer comes before what is there when it is over. */
static int by_readiness(const void *x, const void *y) {
    const Made *a = x, *b = y;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->stacked != b->stacked) return a->stacked ? -1 : 1;
    if (a->inner != b->inner) return a->inner < b->inner ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static int list_made(const Module *m, const Graph *g, Made *made) {
    int n = 0;
    for (int k = 0; k < g->nout; k++)
        if (g->out_port[k].role == ROLE_grad && g->out_port[k].use == 0 &&
            m->param[g->out_port[k].index].trainable)
            made[n++] = made_by(m, g, k);
    qsort(made, (size_t)n, sizeof *made, by_readiness);
    return n;
}

/* ---- filling ---------------------------------------------------------------------------- */

/* Fills, in the order of their segments: with decay and without, then the same two of what its
 * owner alone has in f32. */
enum { FILL_owned = 2 };

/* Whether any graph has such a port. */
static bool has_port(const Module *m, Role role, int param) {
    for (int i = 0; i < m->ngraph; i++) {
        const Graph *g = m->graph[i];
        for (int k = 0; k < g->nin + g->nout; k++) {
            const Port *port = k < g->nin ? &g->in_port[k] : &g->out_port[k - g->nin];
            if (port->role == role && port->index == param) return true;
        }
    }
    return false;
}

/* Updated by whoever owns it, and read as its copy alone. */
static bool is_owned(const Module *m, int param) {
    const Param *p = &m->param[param];
    bool shared = p->uses > 1 || has_port(m, ROLE_grad, param);
    return module_is_sharded(m) && p->trainable && shared && has_port(m, ROLE_weight_copy, param) &&
           !has_port(m, ROLE_weight, param);
}

static int fill_of(const Module *m, int param) {
    return (is_owned(m, param) ? FILL_owned : 0) + (layout_decays(&m->param[param]) ? 0 : 1);
}

/* Elements that a bucket should not exceed. */
static int64_t limit(const Buckets *b) {
    int64_t bytes = b->m->nbucket == 0 && b->bytes > FIRST_BYTES ? FIRST_BYTES : b->bytes;
    return bytes / ELEM_BYTES;
}

static void push_bucket(Buckets *b, int segment, int64_t offset, int64_t elems) {
    Bucket bucket = {.local = b->local, .offset_elems = offset, .elems = elems};
    module_add_bucket(b->m, bucket);
    vec_push(b->scratch, &b->segment, segment);
}

static void close_bucket(Buckets *b, int segment) {
    Fill *f = &b->fill[segment];
    f->at = layout_round(f->at, b->align);
    if (f->at > f->begin) push_bucket(b, segment, f->begin, f->at - f->begin);
    f->begin = f->at;
}

/* A tensor as one piece: into the open bucket, or if it does not fit, into the next one. */
static void place_whole(Buckets *b, int param) {
    Param *p = &b->m->param[param];
    int s = b->kind[param];
    Fill *f = &b->fill[s];
    int64_t elems = layout_round(type_elems(b->m->types, p->type), PARAM_ALIGN);
    bool tied = p->uses > 1;
    if (tied || f->at - f->begin + elems > limit(b)) close_bucket(b, s);
    p->offset_elems = f->at;
    f->at += elems;
    b->placed[param] = true;
    if (tied || f->at - f->begin >= limit(b)) close_bucket(b, s);
}

/* Buckets of whole layers, from the one that is complete first on. */
static void cut_layers(Buckets *b, int s, int64_t begin, int64_t stride, int64_t n, bool reverse) {
    for (int64_t done = 0; done < n;) {
        int64_t layers = limit(b) / stride;
        if (layers < 1) layers = 1;
        if (layers > n - done) layers = n - done;
        int64_t low = reverse ? n - done - layers : done;
        push_bucket(b, s, begin + low * stride, layers * stride);
        done += layers;
    }
}

/* Some stacks of one repeat, layer by layer. */
static void place_part(Buckets *b, const Made *made, int n, int64_t elems, const Node *repeat) {
    Param *first = &b->m->param[made[0].param];
    int s = b->kind[made[0].param];
    Fill *f = &b->fill[s];
    int64_t count = param_slices(b->m, first), stride = layout_round(elems, b->align);
    close_bucket(b, s);
    int64_t at = f->at;
    for (int i = 0; i < n; i++) {
        Param *p = &b->m->param[made[i].param];
        p->offset_elems = at;
        p->stride_elems = stride;
        at += layout_round(param_slice_elems(b->m, p), PARAM_ALIGN);
        b->placed[made[i].param] = true;
    }
    cut_layers(b, s, f->at, stride, count, node_int(repeat, ATTR_reverse, 0) != 0);
    f->begin = f->at = f->at + count * stride;
}

/* The stacks of one repeat in one segment, in parts that a bucket holds. */
static void place_stacks(Buckets *b, const Made *made, int n, int s, const Node *repeat) {
    Made *part = ARENA_ARRAY(b->scratch, Made, n);
    int npart = 0;
    int64_t elems = 0;
    for (int i = 0; i < n; i++) {
        const Param *p = &b->m->param[made[i].param];
        if (b->kind[made[i].param] != s || b->placed[made[i].param]) continue;
        int64_t own = layout_round(param_slice_elems(b->m, p), PARAM_ALIGN);
        if (npart > 0 && elems + own > b->bytes / ELEM_BYTES) {
            place_part(b, part, npart, elems, repeat);
            npart = 0;
            elems = 0;
        }
        part[npart++] = made[i];
        elems += own;
    }
    if (npart > 0 && elems > 0) place_part(b, part, npart, elems, repeat);
}

static void place_chunk(Buckets *b, const Graph *g) {
    Made *made = ARENA_ARRAY(b->scratch, Made, g->nout + 1);
    int n = list_made(b->m, g, made);
    for (int i = 0; i < n;) {
        int end = i + 1;
        while (end < n && made[i].stacked && made[end].stacked && made[end].node == made[i].node)
            end++;
        for (int s = 0; s < SEGMENT_MAX && made[i].stacked; s++)
            place_stacks(b, made + i, end - i, s, g->node[made[i].node]);
        if (!made[i].stacked && !b->placed[made[i].param]) place_whole(b, made[i].param);
        i = end;
    }
    for (int s = 0; s < SEGMENT_MAX; s++) close_bucket(b, s);
}

/* ---- the whole -------------------------------------------------------------------------- */

/* What is in no bucket: not trained, or with no gradient on this rank. */
static void place_rest(Buckets *b) {
    for (int i = 0; i < b->m->nparam; i++) {
        Param *p = &b->m->param[i];
        Fill *f = &b->fill[b->kind[i]];
        int64_t align = p->uses > 1 && p->trainable ? b->align : PARAM_ALIGN;
        if (b->placed[i]) continue;
        p->offset_elems = layout_round(f->at, align); /* tied: replicas share it, too */
        f->at = p->offset_elems + layout_round(type_elems(b->m->types, p->type), align);
    }
    for (int s = 0; s < SEGMENT_MAX; s++) b->fill[s].at = layout_round(b->fill[s].at, b->align);
}

/* Segments behind each other: offsets count from the vector's begin. */
static void join_segments(Buckets *b) {
    Module *m = b->m;
    int64_t begin[SEGMENT_MAX];
    int number[SEGMENT_MAX];
    for (int s = 0; s < SEGMENT_MAX; s++) {
        begin[s] = m->flat_elems;
        number[s] = m->nsegment;
        if (b->fill[s].at == 0) continue;
        m->segment[m->nsegment++] = (Segment){.offset_elems = begin[s],
                                              .elems = b->fill[s].at,
                                              .decay = s % FILL_owned == 0,
                                              .owned = s >= FILL_owned};
        m->flat_elems += b->fill[s].at;
    }
    for (int i = 0; i < m->nparam; i++) {
        Param *p = &m->param[i];
        int s = b->kind[i];
        p->segment = m->nsegment > 0 && number[s] == m->nsegment ? 0 : number[s];
        p->offset_elems += begin[s];
    }
    for (int i = 0; i < m->nbucket; i++) m->bucket[i].offset_elems += begin[b->segment.data[i]];
}

/* Behind the vector: later uses, in buckets where this rank computes them. The first use of a tied
 * weight that is computed elsewhere is in none. */
static void place_uses(Buckets *b) {
    Module *m = b->m;
    layout_uses(m);
    for (b->local = m->nchunk - 1; b->local >= 0; b->local--) {
        const Graph *g = module_chunk_graph(m, "train", b->local);
        for (int k = 0; g != NULL && k < g->nout; k++) {
            const Port *port = &g->out_port[k];
            const Param *p = &m->param[port->index];
            if (port->role != ROLE_grad || port->use == 0 || !p->trainable) continue;
            push_bucket(b, 0, param_grad_offset(m, p, port->use), param_use_stride(m, p));
        }
    }
}

void bucket_params(Module *m, Arena *scratch) {
    Buckets b = {.m = m,
                 .scratch = scratch,
                 .align = PARAM_ALIGN * m->parallel.dp,
                 .bytes = m->parallel.bucket_bytes,
                 .placed = ARENA_ARRAY(scratch, bool, m->nparam + 1),
                 .kind = ARENA_ARRAY(scratch, int, m->nparam + 1)};
    for (int i = 0; i < m->nparam; i++) {
        m->param[i].stride_elems = 0;
        b.kind[i] = fill_of(m, i);
    }
    for (b.local = m->nchunk - 1; b.local >= 0; b.local--) {
        const Graph *g = module_chunk_graph(m, "train", b.local);
        if (g != NULL) place_chunk(&b, g);
    }
    place_rest(&b);
    join_segments(&b);
    place_uses(&b);
}
