/* conv_plan.h - how one direct convolution or input gradient runs: blocks, tiles, borders.
 *
 * Seen from here both are the same: an input of ci channels, an output of co channels, taps.
 */
#ifndef INFINIC_CODEGEN_CONV_PLAN_H
#define INFINIC_CODEGEN_CONV_PLAN_H

#include "ir/split.h"

/* One direction of the plane. */
typedef struct ConvAxis {
    int64_t in, out;   /* extents */
    int64_t kernel;    /* taps of the weight */
    int64_t taps;      /* taps that one output pixel meets */
    int64_t step;      /* input pixels from one output pixel to the next of the same phase */
    int64_t phases;    /* interleaved sets of output pixels */
    int64_t pad;       /* zeros before the input; negative: pixels that are left out */
    SplitBlocks block; /* of output pixels of one phase */
    int64_t tile, tiles;
    int64_t span; /* input pixels of a block */
} ConvAxis;

/* How taps that fall outside of the input are kept from being read. */
typedef enum ConvBorder {
    CONV_inside, /* there are none */
    CONV_clip,   /* loops over rows of taps start and end at the input, columns are left out in the
                    text */
    CONV_copy    /* the unit's part of the input is copied to where zeros surround it */
} ConvBorder;

typedef struct ConvPlan {
    bool backward;
    int64_t n, ci, co;
    ConvAxis y, x;
    ConvPanels panel;     /* of output channels */
    SplitBlocks channels; /* input channels summed before the next piece of weights is taken */
    ConvBorder border;
    int64_t wide; /* vectors of neighbouring pixels that a tile holds for each of its channels; 0:
                     tiles hold vectors of channels for each of their pixels */
} ConvPlan;

ConvPlan conv_plan(const ConvSizes *s, bool backward);

/* Taps of the packed kernel: whole periods of the phases. */
int64_t conv_packed_taps(const ConvAxis *a);

/* Floats of all packed panels. */
int64_t conv_packed_floats(const ConvPlan *c);

#endif
