/* prove_test.c - the proof of schedules against broken tables, and imported ones. */
#include "passes/schedule.h"

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

static void expect_word(const char *why, const char *word) {
    assert_non_null(why);
    if (strstr(why, word) == NULL) fail_msg("'%s' does not say '%s'", why, word);
}

/* ---- compute tasks ------------------------------------------------------------------------ */

typedef void Breaker(Table *t);

/* Breaks a table of compute tasks of two ranks; messages follow where that is still possible. */
static void expect_tasks_refused(Breaker *breaker, const char *word) {
    Arena a = {0};
    Proof proof;
    ScheduleShape shape = {.pipeline = "1f1b", .ranks = 2, .vpp = 1, .microbatches = 4};
    Table *t = schedule_rows(&a, &shape);
    breaker(t);
    expect_word(prove_tasks(&a, t, &unit, false, &proof), word);
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
static void break_lost(Table *t) { t->rank[0].task[7].kind = TASK_input; }
static void break_twice(Table *t) { t->rank[0].task[1] = t->rank[0].task[0]; }
static void break_first(Table *t) { t->rank[1].task[1].first = false; }
static void break_update(Table *t) { t->rank[1].ntask--; }
static void break_descending(Table *t) { swap_tasks(t, 0, 6, 7); }
static void break_microbatch(Table *t) { t->rank[0].task[3].microbatch = 4; }
static void break_home(Table *t) { t->rank[0].task[3].chunk = 1; }
static void break_edge(Table *t) { t->edge[0].to = 0; }

static void test_broken_tasks(void **state) {
    (void)state;
    expect_tasks_refused(break_order, "wait for each other");
    expect_tasks_refused(break_order, "F0 of chunk 1 on rank 1 waits for B0 of chunk 1 on rank 1");
    expect_tasks_refused(break_deadlock, "wait for each other");
    expect_tasks_refused(break_lost, "no weight gradient");
    expect_tasks_refused(break_twice, "twice");
    expect_tasks_refused(break_first, "adds to nothing");
    expect_tasks_refused(break_update, "update");
    expect_tasks_refused(break_descending, "comes before");
    expect_tasks_refused(break_microbatch, "microbatch 4");
    expect_tasks_refused(break_home, "on two ranks");
    expect_tasks_refused(break_edge, "hands over");
}

/* ---- messages ----------------------------------------------------------------------------- */

static void expect_refused(int p, int v, int n, Breaker *breaker, const char *word) {
    Arena a = {0};
    Proof proof;
    Table *t = make(&a, "1f1b", p, v, n);
    assert_null(prove_table(&a, t, &unit, false, &proof));
    breaker(t);
    expect_word(prove_table(&a, t, &unit, false, &proof), word);
    arena_free(&a);
}

/* The place of the k-th task of a kind in a rank's list. */
static int find(const Table *t, int rank, TaskKind kind, int k) {
    for (int i = 0; i < t->rank[rank].ntask; i++)
        if (t->rank[rank].task[i].kind == kind && k-- == 0) return i;
    return -1;
}

static void move_task(Table *t, int rank, int from, int to) {
    for (; from < to; from++) swap_tasks(t, rank, from, from + 1);
    for (; from > to; from--) swap_tasks(t, rank, from, from - 1);
}

static void break_early_send(Table *t) { move_task(t, 0, find(t, 0, TASK_send, 0), 0); }
static void break_late_recv(Table *t) {
    move_task(t, 1, find(t, 1, TASK_recv, 0), find(t, 1, TASK_forward, 0));
}
static void break_unsent(Table *t) {
    int at = find(t, 0, TASK_send, 1);
    t->rank[0].task[at].kind = TASK_recv;
}
static void break_message_twice(Table *t) { t->message[1] = t->message[0]; }
static void break_no_message(Table *t) {
    t->rank[0].task[find(t, 0, TASK_send, 2)].message = t->nmessage;
}
static void break_wrong_rank(Table *t) { t->message[0].to_rank = 0; }
static void break_handover(Table *t) { t->message[0].from = 1; }
static void break_activation_slot(Table *t) {
    for (int i = 0; i < t->rank[0].ntask; i++) t->rank[0].task[i].slot = 0;
}
static void break_slot_range(Table *t) { t->rank[0].task[0].slot = t->slots[0]; }

/* Two activations between the same ranks, received in the other order. */
static void break_fifo(Table *t) {
    int first = find(t, 1, TASK_recv, 0), second = find(t, 1, TASK_recv, 1);
    int forward = find(t, 1, TASK_forward, 0);
    move_task(t, 1, second, first);
    move_task(t, 1, first + 1, forward > first ? first + 1 : first);
}

static void test_broken_messages(void **state) {
    (void)state;
    expect_refused(2, 1, 4, break_early_send, "before it is made");
    expect_refused(2, 1, 4, break_late_recv, "after it is used");
    expect_refused(2, 1, 4, break_unsent, "receives");
    expect_refused(2, 1, 4, break_message_twice, "twice");
    expect_refused(2, 1, 4, break_no_message, "posts message");
    expect_refused(2, 1, 4, break_wrong_rank, "goes from rank 0 to rank 0");
    expect_refused(2, 1, 4, break_handover, "handed over by nothing");
    expect_refused(2, 1, 4, break_activation_slot, "slot 0");
    expect_refused(2, 1, 4, break_slot_range, "no slot");
    expect_refused(2, 2, 4, break_fifo, "when rank 0 sends");
}

/* Received slots: a message may not lie where one lies that is still to be used. */
static void test_receive_slots(void **state) {
    (void)state;
    Arena a = {0};
    Proof proof;
    Table *t = make(&a, "1f1b", 4, 2, 8);
    assert_null(prove_table(&a, t, &unit, false, &proof));
    int most = 0;
    for (int i = 0; i < t->nmessage; i++) {
        if (t->message[i].slot > most) most = t->message[i].slot;
    }
    assert_true(most > 0);
    for (int i = 0; i < t->nmessage; i++) t->message[i].slot = 0;
    expect_word(prove_table(&a, t, &unit, false, &proof), "received over");
    arena_free(&a);
}

/* Receive just before use, send right after making: what everybody writes first, and what stops
 * for ever when both ends must meet. */
static void place_naively(Arena *a, Table *t) {
    for (int r = 0; r < t->ranks; r++) {
        VEC(Task) list = {0};
        RankTasks old = t->rank[r];
        for (int i = 0; i < old.ntask; i++) {
            const Task *task = &old.task[i];
            if (task->kind == TASK_send || task->kind == TASK_recv) continue;
            bool forward = task->kind == TASK_forward;
            for (int k = 0; k < old.ntask && task->kind != TASK_update; k++) {
                const Message *m = &t->message[old.task[k].message];
                bool fits = old.task[k].kind == TASK_recv && m->to == task->chunk &&
                            m->microbatch == task->microbatch &&
                            (m->kind == MESSAGE_activation) == forward;
                if (fits) vec_push(a, &list, old.task[k]);
            }
            vec_push(a, &list, *task);
            for (int k = 0; k < old.ntask && task->kind != TASK_update; k++) {
                const Message *m = &t->message[old.task[k].message];
                bool fits = old.task[k].kind == TASK_send && m->from == task->chunk &&
                            m->microbatch == task->microbatch &&
                            (m->kind == MESSAGE_activation) == forward;
                if (fits) vec_push(a, &list, old.task[k]);
            }
        }
        t->rank[r] = (RankTasks){.task = list.data, .ntask = (int)list.n};
    }
}

static void test_naive_placement_waits_for_ever(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) {
        Arena a = {0};
        Proof proof;
        Table *t = make(&a, "1f1b", p, 1, 2 * p);
        place_naively(&a, t);
        const char *why = prove_table(&a, t, &unit, false, &proof);
        expect_word(why, "wait for each other");
        expect_word(why, "the activation of microbatch");
        expect_word(why, "waits for the gradient of microbatch");
        arena_free(&a);
    }
}

