/* cuda_emulate.c - see cuda_emulate.h. */
#include "tests/codegen/cuda_emulate.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

const char cuda_emulate_text[] =
    "typedef __SIZE_TYPE__ size_t;\n"
    "struct emu_index { unsigned x; };\n"
    "extern \"C\" {\n"
    "void (*hook_meet)(int, unsigned, unsigned);\n"
    "void (*hook_launch)(void (*)(void *const *, const void *), void *const *, const void *, "
    "unsigned,\n"
    "                    unsigned, int);\n"
    "emu_index *hook_index;\n"
    "}\n"
    "#define blockIdx hook_index[0]\n#define threadIdx hook_index[1]\n#define blockDim "
    "hook_index[2]\n"
    "#define __device__\n#define __global__\n#define __shared__ static\n"
    "#define __forceinline__ inline __attribute__((always_inline))\n"
    "#define __launch_bounds__(n)\n#define __align__(n) __attribute__((aligned(n)))\n"
    "#define __syncthreads() hook_meet(__LINE__, 0, blockDim.x)\n#define __threadfence()\n"
    "#define __syncwarp() hook_meet(__LINE__, threadIdx.x & ~31u, 32)\n"
    "static unsigned emu_slot[1024];\n"
    "template <class T> static T emu_exchange(T v, int m, int line) {\n"
    "    const unsigned warp = threadIdx.x & ~31u;\n"
    "    __builtin_memcpy(&emu_slot[threadIdx.x], &v, 4);\n    hook_meet(line, warp, 32);\n"
    "    __builtin_memcpy(&v, &emu_slot[threadIdx.x ^ m], 4);\n    hook_meet(-line, warp, 32);\n"
    "    return v;\n}\n"
    "#define __shfl_xor_sync(mask, v, m) emu_exchange(v, m, __LINE__)\n"
    /* Operands lose the bits that tensor cores do not look at. */
    "static float emu_tile[1024][6];\n"
    "static float emu_cut(float x, unsigned add) {\n"
    "    unsigned u;\n    __builtin_memcpy(&u, &x, 4);\n"
    "    u = (u + add) & ~0x1FFFu;\n    __builtin_memcpy(&x, &u, 4);\n"
    "    return x;\n}\n"
    "#define INF_TF32(x) ((x) == (x) ? emu_cut(x, 0x1000) : __builtin_nanf(\"\"))\n"
    "#define INF_MMA_TF32(c, a, b) emu_mma(c, a, b, __LINE__)\n"
    "static void emu_mma(float *c, const float *a, const float *b, int line) {\n"
    "    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane;\n"
    "    for (int i = 0; i < 4; i++) emu_tile[warp + lane][i] = emu_cut(a[i], 0);\n"
    "    for (int i = 0; i < 2; i++) emu_tile[warp + lane][4 + i] = emu_cut(b[i], 0);\n"
    "    hook_meet(line, warp, 32);\n"
    "    for (int i = 0; i < 4; i++)\n        for (int k = 0; k < 8; k++)\n"
    "            c[i] += emu_tile[warp + lane / 4 * 4 + k % 4][i / 2 + k / 4 * 2] *\n"
    "                    emu_tile[warp + (lane % 4 * 2 + i % 2) * 4 + k % 4][4 + k / 4];\n"
    "    hook_meet(-line, warp, 32);\n}\n"
    "template <class T> static T emu_load(const T *p) { return *p; }\n"
    "#define __ldcg(p) emu_load(p)\n"
    "static unsigned atomicInc(unsigned *p, unsigned most) {\n"
    "    unsigned was = *p;\n    *p = was >= most ? 0 : was + 1;\n    return was;\n}\n"
    "static inline float __uint_as_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); "
    "return x; }\n"
    "static inline unsigned __float_as_uint(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); "
    "return u; }\n"
    "static inline float fabsf(float x) { return __builtin_fabsf(x); }\n"
    "static inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }\n"
    "static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }\n"
    "static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }\n"
    "static inline float sinf(float x) { return __builtin_sinf(x); }\n"
    "static inline float cosf(float x) { return __builtin_cosf(x); }\n"
    "static inline float powf(float x, float y) { return __builtin_powf(x, y); }\n"
    "static inline float floorf(float x) { return __builtin_floorf(x); }\n"
    "static inline double pow(double x, double y) { return __builtin_pow(x, y); }\n"
    "struct float4 { float x, y, z, w; } __attribute__((aligned(16)));\n"
    "struct int4 { int x, y, z, w; } __attribute__((aligned(16)));\n"
    "struct uint2 { unsigned x, y; } __attribute__((aligned(8)));\n"
    "struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));\n"
    "static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }\n"
    "static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {\n"
    "    return {x, y, z, w};\n}\n"
    "static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {\n"
    "    unsigned char from[8], to[4];\n"
    "    __builtin_memcpy(from, &x, 4);\n    __builtin_memcpy(from + 4, &y, 4);\n"
    "    for (int i = 0; i < 4; i++) to[i] = from[s >> 4 * i & 7];\n"
    "    __builtin_memcpy(&x, to, 4);\n    return x;\n}\n"
    "struct uchar4 { unsigned char x, y, z, w; } __attribute__((aligned(4)));\n"
    "static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; "
    "}\n"
    "static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }\n"
    "static inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z,\n"
    "                                 unsigned char w) { return {x, y, z, w}; }\n";

