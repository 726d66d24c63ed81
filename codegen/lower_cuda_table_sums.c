/* lower_cuda_table_sums.c - the last launch of a table's gradient: see lower_cuda_table.c.
 *
 * A block has one bucket's list and a tile of columns. Pieces of the list go through shared memory,
 * where thread r counts, and then places, what belongs to row r of the bucket. Short lists are then
 * added by a warp each, long ones by all warps together; rows without indices are zero.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_cuda_table.h"
#include "codegen/lower_space.h"

typedef struct Sums {
    Table t;
    LoopIdx bucket, tile;
    LoopIdx begin, size; /* of the bucket's list */
    LoopIdx lane, warp;
    LoopBuf row_of, index_of; /* shared: of a piece of the list */
    LoopBuf first, count;     /* shared: by row, in the sorted list */
    LoopBuf acc;
    LoopBuf part; /* shared: [warps][columns] */
} Sums;

enum { PIECE = 1024, TOGETHER = 8 }; /* of the list; rows of dy whose loads are under way at once */

static int64_t warps_of(const Sums *w) { return w->t.s.threads / CUDA_WARP; }

static int64_t columns_of(const Sums *w) { return CUDA_WARP * w->t.s.each * w->t.s.vector; }

static LoopIdx work_index(Sums *w, LoopIdx at, int64_t most) {
    return loop_idx_val(w->t.k, loop_load(w->t.k, w->t.work, at), 0, most);
}

/* --- sorting --- */

/* Elements [piece * PIECE, ..) of the list into shared memory, row -1 behind the last; returns how
 * many quads of them there may be. */
static LoopIdx load_piece(Sums *w, LoopIdx piece) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    LoopIdx after = loop_idx_add(k, w->size, loop_idx_scale(k, piece, -PIECE));
    LoopIdx rest = loop_idx_val(k, loop_index(k, after), 1, t->s.indices);
    int depth = k->depth;
    LoopIdx turn = table_loop(t, LOOP_unroll, PIECE / t->s.threads);
    LoopIdx place = table_at(t, turn, t->s.threads, t->thread);
    LoopVal exists = loop_compare(k, OP_lt, loop_index(k, place), loop_index(k, rest));
    LoopIdx at = loop_idx_add(k, w->begin, table_at(t, piece, PIECE, place));
    LoopVal i = loop_load_if(k, t->work, loop_idx_plus(k, at, t->s.list_at), exists, 0);
    LoopVal v = loop_load(k, t->index, loop_idx_val(k, i, 0, t->s.indices - 1));
    LoopVal named = loop_select(k, exists, v, table_number(t, 0)); /* index 0 may name no row */
    LoopIdx row = loop_idx_div(k, loop_idx_val(k, named, 0, t->s.rows - 1), t->s.buckets);
    LoopVal mark = loop_select(k, exists, loop_index(k, row), table_number(t, -1));
    loop_store(k, w->row_of, place, mark);
    loop_store(k, w->index_of, place, i);
    lower_space_close(k, depth);
    loop_sync(k);
    return loop_idx_div(k, loop_idx_plus(k, rest, CUDA_VECTOR - 1), CUDA_VECTOR);
}

/* Calls `found` inside, for each element of the list that belongs to the thread's row, in order. */
static void for_own(Sums *w, void (*found)(Sums *w, LoopIdx place, LoopBuf number),
                    LoopBuf number) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int depth = k->depth;
    LoopIdx pieces = loop_idx_div(k, loop_idx_plus(k, w->size, PIECE - 1), PIECE);
    LoopIdx piece =
        loop_idx_axis(k, loop_open(k, LOOP_serial, lower_ceil_div(t->s.indices, PIECE), pieces));
    LoopIdx quads = load_piece(w, piece);
    int inside = k->depth;
    lower_cuda_open_below(k, t->thread, t->s.local);
    LoopIdx quad = loop_idx_axis(k, loop_open(k, LOOP_reduce, PIECE / CUDA_VECTOR, quads));
    LoopIdx lane = table_loop(t, LOOP_vector, CUDA_VECTOR);
    LoopIdx place = table_at(t, quad, CUDA_VECTOR, lane);
    LoopVal row = loop_load(k, w->row_of, place);
    loop_open_if(k, loop_compare(k, OP_eq, row, loop_index(k, t->thread)));
    found(w, place, number);
    lower_space_close(k, inside);
    loop_sync(k);
    lower_space_close(k, depth);
}

static void count_one(Sums *w, LoopIdx place, LoopBuf number) {
    (void)place;
    table_add(&w->t, number, table_number(&w->t, 1));
}

/* Where the tile's sorted list begins in the workspace. */
static LoopIdx sorted_at(Sums *w, LoopIdx place) {
    Table *t = &w->t;
    return loop_idx_plus(t->k, table_at(t, w->tile, t->s.indices, place), t->s.sorted_at);
}

static void place_one(Sums *w, LoopIdx place, LoopBuf number) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    LoopVal next = loop_load(k, number, t->zero);
    LoopIdx at = loop_idx_val(k, next, 0, t->s.indices - 1);
    loop_store(k, t->work, sorted_at(w, at), loop_load(k, w->index_of, place));
    table_add(t, number, table_number(t, 1));
}

