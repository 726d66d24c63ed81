/* split.h - how work is cut: functions of shapes alone.
 *
 * The order in which a reduction, a matrix product over a long K or a convolution's weight gradient
 * adds its terms is fixed by these rules, so results depend neither on the thread count nor on what
 * a kernel is fused with. fuse asks for the workspace that the parts need; codegen cuts
 * the same way.
 */
#ifndef INFINIC_IR_SPLIT_H
#define INFINIC_IR_SPLIT_H

#include "ir/graph.h"

/* Bytes of scratch that a kernel with this body needs for its partial results; 0 when none. */
int64_t split_workspace_bytes(const Graph *body);

/* --- blocks: an extent cut into `count` equal pieces of `size`, the last may be shorter --- */

typedef struct SplitBlocks {
    int64_t size, count;
} SplitBlocks;

/* The fewest pieces of at most `most` (at least 1), evenly sized. An extent of 0 is one piece. */
SplitBlocks split_blocks(int64_t extent, int64_t most);

/* --- reductions ---
 *
 * The domain's axes are merged into alternating groups of kept and reduced axes; the innermost
 * group is the run. A reduction is cut into items, numbered by reduced place:
 *   inner  the run is reduced: an item is up to `block` neighbours of it, or, when the run is
 *          short, `group` whole runs; element i of a run goes to lane i % lanes, and the lanes are
 *          added by halves at the end: lane l and lane l + lanes / 2, and so on
 *   else   the run is kept, columns are summed: an item is up to `block` reduced places in order
 * Items are put together in item_lanes lanes the same way (columns: in order, one lane). */
typedef struct SplitAxes {
    int n;
    int64_t dim[NDIM_MAX], stride[NDIM_MAX]; /* strides in elements of the domain */
} SplitAxes;

typedef struct ReduceSplit {
    bool inner;
    SplitAxes kept, reduced; /* groups but the run, outermost first */
    int64_t run;             /* extent of the run; its stride is 1 */
    int64_t block, blocks;   /* of the run (inner) or of the reduced places */
    int64_t group;           /* inner: runs of an item; 1 when a run has several blocks */
    int64_t items;           /* of one result */
    int64_t results;
    int64_t tile; /* columns that are summed together */
    int lanes, item_lanes;
    bool apart; /* items go to the workspace [reduction][result][item], or, when not inner,
                   [reduction][item][result], before they are put together */
} ReduceSplit;

ReduceSplit split_reduce(const Graph *body, const Node *reduce);

/* --- CUDA (split_cuda.c): how threads and blocks share a kernel's work ---
 *
 * inner: a result's reduced places, `vector` neighbours a unit, are cut into `pieces` of `piece`
 * units; in a piece, thread t of `group` adds units t, t + group, .. in order, then threads fold by
 * halves; pieces are added by CUDA_FOLD threads in the same way.
 * Columns: threads of a block are `group` columns (of `vector` neighbours) by threads / group rows;
 * a row adds every so many-th place of a piece, then rows fold by halves; pieces likewise. */
enum { CUDA_FOLD = 256 };

typedef struct CudaReduce {
    ReduceSplit axes;
    int64_t vector, units, pieces, piece, group;
    int threads;
    bool apart; /* a block a piece, pieces in the workspace: [reduction][result][piece], or
                   [reduction][piece][result] when not inner */
} CudaReduce;

CudaReduce split_cuda_reduce(const Graph *body, const Node *reduce);

/* Matrix products and convolutions as tiles of a product out[m, n] = sum over k: a block makes
 * rows x cols of it for one of `parts` runs of `part` places of k; parts lie in the workspace as
 * [part][batch][m][n] and are added in order. */
typedef struct CudaTiles {
    int64_t batch, m, n, k;
    int64_t rows, cols;   /* of a block's tile */
    int64_t row, col;     /* of a thread's tile: rows and cols are multiples */
    int64_t down, across; /* tiles of 16 x 8 of a warp, for tensor cores; else 0 */
    int64_t depth;        /* places of k in shared memory at once */
    int64_t parts, part;  /* part is a multiple of depth */
    int threads;
} CudaTiles;

CudaTiles split_cuda_tiles(const Graph *body, const Node *anchor);

/* Products of few rows or a short k with a long row (split_cuda_thin.c): tiles of rows x wide, k in
 * `parts` equal parts in pieces of `depth` in shared memory, `together` places at once. Parts lie
 * in the workspace as [part][m][n] and are added in order. */
typedef struct CudaThin {
    bool fits;
    int64_t m, n, k;
    int64_t rows, wide, down, across;
    int64_t parts, part, depth, together;
    int threads;
} CudaThin;

CudaThin split_cuda_thin(const Graph *body, const Node *matmul);

