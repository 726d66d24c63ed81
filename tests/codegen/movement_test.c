/* movement_test.c - movement inside kernels, random numbers, pooling and gathers. */
#include "tests/codegen/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ops that take f32[6,8] to f32[6,8] or to a shape that the next one of the pair accepts. */
static const struct {
    const char *op, *attr;
    int64_t from[2], to[2];
} move[] = {
    {"transpose", "{perm=[1,0]}", {6, 8}, {8, 6}},
    {"transpose", "{perm=[1,0]}", {8, 6}, {6, 8}},
    {"slice", "{begin=[1,0], end=[5,8], step=[1,1]}", {6, 8}, {4, 8}},
    {"slice", "{begin=[0,1], end=[6,8], step=[2,3]}", {6, 8}, {3, 3}},
    {"pad", "{low=[1,0], high=[2,3], value=7.5}", {6, 8}, {9, 11}},
    {"pad", "{low=[0,2], high=[0,0], value=-1.0}", {4, 8}, {4, 10}},
    {"reshape", "", {6, 8}, {4, 12}},
    {"reshape", "", {9, 11}, {11, 9}},
    {"reshape", "", {8, 6}, {6, 8}},
    {"reshape", "", {4, 8}, {8, 4}},
    {"copy", "", {3, 3}, {3, 3}},
    {"pad", "{low=[1,1], high=[1,1], value=0.0}", {4, 12}, {6, 14}},
    {"slice", "{begin=[2,1], end=[11,9], step=[3,2]}", {11, 9}, {3, 4}},
    {"transpose", "{perm=[1,0]}", {4, 12}, {12, 4}},
};

enum { MOVES = sizeof move / sizeof move[0] };

