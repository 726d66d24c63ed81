/* Random numbers: Philox's published values, and a data order that is a bijection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/permute.h"
#include "runtime/philox.h"
#include "runtime/plan.h"

/* From the known-answer file of Random123 (philox 4x32-10). */
static void test_known_answers(void **state) {
    static const struct {
        InfRandom4 counter;
        uint32_t key[2];
        uint32_t out[4];
    } rows[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        InfRandom4 r = inf_philox(rows[i].counter, rows[i].key[0], rows[i].key[1]);
        assert_memory_equal(r.v, rows[i].out, sizeof r.v);
    }
}

/* A kernel's numbers depend on every part of the moment, and on nothing else. */
static void test_kernel_numbers(void **state) {
    (void)state;
    InfEnv env = {.seed = 1, .step = 2, .microbatch = 3, .threads = 1}, other = env;
    uint32_t a[4], b[4];
    inf_random4(&env, 4, 5, 6, a);
    other.threads = 8;
    inf_random4(&other, 4, 5, 6, b);
    assert_memory_equal(a, b, sizeof a);
    for (int part = 0; part < 6; part++) {
        other = env;
        other.seed += part == 0;
        other.step += part == 1;
        other.microbatch += part == 2;
        inf_random4(&other, 4 + (part == 3), 5 + (part == 4), 6 + (part == 5), b);
        assert_memory_not_equal(a, b, sizeof a);
    }
}

static void test_permutation_is_a_bijection(void **state) {
    static const uint64_t counts[] = {1, 2, 3, 7, 64, 255, 256, 257, 1000, 60000};
    (void)state;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        InfPermutation p = inf_permutation_make(counts[k], 42, k);
        char *seen = calloc(counts[k], 1);
        assert_non_null(seen);
        for (uint64_t i = 0; i < counts[k]; i++) {
            uint64_t to = inf_permutation_at(&p, i);
            assert_true(to < counts[k]);
            assert_false(seen[to]);
            seen[to] = 1;
        }
        free(seen);
    }
}

/* Epochs and seeds give different orders, and none is nearly the identity. */
static void test_orders_differ(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    InfPermutation p = inf_permutation_make(COUNT, 1, 0), next = inf_permutation_make(COUNT, 1, 1);
    InfPermutation seed = inf_permutation_make(COUNT, 2, 0);
    int fixed = 0, same_epoch = 0, same_seed = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t to = inf_permutation_at(&p, i);
        fixed += to == i;
        same_epoch += to == inf_permutation_at(&next, i);
        same_seed += to == inf_permutation_at(&seed, i);
    }
    assert_in_range(fixed, 0, 10);
    assert_in_range(same_epoch, 0, 10);
    assert_in_range(same_seed, 0, 10);
}

static void test_unit_floats(void **state) {
    (void)state;
    assert_true(inf_unit_float(0) == 0.0f);
    assert_true(inf_unit_float(~0u) < 1.0f);
    double sum = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        InfRandom4 r = inf_random_block(123, i);
        for (int k = 0; k < 4; k++) sum += (double)inf_unit_float(r.v[k]);
    }
    assert_true(sum / 40000 > 0.495 && sum / 40000 < 0.505);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_kernel_numbers),
        cmocka_unit_test(test_permutation_is_a_bijection),
        cmocka_unit_test(test_orders_differ),
        cmocka_unit_test(test_unit_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
