/* schedule_test.c - schedules against exact rows, a table of figures and closed forms. */
#include "passes/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const ScheduleCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};

static Table *make(Arena *a, const char *pipeline, int p, int v, int n) {
    ScheduleShape shape = {.pipeline = pipeline, .ranks = p, .vpp = v, .microbatches = n};
    return schedule_make(a, &shape, &unit);
}

static void expect_rows(const char *pipeline, int p, int v, int n, const char *const *rows) {
    Arena a = {0};
    const Table *t = make(&a, pipeline, p, v, n);
    assert_non_null(t);
    for (int r = 0; r < p; r++) assert_string_equal(schedule_row(&a, &t->rank[r]), rows[r]);
    arena_free(&a);
}

static void test_exact_rows(void **state) {
    (void)state;
    expect_rows("1f1b", 2, 1, 4,
                (const char *const[]){"F0_0 F1_0 B0_0 F2_0 B1_0 F3_0 B2_0 B3_0",
                                      "F0_0 B0_0 F1_0 B1_0 F2_0 B2_0 F3_0 B3_0"});
    expect_rows(
        "1f1b", 4, 1, 8,
        (const char *const[]){
            "F0_0 F1_0 F2_0 F3_0 B0_0 F4_0 B1_0 F5_0 B2_0 F6_0 B3_0 F7_0 B4_0 B5_0 B6_0 B7_0",
            "F0_0 F1_0 F2_0 B0_0 F3_0 B1_0 F4_0 B2_0 F5_0 B3_0 F6_0 B4_0 F7_0 B5_0 B6_0 B7_0",
            "F0_0 F1_0 B0_0 F2_0 B1_0 F3_0 B2_0 F4_0 B3_0 F5_0 B4_0 F6_0 B5_0 F7_0 B6_0 B7_0",
            "F0_0 B0_0 F1_0 B1_0 F2_0 B2_0 F3_0 B3_0 F4_0 B4_0 F5_0 B5_0 F6_0 B6_0 F7_0 B7_0"});
    expect_rows(
        "gpipe", 2, 1, 3,
        (const char *const[]){"F0_0 F1_0 F2_0 B0_0 B1_0 B2_0", "F0_0 F1_0 F2_0 B0_0 B1_0 B2_0"});
    expect_rows("1f1b", 1, 1, 2, (const char *const[]){"F0_0 B0_0 F1_0 B1_0"});
    expect_rows("zb-h1", 2, 1, 3,
                (const char *const[]){"F0_0 F1_0 I0_0 W0_0 F2_0 I1_0 W1_0 I2_0 W2_0",
                                      "F0_0 I0_0 F1_0 I1_0 W0_0 F2_0 I2_0 W1_0 W2_0"});
}

static void test_exact_rows_interleaved(void **state) {
    (void)state;
    expect_rows(
        "1f1b", 2, 2, 4,
        (const char *const[]){
            "F0_0 F1_0 F0_1 F1_1 F2_0 B0_1 F3_0 B1_1 F2_1 B0_0 F3_1 B1_0 B2_1 B3_1 B2_0 B3_0",
            "F0_0 F1_0 F0_1 B0_1 F1_1 B1_1 F2_0 B0_0 F3_0 B1_0 F2_1 B2_1 F3_1 B3_1 B2_0 B3_0"});
    expect_rows("1f1b", 4, 2, 8,
                (const char *const[]){
                    "F0_0 F1_0 F2_0 F3_0 F0_1 F1_1 F2_1 F3_1 F4_0 F5_0 F6_0 B0_1 F7_0 B1_1 F4_1 "
                    "B2_1 F5_1 B3_1 F6_1 B0_0 F7_1 B1_0 B2_0 B3_0 B4_1 B5_1 B6_1 B7_1 B4_0 B5_0 "
                    "B6_0 B7_0",
                    "F0_0 F1_0 F2_0 F3_0 F0_1 F1_1 F2_1 F3_1 F4_0 B0_1 F5_0 B1_1 F6_0 B2_1 F7_0 "
                    "B3_1 F4_1 B0_0 F5_1 B1_0 F6_1 B2_0 F7_1 B3_0 B4_1 B5_1 B6_1 B7_1 B4_0 B5_0 "
                    "B6_0 B7_0",
                    "F0_0 F1_0 F2_0 F3_0 F0_1 F1_1 F2_1 B0_1 F3_1 B1_1 F4_0 B2_1 F5_0 B3_1 F6_0 "
                    "B0_0 F7_0 B1_0 F4_1 B2_0 F5_1 B3_0 F6_1 B4_1 F7_1 B5_1 B6_1 B7_1 B4_0 B5_0 "
                    "B6_0 B7_0",
                    "F0_0 F1_0 F2_0 F3_0 F0_1 B0_1 F1_1 B1_1 F2_1 B2_1 F3_1 B3_1 F4_0 B0_0 F5_0 "
                    "B1_0 F6_0 B2_0 F7_0 B3_0 F4_1 B4_1 F5_1 B5_1 F6_1 B6_1 F7_1 B7_1 B4_0 B5_0 "
                    "B6_0 B7_0"});
}

