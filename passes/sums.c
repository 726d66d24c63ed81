/* sums.c - what replicas add up and hand each other, as rows of the task table.
 *
 * Reads   the module's buckets and parts of the flat vectors, the placed graphs, the table.
 * Writes  when each bucket is complete, in which order weights are gathered; the rows of this rank;
 *         once all ranks have theirs, the table's proof, times and summary.
 * Keeps   all graphs.
 * Why     behind place, because only then is it known behind which node a gradient is complete.
 *
 * A chunk's gradients are complete in its last task of the step that writes any: its last backward,
 * or where gradients of weights are tasks of their own the last of those. A bucket is complete
 * there when the last of its pieces is: behind the node that makes it, or if a repeat makes it
 * slice by slice, behind a node of the body in one iteration. What an earlier task has made is
 * complete from the beginning. Sums and gathers have rows behind that task and behind the update.
 */
#include "ir/cost.h"
#include "ir/ordered.h"
#include "passes/schedule.h"

#include <stdlib.h>

enum { ELEM_BYTES = 4, COPY_BYTES = 2 };

/* A bucket with the task of its rank that completes it. */
typedef struct Complete {
    BucketReady at;
    int task;
} Complete;

/* What a chunk's last task runs. */
typedef struct Last {
    const Graph *g; /* NULL: there is none */
    TaskKind kind;
} Last;

typedef struct Sums {
    Module *m;
    RankTasks *rank;
    Complete *complete; /* by bucket */
    double byte_sent;   /* for the sum of one byte */
} Sums;

static Last last_of(const Sums *s, int local) {
    int at = table_last_task(s->rank, local);
    if (at < 0) return (Last){.g = NULL};
    const Task *t = &s->rank->task[at];
    const Graph *add = module_chunk_graph(s->m, "train.add", local);
    bool adds = !t->first && add != NULL;
    return (Last){adds ? add : module_chunk_graph(s->m, "train", local), t->kind};
}

/* ---- when a bucket is complete ---------------------------------------------------------- */

