/* What every device must do (runtime/device.h), asked of the processor and of a GPU: of a real one
 * where it answers, else of the fake one (fake/fake.h). The kernels below exist three times: as C,
 * behind the fake driver, and as CUDA C for NVRTC. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codegen/loop.h"
#include "codegen/nvrtc.h"
#include "runtime/cuda_driver.h"
#include "runtime/engine.h"
#include "runtime/permute.h"
#include "tests/runtime/fake/fake.h"
#include "tests/runtime/toy_cuda.h"

enum { N = 64, SEEN = 72, UPDATE_OK = 84 }; /* SEEN: a scalar that only these tests use */

/* --- the kernels --- */

static void add(void *const *arg, const InfEnv *env) {
    const float *a = arg[0], *b = arg[1];
    float *out = arg[2];
    (void)env;
    for (int i = 0; i < N; i++) out[i] = a[i] + b[i];
}

static void note(void *const *arg, const InfEnv *env) {
    int32_t *out = arg[0];
    out[0] = (int32_t)env->step;
    out[1] = (int32_t)env->microbatch;
    for (int i = 0; i < PLAN_REPEAT_DEPTH_MAX; i++) out[2 + i] = (int32_t)env->iter[i];
}

/* An update that takes effect when the rate is positive; it shows which row of scalars it got. */
static void update(void *const *arg, const InfEnv *env) {
    float *scalar = arg[0];
    (void)env;
    scalar[UPDATE_OK / 4] = scalar[HOST_lr] > 0 ? 1.0f : 0.0f;
    scalar[SEEN / 4] = scalar[HOST_bias1];
}

static const char cuda_text[] =
    "INF_KERNEL(64) add(const float *a, const float *b, float *out, InfDeviceEnv env) {\n"
    "    out[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];\n}\n"
    "INF_KERNEL(64) note(int32_t *out, InfDeviceEnv env) {\n"
    "    if (threadIdx.x != 0) return;\n"
    "    out[0] = (int32_t)env.moment->step;\n    out[1] = env.microbatch;\n"
    "    for (int i = 0; i < 4; i++) out[2 + i] = env.iter[i];\n}\n"
    "INF_KERNEL(64) update(float *scalar, InfDeviceEnv env) {\n"
    "    if (threadIdx.x != 0) return;\n"
    "    scalar[21] = scalar[0] > 0.0f ? 1.0f : 0.0f;\n    scalar[18] = scalar[1];\n}\n";

enum { K_add, K_note, K_update, KERNELS };
static const PlanKernel functions[KERNELS] = {
    {.name = "add", .fn = add}, {.name = "note", .fn = note}, {.name = "update", .fn = update}};
static const char *const parameters[KERNELS] = {"pppe", "pe", "pe"};

static void run_function(const FakeLaunch *l) {
    const PlanKernel *kernel = l->context;
    const char *at = parameters[kernel - functions];
    void *arg[FAKE_VALUES_MAX];
    InfDeviceEnv env;
    int n = (int)strlen(at) - 1;
    for (int i = 0; i < n; i++) arg[i] = fake_pointer(l->value[i].address);
    memcpy(&env, l->value[n].bytes, sizeof env);
    const InfDeviceMoment *moment = fake_pointer((uint64_t)(uintptr_t)env.moment);
    InfEnv own = {.step = (int64_t)moment->step, .microbatch = env.microbatch};
    for (int i = 0; i < PLAN_REPEAT_DEPTH_MAX; i++) own.iter[i] = env.iter[i];
    kernel->fn(arg, &own);
}

/* --- machines --- */

typedef struct Machine {
    Plan plan;
    const InfDeviceTable *table;
    PlanKernel kernel[KERNELS + 1];
    PlanMatmul product;
    PlanImage image;
    bool real;
} Machine;

/* A device that is open, with memory: three fields of N floats, a place for notes, scalars. */
typedef struct Bench {
    const Machine *machine;
    const InfDeviceTable *table;
    InfDevice *d;
    unsigned char *at[PLAN_REGION_count];
} Bench;

