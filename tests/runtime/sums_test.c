/* sums_test.c - sums over replicas, all of them in one process: a network that delivers when it
 * likes stands for MPI. Sums are the same bits however they are cut and delivered, in memory that
 * is as large as was said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/sums.h"
#include "tests/runtime/draw.h"

enum { REPLICAS_MAX = 5, FIRST = 7, LINES_MAX = 4096, SUMS = 8, ELEMS_MAX = 700 };

/* --- the network: halves of messages in the order in which they were posted --- */

typedef struct Half {
    int from, to, tag;
    const void *out;
    void *in;
    uint64_t bytes;
    bool used, over;
} Half;

static Half half[LINES_MAX];
static int halves, here, on_their_way, most_on_their_way;

static InfCode post(Half new, InfRequest *out) {
    assert_true(halves < LINES_MAX && !out->busy);
    half[halves] = new;
    *out = (InfRequest){.word = {(uint64_t)halves++}, .busy = true};
    on_their_way++;
    if (on_their_way > most_on_their_way) most_on_their_way = on_their_way;
    return INF_OK;
}

static InfCode send(InfError *e, int to, int tag, const void *at, uint64_t bytes, InfRequest *out) {
    (void)e;
    return post((Half){FIRST + here, to, tag, at, NULL, bytes, false, false}, out);
}

static InfCode recv(InfError *e, int from, int tag, void *at, uint64_t bytes, InfRequest *out) {
    (void)e;
    return post((Half){from, FIRST + here, tag, NULL, at, bytes, false, false}, out);
}

/* The first half that waits for this one, which is the first of its kind. */
static Half *other_half(const Half *h) {
    for (Half *k = half; k < half + halves; k++) {
        bool same = k->from == h->from && k->to == h->to && k->tag == h->tag && !k->used;
        if (same && !k->out == !h->out && k < h) return NULL;
    }
    for (Half *k = half; k < half + halves; k++)
        if (k->from == h->from && k->to == h->to && k->tag == h->tag && !k->used &&
            !k->out != !h->out)
            return k;
    return NULL;
}

/* Now and then a message arrives; each end learns it when it looks, sooner or later. */
static InfCode test(InfError *e, InfRequest *r) {
    Half *h = &half[r->word[0]];
    (void)e;
    assert_true(r->busy);
    Half *k = h->used || draw(3) ? NULL : other_half(h);
    if (k) {
        Half *to = h->out ? k : h, *from = h->out ? h : k;
        assert_int_equal(to->bytes, from->bytes);
        memcpy(to->in, from->out, to->bytes);
        h->used = k->used = true;
    }
    if (h->used && draw(2)) {
        r->busy = false;
        on_their_way--;
    }
    return INF_OK;
}

static void rest(int turn) { (void)turn; }

static const InfTransport network = {.send = send, .recv = recv, .test = test, .rest = rest};

/* --- replicas --- */

static float value[SUMS][REPLICAS_MAX][ELEMS_MAX], wanted[SUMS][ELEMS_MAX];

/* Numbers whose order of addition matters. */
static void fill(int replicas) {
    for (int s = 0; s < SUMS; s++)
        for (int i = 0; i < ELEMS_MAX; i++)
            for (int r = 0; r < replicas; r++) {
                value[s][r][i] = ((float)draw(1 << 24) - (1 << 23)) / (float)(1 << draw(20));
                wanted[s][i] = r == 0 ? value[s][r][i] : wanted[s][i] + value[s][r][i];
            }
}

/* What a replica has to find of a sum. */
static void check_sum(int s, int replica, int replicas, uint64_t count, bool scatter) {
    uint64_t each = count / (uint64_t)replicas + (count % (uint64_t)replicas > 0);
    for (uint64_t i = 0; i < count; i++)
        if (!scatter || i / each == (uint64_t)replica)
            assert_memory_equal(&value[s][replica][i], &wanted[s][i], sizeof(float));
}

static void run_sums(int replicas, uint64_t bytes, bool scatter) {
    static const uint64_t counts[SUMS] = {1, 2, 3, 64, 65, 499, 700, 7};
    InfSums *s[REPLICAS_MAX];
    InfRequest request[REPLICAS_MAX][SUMS] = {0};
    uint32_t begun[REPLICAS_MAX] = {0};
    InfError e = {0};
    fill(replicas);
    halves = on_their_way = most_on_their_way = 0;
    unsigned char *memory = malloc((size_t)replicas * bytes);
    assert_non_null(memory);
    for (int r = 0; r < replicas; r++) {
        InfSumsOf of = {&network, r, replicas, FIRST, SUMS};
        assert_int_equal(inf_sums_open(&e, &of, &s[r]), INF_OK);
        inf_sums_place(s[r], memory + (uint64_t)r * bytes, bytes);
    }
    for (int left = replicas * SUMS; left > 0;) { /* each begins its sums when it likes */
        here = (int)draw((uint64_t)replicas);
        uint32_t k = begun[here];
        if (k < SUMS && draw(4) == 0) {
            InfSummand all = {value[k][here], counts[k], scatter};
            assert_int_equal(inf_sums_begin(&e, s[here], &all, &request[here][k]), INF_OK);
            begun[here]++;
            left--;
        } else {
            assert_int_equal(inf_sums_poll(&e, s[here]), INF_OK);
        }
    }
    for (int i = 0; i < 1000 * replicas; i++) {
        here = i % replicas;
        assert_int_equal(inf_sums_poll(&e, s[here]), INF_OK);
    }
    assert_int_equal(on_their_way, 0);
    assert_true(most_on_their_way <= replicas * (replicas - 1) * 4 * 2);
    for (here = 0; here < replicas; here++) {
        for (int k = 0; k < SUMS; k++) {
            assert_int_equal(inf_sums_wait(&e, s[here], &request[here][k]), INF_OK);
            assert_false(request[here][k].busy);
            check_sum(k, here, replicas, counts[k], scatter);
        }
        inf_sums_close(s[here]);
    }
    free(memory);
}

static void test_sums(void **unused) {
    (void)unused;
    for (int replicas = 2; replicas <= REPLICAS_MAX; replicas++)
        for (uint64_t elems = 16; elems <= 1024; elems *= 4)
            for (int scatter = 0; scatter < 2; scatter++)
                run_sums(replicas, 4 * (uint64_t)(replicas - 1) * elems * sizeof(float), scatter);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
