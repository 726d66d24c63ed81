/* ordered_test.c - reduce = ordered on devices with memory of their own: replicas, a thread each,
 * on devices that are pieces of the host's memory, end a step with the one tree's sum of all
 * microbatches, bit for bit, under every schedule, whatever is exchanged at a time. */
#include "codegen/program.h"
#include "ir/ordered.h"
#include "passes/schedule.h"
#include "runtime/ordered.h"
#include "runtime/pipeline.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ScheduleCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};

enum { REPLICAS_MAX = 5, FIGURES = 6, FIGURES_AT = 64, SCALARS = 128, BUCKETS = 2 };

/* A device: what its replica has handed over in the exchange at hand. */
typedef struct InfDevice {
    int replica, replicas;
    struct InfDevice *all;
    pthread_barrier_t *meet;
    const InfHalf *half;
    uint32_t count;
    void *shown;
    int64_t launches;
} InfDevice;

static const InfHalf *half_for(const InfDevice *from, int peer, uint32_t number) {
    for (uint32_t i = 0; i < from->count; i++)
        if (from->half[i].send && from->half[i].peer == peer && number-- == 0)
            return &from->half[i];
    return NULL;
}

/* Sends match receives in their order; one without the other is found out by who misses it. */
static void trade(InfDevice *d, const InfHalf *half, uint32_t count) {
    uint32_t taken[REPLICAS_MAX] = {0};
    d->half = half;
    d->count = count;
    d->launches++;
    pthread_barrier_wait(d->meet);
    for (uint32_t i = 0; i < count; i++) {
        int peer = half[i].peer;
        if (half[i].send) continue;
        const InfHalf *sent = half_for(&d->all[peer], d->replica, taken[peer]++);
        if (!sent || sent->bytes != half[i].bytes || peer == d->replica) abort();
        memcpy(half[i].at, sent->at, sent->bytes);
    }
    for (int peer = 0; peer < d->replicas; peer++)
        if (peer != d->replica && half_for(&d->all[peer], d->replica, taken[peer])) abort();
    pthread_barrier_wait(d->meet);
}

static void spread(InfDevice *d, void *all, uint64_t each) {
    d->shown = all;
    d->launches++;
    pthread_barrier_wait(d->meet);
    for (int r = 0; r < d->replicas; r++)
        if (r != d->replica)
            memcpy((char *)all + (uint64_t)r * each, (char *)d->all[r].shown + (uint64_t)r * each,
                   each);
    pthread_barrier_wait(d->meet);
}

static void plus(InfDevice *d, float *out, const float *const *term, uint32_t terms,
                 uint64_t count) {
    d->launches++;
    if (count % 4 != 0 || terms < 2 || terms > INF_TERMS_MAX) abort();
    for (uint64_t i = 0; i < count; i++) {
        float sum = term[0][i];
        for (uint32_t k = 1; k < terms; k++) sum = term[k][i] + sum;
        out[i] = sum;
    }
}

static void tree(InfDevice *d, float *rows, uint32_t count, uint32_t width, float *out) {
    d->launches++;
    for (uint32_t apart = 1; apart < count; apart *= 2)
        for (uint32_t i = 0; i + apart < count; i += 2 * apart)
            for (uint32_t k = 0; k < width; k++)
                rows[i * width + k] += rows[(i + apart) * width + k];
    memcpy(out, rows, width * sizeof *rows);
}

static const InfDeviceTable table_of_pieces = {
    .target = "cuda", .trade = trade, .spread = spread, .plus = plus, .tree = tree};

/* --- what is added, and what it should come to --- */

/* Numbers of many sizes: their sum depends on its order. */
static float leaf_value(int64_t leaf, int64_t element) {
    uint32_t x = (uint32_t)(leaf * 7919 + element * 104729 + 12345) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    return ((float)(x >> 8 & 0xffff) - 32768.0f) / (float)(1u << (x & 15));
}

static float meant(int64_t first, int64_t half, int64_t leaves, int64_t element) {
    if (half == 0) return leaf_value(first, element);
    float left = meant(first, half / 2, leaves, element);
    if (first + half >= leaves) return left;
    return left + meant(first + half, half / 2, leaves, element);
}

static float meant_whole(int64_t leaves, int64_t element) {
    int64_t half = 0;
    while ((half ? 2 * half : 1) < leaves) half = half ? 2 * half : 1;
    return meant(0, half, leaves, element);
}

/* --- a step --- */

