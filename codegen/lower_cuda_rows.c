/* lower_cuda_rows.c - reductions whose innermost axis is reduced, for CUDA.
 *
 * A group of threads makes one result: a warp or less for short rows, a block for long ones. Each
 * thread adds its units of the row in registers, then the threads fold. Where each thread has few
 * units, what later loops need again of the row stays in registers, else the first operand that
 * they need in shared memory, where that has room: one read, one write. Few long results are cut
 * into pieces, one a block, that the last block of a result puts together; a body whose reductions
 * depend on each other does the pieces one after another, in the same order.
 */
#include "codegen/lower_cuda.h"
#include "codegen/lower_reduce.h"

#include <string.h>

/* Elements that a thread keeps, by threads of a block: registers are 64 Ki for all of them. */
static int64_t kept_elems_max(int threads) { return threads > 512 ? 16 : threads > 256 ? 48 : 96; }

/* A value of the domain's shape that stays for later loops: a thread's part of it in registers, or
 * all of the row in shared memory, of which a thread sees its own part only. */
typedef struct Kept {
    Val v;
    int loop; /* the first that computes it */
    bool shared;
    LoopBuf buf;
} Kept;

typedef struct Rows {
    Reduce *r;
    CudaReduce s;
    LoopIdx lane;  /* of the result's threads */
    LoopVal valid; /* the result exists; id 0: always */
    int loop;      /* 1 .. levels: reductions of that level; levels + 1: results */
    int levels;
    int64_t steps; /* units of one thread in a piece, at most */
    Kept *kept;
    int nkept;
} Rows;

/* --- what to keep --- */

