/* lower_cuda_columns.c - reductions whose innermost axis is kept, for CUDA: columns are summed.
 *
 * A block's threads are `group` neighbouring columns by several rows; neighbours read neighbours.
 * Each thread adds every so many-th place of a piece, rows fold by halves in shared memory. With
 * few columns the places are cut into pieces, one a block; the last block of a tile of columns adds
 * them in the same way. Results of the domain's shape are stored by the thread that adds them.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_reduce.h"

enum { PLACES_TOGETHER = 4 };

typedef struct Columns {
    Reduce *r;
    CudaReduce s;
    int64_t rows, wide;  /* rows of threads; columns of a tile */
    LoopIdx row, column; /* of the thread; column: its first of the tile, times vector */
    LoopIdx place;       /* its first column of the run */
    LoopVal valid;       /* that column exists; id 0: always */
    LoopBuf *acc;        /* by reduction: the thread's sums */
    LoopBuf *shared;     /* by reduction: [rows][wide], one array for all of a dtype */
} Columns;

static LoopIdx open_lanes(Columns *c) {
    LoopKernel *k = c->r->k;
    if (c->s.vector == 1) return loop_idx(k, 0);
    return loop_idx_axis(k, loop_open(k, LOOP_vector, c->s.vector, LOOP_NO_BOUND));
}

static void open_valid(Columns *c) {
    if (c->valid.id) loop_open_if(c->r->k, c->valid);
}

static void clear(Columns *c) {
    Reduce *r = c->r;
    LoopKernel *k = r->k;
    int depth = k->depth;
    LoopIdx l = open_lanes(c);
    for (int i = 0; i < r->n; i++)
        loop_store(k, c->acc[i], l,
                   loop_const(k, reduce_dtype(r, r->red[i]), reduce_first(r, r->red[i])));
    lower_space_close(k, depth);
}

static void add(Columns *c, int i, LoopIdx lane, LoopVal v) {
    LoopKernel *k = c->r->k;
    LoopVal was = loop_load(k, c->acc[i], lane);
    loop_store(k, c->acc[i], lane, reduce_combine(c->r, c->r->red[i], was, v));
}

/* The places of a thread in a piece that is whole or the last one. */
typedef struct Places {
    Columns *c;
    LoopIdx piece;
    bool whole;
} Places;

/* What is added up and needed itself. */
static void store_domain(Columns *c, LoopIdx at, const LoopIdx *index) {
    const Graph *g = c->r->b->body;
    for (int i = 0; i < g->nout; i++)
        if (reduce_is_domain_result(c->r, i))
            loop_store(c->r->k, c->r->b->out[i], at, lower_body_value(c->r->b, g->out[i], index));
}

static void add_place(void *data, LoopIdx turn) {
    const Places *p = data;
    Columns *c = p->c;
    Reduce *r = c->r;
    LoopKernel *k = r->k;
    LoopIdx index[NDIM_MAX];
    int depth = k->depth;
    LoopIdx place = loop_idx_add(k, loop_idx_scale(k, turn, c->rows), c->row);
    place = loop_idx_add(k, place, loop_idx_scale(k, p->piece, c->s.piece));
    place =
        p->whole ? loop_name(k, place, c->s.units) : lower_cuda_open_below(k, place, c->s.units);
    LoopIdx at = loop_idx_add(k, r->kept_at, reduce_place(r, &r->split.reduced, place));
    LoopIdx lane = open_lanes(c);
    at = loop_idx_add(k, loop_idx_add(k, at, c->place), lane);
    reduce_domain_index(r, at, index);
    for (int i = 0; i < r->n; i++) add(c, i, lane, lower_body_value(r->b, r->red[i]->in[0], index));
    store_domain(c, at, index);
    lower_space_close(k, depth);
}

/* Adds the thread's places of a piece; only the last one may be short. */
static void add_places(Columns *c, LoopIdx piece) {
    LoopKernel *k = c->r->k;
    Places p = {c, piece, c->s.units > 0 && c->s.units % c->s.piece == 0};
    int64_t turns = c->s.piece / c->rows, last = c->s.pieces - 1;
    int depth = k->depth;
    open_valid(c);
    if (!p.whole && last > 0) {
        p.whole = true;
        loop_open_if(k, loop_range(k, piece, 0, last));
        lower_cuda_turns(k, turns, PLACES_TOGETHER, add_place, &p);
        loop_close(k);
        loop_open_if(k, loop_range(k, piece, last, last + 1));
        p.whole = false;
    }
    lower_cuda_turns(k, turns, PLACES_TOGETHER, add_place, &p);
    lower_space_close(k, depth);
}

