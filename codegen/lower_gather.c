/* lower_gather.c - rows taken from a table, and the table's gradient.
 *
 * gather reads row index[i] for result row i; an index outside the table gives NaN and reads
 * nothing. gather_dw counts the indices of every row and lists them, in order, in the workspace
 * (i32: first [V + 2], list [I]); each row of the result then adds its own list, in index order, so
 * no two threads meet and no order depends on them. Indices outside the table add nothing.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_space.h"

#include <math.h>

typedef struct Gather {
    LowerBody *b;
    LoopKernel *k;
    const Node *node;
    int64_t rows, indices, width; /* V, I, elements of a row */
} Gather;

static Gather gather_new(LowerContext *ctx, const Graph *g, const Node *kernel, Op op, int index) {
    Gather t = {.b = lower_body_new(ctx, g, kernel)};
    const TypeTable *types = t.b->body->mod->types;
    t.k = t.b->k;
    t.node = lower_body_anchor(t.b, op);
    Val table = index == 1 ? t.node->in[0] : t.node->out;
    t.rows = val_info(t.b->body, table)->dim[0];
    t.indices = type_elems(types, val_type(t.b->body, t.node->in[index]));
    t.width = 1;
    for (int i = 1; i < val_info(t.b->body, table)->ndim; i++)
        t.width *= val_info(t.b->body, table)->dim[i];
    return t;
}

/* Which row index number `i` names, in range; *good says whether it is in the table at all. */
static LoopIdx row_of(Gather *t, LoopBuf index, LoopIdx i, LoopVal *good) {
    LoopVal v = loop_load(t->k, index, i);
    LoopVal low = loop_compare(t->k, OP_ge, v, loop_const(t->k, DT_i32, 0));
    LoopVal high = loop_compare(t->k, OP_lt, v, loop_const(t->k, DT_i32, (double)t->rows));
    *good = loop_op2(t->k, OP_and, low, high);
    LoopVal safe = loop_select(t->k, *good, v, loop_const(t->k, DT_i32, 0));
    return loop_idx_val(t->k, safe, 0, t->rows ? t->rows - 1 : 0);
}

/* The open element of the anchor's result, from its row and column; stores all results there. */
static void store_at(Gather *t, LoopIdx row, LoopIdx column, LoopVal v) {
    LoopIdx index[NDIM_MAX];
    LoopIdx flat = loop_idx_add(t->k, loop_idx_scale(t->k, row, t->width), column);
    lower_body_bind(t->b, t->node->out, v);
    lower_unflatten(t->k, val_info(t->b->body, t->node->out), flat, index);
    lower_body_store_all(t->b, index);
}

static LoopIdx open_axis(Gather *t, LoopAxisKind kind, int64_t extent) {
    return loop_idx_axis(t->k, loop_open(t->k, kind, extent, LOOP_NO_BOUND));
}

/* A thread takes neighbours of a row of the table, as many as go in 16 bytes. */
static LoopIdx open_neighbours(Gather *t, LoopIdx *column) {
    LoopKernel *k = t->k;
    int64_t vector = lower_cuda_vector(k, t->width), units = t->width / vector;
    LoopIdx unit = lower_cuda_open_units(k, t->indices * units, 1);
    LoopIdx i = loop_let(k, loop_idx_div(k, unit, units), t->indices);
    *column = loop_idx_scale(k, loop_let(k, loop_idx_mod(k, unit, units), units), vector);
    return i;
}

LoopKernel *lower_gather(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Gather t = gather_new(ctx, g, kernel, OP_gather, 1);
    LoopBuf table = lower_body_input(t.b, t.node->in[0]),
            index = lower_body_input(t.b, t.node->in[1]);
    if (t.indices * t.width == 0) return t.k;
    LoopVal good;
    bool cuda = ctx->target == TARGET_cuda;
    LoopIdx column = loop_idx(t.k, 0), i;
    if (cuda)
        i = open_neighbours(&t, &column);
    else
        i = open_axis(&t, t.width == 1 ? LOOP_vector : LOOP_grid, t.indices);
    LoopIdx row = row_of(&t, index, i, &good);
    int64_t along = cuda ? lower_cuda_vector(t.k, t.width) : t.width;
    if (along > 1) column = loop_idx_add(t.k, column, open_axis(&t, LOOP_vector, along));
    LoopIdx at = loop_idx_add(t.k, loop_idx_scale(t.k, row, t.width), column);
    Dtype dtype = loop_buf_info(t.k, table)->dtype;
    double outside = dtype_is_float(dtype) ? (double)NAN : 0;
    LoopVal v;
    if (cuda) /* row 0 stands in, so that the load needs no condition */
        v = t.rows > 0
                ? loop_select(t.k, good, loop_load(t.k, table, at), loop_const(t.k, dtype, outside))
                : loop_const(t.k, dtype, outside);
    else
        v = loop_load_if(t.k, table, at, good, outside);
    store_at(&t, i, column, v);
    lower_space_close(t.k, 0);
    return t.k;
}

