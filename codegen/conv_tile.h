/* conv_tile.h - which accumulators of a convolution live in registers together.
 *
 * Both kernels of lower_conv*.c have the same core: `broadcasts` scalars, each multiplied with
 * `vectors` vectors of output channels, added to broadcasts * vectors accumulators. The tiles are
 * chosen by counting the cycles of a core with two multiply-adds and two loads a cycle.
 */
#ifndef INFINIC_CODEGEN_CONV_TILE_H
#define INFINIC_CODEGEN_CONV_TILE_H

#include "ir/split.h"

/* Output pixels computed together: rows x cols; more than one row only when cols is the whole row.
 */
typedef struct ConvPixelTile {
    int64_t rows, cols;
} ConvPixelTile;

ConvPixelTile conv_tile_pixels(int64_t vectors, int64_t rows, int64_t cols);

/* Weight gradients computed together: input channels x kernel rows x kernel columns. kh and kw
 * divide the kernel's size; the last tile of channels may be smaller. */
typedef struct ConvTapTile {
    int64_t channels, kh, kw;
} ConvTapTile;

ConvTapTile conv_tile_taps(int64_t vectors, int64_t channels, int64_t kh, int64_t kw);

#endif
