/* The loader thread: every batch is the one that was asked for, guessed right or wrong; a slot
 * stays as it is as long as promised; signals go elsewhere; closing waits for the thread alone. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/prefetch.h"

enum { SLOTS = 5, BYTES = 32 };

typedef struct Source {
    atomic_int fills, pause_us;
    atomic_bool blocked; /* the thread has SIGINT blocked */
} Source;

/* A slot holds position, count and key, as often as there is room. */
static void fill(const void *context, const InfBatch *batch, unsigned char *slot) {
    union {
        const void *in;
        Source *out;
    } source = {context};
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    source.out->blocked = sigismember(&now, SIGINT) == 1;
    source.out->fills++;
    if (source.out->pause_us) usleep((useconds_t)source.out->pause_us);
    uint64_t word[4] = {batch->position, batch->count, batch->order.key, batch->order.half_bits};
    memcpy(slot, word, sizeof word);
}

static InfBatch batch_of(uint64_t position, uint64_t key) {
    return (InfBatch){.order = {.count = 100, .key = key, .half_bits = key ? 4 : 0},
                      .position = position,
                      .count = 10};
}

static void assert_holds(const unsigned char *slot, const InfBatch *batch) {
    uint64_t word[4];
    memcpy(word, slot, sizeof word);
    assert_int_equal(word[0], batch->position);
    assert_int_equal(word[1], batch->count);
    assert_int_equal(word[2], batch->order.key);
    assert_int_equal(word[3], batch->order.half_bits);
}

static InfPrefetch *open_source(Source *source, unsigned char *memory) {
    InfError e = {0};
    InfPrefetch *p = NULL;
    InfSlots slots = {memory, BYTES, SLOTS};
    assert_int_equal(inf_prefetch_open(&e, fill, source, slots, &p), INF_OK);
    return p;
}

/* Takes batches whose guesses are right (step 1), wrong, or absent, and looks at all slots that
 * must not have changed since. */
static void take_many(int wrong_every, int none_every, int pause_us) {
    unsigned char memory[SLOTS * BYTES] = {0};
    const unsigned char *taken[SLOTS] = {0};
    InfBatch held[SLOTS];
    Source source = {.pause_us = pause_us};
    InfPrefetch *p = open_source(&source, memory);
    for (int i = 0; i < 200; i++) {
        InfBatch now = batch_of((uint64_t)(i % 10) * 10, (uint64_t)(i / 10));
        InfBatch next = batch_of((uint64_t)((i + 1) % 10) * 10, (uint64_t)((i + 1) / 10));
        if (wrong_every && i % wrong_every == 0) next.order.key += 1000;
        if (none_every && i % none_every == 0) next.count = 0;
        taken[i % SLOTS] = inf_prefetch_take(p, &now, &next);
        held[i % SLOTS] = now;
        for (int k = 0; k < SLOTS - 1 && k <= i; k++)
            assert_holds(taken[(i - k) % SLOTS], &held[(i - k) % SLOTS]);
    }
    inf_prefetch_close(p);
    assert_true(source.blocked);
    if (!wrong_every && !none_every) assert_in_range(source.fills, 200, 201);
}

static void test_batches_are_the_ones_asked_for(void **state) {
    (void)state;
    take_many(0, 0, 0);
    take_many(1, 0, 0);
    take_many(3, 0, 0);
    take_many(0, 2, 0);
    take_many(5, 3, 50);
}

/* Each part of a batch tells it from another. */
static void test_a_guess_is_compared_in_full(void **state) {
    (void)state;
    const InfBatch want = batch_of(20, 3);
    InfBatch guess[5] = {want, want, want, want, want};
    guess[0].position++;
    guess[1].count--;
    guess[2].order.key++;
    guess[3].order.half_bits++;
    guess[4].order.count++;
    for (int i = 0; i < 5; i++) {
        unsigned char memory[SLOTS * BYTES] = {0};
        Source source = {0};
        InfPrefetch *p = open_source(&source, memory);
        inf_prefetch_take(p, &want, &guess[i]);
        assert_holds(inf_prefetch_take(p, &want, &want), &want);
        inf_prefetch_close(p);
        assert_in_range(source.fills, 3, 4);
    }
}

static void test_closing(void **state) {
    (void)state;
    unsigned char memory[SLOTS * BYTES];
    for (int i = 0; i < 50; i++) {
        Source source = {.pause_us = i % 3 * 200};
        InfPrefetch *p = open_source(&source, memory);
        InfBatch batch = batch_of(10, 1);
        if (i % 2) inf_prefetch_take(p, &batch, &batch);
        inf_prefetch_close(p); /* idle, or in the middle of a slot */
    }
    inf_prefetch_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_the_ones_asked_for),
        cmocka_unit_test(test_a_guess_is_compared_in_full),
        cmocka_unit_test(test_closing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
