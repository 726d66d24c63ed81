/* Weights in f32 with their owners only (zero = 1 in bf16): where two replicas have what is put,
 * that together they give it back, bit for bit, and that their copies have one hash. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/pipeline.h"
#include "runtime/replicas.h"
#include "runtime/shards.h"
#include "tests/runtime/toy.h"

/* norm: whole on every replica. h.*.w: three tensors [3, 2] stored as [4, 5], and out: owned. */
static const PlanParam blocks[] = {
    {.name = "norm", .ndim = 1, .dim = {40}, .stored = {40}, .trainable = 1, .uses = 1},
    {.name = "h.*.w",
     .offset = 1024,
     .nstack = 1,
     .ndim = 2,
     .stack = {3},
     .dim = {3, 2},
     .stored = {4, 5},
     .init = PLAN_INIT_normal,
     .init_a = 0.02,
     .trainable = 1,
     .owned = 1,
     .uses = 1},
    {.name = "out",
     .offset = 1280,
     .ndim = 1,
     .dim = {200},
     .stored = {200},
     .init = PLAN_INIT_uniform,
     .init_a = 1,
     .trainable = 1,
     .owned = 1,
     .uses = 1},
};
enum { STATE = 896, MASTERS = 640, REPLICAS = 2, NPARAM = 5 };
static const PlanShard shards[] = {
    {.at = 0, .bytes = 256},
    {.at = 1024, .bytes = 128, .state_at = 256, .owned = 1, .master_at = STATE},
    {.at = 1280, .bytes = 512, .state_at = 384, .owned = 1, .master_at = STATE + 128},
};

/* What the transport has of the other replica: to be added, NULL nothing, and its hashes. */
static struct {
    const float *values;
    int received;
    uint64_t hash[NPARAM], other[NPARAM];
} peer;

/* Of a sum first the other's numbers in this replica's half, then the sum in the other half. */
static InfCode recv_peer(InfError *e, int from, int tag, void *at, uint64_t bytes,
                         InfRequest *out) {
    bool parts = peer.received++ % 2 == 0;
    uint64_t count = bytes / sizeof(float), begin = (uint64_t)(parts ? 1 - from : from) * count;
    float *to = at;
    (void)e;
    (void)tag;
    for (uint64_t i = 0; i < count; i++) {
        float other = peer.values ? peer.values[begin + i] : -0.0f;
        to[i] = parts ? other : to[i] + other;
    }
    out->busy = true;
    return INF_OK;
}

static InfCode send_peer(InfError *e, int to, int tag, const void *at, uint64_t bytes,
                         InfRequest *out) {
    (void)e;
    (void)to;
    (void)tag;
    (void)at;
    (void)bytes;
    out->busy = true;
    return INF_OK;
}

static InfCode done(InfError *e, InfRequest *r) {
    (void)e;
    r->busy = false;
    return INF_OK;
}

static InfCode gather_hashes(InfError *e, const void *mine, uint64_t bytes, void *all) {
    (void)e;
    assert_int_equal(bytes, sizeof peer.hash);
    memcpy(peer.hash, mine, bytes);
    memcpy(all, mine, bytes);
    memcpy((char *)all + bytes, peer.other[0] ? peer.other : mine, bytes);
    return INF_OK;
}

static const InfTransport transport = {
    .recv = recv_peer, .send = send_peer, .test = done, .gather = gather_hashes};

typedef struct Fixture {
    Plan plan;
    InfGroup group[REPLICAS];
    InfEngine m[REPLICAS];
    InfParams params;
} Fixture;

