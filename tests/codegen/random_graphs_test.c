/* random_graphs_test.c - random graphs through the whole path: passes, kernels compiled by cc, the
 * plan walked by the runtime's engine; against the f64 evaluator, and bit for bit between fused and
 * unfused, with and without reuse of memory, with and without recompute = layer, and 1, 2 and 4
 * threads. Laid out in buckets, of 1 KB, 64 KB or whole, gradients have the bits of the dense
 * layout, and updates those of each other, also of a replica that owns its shards (zero = 1, on
 * CUDA): the norm is summed in another order than there.
 *
 * INFINIC_RANDOM=FIRST[,COUNT[,N]] runs these seeds, every N-th also unfused, and says how far each
 * is from the evaluator. */
#include "tests/codegen/whole.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 25 /* cases in one translation unit */, VARIANTS = 9, BUCKETED = 5, ZERO = 8 };

static const WholeVariant variants[VARIANTS] = {{0},
                                                {.no_reuse = true},
                                                {.no_fuse = true},
                                                {.no_fuse = true, .no_reuse = true},
                                                {.recompute = true},
                                                {.bucket = 1000},
                                                {.bucket = 64000},
                                                {.bucket = 1 << 30},
                                                {.bucket = 4000, .zero = true}};
static const int threads[VARIANTS][3] = {{1, 2, 4}, {1}, {1, 4}, {2}, {2}, {2}, {1}, {1}, {2}};

typedef struct Batch {
    WholeCase c[BATCH];
    WholeExpected *expected[BATCH];
    Whole *whole[BATCH][VARIANTS];
    Object *object;
    uint64_t first;
    int n;
} Batch;

/* Seeds that a test runs. */
typedef struct Range {
    uint64_t first, count;
    uint64_t unfused_every; /* kernels of single ops are most of the compiler's time */
    bool told;              /* say how far each is */
    bool half;              /* dtype = bf16 */
    bool owned;             /* with weights that zero = 1 leaves to their owners */
    const char *cc;         /* NULL: the system's */
} Range;

/* Kernels are not sanitized, what makes them is. */
#ifdef __SANITIZE_ADDRESS__
enum { SAMPLE = 3 };
#else
enum { SAMPLE = 8 };
#endif

static bool is_long(void) { return getenv("INFINIC_LONG") != NULL; }

/* What INFINIC_RANDOM asks for, else `r`. */
static Range asked_for(Range r) {
    const char *asked = getenv("INFINIC_RANDOM");
    if (asked == NULL) return r;
    char *end;
    r = (Range){strtoull(asked, &end, 10), .count = 1, .unfused_every = 1, .told = true,
                .cc = r.cc};
    if (*end == ',') r.count = strtoull(end + 1, &end, 10);
    if (*end == ',') r.unfused_every = strtoull(end + 1, NULL, 10);
    if (r.unfused_every == 0) r.unfused_every = 1;
    return r;
}

/* Which of the variants a seed is compiled in; of those with buckets every third seed has two. */
static bool is_wanted(const WholeCase *c, const Range *range, uint64_t seed, int v) {
    if (variants[v].bucket > 0 && seed % 3 != 0) return false;
    if (variants[v].zero) return object_is_cuda();
    if (variants[v].bucket > 1000 && (variants[v].bucket == 64000) != (seed % 2 == 0)) return false;
    if (variants[v].no_fuse && seed % range->unfused_every != 0) return false;
    return !variants[v].recompute || c->rand.repeats;
}

static void batch_build(Batch *b, const Range *range, uint64_t first) {
    uint64_t left = range->first + range->count - first;
    *b = (Batch){.object = object_new(), .first = first, .n = left < BATCH ? (int)left : BATCH};
    for (int i = 0; i < b->n; i++) {
        uint64_t seed = first + (uint64_t)i;
        b->c[i] = whole_case(seed);
        b->c[i].half = range->half;
        for (int v = 0; v < VARIANTS; v++)
            if (is_wanted(&b->c[i], range, seed, v))
                b->whole[i][v] = whole_new(&b->c[i], variants[v], b->object);
        if (range->owned) assert_true(whole_owned(b->whole[i][ZERO]) > 0);
    }
    object_build(b->object, range->cc, NULL);
}

static void batch_free(Batch *b) {
    for (int i = 0; i < b->n; i++)
        for (int v = 0; v < VARIANTS; v++)
            if (b->whole[i][v] != NULL) whole_free(b->whole[i][v]);
    object_free(b->object);
}

