/* lower_columns.c - reductions whose innermost axis is kept: columns are summed.
 *
 * A tile of neighbouring columns is kept in a private array and the reduced places are added to it
 * one after another, a fixed block of them at a time; block sums are added in order. With few
 * columns and many places the blocks are computed in parallel into the workspace and added in a
 * second nest, in the same order.
 */
#include "codegen/lower_reduce.h"

typedef struct Tile {
    LoopIdx begin, bound; /* columns [begin, min(run, bound)) */
    LoopBuf *acc;         /* per reduction, indexed by column - begin */
} Tile;

static LoopIdx open_columns(const Reduce *r, const Tile *t, LoopIdx *in_tile) {
    LoopAxis j = loop_open_range(r->k, LOOP_vector, r->split.run, t->begin, t->bound);
    LoopIdx at = loop_idx_axis(r->k, j);
    *in_tile = t->begin.id ? loop_idx_add(r->k, at, loop_idx_scale(r->k, t->begin, -1)) : at;
    return at;
}

/* A tile of columns over the whole run, or number `tile`. */
static Tile tile_new(const Reduce *r, LoopIdx tile) {
    Tile t = {0};
    if (r->split.tile < r->split.run) {
        t.begin = loop_idx_scale(r->k, tile, r->split.tile);
        t.bound = loop_idx_plus(r->k, t.begin, r->split.tile);
    }
    t.acc = ARENA_ARRAY(r->b->ctx->arena, LoopBuf, r->n);
    return t;
}

static void declare(const Reduce *r, LoopBuf *buf, const char *name) {
    for (int i = 0; i < r->n; i++)
        buf[i] = loop_local(r->k, name, reduce_dtype(r, r->red[i]), r->split.tile);
}

static void clear(const Reduce *r, const LoopBuf *buf) {
    for (int i = 0; i < r->n; i++) reduce_clear(r, r->red[i], buf[i], r->split.tile);
}

/* Adds the places of item number `item` to the tile. */
static void sum_item(Reduce *r, const Tile *t, LoopIdx item) {
    LoopKernel *k = r->k;
    int64_t places = 1;
    for (int i = 0; i < r->split.reduced.n; i++) places *= r->split.reduced.dim[i];
    LoopIdx begin = {0}, bound = LOOP_NO_BOUND;
    if (r->split.items > 1) {
        begin = loop_idx_scale(k, item, r->split.block);
        bound = loop_idx_plus(k, begin, r->split.block);
    }
    LoopIdx place = loop_idx_axis(k, loop_open_range(k, LOOP_reduce, places, begin, bound));
    LoopIdx at = loop_idx_add(k, r->kept_at, reduce_place(r, &r->split.reduced, place));
    LoopIdx in_tile, index[NDIM_MAX], column = open_columns(r, t, &in_tile);
    reduce_domain_index(r, loop_idx_add(k, at, column), index);
    for (int i = 0; i < r->n; i++) {
        LoopVal v = lower_body_value(r->b, r->red[i]->in[0], index);
        LoopVal acc = loop_load(k, t->acc[i], in_tile);
        loop_store(k, t->acc[i], in_tile, reduce_combine(r, r->red[i], acc, v));
    }
    loop_close(k);
    loop_close(k);
}

/* Stores the results of the tile's columns. */
static void finish(Reduce *r, const Tile *t, const LoopBuf *sum) {
    LoopIdx in_tile, index[NDIM_MAX], column = open_columns(r, t, &in_tile);
    LoopIdx flat = loop_idx_add(r->k, loop_idx_scale(r->k, r->kept_flat, r->split.run), column);
    for (int i = 0; i < r->n; i++)
        lower_body_bind(r->b, r->red[i]->out, loop_load(r->k, sum[i], in_tile));
    reduce_result_index(r, flat, index);
    lower_body_store_all(r->b, index);
    loop_close(r->k);
}

/* acc of the tile combined into sum. */
static void add_tile(Reduce *r, const Tile *t, const LoopBuf *sum) {
    LoopIdx in_tile;
    open_columns(r, t, &in_tile);
    for (int i = 0; i < r->n; i++) {
        LoopVal a = loop_load(r->k, sum[i], in_tile), b = loop_load(r->k, t->acc[i], in_tile);
        loop_store(r->k, sum[i], in_tile, reduce_combine(r, r->red[i], a, b));
    }
    loop_close(r->k);
}

