/* The CUDA device without a device: a fake driver and matrix library (tests/runtime/fake) that do
 * nothing before somebody waits. Training there gives the bits of training on the processor, in a
 * graph or not, with samples resident or streamed; what a machine can lack is said. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/engine.h"
#include "tests/runtime/toy_cuda.h"

/* --- what a machine can lack --- */

static void test_machines_that_lack_something(void **state) {
    static const struct {
        const char *name, *value, *says, *also;
    } cases[] = {
        {"FAKE_DEVICES", "0", "no CUDA device: the driver (CUDA 13.0) sees none", "--target=cpu"},
        {"FAKE_ARCH", "75",
         "no code for the device, Fake Device (sm_75): it holds code for sm_80, "
         "sm_90a, compute_80",
         "--arch=sm_75 toy.it"},
        {"FAKE_ARCH", "100", "cannot load this file's code for compute_80", "update the driver"},
        {"FAKE_ARCH", "86", "cannot load this file's code for sm_80", "CUDA 13.0 or older"},
        {"FAKE_MEMORY", "10000", "bytes of device memory; 10000 are free on the Fake Device",
         "a smaller train.B"},
        {"FAKE_SHARED", "99999", "needs 100000 bytes of shared memory in a block; the Fake Device",
         "narrower heads"},
        {"FAKE_FAIL_LAUNCH", "25", "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal", "on the device"},
    };
    (void)state;
    Plan plan = toy_cuda_plan();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        Run r = RUN(&plan, "bench", "--steps", "20");
        assert_int_equal(r.code, 5);
        if (!strstr(r.err, cases[i].says) || !strstr(r.err, cases[i].also)) fail_msg("%s", r.err);
        run_free(&r);
        unsetenv(cases[i].name);
    }
}

/* Before the fakes are loaded: no driver, where this machine has none. */
static void test_no_driver(void **state) {
    (void)state;
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real) {
        dlclose(real);
        skip();
    }
    Plan plan = toy_cuda_plan();
    Run r = RUN(&plan, "bench");
    assert_int_equal(r.code, 5);
    assert_non_null(strstr(r.err, "the NVIDIA driver is missing: looked for libcuda.so.1, "
                                  "libcuda.so\n"));
    assert_non_null(strstr(r.err, "infinic --target=cpu"));
    run_free(&r);
    r = RUN(&plan, "info");
    assert_int_equal(r.code, 0);
    run_free(&r);
}

/* A plan with messages needs their library, where this machine has none. */
static void test_no_nccl(void **state) {
    static const PlanMessage to_itself = {.to = 1, .bytes = 4};
    (void)state;
    void *real = dlopen("libnccl.so.2", RTLD_NOW);
    if (real) {
        dlclose(real);
        skip();
    }
    Plan plan = toy_cuda_plan();
    plan.message = &to_itself;
    plan.nmessage = 1;
    Run r = RUN(&plan, "bench");
    assert_int_equal(r.code, 5);
    assert_non_null(strstr(r.err, "NCCL, the library for messages between GPUs, is missing: looked "
                                  "for libnccl.so.2, libnccl.so"));
    assert_non_null(strstr(r.err, "libnccl2"));
    run_free(&r);
}

/* --- training --- */

/* Two texts with the values of "ms" and "units_per_s" and memory figures taken out. */
static char *without_times(const char *path) {
    static const char *const keys[] = {"ms",       "units_per_s",   "mem_peak",       "seconds",
                                       "target",   "planned_bytes", "measured_bytes", "path",
                                       "mem_used", "mem_reserved"};
    char *text = file_get(path, NULL), *out = NULL;
    size_t length = 0;
    assert_non_null(text);
    FILE *to = open_memstream(&out, &length);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(record);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) json_object_del(record, keys[i]);
        char *dumped = json_dumps(record, JSON_PRESERVE_ORDER);
        fprintf(to, "%s\n", dumped);
        free(dumped);
        json_decref(record);
    }
    fclose(to);
    free(text);
    return out;
}

