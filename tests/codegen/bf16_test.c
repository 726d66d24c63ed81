/* bf16_test.c - bf16 as a storage type: kernels that read and write it compute in f32. */
#include "ir/bf16.h"
#include "tests/codegen/kernels.h"
#include "tests/codegen/object.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* Half a unit in the last of 8 places, with room for f32's own error beside a tie. */
#define HALF_PLACE (1.01 / 256)

static void rounds_to_even(void **state) {
    (void)state;
    static const struct {
        uint32_t from, to;
    } row[] = {
        {0x3F800000, 0x3F800000}, /* exact */
        {0x3F808000, 0x3F800000}, /* ties: down to even */
        {0x3F818000, 0x3F820000}, /* up to even */
        {0x3F808001, 0x3F810000}, {0x3F807FFF, 0x3F800000}, {0xBF818000, 0xBF820000},
        {0x7F7FFFFF, 0x7F800000}, /* the largest float is beyond the largest bf16 */
        {0x7F800000, 0x7F800000}, {0xFF800000, 0xFF800000}, {0x7F800001, 0x7FFF0000},
        {0xFFC12345, 0x7FFF0000}, {0x00008000, 0x00000000}, {0x00018000, 0x00020000},
        {0x80000001, 0x80000000},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        float x;
        uint32_t got;
        memcpy(&x, &row[i].from, sizeof x);
        x = bf16_round(x);
        memcpy(&got, &x, sizeof got);
        assert_int_equal(got, row[i].to);
    }
}

/* What is rounded in the text of C and CUDA is what bf16_round says, for every kind of number. */
static void same_rounding(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "map", .input = INPUT_special, .tolerance = HALF_PLACE};
    c.body = "(%0: f32[6,64]) { %1 = cast %0 : bf16[6,64] %2 = cast %1 : f32[6,64] "
             "return %0, %1, %2 }";
    int wide = kernels_add(s, c);
    c.body = "(%0: f32[7,5]) { %1 = cast %0 : bf16[7,5] %2 = cast %1 : f32[7,5] "
             "return %0, %1, %2 }";
    int narrow = kernels_add(s, c);
    assert_int_equal(kernels_run(s), 0);
    for (int i = 0; i < 6 * 64 + 7 * 5; i++) {
        int which = i < 6 * 64 ? wide : narrow, at = i < 6 * 64 ? i : i - 6 * 64;
        float want = bf16_round((float)kernels_result(s, which, 0)[at]);
        for (int r = 1; r <= 2; r++) {
            float got = (float)kernels_result(s, which, r)[at];
            assert_memory_equal(&got, &want, sizeof got);
        }
    }
    kernels_free(s);
}

/* Every op of two kinds of kernels beside casts, in widths that have eight, four and one neighbour
 * a thread; f32 and bf16 side by side. */
