/* The walk over chunk programs: order, repeats with strides, operands, and training end to end on
 * a plan written by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/engine.h"
#include "runtime/safetensors.h"
#include "tests/runtime/toy.h"

/* Notes which kernel ran, in which iterations, on which element of the slot region. */
static struct {
    char text[256];
    float *origin;
} trace;

static void note(const char *name, void *const *arg, const InfEnv *env) {
    size_t at = strlen(trace.text);
    snprintf(trace.text + at, sizeof trace.text - at, "%s%lld.%lld@%td ", name,
             (long long)env->iter[0], (long long)env->iter[1], (float *)arg[0] - trace.origin);
}

static void kernel_a(void *const *arg, const InfEnv *env) { note("a", arg, env); }

static void kernel_b(void *const *arg, const InfEnv *env) { note("b", arg, env); }

static const PlanKernel walk_kernels[] = {{.name = "a", .fn = kernel_a, .form = "rows"},
                                          {.name = "b", .fn = kernel_b, .form = "rows"}};
static const int64_t walk_strides[] = {40, 4, 40};
static const PlanArg walk_args[] = {
    {.offset = 0, .region = PLAN_REGION_slot},
    {.offset = 4, .stride = 0, .nstride = 2, .region = PLAN_REGION_slot},
    {.offset = 8, .stride = 2, .nstride = 1, .region = PLAN_REGION_slot},
};
static const PlanStep walk_steps[] = {
    {.kind = STEP_LAUNCH, .kernel = 0, .arg = 0, .narg = 1},
    {.kind = STEP_REPEAT, .count = 2, .nbody = 3, .reverse = 1},
    {.kind = STEP_REPEAT, .count = 2, .nbody = 1},
    {.kind = STEP_LAUNCH, .kernel = 1, .arg = 1, .narg = 1},
    {.kind = STEP_LAUNCH, .kernel = 0, .arg = 2, .narg = 1},
    {.kind = STEP_LAUNCH, .kernel = 1, .arg = 0, .narg = 1},
};
static const PlanChunk walk_chunks[] = {{"all", 0, 6}};

static void test_repeats_and_strides(void **state) {
    (void)state;
    Plan plan = toy_plan;
    InfError e = {0};
    InfEngine m;
    plan.kernel = walk_kernels;
    plan.nkernel = 2;
    plan.arg = walk_args;
    plan.stride = walk_strides;
    plan.step = walk_steps;
    plan.chunk = walk_chunks;
    plan.nchunk = 1;
    plan.region_bytes[PLAN_REGION_slot] = 128;
    assert_int_equal(inf_engine_open(&e, &plan, 1, 0, &m), INF_OK);
    trace.origin = inf_engine_at(&m, PLAN_REGION_slot, 0);
    inf_engine_run(&m, 0);
    assert_string_equal(trace.text, "a0.0@0 b1.0@11 b1.1@12 a1.0@12 b0.0@1 b0.1@2 a0.0@2 b0.0@0 ");
    inf_engine_close(&m);
}

static void test_regions_are_aligned_and_apart(void **state) {
    (void)state;
    InfError e = {0};
    InfEngine m;
    assert_int_equal(inf_engine_open(&e, &toy_plan, 1, 0, &m), INF_OK);
    for (int r = 1; r < PLAN_REGION_count; r++) {
        assert_int_equal((uintptr_t)m.base[r] % 64, 0);
        if (r + 1 < PLAN_REGION_count)
            assert_true(m.base[r + 1] - m.base[r] >= toy_plan.region_bytes[r]);
    }
    inf_engine_close(&m);
}

static void test_too_much_memory_is_a_clean_error(void **state) {
    static const int64_t sizes[] = {INT64_C(1) << 50, INT64_MAX};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Plan plan = toy_plan;
        InfError e = {0};
        InfEngine m;
        plan.region_bytes[PLAN_REGION_slot] = plan.region_bytes[PLAN_REGION_scratch] = sizes[i];
        assert_int_equal(inf_engine_open(&e, &plan, 1, 0, &m), INF_IO);
        assert_non_null(strstr(e.text, "bytes of memory"));
        inf_engine_close(&m);
        inf_error_free(&e);
    }
}

static void test_missing_cpu_feature_is_named(void **state) {
    (void)state;
    Plan plan = toy_plan;
    plan.cpu_features = "sse2";
    InfError e = {0};
    assert_int_equal(inf_cpu_check(&e, &plan), INF_OK);
#if defined(__x86_64__)
    static const char *const rare[] = {"avx512f", "avx512bitalg", "avx512vbmi2"};
    bool has[] = {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bitalg"),
                  __builtin_cpu_supports("avx512vbmi2")};
    for (int i = 0; i < 3; i++) {
        plan.cpu_features = rare[i];
        InfError error = {0};
        assert_int_equal(inf_cpu_check(&error, &plan) == INF_OK, has[i]);
        if (!has[i]) assert_non_null(strstr(error.text, rare[i]));
        inf_error_free(&error);
    }
#endif
}

/* Losses of a metrics file, in order; *count of them, in fresh memory. */
static double *read_losses(const char *path, size_t *count) {
    char *text = file_get(path, NULL);
    assert_non_null(text);
    double *losses = calloc(1000, sizeof *losses);
    *count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(record);
        const char *event = json_string_value(json_object_get(record, "event"));
        assert_non_null(event);
        if (strcmp(event, "step") == 0) {
            static const char *const keys[] = {
                "step", "loss", "lr", "ms", "units_per_s", "mem_peak", "mem_used", "mem_reserved"};
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
                assert_true(json_is_number(json_object_get(record, keys[k])));
            losses[(*count)++] = json_number_value(json_object_get(record, "loss"));
        }
        json_decref(record);
    }
    free(text);
    return losses;
}

