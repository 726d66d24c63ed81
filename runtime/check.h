/* check.h - checked arithmetic for sizes.
 *
 * Every product or sum of a size in a loader, a shape or an allocation goes through here: each
 * function returns false instead of wrapping around, and leaves *out alone then.
 */
#ifndef INF_RUNTIME_CHECK_H
#define INF_RUNTIME_CHECK_H

#include <stdbool.h>
#include <stdint.h>

static inline bool inf_mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

static inline bool inf_add(uint64_t a, uint64_t b, uint64_t *out) {
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}

/* Rounds up to a multiple of `unit`, which is not 0. */
static inline bool inf_round_up(uint64_t a, uint64_t unit, uint64_t *out) {
    uint64_t rest = a % unit;
    return rest == 0 ? inf_add(a, 0, out) : inf_add(a, unit - rest, out);
}

/* Product of `ndim` extents; 1 for a scalar. */
static inline bool inf_product(const uint64_t *dims, int ndim, uint64_t *out) {
    uint64_t product = 1;
    bool zero = false;
    for (int i = 0; i < ndim; i++) {
        if (dims[i] == 0)
            zero = true;
        else if (!inf_mul(product, dims[i], &product))
            return false;
    }
    *out = zero ? 0 : product;
    return true;
}

#endif
