/* Steps on a (fake) device: as one graph, as one a task, launched one by one; with messages, with
 * replicas; and updates that do not take effect while later steps are already on their way. All
 * give the processor's bits. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/feed.h"
#include "runtime/group.h"
#include "runtime/pipeline.h"
#include "runtime/step.h"
#include "tests/runtime/toy_cuda.h"

enum { STEPS = 12, FLAT = 1024, LOSS_SUM = 64, LOSS_COUNT = 68, UPDATE_OK = 84, SAMPLES = 8 };

static int load_fakes(void **state) {
    (void)state;
    return fake_preload("libcuda.so.1") && fake_preload("libcublasLt.so.13") &&
                   fake_preload("libnccl.so.2")
               ? 0
               : -1;
}

/* --- graphs of every size --- */

typedef struct Ran {
    float loss[STEPS];
    unsigned char weights[FLAT];
    int replayed; /* graphs that were recorded */
    int64_t collectives;
} Ran;

/* How to train. */
typedef struct Way {
    int64_t graph_most;
    InfGroup *group; /* NULL: one rank */
    bool stream;
    uint64_t first, stride; /* samples: of step 0, and from step to step */
} Way;

static InfLoader open_set(const Way *way) {
    InfError e = {0};
    InfLoader l;
    uint64_t samples = way->stride * STEPS;
    assert_int_equal(inf_loader_synthetic(&e, &toy_plan.program[0], samples, 5, &l), 0);
    return l;
}

static void place_set(InfEngine *m, InfLoader *l, bool stream) {
    InfError e = {0};
    uint64_t bytes = 0;
    if (!m->table->shared)
        assert_int_equal(inf_feed_plan(&e, l, SAMPLES, UINT64_MAX, stream, &bytes), 0);
    assert_int_equal(inf_engine_take(&e, m, bytes), 0);
    if (!m->table->shared) assert_int_equal(inf_feed_place(&e, l, m, m->extra), 0);
}

static uint32_t task_count(const Plan *plan) {
    const PlanRank *last = plan->program[1].rank;
    return last->task + last->ntask;
}

/* Trains, two steps on their way at a time where the device allows it. */
static void train_so(const Plan *plan, const Way *way, Ran *out) {
    InfError e = {0};
    InfEngine m;
    InfSteps sent = {.count = 0};
    InfLoader l = open_set(way);
    *out = (Ran){.replayed = 0};
    assert_int_equal(inf_engine_start(&e, plan, way->group, 1, 7, &m), 0);
    m.graph_most = way->graph_most;
    place_set(&m, &l, way->stream);
    float *w = inf_engine_at(&m, PLAN_REGION_param, 0);
    for (int i = 0; i < FLAT / 4; i++) w[i] = (float)(i % 7) * 0.1f;
    inf_engine_push_all(&m, PLAN_REGION_param);
    for (int step = 0, done = 0; done < STEPS;) {
        uint64_t position = way->first + (uint64_t)step * way->stride;
        InfStepInput in = {step, position, {0.5, 0, 0, done}};
        InfStepResult r;
        if (step < STEPS) inf_step_submit(&sent, &m, &l, &in);
        if (++step <= m.table->late) continue;
        assert_int_equal(inf_step_finish(&e, &sent, &m, &r), 0);
        out->loss[done++] = r.loss;
    }
    inf_engine_fetch_all(&m, PLAN_REGION_param);
    assert_int_equal(m.table->finish(&e, m.device), 0);
    memcpy(out->weights, w, FLAT);
    for (uint32_t i = 0; i < plan->nprogram + task_count(plan); i++) out->replayed += m.graph[i];
    out->collectives = m.pipeline ? m.pipeline->collectives : 0;
    inf_feed_close(&l);
    inf_engine_close(&m);
    inf_loader_close(&l);
}

static void train(const Plan *plan, int64_t graph_most, Ran *out) {
    train_so(plan, &(Way){.graph_most = graph_most, .stride = SAMPLES}, out);
}

