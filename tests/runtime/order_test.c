/* Which launches wait for which: written ranges decide, lanes are in order, and nothing is waited
 * for twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/order.h"

/* Compares what the next launch waits for with a list that ends with -1. */
static void expect(InfOrder *o, const int *list) {
    const uint32_t *waits;
    uint32_t count = inf_order_next(o, &waits), i = 0;
    for (; list[i] >= 0; i++) {
        assert_true(i < count);
        assert_int_equal(waits[i], list[i]);
    }
    assert_int_equal(count, i);
}

#define WAITS(...)                                                                                 \
    (const int[]) { __VA_ARGS__, -1 }
#define NONE                                                                                       \
    (const int[]) { -1 }

/* The survey of a small step: forward, two gradients a layer, update. */
static InfOrder survey(double weights_us) {
    InfError e = {0};
    InfOrder o;
    assert_int_equal(inf_order_open(&e, 80, 200, &o), INF_OK);
    inf_order_use(&o, 0, UINT64_MAX, true); /* 0 enter */
    inf_order_end(&o, 1);
    inf_order_use(&o, 1000, 100, true); /* 1 layer 1 writes a */
    inf_order_end(&o, 1);
    inf_order_use(&o, 1000, 100, false); /* 2 layer 2 reads it, writes b */
    inf_order_use(&o, 2000, 10, true);
    inf_order_end(&o, 1);
    inf_order_use(&o, 1099, 1, false); /* 3 layer 2's weights: a and b to their gradient */
    inf_order_use(&o, 2000, 10, false);
    inf_order_use(&o, 5000, 8, true);
    inf_order_end(&o, weights_us);
    inf_order_use(&o, 2005, 1, false); /* 4 layer 2's input: b to c */
    inf_order_use(&o, 3000, 10, true);
    inf_order_use(&o, 1100, 0, true); /* nothing */
    inf_order_end(&o, 13);
    inf_order_use(&o, 3000, 1, false); /* 5 layer 1's weights: c, into the gradient behind */
    inf_order_use(&o, 5008, 8, true);
    inf_order_end(&o, 1);
    inf_order_use(&o, 5000, 16, false); /* 6 the update */
    inf_order_use(&o, 7000, 16, true);
    inf_order_end(&o, 1);
    inf_order_use(&o, 0, UINT64_MAX, true); /* 7 leave */
    inf_order_end(&o, 1);
    inf_order_plan(&o);
    return o;
}

static void test_two_lanes(void **state) {
    (void)state;
    InfOrder o = survey(13);
    expect(&o, NONE);
    expect(&o, WAITS(0));
    expect(&o, WAITS(1));
    expect(&o, WAITS(2)); /* 3 beside the longest chain, 0 1 2 4 5 6 7 */
    expect(&o, WAITS(2)); /* 4 does not wait for it */
    expect(&o, WAITS(4));
    expect(&o, WAITS(5, 3)); /* the update needs both */
    expect(&o, WAITS(6));
    inf_order_close(&o);
}

static void test_one_lane_when_little_is_beside(void **state) {
    (void)state;
    InfOrder o = survey(0.1);
    expect(&o, NONE);
    for (int i = 1; i < 8; i++) expect(&o, WAITS(i - 1));
    inf_order_close(&o);
}

static void test_too_many_stay_in_order(void **state) {
    (void)state;
    InfError e = {0};
    InfOrder o;
    assert_int_equal(inf_order_open(&e, INF_ORDER_MOST + 1, 10, &o), INF_OK);
    assert_false(o.on);
    inf_order_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_lanes),
        cmocka_unit_test(test_one_lane_when_little_is_beside),
        cmocka_unit_test(test_too_many_stay_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
