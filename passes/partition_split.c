/* partition_split.c - units into chunks.
 *
 * Contiguous runs whose most expensive one is as cheap as possible: exact, by dynamic programming.
 * With fewer units than chunks some chunks are empty; the first and the last unit stay at the ends,
 * so that data is read where it is expected.
 */
#include "passes/partition.h"

#include <inttypes.h>

static int *one_each(int units, int chunks, Arena *scratch) {
    int *begin = ARENA_ARRAY(scratch, int, chunks + 1);
    for (int c = 0; c < chunks; c++) begin[c] = c < units - 1 ? c : units > 0 ? units - 1 : 0;
    begin[chunks] = units;
    if (units > 0) begin[chunks - 1] = units - 1;
    return begin;
}

/* The smallest i in [low, high] for which best(i) >= cost of units i .. end; best ascends. */
static int crossing(const double *best, const double *sum, int low, int high, int end) {
    while (low < high) {
        int middle = (low + high) / 2;
        if (best[middle] >= sum[end] - sum[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static double larger(double a, double b) { return a > b ? a : b; }

int *split_units(const UnitList *units, int chunks, Arena *scratch) {
    int n = (int)units->n;
    if (n <= chunks) return one_each(n, chunks, scratch);
    double *sum = ARENA_ARRAY(scratch, double, n + 1);
    for (int i = 0; i < n; i++) sum[i + 1] = sum[i] + units->data[i].cost;
    /* best[k][j]: the first j units in k + 1 chunks, none of them empty */
    double **best = ARENA_ARRAY(scratch, double *, chunks);
    int **from = ARENA_ARRAY(scratch, int *, chunks);
    for (int k = 0; k < chunks; k++) {
        best[k] = ARENA_ARRAY(scratch, double, n + 1);
        from[k] = ARENA_ARRAY(scratch, int, n + 1);
        for (int j = k + 1; j <= n; j++) {
            if (k == 0) {
                best[0][j] = sum[j];
                continue;
            }
            int i = crossing(best[k - 1], sum, k, j - 1, j);
            best[k][j] = larger(best[k - 1][i], sum[j] - sum[i]);
            from[k][j] = i;
            if (i > k && larger(best[k - 1][i - 1], sum[j] - sum[i - 1]) < best[k][j]) {
                best[k][j] = larger(best[k - 1][i - 1], sum[j] - sum[i - 1]);
                from[k][j] = i - 1;
            }
        }
    }
    int *begin = ARENA_ARRAY(scratch, int, chunks + 1);
    begin[chunks] = n;
    for (int k = chunks - 1; k > 0; k--) begin[k] = from[k][begin[k + 1]];
    return begin;
}

/* ---- by hand ------------------------------------------------------------------------------ */

typedef struct Layers {
    int first, n; /* units */
    bool repeat;
} Layers;

/* The longest run of iterations; all units when there is none. */
static Layers find_layers(const UnitList *units) {
    Layers best = {.n = (int)units->n};
    for (int i = 0; i < (int)units->n; i++) {
        if (units->data[i].layer != 0) continue;
        int n = 1;
        while (i + n < (int)units->n && units->data[i + n].layer == n) n++;
        if (!best.repeat || n > best.n) best = (Layers){.first = i, .n = n, .repeat = true};
    }
    return best;
}

int *split_by_hand(const UnitList *units, const int64_t *layers, int n, Arena *scratch,
                   const char **why) {
    Layers all = find_layers(units);
    int64_t sum = 0;
    for (int c = 0; c < n; c++)
        sum = layers[c] > all.n - sum ? all.n + (int64_t)1 : sum + layers[c];
    if (sum != all.n) {
        *why = arena_printf(scratch, "the model has %d layers, split has %s", all.n,
                            sum > all.n ? "more" : arena_printf(scratch, "%" PRId64, sum));
        return NULL;
    }
    int *begin = ARENA_ARRAY(scratch, int, n + 1);
    int at = all.first;
    for (int c = 0; c < n; c++) {
        begin[c] = c == 0 ? 0 : at;
        at += (int)layers[c];
    }
    begin[n] = (int)units->n;
    return begin;
}