static void test_graphs_of_every_size(void **state) {
    /* A step has 2 + (1 + 1) x 4 + (1 + 1) launches at most, a task 2 + 1 + 1. */
    static const struct {
        int64_t most;
        int replayed;
    } cases[] = {{20000, 1}, {12, 1}, {11, 5}, {4, 5}, {3, 0}};
    static Ran want, got;
    (void)state;
    train(&toy_plan, 20000, &want);
    assert_int_equal(want.replayed, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Plan plan = toy_cuda_plan();
        train(&plan, cases[i].most, &got);
        assert_int_equal(got.replayed, cases[i].replayed);
        assert_memory_equal(got.loss, want.loss, sizeof want.loss);
        assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    }
}

/* --- messages of a rank to itself --- */

/* The toy in two chunks of one rank. The first only reads the images; the second reads the labels,
 * which lie at the same offset of another window, and does the rest. Its logits go by a message
 * from where the forward writes them to where the backward reads them; both microbatches use the
 * same two places. At the end of the step there is nothing to share, but all exchanges are made. */
enum { SENT = 0, RECEIVED = 64, LOGITS = 32, SQUARES = 88, IMAGES = 64, NOTHING = 6 };
enum { TRAIN_TASKS = 11 };

static const PlanMessage talking[] = {
    {.to = 1, .microbatch = 0, .bytes = LOGITS, .from_at = SENT, .to_at = RECEIVED},
    {.to = 1, .microbatch = 1, .bytes = LOGITS, .from_at = SENT, .to_at = RECEIVED},
};

#define READ(m)                                                                                    \
    {                                                                                              \
        .kind = PTASK_forward, .microbatch = (m), .program = NOTHING, .message = -1, .window = {   \
            IMAGES                                                                                 \
        }                                                                                          \
    }
