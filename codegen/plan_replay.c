/* plan_replay.c - the steps of a chunk's last task are walked as the runtime walks them: nothing
 * may be written to a bucket once its sum has begun, and every bucket of the chunk begins once.
 *
 * Knows steps and addresses only, nothing of how the steps came to be.
 */
#include "codegen/program.h"

typedef struct Replay {
    const Program *p;
    int local;
    bool *begun; /* by bucket of the rank at hand */
    const char *why;
    int64_t iteration[PLAN_REPEAT_DEPTH_MAX];
} Replay;

static const PlanBucket *bucket_at(const Replay *r, uint32_t i) {
    return &r->p->buckets.data[r->p->at.bucket + i];
}

static uint32_t bucket_count(const Replay *r) { return r->p->buckets.n - r->p->at.bucket; }

static void replay_write(Replay *r, const PlanArg *arg, const char *kernel) {
    int64_t begin = arg->offset;
    for (int k = 0; k < arg->nstride; k++)
        begin += r->iteration[k] * r->p->strides.data[arg->stride + (uint32_t)k];
    for (uint32_t i = 0; i < bucket_count(r); i++) {
        const PlanBucket *b = bucket_at(r, i);
        if (begin < b->at + b->bytes && b->at < begin + arg->bytes && r->begun[i])
            r->why =
                arena_printf(r->p->arena, "%s writes to bucket %u, whose sum has begun", kernel, i);
    }
}

static void replay_begin(Replay *r, const PlanStep *step) {
    for (int64_t i = step->first; i < step->first + step->count; i++) {
        const PlanReady *ready = &r->p->ready.data[r->p->at.ready + (uint32_t)i];
        if (ready->iteration >= 0 && ready->iteration != r->iteration[0]) continue;
        if (bucket_at(r, ready->bucket)->local != r->local || r->begun[ready->bucket])
            r->why = arena_printf(r->p->arena, "the sum of bucket %u begins twice", ready->bucket);
        r->begun[ready->bucket] = true;
    }
}

static void replay_steps(Replay *r, uint32_t begin, uint32_t end, int depth) {
    const Program *p = r->p;
    for (uint32_t s = begin; s < end && r->why == NULL; s++) {
        const PlanStep *step = &p->steps.data[s];
        if (step->kind == STEP_REDUCE) replay_begin(r, step);
        for (uint32_t i = 0; step->kind == STEP_LAUNCH && i < step->narg; i++) {
            const PlanArg *arg = &p->args.data[step->arg + i];
            if (arg->written && arg->region == PLAN_REGION_grad)
                replay_write(r, arg, p->kernels.data[step->kernel].name);
        }
        if (step->kind != STEP_REPEAT) continue;
        for (int64_t i = 0; i < step->count; i++) {
            r->iteration[depth] = step->reverse ? step->count - 1 - i : i;
            replay_steps(r, s + 1, s + 1 + step->nbody, depth + 1);
        }
        r->iteration[depth] = 0;
        s += step->nbody;
    }
}

const char *plan_replay(const Program *p, int local, uint32_t begin, uint32_t end) {
    Replay r = {.p = p, .local = local};
    r.begun = ARENA_ARRAY(p->arena, bool, bucket_count(&r) + 1);
    replay_steps(&r, begin, end, 0);
    for (uint32_t i = 0; i < bucket_count(&r) && r.why == NULL; i++)
        if (bucket_at(&r, i)->local == local && !r.begun[i])
            r.why = arena_printf(p->arena, "the sum of bucket %u does not begin", i);
    return r.why;
}