static void maps(void **state) {
    (void)state;
    static const int width[] = {64, 24, 12, 7};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 4; i++) {
        int n = width[i];
        KernelCase c = {.form = "map", .tolerance = HALF_PLACE};
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d], %%1: f32[9,%d]) { %%2 = cast %%0 : f32[9,%d] "
                     "%%3 = mul %%2, %%1 : f32[9,%d] %%4 = gelu_tanh %%3 : f32[9,%d] "
                     "%%5 = cast %%4 : bf16[9,%d] return %%5, %%3 }",
                     n, n, n, n, n, n);
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d], %%1: bf16[%d]) { %%2 = cast %%0 : f32[9,%d] "
                     "%%3 = broadcast %%1 {axes=[1]} : bf16[9,%d] %%4 = cast %%3 : f32[9,%d] "
                     "%%5 = add %%2, %%4 : f32[9,%d] %%6 = cast %%5 : bf16[9,%d] return %%6 }",
                     n, n, n, n, n, n, n);
        kernels_addf(s, c,
                     "(%%0: bf16[%d,9]) { %%1 = transpose %%0 {perm=[1,0]} : bf16[9,%d] "
                     "%%2 = cast %%1 : f32[9,%d] %%3 = exp %%2 : f32[9,%d] return %%3, %%1 }",
                     n, n, n, n);
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d], %%1: bf16[9,8]) { %%2 = concat %%0, %%1 {axis=1} : "
                     "bf16[9,%d] %%3 = cast %%2 : f32[9,%d] return %%2, %%3 }",
                     n, n + 8, n + 8);
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d]) { %%1 = pad %%0 {low=[0,8], high=[1,0], value=-0.5} : "
                     "bf16[10,%d] return %%1 }",
                     n, n + 8);
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d]) { %%1 = cast %%0 : f32[9,%d] "
                     "%%2 = random_uniform {stream=3} : f32[9,%d] %%3 = add %%1, %%2 : f32[9,%d] "
                     "%%4 = cast %%3 : bf16[9,%d] return %%4 }",
                     n, n, n, n, n);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void reductions(void **state) {
    (void)state;
    static const int width[] = {768, 100, 7};
    KernelSet *s = kernels_new();
    for (int i = 0; i < 3; i++) {
        int n = width[i];
        KernelCase c = {.form = "reduce", .tolerance = HALF_PLACE};
        kernels_addf(s, c,
                     "(%%0: bf16[9,%d], %%1: bf16[9,%d]) { %%2 = cast %%0 : f32[9,%d] "
                     "%%3 = cast %%1 : f32[9,%d] %%4 = add %%2, %%3 : f32[9,%d] "
                     "%%5 = cast %%4 : bf16[9,%d] %%6 = cast %%5 : f32[9,%d] "
                     "%%7 = reduce_sum %%6 {axes=[1]} : f32[9] "
                     "%%8 = broadcast %%7 {axes=[0]} : f32[9,%d] %%9 = sub %%6, %%8 : f32[9,%d] "
                     "%%10 = cast %%9 : bf16[9,%d] return %%5, %%7, %%10 }",
                     n, n, n, n, n, n, n, n, n, n);
        c.tolerance = 1e-4; /* of a sum of up to 768 terms in f32 */
        kernels_addf(s, c,
                     "(%%0: bf16[300,%d]) { %%1 = cast %%0 : f32[300,%d] "
                     "%%2 = reduce_sum %%1 {axes=[0]} : f32[%d] %%3 = mul %%1, %%1 : f32[300,%d] "
                     "%%4 = reduce_sum %%3 {axes=[0]} : f32[%d] return %%2, %%4 }",
                     n, n, n, n, n);
        if (!object_is_cuda()) continue; /* columns that are stored on the way */
        c.tolerance = HALF_PLACE;
        kernels_addf(s, c,
                     "(%%0: bf16[300,%d], %%1: f32[300,%d], %%2: f32[%d]) { "
                     "%%3 = cast %%0 : f32[300,%d] %%4 = mul %%3, %%1 : f32[300,%d] "
                     "%%5 = cast %%4 : bf16[300,%d] %%6 = cast %%5 : f32[300,%d] "
                     "%%7 = reduce_sum %%6 {axes=[0]} : f32[%d] %%8 = add %%2, %%7 : f32[%d] "
                     "return %%5, %%8, %%4 }",
                     n, n, n, n, n, n, n, n, n);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void tables(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    KernelCase c = {.form = "gather", .limit = 11, .tolerance = HALF_PLACE};
    c.body = "(%0: bf16[11,16], %1: i32[5,3]) { %2 = gather %0, %1 : bf16[5,3,16] return %2 }";
    kernels_add(s, c);
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Softmax of long rows and its column sums, so that rows wait in shared memory on CUDA, and eight
 * neighbours are read at once. */
static void long_rows(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    kernels_add(s, (KernelCase){.form = "reduce",
                                .tolerance = 4e-3,
                                .body = "(%0: bf16[264,30000]) { %1 = cast %0 : f32[264,30000] "
                                        "%2 = reduce_max %1 {axes=[1]} "
                                        "%3 = broadcast %2 {axes=[0]} : f32[264,30000] "
                                        "%4 = sub %1, %3 %5 = exp %4 %6 = reduce_sum %5 {axes=[1]} "
                                        "%7 = broadcast %6 {axes=[0]} : f32[264,30000] "
                                        "%8 = div %5, %7 %9 = cast %8 : bf16[264,30000] "
                                        "return %9, %6 }"});
    kernels_add(s, (KernelCase){.form = "reduce",
                                .tolerance = 3e-5,
                                .body = "(%0: bf16[1500,768], %1: f32[1500]) { "
                                        "%2 = cast %0 : f32[1500,768] "
                                        "%3 = broadcast %1 {axes=[0]} : f32[1500,768] "
                                        "%4 = mul %2, %3 %5 = reduce_sum %4 {axes=[0]} "
                                        "%6 = reduce_sum %2 {axes=[0]} return %5, %6 }"});
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_to_even), cmocka_unit_test(same_rounding),
        cmocka_unit_test(maps),           cmocka_unit_test(reductions),
        cmocka_unit_test(tables),         cmocka_unit_test(long_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