static bool has_shape(const TypeInfo *a, const TypeInfo *b) {
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

typedef struct Need {
    const Rows *w;
    int loop, *seen, *first;
    bool *again;
} Need;

/* Movement reads a value at another index than the row's. */
static bool is_moved(const Graph *g, Val v) {
    for (int i = 0; i < g->nnode; i++)
        for (int j = 0; j < g->node[i]->nin; j++)
            if (g->node[i]->in[j].id == v.id && op_kind(g->node[i]->op) == KIND_movement)
                return true;
    return false;
}

/* Notes in which loop a value is first needed and which are needed again. */
static void mark_needed(Need *n, Val v) {
    const Graph *g = n->w->r->b->body;
    const Node *made_by = val_node(g, v);
    bool reduces = made_by && op_kind(made_by->op) == KIND_reduce;
    if (reduces || n->seen[v.id] == n->loop) return;
    n->seen[v.id] = n->loop;
    bool worth = (!made_by || reduce_is_dear(made_by)) &&
                 has_shape(val_info(g, v), n->w->r->domain) && !is_moved(g, v);
    if (worth && n->first[v.id]) {
        n->again[v.id] = true;
        return;
    }
    n->first[v.id] = n->loop;
    for (int i = 0; made_by && i < made_by->nin; i++) mark_needed(n, made_by->in[i]);
}

static void keep_in_registers(Rows *w, const Need *need) {
    const Graph *g = w->r->b->body;
    int64_t each = w->steps * w->s.vector, most = kept_elems_max(w->s.threads);
    if (w->steps > CUDA_TURNS) return;
    for (uint32_t v = 1; v < g->nval; v++)
        if (need->again[v] && (w->nkept + 1) * each <= most)
            w->kept[w->nkept++] = (Kept){.v = {v}, .loop = need->first[v]};
    for (int i = 0; i < w->nkept; i++)
        w->kept[i].buf = loop_reg(w->r->k, "row", val_info(g, w->kept[i].v)->dtype, each, 1);
}

/* One row a block, and one run of neighbours a row. */
static void keep_in_shared(Rows *w, const Need *need) {
    const Graph *g = w->r->b->body;
    int64_t run = w->r->split.run;
    bool whole = w->s.group == w->s.threads && w->r->split.reduced.n == 0;
    for (int i = 0; whole && i < g->nin; i++) {
        Val v = g->in[i];
        Dtype dtype = val_info(g, v)->dtype;
        if (!need->again[v.id] || run * dtype_bytes(dtype) > LOOP_DYNAMIC_MAX) continue;
        LoopBuf buf = loop_shared_dynamic(w->r->k, "row", dtype, run);
        w->kept[w->nkept++] = (Kept){.v = v, .loop = need->first[v.id], .shared = true, .buf = buf};
        return;
    }
}

static void choose_kept(Rows *w) {
    const Reduce *r = w->r;
    const Graph *g = r->b->body;
    Arena *arena = r->b->ctx->arena;
    Need need = {.w = w,
                 .seen = ARENA_ARRAY(arena, int, g->nval + 1),
                 .first = ARENA_ARRAY(arena, int, g->nval + 1),
                 .again = ARENA_ARRAY(arena, bool, g->nval + 1)};
    if (w->s.pieces > 1 || w->s.units == 1) return;
    for (need.loop = 1; need.loop <= w->levels; need.loop++)
        for (int i = 0; i < r->n; i++)
            if (reduce_is_of_level(r, i, need.loop)) mark_needed(&need, r->red[i]->in[0]);
    for (int i = 0; i < g->nout; i++)
        if (reduce_is_domain_result(r, i)) mark_needed(&need, g->out[i]);
    w->kept = ARENA_ARRAY(arena, Kept, g->nval + 1);
    keep_in_registers(w, &need);
    if (w->nkept == 0) keep_in_shared(w, &need);
}

/* --- a thread's units --- */

typedef void UnitFn(Rows *w, LoopIdx at, const LoopIdx *index, void *extra);

/* One unit, the thread's number `step` (where that is known): all its elements. `exists`: so it is
 * known already. */
static void do_unit(Rows *w, LoopIdx unit, bool exists, LoopIdx step, UnitFn *fn, void *extra) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    LoopIdx index[NDIM_MAX], at = r->kept_at;
    int64_t per_run = r->split.run / w->s.vector;
    int depth = k->depth;
    int64_t end = loop_idx_info(k, unit)->high + 1;
    if (end > w->s.units) end = w->s.units;
    LoopIdx u = exists ? loop_name(k, unit, end) : lower_cuda_open_below(k, unit, w->s.units);
    if (r->split.reduced.n > 0) {
        LoopIdx outer = reduce_place(r, &r->split.reduced, loop_idx_div(k, u, per_run));
        at = loop_idx_add(k, at, outer);
        u = loop_let(k, loop_idx_mod(k, u, per_run), per_run);
    }
    at = loop_idx_add(k, at, loop_idx_scale(k, u, w->s.vector));
    LoopIdx slot = loop_idx_scale(k, step, w->s.vector);
    LoopIdx place = loop_idx_scale(k, u, w->s.vector);
    if (w->s.vector > 1) {
        LoopIdx l = loop_idx_axis(k, loop_open(k, LOOP_vector, w->s.vector, LOOP_NO_BOUND));
        at = loop_idx_add(k, at, l);
        slot = loop_idx_add(k, slot, l);
        place = loop_idx_add(k, place, l);
    }
    reduce_domain_index(r, at, index);
    for (int i = 0; i < w->nkept; i++)
        if (w->kept[i].loop < w->loop)
            lower_body_bind(r->b, w->kept[i].v,
                            loop_load(k, w->kept[i].buf, w->kept[i].shared ? place : slot));
    fn(w, at, index, extra);
    for (int i = 0; i < w->nkept; i++)
        if (w->kept[i].loop == w->loop)
            loop_store(k, w->kept[i].buf, w->kept[i].shared ? place : slot,
                       lower_body_value(r->b, w->kept[i].v, index));
    lower_space_close(k, depth);
}

/* The units of a thread in a piece that is whole or the last one. */
typedef struct Units {
    Rows *w;
    LoopIdx first;
    bool whole;
    UnitFn *fn;
    void *extra;
} Units;

static void do_turn(void *data, LoopIdx turn) {
    Units *u = data;
    LoopKernel *k = u->w->r->k;
    LoopIdx unit = loop_idx_add(k, u->first, loop_idx_scale(k, turn, u->w->s.group));
    do_unit(u->w, unit, u->whole, turn, u->fn, u->extra);
}

