/* Which launches wait for which: written ranges decide, and nothing is waited for twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/order.h"

/* Ends a launch and compares what it waits for with a list that ends with -1. */
static void expect(InfOrder *o, const int *list) {
    const uint32_t *waits;
    uint32_t count = inf_order_end(o, &waits), i = 0;
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

static void test_ranges(void **state) {
    (void)state;
    InfError e = {0};
    InfOrder o;
    assert_int_equal(inf_order_open(&e, 80, 200, &o), INF_OK);
    inf_order_use(&o, 1000, 100, true); /* 0 writes a */
    expect(&o, NONE);
    inf_order_use(&o, 1000, 100, false); /* 1 reads it, writes b */
    inf_order_use(&o, 2000, 10, true);
    expect(&o, WAITS(0));
    inf_order_use(&o, 1099, 1, false); /* 2 reads its end, writes c: beside 1 */
    inf_order_use(&o, 3000, 10, true);
    expect(&o, WAITS(0));
    inf_order_use(&o, 1100, 50, true); /* 3 writes just behind a: waits for nobody */
    expect(&o, NONE);
    inf_order_use(&o, 2009, 1, false); /* 4 reads b and c: not for 0 again */
    inf_order_use(&o, 3000, 1, false);
    inf_order_use(&o, 5000, 0, true); /* nothing */
    expect(&o, WAITS(2, 1));
    inf_order_use(&o, 1050, 1, true); /* 5 writes over a: after its readers, who are done at 4 */
    inf_order_use(&o, 3005, 1, false);
    expect(&o, WAITS(2, 1));
    inf_order_use(&o, 0, UINT64_MAX, true); /* 6 uses everything: the ends of all chains */
    expect(&o, WAITS(5, 4, 3));
    for (int i = 7; i < 80; i++) { /* a chain over more than one word of bits */
        inf_order_use(&o, 9000, 8, true);
        expect(&o, WAITS(i - 1));
    }
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
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_too_many_stay_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