/* ---- sums of replicas ----------------------------------------------------------------------- */

static void insert_task(Arena *a, Table *t, int rank, int at, Task task) {
    RankTasks *r = &t->rank[rank];
    Task *list = ARENA_ARRAY(a, Task, r->ntask + 1);
    for (int i = 0; i <= r->ntask; i++)
        list[i] = i < at ? r->task[i] : i == at ? task : r->task[i - 1];
    r->task = list;
    r->ntask++;
}

/* Two replicas of two ranks with two chunks each: a bucket in the middle and one at the end of each
 * chunk, whose weights are gathered. */
static Table *make_sums(Arena *a) {
    Table *t = make(a, "1f1b", 2, 2, 4);
    t->replicas = 2;
    for (int r = 0; r < 2; r++) {
        for (int local = 1; local >= 0; local--)
            for (int k = 0; k < 2; k++) {
                Task sum = {.kind = TASK_reduce,
                            .chunk = -1,
                            .local = local,
                            .microbatch = -1,
                            .message = t->rank[r].nsum++,
                            .done = 0.5 + 0.5 * k,
                            .sent = 1};
                insert_task(a, t, r, table_last_task(&t->rank[r], local) + 1 + k, sum);
            }
        for (int local = 0; local < 2; local++) {
            Task gather = {.kind = TASK_gather,
                           .chunk = -1,
                           .local = local,
                           .microbatch = -1,
                           .message = t->rank[r].ngather++,
                           .sent = 1};
            insert_task(a, t, r, t->rank[r].ntask, gather);
        }
    }
    return t;
}