static void sort_list(Sums *w) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    w->row_of = loop_shared(k, "row", DT_i32, PIECE);
    w->index_of = loop_shared(k, "index", DT_i32, PIECE);
    w->first = loop_shared(k, "first", DT_i32, t->s.threads);
    w->count = loop_shared(k, "count", DT_i32, t->s.threads);
    LoopBuf number = table_register(t, "number", table_number(t, 0));
    for_own(w, count_one, number);
    LoopVal own = loop_load(k, number, t->zero);
    LoopVal before = table_sum_before(t, w->first, t->s.threads, own);
    LoopVal first = loop_op2(k, OP_add, before, loop_index(k, w->begin));
    loop_store(k, w->first, t->thread, first);
    loop_store(k, w->count, t->thread, own);
    for_own(w, place_one, table_register(t, "next", first));
    loop_sync(k); /* also where the list is empty */
}

/* --- adding --- */

/* Opens the thread's unit `u` of the tile, and its lanes; the column, and its place in acc. */
static LoopIdx open_columns(Sums *w, LoopIdx u, LoopIdx *slot) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    LoopIdx unit = table_at(t, u, CUDA_WARP, w->lane);
    unit = table_at(t, w->tile, CUDA_WARP * t->s.each, unit);
    unit = lower_cuda_open_below(k, unit, t->s.units);
    LoopIdx l = loop_idx(k, 0);
    if (t->s.vector > 1) l = table_loop(t, LOOP_vector, t->s.vector);
    *slot = table_at(t, u, t->s.vector, l);
    return table_at(t, unit, t->s.vector, l);
}

/* dy's element at row i of the indices and a column, whatever shape dy has. */
static LoopVal dy_value(Sums *w, LoopIdx i, LoopIdx column) {
    Table *t = &w->t;
    LoopIdx index[NDIM_MAX];
    Val dy = t->node->in[1];
    lower_unflatten(t->k, val_info(t->b->body, dy), table_at(t, i, t->s.width, column), index);
    return lower_body_value(t->b, dy, index);
}

/* Adds the rows of dy named by the sorted list at first + step * n for the n of [begin, turns) that
 * come in whole groups of `together`, their loads under way at once; returns the first n left. */
static LoopIdx add_groups(Sums *w, LoopIdx first, int64_t step, LoopIdx begin, LoopIdx turns,
                          int64_t together) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int depth = k->depth;
    int64_t most = lower_ceil_div(t->s.indices, step) + 1;
    bool once = together < TOGETHER; /* larger groups came before */
    int64_t left_most = once ? 2 * together - 1 : most;
    LoopVal left = loop_index(k, loop_idx_add(k, turns, loop_idx_scale(k, begin, -1)));
    LoopIdx groups = loop_idx_div(k, loop_idx_val(k, left, 0, left_most), together);
    LoopIdx group =
        loop_idx_axis(k, loop_open(k, LOOP_reduce, once ? 1 : most / together + 1, groups));
    LoopIdx in_group = table_loop(t, LOOP_unroll, together);
    LoopIdx n = loop_idx_add(k, begin, table_at(t, group, together, in_group));
    LoopIdx i = work_index(w, sorted_at(w, table_at(t, n, step, first)), t->s.indices - 1), slot;
    LoopIdx column = open_columns(w, table_loop(t, LOOP_unroll, t->s.each), &slot);
    LoopVal sum = loop_op2(k, OP_add, loop_load(k, w->acc, slot), dy_value(w, i, column));
    loop_store(k, w->acc, slot, sum);
    lower_space_close(k, depth);
    LoopVal done = loop_index(k, loop_idx_add(k, begin, loop_idx_scale(k, groups, together)));
    return loop_idx_val(k, done, 0, most);
}

/* Adds all rows of dy named by the sorted list at first + step * n, n in [0, turns), in order. */
static void add_rows(Sums *w, LoopIdx first, int64_t step, LoopIdx turns) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int depth = k->depth;
    loop_store(k, w->acc, table_loop(t, LOOP_unroll, t->s.each * t->s.vector),
               loop_const(k, DT_f32, 0));
    lower_space_close(k, depth);
    LoopIdx n = loop_idx(k, 0);
    for (int64_t together = TOGETHER; together > 0; together /= 2)
        n = add_groups(w, first, step, n, turns, together);
}

static void store_at(Sums *w, LoopIdx row, LoopIdx column, LoopVal v) {
    Table *t = &w->t;
    LoopIdx index[NDIM_MAX];
    lower_body_bind(t->b, t->node->out, v);
    lower_unflatten(t->k, val_info(t->b->body, t->node->out), table_at(t, row, t->s.width, column),
                    index);
    lower_body_store_all(t->b, index);
}

/* The row's first place in the sorted list and how many there are, from shared memory. */
static void list_of(Sums *w, LoopIdx local, LoopIdx *first, LoopIdx *size) {
    LoopKernel *k = w->t.k;
    *first = loop_idx_val(k, loop_load(k, w->first, local), 0, w->t.s.indices);
    *size = loop_idx_val(k, loop_load(k, w->count, local), 0, w->t.s.indices);
}

