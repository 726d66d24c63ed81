/* Drawing tokens, and what of a text can be shown before the rest is there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/sample.h"
#include "runtime/text.h"

enum { COUNT = 8, DRAWS = 20000 };

static int64_t sample(InfSampler s, const float *logits, uint64_t place) {
    int32_t order[COUNT];
    return inf_sample(&s, logits, COUNT, order, 0, place);
}

static void greedy_takes_the_first_largest(void **state) {
    (void)state;
    const float logits[COUNT] = {1, 3, 2, 3, -INFINITY, 3, 0, -1};
    assert_int_equal(sample((InfSampler){.temperature = 0}, logits, 0), 1);
    assert_int_equal(sample((InfSampler){.temperature = 1, .top_k = 1}, logits, 5), 1);
}

static void numbers_that_are_not_finite_are_no_text(void **state) {
    (void)state;
    const float bad[][COUNT] = {{0, NAN}, {1, 2, INFINITY}, {[7] = NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int t = 0; t < 2; t++)
            assert_int_equal(sample((InfSampler){.temperature = t}, bad[i], 0), -1);
    float none[COUNT];
    for (int i = 0; i < COUNT; i++) none[i] = -INFINITY;
    assert_int_equal(sample((InfSampler){.temperature = 1}, none, 0), -1);
}

/* How often each token is drawn at DRAWS places. */
static void draw(InfSampler s, const float *logits, double *share) {
    for (int i = 0; i < COUNT; i++) share[i] = 0;
    for (uint64_t place = 0; place < DRAWS; place++) {
        int64_t id = sample(s, logits, place);
        assert_true(id >= 0 && id < COUNT);
        assert_int_equal(sample(s, logits, place), id);
        share[id] += 1.0 / DRAWS;
    }
}

static void shares_are_the_softmax_of_the_chosen(void **state) {
    (void)state;
    const float logits[COUNT] = {0, 1, 1, -2, -INFINITY, 0.5f, 2, 1};
    /* k = 4: the largest, then the first of those that are equal: 6, 1, 2, 7. */
    static const struct {
        double temperature;
        int64_t top_k;
        uint32_t chosen;
    } rows[] = {{1, 0, 0xff}, {0.5, 0, 0xff}, {1, 8, 0xff},        {1, 100, 0xff},
                {1, 4, 0xc6}, {3, 3, 0x46},   {1e-30, 0, 1u << 6}, {1e30, 0, 0xef}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double share[COUNT], sum = 0;
        draw((InfSampler){rows[r].temperature, rows[r].top_k, 7}, logits, share);
        for (int i = 0; i < COUNT; i++)
            if (rows[r].chosen >> i & 1) sum += exp((double)(logits[i] - 2) / rows[r].temperature);
        for (int i = 0; i < COUNT; i++) {
            bool chosen = rows[r].chosen >> i & 1;
            double want = chosen ? exp((double)(logits[i] - 2) / rows[r].temperature) / sum : 0;
            if (want == 0) assert_true(share[i] == 0);
            assert_true(fabs(share[i] - want) < 0.015);
        }
    }
}

static void seeds_places_and_texts_differ(void **state) {
    (void)state;
    const float logits[COUNT] = {0};
    int same = 0;
    for (uint64_t place = 0; place < 1000; place++) {
        int32_t order[COUNT];
        InfSampler a = {.temperature = 1, .seed = 1}, b = {.temperature = 1, .seed = 2};
        same += sample(a, logits, place) == sample(b, logits, place);
        same += sample(a, logits, place) == sample(a, logits, place + 1);
        same += sample(a, logits, place) == inf_sample(&a, logits, COUNT, order, 1, place);
    }
    assert_in_range(same, 3 * 100, 3 * 150); /* 1 of 8 by chance */
}

static void characters_are_shown_whole(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t whole;
    } rows[] = {{"", 0},
                {"a", 1},
                {"a\xc3", 1},
                {"a\xc3\xa4", 3},
                {"\xe2\x82", 0},
                {"\xe2\x82\xac", 3},
                {"x\xf0\x9f\x98", 1},
                {"\xf0\x9f\x98\x80", 4},
                {"\xff", 1},         /* never begins a character */
                {"\xc0", 1},         /* nor this */
                {"\x80\x80\x80", 3}, /* goes on with nothing */
                {"\xc3\x61", 2},
                {"\xf0\x9f\x98\x80\x80", 5}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(inf_text_whole(rows[i].text, strlen(rows[i].text)), rows[i].whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_takes_the_first_largest),
                                       cmocka_unit_test(numbers_that_are_not_finite_are_no_text),
                                       cmocka_unit_test(shares_are_the_softmax_of_the_chosen),
                                       cmocka_unit_test(seeds_places_and_texts_differ),
                                       cmocka_unit_test(characters_are_shown_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