enum { FIELD = 256, FIELDS = 8, MEMORY = 64 << 10 };

static Bench open_bench(const Machine *machine) {
    Bench b = {.machine = machine, .table = machine->table};
    InfError e = {0};
    void *memory = NULL;
    uint64_t total = 0;
    if (b.table->open(&e, &machine->plan, NULL, &b.d) != INF_OK) fail_msg("%s", e.text);
    if (b.table->take(&e, b.d, MEMORY, &memory, &total) != INF_OK) fail_msg("%s", e.text);
    assert_true(total >= MEMORY);
    for (int r = 0; r < PLAN_REGION_count; r++) b.at[r] = memory;
    b.at[PLAN_REGION_scratch] = (unsigned char *)memory + 4096;
    if (b.table->place(&e, b.d, b.at) != INF_OK) fail_msg("%s", e.text);
    return b;
}

static void close_bench(Bench *b) {
    InfError e = {0};
    if (b->table->finish(&e, b->d) != INF_OK) fail_msg("%s", e.text);
    b->table->close(b->d);
}

static void *field(const Bench *b, int i) { return b->at[PLAN_REGION_scratch] + i * FIELD; }

static void put(const Bench *b, int i, float from, float by) {
    float value[N];
    for (int k = 0; k < N; k++) value[k] = from + by * (float)k;
    b->table->copy_in(b->d, field(b, i), value, sizeof value);
}

static void expect(const Bench *b, int i, float from, float by) {
    float value[N];
    InfError e = {0};
    b->table->copy_out(b->d, value, field(b, i), sizeof value);
    if (b->table->finish(&e, b->d) != INF_OK) fail_msg("%s", e.text);
    for (int k = 0; k < N; k++)
        if (value[k] != from + by * (float)k)
            fail_msg("field %d[%d] is %g, not %g", i, k, (double)value[k],
                     (double)(from + by * (float)k));
}

static void launch(const Bench *b, uint32_t kernel, uint32_t narg, void *const *arg,
                   const InfEnv *env) {
    static const InfEnv none = {.threads = 1};
    InfLaunch one = {kernel, narg, arg, env ? env : &none};
    b->table->launch(b->d, &one);
}

static void launch_add(const Bench *b, int x, int y, int out) {
    launch(b, K_add, 3, (void *const[]){field(b, x), field(b, y), field(b, out)}, NULL);
}

static void launch_update(const Bench *b) {
    launch(b, K_update, 1, (void *const[]){b->at[PLAN_REGION_scalar]}, NULL);
}

/* --- what a device must do --- */

static void test_memory(void **state) {
    Bench b = open_bench(*state);
    unsigned char zero[4096] = {0}, text[4096], back[4096];
    InfError e = {0};
    for (uint64_t at = 0; at < MEMORY; at += sizeof back) {
        b.table->copy_out(b.d, back, b.at[PLAN_REGION_none] + at, sizeof back);
        assert_memory_equal(back, zero, sizeof back);
    }
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(i * 37 + 1);
    static const size_t sizes[] = {1, 3, 4, 255, 256, 4095};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *at = b.at[PLAN_REGION_scratch] + 1 + i;
        b.table->copy_in(b.d, at, text, sizes[i]);
        b.table->copy_out(b.d, back, at, sizes[i]);
        assert_int_equal(b.table->finish(&e, b.d), INF_OK);
        assert_memory_equal(back, text, sizes[i]);
    }
    assert_true(strlen(b.table->describe(b.d)) > 0);
    close_bench(&b);
}

static void test_launches_are_in_order(void **state) {
    Bench b = open_bench(*state);
    put(&b, 0, 1, 0.5f);
    put(&b, 1, 10, 1);
    launch_add(&b, 0, 1, 2);
    for (int i = 0; i < 50; i++) launch_add(&b, 2, 1, 2);
    expect(&b, 2, 511, 51.5f);
    put(&b, 1, 0, 0); /* a copy waits for what came before, and what comes after for it */
    launch_add(&b, 2, 1, 3);
    expect(&b, 3, 511, 51.5f);
    close_bench(&b);
}

