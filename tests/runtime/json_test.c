/* Every JSON that the runtime writes is read back by a strict parser. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/json.h"
#include "tests/runtime/toy.h"

static json_t *parse(const char *text) {
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s in: %s", error.text, text);
    return root;
}

static void test_floats_read_back(void **state) {
    static const float values[] = {0.1f,          1.0f / 3.0f,     2.3025851f, 16777216.0f,
                                   3.4028235e38f, 1.17549435e-38f, 1e-45f,     -0.0f,
                                   123456.789f,   0.30000001f};
    (void)state;
    char text[32];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_true(strtof(inf_float_text(values[i], text), NULL) == values[i]);
    assert_string_equal(inf_float_text(0.1f, text), "0.1");
    assert_string_equal(inf_float_text(0.30000001f, text), "0.3");
    assert_string_equal(inf_float_text(0.30000004f, text), "0.30000004");
    assert_true(strtod(inf_double_text(0.1 + 0.2, text), NULL) == 0.1 + 0.2);
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        float value;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) assert_true(strtof(inf_float_text(value, text), NULL) == value);
    }
}

static void test_every_kind(void **state) {
    (void)state;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    InfJson j;
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "quote \" \\ \n \x01", "tab\tsnow\xe2\x98\x83");
    inf_json_put_text(&j, "bad", "\xff\xc0\x80\xed\xa0\x80 end");
    inf_json_put_text(&j, "none", NULL);
    inf_json_put_int(&j, "int", INT64_MIN);
    inf_json_put_float(&j, "nan", NAN);
    inf_json_put_double(&j, "inf", (double)INFINITY);
    inf_json_put_bool(&j, "yes", true);
    inf_json_key(&j, "list");
    inf_json_open(&j, '[');
    inf_json_open(&j, '[');
    inf_json_close(&j);
    inf_json_open(&j, '{');
    inf_json_close(&j);
    inf_json_int(&j, 3);
    inf_json_close(&j);
    inf_json_close(&j);
    fclose(out);
    json_t *root = parse(text);
    assert_string_equal(json_string_value(json_object_get(root, "quote \" \\ \n \x01")),
                        "tab\tsnow\xe2\x98\x83");
    assert_true(json_integer_value(json_object_get(root, "int")) == INT64_MIN);
    assert_true(json_is_null(json_object_get(root, "nan")));
    assert_true(json_is_null(json_object_get(root, "inf")));
    assert_int_equal(json_array_size(json_object_get(root, "list")), 3);
    json_decref(root);
    free(text);
}

static json_t *run_json(const char *const *args) {
    Run r = run_plan(&toy_plan, args);
    assert_int_equal(r.code, 0);
    json_t *root = parse(r.out);
    run_free(&r);
    return root;
}

#define JSON(...) run_json((const char *const[]){__VA_ARGS__, NULL})

static void test_params(void **state) {
    (void)state;
    json_t *root = JSON("params", "--json", "--aliases");
    assert_int_equal(json_array_size(root), 3);
    static const char *const names[] = {"fc.bias", "fc.weight", "head.weight"};
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(root, i), "name")),
                            names[i]);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(root, 1), "count")), 8);
    json_decref(root);
    Run r = RUN(&toy_plan, "params");
    assert_non_null(strstr(r.out, "10 parameters in 2 tensors"));
    assert_null(strstr(r.out, "head.weight"));
    run_free(&r);
    r = RUN(&toy_plan, "params", "--prefix", "fc");
    assert_non_null(strstr(r.out, "fc.bias"));
    run_free(&r);
    r = RUN(&toy_plan, "params", "--no-recurse");
    assert_non_null(strstr(r.out, "0 parameters in 0 tensors"));
    run_free(&r);
}

static void test_info_and_bench(void **state) {
    static const char *const keys[] = {"ms_per_step", "units_per_s", "peak_bytes", "planned_bytes",
                                       "target"};
    (void)state;
    json_t *root = JSON("info", "--json");
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")), 10);
    /* The evaluation's kernel is no part of a step. */
    assert_int_equal(json_array_size(json_object_get(root, "kernels")), 5);
    assert_int_equal(json_integer_value(json_object_get(root, "flops_per_step")), 4 * 64 + 512);
    json_decref(root);
    root = JSON("info", "--json", "--time");
    assert_true(json_is_number(json_object_get(root, "measured_bytes")));
    json_decref(root);
    root = JSON("bench", "--json", "--kernels", "--steps", "7");
    for (size_t i = 0; i < 5; i++) assert_non_null(json_object_get(root, keys[i]));
    assert_int_equal(json_array_size(json_object_get(root, "kernels")), 5);
    json_decref(root);
    Run r = RUN(&toy_plan, "info");
    assert_non_null(strstr(r.out, "largest buffers"));
    assert_non_null(strstr(r.out, "forward_add"));
    assert_non_null(strstr(r.out, "train.B=4"));
    run_free(&r);
}

static void test_schedule(void **state) {
    (void)state;
    json_t *root = JSON("schedule", "--format=json");
    json_t *rank = json_array_get(json_object_get(root, "ranks"), 0);
    assert_int_equal(json_array_size(rank), 5);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(rank, 3), "slot")), 4);
    json_decref(root);
    root = JSON("schedule", "--format=trace");
    assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 5);
    json_decref(root);
    Run r = RUN(&toy_plan, "schedule", "--format=csv");
    assert_string_equal(r.out, "0F0,0B0,0F1,0B1\n");
    run_free(&r);
    r = RUN(&toy_plan, "schedule");
    assert_non_null(strstr(r.out, "r0   F0 B0 -  F1 B1 -  U\n"));
    assert_non_null(strstr(r.out, "1x1x2 1f1b: acyclic"));
    run_free(&r);
    r = RUN(&toy_plan, "schedule", "--format=svg");
    assert_non_null(strstr(r.out, "</svg>"));
    run_free(&r);
}

/* The compiler prints the executable's bytes. */
static void test_texts_for_the_compiler(void **state) {
    static const char *const formats[] = {"table", "csv", "json", "svg", "trace"};
    (void)state;
    Plan plan = toy_plan;
    PlanKernel kernels[6];
    for (int i = 0; i < 6; i++) {
        kernels[i] = toy_plan.kernel[i];
        kernels[i].fn = NULL;
    }
    plan.kernel = kernels;
    for (size_t i = 0; i < 5; i++) {
        Run r = RUN(&toy_plan, "schedule", "--format", formats[i]);
        char *text = inf_schedule_text(&plan, formats[i]);
        assert_string_equal(text, r.out);
        free(text);
        run_free(&r);
    }
    assert_null(inf_schedule_text(&plan, "pdf"));
    Run r = RUN(&toy_plan, "params");
    char *text = inf_params_text(&plan);
    assert_string_equal(text, r.out);
    free(text);
    run_free(&r);
}

static void test_eval(void **state) {
    (void)state;
    char *dir = temp_make();
    toy_data(dir, "t10k", 7);
    json_t *root = JSON("eval", "--json", "--data", dir);
    assert_int_equal(json_integer_value(json_object_get(root, "samples")), 7);
    double accuracy = json_number_value(json_object_get(root, "accuracy")) * 7;
    assert_true(fabs(accuracy - round(accuracy)) < 1e-6);
    assert_true(json_number_value(json_object_get(root, "loss")) > 0);
    json_decref(root);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats_read_back),
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_info_and_bench),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_texts_for_the_compiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
