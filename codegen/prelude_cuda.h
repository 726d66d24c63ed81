/* prelude_cuda.h - what generated CUDA kernels use: types, 16-byte accesses, folds over threads,
 * random numbers. Carried inside infinic as text and printed before prelude_math.h and the kernels;
 * nothing is included, so that NVRTC needs no folder of headers.
 */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short inf_bf16;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define INF_INLINE            static __device__ __forceinline__
#define INF_KERNEL(threads)   extern "C" __global__ void __launch_bounds__(threads)
#define INF_COUNTERS(name, n) static __device__ uint32_t name[n];
#define INF_SHARED            __shared__ __align__(16)
#ifdef __CUDA_ARCH__
#define INF_DYNAMIC(T, name, n)                                                                    \
    extern __shared__ __align__(16) unsigned char inf_dynamic[];                                   \
    T *const name = (T *)inf_dynamic;
#else
#define INF_DYNAMIC(T, name, n) INF_SHARED T name[n];
#endif
#define INF_FMA(a, b, c)      __fmaf_rn(a, b, c)
#define INF_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define INF_EX2(x)            inf_ex2(x)
#define INF_RCP(x)            inf_rcp(x)
#define INF_NAN_MAX(x, y)     inf_nan_max(x, y)
#define INF_NAN_MIN(x, y)     inf_nan_min(x, y)

/* As in runtime/plan.h. */
struct InfDeviceMoment {
    uint64_t seed, step, position, end, count, key, half_bits;
};

struct InfDeviceEnv {
    const InfDeviceMoment *moment;
    int32_t microbatch;
    int32_t iter[4];
};

INF_INLINE float inf_from_bits(uint32_t u) { return __uint_as_float(u); }
INF_INLINE uint32_t inf_bits(float x) { return __float_as_uint(x); }

#define __builtin_inff()          inf_from_bits(0x7F800000u)
#define __builtin_nanf(s)         inf_from_bits(0x7FC00000u)
#define __builtin_fabsf(x)        fabsf(x)
#define __builtin_copysignf(x, y) copysignf(x, y)
#define __builtin_sqrtf(x)        __fsqrt_rn(x)
#define __builtin_sinf(x)         sinf(x)
#define __builtin_cosf(x)         cosf(x)
#define __builtin_powf(x, y)      powf(x, y)
#define __builtin_floorf(x)       floorf(x)
#define __builtin_pow(x, y)       pow(x, y)

/* One instruction each where a GPU compiles this, the same up to rounding in an emulation. Of two
 * numbers the greater, the less; a NaN wins. */
#ifdef __CUDA_ARCH__
#define INF_ONE(name, word)                                                                        \
    INF_INLINE float name(float x) {                                                               \
        float y;                                                                                   \
        asm(word " %0, %1;" : "=f"(y) : "f"(x));                                                   \
        return y;                                                                                  \
    }