static void assert_same_file(const char *a, const char *b) {
    size_t n = 0, m = 0;
    char *x = file_get(a, &n), *y = file_get(b, &m);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static char *run_training(const char *dir, const Plan *plan, const char *name, const char *flag) {
    char out[256], metrics[256], grads[256];
    snprintf(out, sizeof out, "%s/%s", dir, name);
    snprintf(metrics, sizeof metrics, "%s/%s.jsonl", dir, name);
    snprintf(grads, sizeof grads, "%s/%s.grads", dir, name);
    Run r = RUN(plan, "train", "--data", dir, "--epochs", "5", "--out", out, "--metrics", metrics,
                "--dump-grads", grads, "--save-every", "7", "--grad-norm", flag);
    if (r.code != 0) fail_msg("%s: %s", flag, r.err);
    run_free(&r);
    return without_times(metrics);
}

static void test_training_is_the_same(void **state) {
    static const char *const flags[] = {"--quiet", "--no-graph", "--stream", "--threads=2"};
    (void)state;
    char *dir = temp_make();
    Plan plan = toy_cuda_plan();
    toy_data(dir, "train", 42); /* 5 steps of 8, 2 samples left over */
    toy_data(dir, "t10k", 11);  /* 3 + 3 + 3 + 2 */
    char *want = run_training(dir, &toy_plan, "cpu", "--quiet");
    for (int i = 0; i < 4; i++) {
        char *got = run_training(dir, &plan, "cuda", flags[i]);
        if (strcmp(got, want) != 0) fail_msg("%s:\n%s\nprocessor:\n%s", flags[i], got, want);
        free(got);
        static const char *const files[] = {"%s/model.safetensors", "%s.grads",
                                            "%s/step-00000021/optimizer.safetensors",
                                            "%s/step-00000021/model.safetensors"};
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            char name[64], path[256];
            snprintf(name, sizeof name, files[k], "cpu");
            snprintf(path, sizeof path, "%s", temp_path(dir, name));
            snprintf(name, sizeof name, files[k], "cuda");
            assert_same_file(path, temp_path(dir, name));
        }
    }
    free(want);
    temp_remove(dir);
}

static void test_resume_is_the_same(void **state) {
    (void)state;
    char *dir = temp_make(), a[256], b[256];
    Plan plan = toy_cuda_plan();
    toy_data(dir, "train", 42);
    snprintf(a, sizeof a, "%s", temp_path(dir, "whole"));
    snprintf(b, sizeof b, "%s", temp_path(dir, "halves"));
    Run r = RUN(&plan, "train", "--data", dir, "--steps", "11", "--out", a);
    assert_int_equal(r.code, 0);
    run_free(&r);
    r = RUN(&plan, "train", "--data", dir, "--steps", "6", "--out", b, "--save-every", "6");
    assert_int_equal(r.code, 0);
    run_free(&r);
    r = RUN(&plan, "train", "--data", dir, "--steps", "11", "--out", b, "--resume");
    assert_int_equal(r.code, 0);
    run_free(&r);
    char path[300];
    snprintf(path, sizeof path, "%s/model.safetensors", a);
    strncat(b, "/model.safetensors", sizeof b - strlen(b) - 1);
    assert_same_file(path, b);
    temp_remove(dir);
}

static void test_eval_and_verify(void **state) {
    (void)state;
    char *dir = temp_make(), weights[256];
    Plan plan = toy_cuda_plan();
    toy_data(dir, "train", 16);
    toy_data(dir, "t10k", 11);
    snprintf(weights, sizeof weights, "%s", temp_path(dir, "out"));
    Run r = RUN(&plan, "train", "--data", dir, "--out", weights, "--dump-grads",
                temp_path(dir, "g"), "--no-shuffle");
    assert_int_equal(r.code, 0);
    run_free(&r);
    Run cpu = RUN(&toy_plan, "eval", "--data", dir, "--weights", weights, "--json");
    Run cuda = RUN(&plan, "eval", "--data", dir, "--weights", weights, "--json");
    Run sent = RUN(&plan, "eval", "--data", dir, "--weights", weights, "--json", "--stream");
    assert_int_equal(cuda.code, 0);
    assert_string_equal(cpu.out, cuda.out);
    assert_string_equal(cpu.out, sent.out);
    run_free(&cpu);
    run_free(&cuda);
    run_free(&sent);
    r = RUN(&plan, "verify", "--ref", temp_path(dir, "g"), "--data", dir, "--tolerance", "1e-12");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "2 tensors agree"));
    run_free(&r);
    temp_remove(dir);
}

/* The step after the one that overflowed is already on its way when the bad one is seen. */
static void test_nonfinite_is_named(void **state) {
    (void)state;
    char *dir = temp_make();
    Plan plan = toy_cuda_plan();
    toy_data(dir, "train", 16);
    Run r = RUN(&plan, "train", "--data", dir, "--lr", "3e38", "--epochs", "4");
    assert_int_equal(r.code, 6);
    assert_non_null(strstr(r.err, "step 3: the loss is NaN; first bad tensor: the"));
    run_free(&r);
    r = RUN(&plan, "train", "--data", dir, "--lr", "3e38", "--epochs", "4", "--on-nan=skip");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "steps skipped"));
    run_free(&r);
    temp_remove(dir);
}

