/* ordered_test.c - the sum over microbatches is one tree, however many replicas share it, and every
 * buffer holds one thing at a time. */
#include "ir/ordered.h"
#include "passes/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const ScheduleCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};

/* The sum of leaves [first, first + (1 << level)) in words: "((0+1)+2)". */
static const char *meant(Arena *a, int64_t first, int level, int64_t leaves) {
    if (level == 0) return arena_printf(a, "%lld", (long long)first);
    int64_t half = (int64_t)1 << (level - 1);
    const char *left = meant(a, first, level - 1, leaves);
    if (first + half >= leaves) return left;
    return arena_printf(a, "(%s+%s)", left, meant(a, first + half, level - 1, leaves));
}

static const char *meant_whole(Arena *a, int64_t leaves) {
    int level = 0;
    while ((int64_t)1 << level < leaves) level++;
    return meant(a, 0, level, leaves);
}

enum { BUFFERS = 64 };

/* What the buffers of one chunk on one replica hold after a step. */
static void replay(Arena *a, const Table *t, const Ordered *o, int chunk, int replica,
                   const char **buffer) {
    const RankTasks *rank = &t->rank[t->home[chunk]];
    for (int i = 0; i < BUFFERS; i++) buffer[i] = NULL;
    for (int i = 0; i < rank->ntask; i++) {
        const Task *task = &rank->task[i];
        if (task->chunk != chunk || task->kind >= TASK_update || task->kind == TASK_forward)
            continue;
        const OrderedLeaf *leaf = ordered_leaf(o, chunk, replica, task->microbatch);
        assert_in_range(leaf->buffer, 0, o->buffers[t->home[chunk]] - 1);
        if (task->kind != TASK_weight) {
            assert_null(buffer[leaf->buffer]);
            buffer[leaf->buffer] =
                arena_printf(a, "%d", replica * o->microbatches + task->microbatch);
        }
        if (task->kind == TASK_input) continue;
        for (int k = leaf->first; k < leaf->first + leaf->nadd; k++) {
            const OrderedAdd *add = &o->add[k];
            assert_non_null(buffer[add->into]);
            assert_non_null(buffer[add->from]);
            buffer[add->into] = arena_printf(a, "(%s+%s)", buffer[add->into], buffer[add->from]);
            buffer[add->from] = NULL;
        }
    }
}

/* All replicas' parts of a chunk as the whole sum. */
static const char *whole_of(Arena *a, const Table *t, const Ordered *o, int chunk) {
    const char *buffer[BUFFERS], *stack[4 * BUFFERS];
    int depth = 0, replica = -1, number = 0;
    for (int i = 0; i < o->npart; i++) {
        const OrderedPart *part = &o->part[i];
        if (part->replica != replica) {
            replica = part->replica, number = 0;
            replay(a, t, o, chunk, replica, buffer);
        }
        int kept = ordered_kept(o, chunk, replica, number++);
        assert_non_null(buffer[kept]);
        stack[depth++] = buffer[kept];
        for (int k = 0; k < part->joins; k++, depth--)
            stack[depth - 2] = arena_printf(a, "(%s+%s)", stack[depth - 2], stack[depth - 1]);
    }
    assert_int_equal(depth, 1);
    return stack[0];
}

static void check(const char *pipeline, int p, int v, int n, int replicas) {
    Arena a = {0};
    ScheduleShape shape = {.pipeline = pipeline, .ranks = p, .vpp = v, .microbatches = n};
    const Table *t = schedule_make(&a, &shape, &unit);
    assert_non_null(t);
    const Ordered *o = ordered_make(&a, t, replicas);
    for (int c = 0; c < t->chunks; c++)
        assert_string_equal(whole_of(&a, t, o, c), meant_whole(&a, (int64_t)replicas * n));
    assert_int_equal(ordered_kept(o, 0, 0, 0), 0);
    arena_free(&a);
}

static void test_one_tree(void **state) {
    (void)state;
    for (int replicas = 1; replicas <= 5; replicas++)
        for (int n = 1; n <= 9; n++) {
            check("1f1b", 1, 1, n, replicas);
            check("1f1b", 2, 2, n, replicas);
            check("gpipe", 4, 1, n, replicas);
            check("zb-h1", 3, 1, n, replicas);
            check("zb-v", 2, 2, n, replicas);
        }
}

/* Memory grows with the logarithm of the microbatches. */
static void test_few_buffers(void **state) {
    (void)state;
    Arena a = {0};
    ScheduleShape shape = {.pipeline = "1f1b", .ranks = 1, .vpp = 1, .microbatches = 64};
    const Table *t = schedule_make(&a, &shape, &unit);
    assert_int_equal(ordered_make(&a, t, 1)->buffers[0], 7);
    assert_in_range(ordered_make(&a, t, 3)->buffers[0], 7, 14);
    assert_int_equal(ordered_make(&a, t, 3)->npart, 3); /* 64 leaves each: whole nodes */
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_tree),
                                       cmocka_unit_test(test_few_buffers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