#define INF_TWO(name, word, less)                                                                  \
    INF_INLINE float name(float x, float y) {                                                      \
        float z;                                                                                   \
        asm(word " %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));                                       \
        return z;                                                                                  \
    }
INF_ONE(inf_ex2, "ex2.approx.ftz.f32")
INF_ONE(inf_rcp, "rcp.approx.ftz.f32")
#else
#define INF_TWO(name, word, less)                                                                  \
    INF_INLINE float name(float x, float y) { return (x less y) | (x != x) ? x : y; }
INF_INLINE float inf_ex2(float x) { return __builtin_exp2f(x); }
INF_INLINE float inf_rcp(float x) { return 1.0f / x; }
#endif
INF_TWO(inf_nan_max, "max.NaN.f32", >)
INF_TWO(inf_nan_min, "min.NaN.f32", <)

/* Four or eight neighbours at once; addresses are multiples of what they take, 16 bytes at most. */
struct inf_f4 {
    float v[4];
};
struct inf_i4 {
    int32_t v[4];
};
struct inf_f8 {
    float v[8];
};
struct inf_i8 {
    int32_t v[8];
};

INF_INLINE inf_f4 inf_load4(const float *p) {
    const float4 q = *(const float4 *)p;
    const inf_f4 r = {{q.x, q.y, q.z, q.w}};
    return r;
}

INF_INLINE inf_i4 inf_load4(const int32_t *p) {
    const int4 q = *(const int4 *)p;
    const inf_i4 r = {{q.x, q.y, q.z, q.w}};
    return r;
}

INF_INLINE inf_i4 inf_load4(const uint8_t *p) {
    const uchar4 q = *(const uchar4 *)p;
    const inf_i4 r = {{q.x, q.y, q.z, q.w}};
    return r;
}

INF_INLINE void inf_store4(float *p, inf_f4 q) {
    *(float4 *)p = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

INF_INLINE void inf_store4(int32_t *p, inf_i4 q) {
    *(int4 *)p = make_int4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

INF_INLINE void inf_store4(uint8_t *p, inf_i4 q) {
    *(uchar4 *)p = make_uchar4((uint8_t)q.v[0], (uint8_t)q.v[1], (uint8_t)q.v[2], (uint8_t)q.v[3]);
}

/* Two bf16 in a word: the first one is the lower half. */
INF_INLINE float inf_low(uint32_t u) { return inf_from_bits(u << 16); }
INF_INLINE float inf_high(uint32_t u) { return inf_from_bits(u & 0xFFFF0000u); }
INF_INLINE uint32_t inf_pair(float low, float high) {
    return __byte_perm(inf_bits(low), inf_bits(high), 0x7632);
}

INF_INLINE inf_f4 inf_load4(const inf_bf16 *p) {
    const uint2 q = *(const uint2 *)p;
    const inf_f4 r = {{inf_low(q.x), inf_high(q.x), inf_low(q.y), inf_high(q.y)}};
    return r;
}

INF_INLINE void inf_store4(inf_bf16 *p, inf_f4 q) {
    *(uint2 *)p = make_uint2(inf_pair(q.v[0], q.v[1]), inf_pair(q.v[2], q.v[3]));
}

INF_INLINE inf_f8 inf_load8(const inf_bf16 *p) {
    const uint4 q = *(const uint4 *)p;
    const inf_f8 r = {{inf_low(q.x), inf_high(q.x), inf_low(q.y), inf_high(q.y), inf_low(q.z),
                       inf_high(q.z), inf_low(q.w), inf_high(q.w)}};
    return r;
}

INF_INLINE void inf_store8(inf_bf16 *p, inf_f8 q) {
    *(uint4 *)p = make_uint4(inf_pair(q.v[0], q.v[1]), inf_pair(q.v[2], q.v[3]),
                             inf_pair(q.v[4], q.v[5]), inf_pair(q.v[6], q.v[7]));
}

INF_INLINE inf_f8 inf_load8(const float *p) {
    const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    const inf_f8 r = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    return r;
}

INF_INLINE void inf_store8(float *p, inf_f8 q) {
    *(float4 *)p = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
    *(float4 *)(p + 4) = make_float4(q.v[4], q.v[5], q.v[6], q.v[7]);
}

INF_INLINE inf_i8 inf_load8(const int32_t *p) {
    const int4 a = *(const int4 *)p, b = *(const int4 *)(p + 4);
    const inf_i8 r = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    return r;
}

INF_INLINE void inf_store8(int32_t *p, inf_i8 q) {
    *(int4 *)p = make_int4(q.v[0], q.v[1], q.v[2], q.v[3]);
    *(int4 *)(p + 4) = make_int4(q.v[4], q.v[5], q.v[6], q.v[7]);
}

INF_INLINE inf_i8 inf_load8(const uint8_t *p) {
    const inf_i4 a = inf_load4(p), b = inf_load4(p + 4);
    const inf_i8 r = {{a.v[0], a.v[1], a.v[2], a.v[3], b.v[0], b.v[1], b.v[2], b.v[3]}};
    return r;
}

INF_INLINE void inf_store8(uint8_t *p, inf_i8 q) {
    const inf_i4 a = {{q.v[0], q.v[1], q.v[2], q.v[3]}}, b = {{q.v[4], q.v[5], q.v[6], q.v[7]}};
    inf_store4(p, a);
    inf_store4(p + 4, b);
}

/* What another block stored: never from this multiprocessor's own cache. */
#define INF_LOAD_SHARED(p) __ldcg(p)

/* Folds v, of type T, of `width` neighbouring threads with an expression in a and b; all of them
 * get the result. The operand of the lower thread is always a, so that they get the same bits. */
#define INF_FOLD_WARP(v, width, T, expr)                                                           \
    for (int m_ = (width) / 2; m_ > 0; m_ /= 2) {                                                  \
        const T o_ = __shfl_xor_sync(0xFFFFFFFFu, v, m_);                                          \
        const T a = (threadIdx.x & m_) ? o_ : v, b = (threadIdx.x & m_) ? v : o_;                  \
        v = expr;                                                                                  \
    }

/* The same for more threads than a warp: through shared memory. */
#define INF_FOLD_BLOCK(v, width, threads, T, expr)                                                 \
    {                                                                                              \
        __shared__ T part_[(threads) / 32];                                                        \
        INF_FOLD_WARP(v, 32, T, expr)                                                              \
        __syncthreads();                                                                           \
        if (threadIdx.x % 32 == 0) part_[threadIdx.x / 32] = v;                                    \
        __syncthreads();                                                                           \
        v = part_[threadIdx.x / (width) * ((width) / 32) + threadIdx.x % ((width) / 32)];          \
        INF_FOLD_WARP(v, (width) / 32, T, expr)                                                    \
    }

/* Whether this block is the last of `blocks` to come here; it sees what the others stored. */
INF_INLINE int32_t inf_last(uint32_t *count, uint32_t blocks) {
    __shared__ int32_t last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(count, blocks - 1) == blocks - 1;
    __syncthreads();
    __threadfence();
    return last;
}

/* Tensor cores, f32 rounded to tf32: see LoopMma in codegen/loop.h. */
#ifndef INF_MMA_TF32
#define INF_TF32(x)           inf_tf32(x)
#define INF_MMA_TF32(c, a, b) inf_mma_tf32(c, a, b)

INF_INLINE float inf_tf32(float x) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return inf_from_bits(r);
}

INF_INLINE void inf_mma_tf32(float *c, const float *a, const float *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(inf_bits(a[0])), "r"(inf_bits(a[1])), "r"(inf_bits(a[2])), "r"(inf_bits(a[3])),
          "r"(inf_bits(b[0])), "r"(inf_bits(b[1])));
}
#endif

/* Philox 4x32-10, as in runtime/philox.h. */
INF_INLINE void inf_philox(uint32_t c[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ key0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ key1;
        c[3] = (uint32_t)p0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* Elements 4 * block .. of a stream: inf_random4 of the runtime. */
INF_INLINE void inf_random_words(InfDeviceEnv env, uint32_t stream, uint32_t iteration,
                                 uint64_t block, uint32_t c[4]) {
    const uint64_t seed = env.moment->seed ^ env.moment->seed >> 32;
    c[0] = (uint32_t)block;
    c[1] = stream;
    c[2] = (uint32_t)env.microbatch;
    c[3] = iteration;
    inf_philox(c, (uint32_t)seed, (uint32_t)env.moment->step);
}

INF_INLINE float inf_unit(uint32_t x) { return (float)(x >> 8) * 5.9604644775390625e-8f; }

/* One number in [0, 1) with 24 bits: element `element` of a stream. */
INF_INLINE float inf_random1(InfDeviceEnv env, uint32_t stream, uint32_t iteration,
                             uint64_t element) {
    uint32_t c[4];
    inf_random_words(env, stream, iteration, element / 4, c);
    const uint32_t low = element & 1 ? c[1] : c[0], high = element & 1 ? c[3] : c[2];
    return inf_unit(element & 2 ? high : low);
}

/* Four neighbours from element `first` on, a multiple of 4. */
INF_INLINE void inf_random_quad(InfDeviceEnv env, uint32_t stream, uint32_t iteration,
                                uint64_t first, float *out) {
    uint32_t c[4];
    inf_random_words(env, stream, iteration, first / 4, c);
    for (int i = 0; i < 4; i++) out[i] = inf_unit(c[i]);
}
