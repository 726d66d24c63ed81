/* prelude.h - what generated C kernels use beside prelude_math.h: 16-lane vectors, folds, random
 * numbers. Carried inside infinic as text and printed before the kernels, after plan.h.
 */
typedef uint16_t inf_bf16;
typedef float inf_v16 __attribute__((vector_size(64)));
typedef float inf_v8 __attribute__((vector_size(32)));
typedef float inf_v16u __attribute__((vector_size(64), aligned(4), may_alias));

#define INF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define INF_INLINE    static inline __attribute__((always_inline, unused))

INF_INLINE float inf_from_bits(uint32_t u) {
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

INF_INLINE uint32_t inf_bits(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}

/* Folds x[0 .. n) of type T by halves with an expression in a and b, n a power of two up to 64. */
#define INF_FOLD_HALF(x, h, T, expr)                                                               \
    _Pragma("omp simd") for (int l_ = 0; l_ < (h); l_++) {                                         \
        const T a = (x)[l_], b = (x)[l_ + (h)];                                                    \
        (x)[l_] = expr;                                                                            \
    }
#define INF_FOLD(x, n, T, expr)                                                                    \
    {                                                                                              \
        if ((n) >= 64) INF_FOLD_HALF(x, 32, T, expr)                                               \
        if ((n) >= 32) INF_FOLD_HALF(x, 16, T, expr)                                               \
        if ((n) >= 16) INF_FOLD_HALF(x, 8, T, expr)                                                \
        if ((n) >= 8) INF_FOLD_HALF(x, 4, T, expr)                                                 \
        if ((n) >= 4) INF_FOLD_HALF(x, 2, T, expr)                                                 \
        INF_FOLD_HALF(x, 1, T, expr)                                                               \
    }

INF_INLINE inf_v16 inf_splat(float x) { return x - (inf_v16){0}; }

INF_INLINE inf_v16 inf_load16(const float *p) { return *(const inf_v16u *)p; }

INF_INLINE void inf_store16(float *p, inf_v16 v) { *(inf_v16u *)p = v; }

#define INF_SHUFFLE(...) __builtin_shufflevector(__VA_ARGS__)
#define INF_LOW(x)       INF_SHUFFLE(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define INF_HIGH(x)      INF_SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15)

/* a * b + c, rounded once in every lane. */
INF_INLINE inf_v16 inf_fma16(inf_v16 a, inf_v16 b, inf_v16 c) {
#if defined __AVX512F__
    return (inf_v16)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif defined __FMA__
    return INF_SHUFFLE(__builtin_ia32_vfmaddps256(INF_LOW(a), INF_LOW(b), INF_LOW(c)),
                       __builtin_ia32_vfmaddps256(INF_HIGH(a), INF_HIGH(b), INF_HIGH(c)), 0, 1, 2,
                       3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    float x[16], y[16], z[16];
    __builtin_memcpy(x, &a, sizeof x);
    __builtin_memcpy(y, &b, sizeof y);
    __builtin_memcpy(z, &c, sizeof z);
#pragma GCC unroll 1
    for (int lane = 0; lane < 16; lane++) z[lane] = __builtin_fmaf(x[lane], y[lane], z[lane]);
    __builtin_memcpy(&c, z, sizeof z);
    return c;
#endif
}

/* Stores the first n of lanes 8 to 15. */
INF_INLINE void inf_store_high(float *p, inf_v16 v, int64_t n) {
#if defined __AVX512F__
    typedef double v4d __attribute__((vector_size(32)));
    typedef double v8d __attribute__((vector_size(64)));
    inf_v8 high = (inf_v8)__builtin_ia32_extractf64x4_mask((v8d)v, 1, (v4d){0}, (unsigned char)-1);
#else
    inf_v8 high = INF_HIGH(v);
#endif
    __builtin_memcpy(p, &high, (uint64_t)n * sizeof(float));
}

/* Eight rows of 16 (the first `rows` are read) into 16 rows of `rows`: see inf_transpose. */
INF_INLINE void inf_transpose8(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                               int64_t rows, int64_t cols) {
    inf_v16 a[8], b[8], c[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        a[r] = (inf_v16){0};
        if (r < rows)
            __builtin_memcpy(&a[r], from + r * from_stride, (uint64_t)cols * sizeof(float));
    }
#pragma GCC unroll 4
    for (int r = 0; r < 8;
         r += 2) { /* pairs: b[r] has columns 0 1, b[r + 1] columns 2 3 of each four */
        b[r] =
            INF_SHUFFLE(a[r], a[r + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        b[r + 1] =
            INF_SHUFFLE(a[r], a[r + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4;
         j++) { /* c[j]: rows 0 to 3 of columns j, 4 + j, 8 + j, 12 + j; c[4 + j]: rows 4 to 7 */
        inf_v16 p = b[j / 2], q = b[j / 2 + 2], x = b[j / 2 + 4], y = b[j / 2 + 6];
        if (j % 2 == 0) {
            c[j] = INF_SHUFFLE(p, q, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            c[4 + j] = INF_SHUFFLE(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        } else {
            c[j] = INF_SHUFFLE(p, q, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
            c[4 + j] =
                INF_SHUFFLE(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        inf_v16 low =
            INF_SHUFFLE(c[j], c[4 + j], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        inf_v16 high = INF_SHUFFLE(c[j], c[4 + j], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28,
                                   29, 30, 31);
        float *d = to + j * to_stride;
        uint64_t bytes = (uint64_t)rows * sizeof(float);
        if (j < cols) __builtin_memcpy(d, &low, bytes);
        if (4 + j < cols) inf_store_high(d + 4 * to_stride, low, rows);
        if (8 + j < cols) __builtin_memcpy(d + 8 * to_stride, &high, bytes);
        if (12 + j < cols) inf_store_high(d + 12 * to_stride, high, rows);
    }
}

/* to[c * to_stride + r] = from[r * from_stride + c] for r < rows, c < cols. A last block of rows or
 * columns that would stand out is moved back, and turns some a second time. */
INF_INLINE void inf_transpose(float *restrict to, int64_t to_stride, const float *restrict from,
                              int64_t from_stride, int64_t rows, int64_t cols) {
    int64_t high = INF_MIN(8, rows), wide = INF_MIN(16, cols);
    for (int64_t i = 0; i < rows; i += 8)
        for (int64_t j = 0; j < cols; j += 16) {
            int64_t r = INF_MIN(i, rows - high), c = INF_MIN(j, cols - wide);
            float *t = to + c * to_stride + r;
            const float *f = from + r * from_stride + c;
            if (high == 8 && wide == 16)
                inf_transpose8(t, to_stride, f, from_stride, 8, 16);
            else
                inf_transpose8(t, to_stride, f, from_stride, high, wide);
        }
}

/* One number in [0, 1) with 24 bits: element `element` of a stream. */
INF_INLINE float inf_random1(const InfEnv *env, uint32_t stream, uint32_t iteration,
                             uint64_t element) {
    uint32_t r[4];
    inf_random4(env, stream, iteration, element / 4, r);
    return (float)(r[element % 4] >> 8) * 0x1p-24f;
}

/* The numbers of elements [first, first + n) of a stream. */
INF_INLINE void inf_random_fill(const InfEnv *env, uint32_t stream, uint32_t iteration,
                                uint64_t first, int64_t n, float *out) {
    for (int64_t i = 0; i < n;) {
        uint32_t r[4];
        inf_random4(env, stream, iteration, (first + (uint64_t)i) / 4, r);
        for (uint64_t lane = (first + (uint64_t)i) % 4; lane < 4 && i < n; lane++)
            out[i++] = (float)(r[lane] >> 8) * 0x1p-24f;
    }
}
