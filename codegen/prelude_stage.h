/* prelude_stage.h - inf_stage and inf_stage_tokens, which gather the samples of a microbatch from a
 * data set in device memory: see runtime/plan.h. One block a sample; the same order as on the CPU
 * (runtime/permute.c) and the same quotient by 255.
 */
INF_INLINE uint64_t inf_permuted(const InfDeviceMoment *m, uint64_t at) {
    const uint32_t half = (uint32_t)m->half_bits, mask = (1u << half) - 1;
    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t c[4] = {right, round, 0, 0};
            inf_philox(c, (uint32_t)m->key, (uint32_t)(m->key >> 32));
            const uint32_t next = left ^ (c[0] & mask);
            left = right;
            right = next;
        }
        at = (uint64_t)left << half | right;
    } while (at >= m->count);
    return at;
}

INF_INLINE void inf_stage_pixels(const uint8_t *from, float *to, int64_t pixels, int32_t real) {
    if (pixels % 4 == 0) {
        for (int64_t i = 4 * threadIdx.x; i < pixels; i += 4 * blockDim.x) {
            inf_f4 q = {{0.0f, 0.0f, 0.0f, 0.0f}};
            if (real) {
                const inf_i4 u = inf_load4(from + i);
                for (int k = 0; k < 4; k++) q.v[k] = (float)u.v[k] / 255.0f;
            }
            inf_store4(to + i, q);
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < pixels; i += blockDim.x)
        to[i] = real ? (float)from[i] / 255.0f : 0.0f;
}

/* Where the sample of this block stands in the data set, and whether it is a real one. */
INF_INLINE int64_t inf_sample(const InfDeviceMoment *moment, uint64_t first, int32_t *real) {
    const uint64_t position = moment->position + first + (uint64_t)blockIdx.x;
    *real = position < moment->end;
    if (!*real) return 0;
    return (int64_t)(moment->half_bits ? inf_permuted(moment, position) : position);
}

INF_KERNEL(256)
inf_stage(const uint8_t *pixels, const uint8_t *labels, float *image, int32_t *label, float *valid,
          const InfDeviceMoment *moment, uint64_t first, int64_t sample_pixels) {
    const int64_t row = blockIdx.x;
    int32_t real;
    const int64_t at = inf_sample(moment, first, &real);
    if (image)
        inf_stage_pixels(pixels + at * sample_pixels, image + row * sample_pixels, sample_pixels,
                         real);
    if (threadIdx.x == 0 && label) label[row] = real ? labels[at] : (int32_t)0x80000000u;
    if (threadIdx.x == 0 && valid) valid[row] = real ? 1.0f : 0.0f;
}

INF_INLINE int32_t inf_token(const void *row, int64_t i, int32_t token_bytes) {
    return token_bytes == 2 ? (int32_t)((const uint16_t *)row)[i] : ((const int32_t *)row)[i];
}

INF_KERNEL(256)
inf_stage_tokens(const void *rows, int32_t *tokens, int32_t *targets, float *valid,
                 const InfDeviceMoment *moment, uint64_t first, int64_t length,
                 int32_t token_bytes) {
    const int64_t row = blockIdx.x;
    int32_t real;
    const int64_t at = inf_sample(moment, first, &real);
    const void *from = (const uint8_t *)rows + at * (length + 1) * token_bytes;
    for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
        const int64_t to = row * length + i;
        if (tokens) tokens[to] = real ? inf_token(from, i, token_bytes) : 0;
        if (targets)
            targets[to] = real ? inf_token(from, i + 1, token_bytes) : (int32_t)0x80000000u;
    }
    if (threadIdx.x == 0 && valid) valid[row] = real ? 1.0f : 0.0f;
}
