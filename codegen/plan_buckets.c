/* plan_buckets.c - what replicas add up, and when.
 *
 * Reads   the gradients of the rank at hand.
 * Writes  Program's buckets, the steps that begin their sums, and their rows in the task table.
 */
#include "codegen/program.h"

void plan_buckets(Program *p) {
    const Module *m = p->mod;
    if (m->parallel.dp == 1 && !m->parallel.ordered) return;
    PlanBucket all = {.local = m->nchunk - 1, .at = 0, .bytes = m->grad_elems * 4};
    PlanReady ready = {.bucket = 0, .iteration = -1};
    vec_push(p->arena, &p->buckets, all);
    vec_push(p->arena, &p->ready, ready);
}

void plan_reduce_steps(Program *p) {
    if (p->buckets.n == p->at.bucket) return;
    PlanStep step = {.kind = STEP_REDUCE, .first = 0, .count = p->ready.n - p->at.ready};
    vec_push(p->arena, &p->steps, step);
}

void plan_reduce_tasks(Program *p) {
    for (uint32_t i = p->at.bucket; i < p->buckets.n; i++) {
        PlanTask row = {.kind = PTASK_reduce,
                        .chunk = -1,
                        .local = p->buckets.data[i].local,
                        .microbatch = -1,
                        .message = (int32_t)(i - p->at.bucket)};
        vec_push(p->arena, &p->tasks, row);
    }
}
