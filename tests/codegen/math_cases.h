/* math_cases.h - the functions of prelude_math.h against f64: included by a test that has included
 * the prelude of a target and says how many units in the last place may be wrong (ULPS_MAX).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

static double ulps(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : HUGE_VAL;
    if (isinf((float)want) || isinf(got)) return got == (float)want ? 0 : HUGE_VAL;
    int e;
    frexp(want, &e);
    double unit = ldexp(1, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)got - want) / unit;
}

static float call_exp(float x) { return inf_exp(x); }
static float call_exp2(float x) { return EXP2(x); }
static float call_log(float x) { return inf_log(x); }
static float call_tanh(float x) { return inf_tanh(x); }
static float call_erf(float x) { return inf_erf(x); }

/* All floats in steps of a prime: every exponent, both signs, NaN and infinities. */
static void accuracy(void **state) {
    (void)state;
    static const struct {
        float (*got)(float);
        double (*want)(double);
    } f[] = {
        {call_exp, exp}, {call_exp2, exp2}, {call_log, log}, {call_tanh, tanh}, {call_erf, erf}};
    uint64_t step = getenv("INFINIC_LONG") ? 97 : 10007;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
            float x = inf_from_bits((uint32_t)bits);
            assert_true(ulps(f[i].got(x), f[i].want((double)x)) <= ULPS_MAX);
        }
}

static void exact_places(void **state) {
    (void)state;
    const float inf = (float)INFINITY;
    assert_true(inf_exp(0.0f) == 1 && inf_exp(-inf) == 0 && inf_exp(inf) == inf);
    assert_true(EXP2(0.0f) == 1 && EXP2(-inf) == 0 && EXP2(inf) == inf && EXP2(-3.0f) == 0.125f);
    assert_true(inf_log(1.0f) == 0 && inf_log(0.0f) == -inf && inf_log(inf) == inf);
    assert_true(isnan(inf_log(-1.0f)));
    assert_true(inf_tanh(inf) == 1 && inf_tanh(-inf) == -1 && signbit(inf_tanh(-0.0f)));
    assert_true(inf_erf(inf) == 1 && inf_erf(-inf) == -1 && signbit(inf_erf(-0.0f)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(accuracy), cmocka_unit_test(exact_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
