/* sample.h - the next token from logits.
 *
 * A draw is a function of (seed, text, place): the same on every device whose logits are the same.
 */
#ifndef INF_RUNTIME_SAMPLE_H
#define INF_RUNTIME_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct InfSampler {
    double temperature; /* 0: the first largest logit */
    int64_t top_k;      /* draw among so many, the first of equal ones; 0: among all */
    uint64_t seed;
} InfSampler;

/* The token for place `place` of text `text`, from logits[0 .. count); -1 when they are not finite.
 * -infinity is a token that is never drawn.
 *   order   scratch, as long as logits */
int64_t inf_sample(const InfSampler *s, const float *logits, int64_t count, int32_t *order,
                   uint32_t text, uint64_t place);

#endif