/* Opens the table's row that is row `local` of the bucket, if it exists. */
static LoopIdx open_row(Sums *w, LoopIdx local) {
    LoopIdx row = table_at(&w->t, local, w->t.s.buckets, w->bucket);
    return loop_let(w->t.k, lower_cuda_open_below(w->t.k, row, w->t.s.rows), w->t.s.rows);
}

/* One warp a row. */
static void add_short_lists(Sums *w) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int64_t warps = warps_of(w);
    int depth = k->depth;
    LoopIdx turn = table_loop(t, LOOP_serial, lower_ceil_div(t->s.local, warps));
    LoopIdx local = lower_cuda_open_below(k, table_at(t, turn, warps, w->warp), t->s.local);
    LoopIdx row = open_row(w, local), first, size, slot;
    list_of(w, local, &first, &size);
    loop_open_if(k, loop_range(k, size, 0, t->s.longest + 1));
    add_rows(w, first, 1, size);
    LoopIdx column = open_columns(w, table_loop(t, LOOP_unroll, t->s.each), &slot);
    store_at(w, row, column, loop_load(k, w->acc, slot));
    lower_space_close(k, depth);
}

/* All warps' sums, in order. */
static void store_parts(Sums *w, LoopIdx row) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int64_t columns = columns_of(w);
    int depth = k->depth;
    LoopIdx turn = table_loop(t, LOOP_serial, lower_ceil_div(columns, t->s.threads));
    LoopIdx in_tile = lower_cuda_open_below(k, table_at(t, turn, t->s.threads, t->thread), columns);
    LoopIdx column = table_at(t, w->tile, columns, in_tile);
    column = lower_cuda_open_below(k, column, t->s.width);
    LoopVal sum = loop_load(k, w->part, in_tile);
    for (int64_t p = 1; p < warps_of(w); p++)
        sum =
            loop_op2(k, OP_add, sum, loop_load(k, w->part, loop_idx_plus(k, in_tile, p * columns)));
    store_at(w, row, column, sum);
    lower_space_close(k, depth);
}

static void add_long_lists(Sums *w) {
    Table *t = &w->t;
    LoopKernel *k = t->k;
    int64_t warps = warps_of(w);
    int depth = k->depth;
    w->part = loop_shared(k, "part", DT_f32, warps * columns_of(w));
    loop_open_if(k, loop_range(k, w->size, t->s.longest + 1, t->s.indices + 1));
    LoopIdx local = table_loop(t, LOOP_serial, t->s.local), row = open_row(w, local), first, size;
    list_of(w, local, &first, &size);
    loop_open_if(k, loop_range(k, size, t->s.longest + 1, t->s.indices + 1));
    LoopIdx turns =
        loop_idx_plus(k, loop_idx_add(k, size, loop_idx_scale(k, w->warp, -1)), warps - 1);
    add_rows(w, loop_idx_add(k, first, w->warp), warps, loop_idx_div(k, turns, warps));
    int inside = k->depth;
    LoopIdx u = table_loop(t, LOOP_unroll, t->s.each), slot;
    LoopIdx column = open_columns(w, u, &slot);
    LoopIdx in_tile = loop_idx_add(k, column, loop_idx_scale(k, w->tile, -columns_of(w)));
    loop_store(k, w->part, table_at(t, w->warp, columns_of(w), in_tile),
               loop_load(k, w->acc, slot));
    lower_space_close(k, inside);
    loop_sync(k);
    store_parts(w, row);
    loop_sync(k);
    lower_space_close(k, depth);
}

LoopKernel *lower_cuda_table_sums(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Sums w = {.t = table_new(ctx, g, kernel)};
    Table *t = &w.t;
    LoopKernel *k = t->k;
    LoopIdx block;
    lower_cuda_open(k, t->s.buckets * t->s.tiles, t->s.threads, &block, &t->thread);
    w.bucket = loop_let(k, loop_idx_mod(k, block, t->s.buckets), t->s.buckets);
    w.tile = loop_let(k, loop_idx_div(k, block, t->s.buckets), t->s.tiles);
    w.lane = loop_let(k, loop_idx_mod(k, t->thread, CUDA_WARP), CUDA_WARP);
    w.warp = loop_let(k, loop_idx_div(k, t->thread, CUDA_WARP), warps_of(&w));
    LoopIdx at = loop_idx_plus(k, w.bucket, t->s.first_at);
    w.begin = work_index(&w, at, t->s.indices);
    LoopVal end = loop_load(k, t->work, loop_idx_plus(k, at, 1));
    LoopVal size = loop_op2(k, OP_sub, end, loop_index(k, w.begin));
    w.size = loop_idx_val(k, size, 0, t->s.indices);
    sort_list(&w);
    w.acc = loop_reg(k, "acc", DT_f32, t->s.each * t->s.vector, 1);
    add_short_lists(&w);
    add_long_lists(&w);
    lower_space_close(k, 0);
    return k;
}
