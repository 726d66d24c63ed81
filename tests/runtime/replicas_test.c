/* Sums over replicas: where in the walk they begin, each once a step; and replicas that are not the
 * same are named. A transport that only notes what it is asked stands for MPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/pipeline.h"
#include "runtime/replicas.h"
#include "tests/runtime/toy.h"

/* What was asked of it, in words; gather gives everyone this rank's, but for `other` bytes. */
static struct {
    char text[512];
    float *origin;
    bool arrives; /* what is on its way */
    size_t other; /* rank 1 has another byte here, when not 0 */
} asked;

static void note(const char *format, ...) {
    size_t at = strlen(asked.text);
    va_list list;
    va_start(list, format);
    vsnprintf(asked.text + at, sizeof asked.text - at, format, list);
    va_end(list);
}

static InfCode note_send(InfError *e, int to, int tag, const void *at, uint64_t bytes,
                         InfRequest *out) {
    (void)e;
    (void)tag;
    assert_int_equal(to, 0);
    note("%td+%llu ", (const float *)at - asked.origin, (unsigned long long)bytes / 4);
    out->busy = true;
    return INF_OK;
}

static InfCode note_recv(InfError *e, int from, int tag, void *at, uint64_t bytes,
                         InfRequest *out) {
    (void)e;
    (void)tag;
    assert_int_equal(from, 0);
    memset(at, 0, bytes);
    out->busy = true;
    return INF_OK;
}

static InfCode note_test(InfError *e, InfRequest *r) {
    (void)e;
    r->busy = r->busy && !asked.arrives;
    return INF_OK;
}

static InfCode collect_two(InfError *e, const void *mine, uint64_t bytes, void *all,
                           InfRequest *out) {
    (void)e;
    for (uint64_t r = 0; r < 2; r++) memcpy((char *)all + r * bytes, mine, bytes);
    note("collect %llu ", (unsigned long long)bytes);
    out->busy = true;
    return INF_OK;
}

static InfCode no_broadcast(InfError *e, int root, void *at, uint64_t bytes) {
    (void)e;
    (void)at;
    note("from %d, %llu ", root, (unsigned long long)bytes);
    return INF_OK;
}

static InfCode gather_two(InfError *e, const void *mine, uint64_t bytes, void *all) {
    unsigned char *to = all;
    (void)e;
    memcpy(to, mine, bytes);
    memcpy(to + bytes, mine, bytes);
    if (asked.other) to[bytes + asked.other] ^= 4;
    return INF_OK;
}

static const InfTransport transport = {.send = note_send,
                                       .recv = note_recv,
                                       .test = note_test,
                                       .collect = collect_two,
                                       .broadcast = no_broadcast,
                                       .gather = gather_two};

static void kernel(void *const *arg, const InfEnv *env) {
    (void)arg;
    note("k%lld ", (long long)env->iter[0]);
}

static const PlanKernel kernels[] = {{.name = "k", .fn = kernel, .form = "rows"}};
static const PlanArg args[] = {{.region = PLAN_REGION_slot}};
/* A backward pass over three layers: a bucket after the layers 2 and 1, one in the middle of layer
 * 0, one at the end; in the repeat's own repeat the iteration is the outer one's. */
static const PlanStep steps[] = {
    {.kind = STEP_LAUNCH, .narg = 1},
    {.kind = STEP_REPEAT, .count = 3, .nbody = 4, .reverse = 1},
    {.kind = STEP_LAUNCH, .narg = 1},
    {.kind = STEP_REPEAT, .count = 1, .nbody = 1},
    {.kind = STEP_REDUCE, .first = 0, .count = 2},
    {.kind = STEP_LAUNCH, .narg = 1},
    {.kind = STEP_REDUCE, .first = 2, .count = 1},
};
static const PlanChunk chunks[] = {{"backward", 0, 7}};
static const PlanReady ready[] = {{0, 1}, {1, 0}, {2, -1}};
static const PlanBucket buckets[] = {{0, 0, 600}, {0, 600, 400}, {0, 1000, 4}};