/* Products a[m, k] b[n, k] of few columns and a long k: a block makes `rows` rows of a part of k;
 * thread t of it adds quads t, t + threads, .. of `part`; threads 32 apart are added in order, then
 * 32 neighbours fold by halves; parts as above. */
typedef struct CudaDots {
    bool fits;
    bool swapped; /* the long operand is the second: m and rows are its, n is the first's */
    int64_t m, n, k;
    int64_t rows, parts, part; /* part: quads, a multiple of threads */
    int threads;
} CudaDots;

CudaDots split_cuda_dots(const Graph *body, const Node *matmul);

/* Whether a convolution's factors are rounded to tf32 (CUDA). */
bool split_cuda_tf32(const Graph *body, const Node *conv);

/* The gradient of a table (split_cuda_table.c). Row r belongs to bucket r % buckets, as its row
 * r / buckets there. Chunks of indices are counted by bucket, then listed by bucket, in order; a
 * block sorts a bucket's list by row, and its warps add the rows of dy for a tile of columns,
 * `each` units of `vector` neighbours a thread: a row with at most `longest` indices in order, by
 * one warp; one with more by all, warp w every so many-th from w on, and the warps' sums in order.
 * Workspace (i32): counts [chunks][buckets], first [buckets + 1], list [indices], sorted
 * [tiles][indices]. */
typedef struct CudaTable {
    bool sorted; /* else each row walks all indices */
    int64_t rows, indices, width;
    int64_t buckets, local; /* buckets: a power of two; local: rows of a bucket, at most */
    int64_t chunk, chunks;
    int64_t vector, units, each, tiles;
    int64_t longest;
    int64_t first_at, list_at, sorted_at, ints; /* in the workspace */
    int count_threads, threads;
} CudaTable;

CudaTable split_cuda_table(const Graph *body, const Node *gather_dw);

/* Whether a product is left to the device's library. */
bool split_cuda_library(const Graph *body, const Node *matmul);

int64_t split_cuda_workspace(const Graph *body, const Node *n);

/* --- convolutions (split_conv.c) --- */

/* Sizes of the forward convolution that a conv2d, conv2d_dx or conv2d_dw belongs to. A pointwise
 * one (1 x 1, stride 1, no padding) is seen as one long row: hi = ho = 1. */
typedef struct ConvSizes {
    int64_t n, ci, hi, wi; /* x  [n, ci, hi, wi] */
    int64_t co, ho, wo;    /* y  [n, co, ho, wo] */
    int64_t kh, kw;        /* w  [co, ci, kh, kw] */
    int64_t sh, sw, ph, pw;
} ConvSizes;

ConvSizes split_conv_sizes(const Graph *body, const Node *conv);

/* Channels in panels of `lanes` = 16 * vectors neighbours; the last one is padded. */
typedef struct ConvPanels {
    int64_t vectors, lanes, count;
} ConvPanels;

ConvPanels split_conv_panels(int64_t channels);

/* Extent of the kernel as the input gradient sees it: whole periods of the stride. */
int64_t split_conv_taps(int64_t kernel, int64_t stride);

/* The weight gradient: output pixels in blocks of rows x cols, numbered (sample, row, column); the
 * blocks in `parts` neighbouring runs, each summed into its own copy of the gradient
 * [panel][ci][kh][kw][lanes] of part_floats in the workspace; copies are added in order. */
typedef struct ConvDwSplit {
    ConvPanels panel;       /* of output channels */
    SplitBlocks rows, cols; /* of a block of pixels */
    SplitBlocks channels;   /* input channels of a unit of work */
    int64_t blocks, parts;
    int64_t part_floats;
} ConvDwSplit;

ConvDwSplit split_conv_dw(const ConvSizes *s);

/* Bytes: packed weights, or the parts of the weight gradient. */
int64_t split_conv_workspace(const Graph *body, const Node *conv);

/* Convolutions at stride 1 for CUDA (split_cuda_conv.c). Forward, and the input gradient as a
 * convolution with turned taps: a block makes a strip of `rows` rows of `outs` channels of one
 * sample, a thread `pixels` neighbours of a row in `channels` channels; `chunk` input channels are
 * in shared memory at once. Every element is one sum in the order of (channel, row, column). */
typedef struct CudaConv {
    bool fits; /* else: a product (CudaTiles) */
    bool turned;
    int64_t n, sum, out; /* samples, channels that are summed, that are made */
    int64_t hi, wi, ho, wo, kh, kw, ph, pw;
    int64_t pixels, channels;      /* of a thread */
    int64_t rows, outs;            /* of a block */
    int64_t tiles, groups, strips; /* threads along a row, along channels; strips of a sample */
    int64_t chunk;
    int64_t span, pitch, rows_in; /* of a tile's input row, and how far apart they lie */
    int64_t taps, w_pitch;        /* of one pair of channels; of one output channel */
    int64_t out_pitch;            /* of a strip of results */
    int64_t x_floats, w_floats;   /* of shared memory */
    int threads;
} CudaConv;

