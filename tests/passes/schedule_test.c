/* schedule_test.c - schedules against exact rows and closed forms, and the proof against broken
 * tables. */
#include "passes/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const ProveCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};

static void expect_rows(const char *pipeline, int p, int n, const char *const *rows) {
    Arena a = {0};
    const Table *t = schedule_make(&a, pipeline, p, n);
    assert_non_null(t);
    for (int r = 0; r < p; r++) assert_string_equal(schedule_row(&a, &t->rank[r]), rows[r]);
    arena_free(&a);
}

static void test_exact_rows(void **state) {
    (void)state;
    expect_rows("1f1b", 2, 4,
                (const char *const[]){"F0_0 F1_0 B0_0 F2_0 B1_0 F3_0 B2_0 B3_0",
                                      "F0_0 B0_0 F1_0 B1_0 F2_0 B2_0 F3_0 B3_0"});
    expect_rows(
        "1f1b", 4, 8,
        (const char *const[]){
            "F0_0 F1_0 F2_0 F3_0 B0_0 F4_0 B1_0 F5_0 B2_0 F6_0 B3_0 F7_0 B4_0 B5_0 B6_0 B7_0",
            "F0_0 F1_0 F2_0 B0_0 F3_0 B1_0 F4_0 B2_0 F5_0 B3_0 F6_0 B4_0 F7_0 B5_0 B6_0 B7_0",
            "F0_0 F1_0 B0_0 F2_0 B1_0 F3_0 B2_0 F4_0 B3_0 F5_0 B4_0 F6_0 B5_0 F7_0 B6_0 B7_0",
            "F0_0 B0_0 F1_0 B1_0 F2_0 B2_0 F3_0 B3_0 F4_0 B4_0 F5_0 B5_0 F6_0 B6_0 F7_0 B7_0"});
    expect_rows(
        "gpipe", 2, 3,
        (const char *const[]){"F0_0 F1_0 F2_0 B0_0 B1_0 B2_0", "F0_0 F1_0 F2_0 B0_0 B1_0 B2_0"});
    expect_rows("1f1b", 1, 2, (const char *const[]){"F0_0 B0_0 F1_0 B1_0"});
}

static void expect_closed_form(const char *pipeline, int p, int n) {
    Arena a = {0};
    Proof proof;
    const Table *t = schedule_make(&a, pipeline, p, n);
    assert_null(prove_table(&a, t, &unit, &proof));
    assert_float_equal(proof.makespan, (n + p - 1) * 3.0, 0);
    assert_float_equal(proof.bubble, (p - 1.0) / (n + p - 1), 1e-12);
    for (int r = 0; r < p; r++) {
        int peak = strcmp(pipeline, "1f1b") == 0 && p - r < n ? p - r : n;
        assert_int_equal(proof.peak[r], peak);
    }
    /* tasks, updates, and one message a cut, microbatch and direction */
    assert_int_equal(proof.nodes, 2 * p * n + p + 2 * (p - 1) * n);
    /* program order, forward to backward, and two a message */
    assert_int_equal(proof.edges, p * 2 * n + p * n + 4 * (p - 1) * n);
    arena_free(&a);
}

static void test_closed_forms(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int n = 1; n <= 24; n++) {
            expect_closed_form("1f1b", p, n);
            expect_closed_form("gpipe", p, n);
        }
}

static void test_costs_move_the_bubble(void **state) {
    (void)state;
    Arena a = {0};
    Proof proof;
    ProveCosts slow = {.forward = 5, .backward = 5};
    assert_null(prove_table(&a, schedule_make(&a, "1f1b", 4, 8), &slow, &proof));
    assert_float_equal(proof.makespan, (8 + 4 - 1) * 10.0, 0);
    arena_free(&a);
}

static void test_unknown_pipeline(void **state) {
    (void)state;
    Arena a = {0};
    assert_null(schedule_make(&a, "zigzag", 2, 4));
    arena_free(&a);
}

typedef void Breaker(Table *t);

static void expect_refused(Breaker *breaker, const char *word) {
    Arena a = {0};
    Proof proof;
    Table *t = schedule_make(&a, "1f1b", 2, 4);
    breaker(t);
    const char *why = prove_table(&a, t, &unit, &proof);
    assert_non_null(why);
    if (strstr(why, word) == NULL) fail_msg("'%s' does not say '%s'", why, word);
    arena_free(&a);
}

static void swap_tasks(Table *t, int rank, int i, int k) {
    Task kept = t->rank[rank].task[i];
    t->rank[rank].task[i] = t->rank[rank].task[k];
    t->rank[rank].task[k] = kept;
}

/* Rank 1's first backward before its first forward; rank 0 waits for it. */
static void break_order(Table *t) { swap_tasks(t, 1, 0, 1); }
/* Both ranks in an order that each could follow alone, but not together. */
static void break_deadlock(Table *t) {
    swap_tasks(t, 0, 1, 2); /* r0: F0 B0 F1 */
    swap_tasks(t, 1, 1, 2); /* r1: F0 F1 B0 */
}
static void break_lost(Table *t) { t->rank[0].task[2].kind = TASK_input; }
static void break_twice(Table *t) { t->rank[0].task[1] = t->rank[0].task[0]; }
static void break_first(Table *t) { t->rank[1].task[1].first = false; }
static void break_update(Table *t) { t->rank[1].ntask--; }
static void break_descending(Table *t) { swap_tasks(t, 0, 6, 7); }
static void break_microbatch(Table *t) { t->rank[0].task[3].microbatch = 4; }

static void test_broken_tables(void **state) {
    (void)state;
    expect_refused(break_order, "wait for each other");
    expect_refused(break_deadlock, "wait for each other");
    expect_refused(break_lost, "no weight gradient");
    expect_refused(break_twice, "twice");
    expect_refused(break_first, "adds to nothing");
    expect_refused(break_update, "update");
    expect_refused(break_descending, "comes before");
    expect_refused(break_microbatch, "microbatch 4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_rows),
        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_costs_move_the_bubble),
        cmocka_unit_test(test_unknown_pipeline),
        cmocka_unit_test(test_broken_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
