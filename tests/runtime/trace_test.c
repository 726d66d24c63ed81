/* trace_test.c - events of two ranks in one file, through a transport that is a queue; costs of
 * layers by the scopes of launches. */
#include "runtime/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/costs.h"
#include "runtime/sum_times.h"
#include "runtime/transport.h"
#include "tests/runtime/toy.h"

/* --- a transport: what was sent is received in order, by whoever asks --- */

enum { QUEUE = 8 };

static struct {
    void *at[QUEUE];
    uint64_t bytes[QUEUE];
    int sent, received;
    bool same_machine;
} queue;

static InfCode queue_send(InfError *e, int to, int tag, const void *at, uint64_t bytes,
                          InfRequest *out) {
    (void)e, (void)to, (void)tag, (void)out;
    assert_true(queue.sent < QUEUE);
    queue.at[queue.sent] = malloc(bytes + 1);
    memcpy(queue.at[queue.sent], at, bytes);
    queue.bytes[queue.sent++] = bytes;
    return INF_OK;
}

static InfCode queue_recv(InfError *e, int from, int tag, void *at, uint64_t bytes,
                          InfRequest *out) {
    (void)e, (void)from, (void)tag, (void)out;
    assert_true(queue.received < queue.sent);
    assert_int_equal(queue.bytes[queue.received], bytes);
    memcpy(at, queue.at[queue.received], bytes);
    free(queue.at[queue.received++]);
    return INF_OK;
}

static InfCode queue_wait(InfError *e, InfRequest *r) {
    (void)e, (void)r;
    return INF_OK;
}

/* Rank 0's moment is this one's, or one of another machine. */
static InfCode queue_gather(InfError *e, const void *mine, uint64_t bytes, void *all) {
    (void)e;
    memcpy(all, mine, bytes);
    if (!queue.same_machine) memset(all, 0, bytes);
    return INF_OK;
}

static const InfTransport transport = {
    .send = queue_send, .recv = queue_recv, .wait = queue_wait, .gather = queue_gather};

/* --- a table of two ranks --- */

static const PlanMessage messages[] = {
    {.to = 1, .to_rank = 1},
    {.gradient = 1, .from = 1, .from_rank = 1},
};
static const PlanTask tasks[] = {
    {.kind = PTASK_forward, .message = -1, .length = 1},
    {.kind = PTASK_send, .message = 0, .start = 1, .length = 0.5},
    {.kind = PTASK_recv, .message = 1, .start = 5.5, .length = 0.5},
    {.kind = PTASK_backward, .message = 1, .start = 6, .length = 4},
    {.kind = PTASK_update, .microbatch = -1, .start = 10},
    {.kind = PTASK_recv, .chunk = 1, .message = 0, .start = 1, .length = 0.5},
    {.kind = PTASK_forward, .chunk = 1, .start = 1.5, .length = 2},
    {.kind = PTASK_backward, .chunk = 1, .message = -1, .start = 3.5, .length = 2},
    {.kind = PTASK_send, .chunk = 1, .message = 1, .start = 5.5, .length = 0.5},
    {.kind = PTASK_update, .microbatch = -1, .start = 5.5},
};
static const PlanRank ranks[] = {{0, 5}, {5, 5}};
static const PlanProgram program = {.name = "train", .microbatches = 1, .rank = ranks};

static Plan plan_of(int rank) {
    return (Plan){.rank = rank,
                  .ranks = 2,
                  .pp = 2,
                  .vpp = 1,
                  .transport = &transport,
                  .task = tasks,
                  .message = messages,
                  .nmessage = 2,
                  .program = &program,
                  .nprogram = 1,
                  .makespan = 10};
}

static void write_task(InfTrace *t, const char *name, double at_ms, double ms) {
    InfEvent event = {.rank = t->plan->rank, .name = name, .category = "test", .at_ms = at_ms};
    InfJson j;
    event.ms = ms;
    inf_trace_begin(t, &event, &j);
    inf_json_put_text(&j, "note", "\"quoted\"");
    inf_trace_finish(&j);
}

/* The event of a rank and track with this name; NULL when there is none. */
static json_t *find(json_t *events, int rank, int track, const char *name) {
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        if (json_integer_value(json_object_get(event, "pid")) == rank &&
            json_integer_value(json_object_get(event, "tid")) == track &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
            return event;
    }
    return NULL;
}

static void expect_time(json_t *events, int rank, int track, const char *name, double at_ms,
                        double ms) {
    json_t *event = find(events, rank, track, name);
    if (event == NULL) fail_msg("rank %d has no %s on track %d", rank, name, track);
    assert_float_equal(json_number_value(json_object_get(event, "ts")), at_ms * 1e3, 1e-6);
    assert_float_equal(json_number_value(json_object_get(event, "dur")), ms * 1e3, 1e-6);
}

