/* plan_buckets.c - what replicas add up, and when.
 *
 * Reads   the module's buckets (passes/bucket.c), the placed graphs, the table.
 * Writes  Program's buckets in the order in which they are complete, the steps that begin their
 *         sums, and their rows in the task table.
 *
 * A chunk's gradients are complete in its last task of the step that writes any: its last backward,
 * or where gradients of weights are tasks of their own the last of those. A bucket is complete
 * there when the last of its pieces is: behind the node that makes it, or if a repeat makes it
 * slice by slice, behind a node of the body in one iteration. What an earlier task has made is
 * complete from the beginning.
 */
#include "codegen/program.h"

#include <stdlib.h>

/* ---- the last task of a chunk ----------------------------------------------------------- */

static bool writes_gradients(const Task *t) {
    return t->kind == TASK_backward || t->kind == TASK_weight;
}

bool plan_is_last(const RankTasks *rank, int i) {
    if (!writes_gradients(&rank->task[i])) return false;
    for (int k = i + 1; k < rank->ntask; k++)
        if (writes_gradients(&rank->task[k]) && rank->task[k].local == rank->task[i].local)
            return false;
    return true;
}

/* Its place among the tasks of the rank at hand; -1: the chunk has none. */
static int find_last(const Program *p, int local) {
    const RankTasks *rank = &p->table->rank[p->mod->chunk != NULL ? p->mod->rank : 0];
    for (int i = rank->ntask - 1; i >= 0; i--)
        if (writes_gradients(&rank->task[i]) && rank->task[i].local == local) return i;
    return -1;
}

/* ---- when a bucket is complete ---------------------------------------------------------- */

