/* plan_buckets.c - what replicas add up, and when.
 *
 * Reads   the module's buckets, and when each is complete (passes/sums.c); the placed graphs.
 * Writes  Program's buckets in that order and the steps that begin their sums. Their rows in the
 *         task table are there already.
 */
#include "codegen/program.h"

void plan_buckets(Program *p) {
    const Module *m = p->mod;
    for (int i = 0; module_has_buckets(m) && i < m->nbucket; i++) {
        const Bucket *b = &m->bucket[m->ready[i].bucket];
        PlanBucket row = {.local = b->local, .at = b->offset_elems * 4, .bytes = b->elems * 4};
        vec_push(p->arena, &p->buckets, row);
    }
}

/* The program that a chunk's last task of a step runs. */
typedef struct PlanLast {
    const char *graph;
    bool (*wanted)(const Node *);
} PlanLast;

static PlanLast last_program(const Program *p, int local) {
    const RankTasks *rank = &p->table->rank[p->mod->chunk != NULL ? p->mod->rank : 0];
    int last = table_last_task(rank, local);
    const Task *t = last >= 0 ? &rank->task[last] : NULL;
    bool add = t != NULL && !t->first && module_chunk_graph(p->mod, "train.add", local) != NULL;
    return (PlanLast){.graph = add ? "train.add" : "train",
                      .wanted = t != NULL && t->kind == TASK_weight ? plan_is_weight_part
                                                                    : plan_is_backward};
}

void plan_reduce_begin(Program *p, const Graph *g, bool (*wanted)(const Node *)) {
    p->reduces = -1;
    for (int c = 0; c < program_chunks(p) && p->buckets.n > p->at.bucket; c++) {
        PlanLast of = last_program(p, c);
        if (wanted == of.wanted && g == module_chunk_graph(p->mod, of.graph, c)) p->reduces = c;
    }
    if (p->reduces >= 0) plan_reduce_steps(p, -1, -1);
}

void plan_reduce_steps(Program *p, int node, int inner) {
    uint32_t first = p->ready.n;
    if (p->reduces < 0) return;
    for (uint32_t i = p->at.bucket; i < p->buckets.n; i++) {
        const BucketReady *m = &p->mod->ready[i - p->at.bucket];
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