static const struct {
    const char *pipeline;
    int p, v, n;
    double makespan, bubble;
    int peak[4];
} figures[] = {
    {"gpipe", 2, 1, 4, 15, .2000, {4, 4}}, {"gpipe", 4, 1, 8, 33, .2727, {8, 8, 8, 8}},
    {"1f1b", 2, 1, 4, 15, .2000, {2, 1}},  {"1f1b", 4, 1, 8, 33, .2727, {4, 3, 2, 1}},
    {"1f1b", 2, 2, 4, 27, .1111, {5, 3}},  {"1f1b", 4, 2, 8, 57, .1579, {11, 9, 7, 5}},
    {"zb-h1", 2, 1, 4, 13, .0769, {2, 2}}, {"zb-h1", 4, 1, 8, 27, .1111, {4, 4, 4, 4}},
    {"zb-v", 2, 2, 4, 25, .0400, {4, 4}},  {"zb-v", 4, 2, 8, 51, .0588, {8, 8, 8, 8}},
};

static void test_figures(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        Arena a = {0};
        Proof proof;
        const Table *t = make(&a, figures[i].pipeline, figures[i].p, figures[i].v, figures[i].n);
        assert_null(prove_table(&a, t, &unit, false, &proof));
        assert_float_equal(proof.makespan, figures[i].makespan, 0);
        assert_float_equal(proof.bubble, figures[i].bubble, 5e-5);
        for (int r = 0; r < t->ranks; r++) assert_int_equal(proof.peak[r], figures[i].peak[r]);
        arena_free(&a);
    }
}

static int smaller(int a, int b) { return a < b ? a : b; }

typedef struct Expected {
    double makespan, slack; /* slack: of the makespan with messages in a queue */
    int peak;               /* -1: unknown */
} Expected;

static Expected expected(const char *pipeline, int p, int v, int n, int group, int rank) {
    Expected e = {.makespan = (n * v + p - 1) * 3.0, .peak = -1};
    if (strcmp(pipeline, "gpipe") == 0) e.peak = n;
    if (strcmp(pipeline, "1f1b") == 0 && v == 1) e.peak = smaller(n, p - rank);
    if (strcmp(pipeline, "1f1b") == 0 && v > 1) {
        e.peak = smaller(n * v, 2 * (p - 1 - rank) + (v - 1) * group + 1);
        if (n < p || n % group != 0) e.makespan = -1;
    }
    if (strcmp(pipeline, "zb-h1") == 0) {
        e.makespan = n >= p ? 3.0 * n + p - 1 : -1;
        e.peak = smaller(n, p);
    }
    if (strcmp(pipeline, "zb-v") == 0) {
        e.makespan = -1;
        e.slack = 0.014;
        if (n >= 2 * p) e.peak = 2 * p;
    }
    return e;
}