static bool complain(uint64_t seed, int variant, int nthreads, const char *why) {
    if (why == NULL) return true;
    fprintf(stderr, "seed %llu, buckets of %lld%s%s%s%s, %d threads: %s\n",
            (unsigned long long)seed, (long long)variants[variant].bucket,
            variants[variant].zero ? ", zero = 1" : "",
            variants[variant].recompute ? ", recompute" : "",
            variants[variant].no_fuse ? ", no fuse" : "",
            variants[variant].no_reuse ? ", no reuse" : "", nthreads, why);
    return false;
}

/* In bf16 a random graph may be far from the evaluator: *rounded counts those that are not. */
static bool run_case(const Batch *b, int i, bool told, int *rounded) {
    uint64_t seed = b->first + (uint64_t)i;
    WholeExpected *e = whole_expect(&b->c[i]);
    WholeResult first = {0}, bucketed = {0};
    bool ok = e != NULL;
    for (int v = 0; ok && v < VARIANTS; v++)
        for (int k = 0; ok && k < 3 && threads[v][k] > 0 && b->whole[i][v] != NULL; k++) {
            WholeResult r;
            ok = complain(seed, v, threads[v][k],
                          whole_run(b->whole[i][v], b->object, e, threads[v][k], &r));
            if (v == 0 && k == 0) {
                WholeShare worst;
                const char *far = whole_compare(e, &r, &worst);
                if (b->c[i].half)
                    *rounded += worst.relative < 0.1;
                else
                    ok &= complain(seed, v, threads[v][k], far);
                if (told)
                    printf("seed %llu: %.3f of what is allowed, '%s' %.3g, %u steps\n",
                           (unsigned long long)seed, worst.share, worst.name, worst.relative,
                           whole_steps(b->whole[i][0]));
                first = r;
                continue;
            }
            ok = ok &&
                 complain(seed, v, threads[v][k], whole_compare_bits(&first, &r, v >= BUCKETED));
            if (v == BUCKETED) {
                bucketed = r;
                continue;
            }
            if (ok && v > BUCKETED)
                ok = complain(seed, v, threads[v][k], whole_compare_bits(&bucketed, &r, false));
            whole_result_free(&r);
        }
    whole_result_free(&first);
    whole_result_free(&bucketed);
    if (e != NULL) whole_expected_free(e);
    return ok;
}

static int run_seeds(Range range, int *rounded) {
    static Batch b;
    int failed = 0;
    for (uint64_t at = range.first; at < range.first + range.count; at += BATCH) {
        batch_build(&b, &range, at);
        for (int i = 0; i < b.n; i++) failed += !run_case(&b, i, range.told, rounded);
        if (range.told) printf("%u kernels\n", object_count(b.object));
        batch_free(&b);
    }
    return failed;
}

static void test_random_graphs(void **state) {
    (void)state;
    Range sample = {.count = 20, .unfused_every = 4}, all = {.count = 1000, .unfused_every = 4};
    if (object_is_cuda()) { /* device code is emulated, a block at a time */
        sample.count = 8;
        all.count = 250;
    }
#ifdef __SANITIZE_ADDRESS__
    sample.count = 6; /* kernels are not sanitized, what makes them is */
    all.count = 100;
#endif
    assert_int_equal(run_seeds(asked_for(is_long() ? all : sample), NULL), 0);
}

/* dtype = bf16: the same bits in every way of compiling, and most graphs near the evaluator. */
static void test_half_graphs(void **state) {
    (void)state;
    if (!object_is_cuda()) skip();
    int rounded = 0;
    Range r = asked_for((Range){.count = is_long() ? 200 : SAMPLE, .unfused_every = 2});
    r.half = true;
    assert_int_equal(run_seeds(r, &rounded), 0);
    assert_in_range(rounded, 9 * r.count / 10, r.count);
    r = (Range){.first = 21, .count = 1, .unfused_every = 2, .half = true, .owned = true};
    assert_int_equal(run_seeds(r, &rounded), 0);
}

/* Three replicas, buckets of one tensor each to all in one: plans prove what they say of buckets.
 */
static void test_replicas(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < (is_long() ? 1000 : 8 * SAMPLE); seed++) {
        WholeCase c = whole_case(seed);
        uint32_t most = whole_buckets(&c, 1), least = whole_buckets(&c, 1 << 30);
        assert_in_range(least, 1, most);
        assert_in_range(whole_buckets(&c, 4000), least, most);
    }
}

/* The other compiler of the house, against the evaluator and with itself. */
static void test_clang(void **state) {
    (void)state;
    if (!is_long() || system("clang --version > /dev/null 2>&1") != 0) skip();
    assert_int_equal(run_seeds(asked_for((Range){0, 25, .unfused_every = 1, .cc = "clang"}), NULL),
                     0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_half_graphs),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_clang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