static void test_kernels_know_the_moment(void **state) {
    Bench b = open_bench(*state);
    InfEnv env = {.seed = 3, .step = 41, .microbatch = 5, .iter = {7, 8, 9, 10}, .threads = 1};
    InfTicket ticket = {.moment = {.seed = 3, .step = 41}};
    int32_t seen[6], want[6] = {41, 5, 7, 8, 9, 10};
    InfError e = {0};
    float scalars[32];
    b.table->ticket(b.d, &ticket);
    b.table->enter(b.d);
    launch(&b, K_note, 1, (void *const[]){field(&b, 0)}, &env);
    b.table->leave(b.d, false);
    b.table->submitted(b.d);
    assert_int_equal(b.table->collect(&e, b.d, scalars), INF_OK);
    b.table->copy_out(b.d, seen, field(&b, 0), sizeof seen);
    assert_int_equal(b.table->finish(&e, b.d), INF_OK);
    assert_memory_equal(seen, want, sizeof seen);
    close_bench(&b);
}

/* What `collect` gives of a submission. */
static float seen_by(const Bench *b) {
    float *scalars = b->table->shared ? (float *)(void *)b->at[PLAN_REGION_scalar] : NULL, own[32];
    InfError e = {0};
    if (b->table->collect(&e, b->d, scalars ? (void *)scalars : own) != INF_OK)
        fail_msg("%s", e.text);
    return (scalars ? scalars : own)[SEEN / 4];
}

/* Submissions on their way at once; each gets the row for the updates that took effect since what
 * the host knows. */
static void test_submissions(void **state) {
    static const float rates[] = {1, -1, 1, 1, -1, 1, 1, 1, -1, -1, 1, 1};
    enum { COUNT = sizeof rates / sizeof *rates };
    Bench b = open_bench(*state);
    int most = b.table->shared ? 1 : INF_DEVICE_DEPTH, known = 0, done = 0;
    for (int i = 0; i < COUNT; i++) {
        InfTicket ticket = {.applied = (uint64_t)known};
        int before = 0;
        for (int k = 0; k < INF_DEVICE_DEPTH; k++) {
            ticket.scalar[k][HOST_lr] = rates[i];
            ticket.scalar[k][HOST_bias1] = (float)(known + k);
        }
        b.table->ticket(b.d, &ticket);
        b.table->enter(b.d);
        launch_update(&b);
        b.table->leave(b.d, true);
        b.table->submitted(b.d);
        if (i + 1 - done < most && i + 1 < COUNT) continue;
        for (int all = i + 1 == COUNT; done <= i && (all || i + 1 - done >= most); done++) {
            for (int k = before = 0; k < done; k++) before += rates[k] > 0;
            float seen = seen_by(&b);
            if (seen != (float)before) fail_msg("%d: %g, not %d", done, (double)seen, before);
            known += rates[done] > 0;
        }
    }
    close_bench(&b);
}

/* The same work as a graph, in two lanes; replayed, it sees new tickets and new inputs. */
static void test_graphs(void **state) {
    Bench b = open_bench(*state);
    if (!b.table->graphs) {
        close_bench(&b);
        return;
    }
    static const uint32_t zero[] = {0}, both[] = {1, 2}, three[] = {3}, four[] = {4};
    for (int which = 0; which < 6; which += 5) {
        b.table->record(b.d, 6);
        b.table->enter(b.d);
        b.table->follow(b.d, zero, 1);
        launch_add(&b, 0, 1, 2);
        b.table->follow(b.d, zero, 1);
        launch_add(&b, 1, 1, 3);
        b.table->follow(b.d, both, 2);
        launch_add(&b, 2, 3, 4);
        b.table->follow(b.d, three, 1);
        launch_update(&b);
        b.table->follow(b.d, four, 1);
        b.table->leave(b.d, true);
        b.table->keep(b.d, which);
    }
    for (int i = 0; i < 4; i++) {
        InfTicket ticket = {.applied = (uint64_t)i};
        ticket.scalar[0][HOST_lr] = 1;
        ticket.scalar[0][HOST_bias1] = (float)(100 + i);
        put(&b, 0, (float)i, 1);
        put(&b, 1, 1000, 0);
        b.table->ticket(b.d, &ticket);
        b.table->replay(b.d, i % 2 ? 5 : 0);
        b.table->submitted(b.d);
        assert_true(seen_by(&b) == (float)(100 + i));
        expect(&b, 4, (float)i + 3000, 1);
    }
    close_bench(&b);
}