/* Events of a track, without names of tracks. */
static size_t count_track(const json_t *events, json_int_t track) {
    size_t n = 0, i;
    const json_t *event;
    json_array_foreach(events, i, event) {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        n += strcmp(phase, "X") == 0 && json_integer_value(json_object_get(event, "tid")) == track;
    }
    return n;
}

static void test_bench_and_trace(void **state) {
    (void)state;
    char *dir = temp_make();
    Plan plan = toy_cuda_plan();
    plan.region_bytes[PLAN_REGION_scratch] = 100 << 20;
    const char *trace = temp_path(dir, "trace.json");
    setenv("FAKE_MEMORY", "4000000000", 1);
    Run r = RUN(&plan, "bench", "--json", "--steps", "30", "--kernels", "--trace", trace);
    unsetenv("FAKE_MEMORY");
    assert_int_equal(r.code, 0);
    json_t *root = json_loads(r.out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_int_t planned = json_integer_value(json_object_get(root, "planned_bytes"));
    assert_true(planned > 100 << 20);
    assert_int_equal(json_integer_value(json_object_get(root, "peak_bytes")), planned);
    json_t *first = json_array_get(json_object_get(root, "kernels"), 0);
    assert_true(json_number_value(json_object_get(first, "ms")) >= 0.25);
    assert_true(json_number_value(json_object_get(first, "floor_share")) > 0);
    json_decref(root);
    run_free(&r);

    root = json_load_file(trace, JSON_REJECT_DUPLICATES, NULL);
    json_t *events = json_object_get(root, "traceEvents");
    /* 2 x (stage, forward, backward), update; tasks without staging */
    assert_int_equal(count_track(events, 3), 20 * 7);
    assert_int_equal(count_track(events, 0), 20 * 5);
    assert_int_equal(count_track(events, 1), 0); /* nothing is predicted */
    json_t *update = json_array_get(events, 11);
    assert_string_equal(json_string_value(json_object_get(update, "name")), "update");
    json_decref(root);
    temp_remove(dir);
}

/* --- products --- */

typedef struct ProductCase {
    int64_t m, n, k, batch, pad;
    uint8_t ta, tb, epilogue, beta, in_place;
} ProductCase;

enum { A_AT = 0, B_AT = 4096, BIAS_AT = 8192, OLD_AT = 8256, OUT_AT = 12352 };

static float value_at(int64_t i) { return (float)((i * 7919) % 64 - 32) / 16.0f; }

static float expected(const ProductCase *c, const PlanMatmul *p, const float *data, int64_t b,
                      int64_t i, int64_t j) {
    const float *a_at = data + A_AT / 4 + b * p->a_stride,
                *b_at = data + B_AT / 4 + b * p->b_stride;
    float sum = 0;
    for (int64_t k = 0; k < c->k; k++)
        sum += a_at[c->ta ? k * p->lda + i : i * p->lda + k] *
               b_at[c->tb ? j * p->ldb + k : k * p->ldb + j];
    if (c->beta)
        sum += data[(c->in_place ? OUT_AT : OLD_AT) / 4 + b * p->c_stride + i * p->ldc + j];
    bool bias = c->epilogue == PLAN_EPILOGUE_bias || c->epilogue == PLAN_EPILOGUE_relu_bias ||
                c->epilogue == PLAN_EPILOGUE_gelu_bias;
    if (bias) sum += data[BIAS_AT / 4 + j];
    if (c->epilogue == PLAN_EPILOGUE_relu || c->epilogue == PLAN_EPILOGUE_relu_bias)
        return sum > 0 ? sum : 0;
    if (c->epilogue == PLAN_EPILOGUE_gelu || c->epilogue == PLAN_EPILOGUE_gelu_bias)
        return 0.5f * sum * (1 + tanhf(0.7978845608f * (sum + 0.044715f * sum * sum * sum)));
    return sum;
}

static void run_product_case(const ProductCase *c) {
    PlanMatmul p = {.m = c->m, .n = c->n, .k = c->k, .batch = c->batch, .ta = c->ta, .tb = c->tb};
    p.epilogue = c->epilogue;
    p.beta = c->beta;
    p.a = 1;
    p.b = 0;
    p.bias = 2;
    p.old = c->in_place ? 4 : 3;
    p.out = 4;
    p.lda = (c->ta ? c->m : c->k) + c->pad;
    p.ldb = (c->tb ? c->k : c->n) + c->pad;
    p.ldc = c->n + c->pad;
    p.a_stride = (c->ta ? c->k : c->m) * p.lda;
    p.b_stride = (c->tb ? c->n : c->k) * p.ldb;
    p.c_stride = c->m * p.ldc;
    static const int64_t at[] = {B_AT, A_AT, BIAS_AT, OLD_AT, OUT_AT};
    PlanArg arg[5];
    for (int i = 0; i < 5; i++) arg[i] = (PlanArg){.offset = at[i], .region = PLAN_REGION_scratch};
    PlanStep step = {.kind = STEP_LAUNCH, .kernel = TOY_KERNELS, .arg = 0, .narg = 5};
    PlanChunk chunk = {"product", 0, 1};
    PlanKernel with[TOY_KERNELS + 1];
    Plan plan = toy_cuda_plan();
    memcpy(with, plan.kernel, TOY_KERNELS * sizeof *with);
    with[TOY_KERNELS] =
        (PlanKernel){.name = "product", .form = "matmul", .kind = PLAN_KERNEL_matmul};
    plan.kernel = with;
    plan.nkernel = TOY_KERNELS + 1;
    plan.matmul = &p;
    plan.nmatmul = 1;
    plan.arg = arg;
    plan.step = &step;
    plan.chunk = &chunk;
    plan.nchunk = 1;
    plan.region_bytes[PLAN_REGION_scratch] = 16 << 10;
    static const PlanRank none = {0, 0};
    PlanProgram program = toy_plan.program[0];
    program.rank = &none;
    plan.program = &program;
    plan.nprogram = 1;

    InfError e = {0};
    InfEngine m;
    if (inf_engine_open(&e, &plan, 1, 0, &m) != INF_OK) fail_msg("%s", e.text);
    float *data = inf_engine_at(&m, PLAN_REGION_scratch, 0), before[4096];
    for (int i = 0; i < 4096; i++) data[i] = before[i] = value_at(i);
    inf_engine_push_all(&m, PLAN_REGION_scratch);
    inf_engine_run(&m, 0);
    inf_engine_fetch_all(&m, PLAN_REGION_scratch);
    if (m.table->finish(&e, m.device) != INF_OK) fail_msg("%s", e.text);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < c->m; i++)
            for (int64_t j = 0; j < c->n; j++) {
                float got = data[OUT_AT / 4 + b * p.c_stride + i * p.ldc + j];
                float want = expected(c, &p, before, b, i, j);
                if (!(fabsf(got - want) <= 1e-5f * (1 + fabsf(want))))
                    fail_msg("%lld %lld %lld: %g, expected %g", (long long)b, (long long)i,
                             (long long)j, (double)got, (double)want);
            }
    inf_engine_close(&m);
}