typedef struct Case {
    const char *pipeline;
    int ranks, vpp, microbatches, replicas;
    int64_t told_bytes; /* 0: as much as planned */
    bool shares;        /* zero = 1 */
} Case;

/* One replica of a rank. */
typedef struct Replica {
    const Table *table;
    Plan plan;
    InfDevice *device;
    InfPipeline pipeline;
    InfEngine engine;
    unsigned char *grad, *scalar;
    bool bounded; /* a task was followed by no more launches than announced */
} Replica;

static void write_gradients(Replica *r, const PlanTask *task) {
    const Plan *plan = &r->plan;
    int64_t leaf = r->device->replica * plan->program[0].microbatches + task->microbatch;
    for (uint32_t i = 0; i < plan->nbucket; i++) {
        const PlanBucket *b = &plan->bucket[i];
        float *to = (float *)(void *)(r->engine.on_device[PLAN_REGION_grad] + b->at);
        for (int64_t k = 0; k < b->bytes / 4 && b->local == task->local; k++)
            to[k] = leaf_value(leaf, b->at / 4 + k);
    }
}

static void run_task(Replica *r, PlanTask task) {
    InfEngine *m = &r->engine;
    const Plan *plan = &r->plan;
    int64_t most = inf_ordered_launches(m, &task).launches, before = r->device->launches;
    int64_t leaf = r->device->replica * plan->program[0].microbatches + task.microbatch;
    inf_ordered_before(m, &task);
    float *figures = (float *)(void *)(r->scalar + FIGURES_AT);
    for (int k = 0; k < FIGURES && task.kind == PTASK_forward; k++)
        figures[k] = leaf_value(leaf, -k - 1);
    if (task.kind == PTASK_backward || task.kind == PTASK_input) write_gradients(r, &task);
    m->reduces = task.last && plan->dp > 1;
    for (uint32_t i = 0; i < plan->nbucket && m->reduces; i++)
        if (plan->bucket[i].local == task.local && !inf_ordered_reduce(m, i)) abort();
    inf_ordered_after(m, &task);
    m->reduces = false;
    r->bounded = r->bounded && r->device->launches - before <= most;
}

static void *run_step(void *data) {
    Replica *r = data;
    const RankTasks *tasks = &r->table->rank[r->plan.rank];
    for (int i = 0; i < tasks->ntask; i++) {
        const Task *t = &tasks->task[i];
        if (t->kind < TASK_update)
            run_task(r, (PlanTask){.kind = (uint8_t)t->kind,
                                   .chunk = t->chunk,
                                   .local = t->local,
                                   .microbatch = t->microbatch,
                                   .last = table_last_task(tasks, t->local) == i});
    }
    inf_ordered_finish(&r->engine);
    return NULL;
}

static void open_replica(Replica *r, const Case *c) {
    InfError e = {0};
    InfEngine *m = &r->engine;
    r->grad = calloc(1, (size_t)r->plan.region_bytes[PLAN_REGION_grad]);
    r->scalar = calloc(1, SCALARS);
    *m = (InfEngine){.plan = &r->plan, .table = &table_of_pieces, .device = r->device};
    m->replica = r->device->replica;
    m->home_on_device[PLAN_REGION_grad] = r->grad;
    m->home_on_device[PLAN_REGION_scalar] = r->scalar;
    r->pipeline.shards = c->shares ? (InfShards *)(void *)r : NULL;
    m->pipeline = &r->pipeline;
    r->bounded = true;
    assert_int_equal(inf_ordered_open(&e, m), INF_OK);
}

static void check_replica(const Replica *r, const Case *c) {
    int64_t leaves = (int64_t)c->replicas * c->microbatches;
    const float *figures = (const float *)(const void *)(r->scalar + FIGURES_AT);
    for (uint32_t i = 0; i < r->plan.nbucket; i++) {
        const PlanBucket *b = &r->plan.bucket[i];
        const float *got = (const float *)(const void *)(r->grad + b->at);
        int64_t share = b->bytes / 4 / c->replicas, first = r->device->replica * share;
        int64_t from = c->shares ? first : 0, to = c->shares ? first + share : b->bytes / 4;
        for (int64_t k = from; k < to; k++)
            assert_true(got[k] == meant_whole(leaves, b->at / 4 + k));
    }
    for (int k = 0; k < FIGURES && r->plan.rank == r->plan.finish.loss_rank; k++)
        assert_true(figures[k] == meant_whole(leaves, -k - 1));
    assert_true(r->bounded);
}

