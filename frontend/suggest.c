/* suggest.c - edit distance with transpositions, case differences at a lower price. */
#include "frontend/suggest.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

enum { LENGTH_MAX = 63, COST_CASE = 1, COST_EDIT = 2 };

static int minimum(int a, int b) { return a < b ? a : b; }

static int cost_of(char a, char b) {
    if (a == b) return 0;
    return tolower((unsigned char)a) == tolower((unsigned char)b) ? COST_CASE : COST_EDIT;
}

/* Optimal string alignment over three rows. */
static int distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b);
    int rows[3][LENGTH_MAX + 1];
    for (int j = 0; j <= m; j++) rows[0][j] = j * COST_EDIT;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *older = rows[(i + 1) % 3];
        now[0] = i * COST_EDIT;
        for (int j = 1; j <= m; j++) {
            now[j] = minimum(minimum(before[j], now[j - 1]) + COST_EDIT,
                             before[j - 1] + cost_of(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = minimum(now[j], older[j - 2] + COST_EDIT);
        }
    }
    return rows[n % 3][m];
}

Suggest suggest_begin(const char *wanted) {
    return (Suggest){.wanted = wanted, .distance = INT_MAX};
}

void suggest_offer(Suggest *s, const char *candidate) {
    size_t n = strlen(s->wanted), m = strlen(candidate);
    if (n == 0 || m == 0 || n > LENGTH_MAX || m > LENGTH_MAX) return;
    int d = distance(s->wanted, candidate);
    /* Near enough: a third of the letters may differ, in words of three letters at least one; or
     * one is the other's start; or only the case differs. */
    int allowed = n < 3 ? 0 : COST_EDIT * (int)(n / 3 > 1 ? n / 3 : 1);
    int is_start = n >= 3 && strncmp(candidate, s->wanted, n) == 0;
    bool same_word = n == m;
    for (size_t i = 0; same_word && i < n; i++)
        same_word = tolower((unsigned char)s->wanted[i]) == tolower((unsigned char)candidate[i]);
    if (d > allowed && !is_start && !same_word) return;
    if (d < s->distance) {
        s->distance = d;
        s->best = candidate;
    }
}