#define COMPUTE(of, m, p, waits)                                                                   \
    { .kind = PTASK_##of, .local = 1, .microbatch = (m), .program = (p), .message = (waits) }
#define POST(of, which)                                                                            \
    { .kind = PTASK_##of, .message = (which) }
static const PlanTask talking_tasks[TRAIN_TASKS + 1] = {
    READ(0),
    COMPUTE(forward, 0, 0, -1),
    POST(send, 0),
    POST(recv, 0),
    COMPUTE(backward, 0, 1, 0),
    READ(1),
    COMPUTE(forward, 1, 2, -1),
    POST(send, 1),
    POST(recv, 1),
    COMPUTE(backward, 1, 3, 1),
    {.kind = PTASK_update, .chunk = -1, .local = -1, .microbatch = -1, .program = 4},
    {.kind = PTASK_forward, .program = 5, .message = -1},
};

static Plan talking_plan(void) {
    static const PlanRank train_tasks[] = {{0, TRAIN_TASKS}}, eval_tasks[] = {{TRAIN_TASKS, 1}};
    static PlanProgram programs[2];
    static PlanInput inputs[2];
    static PlanChunk chunks[NOTHING + 1];
    static PlanArg args[19];
    Plan plan = toy_cuda_plan();
    memcpy(programs, plan.program, sizeof programs);
    memcpy(inputs, programs[0].input, sizeof inputs);
    inputs[1].local = 1;
    inputs[1].at.offset = 0;
    programs[0].input = inputs;
    programs[0].rank = train_tasks;
    programs[1].rank = eval_tasks;
    memcpy(chunks, plan.chunk, NOTHING * sizeof *chunks);
    chunks[NOTHING] = (PlanChunk){.name = "nothing"};
    memcpy(args, plan.arg, sizeof args);
    args[2].offset = args[10].offset = IMAGES;
    args[3].offset = args[11].offset = 0;
    args[4].region = args[12].region = PLAN_REGION_message;
    args[4].offset = SENT;
    args[12].offset = RECEIVED;
    plan.program = programs;
    plan.chunk = chunks;
    plan.nchunk = NOTHING + 1;
    plan.arg = args;
    plan.task = talking_tasks;
    plan.message = talking;
    plan.nmessage = 2;
    plan.region_bytes[PLAN_REGION_message] = 128;
    plan.finish = (PlanFinish){
        .loss = LOSS_SUM, .loss_bytes = 8, .norm = NOTHING, .squares = SQUARES, .nsquares = 2};
    return plan;
}

static void test_messages_to_itself(void **state) {
    /* Also of a step too large for one graph, and with launches one by one. */
    static const struct {
        int64_t most;
        int replayed;
    } cases[] = {{20000, 1}, {22, 1}, {21, 7}, {0, 0}};
    static Ran want, got;
    (void)state;
    train(&toy_plan, 20000, &want);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Plan plan = talking_plan();
        train(&plan, cases[i].most, &got);
        assert_int_equal(got.replayed, cases[i].replayed);
        assert_memory_equal(got.loss, want.loss, sizeof want.loss);
        assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    }
}

/* Whole commands with messages: a trace of them, too. */
static void test_commands_with_messages(void **state) {
    static const char *const flags[] = {"--quiet", "--no-graph", "--stream"};
    (void)state;
    char *dir = temp_make(), *want = NULL;
    size_t want_bytes = 0, bytes = 0;
    toy_data(dir, "train", 80);
    for (int i = -1; i < 3; i++) {
        Plan plan = i < 0 ? toy_plan : talking_plan();
        Run r = RUN(&plan, "train", "--data", dir, "--out", temp_path(dir, "out"),
                    i < 0 ? "--quiet" : flags[i]);
        if (r.code != 0) fail_msg("%s", r.err);
        run_free(&r);
        char *got = file_get(temp_path(dir, "out/model.safetensors"), &bytes);
        if (i < 0) {
            want = got;
            want_bytes = bytes;
            continue;
        }
        assert_int_equal(bytes, want_bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
    }
    Plan plan = talking_plan();
    Run r = RUN(&plan, "train", "--data", dir, "--quiet", "--trace", temp_path(dir, "trace.json"));
    if (r.code != 0) fail_msg("%s", r.err);
    run_free(&r);
    char *trace = file_get(temp_path(dir, "trace.json"), NULL);
    assert_non_null(strstr(trace, "forward"));
    free(trace);
    free(want);
    temp_remove(dir);
}

/* --- replicas --- */

/* A run of two ranks, the other of which does what this one does, with the same samples; but it has
 * another device, and nothing to say. */
static InfGroup twins;

static InfCode twin_gather(InfError *e, const void *mine, uint64_t bytes, void *all) {
    (void)e;
    memset(all, bytes > 100 ? 0x5e : 0, 2 * bytes); /* a device, the name of a communicator */
    memcpy((char *)all + (size_t)twins.rank * bytes, mine, bytes);
    return INF_OK;
}

static InfCode twin_broadcast(InfError *e, int root, void *at, uint64_t bytes) {
    (void)e;
    if (root != twins.rank) memset(at, 0x5e, bytes);
    return INF_OK;
}

static InfCode twin_sum(InfError *e, float *at, uint64_t count) {
    (void)e;
    (void)at;
    (void)count;
    return INF_OK;
}

/* The toy's gradients in two buckets, both complete behind its second backward. */
enum { REPLICA_TASKS = 7, SHARING_TASKS = REPLICA_TASKS + 1, WEIGHTS = 512 };
static const PlanBucket two_buckets[] = {{0, WEIGHTS, FLAT - WEIGHTS}, {0, 0, WEIGHTS}};
static const PlanReady two_ready[] = {{0, -1}, {1, -1}};

static Plan replica_plan(void) {
    static const PlanRank train_tasks[] = {{0, REPLICA_TASKS}}, eval_tasks[] = {{REPLICA_TASKS, 1}};
    static PlanTask tasks[REPLICA_TASKS + 1];
    static PlanProgram programs[2];
    static PlanChunk chunks[NOTHING + 1];
    static PlanStep steps[8];
    Plan plan = toy_cuda_plan();
    memcpy(programs, plan.program, sizeof programs);
    programs[0].rank = train_tasks;
    programs[1].rank = eval_tasks;
    memcpy(tasks, plan.task, 4 * sizeof *tasks);
    for (int i = 0; i < 4; i++) tasks[i].message = -1;
    tasks[3].last = 1;
    for (int i = 0; i < 2; i++)
        tasks[4 + i] =
            (PlanTask){.kind = PTASK_reduce, .chunk = -1, .microbatch = -1, .message = i};
    tasks[6] = plan.task[4];
    tasks[7] = plan.task[5];
    tasks[7].message = -1;
    memcpy(steps, plan.step, 6 * sizeof *steps);
    memcpy(chunks, plan.chunk, NOTHING * sizeof *chunks);
    steps[6] = steps[3];
    steps[7] = (PlanStep){.kind = STEP_REDUCE, .first = 0, .count = 2};
    chunks[3].begin = 6;
    chunks[3].end = 8;
    chunks[NOTHING] = (PlanChunk){.name = "nothing"};
    plan.program = programs;
    plan.task = tasks;
    plan.step = steps;
    plan.chunk = chunks;
    plan.nchunk = NOTHING + 1;
    plan.bucket = two_buckets;
    plan.nbucket = 2;
    plan.ready = two_ready;
    plan.finish = (PlanFinish){
        .loss = LOSS_SUM, .loss_bytes = 8, .norm = NOTHING, .squares = SQUARES, .nsquares = 2};
    return plan;
}

/* Twice the gradient of twice the targets is the same mean, bit for bit, if every bucket and the
 * loss are summed once and in time; each replica has samples of its own. */
static void test_replicas(void **state) {
    static const InfTransport transport = {
        .name = "twins", .broadcast = twin_broadcast, .sum = twin_sum, .gather = twin_gather};
    static const struct {
        int64_t most;
        int replayed;
    } cases[] = {{20000, 1}, {23, 1}, {22, 5}, {0, 0}};
    static Ran want, got;
    (void)state;
    Plan plan = replica_plan();
    plan.dp = 2;
    plan.transport = &transport;
    for (int replica = 0; replica < 2; replica++) {
        Way way = {
            .graph_most = 20000, .first = (uint64_t)replica * SAMPLES, .stride = 2 * SAMPLES};
        train_so(&toy_plan, &way, &want);
        twins = (InfGroup){.rank = replica,
                           .count = 2,
                           .local_rank = 0,
                           .replica = replica,
                           .transport = &transport,
                           .plan = &plan};
        for (int i = 0; i < 8; i++) {
            way = (Way){.graph_most = cases[i / 2].most,
                        .group = &twins,
                        .stream = i % 2 == 1,
                        .stride = 2 * SAMPLES};
            train_so(&plan, &way, &got);
            assert_int_equal(got.replayed, cases[i / 2].replayed);
            assert_int_equal(got.collectives, 2 * STEPS);
            assert_memory_equal(got.loss, want.loss, sizeof want.loss);
            assert_memory_equal(got.weights, want.weights, sizeof want.weights);
        }
    }
}

/* zero = 1: sums are only where this replica owns them, which is all that is no padding; sums of
 * blocks lie behind what the host reads. */
static void test_replicas_that_share(void **state) {
    static const InfTransport transport = {
        .name = "twins", .broadcast = twin_broadcast, .sum = twin_sum, .gather = twin_gather};
    static const PlanShard shard = {.at = 0, .bytes = FLAT / 2};
    static const int64_t most[] = {20000, 20, 0};
    static Ran want, got;
    (void)state;
    Plan plan = replica_plan();
    PlanTask tasks[SHARING_TASKS + 1];
    PlanProgram programs[2] = {plan.program[0], plan.program[1]};
    memcpy(tasks, plan.task, REPLICA_TASKS * sizeof *tasks);
    tasks[REPLICA_TASKS] = (PlanTask){.kind = PTASK_gather, .chunk = -1, .microbatch = -1};
    tasks[SHARING_TASKS] = plan.task[REPLICA_TASKS];
    programs[0].rank = &(const PlanRank){0, SHARING_TASKS};
    programs[1].rank = &(const PlanRank){SHARING_TASKS, 1};
    plan.task = tasks;
    plan.program = programs;
    plan.dp = 2;
    plan.transport = &transport;
    plan.shard = &shard;
    plan.nshard = 1;
    plan.finish.blocks_program = NOTHING;
    plan.finish.blocks = SQUARES + 16;
    plan.finish.nblocks = 2;
    train_so(&toy_plan, &(Way){.graph_most = 20000, .stride = 2 * SAMPLES}, &want);
    twins = (InfGroup){.count = 2, .transport = &transport, .plan = &plan};
    for (int i = 0; i < 3; i++) {
        Way way = {.graph_most = most[i], .group = &twins, .stride = 2 * SAMPLES};
        train_so(&plan, &way, &got);
        assert_int_equal(got.replayed, i == 0 ? 1 : i == 1 ? 5 : 0);
        assert_int_equal(got.collectives, 2 * STEPS);
        assert_memory_equal(got.loss, want.loss, sizeof want.loss);
        assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    }
}

/* One rank that is told to does the same alone, in memory that NCCL registers with two of three
 * communicators, or in plain memory where it does not want to. */
static void test_a_group_of_one(void **state) {
    static const int64_t most[] = {20000, 0, 20000, 20000};
    static const char *const refused[] = {"", "", "memory", "register"};
    static Ran want, got;
    const int *registered = dlsym(RTLD_DEFAULT, "fake_nccl_registered");
    (void)state;
    assert_non_null(registered);
    train(&toy_plan, 20000, &want);
    for (int i = 0; i < 4; i++) {
        Plan plan = replica_plan();
        int before = *registered;
        setenv("FAKE_NCCL_REFUSES", refused[i], 1);
        train(&plan, most[i], &got);
        assert_int_equal(*registered - before, i < 2 ? 2 : 0);
        assert_int_equal(got.replayed, most[i] > 0);
        assert_int_equal(got.collectives, 2 * STEPS);
        assert_memory_equal(got.loss, want.loss, sizeof want.loss);
        assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    }
}

/* --- ordered sums --- */

/* The toy's two microbatches in buffers of their own, the second added to the first; loss and
 * counts behind the buffers. */
static Plan ordered_plan(Plan plan) {
    static const PlanLeaf leaves[] = {{0, 0, 0}, {1, 0, 1}};
    static const PlanAdd adds[] = {{0, 1}};
    static const PlanPart part = {0, 0};
    static const uint32_t kept = 0;
    static const PlanBucket buckets[] = {{0, 0, WEIGHTS}, {0, WEIGHTS, FLAT - WEIGHTS}};
    static const PlanOrdered ordered = {.grad_bytes = FLAT,
                                        .leaf = leaves,
                                        .add = adds,
                                        .part = &part,
                                        .npart = 1,
                                        .kept = &kept,
                                        .most_kept = 1,
                                        .figure_at = LOSS_SUM,
                                        .figure_bytes = UPDATE_OK + 4 - LOSS_SUM,
                                        .figures_at = 2 * FLAT,
                                        .told_at = 3 * FLAT,
                                        .told_bytes = WEIGHTS};
    static PlanTask tasks[6];
    memcpy(tasks, plan.task, sizeof tasks);
    tasks[2].program = 0;
    tasks[3].program = 1;
    tasks[3].last = 1;
    plan.task = tasks;
    plan.dp = plan.pp = plan.vpp = 1;
    plan.ordered = &ordered;
    plan.bucket = buckets;
    plan.nbucket = 2;
    plan.region_bytes[PLAN_REGION_grad] = 3 * FLAT;
    return plan;
}

/* Two numbers have one sum: the bits of the plain toy, and of the processor. */
static void test_ordered_sums(void **state) {
    /* 2 + (1 + 1 + 2) x 2 + (1 + 1 + 2) + (1 + 1 + 2 + 2) + (1 + 1 + 2) launches at most. */
    static const struct {
        int64_t most;
        int replayed;
    } cases[] = {{20000, 1}, {24, 1}, {23, 5}, {7, 4}, {0, 0}};
    static Ran want, got;
    (void)state;
    train(&toy_plan, 20000, &want);
    Plan host = ordered_plan(toy_plan);
    train(&host, 20000, &got);
    assert_memory_equal(got.loss, want.loss, sizeof want.loss);
    assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Plan plan = ordered_plan(toy_cuda_plan());
        train(&plan, cases[i].most, &got);
        assert_int_equal(got.replayed, cases[i].replayed);
        assert_memory_equal(got.loss, want.loss, sizeof want.loss);
        assert_memory_equal(got.weights, want.weights, sizeof want.weights);
    }
}

/* --- what counts updates --- */

/* The toy's update, with Adam's bias corrections as factors; it refuses some steps. */
static void counting_update(void *const *arg, const InfEnv *env) {
    float *w = arg[0], *g = arg[1], *scalar = arg[3];
    float loss = scalar[LOSS_SUM / 4], scale = 1.0f / scalar[LOSS_COUNT / 4];
    (void)env;
    bool ok = fmodf(fabsf(loss) * 64.0f, 1.0f) < 0.6f;
    scalar[UPDATE_OK / 4] = ok ? 1.0f : 0.0f;
    for (int i = 0; i < FLAT / 4 && ok; i++)
        w[i] -= scalar[HOST_lr] * g[i] * scale * scalar[HOST_bias1] / scalar[HOST_bias2];
}

/* The weights after a run, and how many steps it skipped. */
static char *run_counting(const Plan *plan, const char *dir, const char *flag, size_t *bytes,
                          char *skipped, size_t room) {
    Run r = RUN(plan, "train", "--data", dir, "--epochs", "6", "--on-nan=skip", "--out",
                temp_path(dir, "out"), flag);
    if (r.code != 0) fail_msg("%s", r.err);
    const char *at = strstr(r.out, "; "), *says = NULL;
    for (; at; at = strstr(at + 2, "; "))
        if (strstr(at, "steps skipped")) says = at;
    assert_non_null(says);
    snprintf(skipped, room, "%s", says);
    run_free(&r);
    return file_get(temp_path(dir, "out/model.safetensors"), bytes);
}

static void test_skipped_updates_do_not_count(void **state) {
    static const char *const flags[] = {"--quiet", "--no-graph", "--stream"};
    static PlanKernel processor[TOY_KERNELS];
    char want_skipped[64], skipped[64];
    size_t want_bytes = 0, bytes = 0;
    (void)state;
    char *dir = temp_make();
    toy_data(dir, "train", 80); /* 10 steps an epoch */
    Plan plan = toy_plan;
    memcpy(processor, toy_plan.kernel, sizeof processor);
    processor[4].fn = counting_update;
    plan.kernel = processor;
    plan.train.optimizer = PLAN_OPTIM_adam;
    plan.train.beta1 = 0.5;
    plan.train.beta2 = 0.9;
    char *want = run_counting(&plan, dir, "--quiet", &want_bytes, want_skipped, 64);
    for (int i = 0; i < 3; i++) {
        Plan cuda = toy_cuda_plan();
        toy_cuda_replace(4, &processor[4]);
        cuda.train = plan.train;
        char *got = run_counting(&cuda, dir, flags[i], &bytes, skipped, 64);
        assert_string_equal(skipped, want_skipped);
        assert_int_equal(bytes, want_bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
    }
    free(want);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_of_every_size),
        cmocka_unit_test(test_messages_to_itself),
        cmocka_unit_test(test_commands_with_messages),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_replicas_that_share),
        cmocka_unit_test(test_a_group_of_one),
        cmocka_unit_test(test_ordered_sums),
        cmocka_unit_test(test_skipped_updates_do_not_count),
    };
    return cmocka_run_group_tests(tests, load_fakes, NULL);
}
