/* engine.c - takes the memory and walks chunk programs. */
#include "runtime/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/check.h"
#include "runtime/file.h"
#include "runtime/philox.h"

/* A page is left free at both ends: a vector may load, without using it, what lies just beside a
 * tensor (gcc 12 folds masked loads into unmasked ones). */
enum { PAGE_BYTES = 4096 };

InfCode inf_engine_bytes(InfError *e, const Plan *plan, uint64_t *bytes) {
    *bytes = 2 * PAGE_BYTES;
    for (int r = 0; r < PLAN_REGION_count; r++) {
        uint64_t region = 0;
        if (plan->region_bytes[r] < 0 ||
            !inf_round_up((uint64_t)plan->region_bytes[r], PAGE_BYTES, &region) ||
            !inf_add(*bytes, region, bytes))
            return inf_fail(e, INF_IO, "the plan needs more than 2^64 bytes of memory");
    }
    return INF_OK;
}

/* The plan comes from our own compiler, so what is wrong here is our fault: exit 3. */
static void check_plan(const Plan *plan) {
    INF_ASSERT(plan->version == PLAN_VERSION);
    INF_ASSERT(plan->nprogram >= 1);
    INF_ASSERT(plan->region_bytes[PLAN_REGION_scalar] >=
               HOST_SCALAR_COUNT * (int64_t)sizeof(float));
    for (uint32_t c = 0; c < plan->nchunk; c++) {
        INF_ASSERT(plan->chunk[c].begin <= plan->chunk[c].end);
        for (uint32_t s = plan->chunk[c].begin; s < plan->chunk[c].end; s++) {
            const PlanStep *step = &plan->step[s];
            if (step->kind == STEP_REPEAT) {
                INF_ASSERT(step->nbody < plan->chunk[c].end - s);
                continue;
            }
            INF_ASSERT(step->kernel < plan->nkernel && plan->kernel[step->kernel].fn);
            for (uint32_t a = step->arg; a < step->arg + step->narg; a++) {
                const PlanArg *arg = &plan->arg[a];
                INF_ASSERT(arg->region > PLAN_REGION_none && arg->region < PLAN_REGION_count);
                INF_ASSERT(arg->offset >= 0 && arg->offset <= plan->region_bytes[arg->region]);
                INF_ASSERT(arg->nstride <= PLAN_REPEAT_DEPTH_MAX);
            }
        }
    }
}

static uint32_t most_args(const Plan *plan) {
    uint32_t most = 1;
    for (uint32_t c = 0; c < plan->nchunk; c++)
        for (uint32_t s = plan->chunk[c].begin; s < plan->chunk[c].end; s++)
            if (plan->step[s].kind == STEP_LAUNCH && plan->step[s].narg > most)
                most = plan->step[s].narg;
    return most;
}

/* Writes one byte a page, so that the memory is there before the first step, not during it. */
static void touch(unsigned char *at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += PAGE_BYTES) ((volatile unsigned char *)at)[i] = 0;
}

InfCode inf_engine_open(InfError *e, const Plan *plan, int threads, uint64_t seed, InfEngine *out) {
    *out = (InfEngine){.plan = plan, .env = {.seed = seed}};
    check_plan(plan);
    TRY(inf_cpu_check(e, plan));
    TRY(inf_engine_bytes(e, plan, &out->memory_bytes));
    uint64_t available = inf_memory_available();
    if (out->memory_bytes > available)
        return inf_fail(e, INF_IO,
                        "the plan needs %llu bytes of memory, %llu are available; a "
                        "smaller train.B or more train.microbatches needs less",
                        (unsigned long long)out->memory_bytes, (unsigned long long)available);
    out->arg = calloc(most_args(plan), sizeof *out->arg);
    if (!out->arg) return inf_fail(e, INF_IO, "out of memory");
    TRY(inf_map_memory(e, out->memory_bytes, "the plan", &out->memory));
    /* Large pages where the system has them: fewer misses in the tables of addresses. */
    if (out->memory) madvise(out->memory, (size_t)out->memory_bytes, MADV_HUGEPAGE);
    touch(out->memory, out->memory_bytes);

    unsigned char *at = (unsigned char *)out->memory + PAGE_BYTES;
    for (int r = 0; r < PLAN_REGION_count; r++) {
        uint64_t region = 0;
        bool fits = inf_round_up((uint64_t)plan->region_bytes[r], PAGE_BYTES, &region);
        INF_ASSERT(fits);
        out->base[r] = at;
        at += region;
    }
    out->env.threads = inf_threads_set(threads);
    return INF_OK;
}

void inf_engine_close(InfEngine *m) {
    inf_unmap_memory(m->memory, m->memory_bytes);
    free(m->arg);
    free(m->kernel_ms);
    free(m->kernel_calls);
    *m = (InfEngine){0};
}

InfCode inf_engine_time_kernels(InfError *e, InfEngine *m) {
    size_t count = m->plan->nkernel + 1;
    free(m->kernel_ms);
    free(m->kernel_calls);
    m->kernel_ms = calloc(count, sizeof *m->kernel_ms);
    m->kernel_calls = calloc(count, sizeof *m->kernel_calls);
    if (!m->kernel_ms || !m->kernel_calls) return inf_fail(e, INF_IO, "out of memory");
    return INF_OK;
}

static void launch(InfEngine *m, const PlanStep *step) {
    const Plan *plan = m->plan;
    for (uint32_t i = 0; i < step->narg; i++) {
        const PlanArg *arg = &plan->arg[step->arg + i];
        int64_t offset = arg->offset;
        for (int k = 0; k < arg->nstride; k++)
            offset += m->env.iter[k] * plan->stride[arg->stride + (uint32_t)k];
        m->arg[i] = inf_engine_at(m, arg->region, offset);
    }
    if (!m->kernel_ms) {
        plan->kernel[step->kernel].fn(m->arg, &m->env);
        return;
    }
    double start = inf_clock_ms();
    plan->kernel[step->kernel].fn(m->arg, &m->env);
    m->kernel_ms[step->kernel] += inf_clock_ms() - start;
    m->kernel_calls[step->kernel]++;
}

static void walk(InfEngine *m, uint32_t begin, uint32_t end, int depth) {
    for (uint32_t s = begin; s < end; s++) {
        const PlanStep *step = &m->plan->step[s];
        if (step->kind == STEP_LAUNCH) {
            launch(m, step);
            continue;
        }
        INF_ASSERT(depth < PLAN_REPEAT_DEPTH_MAX);
        for (int64_t i = 0; i < step->count; i++) {
            m->env.iter[depth] = step->reverse ? step->count - 1 - i : i;
            walk(m, s + 1, s + 1 + step->nbody, depth + 1);
        }
        m->env.iter[depth] = 0;
        s += step->nbody;
    }
}

void inf_engine_run(InfEngine *m, uint32_t chunk) {
    INF_ASSERT(chunk < m->plan->nchunk);
    walk(m, m->plan->chunk[chunk].begin, m->plan->chunk[chunk].end, 0);
}

void inf_random4(const InfEnv *env, uint32_t stream, uint32_t iteration, uint64_t block,
                 uint32_t out[4]) {
    InfRandom4 counter = {{(uint32_t)block, stream, (uint32_t)env->microbatch, iteration}};
    uint64_t seed = env->seed ^ env->seed >> 32;
    InfRandom4 r = inf_philox(counter, (uint32_t)seed, (uint32_t)env->step);
    memcpy(out, r.v, sizeof r.v);
}
