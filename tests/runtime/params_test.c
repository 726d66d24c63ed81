/* Logical tensors: stacked blocks, padding, tied uses, initial values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/params.h"
#include "runtime/rate.h"
#include "runtime/safetensors.h"
#include "tests/runtime/toy.h"

/* h.*.w: 12 tensors [3, 2] stored as [4, 5]; emb: [2], two uses; scale: frozen scalar of ones. */
static const PlanParam blocks[] = {
    {.name = "h.*.w",
     .offset = 0,
     .nstack = 1,
     .ndim = 2,
     .stack = {12},
     .dim = {3, 2},
     .stored = {4, 5},
     .init = PLAN_INIT_normal,
     .init_a = 0.02,
     .trainable = 1,
     .uses = 1},
    {.name = "emb",
     .offset = 1024,
     .ndim = 1,
     .dim = {2},
     .stored = {2},
     .init = PLAN_INIT_zeros,
     .trainable = 1,
     .uses = 2,
     .use_offset = 2048,
     .use_stride = 512},
    {.name = "scale", .offset = 1536, .ndim = 0, .init = PLAN_INIT_ones, .trainable = 0, .uses = 1},
};

typedef struct Fixture {
    Plan plan;
    InfEngine engine;
    InfParams params;
} Fixture;

static int set_up(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    InfError e = {0};
    f->plan = toy_plan;
    f->plan.param = blocks;
    f->plan.nparam = 3;
    f->plan.nalias = 0;
    f->plan.flat_bytes = f->plan.state_bytes = 2048;
    f->plan.region_bytes[PLAN_REGION_param] = 2048;
    f->plan.region_bytes[PLAN_REGION_grad] = 4096;
    f->plan.region_bytes[PLAN_REGION_state] = 2048;
    *state = f;
    return inf_engine_open(&e, &f->plan, 1, 0, &f->engine) != INF_OK ||
           inf_params_open(&e, &f->plan, &f->params) != INF_OK;
}

static int tear_down(void **state) {
    Fixture *f = *state;
    inf_params_close(&f->params);
    inf_engine_close(&f->engine);
    free(f);
    return 0;
}

static void test_names_are_sorted(void **state) {
    static const char *const names[] = {"emb",   "h.0.w", "h.1.w", "h.10.w", "h.11.w",
                                        "h.2.w", "h.3.w", "h.4.w", "h.5.w",  "h.6.w",
                                        "h.7.w", "h.8.w", "h.9.w", "scale"};
    Fixture *f = *state;
    assert_int_equal(f->params.count, 14);
    for (int i = 0; i < 14; i++) assert_string_equal(f->params.param[i].name, names[i]);
    assert_int_equal(inf_params_find(&f->params, "h.10.w")->offset, 10 * 80);
    assert_int_equal(inf_params_find(&f->params, "scale")->count, 1);
    assert_null(inf_params_find(&f->params, "h.12.w"));
}

static void test_padding_is_left_alone(void **state) {
    Fixture *f = *state;
    const InfParam *p = inf_params_find(&f->params, "h.1.w");
    float logical[6] = {1, 2, 3, 4, 5, 6}, back[6], stored[20];
    for (int i = 0; i < 20; i++) stored[i] = -1;
    assert_false(inf_param_contiguous(p));
    inf_param_scatter(p, logical, stored);
    for (int row = 0; row < 4; row++)
        for (int column = 0; column < 5; column++)
            assert_true(stored[row * 5 + column] ==
                        (row < 3 && column < 2 ? (float)(row * 2 + column + 1) : -1.0f));
    inf_param_gather(p, stored, back);
    assert_memory_equal(logical, back, sizeof back);
}

static const InfParam *first_bad(const Fixture *f) {
    const InfParam *bad = NULL;
    InfError e = {0};
    assert_int_equal(inf_params_find_nonfinite(&e, &f->params, &f->engine, &bad), INF_OK);
    return bad;
}

static void test_uses_are_added(void **state) {
    Fixture *f = *state;
    const InfParam *p = inf_params_find(&f->params, "emb");
    float *first = inf_engine_at(&f->engine, PLAN_REGION_grad, 1024);
    float *second = inf_engine_at(&f->engine, PLAN_REGION_grad, 2048), got[2];
    first[0] = 1;
    second[0] = 2;
    second[1] = 4;
    inf_param_gradient(p, &f->engine, 0.5f, got);
    assert_true(got[0] == 1.5f && got[1] == 2.0f);
    assert_null(first_bad(f));
    second[1] = INFINITY;
    assert_ptr_equal(first_bad(f), p);
}

/* Values come from seed, name and element: not from the place in memory or the number of threads.
 */