/* Rank 1 writes and sends, then rank 0 writes and collects. */
static json_t *trace_two(const char *path, bool rank_1_writes) {
    InfError e = {0};
    const Plan plan[] = {plan_of(0), plan_of(1)};
    InfTrace t;
    queue.sent = queue.received = 0;
    assert_int_equal(inf_trace_open(&e, &plan[1], 0, path, &t), INF_OK);
    if (rank_1_writes) write_task(&t, "F0", 7, 3);
    if (rank_1_writes) inf_trace_arrow(&t, true, 3, 0, 7);
    inf_trace_predict(&t, 3, 5, 20); /* is rank 0's to do */
    assert_int_equal(inf_trace_end(&e, &t), INF_OK);
    inf_trace_close(&t);
    assert_int_equal(inf_trace_open(&e, &plan[0], 0, path, &t), INF_OK);
    write_task(&t, "F0", 5, 2);
    inf_trace_arrow(&t, false, 3, 0, 7);
    inf_trace_predict(&t, 3, 5, 20);
    assert_int_equal(inf_trace_end(&e, &t), INF_OK);
    assert_int_equal(inf_trace_end(&e, &t), INF_OK); /* it has ended */
    inf_trace_close(&t);
    assert_int_equal(queue.received, queue.sent);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    return root;
}

static void test_two_ranks(void **state) {
    (void)state;
    char *dir = temp_make();
    for (int same = 0; same < 2; same++) {
        queue.same_machine = same != 0;
        json_t *root = trace_two(temp_path(dir, "trace.json"), true);
        json_t *events = json_object_get(root, "traceEvents");
        expect_time(events, 0, INF_TRACK_tasks, "F0", 5, 2);
        expect_time(events, 1, INF_TRACK_tasks, "F0", 7, 3);
        expect_time(events, 0, INF_TRACK_table, "F0", 5, 2);
        expect_time(events, 0, INF_TRACK_table, "B0", 17, 8);
        expect_time(events, 0, INF_TRACK_messages, "sendF0", 7, 1);
        expect_time(events, 0, INF_TRACK_messages, "recvB0", 16, 1);
        expect_time(events, 1, INF_TRACK_table, "F0", 8, 4);
        expect_time(events, 1, INF_TRACK_messages, "sendB0", 16, 1);
        assert_null(find(events, 0, INF_TRACK_table, "U"));
        json_t *there = find(events, 0, INF_TRACK_tasks, "message");
        json_t *back = find(events, 1, INF_TRACK_tasks, "message");
        assert_true(json_equal(json_object_get(there, "id"), json_object_get(back, "id")));
        assert_non_null(find(events, 1, INF_TRACK_kernels, "thread_name"));
        json_decref(root);
    }
    temp_remove(dir);
}

static void test_silent_rank(void **state) {
    (void)state;
    char *dir = temp_make();
    json_t *root = trace_two(temp_path(dir, "trace.json"), false);
    assert_null(find(json_object_get(root, "traceEvents"), 1, INF_TRACK_tasks, "F0"));
    json_decref(root);
    temp_remove(dir);
}

/* --- sums of replicas --- */

static InfCode flag_test(InfError *e, InfRequest *r) {
    (void)e;
    r->busy = r->busy && r->word[0] == 0;
    return INF_OK;
}

static const InfTransport flags = {.send = queue_send,
                                   .recv = queue_recv,
                                   .wait = queue_wait,
                                   .gather = queue_gather,
                                   .test = flag_test};
static const PlanTask summed[] = {
    {.kind = PTASK_forward, .message = -1, .length = 1},
    {.kind = PTASK_backward, .message = -1, .start = 1, .length = 2, .last = 1},
    {.kind = PTASK_reduce, .message = 0, .start = 2, .length = 1.5, .done = 0.5},
    {.kind = PTASK_update, .microbatch = -1, .start = 3.5},
    {.kind = PTASK_gather, .message = 0, .start = 4, .length = 0.5},
};
static const PlanRank summed_rank[] = {{0, 5}};
static const PlanProgram summed_program = {.name = "train", .microbatches = 1, .rank = summed_rank};
static const PlanBucket buckets[] = {{0, 0, 4096}, {0, 4096, 512}};
static const PlanShard shard = {.bytes = 2048};

static void begin_sum(InfProfile *p, InfSumTimes *t, int kind, uint32_t number, InfRequest *r) {
    r->busy = true;
    inf_sum_times_begin(t,
                        &(InfSumTime){.kind = (PlanTaskKind)kind, .number = number, .request = r});
    assert_ptr_equal(t->profile, p);
}

/* A bucket, weights and another bucket on their way at once; what comes later takes the track that
 * is free. */