/* Folds reduction i over the rows of threads; the first row's threads get the sums in acc. */
static void fold_rows_of(Columns *c, int i) {
    Reduce *r = c->r;
    LoopKernel *k = r->k;
    LoopIdx own = loop_idx_add(k, loop_idx_scale(k, c->row, c->wide), c->column);
    int depth = k->depth;
    LoopIdx lane = open_lanes(c);
    loop_store(k, c->shared[i], loop_idx_add(k, own, lane), loop_load(k, c->acc[i], lane));
    lower_space_close(k, depth);
    for (int64_t half = c->rows / 2; half > 0; half /= 2) {
        loop_sync(k);
        loop_open_if(k, loop_range(k, c->row, 0, half));
        lane = open_lanes(c);
        LoopIdx at = loop_idx_add(k, own, lane);
        LoopVal a = loop_load(k, c->shared[i], at);
        LoopVal b = loop_load(k, c->shared[i], loop_idx_plus(k, at, half * c->wide));
        LoopVal sum = reduce_combine(r, r->red[i], a, b);
        loop_store(k, c->shared[i], at, sum);
        if (half == 1) loop_store(k, c->acc[i], lane, sum);
        lower_space_close(k, depth);
    }
}

/* One after another, so that they can share an array. */
static void fold_rows(Columns *c) {
    for (int i = 0; i < c->r->n; i++) {
        if (i > 0) loop_sync(c->r->k);
        fold_rows_of(c, i);
    }
}

/* Opens what the first row of threads does for its columns; lane by lane. */
static LoopIdx open_first_row(Columns *c) {
    LoopKernel *k = c->r->k;
    if (c->rows > 1) loop_open_if(k, loop_range(k, c->row, 0, 1));
    open_valid(c);
    return open_lanes(c);
}

static LoopIdx result_at(Columns *c, LoopIdx lane) {
    LoopKernel *k = c->r->k;
    LoopIdx at = loop_idx_scale(k, c->r->kept_flat, c->r->split.run);
    return loop_idx_add(k, loop_idx_add(k, at, c->place), lane);
}

static LoopVal folded(Columns *c, int i, LoopIdx lane) {
    return loop_load(c->r->k, c->acc[i], lane);
}

static void finish(Columns *c) {
    Reduce *r = c->r;
    LoopIdx index[NDIM_MAX];
    int depth = r->k->depth;
    LoopIdx lane = open_first_row(c);
    for (int i = 0; i < r->n; i++) lower_body_bind(r->b, r->red[i]->out, folded(c, i, lane));
    LoopIdx at = result_at(c, lane);
    reduce_result_index(r, at, index);
    const Graph *g = r->b->body;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, g->nout); /* all loads before any store */
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) v[i] = lower_body_value(r->b, g->out[i], index);
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) loop_store(r->k, r->b->out[i], at, v[i]);
    lower_space_close(r->k, depth);
}

static LoopIdx work_at(Columns *c, int i, LoopIdx piece, LoopIdx lane) {
    LoopKernel *k = c->r->k;
    LoopIdx at = loop_idx_scale(k, piece, c->r->split.results);
    at = loop_idx_add(k, at, result_at(c, lane));
    return loop_idx_plus(k, at, i * c->s.pieces * c->r->split.results);
}

static void store_piece(Columns *c, LoopIdx piece) {
    LoopKernel *k = c->r->k;
    int depth = k->depth;
    LoopIdx lane = open_first_row(c);
    for (int i = 0; i < c->r->n; i++)
        loop_store(k, c->r->b->workspace, work_at(c, i, piece, lane), folded(c, i, lane));
    lower_space_close(k, depth);
}

static void add_piece(void *data, LoopIdx turn) {
    const Places *p = data;
    Columns *c = p->c;
    LoopKernel *k = c->r->k;
    int depth = k->depth;
    LoopIdx piece = loop_idx_add(k, loop_idx_scale(k, turn, c->rows), c->row);
    piece =
        p->whole ? loop_name(k, piece, c->s.pieces) : lower_cuda_open_below(k, piece, c->s.pieces);
    LoopIdx lane = open_lanes(c);
    for (int i = 0; i < c->r->n; i++)
        add(c, i, lane, loop_load(k, c->r->b->workspace, work_at(c, i, piece, lane)));
    lower_space_close(k, depth);
}

