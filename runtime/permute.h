/* permute.h - one seeded bijection of [0, n) an epoch, computed point by point.
 *
 * A Feistel network over the next even power of two, walked until it lands inside [0, n). No
 * table is kept and no state advances, so a rank can ask for any position of any epoch.
 */
#ifndef INF_RUNTIME_PERMUTE_H
#define INF_RUNTIME_PERMUTE_H

#include <stdint.h>

typedef struct InfPermutation {
    uint64_t count; /* n, at least 1 */
    uint64_t key;
    unsigned half_bits;
} InfPermutation;

InfPermutation inf_permutation_make(uint64_t count, uint64_t seed, uint64_t epoch);

/* Where position `i` < count goes; every value of [0, count) is hit exactly once. */
uint64_t inf_permutation_at(const InfPermutation *p, uint64_t i);

#endif