static void open_kept(Reduce *r, LoopIdx kept) {
    r->kept_flat = kept;
    r->kept_at = reduce_place(r, &r->split.kept, kept);
}

static int64_t kept_rows(const Reduce *r) { return r->split.results / r->split.run; }

static int64_t tile_count(const Reduce *r) {
    return (r->split.run + r->split.tile - 1) / r->split.tile;
}

static void columns_whole(Reduce *r) {
    LoopKernel *k = r->k;
    int64_t grid[2] = {kept_rows(r), tile_count(r)};
    LoopIdx at[2];
    lower_open_grid(k, 2, grid, at);
    open_kept(r, at[0]);
    Tile t = tile_new(r, at[1]);
    declare(r, t.acc, "acc");
    if (r->split.items <= 1) {
        clear(r, t.acc);
        if (r->split.items == 1) sum_item(r, &t, loop_idx(k, 0));
        finish(r, &t, t.acc);
    } else {
        LoopBuf *sum = ARENA_ARRAY(r->b->ctx->arena, LoopBuf, r->n);
        declare(r, sum, "sum");
        clear(r, sum);
        LoopIdx item = loop_idx_axis(k, loop_open(k, LOOP_reduce, r->split.items, LOOP_NO_BOUND));
        clear(r, t.acc);
        sum_item(r, &t, item);
        add_tile(r, &t, sum);
        loop_close(k);
        finish(r, &t, sum);
    }
    lower_space_close(k, 0);
}

/* Offset in the workspace of column 0 of (reduction, item, row of results). */
static LoopIdx work_at(const Reduce *r, int reduction, LoopIdx item) {
    LoopIdx at = loop_idx_scale(r->k, item, r->split.results);
    at = loop_idx_add(r->k, at, loop_idx_scale(r->k, r->kept_flat, r->split.run));
    return loop_idx_plus(r->k, at, reduction * r->split.items * r->split.results);
}

static void columns_first_stage(Reduce *r) {
    LoopKernel *k = r->k;
    int64_t grid[3] = {r->split.items, kept_rows(r), tile_count(r)};
    LoopIdx at[3], in_tile;
    lower_open_grid(k, 3, grid, at);
    open_kept(r, at[1]);
    Tile t = tile_new(r, at[2]);
    declare(r, t.acc, "acc");
    clear(r, t.acc);
    sum_item(r, &t, at[0]);
    LoopIdx column = open_columns(r, &t, &in_tile);
    for (int i = 0; i < r->n; i++)
        loop_store(k, r->b->workspace, loop_idx_add(k, work_at(r, i, at[0]), column),
                   loop_load(k, t.acc[i], in_tile));
    lower_space_close(k, 0);
}

static void columns_second_stage(Reduce *r) {
    LoopKernel *k = r->k;
    int64_t grid[2] = {kept_rows(r), tile_count(r)};
    LoopIdx at[2], in_tile;
    lower_open_grid(k, 2, grid, at);
    open_kept(r, at[0]);
    Tile t = tile_new(r, at[1]);
    declare(r, t.acc, "sum");
    clear(r, t.acc);
    LoopIdx item = loop_idx_axis(k, loop_open(k, LOOP_reduce, r->split.items, LOOP_NO_BOUND));
    LoopIdx column = open_columns(r, &t, &in_tile);
    for (int i = 0; i < r->n; i++) {
        LoopVal a = loop_load(k, t.acc[i], in_tile);
        LoopVal b = loop_load(k, r->b->workspace, loop_idx_add(k, work_at(r, i, item), column));
        loop_store(k, t.acc[i], in_tile, reduce_combine(r, r->red[i], a, b));
    }
    loop_close(k);
    loop_close(k);
    finish(r, &t, t.acc);
    lower_space_close(k, 0);
}

void lower_columns(Reduce *r) {
    if (!r->split.apart) {
        columns_whole(r);
        return;
    }
    columns_first_stage(r);
    columns_second_stage(r);
}