static void expect_closed_form(const char *pipeline, int p, int v, int n) {
    Arena a = {0};
    Proof proof;
    const Table *t = make(&a, pipeline, p, v, n);
    const char *why = prove_table(&a, t, &unit, false, &proof);
    if (why != NULL) fail_msg("%s %d %d %d: %s", pipeline, p, v, n, why);
    for (int r = 0; r < p; r++) {
        Expected e = expected(pipeline, p, v, n, t->group, r);
        if (e.peak >= 0) assert_int_equal(proof.peak[r], e.peak);
        if (e.makespan < 0) continue;
        assert_float_equal(proof.makespan, e.makespan, 0);
        assert_float_equal(proof.bubble, 1 - 3.0 * n * v / e.makespan, 1e-12);
    }
    double slack = expected(pipeline, p, v, n, t->group, 0).slack;
    assert_true(proof.makespan_queued <= proof.makespan * (1 + slack));
    bool split = strncmp(pipeline, "zb", 2) == 0;
    int cuts = split && v == 2 ? 2 * (p - 1) : p > 1 ? p * v - 1 : 0;
    /* tasks, updates, and one message a cut between ranks, microbatch and direction */
    assert_int_equal(proof.nodes, (split ? 3 : 2) * p * v * n + p + 2 * cuts * n);
    arena_free(&a);
}

static void test_closed_forms(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int n = 1; n <= 24; n++) {
            expect_closed_form("gpipe", p, 1, n);
            expect_closed_form("zb-h1", p, 1, n);
            expect_closed_form("zb-v", p, 2, n);
            for (int v = 1; v <= 4; v++) expect_closed_form("1f1b", p, v, n);
        }
}

/* The compute order of 8 ranks, 4 chunks, 12 microbatches in groups of 8 waits for itself. */
static void test_groups(void **state) {
    (void)state;
    Arena a = {0};
    ScheduleShape shape = {
        .pipeline = "1f1b", .ranks = 8, .vpp = 4, .microbatches = 12, .group = 8};
    assert_null(schedule_make(&a, &shape, &unit));
    assert_false(schedule_group_runs(8, 12, 8));
    assert_int_equal(schedule_group(8, 12), 12);
    assert_int_equal(schedule_group(8, 16), 8);
    assert_int_equal(schedule_group(4, 3), 3);
    Proof proof;
    Table *t = schedule_rows(&a, &shape);
    assert_string_equal(t->pipeline, "interleaved");
    t->slots = ARENA_ARRAY(&a, int, t->chunks);
    assert_non_null(prove_table(&a, t, &unit, false, &proof));
    for (int p = 1; p <= 6; p++)
        for (int n = 1; n <= 14; n++)
            for (int group = 1; group <= n; group++) {
                shape = (ScheduleShape){
                    .pipeline = "1f1b", .ranks = p, .vpp = 3, .microbatches = n, .group = group};
                bool runs = schedule_group_runs(p, n, group);
                if (runs) assert_non_null(schedule_make(&a, &shape, &unit));
            }
    arena_free(&a);
}

static void test_costs_move_the_bubble(void **state) {
    (void)state;
    Arena a = {0};
    Proof proof;
    ScheduleCosts slow = {.forward = 5, .backward = 5};
    assert_null(prove_table(&a, make(&a, "1f1b", 4, 1, 8), &slow, false, &proof));
    assert_float_equal(proof.makespan, (8 + 4 - 1) * 10.0, 0);
    /* one chunk twice as slow is the bottleneck: it starts after F0 of rank 0, ends before B7 */
    const TaskCosts plain = {1, 2, 1, 1}, slower = {2, 4, 2, 2};
    const TaskCosts chunks[] = {plain, slower, plain, plain};
    ScheduleCosts uneven = unit;
    uneven.chunk = chunks;
    assert_null(prove_table(&a, make(&a, "1f1b", 4, 1, 8), &uneven, false, &proof));
    assert_true(proof.makespan >= 1 + 8 * 6 + 2 && proof.makespan < (8 + 4 - 1) * 6);
    arena_free(&a);
}