/* Every pair of movement ops that fit, with arithmetic between (CASES G16). */
static void pairs(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    for (int i = 0; i < MOVES; i++)
        for (int j = 0; j < MOVES; j++) {
            if (memcmp(move[i].to, move[j].from, sizeof move[i].to) != 0) continue;
            const int64_t *a = move[i].from, *b = move[i].to, *c = move[j].to;
            kernels_addf(
                s, (KernelCase){.form = "map"},
                "(%%0: f32[%d,%d]) { %%1 = %s %%0 %s : f32[%d,%d] %%2 = exp %%1 : f32[%d,%d] "
                "%%3 = %s %%2 %s : f32[%d,%d] %%4 = neg %%3 : f32[%d,%d] return %%4, %%3 }",
                (int)a[0], (int)a[1], move[i].op, move[i].attr, (int)b[0], (int)b[1], (int)b[0],
                (int)b[1], move[j].op, move[j].attr, (int)c[0], (int)c[1], (int)c[0], (int)c[1]);
        }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void others(void **state) {
    (void)state;
    static const char *const body[] = {
        "(%0: f32[3,4], %1: f32[3,2], %2: f32[3,5]) { %3 = concat %0, %1, %2 {axis=1} : f32[3,11] "
        "%4 = exp %3 : f32[3,11] return %4 }",
        "(%0: f32[2,5], %1: f32[3,5]) { %2 = concat %0, %1 {axis=0} : f32[5,5] %3 = transpose %2 "
        "{perm=[1,0]} : f32[5,5] "
        "%4 = add %2, %3 : f32[5,5] return %4 }",
        "(%0: f32[4,6], %1: f32[24]) { %2 = reshape %0 : f32[24] %3 = concat %2, %1 {axis=0} : "
        "f32[48] "
        "%4 = reshape %3 : f32[6,8] return %4 }",
        "(%0: f32[16], %1: f32[2,16,5,5]) { %2 = broadcast %0 {axes=[1]} : f32[2,16,5,5] "
        "%3 = add %1, %2 : f32[2,16,5,5] %4 = relu %3 : f32[2,16,5,5] %5 = reshape %4 : f32[2,400] "
        "return %5 }",
        "(%0: f32[1,4]) { %1 = broadcast %0 {axes=[0,1]} : f32[3,4] return %1 }",
        "(%0: f32[3,1]) { %1 = broadcast %0 {axes=[0,1]} : f32[3,4] return %1 }",
        "(%0: f32[]) { %1 = broadcast %0 {axes=[]} : f32[3,4] return %1 }",
        "(%0: f32[7,9]) { %1 = iota {axis=0} : i32[7,9] %2 = cast %1 : f32[7,9] %3 = add %0, %2 : "
        "f32[7,9] return %3 }",
        "(%0: f32[7,9]) { %1 = iota {axis=1} : i32[7,9] %2 = cast %1 : f32[7,9] %3 = mul %0, %2 : "
        "f32[7,9] return %3 }",
        "(%0: f32[5,33]) { %1 = random_uniform {stream=3} : f32[5,33] %2 = mul %0, %1 : f32[5,33] "
        "return %2, %1 }",
        "(%0: f32[33,5]) { %1 = random_uniform {stream=4} : f32[5,33] %2 = transpose %1 "
        "{perm=[1,0]} : f32[33,5] "
        "%3 = add %2, %0 : f32[33,5] return %3 }",
        "(%0: f32[100000], %1: f32[]) { %2 = broadcast %1 {axes=[]} : f32[100000] %3 = mul %0, %2 "
        ": f32[100000] return %3 }",
        "(%0: f32[3,20000]) { %1 = relu %0 : f32[3,20000] return %1 }",
        "(%0: f32[2,3,4,5]) { %1 = transpose %0 {perm=[0,2,1,3]} : f32[2,4,3,5] %2 = reshape %1 : "
        "f32[8,15] return %2 }",
        "(%0: f32[0,4]) { %1 = relu %0 : f32[0,4] return %1 }",
        "(%0: bool[30], %1: i32[30]) { %2 = not %0 : bool[30] %3 = neg %1 : i32[30] return %2, %3 "
        "}",
    };
    KernelSet *s = kernels_new();
    for (size_t i = 0; i < sizeof body / sizeof body[0]; i++)
        kernels_add(s, (KernelCase){.form = "map", .body = body[i]});
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

static void pooling(void **state) {
    (void)state;
    static const int64_t sweep[][4] = {/* size, window, stride, padding */
                                       {8, 2, 2, 0},  {9, 3, 2, 1}, {7, 3, 1, 1},
                                       {11, 2, 3, 0}, {6, 5, 1, 2}, {13, 6, 4, 1}};
    KernelSet *s = kernels_new();
    for (size_t i = 0; i < sizeof sweep / sizeof sweep[0]; i++) {
        const int64_t *w = sweep[i];
        int h = (int)w[0], x = h + 3, oh = (int)((w[0] + 2 * w[3] - w[1]) / w[2] + 1),
            ow = (int)((x + 2 * w[3] - w[1]) / w[2] + 1);
        char attr[96];
        sprintf(attr, "{window=[%d,%d], stride=[%d,%d], padding=[%d,%d]}", (int)w[1], (int)w[1],
                (int)w[2], (int)w[2], (int)w[3], (int)w[3]);
        for (int input = INPUT_plain; input <= INPUT_equal; input++)
            kernels_addf(s, (KernelCase){.form = "max_pool2d", .input = (KernelInput)input},
                         "(%%0: f32[2,3,%d,%d]) { %%1, %%2 = max_pool2d %%0 %s : f32[2,3,%d,%d], "
                         "i32[2,3,%d,%d] "
                         "%%3 = neg %%1 : f32[2,3,%d,%d] return %%3, %%2 }",
                         h, x, attr, oh, ow, oh, ow, oh, ow);
        kernels_addf(s, (KernelCase){.input = INPUT_plain},
                     "(%%0: f32[2,3,%d,%d], %%1: f32[2,3,%d,%d]) { %%2, %%3 = max_pool2d %%0 %s : "
                     "f32[2,3,%d,%d], "
                     "i32[2,3,%d,%d] %%4 = max_pool2d_dx %%3, %%1 %s : f32[2,3,%d,%d] return %%4 }",
                     h, x, oh, ow, attr, oh, ow, oh, ow, attr, h, x);
        kernels_addf(
            s, (KernelCase){.form = "avg_pool2d"},
            "(%%0: f32[2,3,%d,%d]) { %%1 = avg_pool2d %%0 %s : f32[2,3,%d,%d] return %%1 }", h, x,
            attr, oh, ow);
        kernels_addf(s, (KernelCase){.form = "avg_pool2d_dx"},
                     "(%%0: f32[2,3,%d,%d], %%1: f32[2,3,%d,%d]) { %%2 = avg_pool2d_dx %%0 %s : "
                     "f32[2,3,%d,%d] "
                     "%%3 = add %%2, %%1 : f32[2,3,%d,%d] return %%3 }",
                     oh, ow, h, x, attr, h, x, h, x);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Random numbers are those of their elements, however the loops are cut. */
static void random_rows(void **state) {
    (void)state;
    static const char *const body[] = {
        "(%0: f32[30000]) { %1 = random_uniform {stream=1} : f32[30000] "
        "%2 = const {value=0.9} : f32[30000] %3 = lt %1, %2 : bool[30000] "
        "%4 = const {value=0.0} : f32[30000] %5 = select %3, %0, %4 : f32[30000] return %5, %3 }",
        "(%0: f32[7,9001]) { %1 = random_uniform {stream=2} : f32[7,9001] "
        "%2 = mul %0, %1 : f32[7,9001] return %2 }",
        "(%0: f32[3,50]) { %1 = random_uniform {stream=5} : f32[3,50] "
        "%2 = slice %1 {begin=[0,3], end=[3,50], step=[1,2]} : f32[3,24] return %2 }",
    };
    KernelSet *s = kernels_new();
    for (size_t i = 0; i < sizeof body / sizeof body[0]; i++)
        kernels_add(s, (KernelCase){.form = "map", .body = body[i]});
    kernels_add(s, (KernelCase){.form = "reduce",
                                .tolerance = 1e-5,
                                .body = "(%0: f32[4,150]) { %1 = random_uniform {stream=1} : "
                                        "f32[4,150] %2 = mul %0, %1 : f32[4,150] "
                                        "%3 = reduce_sum %2 {axes=[1]} : f32[4] "
                                        "%4 = broadcast %3 {axes=[0]} : f32[4,150] "
                                        "%5 = sub %2, %4 : f32[4,150] return %5, %3 }"});
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Indices outside the table read nothing and add nothing (CASES G12). */
static void gathers(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    static const int64_t shape[][3] = {
        /* V, I, D */ {10, 64, 7}, {5, 1, 1}, {50, 33, 1100}, {1, 9, 3}, {300, 20, 16}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        int v = (int)shape[i][0], n = (int)shape[i][1], d = (int)shape[i][2];
        kernels_addf(
            s, (KernelCase){.form = "gather", .limit = v + 1},
            "(%%0: f32[%d,%d], %%1: i32[%d], %%2: f32[%d,%d]) { %%3 = gather %%0, %%1 : f32[%d,%d] "
            "%%4 = add %%3, %%2 : f32[%d,%d] return %%4 }",
            v, d, n, n, d, n, d, n, d);
        kernels_addf(s, (KernelCase){.form = "gather_dw", .limit = v + 1, .tolerance = 2e-5},
                     "(%%0: i32[%d], %%1: f32[%d,%d], %%2: f32[%d,%d]) { %%3 = gather_dw %%0, %%1 "
                     ": f32[%d,%d] "
                     "%%4 = add %%2, %%3 : f32[%d,%d] return %%4 }",
                     n, n, d, v, d, v, d, v, d);
    }
    kernels_add(
        s, (KernelCase){
               .form = "gather",
               .limit = 12,
               .body = "(%0: f32[11], %1: i32[3,5]) { %2 = gather %0, %1 : f32[3,5] return %2 }"});
    kernels_add(
        s,
        (KernelCase){
            .form = "gather_dw",
            .limit = 12,
            .body = "(%0: i32[3,5], %1: f32[3,5]) { %2 = gather_dw %0, %1 : f32[11] return %2 }"});
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Tables whose gradient sorts the indices on CUDA: rows that many indices name and rows that none
 * does, more rows than buckets, columns in several tiles, in fours and not. */
static void large_tables(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    static const int64_t shape[][4] = {/* V, I, D, named rows */ {4000, 600, 16, 4000},
                                       {4000, 1500, 8, 12},
                                       {300, 3000, 33, 300},
                                       {70000, 300, 4, 70000},
                                       {3, 2100, 700, 3},
                                       {1000, 1030, 300, 900}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        int v = (int)shape[i][0], n = (int)shape[i][1], d = (int)shape[i][2];
        kernels_addf(s,
                     (KernelCase){.form = "gather_dw", .limit = shape[i][3] + 1, .tolerance = 1e-4},
                     "(%%0: i32[%d], %%1: f32[%d,%d], %%2: f32[%d,%d]) { %%3 = gather_dw %%0, %%1 "
                     ": f32[%d,%d] "
                     "%%4 = add %%2, %%3 : f32[%d,%d] return %%4 }",
                     n, n, d, v, d, v, d, v, d);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

/* Places before and beyond the tensor are dropped. */
static void puts_places(void **state) {
    (void)state;
    KernelSet *s = kernels_new();
    static const int64_t shape[][4] = {/* outer, S, T, inner */
                                       {2, 7, 1, 16}, {3, 5, 3, 5}, {1, 4, 4, 1}, {6, 64, 2, 33}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        int o = (int)shape[i][0], n = (int)shape[i][1], t = (int)shape[i][2], d = (int)shape[i][3];
        kernels_addf(s, (KernelCase){.form = "put", .limit = n + 2},
                     "(%%0: f32[%d,%d,%d], %%1: f32[%d,%d,%d], %%2: i32[1]) { %%3 = put %%0, %%1, "
                     "%%2 {axis=1} : f32[%d,%d,%d] return %%3 }",
                     o, n, d, o, t, d, o, n, d);
        kernels_addf(s, (KernelCase){.form = "put", .limit = d + 2},
                     "(%%0: f32[%d,%d], %%1: f32[%d,1], %%2: i32[1]) { %%3 = put %%0, %%1, %%2 "
                     "{axis=1} : f32[%d,%d] return %%3 }",
                     o, d, o, o, d);
    }
    assert_int_equal(kernels_run(s), 0);
    kernels_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs),   cmocka_unit_test(others),      cmocka_unit_test(pooling),
        cmocka_unit_test(gathers), cmocka_unit_test(random_rows), cmocka_unit_test(large_tables),
        cmocka_unit_test(puts_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