static int compare(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

static int compare_moments(const BucketReady *a, const BucketReady *b) {
    if (a->node != b->node) return compare(a->node, b->node);
    if (a->turn != b->turn) return compare(a->turn, b->turn);
    return compare(a->inner, b->inner);
}

/* Of slice i of output k of what a last task runs. */
static BucketReady moment_of(const Last *last, int k, bool apart, int64_t i) {
    const Graph *g = last->g;
    Val v = val_shown(g, g->out[k]);
    const Node *n = val_node(g, v);
    BucketReady m = {.node = -1, .turn = INT64_MAX, .inner = -1, .iteration = -1};
    if (n == NULL || !table_task_runs(last->kind, n->phase)) return m;
    m.node = (int)g->val[v.id].node - 1;
    if (!apart || n->op != OP_repeat) return m;
    Val slice = val_shown(n->body, n->body->out[g->val[v.id].result]);
    int maker = (int)n->body->val[slice.id].node - 1;
    if (maker < 0) return m;
    int64_t count = node_int(n, ATTR_count, 1);
    bool reverse = node_int(n, ATTR_reverse, 0) != 0;
    m.turn = reverse ? count - 1 - i : i;
    m.inner = maker;
    m.iteration = i;
    return m;
}

/* The bucket of the module that holds an element, -1 none. */
static int find_bucket(const Module *m, int64_t at) {
    for (int i = 0; i < m->nbucket; i++)
        if (m->bucket[i].offset_elems <= at && at < m->bucket[i].offset_elems + m->bucket[i].elems)
            return i;
    return -1;
}

/* What a chunk's last task makes complete: moments of its buckets. */
static void note_moments(Sums *s, const Last *last) {
    const Module *m = s->m;
    for (int k = 0; k < last->g->nout; k++) {
        const Port *port = &last->g->out_port[k];
        if (port->role != ROLE_grad) continue;
        const Param *param = &m->param[port->index];
        bool apart = port->use == 0 && param->stride_elems != 0;
        int64_t slices = apart ? param_slices(m, param) : 1;
        for (int64_t i = 0; i < slices; i++) {
            int64_t at = param_grad_offset(m, param, port->use) + i * param->stride_elems;
            int bucket = find_bucket(m, at);
            if (bucket < 0) continue;
            BucketReady moment = moment_of(last, k, apart, i), *latest = &s->complete[bucket].at;
            moment.bucket = bucket;
            if (compare_moments(latest, &moment) < 0) *latest = moment;
        }
    }
}

/* ---- how far the task is then ----------------------------------------------------------- */

/* By node of what a last task runs: the cost of those before it; of all. */
static double *costs_before(const Last *last, Arena *scratch) {
    double *before = ARENA_ARRAY(scratch, double, last->g->nnode + 1);
    for (int i = 0; i < last->g->nnode; i++) {
        const Node *n = last->g->node[i];
        before[i + 1] = before[i] + (table_task_runs(last->kind, n->phase) ? cost_placed(n) : 0);
    }
    return before;
}

static double share_before(const Last *last, const double *before, const BucketReady *at) {
    double all = before[last->g->nnode];
    if (at->node < 0 || all <= 0) return 0;
    if (at->inner < 0) return before[at->node + 1] / all;
    const Node *n = last->g->node[at->node];
    double turn = (before[at->node + 1] - before[at->node]) / (double)node_int(n, ATTR_count, 1);
    double done = before[at->node] + turn * (double)at->turn;
    for (int i = 0; i <= at->inner; i++) done += cost_placed(n->body->node[i]);
    return done < all ? done / all : 1;
}

static int by_readiness(const void *x, const void *y) {
    const Complete *a = x, *b = y;
    if (a->task != b->task) return compare(a->task, b->task);
    int moments = compare_moments(&a->at, &b->at);
    return moments != 0 ? moments : compare(a->at.bucket, b->at.bucket);
}

static void order_buckets(Sums *s, Arena *scratch) {
    Module *m = s->m;
    int chunks = m->chunk != NULL ? m->nchunk : 1;
    s->complete = ARENA_ARRAY(scratch, Complete, m->nbucket + 1);
    m->ready = ARENA_ARRAY(m->arena, BucketReady, m->nbucket + 1);
    for (int i = 0; i < m->nbucket; i++)
        s->complete[i] = (Complete){.at = {.bucket = i, .node = -1, .inner = -1, .iteration = -1},
                                    .task = table_last_task(s->rank, m->bucket[i].local)};
    for (int c = 0; c < chunks; c++) {
        Last last = last_of(s, c);
        if (last.g == NULL) continue;
        note_moments(s, &last);
        const double *before = costs_before(&last, scratch);
        for (int i = 0; i < m->nbucket && m->parallel.dp > 1; i++)
            if (m->bucket[i].local == c)
                s->complete[i].at.done = share_before(&last, before, &s->complete[i].at);
    }
    qsort(s->complete, (size_t)m->nbucket, sizeof *s->complete, by_readiness);
    for (int i = 0; i < m->nbucket; i++) m->ready[i] = s->complete[i].at;
}

/* ---- in which order weights go ---------------------------------------------------------- */

static bool reads(const Graph *g, int param) {
    for (int i = 0; g != NULL && i < g->nin; i++)
        if ((g->in_port[i].role == ROLE_weight || g->in_port[i].role == ROLE_weight_copy) &&
            g->in_port[i].index == param)
            return true;
    return false;
}

/* Whether a parameter lies in elements [begin, end) of the vector, at least in part. */
static bool lies_in(const Module *m, const Param *p, int64_t begin, int64_t end) {
    return p->offset_elems < end && p->offset_elems + param_extent(m, p) > begin;
}

/* The first chunk of this rank that reads a weight in a range; -1 none. */
static int first_reader(Module *m, int64_t begin, int64_t end) {
    for (int c = 0; c < (m->chunk != NULL ? m->nchunk : 1); c++) {
        const Graph *train = module_chunk_graph(m, "train", c);
        for (int i = 0; i < m->nparam; i++)
            if (lies_in(m, &m->param[i], begin, end) && reads(train, i)) return c;
    }
    return -1;
}

static int by_reader(const void *x, const void *y) {
    const PartGather *a = x, *b = y;
    return a->local != b->local ? compare(a->local, b->local) : compare(a->part, b->part);
}

/* What is read first goes first. One replica alone has all of it already. */
static void order_gathers(Module *m) {
    FlatPart part;
    m->ngather = 0;
    if (!module_is_sharded(m)) return;
    while (module_flat_part(m, m->ngather, &part)) m->ngather++;
    m->gather = ARENA_ARRAY(m->arena, PartGather, m->ngather + 1);
    for (int i = 0; i < m->ngather && module_flat_part(m, i, &part); i++) {
        int64_t end = part.offset_elems + part.elems * m->parallel.dp;
        m->gather[i] = (PartGather){.part = i, .local = first_reader(m, part.offset_elems, end)};
    }
    if (m->parallel.dp > 1) qsort(m->gather, (size_t)m->ngather, sizeof *m->gather, by_reader);
}

/* ---- rows ------------------------------------------------------------------------------- */

/* What leaves each replica for the sum of one byte: each part of it but its own for that part's
 * sum, in order as often as it has sums of its own; and its part once more to all others, with zero
 * = 1 not. In order by the host: whole sums to all others. */
static double byte_sent(const Module *m, const Table *t, Arena *scratch) {
    double n = (double)m->parallel.dp, kept = 1;
    if (m->parallel.ordered) kept = ordered_make(scratch, t, (int)m->parallel.dp)->npart / n;
    if (t->sums_last) return (n - 1) * kept;
    return (kept + (module_is_sharded(m) ? 0 : 1)) * (n - 1) / n;
}

static Task sum_row(const Sums *s, int number) {
    const Module *m = s->m;
    const BucketReady *at = &m->ready[number];
    const Bucket *b = &m->bucket[at->bucket];
    return (Task){.kind = TASK_reduce,
                  .chunk = -1,
                  .local = b->local,
                  .microbatch = -1,
                  .message = number,
                  .done = at->done,
                  .sent = (double)b->elems * ELEM_BYTES * s->byte_sent};
}

static Task gather_row(const Module *m, int number) {
    FlatPart part = {0};
    module_flat_part(m, m->gather[number].part, &part);
    return (Task){.kind = TASK_gather,
                  .chunk = -1,
                  .local = m->gather[number].local,
                  .microbatch = -1,
                  .message = number,
                  .sent = (double)(part.elems * (part.owned ? COPY_BYTES : ELEM_BYTES)) *
                          (double)(m->parallel.dp - 1)};
}

/* Sums behind the last task of their chunk, gathers behind everything. */
static void add_rows(const Sums *s) {
    const Module *m = s->m;
    RankTasks *rank = s->rank, old = *rank;
    int next = 0, gathers = m->parallel.dp > 1 ? m->ngather : 0;
    *rank = (RankTasks){.nsum = m->nbucket, .ngather = gathers};
    rank->task = ARENA_ARRAY(m->arena, Task, old.ntask + m->nbucket + gathers);
    for (int i = 0; i < old.ntask; i++) {
        rank->task[rank->ntask++] = old.task[i];
        for (; next < m->nbucket && s->complete[next].task == i; next++)
            rank->task[rank->ntask++] = sum_row(s, next);
    }
    for (int i = 0; i < gathers; i++) rank->task[rank->ntask++] = gather_row(m, i);
}

bool pass_sums(PassContext *ctx) {
    Module *m = ctx->mod;
    Table *t = ctx->table;
    if (t == NULL || t->summary != NULL || !module_has_buckets(m)) return true;
    int rank = m->chunk != NULL ? m->rank : 0;
    Sums s = {.m = m, .rank = &t->rank[rank]};
    order_buckets(&s, ctx->scratch);
    order_gathers(m);
    s.byte_sent = byte_sent(m, t, ctx->scratch);
    add_rows(&s);
    if (rank == t->ranks - 1) schedule_finish(ctx);
    return true;
}
