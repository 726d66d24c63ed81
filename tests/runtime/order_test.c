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
    inf_order_end(&o, 1, INF_LANE_main);
    inf_order_use(&o, 1000, 100, true); /* 1 layer 1 writes a */
    inf_order_end(&o, 1, INF_LANE_main);
    inf_order_use(&o, 1000, 100, false); /* 2 layer 2 reads it, writes b */
    inf_order_use(&o, 2000, 10, true);
    inf_order_end(&o, 1, INF_LANE_main);
    inf_order_use(&o, 1099, 1, false); /* 3 layer 2's weights: a and b to their gradient */
    inf_order_use(&o, 2000, 10, false);
    inf_order_use(&o, 5000, 8, true);
    inf_order_end(&o, weights_us, INF_LANE_main);
    inf_order_use(&o, 2005, 1, false); /* 4 layer 2's input: b to c */
    inf_order_use(&o, 3000, 10, true);
    inf_order_use(&o, 1100, 0, true); /* nothing */
    inf_order_end(&o, 13, INF_LANE_main);
    inf_order_use(&o, 3000, 1, false); /* 5 layer 1's weights: c, into the gradient behind */
    inf_order_use(&o, 5008, 8, true);
    inf_order_end(&o, 1, INF_LANE_main);
    inf_order_use(&o, 5000, 16, false); /* 6 the update */
    inf_order_use(&o, 7000, 16, true);
    inf_order_end(&o, 1, INF_LANE_main);
    inf_order_use(&o, 0, UINT64_MAX, true); /* 7 leave */
    inf_order_end(&o, 1, INF_LANE_main);
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

/* --- random steps, beside the definition --- */

enum { RANDOM_LAUNCHES = 60, RANDOM_REACHES = 4 };

typedef struct Definition {
    InfReach reach[RANDOM_LAUNCHES][RANDOM_REACHES];
    double cost[RANDOM_LAUNCHES], rest[RANDOM_LAUNCHES];
    InfLane in[RANDOM_LAUNCHES];
    bool behind[RANDOM_LAUNCHES][RANDOM_LAUNCHES];
    int lane[INF_LANE_COUNT]; /* 1 + the last launch in it */
} Definition;

static bool clash(const Definition *d, int a, int b) {
    for (int i = 0; i < RANDOM_REACHES; i++)
        for (int k = 0; k < RANDOM_REACHES; k++) {
            const InfReach *x = &d->reach[a][i], *y = &d->reach[b][k];
            if ((x->written || y->written) && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

static int longest_behind(const Definition *d, int i) {
    int best = RANDOM_LAUNCHES;
    for (int k = i + 1; k < RANDOM_LAUNCHES; k++)
        if ((best == RANDOM_LAUNCHES || d->rest[k] > d->rest[best]) && clash(d, i, k)) best = k;
    return best;
}

static void define_lanes(Definition *d) {
    double beside_us = 0;
    for (int i = RANDOM_LAUNCHES; i-- > 0;) {
        int next = longest_behind(d, i);
        d->rest[i] = d->cost[i] + (next < RANDOM_LAUNCHES ? d->rest[next] : 0);
        if (!inf_lane_is_joint(d->in[i])) beside_us += d->cost[i];
    }
    for (int i = 0; i < RANDOM_LAUNCHES; i = longest_behind(d, i)) {
        if (inf_lane_is_joint(d->in[i])) continue;
        d->in[i] = INF_LANE_main;
        beside_us -= d->cost[i];
    }
    for (int i = 0; i < RANDOM_LAUNCHES && beside_us < 4.0; i++)
        if (d->in[i] == INF_LANE_beside) d->in[i] = INF_LANE_main;
}

/* The launches that `now` has to wait for and that none of the others waits for. */
static void define_waits(Definition *d, int now, int *list) {
    int *lane = &d->lane[d->in[now]], found = 0;
    for (int i = now; i-- > 0;) {
        if (d->behind[now][i] || (i + 1 != *lane && !clash(d, i, now))) continue;
        for (int k = 0; k < i; k++) d->behind[now][k] |= d->behind[i][k];
        d->behind[now][i] = true;
        list[found++] = i;
    }
    list[found] = -1;
    *lane = now + 1;
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 12;
}

static void make_random(Definition *d, uint32_t seed, bool with_others) {
    *d = (Definition){0};
    for (int i = 0; i < RANDOM_LAUNCHES; i++) {
        uint32_t which = with_others ? next_random(&seed) % 8 : 8;
        d->cost[i] = 1 + next_random(&seed) % 5;
        d->in[i] = which == 0   ? INF_LANE_replicas
                   : which == 1 ? INF_LANE_messages
                                : INF_LANE_beside;
        for (int k = 0; k < RANDOM_REACHES; k++) {
            uint64_t begin = next_random(&seed) % 400, bytes = 1 + next_random(&seed) % 9;
            if (next_random(&seed) % 20 == 0) bytes = 300;
            if (i == 0 || i == RANDOM_LAUNCHES - 1) begin = 0, bytes = UINT64_MAX;
            bool written = bytes > 300 || next_random(&seed) % 3 == 0;
            d->reach[i][k] = (InfReach){begin, begin + bytes, written};
        }
    }
}

static void test_random_steps(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 200; seed++) {
        InfError e = {0};
        InfOrder o;
        Definition d;
        int list[RANDOM_LAUNCHES + 1];
        make_random(&d, seed, seed % 2 != 0);
        define_lanes(&d);
        int code = inf_order_open(&e, RANDOM_LAUNCHES, RANDOM_LAUNCHES * RANDOM_REACHES, &o);
        assert_int_equal(code, INF_OK);
        for (int i = 0; i < RANDOM_LAUNCHES; i++) {
            for (int k = 0; k < RANDOM_REACHES; k++) {
                const InfReach *r = &d.reach[i][k];
                inf_order_use(&o, r->begin, r->end - r->begin, r->written);
            }
            inf_order_end(&o, d.cost[i], inf_lane_is_joint(d.in[i]) ? d.in[i] : INF_LANE_main);
        }
        inf_order_plan(&o);
        for (int i = 0; i < RANDOM_LAUNCHES; i++) {
            define_waits(&d, i, list);
            expect(&o, list);
        }
        inf_order_close(&o);
    }
}

/* As large a step as one graph takes: a chain, each link with a gradient beside it. */
static void test_large_steps_are_quick(void **state) {
    enum { LINKS = INF_ORDER_MOST / 2 - 1 };
    (void)state;
    InfError e = {0};
    InfOrder o;
    const uint32_t *waits;
    assert_int_equal(inf_order_open(&e, 2 * LINKS, 6 * LINKS, &o), INF_OK);
    for (uint32_t i = 0; i < LINKS; i++)
        for (int beside = 0; beside < 2; beside++) {
            uint64_t at = i % 64 * 100, to = (i + 1) % 64 * 100;
            inf_order_use(&o, at, 100, false);
            inf_order_use(&o, beside ? 100000 + i * 8 : to, beside ? 8 : 100, true);
            inf_order_end(&o, 2, INF_LANE_main);
        }
    inf_order_plan(&o);
    for (uint32_t i = 0; i < 2 * LINKS; i++) assert_true(inf_order_next(&o, &waits) <= 2);
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
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_large_steps_are_quick),
        cmocka_unit_test(test_too_many_stay_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