/* Samples by position, in file order and permuted, from images and from tokens; padding behind. */
static void test_staging(void **state) {
    enum { SAMPLES = 9, LENGTH = 4, BATCH = 8, AT = 3 };
    Bench b = open_bench(*state);
    unsigned char rows[SAMPLES * (LENGTH + 1) * 4] = {0}, labels[SAMPLES];
    for (int i = 0; i < SAMPLES * LENGTH; i++) rows[i] = (unsigned char)(i * 5);
    for (int i = 0; i < SAMPLES; i++) labels[i] = (unsigned char)(i + 1);
    for (int shuffled = 0; shuffled < 2 && !b.table->shared; shuffled++) {
        InfPermutation order = inf_permutation_make(SAMPLES, 5, 2);
        InfTicket ticket = {.moment = {.position = AT, .end = SAMPLES, .count = SAMPLES}};
        if (shuffled) ticket.moment.key = order.key;
        if (shuffled) ticket.moment.half_bits = order.half_bits;
        InfStage stage = {.rows = field(&b, 0),
                          .labels = field(&b, 1),
                          .input = field(&b, 2),
                          .target = field(&b, 3),
                          .valid = field(&b, 4),
                          .first = 1,
                          .batch = BATCH,
                          .length = LENGTH};
        float image[BATCH * LENGTH], valid[BATCH], scalars[32];
        int32_t label[BATCH];
        InfError e = {0};
        b.table->copy_in(b.d, field(&b, 0), rows, sizeof rows);
        b.table->copy_in(b.d, field(&b, 1), labels, sizeof labels);
        b.table->ticket(b.d, &ticket);
        b.table->enter(b.d);
        b.table->stage(b.d, &stage);
        b.table->leave(b.d, false);
        b.table->submitted(b.d);
        assert_int_equal(b.table->collect(&e, b.d, scalars), INF_OK);
        b.table->copy_out(b.d, image, field(&b, 2), sizeof image);
        b.table->copy_out(b.d, label, field(&b, 3), sizeof label);
        b.table->copy_out(b.d, valid, field(&b, 4), sizeof valid);
        assert_int_equal(b.table->finish(&e, b.d), INF_OK);
        for (int r = 0; r < BATCH; r++) {
            uint64_t at = AT + 1 + (uint64_t)r;
            bool real = at < SAMPLES;
            if (real && shuffled) at = inf_permutation_at(&order, at);
            assert_int_equal(label[r], real ? (int)at + 1 : INF_TARGET_PAD);
            assert_true(valid[r] == (real ? 1.0f : 0.0f));
            for (uint64_t i = 0; i < LENGTH; i++)
                assert_true(image[(uint64_t)r * LENGTH + i] ==
                            (real ? (float)rows[at * LENGTH + i] / 255.0f : 0.0f));
        }
    }
    close_bench(&b);
}

static void test_marks(void **state) {
    Bench b = open_bench(*state);
    InfError e = {0};
    assert_int_equal(b.table->marks(&e, b.d, 3), INF_OK);
    b.table->mark(b.d, 0);
    launch_add(&b, 0, 1, 2);
    b.table->mark(b.d, 1);
    launch_add(&b, 0, 1, 2);
    b.table->mark(b.d, 2);
    assert_int_equal(b.table->finish(&e, b.d), INF_OK);
    assert_true(b.table->between(b.d, 0, 1) >= 0);
    assert_true(b.table->between(b.d, 0, 2) >= b.table->between(b.d, 1, 2));
    close_bench(&b);
}

/* --- what is not a number stays one --- */

