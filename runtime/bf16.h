/* bf16.h - rounding to bf16, the upper half of a float: to nearest, ties to even; NaN becomes
 * 0x7FFF. What the copy of a weight is, whichever of host and device makes it.
 */
#ifndef INF_RUNTIME_BF16_H
#define INF_RUNTIME_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t inf_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
