/* sample.c - the next token from logits. */
#include "runtime/sample.h"

#include <math.h>

#include "runtime/philox.h"

/* The first largest; -1 when a number among them is NaN or the largest is not finite. */
static int64_t find_largest(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return isfinite(logits[best]) ? best : -1;
}

/* Token a stands behind token b: smaller, or equal and later. */
static bool is_behind(const float *logits, int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
}

/* Moves heap[at] down to where no child stands behind it. */
static void sift(const float *logits, int32_t *heap, int64_t count, int64_t at) {
    int32_t moved = heap[at];
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_behind(logits, heap[child + 1], heap[child])) child++;
        if (!is_behind(logits, heap[child], moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The last of the `most` first tokens in order of their logits. */
static int32_t find_last(const float *logits, int64_t count, int64_t most, int32_t *heap) {
    for (int64_t i = 0; i < most; i++) heap[i] = (int32_t)i;
    for (int64_t i = most / 2; i-- > 0;) sift(logits, heap, most, i);
    for (int64_t i = most; i < count; i++) {
        if (!is_behind(logits, heap[0], (int32_t)i)) continue;
        heap[0] = (int32_t)i;
        sift(logits, heap, most, 0);
    }
    return heap[0];
}

static double uniform(const InfSampler *s, uint32_t text, uint64_t place) {
    InfRandomKey key = {
        .seed = s->seed, .purpose = INF_PURPOSE_SAMPLE, .id = place, .microbatch = text};
    InfRandom4 r = inf_random_block(inf_random_fold(key), 0);
    uint64_t bits = (uint64_t)r.v[0] << 32 | r.v[1];
    return (double)(bits >> 11) * 0x1p-53;
}

int64_t inf_sample(const InfSampler *s, const float *logits, int64_t count, int32_t *order,
                   uint32_t text, uint64_t place) {
    int64_t best = find_largest(logits, count);
    if (best < 0 || s->temperature == 0 || s->top_k == 1) return best;
    bool all = s->top_k == 0 || s->top_k >= count;
    int32_t last = all ? 0 : find_last(logits, count, s->top_k, order);
    double sum = 0, most = (double)logits[best];
    /* Twice in order of ids: the sum, and where the draw falls into it. */
    for (int64_t i = 0; i < count; i++)
        if (all || !is_behind(logits, (int32_t)i, last))
            sum += exp(((double)logits[i] - most) / s->temperature);
    double left = uniform(s, text, place) * sum;
    for (int64_t i = 0; i < count; i++) {
        if (!all && is_behind(logits, (int32_t)i, last)) continue;
        left -= exp(((double)logits[i] - most) / s->temperature);
        if (left < 0) return i;
    }
    return best; /* rounding left a rest: the draw was the very last */
}
