/* permute.c - the data order of an epoch as a Feistel network with cycle walking. */
#include "runtime/permute.h"

#include "runtime/philox.h"

enum { ROUNDS = 6, HALF_BITS_MIN = 4 };

InfPermutation inf_permutation_make(uint64_t count, uint64_t seed, uint64_t epoch) {
    InfRandomKey key = {.seed = seed, .purpose = INF_PURPOSE_SHUFFLE, .id = epoch};
    InfPermutation p = {count, inf_random_fold(key), HALF_BITS_MIN};
    while (p.half_bits < 31 && (UINT64_C(1) << (2 * p.half_bits)) < count) p.half_bits++;
    return p;
}

static uint64_t feistel(const InfPermutation *p, uint64_t x) {
    uint32_t mask = (UINT32_C(1) << p->half_bits) - 1;
    uint32_t left = (uint32_t)(x >> p->half_bits);
    uint32_t right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        InfRandom4 c = {{right, round, 0, 0}};
        InfRandom4 r = inf_philox(c, (uint32_t)p->key, (uint32_t)(p->key >> 32));
        uint32_t next = left ^ (r.v[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << p->half_bits | right;
}

uint64_t inf_permutation_at(const InfPermutation *p, uint64_t i) {
    uint64_t x = i;
    do x = feistel(p, x);
    while (x >= p->count);
    return x;
}
