/* loop_test.c - index expressions against plain arithmetic. */
#include "codegen/loop.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

enum { AXES = 4 };

/* --- indices --- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int64_t value_of(const LoopKernel *k, LoopIdx index, const int64_t *axis) {
    const LoopIdxInfo *info = loop_idx_info(k, index);
    int64_t sum = info->constant;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        int64_t x = 0;
        switch (t->kind) {
        case LOOP_TERM_axis: x = axis[t->id]; break;
        case LOOP_TERM_div: x = value_of(k, (LoopIdx){t->id}, axis) / t->by; break;
        case LOOP_TERM_mod: x = value_of(k, (LoopIdx){t->id}, axis) % t->by; break;
        case LOOP_TERM_val: break;
        }
        sum += x * t->scale;
    }
    return sum;
}

/* An index and its value at SAMPLES points, by plain arithmetic. */
enum { SAMPLES = 24, STEPS = 30 };

typedef struct Known {
    LoopIdx index;
    int64_t value[SAMPLES];
} Known;

static Known combine(LoopKernel *k, const Known *a, const Known *b, uint64_t *state) {
    Known c = {0};
    uint64_t r = next_random(state);
    int64_t by = 1 + (int64_t)(r >> 8) % 24;
    int kind = (int)(r % 5);
    if (loop_idx_info(k, a->index)->low < 0 && kind >= 3) kind = 0;
    switch (kind) {
    case 0: c.index = loop_idx_add(k, a->index, b->index); break;
    case 1: c.index = loop_idx_scale(k, a->index, by); break;
    case 2: c.index = loop_idx_plus(k, a->index, by); break;
    case 3: c.index = loop_idx_div(k, a->index, by); break;
    default: c.index = loop_idx_mod(k, a->index, by); break;
    }
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t x = a->value[i];
        const int64_t result[] = {x + b->value[i], x * by, x + by, x / by, x % by};
        c.value[i] = result[kind];
    }
    return c;
}

static void random_indices(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 300; round++) {
        Arena arena = {0};
        LoopKernel *k = loop_new(&arena);
        Known known[AXES + STEPS] = {0};
        int64_t axis[SAMPLES][AXES + 1] = {{0}};
        for (int i = 0; i < AXES; i++) {
            int64_t extent = 1 + (int64_t)(next_random(&seed) % 20);
            LoopAxis a = loop_open(k, LOOP_serial, extent, LOOP_NO_BOUND);
            known[i].index = loop_idx_axis(k, a);
            for (int j = 0; j < SAMPLES; j++)
                known[i].value[j] = axis[j][a.id] =
                    (int64_t)(next_random(&seed) % (uint64_t)extent);
        }
        for (int n = AXES; n < AXES + STEPS; n++) {
            uint64_t r = next_random(&seed);
            const Known *a = &known[r % (uint64_t)n], *b = &known[(r >> 20) % (uint64_t)n];
            known[n] = combine(k, a, b, &seed);
            const LoopIdxInfo *info = loop_idx_info(k, known[n].index);
            for (int j = 0; j < SAMPLES; j++) {
                assert_int_equal(value_of(k, known[n].index, axis[j]), known[n].value[j]);
                assert_true(known[n].value[j] >= info->low && known[n].value[j] <= info->high);
            }
            if (info->high > 1000000) known[n] = known[0]; // keep numbers small
        }
        arena_free(&arena);
    }
}

/* Splitting an index into axes and merging them again leaves what it was. */
static void reshape_is_free(void **state) {
    (void)state;
    Arena arena = {0};
    LoopKernel *k = loop_new(&arena);
    LoopIdx i = loop_idx_axis(k, loop_open(k, LOOP_serial, 2304, LOOP_NO_BOUND));
    LoopIdx a = loop_idx_div(k, i, 288), b = loop_idx_mod(k, loop_idx_div(k, i, 12), 24);
    LoopIdx c = loop_idx_mod(k, i, 12);
    LoopIdx merged = loop_idx_add(k, loop_idx_scale(k, a, 288), loop_idx_scale(k, b, 12));
    assert_int_equal(loop_idx_add(k, merged, c).id, i.id);
    LoopIdx j = loop_idx_axis(k, loop_open(k, LOOP_serial, 16, LOOP_NO_BOUND));
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, i, 16), j);
    assert_int_equal(loop_idx_div(k, at, 16).id, i.id);
    assert_int_equal(loop_idx_mod(k, at, 16).id, j.id);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_indices),
                                       cmocka_unit_test(reshape_is_free)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
