/* philox.h - counter-based random numbers: Philox 4x32-10.
 *
 * A number is a pure function of (seed, purpose, id, step, microbatch, element): no state is
 * carried from one to the next, so every layout, thread and rank draws the same values.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef INF_RUNTIME_PHILOX_H
#define INF_RUNTIME_PHILOX_H

#include <stdint.h>

typedef enum InfPurpose {
    INF_PURPOSE_INIT = 1,    /* initial weights; id = hash of the parameter's name */
    INF_PURPOSE_SHUFFLE = 2, /* data order; id = epoch */
    INF_PURPOSE_DROPOUT = 3, /* masks; id = op */
    INF_PURPOSE_BENCH = 4,   /* synthetic inputs; id = input */
    INF_PURPOSE_SAMPLE = 5,  /* tokens; id = place in the text */
} InfPurpose;

/* Which stream of numbers. */
typedef struct InfRandomKey {
    uint64_t seed;
    uint32_t purpose;
    uint64_t id;
    uint32_t step;
    uint32_t microbatch;
} InfRandomKey;

typedef struct InfRandom4 {
    uint32_t v[4];
} InfRandom4;

/* Ten rounds on a 128-bit counter under a 64-bit key. */
static inline InfRandom4 inf_philox(InfRandom4 counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * counter.v[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * counter.v[2];
        InfRandom4 next = {{(uint32_t)(p1 >> 32) ^ counter.v[1] ^ key0, (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ counter.v[3] ^ key1, (uint32_t)p0}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* Folds the parts of a stream that do not change inside it into a 64-bit key. */
static inline uint64_t inf_random_fold(InfRandomKey k) {
    InfRandom4 a = {{(uint32_t)k.id, (uint32_t)(k.id >> 32), k.purpose, k.step}};
    InfRandom4 b = inf_philox(a, (uint32_t)k.seed, (uint32_t)(k.seed >> 32));
    b.v[2] ^= k.microbatch;
    b = inf_philox(b, (uint32_t)k.seed, (uint32_t)(k.seed >> 32));
    return (uint64_t)b.v[1] << 32 | b.v[0];
}

/* Four numbers, elements 4*block .. 4*block+3 of the stream with this folded key. */
static inline InfRandom4 inf_random_block(uint64_t folded, uint64_t block) {
    InfRandom4 c = {{(uint32_t)block, (uint32_t)(block >> 32), 0, 0}};
    return inf_philox(c, (uint32_t)folded, (uint32_t)(folded >> 32));
}

/* 24 bits -> [0, 1) in f32, exactly. */
static inline float inf_unit_float(uint32_t x) { return (float)(x >> 8) * 0x1p-24f; }

#endif
