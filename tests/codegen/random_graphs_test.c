/* random_graphs_test.c - random graphs through the whole path: passes, kernels compiled by cc, the
 * plan walked by the runtime's engine; against the f64 evaluator, and bit for bit between fused and
 * unfused, with and without reuse of memory, and 1, 2 and 4 threads.
 *
 * INFINIC_RANDOM=FIRST[,COUNT] runs these seeds and says how far each is from the evaluator. */
#include "tests/codegen/whole.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 50 /* cases in one translation unit */, VARIANTS = 4 };

static const WholeVariant variants[VARIANTS] = {
    {false, false}, {false, true}, {true, false}, {true, true}};
static const int threads[VARIANTS][3] = {{1, 2, 4}, {1}, {1, 4}, {2}};

typedef struct Batch {
    WholeCase c[BATCH];
    WholeExpected *expected[BATCH];
    Whole *whole[BATCH][VARIANTS];
    Object *object;
    uint64_t first;
    int n;
} Batch;

typedef struct Range {
    uint64_t first, count;
    bool told; /* say how far each is */
} Range;

static Range seeds(uint64_t sample, uint64_t all) {
    const char *asked = getenv("INFINIC_RANDOM");
    if (asked == NULL) return (Range){0, getenv("INFINIC_LONG") != NULL ? all : sample, false};
    char *end;
    Range r = {.first = strtoull(asked, &end, 10), .count = 1, .told = true};
    if (*end == ',') r.count = strtoull(end + 1, NULL, 10);
    return r;
}

static void batch_build(Batch *b, uint64_t first, int n, const char *cc) {
    *b = (Batch){.object = object_new(), .first = first, .n = n};
    for (int i = 0; i < n; i++) {
        b->c[i] = whole_case(first + (uint64_t)i);
        for (int v = 0; v < VARIANTS; v++) b->whole[i][v] = whole_new(&b->c[i], variants[v], b->object);
    }
    object_build(b->object, cc, NULL);
}

static void batch_free(Batch *b) {
    for (int i = 0; i < b->n; i++)
        for (int v = 0; v < VARIANTS; v++) whole_free(b->whole[i][v]);
    object_free(b->object);
}

static bool complain(uint64_t seed, int variant, int nthreads, const char *why) {
    if (why == NULL) return true;
    fprintf(stderr, "seed %llu%s%s, %d threads: %s\n", (unsigned long long)seed,
            variants[variant].no_fuse ? ", no fuse" : "", variants[variant].no_reuse ? ", no reuse" : "",
            nthreads, why);
    return false;
}

static bool run_case(const Batch *b, int i, double *worst) {
    uint64_t seed = b->first + (uint64_t)i;
    WholeExpected *e = whole_expect(&b->c[i]);
    WholeResult first = {0};
    bool ok = e != NULL;
    for (int v = 0; ok && v < VARIANTS; v++)
        for (int k = 0; ok && k < 3 && threads[v][k] > 0; k++) {
            WholeResult r;
            ok = complain(seed, v, threads[v][k],
                          whole_run(b->whole[i][v], b->object, e, threads[v][k], &r));
            if (v == 0 && k == 0) {
                ok &= complain(seed, v, threads[v][k], whole_compare(e, &r, worst));
                first = r;
                continue;
            }
            ok = ok && complain(seed, v, threads[v][k], whole_compare_bits(&first, &r));
            whole_result_free(&r);
        }
    whole_result_free(&first);
    if (e != NULL) whole_expected_free(e);
    return ok;
}

static int run_seeds(Range range, const char *cc) {
    static Batch b;
    int failed = 0;
    uint64_t end = range.first + range.count;
    for (uint64_t at = range.first; at < end; at += BATCH) {
        batch_build(&b, at, end - at < BATCH ? (int)(end - at) : BATCH, cc);
        for (int i = 0; i < b.n; i++) {
            double worst = 0;
            failed += !run_case(&b, i, &worst);
            if (range.told)
                printf("seed %llu: %.3f of what is allowed, %u launches\n",
                       (unsigned long long)at + (unsigned)i, worst, whole_launches(b.whole[i][0]));
        }
        if (range.told) printf("%u kernels\n", object_count(b.object));
        batch_free(&b);
    }
    return failed;
}

static void test_random_graphs(void **state) {
    (void)state;
    assert_int_equal(run_seeds(seeds(150, 1000), NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