static void break_early_sum(Table *t) {
    int last = table_last_task(&t->rank[1], 0);
    move_task(t, 1, find(t, 1, TASK_reduce, 2), last);
}
static void break_late_sum(Table *t) {
    move_task(t, 0, find(t, 0, TASK_reduce, 3), find(t, 0, TASK_update, 0));
}
static void break_sums_order(Table *t) {
    int first = find(t, 0, TASK_reduce, 0);
    swap_tasks(t, 0, first, first + 1);
}
static void break_chunks_order(Table *t) {
    move_task(t, 0, find(t, 0, TASK_reduce, 0), find(t, 0, TASK_update, 0) - 1);
}
static void break_sum_of(Table *t) { t->rank[0].task[find(t, 0, TASK_reduce, 0)].local = 0; }
static void break_sum_of_none(Table *t) { t->rank[0].task[find(t, 0, TASK_reduce, 0)].local = 2; }
static void break_sum_twice(Table *t) { t->rank[1].task[find(t, 1, TASK_reduce, 1)].message = 0; }
static void break_sum_unknown(Table *t) { t->rank[1].task[find(t, 1, TASK_reduce, 1)].message = 4; }
static void break_sum_lost(Table *t) { t->rank[1].nsum = 5; }
static void break_early_gather(Table *t) {
    move_task(t, 0, find(t, 0, TASK_update, 0), find(t, 0, TASK_gather, 0));
}
static void break_gather_twice(Table *t) {
    t->rank[0].task[find(t, 0, TASK_gather, 1)].message = 0;
}
static void break_gather_lost(Table *t) { t->rank[0].ntask--; }
static void break_gather_of(Table *t) { t->rank[0].task[find(t, 0, TASK_gather, 1)].local = 2; }
static void break_update_lost(Table *t) {
    t->rank[0].task[find(t, 0, TASK_update, 0)].kind = TASK_gather;
}