/* With messages that take no time prove_times agrees with the proof; what they cost is added where
 * a rank waits for them: once there and once back for the first microbatch of two ranks. */
static void test_predicted_times(void **state) {
    (void)state;
    Arena a = {0};
    Proof proof;
    Table *t = make(&a, "1f1b", 2, 1, 1);
    assert_null(prove_table(&a, t, &unit, false, &proof));
    prove_times(&a, t, &unit);
    assert_float_equal(t->makespan, proof.makespan, 0);
    assert_float_equal(t->bubble, proof.bubble, 0);
    t->edge[0].cost[0] = 0.5;
    t->edge[0].cost[1] = 0.25;
    ScheduleCosts slow = unit;
    slow.edge = t->edge;
    prove_times(&a, t, &slow);
    assert_float_equal(t->makespan, 6.75, 0);
    assert_float_equal(t->bubble, 1 - 6 / (2 * 6.75), 1e-12);
    const RankTasks *first = &t->rank[0];
    assert_int_equal(first->task[1].kind, TASK_send);
    assert_float_equal(first->task[1].start, 1, 0);
    assert_float_equal(first->task[1].length, 0.5, 0);
    assert_int_equal(first->task[first->ntask - 2].kind, TASK_backward);
    assert_float_equal(first->task[first->ntask - 2].start, 4.75, 0);
    arena_free(&a);
}

/* A skip connection over two cuts is one more message each way. */
static void test_skip_edges(void **state) {
    (void)state;
    Arena a = {0};
    Proof plain, skip;
    const ChunkEdge edges[] = {{0, 1, true, {0}},
                               {1, 2, true, {0}},
                               {2, 3, true, {0}},
                               {0, 3, true, {0}},
                               {1, 3, false, {0}}};
    ScheduleShape shape = {
        .pipeline = "1f1b", .ranks = 4, .vpp = 1, .microbatches = 6, .edge = edges, .nedge = 5};
    Table *t = schedule_make(&a, &shape, &unit);
    assert_null(prove_table(&a, t, &unit, false, &skip));
    assert_null(prove_table(&a, make(&a, "1f1b", 4, 1, 6), &unit, false, &plain));
    assert_int_equal(skip.nodes, plain.nodes + 3 * 6);
    assert_float_equal(skip.makespan, plain.makespan, 0);
    arena_free(&a);
}

static void test_unknown_pipeline(void **state) {
    (void)state;
    Arena a = {0};
    assert_null(make(&a, "zigzag", 2, 1, 4));
    assert_null(make(&a, "gpipe", 2, 2, 4));
    assert_null(make(&a, "zb-v", 2, 1, 4));
    arena_free(&a);
}

/* A rank with two chunks and one microbatch, F0 F1 B1 B0: sums of 0.5 each, at half of B1, at its
 * end, at once behind that although more is complete, and at the end of B0. What is not hidden of
 * them delays the update; what is not hidden of weights that chunk 1, then chunk 0 waits for delays
 * the next step. */