static void for_units_of(Rows *w, LoopIdx piece, bool whole, UnitFn *fn, void *extra) {
    LoopKernel *k = w->r->k;
    int64_t group = w->s.group, full = w->s.piece / group;
    LoopIdx begin = loop_idx_scale(k, piece, w->s.piece);
    Units u = {w, loop_idx_add(k, begin, w->lane), whole, fn, extra};
    lower_cuda_turns(k, full, 4, do_turn, &u);
    u.whole = false;
    if (w->s.piece % group) do_turn(&u, loop_idx(k, full));
}

/* Whole pieces have loops without conditions, so that several loads are under way. */
static void for_units(Rows *w, LoopIdx piece, UnitFn *fn, void *extra) {
    LoopKernel *k = w->r->k;
    int64_t last = w->s.pieces - 1;
    if (w->s.pieces == 1 || w->s.units % w->s.piece == 0) {
        for_units_of(w, piece, true, fn, extra);
        return;
    }
    loop_open_if(k, loop_range(k, piece, 0, last));
    for_units_of(w, piece, true, fn, extra);
    loop_close(k);
    loop_open_if(k, loop_range(k, piece, last, last + 1));
    for_units_of(w, piece, false, fn, extra);
    loop_close(k);
}

/* --- reductions --- */

static LoopVal first_of(Rows *w, int i) {
    return loop_const(w->r->k, reduce_dtype(w->r, w->r->red[i]), reduce_first(w->r, w->r->red[i]));
}

static bool is_of_loop(const Rows *w, int i) { return reduce_is_of_level(w->r, i, w->loop); }

static LoopBuf *new_sums(Rows *w, const char *name) {
    Reduce *r = w->r;
    LoopBuf *sum = ARENA_ARRAY(r->b->ctx->arena, LoopBuf, r->n);
    for (int i = 0; i < r->n; i++) {
        if (!is_of_loop(w, i)) continue;
        sum[i] = loop_reg(r->k, name, reduce_dtype(r, r->red[i]), 1, 1);
        loop_store(r->k, sum[i], loop_idx(r->k, 0), first_of(w, i));
    }
    return sum;
}

static void add_to(Rows *w, int i, LoopBuf sum, LoopVal v) {
    LoopIdx zero = loop_idx(w->r->k, 0);
    LoopVal was = loop_load(w->r->k, sum, zero);
    loop_store(w->r->k, sum, zero, reduce_combine(w->r, w->r->red[i], was, v));
}

static void add_unit(Rows *w, LoopIdx at, const LoopIdx *index, void *extra) {
    const LoopBuf *sum = extra;
    (void)at;
    for (int i = 0; i < w->r->n; i++)
        if (is_of_loop(w, i))
            add_to(w, i, sum[i], lower_body_value(w->r->b, w->r->red[i]->in[0], index));
}

static LoopVal fold(Rows *w, int i, LoopBuf sum, int64_t width) {
    LoopVal v = loop_load(w->r->k, sum, loop_idx(w->r->k, 0));
    return loop_group_fold(w->r->k, w->r->red[i]->op, v, width);
}

/* The sums of one piece, in every thread of the group. */
static void sum_piece(Rows *w, LoopIdx piece, LoopVal *v) {
    LoopBuf *sum = new_sums(w, "sum");
    for_units(w, piece, add_unit, sum);
    for (int i = 0; i < w->r->n; i++)
        if (is_of_loop(w, i)) v[i] = fold(w, i, sum[i], w->s.group);
}

/* Adds reduction i of all pieces, which lie in buf from `at` on. */
static LoopVal sum_of_pieces(Rows *w, int i, LoopBuf buf, LoopIdx at) {
    LoopKernel *k = w->r->k;
    LoopBuf *sum = new_sums(w, "all");
    int64_t steps = lower_ceil_div(w->s.pieces, CUDA_FOLD);
    LoopIdx j = loop_idx_axis(k, loop_open(k, LOOP_reduce, steps, LOOP_NO_BOUND));
    LoopIdx piece = loop_idx_add(k, loop_idx_scale(k, j, CUDA_FOLD), w->lane);
    int depth = k->depth;
    piece = lower_cuda_open_below(k, piece, w->s.pieces);
    add_to(w, i, sum[i], loop_load(k, buf, loop_idx_add(k, at, piece)));
    lower_space_close(k, depth);
    loop_close(k);
    return fold(w, i, sum[i], CUDA_FOLD);
}

