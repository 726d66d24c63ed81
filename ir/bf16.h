/* bf16.h - rounding to bf16, the upper half of a float: to nearest, ties to even; NaN becomes
 * 0x7FFF, as the GPU's conversion has it. What generated code computes: codegen/prelude_math.h.
 */
#ifndef INFINIC_IR_BF16_H
#define INFINIC_IR_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = x != x ? 0x7fff0000u : (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