CudaConv split_cuda_conv(const ConvSizes *s, bool dx);

/* The weight gradient: a block sums `part` strips of `rows` output rows for outs x ins channels; a
 * cell is `channels` output channels by one input channel by all taps, `lanes` threads share a
 * cell's runs of `run` quads of a row and fold by halves. Parts lie in the workspace as
 * [part][co][ci][kh][kw]; a second launch adds them: CUDA_PART_ROWS threads every so many-th part
 * in order, then these in order. */
enum { CUDA_PART_ROWS = 8 };

typedef struct CudaConvDw {
    bool fits;
    int64_t n, ci, co, hi, wi, ho, wo, kh, kw, ph, pw;
    int64_t channels, outs, ins, groups, cells, lanes;
    int64_t rows, rows_in, strips, run, segments;
    int64_t x_row, x_pitch, y_row, y_pitch; /* of a row, of a channel */
    int64_t x_floats, y_floats;
    int64_t blocks, blocks_most; /* blocks of channels; parts at most */
    int64_t part, parts;
    int threads;
} CudaConvDw;

CudaConvDw split_cuda_conv_dw(const ConvSizes *s);

/* The same on tensor cores (split_cuda_mma.c), for `dtype = tf32`. Places of a strip are numbered
 * row * pitch + column, `pitch` being as wide as the input under a row, so that the input under a
 * place lies a constant away from it for every tap; places beyond the row's end are made and not
 * kept. Forward and input gradient: a tile is 16 output channels by 8 places; a block makes `tiles`
 * tiles of channels by all places of a strip of `rows` rows, each of its `warps` warps `places`
 * tiles of them, for `part` strips one after another. Sums run over (chunk of channels, 8 channels,
 * row, column). */
typedef struct CudaConvMma {
    bool fits; /* else: as with CudaConv */
    bool turned;
    int64_t n, sum, out; /* as in CudaConv */
    int64_t hi, wi, ho, wo, kh, kw, ph, pw;
    int64_t rows, rows_in, strips, pitch;
    int64_t outs, tiles; /* channels of a block */
    int64_t warps, places;
    int64_t chunk, chunks;      /* summed channels in shared memory at once, a multiple of 8 */
    int64_t w_chunks, w_slot;   /* chunks whose weights are there at once; one tap's tiles */
    int64_t x_pitch, out_pitch; /* of a channel */
    int64_t staged;             /* tiles of channels that go through shared memory together */
    int64_t x_floats, w_floats; /* of shared memory */
    int64_t part, parts;
    int threads;
} CudaConvMma;

CudaConvMma split_cuda_conv_mma(const ConvSizes *s, bool dx);

/* The weight gradient: a tile is 16 output channels by 8 input channels under one tap; the sum runs
 * over places. A block makes outs x ins channels with all taps: warps_across warps share the tiles,
 * `places` each, warps_along the places of a strip, 8 at a time in turn; these are added in order.
 * Parts as in CudaConvDw. */
typedef struct CudaConvMmaDw {
    bool fits;
    int64_t n, ci, co, hi, wi, ho, wo, kh, kw, ph, pw;
    int64_t rows, rows_in, strips, pitch;
    int64_t outs, ins, tiles, places, warps_across, warps_along;
    int64_t steps; /* of a warp along a strip */
    int64_t x_pitch, y_pitch, x_floats, y_floats;
    int64_t blocks, part, parts;
    int threads;
} CudaConvMmaDw;

CudaConvMmaDw split_cuda_conv_mma_dw(const ConvSizes *s);

/* --- matrix products (split_matmul.c) --- */

typedef enum MatmulWay {
    MATMUL_library, /* tiles of rows x cols through inf_sgemm */
    MATMUL_columns, /* b is [k, n], few rows or a short k: vectors of columns */
    MATMUL_dots     /* a [m, k] and b [n, k], few rows or columns: vectors along k */
} MatmulWay;

typedef struct MatmulSplit {
    MatmulWay way;
    int64_t batch, m, n, k;
    bool ta, tb;
    SplitBlocks rows, cols; /* of one unit of work */
    SplitBlocks depth;      /* parts of k; with more than one, the workspace is [part][batch][m][n],
                               added in order. All but the last are multiples of 16 */
} MatmulSplit;

MatmulSplit split_matmul(const Graph *body, const Node *matmul);
int64_t split_matmul_workspace(const Graph *body, const Node *matmul);

/* Whether every result of a body of reductions is smaller than the domain (columns may be stored on
 * the way), sums are f32 (the
 * workspace's type) and no reduction depends on another. */
bool split_reduce_is_flat(const Graph *body, const Node *first);

#endif