/* --- one result --- */

/* Pieces one after another, kept in shared memory until all are there. */
static void sum_pieces(Rows *w, LoopVal *v) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    LoopBuf *all = ARENA_ARRAY(r->b->ctx->arena, LoopBuf, r->n);
    for (int i = 0; i < r->n; i++)
        if (is_of_loop(w, i))
            all[i] = loop_shared(k, "all", reduce_dtype(r, r->red[i]), w->s.pieces);
    LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_reduce, w->s.pieces, LOOP_NO_BOUND));
    sum_piece(w, piece, v);
    for (int i = 0; i < r->n; i++)
        if (is_of_loop(w, i)) loop_store_if(k, all[i], piece, v[i], loop_range(k, w->lane, 0, 1));
    loop_close(k);
    loop_sync(k);
    for (int i = 0; i < r->n; i++)
        if (is_of_loop(w, i)) v[i] = sum_of_pieces(w, i, all[i], loop_idx(k, 0));
}

/* Single elements of the row, before anything is stored where they lie. */
static void pick(Rows *w, LoopVal *v) {
    Reduce *r = w->r;
    const Graph *g = r->b->body;
    bool any = false, shared = false;
    for (int i = 0; i < w->nkept; i++) lower_body_bind(r->b, w->kept[i].v, (LoopVal){0});
    for (int i = 0; i < r->n; i++) {
        if (!r->picked[i] || r->level[r->red[i]->out.id] != w->loop) continue;
        v[i] = reduce_pick(r, i);
        any = true;
    }
    for (int i = 0; i < g->nout; i++)
        shared |= reduce_is_domain_result(r, i) && loop_buf_info(r->k, r->b->out[i])->shared;
    if (any && shared) loop_sync(r->k);
}

static void reduce_level(Rows *w) {
    Reduce *r = w->r;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, r->n);
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= is_of_loop(w, i);
    pick(w, v);
    if (any && w->s.pieces > 1)
        sum_pieces(w, v);
    else if (any)
        sum_piece(w, loop_idx(r->k, 0), v);
    for (int i = 0; i < r->n; i++)
        if (r->level[r->red[i]->out.id] == w->loop) lower_body_bind(r->b, r->red[i]->out, v[i]);
}

static void store_unit(Rows *w, LoopIdx at, const LoopIdx *index, void *extra) {
    const Graph *g = w->r->b->body;
    LoopVal *v = extra;
    for (int i = 0; i < g->nout; i++)
        if (reduce_is_domain_result(w->r, i)) v[i] = lower_body_value(w->r->b, g->out[i], index);
    for (int i = 0; i < g->nout; i++)
        if (reduce_is_domain_result(w->r, i)) loop_store(w->r->k, w->r->b->out[i], at, v[i]);
}

static void store_domain(Rows *w, LoopVal *v) {
    LoopKernel *k = w->r->k;
    int depth = k->depth;
    if (w->valid.id) loop_open_if(k, w->valid);
    if (w->s.pieces > 1) {
        LoopIdx piece = loop_idx_axis(k, loop_open(k, LOOP_reduce, w->s.pieces, LOOP_NO_BOUND));
        for_units(w, piece, store_unit, v);
    } else {
        for_units(w, loop_idx(k, 0), store_unit, v);
    }
    lower_space_close(k, depth);
}

/* Results of the kept shape, by the group's first thread, after all threads have read what such a
 * result may lie on. */
static void store_kept(Rows *w, LoopVal *v) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    const Graph *g = r->b->body;
    LoopIdx index[NDIM_MAX];
    bool shared = false;
    for (int i = 0; i < g->nout; i++)
        shared |= !reduce_is_domain_result(r, i) && loop_buf_info(k, r->b->out[i])->shared;
    reduce_result_index(r, r->kept_flat, index);
    if (shared) {
        for (int i = 0; i < g->nout; i++)
            if (!reduce_is_domain_result(r, i)) lower_body_value(r->b, g->out[i], index);
        loop_sync(k);
    }
    int depth = k->depth;
    LoopVal mine = loop_range(k, w->lane, 0, 1);
    loop_open_if(k, w->valid.id ? loop_op2(k, OP_and, mine, w->valid) : mine);
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) v[i] = lower_body_value(r->b, g->out[i], index);
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) loop_store(k, r->b->out[i], r->kept_flat, v[i]);
    lower_space_close(k, depth);
}

