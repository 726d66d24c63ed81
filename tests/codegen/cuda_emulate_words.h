/* cuda_emulate_words.h - a model of codegen/attention_words.cu for the emulation: C++ text that
 * stands behind cuda_emulate_text and prelude_cuda.h (INF_EMULATED).
 *
 * Follows the PTX manual: which lane holds what of ldmatrix, mma.sync and wgmma fragments, and
 * where a descriptor with the 128-byte swizzle finds an element. Copies are done at once. Shared
 * memory holds NaN until it is written; addresses outside of it or not aligned end the program.
 */
#ifndef ATTN_HAS_WGMMA
#define ATTN_HAS_WGMMA 1 /* 0: mma.sync in all kernels */
#endif
#define ATTN_BLOCKS(n)
#define ATTN_SHARED(name) unsigned char *name = emu_memory()

struct float2 {
    float x, y;
};
static inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }

enum { EMU_SHARED = 1 << 18 };
static unsigned char emu_shared[EMU_SHARED] __attribute__((aligned(1024)));
static unsigned emu_operand[1024][6]; /* a thread's part of an instruction of many */

/* Filled with NaN before the first thread of a block. */
static unsigned char *emu_memory() {
    if (threadIdx.x == 0) __builtin_memset(emu_shared, 0xFF, EMU_SHARED);
    return emu_shared;
}

static unsigned char *emu_at(uint32_t address, uint32_t bytes) {
    if (address % bytes != 0 || address + bytes > EMU_SHARED) __builtin_abort();
    return emu_shared + address;
}

static float emu_half(uint32_t address) {
    uint16_t h;
    __builtin_memcpy(&h, emu_at(address, 2), 2);
    return inf_from_bits((uint32_t)h << 16);
}

/* The lower or upper half of a word. */
static float emu_part(uint32_t pair, int i) {
    return inf_from_bits(i ? pair & 0xFFFF0000u : pair << 16);
}

#define EMU_MEET(threads) hook_meet(__LINE__, threadIdx.x / (threads) * (threads), threads)

static uint32_t attn_address(const void *shared) {
    return (uint32_t)((const unsigned char *)shared - emu_shared);
}

static void attn_copy16(uint32_t to, const void *from, bool inside) {
    if ((size_t)from % 16 != 0) __builtin_abort();
    if (inside)
        __builtin_memcpy(emu_at(to, 16), from, 16);
    else
        __builtin_memset(emu_at(to, 16), 0, 16);
}
static void attn_copy_commit() {}
template <int N> static void attn_copy_wait() {}
static void attn_show() {}

static void attn_put4(uint32_t to, uint32_t v) { __builtin_memcpy(emu_at(to, 4), &v, 4); }
static void attn_put16(uint32_t to, uint4 v) { __builtin_memcpy(emu_at(to, 16), &v, 16); }
static float2 attn_get8(uint32_t from) {
    float2 v;
    __builtin_memcpy(&v, emu_at(from, 8), 8);
    return v;
}
static uint4 attn_get16(uint32_t from) {
    uint4 v;
    __builtin_memcpy(&v, emu_at(from, 16), 16);
    return v;
}

static void attn_load_blocks(uint32_t (&r)[4], uint32_t from) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    emu_operand[threadIdx.x][0] = from;
    EMU_MEET(32);
    for (int b = 0; b < 4; b++) {
        const uint32_t row = emu_operand[warp + 8 * b + lane / 4][0];
        __builtin_memcpy(&r[b], emu_at(row, 16) + lane % 4 * 4, 4);
    }
    EMU_MEET(32);
}

static void attn_load_blocks_turned(uint32_t (&r)[4], uint32_t from) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    emu_operand[threadIdx.x][0] = from;
    EMU_MEET(32);
    for (int b = 0; b < 4; b++)
        for (int e = 0; e < 2; e++) {
            const uint32_t row = emu_operand[warp + 8 * b + lane % 4 * 2 + e][0];
            __builtin_memcpy((unsigned char *)&r[b] + 2 * e, emu_at(row, 16) + lane / 4 * 2, 2);
        }
    EMU_MEET(32);
}