static void test_initial_values(void **state) {
    Fixture *f = *state;
    const InfParam *a = inf_params_find(&f->params, "h.3.w"),
                   *b = inf_params_find(&f->params, "h.4.w");
    float first[6], again[6], other[6];
    inf_params_init(&f->params, &f->engine, 5);
    inf_param_gather(a, inf_engine_at(&f->engine, PLAN_REGION_param, a->offset), first);
    inf_param_gather(b, inf_engine_at(&f->engine, PLAN_REGION_param, b->offset), other);
    assert_memory_not_equal(first, other, sizeof first);
    InfParam moved = *a;
    moved.offset = 0;
    InfParams one = {.plan = f->params.plan, .param = &moved, .count = 1};
    inf_params_init(&one, &f->engine, 5);
    inf_param_gather(&moved, inf_engine_at(&f->engine, PLAN_REGION_param, 0), again);
    assert_memory_equal(first, again, sizeof first);
    inf_params_init(&f->params, &f->engine, 6);
    inf_param_gather(a, inf_engine_at(&f->engine, PLAN_REGION_param, a->offset), again);
    assert_memory_not_equal(first, again, sizeof first);
    assert_true(*(float *)inf_engine_at(&f->engine, PLAN_REGION_param, 1536) == 1.0f);
}

/* Mean and spread of many values of each kind. */
static void test_distributions(void **state) {
    enum { COUNT = 100000 };
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        PlanParam block = {.name = "w",
                           .ndim = 1,
                           .dim = {COUNT},
                           .stored = {COUNT},
                           .init = (uint8_t)(kind ? PLAN_INIT_uniform : PLAN_INIT_normal),
                           .init_a = 0.5,
                           .trainable = 1,
                           .uses = 1};
        Plan plan = toy_plan;
        InfError e = {0};
        InfEngine m;
        InfParams all;
        plan.param = &block;
        plan.nparam = 1;
        plan.region_bytes[PLAN_REGION_param] = COUNT * 4;
        assert_int_equal(inf_engine_open(&e, &plan, 2, 0, &m), INF_OK);
        assert_int_equal(inf_params_open(&e, &plan, &all), INF_OK);
        inf_params_init(&all, &m, 1);
        const float *w = inf_engine_at(&m, PLAN_REGION_param, 0);
        double sum = 0, square = 0, most = 0;
        for (int i = 0; i < COUNT; i++) {
            sum += (double)w[i];
            square += (double)w[i] * (double)w[i];
            most = fmax(most, fabs((double)w[i]));
        }
        double want = kind ? 0.5 / sqrt(3) : 0.5;
        assert_true(fabs(sum / COUNT) < 0.01);
        assert_true(fabs(sqrt(square / COUNT) - want) < 0.01);
        assert_true(kind ? most <= 0.5 && most > 0.499 : most > 1.8 && most < 3.5);
        inf_params_close(&all);
        inf_engine_close(&m);
    }
}

/* What is saved loads again, bit for bit, padding and stacks included. */
static void test_save_and_load(void **state) {
    Fixture *f = *state;
    InfError e = {0};
    char *dir = temp_make();
    const char *path = temp_path(dir, "w.safetensors"),
               *again = temp_path(dir, "again.safetensors");
    inf_params_init(&f->params, &f->engine, 9);
    assert_int_equal(inf_params_save(&e, &f->params, &f->engine, path, INF_VALUES_weights, 1),
                     INF_OK);
    InfTensors set;
    assert_int_equal(inf_tensors_open(&e, path, &set), INF_OK);
    assert_int_equal(set.count, 14);
    assert_int_equal(inf_tensors_find(&set, "h.11.w")->shape[1], 2);
    inf_tensors_close(&set);
    inf_params_init(&f->params, &f->engine, 10);
    assert_int_equal(inf_params_load(&e, &f->params, &f->engine, path), INF_OK);
    assert_int_equal(inf_params_save(&e, &f->params, &f->engine, again, INF_VALUES_weights, 1),
                     INF_OK);
    size_t n, m;
    char *x = file_get(path, &n), *y = file_get(again, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    temp_remove(dir);
}

static void test_rates(void **state) {
    (void)state;
    PlanTrain t = {.schedule = PLAN_SCHED_cosine, .warmup = 10, .floor = 0.1, .decay_share = 0.2};
    assert_true(inf_rate_at(&t, 1.0, 0, 110) == 0.1);
    assert_true(inf_rate_at(&t, 1.0, 9, 110) == 1.0);
    assert_true(fabs(inf_rate_at(&t, 1.0, 60, 110) - 0.55) < 1e-12);
    assert_true(fabs(inf_rate_at(&t, 1.0, 110, 110) - 0.1) < 1e-12);
    t.schedule = PLAN_SCHED_linear;
    assert_true(fabs(inf_rate_at(&t, 2.0, 60, 110) - 1.1) < 1e-12);
    t.schedule = PLAN_SCHED_inverse_sqrt;
    assert_true(fabs(inf_rate_at(&t, 1.0, 39, 110) - 0.5) < 1e-12);
    t.schedule = PLAN_SCHED_wsd;
    assert_true(inf_rate_at(&t, 1.0, 80, 100) == 1.0);
    assert_true(fabs(inf_rate_at(&t, 1.0, 90, 100) - 0.55) < 1e-12);
    t.schedule = PLAN_SCHED_constant;
    t.warmup = 0;
    assert_true(inf_rate_at(&t, 0.05, 12345, 10) == 0.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_are_sorted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_padding_is_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uses_are_added, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_initial_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_save_and_load, set_up, tear_down),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