static void store_results(Rows *w) {
    Reduce *r = w->r;
    const Graph *g = r->b->body;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, g->nout);
    bool domain = false, kept = false;
    for (int i = 0; i < g->nout; i++) {
        domain |= reduce_is_domain_result(r, i);
        kept |= !reduce_is_domain_result(r, i);
    }
    if (domain && w->s.units > 0) store_domain(w, v);
    if (kept) store_kept(w, v);
}

static void set_result(Rows *w, LoopIdx result) {
    w->r->kept_flat = result;
    w->r->kept_at = reduce_place(w->r, &w->r->split.kept, result);
}

/* Groups of a block beyond the last result do the last one again, without storing it. */
static void open_groups(Rows *w) {
    LoopKernel *k = w->r->k;
    int64_t results = w->r->split.results, each = w->s.threads / w->s.group;
    LoopIdx block, thread;
    lower_cuda_open(k, lower_ceil_div(results, each), w->s.threads, &block, &thread);
    LoopIdx group = loop_idx_div(k, thread, w->s.group);
    LoopIdx result = loop_let(k, loop_idx_add(k, loop_idx_scale(k, block, each), group),
                              lower_ceil_div(results, each) * each);
    w->lane = loop_let(k, loop_idx_mod(k, thread, w->s.group), w->s.group);
    if (results % each) {
        w->valid = loop_range(k, result, 0, results);
        LoopVal arg[3] = {w->valid, loop_index(k, result),
                          loop_const(k, DT_i32, (double)(results - 1))};
        result = loop_idx_val(k, loop_op(k, OP_select, DT_i32, 3, arg), 0, results - 1);
    }
    set_result(w, result);
}

static void rows_whole(Rows *w) {
    for (int i = 0; i < w->r->n; i++) {
        int level = w->r->level[w->r->red[i]->out.id];
        w->levels = level > w->levels ? level : w->levels;
    }
    open_groups(w);
    reduce_find_picks(w->r);
    choose_kept(w);
    for (w->loop = 1; w->loop <= w->levels; w->loop++) reduce_level(w);
    store_results(w);
}

/* --- a block a piece --- */

static LoopIdx work_at(Rows *w, int i) {
    LoopKernel *k = w->r->k;
    LoopIdx at = loop_idx_scale(k, w->r->kept_flat, w->s.pieces);
    return loop_idx_plus(k, at, i * w->r->split.results * w->s.pieces);
}

static void rows_apart(Rows *w) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, r->n);
    LoopIdx block;
    lower_cuda_open(k, r->split.results * w->s.pieces, w->s.threads, &block, &w->lane);
    LoopIdx piece = loop_let(k, loop_idx_mod(k, block, w->s.pieces), w->s.pieces);
    set_result(w, loop_let(k, loop_idx_div(k, block, w->s.pieces), r->split.results));
    w->loop = w->levels = 1;
    sum_piece(w, piece, v);
    for (int i = 0; i < r->n; i++)
        loop_store_if(k, r->b->workspace, loop_idx_add(k, work_at(w, i), piece), v[i],
                      loop_range(k, w->lane, 0, 1));
    loop_open_if(k, loop_last(k, r->kept_flat, r->split.results, w->s.pieces));
    for (int i = 0; i < r->n; i++)
        lower_body_bind(r->b, r->red[i]->out, sum_of_pieces(w, i, r->b->workspace, work_at(w, i)));
    w->loop = 2;
    store_results(w);
}

void lower_cuda_rows(Reduce *r) {
    Rows w = {.r = r, .s = split_cuda_reduce(r->b->body, r->red[0])};
    w.steps = lower_ceil_div(w.s.piece, w.s.group);
    if (w.s.apart)
        rows_apart(&w);
    else
        rows_whole(&w);
    lower_space_close(r->k, 0);
}

LoopKernel *lower_cuda_reduce(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Reduce r = reduce_start(ctx, g, kernel);
    if (r.split.results == 0) return r.k;
    if (r.split.inner)
        lower_cuda_rows(&r);
    else
        lower_cuda_columns(&r);
    return r.k;
}