static void write_sums(InfProfile *p, const Plan *plan) {
    InfError e = {0};
    InfRequest request[3] = {{.busy = true}};
    InfSumTimes t;
    assert_int_equal(inf_sum_times_open(&e, plan, &t), INF_OK);
    inf_sum_times_begin(&t, &(InfSumTime){.request = request}); /* no step yet */
    assert_int_equal(t.count, 0);
    inf_sum_times_step(&t, p, 3);
    begin_sum(p, &t, PTASK_reduce, 0, &request[0]);
    begin_sum(p, &t, PTASK_gather, 0, &request[1]);
    inf_sum_times_look(&t, plan->transport);
    assert_int_equal(t.count, 2);
    request[0].busy = false;
    inf_sum_times_look(&t, plan->transport);
    assert_int_equal(t.count, 1);
    begin_sum(p, &t, PTASK_reduce, 1, &request[2]);
    request[1].word[0] = 1;
    request[2].busy = false;
    inf_sum_times_look(&t, plan->transport);
    assert_int_equal(t.count, 0);
    inf_sum_times_close(&t);
}

static void test_sums(void **state) {
    (void)state;
    char *dir = temp_make();
    const char *path = temp_path(dir, "trace.json");
    InfError e = {0};
    const Plan plan = {.ranks = 1,
                       .pp = 1,
                       .vpp = 1,
                       .dp = 2,
                       .transport = &flags,
                       .task = summed,
                       .program = &summed_program,
                       .nprogram = 1,
                       .bucket = buckets,
                       .nbucket = 2,
                       .shard = &shard,
                       .nshard = 1,
                       .makespan = 4};
    queue.sent = queue.received = 0;
    for (int replica = 1; replica >= 0; replica--) {
        InfProfile p = {.plan = &plan, .on = true};
        assert_int_equal(inf_trace_open(&e, &plan, replica, path, &p.trace), INF_OK);
        write_sums(&p, &plan);
        inf_trace_predict(&p.trace, 3, 10, 8);
        assert_int_equal(inf_trace_end(&e, &p.trace), INF_OK);
        inf_trace_close(&p.trace);
    }
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *events = json_object_get(root, "traceEvents");
    for (int rank = 0; rank < 2; rank++) {
        expect_time(events, rank, INF_TRACK_sums_table, "R0", 14, 3);
        expect_time(events, rank, INF_TRACK_sums_table, "G0", 18, 1);
        assert_null(find(events, rank, INF_TRACK_messages, "R0"));
        assert_non_null(find(events, rank, INF_TRACK_sums, "R0"));
        assert_non_null(find(events, rank, INF_TRACK_more_sums, "G0"));
        assert_non_null(find(events, rank, INF_TRACK_more_sums, "thread_name"));
        json_t *again = find(events, rank, INF_TRACK_sums, "R1");
        assert_non_null(again);
        json_t *args = json_object_get(again, "args");
        assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 512);
        assert_int_equal(json_integer_value(json_object_get(args, "step")), 4);
    }
    json_decref(root);
    temp_remove(dir);
}

/* --- costs --- */

static double clock_ms[16];

static double between(InfDevice *d, uint32_t from, uint32_t to) {
    (void)d;
    return clock_ms[to] - clock_ms[from];
}

static void test_costs(void **state) {
    (void)state;
    static const PlanUnit units[] = {{"wte", 1}, {"h.*", 2}, {"head", 1}};
    static const PlanTask two[] = {{.kind = PTASK_forward}, {.kind = PTASK_backward}};
    const Plan plan = {.unit = units, .nunit = 3, .task = two};
    const InfDeviceTable table = {.between = between};
    /* each launch takes twice as long as the one before */
    InfSpan spans[] = {
        {.kind = INF_SPAN_task},
        {.kind = INF_SPAN_launch}, /* no scope: the first layer */
        {.kind = INF_SPAN_launch, .scope = "h.1.up"},
        {.kind = INF_SPAN_launch, .scope = "header"}, /* not a layer's: that of the one before */
        {.kind = INF_SPAN_launch, .task = 1},         /* the last layer */
        {.kind = INF_SPAN_launch, .task = 1, .scope = "h.*"},
        {.kind = INF_SPAN_launch, .task = 1, .scope = "wte"},
    };
    const double want[3][2] = {{1, 32}, {2 + 4, 16}, {0, 8}};
    InfError e = {0};
    InfProfile p = {.plan = &plan, .table = &table, .span = spans, .count = 7};
    for (int i = 1; i < 7; i++) clock_ms[2 * i + 2] = clock_ms[2 * i + 1] + (1 << (i - 1));
    assert_int_equal(inf_costs_open(&e, &p), INF_OK);
    inf_costs_add(&p);
    inf_costs_add(&p);
    for (int u = 0; u < 3; u++)
        for (int k = 0; k < 2; k++)
            assert_float_equal(p.unit_ms[u * PTASK_update + k], 2 * want[u][k], 0);
    free(p.unit_ms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_silent_rank),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
