/* draw.h - random numbers of tests: splitmix64, from `draw_state` on, which a test may set. */
#ifndef INF_TESTS_RUNTIME_DRAW_H
#define INF_TESTS_RUNTIME_DRAW_H

#include <stdint.h>

static uint64_t draw_state;

/* In [0, below). */
static inline uint64_t draw(uint64_t below) {
    draw_state += 0x9e3779b97f4a7c15u;
    uint64_t z = draw_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

#endif