typedef struct Fixture {
    Plan plan;
    InfGroup group;
    InfEngine m;
} Fixture;

static Fixture *open_fixture(bool walk) {
    Fixture *f = calloc(1, sizeof *f);
    InfError e = {0};
    f->plan = toy_plan;
    f->plan.dp = 2;
    f->plan.transport = &transport;
    f->plan.finish.norm = -1;
    f->plan.finish.loss = toy_plan.program[0].metric[0].sum;
    f->plan.finish.loss_bytes = 8;
    if (walk) {
        f->plan.kernel = kernels;
        f->plan.nkernel = 1;
        f->plan.arg = args;
        f->plan.step = steps;
        f->plan.chunk = chunks;
        f->plan.nchunk = 1;
        f->plan.bucket = buckets;
        f->plan.nbucket = 3;
        f->plan.ready = ready;
        f->plan.region_bytes[PLAN_REGION_grad] = 2048;
        f->plan.region_bytes[PLAN_REGION_sum] = 4096;
    }
    f->group =
        (InfGroup){.rank = 1, .count = 2, .replica = 1, .transport = &transport, .plan = &f->plan};
    assert_int_equal(inf_engine_start(&e, &f->plan, &f->group, 1, 7, &f->m), INF_OK);
    assert_int_equal(inf_engine_take(&e, &f->m, 0), INF_OK);
    memset(&asked, 0, sizeof asked);
    asked.origin = inf_engine_at(&f->m, PLAN_REGION_grad, 0);
    return f;
}

static void close_fixture(Fixture *f) {
    inf_engine_close(&f->m);
    free(f);
}

static void test_sums_begin_where_buckets_are_complete(void **state) {
    (void)state;
    Fixture *f = open_fixture(true);
    inf_engine_run(&f->m, 0);
    assert_string_equal(asked.text, "k0 k2 k2 k1 k1 k0 k0 ");
    for (int step = 0; step < 2; step++) { /* each step its own sums */
        asked.text[0] = '\0';
        asked.arrives = false;
        f->m.reduces = true;
        inf_engine_run(&f->m, 0);
        f->m.reduces = false;
        assert_string_equal(asked.text, "k0 k2 k2 k1 0+75 k1 k0 150+50 k0 250+1 ");
        for (uint32_t i = 0; i < 3; i++) inf_pipeline_reduced(f->m.pipeline, i);
        asked.text[0] = '\0';
        asked.arrives = true;
        inf_pipeline_settle(f->m.pipeline, &f->m, true);
        assert_string_equal(asked.text, "75+75 200+50 collect 8 from 0, 8 ");
        assert_int_equal(f->m.pipeline->collectives, 3 * (step + 1));
    }
    close_fixture(f);
}

static void test_the_same_replicas(void **state) {
    (void)state;
    Fixture *f = open_fixture(false);
    InfParams params;
    InfError e = {0};
    assert_int_equal(inf_params_open(&e, &f->plan, &params), INF_OK);
    inf_params_init(&params, &f->m, 7);
    assert_int_equal(inf_replicas_same(&e, &params, &f->m, 0), INF_OK);
    asked.other = 8; /* of the second hash: fc.weight */
    assert_int_equal(inf_replicas_same(&e, &params, &f->m, 0), INF_PEER);
    assert_non_null(strstr(e.text, "parameter 'fc.weight' differs on rank 1 from rank 0"));
    inf_error_free(&e);
    e = (InfError){0};
    asked.other = 16; /* the third: the first of the states */
    assert_int_equal(inf_replicas_same(&e, &params, &f->m, 12), INF_INTERNAL);
    assert_non_null(strstr(e.text, "apart by step 12: the optimizer's state of 'fc.bias'"));
    inf_error_free(&e);
    inf_params_close(&params);
    close_fixture(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_begin_where_buckets_are_complete),
        cmocka_unit_test(test_the_same_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
