/* engine.c - opens the device, takes the memory and walks chunk programs. */
#include "runtime/engine.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/file.h"
#include "runtime/ordered.h"
#include "runtime/philox.h"
#include "runtime/pipeline.h"
#include "runtime/shards.h"
#include "runtime/signals.h"

/* A page is left free at both ends: a vector may load, without using it, what lies just beside a
 * tensor (gcc 12 folds masked loads into unmasked ones). */
enum { PAGE_BYTES = 4096 };

/* A larger graph takes longer to prepare than plain launches cost. */
enum { GRAPH_NODES_MAX = 20000 };

InfCode inf_engine_bytes(InfError *e, const int64_t region_bytes[PLAN_REGION_count],
                         uint64_t *bytes) {
    *bytes = 2 * PAGE_BYTES;
    for (int r = 0; r < PLAN_REGION_recv; r++) {
        uint64_t region = 0;
        if (region_bytes[r] < 0 || !inf_round_up((uint64_t)region_bytes[r], PAGE_BYTES, &region) ||
            !inf_add(*bytes, region, bytes))
            return inf_fail(e, INF_IO, "the plan needs more than 2^64 bytes of memory");
    }
    return INF_OK;
}

const PlanProgram *inf_program_find(const Plan *plan, const char *name) {
    for (uint32_t i = 0; i < plan->nprogram; i++)
        if (strcmp(plan->program[i].name, name) == 0) return &plan->program[i];
    return NULL;
}