/* Adds the thread's share of the pieces, several loads under way. */
static void add_pieces(Columns *c) {
    LoopKernel *k = c->r->k;
    int64_t full = c->s.pieces / c->rows;
    int depth = k->depth;
    Places p = {.c = c, .whole = true};
    open_valid(c);
    lower_cuda_turns(k, full, PLACES_TOGETHER, add_piece, &p);
    p.whole = false;
    if (c->s.pieces % c->rows) add_piece(&p, loop_idx(k, full));
    lower_space_close(k, depth);
}

/* Opens the kernel: blocks are pieces by rows of results by tiles of columns. Returns the piece;
 * `tile` is the number of the tile among all of them. */
static LoopIdx open_blocks(Columns *c, LoopIdx *tile, int64_t *tiles) {
    Reduce *r = c->r;
    LoopKernel *k = r->k;
    LoopIdx block, thread;
    int64_t units = r->split.run / c->s.vector, across = lower_ceil_div(units, c->s.group);
    *tiles = r->split.results / r->split.run * across;
    lower_cuda_open(k, *tiles * c->s.pieces, c->s.threads, &block, &thread);
    *tile = loop_let(k, loop_idx_mod(k, block, *tiles), *tiles);
    LoopIdx piece = loop_let(k, loop_idx_div(k, block, *tiles), c->s.pieces);
    r->kept_flat = loop_let(k, loop_idx_div(k, *tile, across), *tiles / across);
    r->kept_at = reduce_place(r, &r->split.kept, r->kept_flat);
    c->row = loop_let(k, loop_idx_div(k, thread, c->s.group), c->rows);
    LoopIdx in_tile = loop_let(k, loop_idx_mod(k, thread, c->s.group), c->s.group);
    c->column = loop_idx_scale(k, in_tile, c->s.vector);
    LoopIdx unit = loop_idx_scale(k, loop_idx_mod(k, *tile, across), c->s.group);
    unit = loop_let(k, loop_idx_add(k, unit, in_tile), across * c->s.group);
    if (across * c->s.group > units) {
        /* Threads beyond the last column look at it, too: loads that every result needs stand
         * before the condition. */
        c->valid = loop_range(k, unit, 0, units);
        LoopVal arg[3] = {c->valid, loop_index(k, unit),
                          loop_const(k, DT_i32, (double)(units - 1))};
        unit = loop_idx_val(k, loop_op(k, OP_select, DT_i32, 3, arg), 0, units - 1);
    }
    c->place = loop_idx_scale(k, unit, c->s.vector);
    return piece;
}

/* A result of the domain's shape never lies on an operand (place.h), so loads may overtake stores.
 */
static void part_domain(Reduce *r) {
    const TypeTable *types = r->b->body->mod->types;
    int64_t elems = type_elems(types, val_type(r->b->body, r->red[0]->in[0]));
    for (int i = 1; i <= r->k->nparam; i++)
        if (r->k->buf.data[i].elems == elems) r->k->buf.data[i].shared = false;
}

void lower_cuda_columns(Reduce *r) {
    LoopKernel *k = r->k;
    Arena *arena = r->b->ctx->arena;
    Columns c = {.r = r, .s = split_cuda_reduce(r->b->body, r->red[0])};
    if (c.s.units > 1) part_domain(r);
    c.rows = c.s.threads / c.s.group;
    c.wide = c.s.group * c.s.vector;
    c.acc = ARENA_ARRAY(arena, LoopBuf, r->n);
    c.shared = ARENA_ARRAY(arena, LoopBuf, r->n);
    for (int i = 0; i < r->n; i++) {
        Dtype dtype = reduce_dtype(r, r->red[i]);
        for (int j = 0; j < i && !c.shared[i].id; j++)
            if (reduce_dtype(r, r->red[j]) == dtype) c.shared[i] = c.shared[j];
        if (!c.shared[i].id) c.shared[i] = loop_shared(k, "rows", dtype, c.rows * c.wide);
    }
    LoopIdx tile;
    int64_t tiles;
    LoopIdx piece = open_blocks(&c, &tile, &tiles);
    for (int i = 0; i < r->n; i++)
        c.acc[i] = loop_reg(k, "acc", reduce_dtype(r, r->red[i]), c.s.vector, 1);
    clear(&c);
    add_places(&c, piece);
    fold_rows(&c);
    if (c.s.apart) {
        store_piece(&c, piece);
        loop_open_if(k, loop_last(k, tile, tiles, c.s.pieces));
        clear(&c);
        add_pieces(&c);
        fold_rows(&c);
    }
    finish(&c);
    lower_space_close(k, 0);
}