static Fixture *open_fixture(bool forward) {
    Fixture *f = calloc(1, sizeof *f);
    InfError e = {0};
    f->plan = toy_plan;
    f->plan.dp = REPLICAS;
    f->plan.transport = &transport;
    f->plan.finish.norm = -1;
    f->plan.param = blocks;
    f->plan.nparam = sizeof blocks / sizeof *blocks;
    f->plan.nalias = 0;
    f->plan.shard = shards;
    f->plan.nshard = sizeof shards / sizeof *shards;
    f->plan.nstate = 1;
    f->plan.flat_bytes = 2304;
    f->plan.state_bytes = STATE;
    f->plan.region_bytes[PLAN_REGION_param] = 512;
    f->plan.region_bytes[PLAN_REGION_grad] = 2304;
    f->plan.region_bytes[PLAN_REGION_sum] = 8192;
    f->plan.region_bytes[PLAN_REGION_copy] = 1152;
    f->plan.region_bytes[PLAN_REGION_state] = STATE + MASTERS;
    memset(&peer, 0, sizeof peer);
    for (int r = 0; r < REPLICAS; r++) {
        f->group[r] = (InfGroup){
            .rank = r, .count = REPLICAS, .replica = r, .transport = &transport, .plan = &f->plan};
        assert_int_equal(inf_engine_start(&e, &f->plan, &f->group[r], 1, 7, &f->m[r]), INF_OK);
        if (forward) inf_engine_goes_forward(&f->m[r], "eval", NULL);
        assert_int_equal(inf_engine_take(&e, &f->m[r], 0), INF_OK);
    }
    assert_int_equal(inf_params_open(&e, &f->plan, &f->params), INF_OK);
    assert_int_equal(f->params.count, NPARAM);
    return f;
}

static void close_fixture(Fixture *f) {
    inf_params_close(&f->params);
    for (int r = 0; r < REPLICAS; r++) inf_engine_close(&f->m[r]);
    free(f);
}

static uint16_t copy_at(const Fixture *f, int replica, int64_t at) {
    return *(const uint16_t *)inf_engine_at(&f->m[replica], PLAN_REGION_copy, at / 2);
}

static float master_at(const Fixture *f, int replica, int64_t at) {
    return *(const float *)inf_engine_at(&f->m[replica], PLAN_REGION_state, STATE + at);
}

/* Rounded to nearest, ties to even, for everyone; as it is for its owner. */
static void test_where_values_are(void **state) {
    static const float values[] = {1.0f, 1.00390625f, 1.01171875f, -0.0f, NAN, 3e38f};
    static const uint16_t halves[] = {0x3f80, 0x3f80, 0x3f82, 0x8000, 0x7fff, 0x7f62};
    Fixture *f = open_fixture(false);
    const InfParam *p = inf_params_find(&f->params, "out");
    (void)state;
    for (int r = 0; r < REPLICAS; r++) inf_param_put(p, &f->m[r], 125, values, 6);
    for (int i = 0; i < 6; i++)
        for (int r = 0; r < REPLICAS; r++)
            assert_int_equal(copy_at(f, r, 1280 + 4 * (125 + i)), halves[i]);
    /* The second half of the bucket begins at element 128. */
    assert_true(master_at(f, 0, 128 + 4 * 125) == 1.0f);
    assert_true(master_at(f, 0, 128 + 4 * 127) == 1.01171875f);
    assert_true(master_at(f, 1, 128 + 4 * 2) == 3e38f && isnan(master_at(f, 1, 128 + 4)));
    assert_true(master_at(f, 1, 128 + 4 * 3) == 0 && master_at(f, 0, 128 + 4 * 124) == 0);
    close_fixture(f);
}

/* All values of a tensor as it is saved. */
static void values_of(Fixture *f, const InfParam *p, int replica, float *to) {
    InfError e = {0};
    float *stored = calloc((size_t)inf_param_stored(p), sizeof *stored);
    /* Of the other replica first, whose own peer adds nothing. */
    peer.values = NULL;
    assert_int_equal(inf_shards_values(&e, p, &f->m[1 - replica], INF_VALUES_weights, stored), 0);
    peer.values = stored;
    assert_int_equal(inf_shards_values(&e, p, &f->m[replica], INF_VALUES_weights, to), 0);
    free(stored);
}