typedef struct NanCase {
    int64_t m, n, k;
    uint8_t epilogue, tf32;
    bool in_bias;
} NanCase;

/* The product's row 1 and column 1 hold NaN, or the bias does; every other element is a number. */
static void run_nan_case(const Machine *machine, const NanCase *c) {
    Machine own = *machine;
    own.product = (PlanMatmul){.m = c->m,
                               .n = c->n,
                               .k = c->k,
                               .batch = 1,
                               .epilogue = c->epilogue,
                               .tf32 = c->tf32,
                               .a = 0,
                               .b = 1,
                               .bias = 2,
                               .out = 3,
                               .lda = c->k,
                               .ldb = c->n,
                               .ldc = c->n};
    own.kernel[KERNELS] = (PlanKernel){.name = "product", .kind = PLAN_KERNEL_matmul};
    own.plan.kernel = own.kernel;
    own.plan.nkernel = KERNELS + 1;
    own.plan.matmul = &own.product;
    own.plan.nmatmul = 1;
    PlanArg arg[4];
    for (int i = 0; i < 4; i++)
        arg[i] = (PlanArg){.offset = i * 12288, .region = PLAN_REGION_scratch};
    PlanStep step = {.kind = STEP_LAUNCH, .kernel = KERNELS, .narg = 4};
    PlanChunk chunk = {"product", 0, 1};
    own.plan.arg = arg;
    own.plan.step = &step;
    own.plan.chunk = &chunk;
    own.plan.nchunk = 1;
    Bench b = open_bench(&own);
    float value[3072];
    void *at[4];
    InfError e = {0};
    for (int i = 0; i < 4; i++) at[i] = b.at[PLAN_REGION_scratch] + i * 12288;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3072; k++) value[k] = (float)(k % 7 - 3) * 0.25f;
        if (i == 0 && !c->in_bias) value[c->k] = NAN; /* a[1, 0] */
        if (i == 2 && c->in_bias) value[1] = NAN;
        b.table->copy_in(b.d, at[i], value, sizeof value);
    }
    launch(&b, KERNELS, 4, at, NULL);
    b.table->copy_out(b.d, value, at[3], sizeof value);
    if (b.table->finish(&e, b.d) != INF_OK) fail_msg("%s", e.text);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t k = 0; k < c->n; k++) {
            bool want = c->in_bias ? k == 1 : i == 1;
            if (want != (isnan(value[i * c->n + k]) != 0))
                fail_msg(
                    "%lld x %lld x %lld, epilogue %d, tf32 %d, NaN in the %s: element %lld %lld "
                    "is %g",
                    (long long)c->m, (long long)c->n, (long long)c->k, c->epilogue, c->tf32,
                    c->in_bias ? "bias" : "operand", (long long)i, (long long)k,
                    (double)value[i * c->n + k]);
        }
    close_bench(&b);
}

static void test_products_keep_nan(void **state) {
    static const int64_t sizes[][3] = {
        {2, 5, 3}, {16, 16, 16}, {48, 64, 32}, {33, 31, 64}, {8, 128, 8}};
    const Machine *machine = *state;
    if (machine->table->shared) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int epilogue = PLAN_EPILOGUE_none; epilogue <= PLAN_EPILOGUE_gelu_bias; epilogue++)
            for (int tf32 = 0; tf32 < 2; tf32++)
                for (int in_bias = 0; in_bias < 2; in_bias++) {
                    NanCase c = {sizes[i][0],       sizes[i][1],   sizes[i][2],
                                 (uint8_t)epilogue, (uint8_t)tf32, in_bias == 1};
                    bool bias = epilogue == PLAN_EPILOGUE_bias ||
                                epilogue == PLAN_EPILOGUE_relu_bias ||
                                epilogue == PLAN_EPILOGUE_gelu_bias;
                    if (bias || !in_bias) run_nan_case(machine, &c);
                }
}

/* --- which machines there are --- */