static void check_kernel(const Plan *plan, const PlanKernel *kernel, const PlanStep *step) {
    if (kernel->kind == PLAN_KERNEL_c) INF_ASSERT(kernel->fn);
    if (kernel->kind != PLAN_KERNEL_matmul) return;
    INF_ASSERT(kernel->matmul < plan->nmatmul);
    const PlanMatmul *p = &plan->matmul[kernel->matmul];
    const uint8_t which[] = {p->a, p->b, p->bias, p->old, p->out};
    for (size_t i = 0; i < sizeof which; i++) INF_ASSERT(which[i] < step->narg);
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
            if (step->kind == STEP_REPEAT) INF_ASSERT(step->nbody < plan->chunk[c].end - s);
            if (step->kind != STEP_LAUNCH) continue;
            INF_ASSERT(step->kernel < plan->nkernel);
            check_kernel(plan, &plan->kernel[step->kernel], step);
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

/* Tasks of all programs; ranks share none. */
static uint32_t task_count(const Plan *plan) {
    uint32_t count = 0;
    for (uint32_t p = 0; p < plan->nprogram; p++)
        for (int r = 0; r < plan->pp; r++) {
            const PlanRank *rank = &plan->program[p].rank[r];
            if (rank->task + rank->ntask > count) count = rank->task + rank->ntask;
        }
    return count;
}

/* Ranks talk to each other; chunks of one rank only when told to, on a device (Plan.message), as
 * one rank then adds up its buckets alone. */
static bool talks(const InfEngine *m, const InfGroup *group) {
    const Plan *plan = m->plan;
    bool alone = !m->table->shared && inf_plan_talks_alone(plan);
    return (plan->transport && group) || plan->nmessage > 0 || alone;
}

InfCode inf_engine_start(InfError *e, const Plan *plan, InfGroup *group, int threads, uint64_t seed,
                         InfEngine *out) {
    *out = (InfEngine){.plan = plan,
                       .table = inf_device_find(plan),
                       .graph_most = GRAPH_NODES_MAX,
                       .replica = group ? group->replica : 0,
                       .env = {.seed = seed}};
    check_plan(plan);
    memcpy(out->bytes, plan->region_bytes, sizeof out->bytes);
    TRY(out->table->open(e, plan, group, &out->device));
    out->use_graphs = out->table->graphs;
    out->arg = calloc(most_args(plan), sizeof *out->arg);
    out->graphs = calloc(plan->nprogram, sizeof *out->graphs);
    out->graph = calloc((size_t)plan->nprogram + task_count(plan), sizeof *out->graph);
    out->sums = calloc((size_t)plan->nprogram + task_count(plan), sizeof *out->sums);
    if (!out->arg || !out->graphs || !out->graph || !out->sums)
        return inf_fail(e, INF_IO, "out of memory");
    out->env.threads = inf_threads_set(threads);
    TRY(inf_ordered_open(e, out));
    if (!talks(out, group)) return INF_OK;
    out->pipeline = calloc(1, sizeof *out->pipeline);
    if (!out->pipeline) return inf_fail(e, INF_IO, "out of memory");
    return inf_pipeline_open(e, plan, group, out->pipeline);
}

void inf_train_regions(const Plan *plan, bool outputs, int64_t bytes[PLAN_REGION_count]) {
    const PlanProgram *more = outputs ? inf_program_find(plan, "outputs") : NULL;
    int64_t scratch = plan->program[0].scratch;
    if (more && more->scratch > scratch) scratch = more->scratch;
    memcpy(bytes, plan->region_bytes, PLAN_REGION_count * sizeof *bytes);
    bytes[PLAN_REGION_cache] = 0;
    if (plan->program[0].scratch > 0) bytes[PLAN_REGION_scratch] = scratch;
}

void inf_engine_trains(InfEngine *m, bool outputs) {
    inf_train_regions(m->plan, outputs, m->bytes);
}

static bool begins_with(const char *name, const char *word) {
    return word && strncmp(name, word, strlen(word)) == 0;
}

void inf_engine_goes_forward(InfEngine *m, const char *word, const char *other) {
    int64_t scratch = 0;
    bool cached = false;
    for (uint32_t i = 0; i < m->plan->nprogram; i++) {
        const PlanProgram *p = &m->plan->program[i];
        if (!begins_with(p->name, word) && !begins_with(p->name, other)) continue;
        if (p->scratch > scratch) scratch = p->scratch;
        for (uint32_t k = 0; k < p->ninput; k++)
            cached = cached || p->input[k].kind == PLAN_INPUT_position;
    }
    m->bytes[PLAN_REGION_grad] = m->bytes[PLAN_REGION_state] = m->bytes[PLAN_REGION_slot] = 0;
    m->bytes[PLAN_REGION_sum] = 0;
    if (scratch > 0) m->bytes[PLAN_REGION_scratch] = scratch;
    if (!cached) m->bytes[PLAN_REGION_cache] = 0;
}

/* Lays the regions out behind one free page. */
static void place_regions(const InfEngine *m, void *memory, unsigned char **base) {
    unsigned char *at = (unsigned char *)memory + PAGE_BYTES;
    for (int r = 0; r < PLAN_REGION_recv; r++) {
        uint64_t region = 0;
        bool fits = inf_round_up((uint64_t)m->bytes[r], PAGE_BYTES, &region);
        INF_ASSERT(fits);
        base[r] = at;
        at += region;
    }
    for (int r = PLAN_REGION_recv; r < PLAN_REGION_count; r++) base[r] = base[PLAN_REGION_message];
}

InfCode inf_engine_take(InfError *e, InfEngine *m, uint64_t extra) {
    uint64_t bytes = 0, all = 0;
    void *memory = NULL;
    TRY(inf_engine_bytes(e, m->bytes, &bytes));
    if (!inf_add(bytes, extra, &all))
        return inf_fail(e, INF_IO, "the plan needs more than 2^64 bytes of memory");
    TRY(m->table->take(e, m->device, all, &memory, &m->memory_bytes));
    place_regions(m, memory, m->on_device);
    m->extra = (unsigned char *)memory + bytes;
    if (!m->table->shared) {
        /* Takes room only where it is touched: parameters, gradients when asked for, scalars. */
        TRY(inf_map_memory(e, bytes, "the host's copy of the plan's memory", &m->mirror));
        m->mirror_bytes = bytes;
    }
    place_regions(m, m->mirror ? m->mirror : memory, m->base);
    memcpy(m->home, m->base, sizeof m->home);
    memcpy(m->home_on_device, m->on_device, sizeof m->home_on_device);
    TRY(m->table->place(e, m->device, m->on_device));
    if (m->pipeline)
        TRY(inf_pipeline_place(e, m->pipeline, m->home[PLAN_REGION_sum],
                               m->bytes[PLAN_REGION_sum]));
    return m->pipeline && m->table->meet ? m->table->meet(e, m->device) : INF_OK;
}

InfCode inf_engine_open(InfError *e, const Plan *plan, int threads, uint64_t seed, InfEngine *out) {
    TRY(inf_engine_start(e, plan, NULL, threads, seed, out));
    return inf_engine_take(e, out, 0);
}

void inf_engine_close(InfEngine *m) {
    if (m->pipeline) inf_pipeline_close(m->pipeline); /* what is on its way ends in memory */
    if (m->table) m->table->close(m->device);
    free(m->pipeline);
    inf_unmap_memory(m->mirror, m->mirror_bytes);
    inf_profile_close(&m->profile);
    inf_order_close(&m->order);
    inf_ordered_close(m);
    free(m->graphs);
    free(m->graph);
    free(m->sums);
    free(m->arg);
    *m = (InfEngine){0};
}

void inf_engine_fetch(InfEngine *m, PlanRegion region, int64_t offset, int64_t bytes) {
    if (m->table->shared || bytes == 0) return;
    m->table->copy_out(m->device, m->base[region] + offset, m->on_device[region] + offset,
                       (uint64_t)bytes);
}

void inf_engine_push(InfEngine *m, PlanRegion region, int64_t offset, int64_t bytes) {
    if (m->table->shared || bytes == 0) return;
    m->table->copy_in(m->device, m->on_device[region] + offset, m->base[region] + offset,
                      (uint64_t)bytes);
}

void inf_engine_fetch_all(InfEngine *m, PlanRegion region) {
    if (region == PLAN_REGION_param && inf_shards_on(m->pipeline))
        inf_shards_await(m->pipeline, -1);
    inf_engine_fetch(m, region, 0, m->bytes[region]);
}

void inf_engine_push_all(InfEngine *m, PlanRegion region) {
    inf_engine_push(m, region, 0, m->bytes[region]);
}

void inf_engine_use(InfEngine *m, const void *at, int64_t bytes, bool written) {
    if (m->order.surveying)
        inf_order_use(&m->order, (uint64_t)(uintptr_t)at, (uint64_t)bytes, written);
}

void inf_engine_use_all(InfEngine *m) {
    if (m->order.surveying) inf_order_use(&m->order, 0, UINT64_MAX, true);
}

static bool goes_in_order(InfEngine *m, double cost_us, InfLane lane) {
    const uint32_t *waits;
    if (!m->order.on) return true;
    if (m->order.surveying) {
        inf_order_end(&m->order, cost_us, lane);
        return false;
    }
    uint32_t count = inf_order_next(&m->order, &waits);
    m->table->follow(m->device, waits, count);
    return true;
}

bool inf_engine_goes(InfEngine *m, double cost_us) {
    return goes_in_order(m, cost_us, INF_LANE_main);
}

/* What ranks do together keeps its order whatever memory it uses: others rely on it. */
static bool goes_jointly(InfEngine *m, double cost_us, InfLane lane) {
    inf_engine_use(m, (const void *)(uintptr_t)(INF_ORDER_TOKENS - (int)lane), 1, true);
    return goes_in_order(m, cost_us, lane);
}

bool inf_engine_message_goes(InfEngine *m, double cost_us) {
    return goes_jointly(m, cost_us, INF_LANE_messages);
}

bool inf_engine_replicas_go(InfEngine *m, double cost_us) {
    return goes_jointly(m, cost_us, INF_LANE_replicas);
}

/* About how long a kernel takes on a current device: enough to tell large from small. */
static double cost_of(const PlanKernel *kernel) {
    return 1.5 + (double)kernel->bytes / 3e6 + (double)kernel->flops / 2e7;
}

/* Two launches of one kernel share its counters, two products the library's workspace. */
static bool goes(InfEngine *m, const PlanStep *step) {
    const PlanKernel *kernel = &m->plan->kernel[step->kernel];
    uint64_t token = kernel->kind == PLAN_KERNEL_matmul ? 0 : 1 + step->kernel;
    if (!m->order.on) return true;
    if (m->order.surveying) inf_order_use(&m->order, token % INF_ORDER_TOKENS, 1, true);
    for (uint32_t i = 0; i < step->narg; i++) {
        const PlanArg *arg = &m->plan->arg[step->arg + i];
        inf_engine_use(m, m->arg[i], arg->bytes, arg->written);
    }
    return inf_engine_goes(m, cost_of(kernel));
}

static void launch(InfEngine *m, const PlanStep *step) {
    const Plan *plan = m->plan;
    const PlanKernel *kernel = &plan->kernel[step->kernel];
    if (kernel->kind == PLAN_KERNEL_cuda && kernel->grid == 0) return;
    for (uint32_t i = 0; i < step->narg; i++) {
        const PlanArg *arg = &plan->arg[step->arg + i];
        int64_t offset = arg->offset + m->replica * arg->shard;
        for (int k = 0; k < arg->nstride; k++)
            offset += m->slice[k] * plan->stride[arg->stride + (uint32_t)k];
        m->arg[i] = m->on_device[arg->region] + offset;
    }
    InfLaunch one = {step->kernel, step->narg, m->arg, &m->env};
    if (!goes(m, step)) return;
    uint32_t span =
        inf_profile_begin(&m->profile, INF_SPAN_launch, step->kernel, step->scope, &m->env);
    m->table->launch(m->device, &one);
    inf_profile_end(&m->profile, span);
}

/* The buckets that are complete here, in this iteration. */
static void begin_sums(InfEngine *m, const PlanStep *step) {
    for (int64_t i = step->first; i < step->first + step->count; i++) {
        const PlanReady *ready = &m->plan->ready[i];
        if (ready->iteration < 0 || ready->iteration == m->slice[0])
            inf_pipeline_reduce(m->pipeline, m, ready->bucket);
    }
}

static void walk(InfEngine *m, uint32_t begin, uint32_t end, int depth) {
    for (uint32_t s = begin; s < end; s++) {
        const PlanStep *step = &m->plan->step[s];
        if (step->kind == STEP_LAUNCH) {
            launch(m, step);
            continue;
        }
        if (step->kind == STEP_POLL) {
            int64_t turn = depth > 0 ? m->env.iter[depth - 1] : 0;
            if (m->pipeline && (turn + 1) % step->count == 0) inf_pipeline_poll(m->pipeline);
            continue;
        }
        if (step->kind == STEP_REDUCE) {
            if (m->reduces) begin_sums(m, step);
            continue;
        }
        INF_ASSERT(depth < PLAN_REPEAT_DEPTH_MAX);
        for (int64_t i = 0; i < step->count; i++) {
            m->slice[depth] = step->reverse ? step->count - 1 - i : i;
            m->env.iter[depth] = step->first + m->slice[depth];
            walk(m, s + 1, s + 1 + step->nbody, depth + 1);
        }
        m->env.iter[depth] = m->slice[depth] = 0;
        s += step->nbody;
    }
}

const struct InfTransport *inf_engine_transport(const InfEngine *m) {
    return m->pipeline ? m->pipeline->transport : NULL;
}

int inf_engine_stops(InfEngine *m) {
    return m->pipeline ? inf_pipeline_signal(m->pipeline) : inf_signals_pending();
}

void inf_engine_window(InfEngine *m, const PlanTask *task) {
    for (int w = 0; w < PLAN_WINDOW_COUNT; w++) {
        PlanRegion region = inf_window_region((PlanWindow)w);
        m->base[region] = m->home[region] + task->window[w];
        m->on_device[region] = m->home_on_device[region] + task->window[w];
    }
}

void inf_engine_run(InfEngine *m, uint32_t chunk) {
    INF_ASSERT(chunk < m->plan->nchunk);
    walk(m, m->plan->chunk[chunk].begin, m->plan->chunk[chunk].end, 0);
}

void inf_engine_copy_weights(InfEngine *m) {
    for (uint32_t i = 0; i < m->plan->nchunk; i++)
        if (strcmp(m->plan->chunk[i].name, "copy") == 0) inf_engine_run(m, i);
}

/* Bytes of f32 weights behind the states, of a run that has states. */
static int64_t master_bytes(const InfEngine *m) {
    int64_t bytes = m->bytes[PLAN_REGION_state] - m->plan->nstate * m->plan->state_bytes;
    return bytes > 0 ? bytes : 0;
}

void inf_engine_push_weights(InfEngine *m) {
    inf_engine_push_all(m, PLAN_REGION_param);
    inf_engine_push(m, PLAN_REGION_state, m->plan->nstate * m->plan->state_bytes, master_bytes(m));
    if (inf_plan_owns(m->plan)) inf_engine_push_all(m, PLAN_REGION_copy);
    inf_engine_copy_weights(m);
}

void inf_engine_fetch_weights(InfEngine *m) {
    inf_engine_fetch_all(m, PLAN_REGION_param);
    inf_engine_fetch(m, PLAN_REGION_state, m->plan->nstate * m->plan->state_bytes, master_bytes(m));
}

void inf_random4(const InfEnv *env, uint32_t stream, uint32_t iteration, uint64_t block,
                 uint32_t out[4]) {
    InfRandom4 counter = {{(uint32_t)block, stream, (uint32_t)env->microbatch, iteration}};
    uint64_t seed = env->seed ^ env->seed >> 32;
    InfRandom4 r = inf_philox(counter, (uint32_t)seed, (uint32_t)env->step);
    memcpy(out, r.v, sizeof r.v);
}
