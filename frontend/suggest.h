/* suggest.h - "did you mean": the nearest of some names. */
#ifndef FRONTEND_SUGGEST_H
#define FRONTEND_SUGGEST_H

#include <stddef.h>

/* Collects the candidate nearest to a wanted name; the first of equals wins. */
typedef struct Suggest {
    const char *wanted;
    const char *best; /* NULL while nothing is near enough */
    int distance;
} Suggest;

Suggest suggest_begin(const char *wanted);
void suggest_offer(Suggest *s, const char *candidate);

#endif