static void test_sums_in_time(void **state) {
    (void)state;
    static const double done[] = {0.5, 0.75, 0, 1}, begin[] = {3, 3.5, 4, 6};
    static const int local[] = {1, 1, 0, 0};
    Arena a = {0};
    Table *t = make(&a, "1f1b", 1, 2, 1);
    Task list[16] = {{.kind = TASK_send}};
    RankTasks *rank = &t->rank[0];
    ScheduleCosts costs = unit;
    int n = 0, number = 0;
    t->replicas = 2;
    for (int i = 0; i < rank->ntask; i++) {
        list[n++] = rank->task[i];
        for (int k = 0; k < 4; k++)
            if (table_last_task(rank, local[k]) == i)
                list[n++] = (Task){.kind = TASK_reduce,
                                   .local = local[k],
                                   .message = number++,
                                   .done = done[k],
                                   .sent = 4};
    }
    *rank = (RankTasks){.task = list, .ntask = n, .nsum = 4};
    costs.link = (LinkCost){.once = 0.25, .rate = 16};
    prove_times(&a, t, &costs);
    for (int i = 0; i < n; i++) {
        if (list[i].kind != TASK_reduce) continue;
        assert_float_equal(list[i].start, begin[list[i].message], 0);
        assert_float_equal(list[i].length, 0.5, 0);
    }
    assert_int_equal(list[n - 1].kind, TASK_update);
    assert_float_equal(list[n - 1].start, 6.5, 0);
    assert_float_equal(t->makespan, 6.5, 0);
    assert_float_equal(t->exposed, 0.5, 0);
    assert_float_equal(t->bubble, 0.5 / 6.5, 1e-12);
    t->sums_last = true; /* behind everything */
    prove_times(&a, t, &costs);
    assert_float_equal(t->makespan, 8, 0);
    t->sums_last = false;
    /* F0 waits for the first gather, F1 is later than the second. */
    for (int k = 0; k < 2; k++)
        list[n++] = (Task){.kind = TASK_gather, .local = k, .message = k, .sent = 4};
    *rank = (RankTasks){.task = list, .ntask = n, .nsum = 4, .ngather = 2};
    prove_times(&a, t, &costs);
    assert_float_equal(list[0].start, 0.5, 0);
    assert_float_equal(list[1].start, 1.5, 0);
    assert_float_equal(t->makespan, 7, 0);
    assert_float_equal(t->exposed, 1, 0);
    assert_float_equal(list[n - 2].start, 7, 0);
    assert_float_equal(list[n - 1].start, 7.5, 0);
    t->whole_steps = true; /* it waits for both */
    prove_times(&a, t, &costs);
    assert_float_equal(list[0].start, 1, 0);
    assert_float_equal(t->makespan, 7.5, 0);
    arena_free(&a);
}

/* A sum behind the last task of each chunk of a rank, all of one length; weights of each behind the
 * update. */
static void add_sums(Arena *a, RankTasks *rank, int vpp) {
    RankTasks old = *rank;
    *rank = (RankTasks){.task = ARENA_ARRAY(a, Task, old.ntask + 2 * vpp)};
    for (int i = 0; i < old.ntask; i++) {
        rank->task[rank->ntask++] = old.task[i];
        if (table_last_task(&old, old.task[i].local) != i) continue;
        rank->task[rank->ntask++] = (Task){.kind = TASK_reduce,
                                           .local = old.task[i].local,
                                           .message = rank->nsum++,
                                           .done = 1,
                                           .sent = 1};
    }
    for (int local = 0; local < vpp; local++)
        rank->task[rank->ntask++] =
            (Task){.kind = TASK_gather, .local = local, .message = rank->ngather++, .sent = 1};
}

/* A large one: 16 ranks, 4 chunks each, 256 microbatches; and two replicas of it: rank 0 waits for
 * its chunk 0's weights at the beginning, and for its sum at the end. */
static void test_large(void **state) {
    (void)state;
    Arena a = {0};
    Proof proof;
    Table *t = make(&a, "1f1b", 16, 4, 256);
    assert_null(prove_table(&a, t, &unit, false, &proof));
    assert_float_equal(proof.makespan, (256 * 4 + 15) * 3.0, 0);
    t->replicas = 2;
    for (int r = 0; r < t->ranks; r++) add_sums(&a, &t->rank[r], t->vpp);
    assert_null(prove_table(&a, t, &unit, false, &proof));
    ScheduleCosts costs = unit;
    costs.link = (LinkCost){.once = 0.5};
    prove_times(&a, t, &costs);
    assert_float_equal(t->exposed, 1, 0);
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_rows),
        cmocka_unit_test(test_exact_rows_interleaved),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_costs_move_the_bubble),
        cmocka_unit_test(test_predicted_times),
        cmocka_unit_test(test_skip_edges),
        cmocka_unit_test(test_unknown_pipeline),
        cmocka_unit_test(test_sums_in_time),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