static void test_training_falls_and_repeats(void **state) {
    (void)state;
    char *dir = temp_make();
    size_t count[3];
    double *losses[3];
    toy_data(dir, "train", 18); /* 2 steps of 8, 2 samples left over */
    toy_data(dir, "t10k", 7);   /* 3 + 3 + 1 */
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        const char *path = temp_path(dir, name);
        Run r = RUN(&toy_plan, "train", "--data", dir, "--metrics", path, "--epochs", "40",
                    "--threads", i == 2 ? "1" : "2");
        assert_int_equal(r.code, 0);
        assert_non_null(strstr(r.err, "the last 2 samples"));
        assert_non_null(strstr(r.out, "(7 samples)"));
        assert_non_null(strstr(r.out, "trained 80 steps"));
        losses[i] = read_losses(path, &count[i]);
        run_free(&r);
    }
    assert_int_equal(count[0], 80);
    assert_true(losses[0][79] < losses[0][0]);
    for (int i = 1; i < 3; i++) assert_memory_equal(losses[0], losses[i], 80 * sizeof *losses[0]);
    for (int i = 0; i < 3; i++) free(losses[i]);
    temp_remove(dir);
}

/* The gradient of the bias over one batch in file order, computed here again. */
static void test_first_gradients(void **state) {
    (void)state;
    char *dir = temp_make();
    toy_data(dir, "train", 8);
    const char *init = temp_path(dir, "init.safetensors"), *path = temp_path(dir, "g.safetensors");
    float w[8] = {0.1f, -0.2f, 0.3f, 0.0f, 0.2f, 0.1f, -0.1f, 0.05f}, b[2] = {0.01f, -0.02f};
    InfTensorOut out[] = {{"fc.weight", INF_DTYPE_F32, 2, {2, 4}, w},
                          {"fc.bias", INF_DTYPE_F32, 1, {2}, b}};
    InfError e = {0};
    assert_int_equal(inf_tensors_write(&e, init, out, 2), INF_OK);
    Run r = RUN(&toy_plan, "train", "--data", dir, "--init", init, "--no-shuffle", "--steps", "1",
                "--dump-grads", path);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "no evaluation set"));
    run_free(&r);

    double want = 0;
    for (int i = 0; i < 8; i++) {
        double logit[2];
        for (int c = 0; c < 2; c++) {
            logit[c] = (double)b[c];
            for (int k = 0; k < 4; k++)
                logit[c] += (double)w[c * 4 + k] * ((40 * i + 10 * k) % 256) / 255.0;
        }
        want += (1 / (1 + exp(logit[1] - logit[0])) - (i % 2 == 0)) / 8;
    }
    InfTensors set;
    assert_int_equal(inf_tensors_open(&e, path, &set), INF_OK);
    assert_int_equal(set.count, 2);
    float got[2];
    assert_int_equal(inf_tensors_read_f32(&e, &set, inf_tensors_find(&set, "fc.bias"), got),
                     INF_OK);
    assert_true(fabs((double)got[0] - want) < 1e-6);
    assert_true(fabs((double)got[1] + want) < 1e-6);
    inf_tensors_close(&set);

    r = RUN(&toy_plan, "verify", "--ref", path, "--data", dir, "--init", init);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "2 tensors agree"));
    run_free(&r);
    r = RUN(&toy_plan, "verify", "--ref", path, "--data", dir);
    assert_int_equal(r.code, 4);
    assert_non_null(strstr(r.err, "'fc.bias' is the first that differs"));
    run_free(&r);
    temp_remove(dir);
}

/* A rate that overflows the weights: the step after it is not applied, and named. */
static void test_nonfinite(void **state) {
    (void)state;
    char *dir = temp_make();
    toy_data(dir, "train", 8);
    const char *path = temp_path(dir, "m");
    Run r = RUN(&toy_plan, "train", "--data", dir, "--lr", "3e38", "--steps", "4", "--out", dir,
                "--metrics", path);
    assert_int_equal(r.code, 6);
    assert_non_null(strstr(r.err, "step 3: the loss is NaN; first bad tensor: the loss itself"));
    assert_null(file_get(temp_path(dir, "model.safetensors"), NULL));
    char *text = file_get(path, NULL);
    assert_non_null(strstr(text, "{\"event\":\"nan\",\"step\":3,\"loss\":null,\"tensor\":null"));
    free(text);
    run_free(&r);
    r = RUN(&toy_plan, "train", "--data", dir, "--lr", "3e38", "--steps", "4", "--on-nan=skip");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "2 steps skipped"));
    run_free(&r);

    float w[8] = {0, 0, NAN}, b[2] = {0, 0};
    InfTensorOut out[] = {{"fc.weight", INF_DTYPE_F32, 2, {2, 4}, w},
                          {"fc.bias", INF_DTYPE_F32, 1, {2}, b}};
    InfError e = {0};
    const char *init = temp_path(dir, "init.safetensors");
    assert_int_equal(inf_tensors_write(&e, init, out, 2), INF_OK);
    r = RUN(&toy_plan, "train", "--data", dir, "--init", init);
    assert_int_equal(r.code, 6);
    assert_non_null(
        strstr(r.err, "step 1: the loss is NaN; first bad tensor: the gradient of fc.bias"));
    run_free(&r);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_falls_and_repeats),
        cmocka_unit_test(test_first_gradients),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_repeats_and_strides),
        cmocka_unit_test(test_regions_are_aligned_and_apart),
        cmocka_unit_test(test_too_much_memory_is_a_clean_error),
        cmocka_unit_test(test_missing_cpu_feature_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