/* All replicas of one rank of the pipeline. */
static void run_rank(const Case *c, const Table *t, const Plan *plan) {
    Replica replica[REPLICAS_MAX] = {0};
    InfDevice device[REPLICAS_MAX];
    pthread_t thread[REPLICAS_MAX];
    pthread_barrier_t meet;
    pthread_barrier_init(&meet, NULL, (unsigned)c->replicas);
    for (int r = 0; r < c->replicas; r++) {
        device[r] =
            (InfDevice){.replica = r, .replicas = c->replicas, .all = device, .meet = &meet};
        replica[r] = (Replica){.table = t, .plan = *plan, .device = &device[r]};
        open_replica(&replica[r], c);
    }
    for (int r = 0; r < c->replicas; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, run_step, &replica[r]), 0);
    for (int r = 0; r < c->replicas; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < c->replicas; r++) {
        check_replica(&replica[r], c);
        inf_ordered_close(&replica[r].engine);
        free(replica[r].grad);
        free(replica[r].scalar);
    }
    pthread_barrier_destroy(&meet);
}

/* A rank's chunks with two buckets each, as long as replicas can share; some memory is in none. */
static void make_rank(Arena *a, const Case *c, Table *t, int rank) {
    Module m = {.rank = rank, .nrank = c->ranks, .target = TARGET_cuda, .arena = a};
    Program p = {.mod = &m, .table = t, .arena = a};
    PlanBucket bucket[CHUNKS_MAX];
    PlanProgram train = {.microbatches = c->microbatches};
    m.parallel.dp = c->replicas;
    m.parallel.ordered = true;
    m.chunk = ARENA_ARRAY(a, int, t->chunks);
    for (int i = 0; i < t->chunks; i++)
        if (t->home[i] == rank) m.chunk[m.nchunk++] = i;
    m.grad_elems = PARAM_ALIGN;
    for (int i = 0; i < BUCKETS * m.nchunk; i++) {
        int64_t elems = PARAM_ALIGN * c->replicas * (1 + i % 3);
        module_add_bucket(&m, (Bucket){i / BUCKETS, m.grad_elems, elems});
        bucket[i] = (PlanBucket){i / BUCKETS, m.grad_elems * 4, elems * 4};
        m.grad_elems += elems;
    }
    const Ordered *o = ordered_make(a, t, c->replicas);
    m.region_bytes[REGION_grad] = ordered_room(o, &m, FIGURES * 4).end;
    PlanOrdered *ordered = plan_ordered(&p, FIGURES_AT, FIGURES_AT + FIGURES * 4);
    if (c->told_bytes > 0 && c->told_bytes < ordered->told_bytes)
        ordered->told_bytes = c->told_bytes;
    Plan plan = {.rank = rank,
                 .ranks = c->ranks,
                 .dp = c->replicas,
                 .pp = c->ranks,
                 .vpp = c->vpp,
                 .program = &train,
                 .bucket = bucket,
                 .nbucket = (uint32_t)(BUCKETS * m.nchunk),
                 .ordered = ordered,
                 .finish = {.loss_rank = t->home[t->chunks - 1]}};
    plan.region_bytes[PLAN_REGION_grad] = m.region_bytes[REGION_grad];
    run_rank(c, t, &plan);
}

static void check(Case c) {
    Arena a = {0};
    ScheduleShape shape = {
        .pipeline = c.pipeline, .ranks = c.ranks, .vpp = c.vpp, .microbatches = c.microbatches};
    Table *t = schedule_make(&a, &shape, &unit);
    assert_non_null(t);
    for (int rank = 0; rank < c.ranks; rank++) make_rank(&a, &c, t, rank);
    arena_free(&a);
}

static void test_one_sum(void **state) {
    (void)state;
    for (int replicas = 1; replicas <= REPLICAS_MAX; replicas++)
        for (int n = 1; n <= 5; n++)
            for (int way = 0; way < 2; way++) {
                int64_t told = way == 0 ? 0 : PARAM_ALIGN * 4;
                bool shares = way == 1 && replicas > 1;
                check((Case){"1f1b", 1, 1, n, replicas, told, shares});
                check((Case){"1f1b", 2, 2, n, replicas, 0, shares});
                check((Case){"zb-h1", 2, 1, n, replicas, told, false});
                check((Case){"zb-v", 2, 2, n, replicas, told, shares});
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_sum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