static void test_values_come_back(void **state) {
    Fixture *f = open_fixture(false);
    const InfParam *p = inf_params_find(&f->params, "out");
    float values[200], got[200], small[20], tensor[20];
    (void)state;
    inf_params_init(&f->params, &f->m[0], 3);
    for (int i = 0; i < 200; i++) values[i] = i % 3 == 0 ? -0.0f : (float)i / 7;
    for (int r = 0; r < REPLICAS; r++) inf_param_put(p, &f->m[r], 0, values, 200);
    for (int r = 0; r < REPLICAS; r++) {
        values_of(f, p, r, got);
        assert_memory_equal(got, values, sizeof values);
    }
    p = inf_params_find(&f->params, "h.1.w"); /* has elements of both */
    for (int i = 0; i < 20; i++) small[i] = (float)i - 7;
    for (int r = 0; r < REPLICAS; r++) inf_param_put(p, &f->m[r], 0, small, 20);
    values_of(f, p, 0, tensor);
    assert_memory_equal(tensor, small, sizeof small);
    close_fixture(f);
}

/* Replicas that begin alike have one hash, of what all of them have. */
static void test_one_hash(void **state) {
    Fixture *f = open_fixture(false);
    InfError e = {0};
    (void)state;
    for (int r = 0; r < REPLICAS; r++) {
        inf_params_init(&f->params, &f->m[r], 3);
        assert_int_equal(inf_replicas_same(&e, &f->params, &f->m[r], 0), INF_OK);
        memcpy(peer.other, peer.hash, sizeof peer.other);
    }
    float *master = inf_engine_at(&f->m[1], PLAN_REGION_state, STATE + 128);
    master[0] += 1; /* its own: nobody else has it */
    assert_int_equal(inf_replicas_same(&e, &f->params, &f->m[1], 0), INF_OK);
    uint16_t *copy = inf_engine_at(&f->m[1], PLAN_REGION_copy, (1024 + 80) / 2);
    copy[0] ^= 1;
    assert_int_equal(inf_replicas_same(&e, &f->params, &f->m[1], 4), INF_INTERNAL);
    assert_non_null(strstr(e.text, "apart by step 4: parameter 'h.1.w' differs"));
    inf_error_free(&e);
    close_fixture(f);
}

/* A rank of a pipeline that reads a tied weight in f32 compares what the others have of it. */
static void test_one_hash_of_what_is_rounded(void **state) {
    PlanParam whole[sizeof blocks / sizeof *blocks];
    Fixture *f = open_fixture(false);
    InfError e = {0};
    (void)state;
    inf_params_init(&f->params, &f->m[0], 3);
    assert_int_equal(inf_replicas_same(&e, &f->params, &f->m[0], 0), INF_OK);
    memcpy(peer.other, peer.hash, sizeof peer.other);
    memcpy(whole, blocks, sizeof whole);
    f->m[1].plan = &(const Plan){.dp = REPLICAS, .ranks = 1, .transport = &transport};
    f->m[1].base[PLAN_REGION_param] = calloc(1, 2304);
    for (int i = 0; i < f->params.count; i++) {
        InfParam *p = &f->params.param[i];
        int block = (int)(p->block - blocks);
        whole[block].owned = 0;
        p->block = &whole[block];
        assert_int_equal(p->halves, block > 0);
    }
    inf_params_init(&(InfParams){.plan = &f->plan, .param = f->params.param, .count = NPARAM},
                    &f->m[1], 3);
    assert_int_equal(inf_replicas_same(&e, &f->params, &f->m[1], 0), INF_OK);
    assert_memory_equal(peer.hash, peer.other, sizeof peer.hash);
    free(f->m[1].base[PLAN_REGION_param]);
    close_fixture(f);
}

/* What only goes forward has no f32 weights but those that it reads. */
static void test_without_states(void **state) {
    static const float value = 1.5f;
    Fixture *f = open_fixture(true);
    const InfParam *p = inf_params_find(&f->params, "h.0.w");
    (void)state;
    assert_int_equal(f->m[0].bytes[PLAN_REGION_state], 0);
    inf_param_put(p, &f->m[0], 5, &value, 1);
    assert_int_equal(copy_at(f, 0, 1024 + 4 * 5), 0x3fc0);
    inf_engine_push_weights(&f->m[0]);
    inf_engine_fetch_weights(&f->m[0]);
    close_fixture(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where_values_are), cmocka_unit_test(test_values_come_back),
        cmocka_unit_test(test_one_hash),         cmocka_unit_test(test_one_hash_of_what_is_rounded),
        cmocka_unit_test(test_without_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
