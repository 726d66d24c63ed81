/* Learning-rate schedules against their closed forms, and a step's work by the usual formula. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "runtime/rate.h"
#include "runtime/work.h"
#include "tests/runtime/toy.h"

enum { WARMUP = 10, STEPS = 110 };

static PlanTrain settings(PlanSchedule schedule, int64_t warmup) {
    return (PlanTrain){
        .schedule = (uint8_t)schedule, .warmup = warmup, .floor = 0.1, .decay_share = 0.2};
}

static void expect(const PlanTrain *t, int64_t step, double want) {
    double got = inf_rate_at(t, 0.5, step, STEPS);
    if (fabs(got - want) > 1e-15)
        fail_msg("schedule %d, step %d: %.17g, not %.17g", t->schedule, (int)step, got, want);
}

static void test_warmup(void **state) {
    (void)state;
    for (int s = PLAN_SCHED_constant; s <= PLAN_SCHED_wsd; s++) {
        PlanTrain t = settings((PlanSchedule)s, WARMUP);
        for (int64_t i = 0; i < WARMUP; i++) expect(&t, i, 0.5 * (double)(i + 1) / WARMUP);
    }
}

static void test_closed_forms(void **state) {
    (void)state;
    for (int64_t i = WARMUP; i < STEPS + 5; i++) {
        double x = i < STEPS ? (double)(i - WARMUP) / (STEPS - WARMUP) : 1.0;
        PlanTrain t = settings(PLAN_SCHED_constant, WARMUP);
        expect(&t, i, 0.5);
        t = settings(PLAN_SCHED_linear, WARMUP);
        expect(&t, i, 0.5 + (0.05 - 0.5) * x);
        t = settings(PLAN_SCHED_cosine, WARMUP);
        expect(&t, i, 0.05 + 0.45 * (1 + cos(acos(-1.0) * x)) / 2);
        t = settings(PLAN_SCHED_inverse_sqrt, WARMUP);
        expect(&t, i, 0.5 * fmax(0.1, sqrt(WARMUP / (double)(i + 1))));
        t = settings(PLAN_SCHED_wsd, WARMUP); /* the last 22 steps go down */
        double y = i < 88 ? 0 : i < STEPS ? (double)(i - 88) / 22 : 1;
        expect(&t, i, 0.5 + (0.05 - 0.5) * y);
    }
}

/* The first step without a warm-up has the whole rate; the last one is near the floor. */
static void test_ends(void **state) {
    (void)state;
    for (int s = PLAN_SCHED_constant; s <= PLAN_SCHED_wsd; s++) {
        PlanTrain t = settings((PlanSchedule)s, 0);
        expect(&t, 0, 0.5);
        double last = inf_rate_at(&t, 0.5, STEPS - 1, STEPS);
        assert_true(s == PLAN_SCHED_constant || (last >= 0.05 && last < 0.08));
        /* A run shorter than its warm-up only warms up. */
        t.warmup = 2 * STEPS;
        expect(&t, STEPS - 1, 0.25);
    }
}

static void test_work(void **state) {
    static const PlanParam param[] = {{.nstack = 1, .stack = {12}, .ndim = 2, .dim = {10, 5}},
                                      {.ndim = 1, .dim = {7}, .stored = {128}}};
    static const PlanInput input = {
        .kind = PLAN_INPUT_tokens, .dtype = PLAN_i32, .ndim = 2, .dim = {4, 32}};
    PlanProgram program = {.batch = 4, .microbatches = 3, .input = &input, .ninput = 1};
    Plan plan = {
        .ranks = 1, .dp = 2, .tp = 1, .pp = 1, .param = param, .nparam = 2, .program = &program};
    (void)state;
    plan.attention_width = 12 * 64;
    double tokens = 2 * 3 * 4 * 32, flops = 6 * 607 * tokens + 6.0 * 12 * 64 * 32 * tokens;
    assert_float_equal(inf_work_step(&plan), flops, 0.5);
    assert_float_equal(inf_work_share(&plan, "NVIDIA H200 (sm_90)", 2.0), flops / 2 / 989e12 / 2e-3,
                       1e-12);
    assert_float_equal(inf_work_share(&plan, "a device of tomorrow", 2.0), 0, 0);
    assert_float_equal(inf_work_step(&toy_plan), 0, 0);
    assert_float_equal(inf_work_peak("NVIDIA H100 80GB HBM3 (sm_90)"), 989e12, 1);
    assert_float_equal(inf_work_peak("NVIDIA H100 PCIe (sm_90)"), 756e12, 1);
    assert_float_equal(inf_work_peak("NVIDIA H20 (sm_90)"), 148e12, 1);
    assert_float_equal(inf_work_peak("NVIDIA A100-SXM4-80GB (sm_80)"), 312e12, 1);
    assert_float_equal(inf_work_peak("2 threads"), 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_warmup),
                                       cmocka_unit_test(test_closed_forms),
                                       cmocka_unit_test(test_ends), cmocka_unit_test(test_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