static void test_broken_sums(void **state) {
    (void)state;
    static const struct {
        Breaker *breaker;
        const char *word;
    } broken[] = {
        {break_early_sum, "bucket 2 begins before chunk 0 completes it"},
        {break_late_sum, "bucket 3 begins behind the update"},
        {break_sums_order, "stands behind one that begins later"},
        {break_chunks_order, "stands behind one that begins later"},
        {break_sum_of, "bucket 0 begins before chunk 0 completes it"},
        {break_sum_of_none, "before chunk 2 completes it"},
        {break_sum_twice, "bucket 0 goes to the replicas twice"},
        {break_sum_unknown, "bucket 4 of 4"},
        {break_sum_lost, "never adds up bucket 4"},
        {break_early_gather, "part 0 of the weights is gathered before the update"},
        {break_gather_twice, "part 0 goes to the replicas twice"},
        {break_gather_lost, "never gathers part 1"},
        {break_gather_of, "for chunk 2"},
        {break_update_lost, "update"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        Arena a = {0};
        Proof proof;
        Table *t = make_sums(&a);
        const char *why = prove_table(&a, t, &unit, false, &proof);
        if (why != NULL) fail_msg("%s", why);
        broken[i].breaker(t);
        expect_word(prove_table(&a, t, &unit, false, &proof), broken[i].word);
        arena_free(&a);
    }
}

/* A rank's sums are one chain between the tasks that complete them and the update, its gathers go
 * on with that behind it: a node each, and two edges of a sum that is not the first, or three. */
static void test_sums_are_edges(void **state) {
    (void)state;
    Arena a = {0};
    Proof with, without;
    Table *t = make_sums(&a), *plain = make(&a, "1f1b", 2, 2, 4);
    assert_null(prove_table(&a, t, &unit, false, &with));
    plain->replicas = 2;
    assert_null(prove_table(&a, plain, &unit, false, &without));
    assert_int_equal(with.nodes - without.nodes, 2 * (4 + 2));
    assert_int_equal(with.edges - without.edges, 2 * (4 * 3 - 1 + 2 * 2));
    assert_float_equal(with.makespan, without.makespan, 0);
    t->replicas = 1; /* nobody waits for a sum of one */
    assert_null(prove_table(&a, t, &unit, false, &with));
    assert_int_equal(with.nodes, without.nodes);
    assert_int_equal(with.edges, without.edges);
    arena_free(&a);
}

/* ---- import ------------------------------------------------------------------------------- */

static void expect_import(const char *text, int p, int v, int n, bool any, const char *word) {
    Arena a = {0};
    Proof proof;
    ScheduleShape shape = {.pipeline = "1f1b", .ranks = p, .vpp = v, .microbatches = n};
    const char *why = NULL;
    Table *t = schedule_import(&a, text, strlen(text), &shape, &why);
    if (t != NULL) why = prove_tasks(&a, t, &unit, any, &proof);
    if (t != NULL && why == NULL) {
        assert_true(schedule_complete(&a, t, &unit));
        why = prove_table(&a, t, &unit, any, &proof);
    }
    if (word != NULL) expect_word(why, word);
    if (word == NULL && why != NULL) fail_msg("%s", why);
    arena_free(&a);
}

static void test_import(void **state) {
    (void)state;
    expect_import("0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2, 1, 2, false, NULL);
    expect_import("0F0, 0F1,,0B0 ,0B1\r\n,1F0,1B0,1F1,1B1", 2, 1, 2, false, NULL);
    expect_import("0F0,3F0,0F1,3F1,3I0,3W0,0I0,0W0,3B1,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n", 2,
                  2, 2, false, NULL);
    expect_import("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", 2, 1, 2, true, NULL);
    expect_import("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", 2, 1, 2, false, "comes before");
    expect_import("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 2, 1, 2, false, "wait for each other");
    expect_import("0F0,0F1,0B0,0B1\n", 2, 1, 2, false, "1 rows, pp is 2");
    expect_import("0F0\n1F0\n0B0\n", 2, 1, 1, false, "more than pp = 2");
    expect_import("0F0,0B0\n0F0,1B0\n", 2, 1, 1, false, "row 2, cell 1: stage 0 is also on rank 0");
    expect_import("0F0,0B0\n2F0,1B0\n", 2, 1, 1, false, "row 2, cell 1: '2' is not below 2");
    expect_import("0F0,0B0\n1F0,1B1\n", 2, 1, 1, false, "not below 1");
    expect_import("0F0,0B0\n1F0,1X0\n", 2, 1, 1, false, "followed by F, B, I or W");
    expect_import("0F0,0B0\n1F0,1B0x\n", 2, 1, 1, false, "'x' after the microbatch");
    expect_import("0F0,0B0\n1F0,B0\n", 2, 1, 1, false, "a cell is");
    expect_import("0F0,0B0\n1F0,1B\n", 2, 1, 1, false, "a cell is");
    expect_import("0F0,0B0,1F0,1B0\n2F0,2B0\n", 2, 2, 1, false, "no row has stage 3");
    expect_import("0F0,0B0,1F0,1B0,2F0\n3F0,3B0\n", 2, 2, 1, false, "row 1 has 3 stages");
    expect_import("0F0,0B0\n1F0,1I0\n", 2, 1, 1, false, "no weight gradient");
    expect_import("", 2, 1, 1, false, "0 rows");
    expect_import("99999999999999999999F0\n", 1, 1, 1, false, "not below");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_tasks),  cmocka_unit_test(test_broken_messages),
        cmocka_unit_test(test_receive_slots), cmocka_unit_test(test_naive_placement_waits_for_ever),
        cmocka_unit_test(test_broken_sums),   cmocka_unit_test(test_sums_are_edges),
        cmocka_unit_test(test_import),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