static Plan base_plan(Machine *machine, const char *target, uint8_t kind) {
    Plan plan = toy_plan;
    for (int k = 0; k < KERNELS; k++) {
        machine->kernel[k] = functions[k];
        machine->kernel[k].kind = kind;
        machine->kernel[k].grid = 1;
        machine->kernel[k].block = N;
        if (kind != PLAN_KERNEL_c) machine->kernel[k].fn = NULL;
    }
    plan.target = target;
    plan.kernel = machine->kernel;
    plan.nkernel = KERNELS;
    return plan;
}

static void make_processor(Machine *machine) {
    machine->plan = base_plan(machine, "cpu", PLAN_KERNEL_c);
    machine->table = &inf_device_cpu;
}

/* PTX, or NULL without NVRTC. */
static unsigned char *compile_kernels(size_t *bytes) {
    Nvrtc *nvrtc = nvrtc_open(stderr);
    char *source = NULL;
    size_t length = 0;
    if (!nvrtc) return NULL;
    FILE *out = open_memstream(&source, &length);
    assert_non_null(out);
    loop_print_cuda_prelude(out);
    loop_print_cuda_stage(out);
    fputs(cuda_text, out);
    fclose(out);
    NvrtcImage image = nvrtc_compile(nvrtc, source, "conform.cu", "compute_80");
    if (!image.bytes) fail_msg("%s", image.log);
    *bytes = image.n;
    free(image.log);
    free(source);
    nvrtc_close(nvrtc);
    return image.bytes;
}

static bool make_gpu(Machine *machine) {
    static FakeKernel fakes[KERNELS + 2];
    static const FakeImage fake = {FAKE_MAGIC, fakes, KERNELS + 2};
    InfError e = {0};
    InfCuda cuda;
    machine->plan = base_plan(machine, "cuda", PLAN_KERNEL_cuda);
    machine->table = &inf_device_cuda;
    machine->plan.image = &machine->image;
    machine->plan.nimage = 1;
    machine->real = inf_cuda_open(&e, 0, &cuda) == INF_OK;
    inf_cuda_close(&cuda);
    inf_error_free(&e);
    if (machine->real) {
        size_t bytes = 0;
        machine->image.arch = "compute_80";
        machine->image.bytes = compile_kernels(&bytes);
        machine->image.end = machine->image.bytes + bytes;
        return machine->image.bytes != NULL;
    }
    for (int k = 0; k < KERNELS; k++)
        fakes[k] = (FakeKernel){functions[k].name, parameters[k], run_function, &functions[k]};
    fakes[KERNELS] = (FakeKernel){"inf_stage", "ppppppll", toy_cuda_stage, NULL};
    fakes[KERNELS + 1] = (FakeKernel){"inf_stage_tokens", "pppppllw", NULL, NULL};
    machine->image.arch = "sm_90a";
    machine->image.bytes = (const unsigned char *)&fake;
    machine->image.end = machine->image.bytes + sizeof fake;
    return fake_preload("libcuda.so.1") && fake_preload("libcublasLt.so.13");
}

static Machine processor, gpu;

#define TEST(name, machine)                                                                        \
    { #name, name, NULL, NULL, &(machine) }
#define TESTS(machine)                                                                             \
    {                                                                                              \
        TEST(test_memory, machine), TEST(test_launches_are_in_order, machine),                     \
            TEST(test_kernels_know_the_moment, machine), TEST(test_submissions, machine),          \
            TEST(test_graphs, machine), TEST(test_staging, machine), TEST(test_marks, machine),    \
            TEST(test_products_keep_nan, machine)                                                  \
    }

int main(void) {
    const struct CMUnitTest on_processor[] = TESTS(processor), on_gpu[] = TESTS(gpu);
    make_processor(&processor);
    int failed = cmocka_run_group_tests_name("the processor", on_processor, NULL, NULL);
    if (!make_gpu(&gpu)) {
        fprintf(stderr, "no NVRTC, so nothing runs on the device\n");
        return failed ? failed : 77;
    }
    const char *name = gpu.real ? "the GPU of this machine" : "the fake GPU";
    return failed + cmocka_run_group_tests_name(name, on_gpu, NULL, NULL);
}