static void test_products(void **state) {
    static const ProductCase base[] = {
        {.m = 3, .n = 5, .k = 7, .batch = 1},
        {.m = 8, .n = 1, .k = 4, .batch = 1, .pad = 3},
        {.m = 2, .n = 6, .k = 5, .batch = 3, .pad = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        for (int form = 0; form < 4; form++)
            for (int epilogue = PLAN_EPILOGUE_none; epilogue <= PLAN_EPILOGUE_gelu_bias; epilogue++)
                for (int beta = 0; beta < (epilogue == PLAN_EPILOGUE_none ? 3 : 1); beta++) {
                    ProductCase c = base[i];
                    c.ta = form & 1;
                    c.tb = form >> 1;
                    c.epilogue = (uint8_t)epilogue;
                    c.beta = beta > 0;
                    c.in_place = beta == 2;
                    run_product_case(&c);
                }
}

static int load_fakes(void **state) {
    (void)state;
    return fake_preload("libcuda.so.1") && fake_preload("libcublasLt.so.13") ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest before[] = {cmocka_unit_test(test_no_driver)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines_that_lack_something),
        cmocka_unit_test(test_training_is_the_same),
        cmocka_unit_test(test_resume_is_the_same),
        cmocka_unit_test(test_eval_and_verify),
        cmocka_unit_test(test_nonfinite_is_named),
        cmocka_unit_test(test_bench_and_trace),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_no_nccl),
    };
    int failed = cmocka_run_group_tests(before, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, load_fakes, NULL);
}