static int compare(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

static int compare_moments(const PlanMoment *a, const PlanMoment *b) {
    if (a->node != b->node) return compare(a->node, b->node);
    if (a->turn != b->turn) return compare(a->turn, b->turn);
    return compare(a->inner, b->inner);
}

/* Of slice i of output k of g, in a program of the nodes that `wanted` accepts. */
static PlanMoment moment_of(const Graph *g, int k, bool apart, int64_t i,
                            bool (*wanted)(const Node *)) {
    Val v = val_shown(g, g->out[k]);
    const Node *n = val_node(g, v);
    PlanMoment m = {.node = -1, .turn = INT64_MAX, .inner = -1, .iteration = -1};
    if (n == NULL || !wanted(n)) return m;
    m.node = (int)g->val[v.id].node - 1;
    if (!apart || n->op != OP_repeat) return m;
    Val slice = val_shown(n->body, n->body->out[g->val[v.id].result]);
    int maker = (int)n->body->val[slice.id].node - 1;
    if (maker < 0) return m;
    int64_t count = node_int(n, ATTR_count, 1);
    bool reverse = node_int(n, ATTR_reverse, 0) != 0;
    return (PlanMoment){
        .node = m.node, .turn = reverse ? count - 1 - i : i, .inner = maker, .iteration = i};
}

/* The bucket of the module that holds an element, -1 none. */
static int find_bucket(const Module *m, int64_t at) {
    for (int i = 0; i < m->nbucket; i++)
        if (m->bucket[i].offset_elems <= at && at < m->bucket[i].offset_elems + m->bucket[i].elems)
            return i;
    return -1;
}

/* What a chunk's last program makes complete: moments of its buckets. */
static void note_moments(Program *p, const Graph *g, bool (*wanted)(const Node *),
                         PlanComplete *complete) {
    const Module *m = p->mod;
    for (int k = 0; g != NULL && k < g->nout; k++) {
        const Port *port = &g->out_port[k];
        if (port->role != ROLE_grad) continue;
        const Param *param = &m->param[port->index];
        bool apart = port->use == 0 && param->stride_elems != 0;
        int64_t slices = apart ? param_slices(m, param) : 1;
        for (int64_t i = 0; i < slices; i++) {
            int64_t at = param_grad_offset(m, param, port->use) + i * param->stride_elems;
            int bucket = find_bucket(m, at);
            if (bucket < 0) continue;
            PlanMoment moment = moment_of(g, k, apart, i, wanted);
            PlanMoment *last = &complete[bucket].moment;
            if (compare_moments(last, &moment) < 0) *last = moment;
        }
    }
}

static int by_readiness(const void *x, const void *y) {
    const PlanComplete *a = x, *b = y;
    if (a->task != b->task) return compare(a->task, b->task);
    int moments = compare_moments(&a->moment, &b->moment);
    return moments != 0 ? moments : compare(a->number, b->number);
}

void plan_buckets(Program *p) {
    const Module *m = p->mod;
    if (!module_has_buckets(m)) return;
    p->complete = ARENA_ARRAY(p->arena, PlanComplete, m->nbucket + 1);
    for (int i = 0; i < m->nbucket; i++)
        p->complete[i] = (PlanComplete){.number = i,
                                        .task = find_last(p, m->bucket[i].local),
                                        .moment = {.node = -1, .inner = -1, .iteration = -1}};
    for (int c = 0; c < program_chunks(p); c++) {
        int last = find_last(p, c);
        if (last < 0) continue;
        PlanLast of = plan_last(p, c);
        note_moments(p, module_chunk_graph(p->mod, of.graph, c), of.wanted, p->complete);
    }
    qsort(p->complete, (size_t)m->nbucket, sizeof *p->complete, by_readiness);
    for (int i = 0; i < m->nbucket; i++) {
        const Bucket *b = &m->bucket[p->complete[i].number];
        PlanBucket row = {.local = b->local, .at = b->offset_elems * 4, .bytes = b->elems * 4};
        vec_push(p->arena, &p->buckets, row);
    }
}

/* ---- steps and rows --------------------------------------------------------------------- */

PlanLast plan_last(Program *p, int local) {
    const RankTasks *rank = &p->table->rank[p->mod->chunk != NULL ? p->mod->rank : 0];
    int last = find_last(p, local);
    const Task *t = last >= 0 ? &rank->task[last] : NULL;
    bool add = t != NULL && !t->first && module_chunk_graph(p->mod, "train.add", local) != NULL;
    return (PlanLast){.graph = add ? "train.add" : "train",
                      .wanted = t != NULL && t->kind == TASK_weight ? plan_is_weight_part
                                                                    : plan_is_backward};
}

void plan_reduce_begin(Program *p, const Graph *g, bool (*wanted)(const Node *)) {
    p->reduces = -1;
    for (int c = 0; c < program_chunks(p) && p->buckets.n > p->at.bucket; c++) {
        PlanLast of = plan_last(p, c);
        if (wanted == of.wanted && g == module_chunk_graph(p->mod, of.graph, c)) p->reduces = c;
    }
    if (p->reduces >= 0) plan_reduce_steps(p, -1, -1);
}

void plan_reduce_steps(Program *p, int node, int inner) {
    uint32_t first = p->ready.n;
    if (p->reduces < 0) return;
    for (uint32_t i = p->at.bucket; i < p->buckets.n; i++) {
        const PlanMoment *m = &p->complete[i - p->at.bucket].moment;
        if (p->buckets.data[i].local != p->reduces || m->node != node || m->inner != inner)
            continue;
        PlanReady row = {.bucket = i - p->at.bucket, .iteration = m->iteration};
        vec_push(p->arena, &p->ready, row);
    }
    if (p->ready.n == first) return;
    PlanStep step = {
        .kind = STEP_REDUCE, .first = first - p->at.ready, .count = p->ready.n - first};
    vec_push(p->arena, &p->steps, step);
}

void plan_reduce_tasks(Program *p, int local) {
    for (uint32_t i = p->at.bucket; i < p->buckets.n; i++) {
        const PlanBucket *b = &p->buckets.data[i];
        if (b->local != local) continue;
        PlanTask row = {.kind = PTASK_reduce,
                        .chunk = -1,
                        .local = local,
                        .microbatch = -1,
                        .message = (int32_t)(i - p->at.bucket)};
        vec_push(p->arena, &p->tasks, row);
    }
}