static void emu_give(const uint32_t *a, int n) {
    for (int i = 0; i < n; i++) emu_operand[threadIdx.x][i] = a[i];
}

/* Element [row][k] of the 16 x 16 fragments that this warp gave. */
static float emu_a(int row, int k) {
    const int lane = row % 8 * 4 + k % 8 / 2;
    return emu_part(emu_operand[threadIdx.x / 32 * 32 + lane][row / 8 + k / 8 * 2], k % 2);
}

static void attn_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    const uint32_t b[2] = {b0, b1};
    emu_give(a, 4);
    emu_operand[threadIdx.x][4] = b[0];
    emu_operand[threadIdx.x][5] = b[1];
    EMU_MEET(32);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const int column = lane % 4 * 2 + i % 2, holder = warp + column * 4 + k % 8 / 2;
            d[i] +=
                emu_a(lane / 4 + i / 2 * 8, k) * emu_part(emu_operand[holder][4 + k / 8], k % 2);
        }
    EMU_MEET(32);
}

static uint32_t attn_pair(float first, float second) {
    const float v[2] = {first, second};
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t u = inf_bits(v[i]);
        const uint32_t h = v[i] != v[i] ? 0x7FFF : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
        r |= h << 16 * i;
    }
    return r;
}

static float attn_exp2(float x) { return __builtin_exp2f(x); }
static float attn_log2(float x) { return __builtin_log2f(x); }
static void attn_warp_meet() { EMU_MEET(32); }

static bool attn_warp_any(bool x) {
    const int warp = threadIdx.x / 32 * 32;
    bool any = false;
    emu_operand[threadIdx.x][0] = x;
    EMU_MEET(32);
    for (int i = 0; i < 32; i++) any |= emu_operand[warp + i][0] != 0;
    EMU_MEET(32);
    return any;
}

#if ATTN_HAS_WGMMA

static void attn_wgmma_begin() {}
static void attn_wgmma_commit() {}
template <int N> static void attn_wgmma_wait() {}
static void attn_hold(float &) {}

/* Element [line][at] of what a descriptor says: lines of 128 bytes, 8 of them 1024, swizzled. */
static float emu_described(uint64_t describe, int line, int at) {
    const uint32_t start = (uint32_t)(describe & 0x3FFF) << 4;
    const uint32_t groups = (uint32_t)(describe >> 32 & 0x3FFF) << 4;
    if (describe >> 62 != 1 || (describe >> 49 & 7) != 0) __builtin_abort();
    const uint32_t linear = start + line / 8 * groups + line % 8 * 128 + at * 2;
    return emu_half(linear ^ (linear >> 7 & 7) << 4);
}

/* This thread's part of d (+)= a b; a: of its warp's row and k. */
template <int ADD, int TURNED, class A> static void emu_wgmma(float (*d)[4], A a, uint64_t b) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            const int column = 8 * n + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 * 8;
            float sum = ADD ? d[n][i] : 0.0f;
            for (int k = 0; k < 16; k++)
                sum += a(row, k) *
                       (TURNED ? emu_described(b, k, column) : emu_described(b, column, k));
            d[n][i] = sum;
        }
}

static void attn_wgmma(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
    emu_give(a, 4);
    EMU_MEET(128);
    emu_wgmma<1, 1>(
        d, [](int row, int k) { return emu_a(row, k); }, b);
    EMU_MEET(128);
}

template <int ADD> static void attn_wgmma_shared(float (*d)[4], uint64_t a, uint64_t b) {
    const int row0 = threadIdx.x % 128 / 32 * 16;
    EMU_MEET(128);
    emu_wgmma<ADD, 0>(
        d, [=](int row, int k) { return emu_described(a, row0 + row, k); }, b);
    EMU_MEET(128);
}

#endif