/* --- gradient --- */

static LoopIdx one_more(Gather *t, LoopBuf work, LoopIdx at, int64_t range) {
    LoopVal was = loop_load(t->k, work, at);
    loop_store(t->k, work, at, loop_op2(t->k, OP_add, was, loop_const(t->k, DT_i32, 1)));
    return loop_idx_val(t->k, was, 0, range);
}

/* work[v + 1] becomes the end of row v's list and work[v] its begin; the lists follow. */
static void list_rows(Gather *t, LoopBuf index, LoopBuf work) {
    LoopKernel *k = t->k;
    LoopVal good;
    LoopIdx z = open_axis(t, LOOP_vector, t->rows + 2);
    loop_store(k, work, z, loop_const(k, DT_i32, 0));
    loop_close(k);
    LoopIdx i = open_axis(t, LOOP_serial, t->indices);
    LoopIdx row = row_of(t, index, i, &good);
    loop_open_if(k, good);
    one_more(t, work, loop_idx_plus(k, row, 2), t->indices);
    loop_close(k);
    loop_close(k);
    LoopIdx v = open_axis(t, LOOP_serial, t->rows);
    LoopVal a = loop_load(k, work, loop_idx_plus(k, v, 1)),
            b = loop_load(k, work, loop_idx_plus(k, v, 2));
    loop_store(k, work, loop_idx_plus(k, v, 2), loop_op2(k, OP_add, a, b));
    loop_close(k);
    i = open_axis(t, LOOP_serial, t->indices);
    row = row_of(t, index, i, &good);
    loop_open_if(k, good);
    LoopIdx slot = one_more(t, work, loop_idx_plus(k, row, 1), t->indices);
    loop_store(k, work, loop_idx_plus(k, slot, t->rows + 2), loop_index(k, i));
    loop_close(k);
    loop_close(k);
}

LoopKernel *lower_gather_dw(LowerContext *ctx, const Graph *g, const Node *kernel) {
    enum { TILE = 1024 };
    Gather t = gather_new(ctx, g, kernel, OP_gather_dw, 0);
    LoopKernel *k = t.k;
    LoopBuf index = lower_body_input(t.b, t.node->in[0]), dy = lower_body_input(t.b, t.node->in[1]);
    LoopBuf work = t.b->workspace;
    if (t.rows * t.width == 0) return k;
    k->buf.data[work.id].dtype = DT_i32;
    list_rows(&t, index, work);
    int64_t tile = t.width < TILE ? t.width : TILE, grid[2] = {t.rows, (t.width + tile - 1) / tile};
    LoopIdx at[2], begin = {0}, bound = LOOP_NO_BOUND;
    lower_open_grid(k, 2, grid, at);
    if (grid[1] > 1) {
        begin = loop_idx_scale(k, at[1], tile);
        bound = loop_idx_plus(k, begin, tile);
    }
    LoopIdx base = begin.id ? begin : loop_idx(k, 0);
    LoopBuf acc = loop_local(k, "acc", DT_f32, tile);
    LoopIdx z = open_axis(&t, LOOP_vector, tile);
    loop_store(k, acc, z, loop_const(k, DT_f32, 0));
    loop_close(k);
    LoopIdx from = loop_idx_val(k, loop_load(k, work, at[0]), 0, t.indices);
    LoopIdx to = loop_idx_val(k, loop_load(k, work, loop_idx_plus(k, at[0], 1)), 0, t.indices);
    LoopIdx p = loop_idx_axis(k, loop_open_range(k, LOOP_reduce, t.indices + 1, from, to));
    LoopVal listed = loop_load(k, work, loop_idx_plus(k, p, t.rows + 2));
    LoopIdx row = loop_idx_val(k, listed, 0, t.indices);
    LoopIdx c = loop_idx_axis(k, loop_open_range(k, LOOP_vector, t.width, begin, bound));
    LoopIdx in_tile = loop_idx_add(k, c, loop_idx_scale(k, base, -1));
    LoopVal v = loop_load(k, dy, loop_idx_add(k, loop_idx_scale(k, row, t.width), c));
    loop_store(k, acc, in_tile, loop_op2(k, OP_add, loop_load(k, acc, in_tile), v));
    loop_close(k);
    loop_close(k);
    c = loop_idx_axis(k, loop_open_range(k, LOOP_vector, t.width, begin, bound));
    in_tile = loop_idx_add(k, c, loop_idx_scale(k, base, -1));
    store_at(&t, at[0], c, loop_load(k, acc, in_tile));
    lower_space_close(k, 0);
    return k;
}
