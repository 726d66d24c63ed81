/* conv_tile.c - see conv_tile.h. */
#include "codegen/conv_tile.h"

#include <math.h>

enum { BROADCASTS_MAX = 14, ACCUMULATORS_MAX = 20 };

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static bool fits(int64_t vectors, int64_t broadcasts) {
    return broadcasts <= BROADCASTS_MAX && broadcasts * vectors <= ACCUMULATORS_MAX;
}

/* Cycles of one step of the core. A multiply-add takes 4 cycles, so that fewer than 8 accumulators
 * leave the units idle; the last term stands for the loop around the step. */
static double step_cycles(int64_t vectors, int64_t broadcasts) {
    double multiply = (double)(broadcasts * vectors) / 2;
    double load = (double)(broadcasts + vectors) / 2;
    return fmax(fmax(multiply, load), 4.0) + 0.5;
}

ConvPixelTile conv_tile_pixels(int64_t vectors, int64_t rows, int64_t cols) {
    ConvPixelTile best = {1, 1};
    double least = INFINITY;
    for (int64_t c = 1; c <= cols && fits(vectors, c); c++)
        for (int64_t r = 1; r <= (c == cols ? rows : 1) && fits(vectors, r * c); r++) {
            double cycles =
                step_cycles(vectors, r * c) * (double)(ceil_div(rows, r) * ceil_div(cols, c));
            if (cycles < least) {
                least = cycles;
                best = (ConvPixelTile){r, c};
            }
        }
    return best;
}

ConvTapTile conv_tile_taps(int64_t vectors, int64_t channels, int64_t kh, int64_t kw) {
    ConvTapTile best = {1, 1, 1};
    double least = INFINITY;
    for (int64_t a = 1; a <= kh && fits(vectors, a); a++)
        for (int64_t b = 1; b <= kw && fits(vectors, a * b); b++)
            for (int64_t c = 1; c <= channels && fits(vectors, a * b * c); c++) {
                if (kh % a != 0 || kw % b != 0) continue;
                int64_t left = channels % c;
                double cycles = step_cycles(vectors, a * b * c) * (double)(channels / c);
                if (left > 0) cycles += step_cycles(vectors, a * b * left);
                cycles *= (double)((kh / a) * (kw / b));
                if (cycles < least) {
                    least = cycles;
                    best = (ConvTapTile){c, a, b};
                }
            }
    return best;
}
