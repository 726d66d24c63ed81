/* Planned memory is what a process takes: within 2 % for a plan of more than 200 MB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/runtime/toy.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
#else
enum { SANITIZED = 0 };
#endif

static void test_planned_is_measured(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* the sanitizer's own shadow memory counts too */
    Plan plan = toy_plan;
    plan.region_bytes[PLAN_REGION_scratch] = 300 << 20;
    Run r = RUN(&plan, "bench", "--json", "--steps", "3");
    assert_int_equal(r.code, 0);
    json_t *root = json_loads(r.out, JSON_REJECT_DUPLICATES, NULL);
    double planned = json_number_value(json_object_get(root, "planned_bytes"));
    double measured = json_number_value(json_object_get(root, "peak_bytes"));
    assert_true(planned >= 300 << 20);
    assert_true(measured > planned * 0.98 && measured < planned * 1.02);
    json_decref(root);
    run_free(&r);
}

/* More than the machine has: exit 5 with both numbers, not a kill. */
static void test_too_large_a_plan(void **state) {
    (void)state;
    Plan plan = toy_plan;
    plan.region_bytes[PLAN_REGION_scratch] = INT64_C(1) << 44;
    Run r = RUN(&plan, "bench");
    assert_int_equal(r.code, 5);
    assert_non_null(strstr(r.err, "the plan needs 17592186"));
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planned_is_measured),
        cmocka_unit_test(test_too_large_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
