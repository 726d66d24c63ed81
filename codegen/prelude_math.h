/* prelude_math.h - the vocabulary of ops.def over float and int32_t, for C and for CUDA C. Printed
 * after the target's prelude, which gives INF_INLINE, inf_bits, inf_from_bits, and for CUDA
 * INF_FMA, INF_EX2 (2^x of the chip), INF_RCP (1 / x of the chip) and INF_NAN_MAX, INF_NAN_MIN.
 *
 * The functions have no branches, so loops over them become vector code without -ffast-math, and a
 * value has the same bits in a vector, in a loop's tail, fused or alone. Errors are at most 2 units
 * in the last place, 4 on CUDA; 0, infinities, NaN and denormals come out as in IEEE arithmetic,
 * but for exp and exp2 on CUDA, which have 0 for what would be denormal.
 * CUDA has its own exp, tanh and erf, of half as many instructions: a GPU's elementwise kernels
 * have about 30 for each element before memory waits for them. Sources of the polynomials: Cephes
 * (exp, log, tanh), N. Juffa (erf).
 */

/* log(m * 2^e), m in [sqrt(1/2), sqrt(2)); denormals are scaled up first. */
INF_INLINE float inf_log(float x) {
    int32_t small = x < 1.17549435e-38f;
    float t = small ? x * 33554432.0f : x;
    uint32_t u = inf_bits(t) - 0x3F3504F3u; /* bits of sqrt(1/2) */
    int32_t e = (int32_t)u >> 23;
    float m = inf_from_bits((u & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    float n = (float)(small ? e - 25 : e);
    float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float y = p * m * z + n * -2.12194440e-4f - 0.5f * z;
    y = m + y + n * 0.693359375f;
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return ((x == __builtin_inff()) | (x != x)) ? x : y;
}

#ifndef INF_EX2

/* 2^i * exp(r), |r| <= ln 2 / 2; 2^i in two factors, so that denormals round once. */
INF_INLINE float inf_scaled_exp(float r, int32_t i) {
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t half = i >> 1;
    float s1 = inf_from_bits((uint32_t)(half + 127) << 23);
    float s2 = inf_from_bits((uint32_t)(i - half + 127) << 23);
    return p * s1 * s2;
}

/* exp(x) = 2^n * exp(x - n ln 2). */
INF_INLINE float inf_exp(float x) {
    float t = x < -104.0f ? -104.0f : x;
    t = t > 89.0f ? 89.0f : t;
    float shifted = t * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    int32_t i = (int32_t)(inf_bits(shifted) - 0x4B400000u);
    float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
    float y = inf_scaled_exp(r, i);
    return x > 88.7228394f ? __builtin_inff() : y;
}

/* 2^x = 2^n * exp((x - n) ln 2). */
INF_INLINE float inf_exp2(float x) {
    float t = x < -151.0f ? -151.0f : x;
    t = t > 129.0f ? 129.0f : t;
    float shifted = t + 12582912.0f;
    float n = shifted - 12582912.0f;
    int32_t i = (int32_t)(inf_bits(shifted) - 0x4B400000u);
    float y = inf_scaled_exp((t - n) * 0.693147181f, i);
    return x >= 128.0f ? __builtin_inff() : y;
}

INF_INLINE float inf_tanh(float x) {
    float a = __builtin_fabsf(x);
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    float q = 1.0f - 2.0f / (inf_exp(2.0f * a) + 1.0f);
    return __builtin_copysignf(a < 0.625f ? p : q, x);
}

INF_INLINE float inf_sigmoid(float x) { return 1.0f / (1.0f + inf_exp(-x)); }

INF_INLINE float inf_erf(float x) {
    float a = __builtin_fabsf(x);
    float z = x * x;
    float p = -5.96761703e-4f;
    p = p * z + 4.99119423e-3f;
    p = p * z - 2.67681349e-2f;
    p = p * z + 1.12819925e-1f;
    p = p * z - 3.76125336e-1f;
    p = p * z + 1.28379166e-1f;
    p = p * x + x;
    float c = a > 4.0f ? 4.0f : a;
    float q = -1.72853470e-5f * c + 3.83197126e-4f;
    q = q * (c * c) + (-3.88396438e-3f * c + 2.42546219e-2f);
    q = q * c - 1.06777877e-1f;
    q = q * c - 6.34846687e-1f;
    q = q * c - 1.28717512e-1f;
    q = q * c - c;
    q = __builtin_copysignf(1.0f - inf_exp(q), x);
    return a > 0.927734375f ? q : p;
}

#else /* CUDA */

/* exp(x) = 2^(x log2 e), the product in two parts of which the second corrects the result. Beyond
 * the limits the result is 0 or infinite. */
INF_INLINE float inf_exp(float x) {
    float t = INF_NAN_MIN(INF_NAN_MAX(x, -110.0f), 89.0f);
    float high = t * 1.44269504f;
    float low = INF_FMA(t, 1.44269504f, -high);
    low = INF_FMA(t, 1.92596299e-8f, low);
    return INF_EX2(high) * INF_FMA(low, 0.693147181f, 1.0f);
}

/* Large values: 1 - 2 / (exp(2 |x|) + 1), in which an error of the exponential hardly shows. */
INF_INLINE float inf_tanh(float x) {
    float a = fabsf(x);
    float z = x * x;
    float p = INF_FMA(-5.70498872745e-3f, z, 2.06390887954e-2f);
    p = INF_FMA(p, z, -5.37397155531e-2f);
    p = INF_FMA(p, z, 1.33314422036e-1f);
    p = INF_FMA(p, z, -3.33332819422e-1f);
    p = INF_FMA(p * z, x, x);
    float q = INF_FMA(-2.0f, INF_RCP(INF_EX2(a * 2.88539008f) + 1.0f), 1.0f);
    return copysignf(a < 0.625f ? p : q, x);
}

INF_INLINE float inf_sigmoid(float x) { return INF_RCP(1.0f + inf_exp(-x)); }

INF_INLINE float inf_erf(float x) {
    float a = fabsf(x);
    float z = x * x;
    float p = INF_FMA(-5.96761703e-4f, z, 4.99119423e-3f);
    p = INF_FMA(p, z, -2.67681349e-2f);
    p = INF_FMA(p, z, 1.12819925e-1f);
    p = INF_FMA(p, z, -3.76125336e-1f);
    p = INF_FMA(p, z, 1.28379166e-1f);
    p = INF_FMA(p, x, x);
    float c = INF_NAN_MIN(a, 4.0f);
    float q = INF_FMA(-1.72853470e-5f, c, 3.83197126e-4f);
    q = INF_FMA(q, c * c, INF_FMA(-3.88396438e-3f, c, 2.42546219e-2f));
    q = INF_FMA(q, c, -1.06777877e-1f);
    q = INF_FMA(q, c, -6.34846687e-1f);
    q = INF_FMA(q, c, -1.28717512e-1f);
    q = INF_FMA(q, c, -c);
    q = copysignf(1.0f - inf_exp(q), x);
    return a > 0.927734375f ? q : p;
}

#endif

/* bf16 is the upper half of a float. A temporary of that type is a float that was rounded where it
 * was made: to nearest, ties to even, NaN to 0x7FFF, as the GPU's conversion does. */
INF_INLINE float inf_from_bf16(inf_bf16 x) { return inf_from_bits((uint32_t)x << 16); }

INF_INLINE inf_bf16 inf_to_bf16(float x) { return (inf_bf16)(inf_bits(x) >> 16); }

INF_INLINE float inf_round_bf16(float x) {
#ifdef __CUDA_ARCH__
    inf_bf16 half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return inf_from_bf16(half);
#else
    uint32_t u = inf_bits(x);
    u = (u + 0x7FFFu + (u >> 16 & 1u)) & 0xFFFF0000u;
    return inf_from_bits(x != x ? 0x7FFF0000u : u);
#endif
}

/* The vocabulary of ops.def: over float, and with I over int32_t. */
#define L(x)         x##f
#define SEL(c, x, y) ((c) ? (x) : (y))
#ifdef INF_NAN_MAX
#define MAX(x, y) INF_NAN_MAX(x, y)
#define MIN(x, y) INF_NAN_MIN(x, y)
#else
#define MAX(x, y) SEL(((x) > (y)) | ((x) != (x)), x, y)
#define MIN(x, y) SEL(((x) < (y)) | ((x) != (x)), x, y)
#endif
#define EXP(x) inf_exp(x)
#ifdef INF_EX2
#define EXP2(x) INF_EX2(x)
#else
#define EXP2(x) inf_exp2(x)
#endif
#define LOG(x)        inf_log(x)
#define TANH(x)       inf_tanh(x)
#define ERF(x)        inf_erf(x)
#define SIGMOID(x)    inf_sigmoid(x)
#define SQRT(x)       __builtin_sqrtf(x)
#define SIN(x)        __builtin_sinf(x)
#define COS(x)        __builtin_cosf(x)
#define POW(x, y)     __builtin_powf(x, y)
#define FABS(x)       __builtin_fabsf(x)
#define FLOOR(x)      __builtin_floorf(x)
#define LI(x)         ((int32_t)(x))
#define SELI(c, x, y) ((c) ? (x) : (y))
#define MAXI(x, y)    ((x) > (y) ? (x) : (y))
#define MINI(x, y)    ((x) < (y) ? (x) : (y))
#define FABSI(x)      ((x) < 0 ? -(x) : (x))
#define FLOORI(x)     (x)
#define POWI(x, y)    ((int32_t)__builtin_pow((double)(x), (double)(y)))
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