enum { THREADS_MAX = 1024, STACK_BYTES = 1 << 16 };

typedef struct Fiber {
    ucontext_t start;
    jmp_buf at;
    bool started, done;
    int line;              /* of the barrier it waits at */
    uint32_t first, count; /* for these threads */
    char *stack;
} Fiber;

CudaIndex cuda_emulate_index[3];

static Fiber fiber[THREADS_MAX];
static jmp_buf scheduler;
static ucontext_t home;
static uint32_t now;
static bool alone; /* threads run one after another: nobody may wait */

static struct {
    void (*thread)(void *const *arg, const void *env);
    void *const *arg;
    const void *env;
} job;

static void die(const char *what) {
    fprintf(stderr, "emulated kernel: %s\n", what);
    abort();
}

void cuda_emulate_meet(int line, uint32_t first, uint32_t count) {
    if (alone) die("a barrier in a kernel that has none");
    fiber[now].line = line;
    fiber[now].first = first;
    fiber[now].count = count;
    if (_setjmp(fiber[now].at) == 0) _longjmp(scheduler, 1);
    cuda_emulate_index[1].x = now;
}

static void enter(void) {
    job.thread(job.arg, job.env);
    fiber[now].done = true;
    _longjmp(scheduler, 1);
}

/* Runs thread `i` until it waits or ends. */
static void resume(uint32_t i) {
    now = i;
    cuda_emulate_index[1].x = i;
    if (_setjmp(scheduler) != 0) return;
    Fiber *f = &fiber[i];
    if (f->started) _longjmp(f->at, 1);
    f->started = true;
    if (f->stack == NULL) f->stack = malloc(STACK_BYTES);
    if (f->stack == NULL || getcontext(&f->start) != 0) die("no memory for threads");
    f->start.uc_stack.ss_sp = f->stack;
    f->start.uc_stack.ss_size = STACK_BYTES;
    f->start.uc_link = &home;
    makecontext(&f->start, enter, 0);
    setcontext(&f->start);
}

/* Whether everybody whom thread `i` waits for is there. */
static bool is_met(uint32_t i) {
    const Fiber *f = &fiber[i];
    for (uint32_t j = f->first; j < f->first + f->count; j++) {
        const Fiber *other = &fiber[j];
        if (other->done || other->line != f->line || other->first != f->first ||
            other->count != f->count)
            return false;
    }
    return true;
}

static void run_block(uint32_t block) {
    for (uint32_t i = 0; i < block; i++) fiber[i].started = fiber[i].done = false;
    for (uint32_t i = 0; i < block; i++) resume(i);
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < block; i++) {
            if (fiber[i].done || i != fiber[i].first || !is_met(i)) continue;
            for (uint32_t j = i, end = i + fiber[i].count; j < end; j++) resume(j);
            moved = true;
        }
    }
    for (uint32_t i = 0; i < block; i++)
        if (!fiber[i].done) die("threads of a block are at different barriers");
}

static void run_alone(uint32_t block) {
    for (uint32_t i = 0; i < block; i++) {
        cuda_emulate_index[1].x = i;
        job.thread(job.arg, job.env);
    }
}

void cuda_emulate_launch(void (*thread)(void *const *arg, const void *env), void *const *arg,
                         const InfEnv *env, uint32_t grid, uint32_t block, int meets) {
    InfDeviceMoment moment = {.seed = env->seed, .step = (uint64_t)env->step};
    InfDeviceEnv device = {.moment = &moment, .microbatch = (int32_t)env->microbatch};
    for (int i = 0; i < PLAN_REPEAT_DEPTH_MAX; i++) device.iter[i] = (int32_t)env->iter[i];
    if (block > THREADS_MAX || block % 32 != 0) die("so many threads do not fit into a block");
    job.thread = thread;
    job.arg = arg;
    job.env = &device;
    alone = !meets;
    cuda_emulate_index[2].x = block;
    for (uint32_t i = 0; i < grid; i++) {
        cuda_emulate_index[0].x = env->threads > 1 ? grid - 1 - i : i;
        if (alone)
            run_alone(block);
        else
            run_block(block);
    }
}
