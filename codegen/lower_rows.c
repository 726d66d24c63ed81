/* lower_rows.c - reductions whose innermost axis is reduced: rows.
 *
 * One grid iteration makes one result (one row when only trailing axes are reduced): a loop over
 * the row for each depth of dependent reductions, then one that stores results of the domain's
 * shape. Values that are dear to compute and needed in several of these loops wait in a private
 * buffer when the row is short enough. With few results and long runs the items are computed in
 * parallel into the workspace and put together in a second nest, in the same order.
 */
#include "codegen/lower_reduce.h"

#include <string.h>

enum { KEPT_BYTES_MAX = 65536 };

/* A value of the domain's shape that waits for later loops. */
typedef struct Kept {
    Val v;
    int loop; /* the first that computes it */
    LoopBuf buf;
} Kept;

typedef struct Row {
    Reduce *r;
    int loop; /* 1 .. levels: reductions of that level; levels + 1: results */
    int levels;
    LoopIdx outer_at; /* offset of the reduced groups but the run */
    Kept *kept;
    int nkept;
} Row;

/* --- what to keep --- */

bool reduce_is_dear(const Node *n) {
    static const char *const word[] = {"EXP", "LOG", "TANH", "ERF", "POW", "SIN", "COS"};
    const char *expr = op_expr(n->op);
    for (size_t i = 0; expr && i < sizeof word / sizeof word[0]; i++)
        if (strstr(expr, word[i])) return true;
    return op_kind(n->op) == KIND_random;
}

/* Counts in uses[] the values that are computed for v, each once a loop (seen[] = loop). */
static void mark_needed(const Graph *g, Val v, int loop, int *seen, int *first, int *uses) {
    const Node *n = val_node(g, v);
    if (!n || op_kind(n->op) == KIND_reduce || seen[v.id] == loop) return;
    seen[v.id] = loop;
    if (uses[v.id]++ == 0) first[v.id] = loop;
    for (int i = 0; i < n->nin; i++) mark_needed(g, n->in[i], loop, seen, first, uses);
}

static bool same_shape(const TypeInfo *a, const TypeInfo *b) {
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

bool reduce_is_domain_result(const Reduce *r, int i) {
    const TypeInfo *t = val_info(r->b->body, r->b->body->out[i]);
    return !same_shape(t, r->result) && same_shape(t, r->domain);
}

static void choose_kept(Row *w) {
    const Reduce *r = w->r;
    const Graph *g = r->b->body;
    Arena *arena = r->b->ctx->arena;
    int *seen = ARENA_ARRAY(arena, int, g->nval + 1), *first = ARENA_ARRAY(arena, int, g->nval + 1);
    int *uses = ARENA_ARRAY(arena, int, g->nval + 1);
    for (int loop = 1; loop <= w->levels; loop++)
        for (int i = 0; i < r->n; i++)
            if (reduce_is_of_level(r, i, loop))
                mark_needed(g, r->red[i]->in[0], loop, seen, first, uses);
    for (int i = 0; i < g->nout; i++)
        if (reduce_is_domain_result(r, i))
            mark_needed(g, g->out[i], w->levels + 1, seen, first, uses);
    w->kept = ARENA_ARRAY(arena, Kept, g->nnode);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        bool fits = (w->nkept + 1) * r->split.run * 4 <= KEPT_BYTES_MAX;
        if (fits && reduce_is_dear(n) && uses[n->out.id] > 1 && r->split.reduced.n == 0 &&
            same_shape(val_info(g, n->out), r->domain))
            w->kept[w->nkept++] = (Kept){.v = n->out, .loop = first[n->out.id]};
    }
    for (int i = 0; i < w->nkept; i++)
        w->kept[i].buf = loop_local(r->k, "row", val_info(g, w->kept[i].v)->dtype, r->split.run);
}

/* Values kept by this loop are read from their buffers from now on. */
static void bind_kept(Row *w) {
    for (int i = 0; i < w->nkept; i++)
        if (w->kept[i].loop == w->loop)
            lower_body_bind_buf(w->r->b, w->kept[i].v, w->kept[i].buf,
                                loop_idx_scale(w->r->k, w->r->kept_at, -1));
}

static void store_kept(Row *w, LoopIdx at, const LoopIdx *index) {
    for (int i = 0; i < w->nkept; i++)
        if (w->kept[i].loop == w->loop)
            loop_store(w->r->k, w->kept[i].buf, at, lower_body_value(w->r->b, w->kept[i].v, index));
}

/* --- one item --- */

/* The values that the reductions of this loop take in, at place `at` of the run. */
static void operands(Row *w, LoopIdx at, LoopVal *v) {
    Reduce *r = w->r;
    LoopIdx index[NDIM_MAX];
    LoopIdx place = loop_idx_add(r->k, loop_idx_add(r->k, r->kept_at, w->outer_at), at);
    reduce_domain_index(r, place, index);
    for (int i = 0; i < r->n; i++)
        if (reduce_is_of_level(r, i, w->loop))
            v[i] = lower_body_value(r->b, r->red[i]->in[0], index);
    store_kept(w, at, index);
}

static void declare(Row *w, LoopBuf *buf, const char *name, int64_t n) {
    for (int i = 0; i < w->r->n; i++)
        if (reduce_is_of_level(w->r, i, w->loop))
            buf[i] = loop_local(w->r->k, name, reduce_dtype(w->r, w->r->red[i]), n);
}

/* Lanes [0, n) of part take in the places from `at` on. */
static void add_lanes(Row *w, LoopIdx at, int64_t n, const LoopBuf *part, LoopVal *v) {
    Reduce *r = w->r;
    LoopIdx l = loop_idx_axis(r->k, loop_open(r->k, LOOP_vector, n, LOOP_NO_BOUND));
    operands(w, loop_idx_add(r->k, at, l), v);
    for (int i = 0; i < r->n; i++)
        if (part[i].id)
            loop_store(r->k, part[i], l,
                       reduce_combine(r, r->red[i], loop_load(r->k, part[i], l), v[i]));
    loop_close(r->k);
}

/* The n places from `begin` on of the open run. */
static void add_run(Row *w, LoopIdx begin, int64_t n, const LoopBuf *part, LoopVal *v) {
    LoopKernel *k = w->r->k;
    int64_t lanes = w->r->split.lanes, groups = n / lanes;
    if (groups > 0) {
        LoopIdx group = loop_idx_axis(k, loop_open(k, LOOP_reduce, groups, LOOP_NO_BOUND));
        add_lanes(w, loop_idx_add(k, begin, loop_idx_scale(k, group, lanes)), lanes, part, v);
        loop_close(k);
    }
    if (n % lanes) add_lanes(w, loop_idx_plus(k, begin, groups * lanes), n % lanes, part, v);
}

static LoopBuf *clear_new(Row *w, const char *name, int lanes) {
    Reduce *r = w->r;
    LoopBuf *buf = ARENA_ARRAY(r->b->ctx->arena, LoopBuf, r->n);
    declare(w, buf, name, lanes);
    for (int i = 0; i < r->n; i++)
        if (buf[i].id) reduce_clear(r, r->red[i], buf[i], lanes);
    return buf;
}

static void fold(Row *w, const LoopBuf *buf, int lanes, LoopVal *v) {
    for (int i = 0; i < w->r->n; i++)
        if (buf[i].id) v[i] = loop_fold(w->r->k, w->r->red[i]->op, buf[i], lanes);
}

static int64_t outer_places(const Reduce *r) {
    int64_t n = 1;
    for (int i = 0; i < r->split.reduced.n; i++) n *= r->split.reduced.dim[i];
    return n;
}

/* A block of n places of run number `outer`, from `begin` on. */
static void sum_block(Row *w, LoopIdx outer, LoopIdx begin, int64_t n, LoopVal *v) {
    Reduce *r = w->r;
    LoopBuf *part = clear_new(w, "part", r->split.lanes);
    w->outer_at = reduce_place(r, &r->split.reduced, outer);
    add_run(w, begin, n, part, v);
    fold(w, part, r->split.lanes, v);
}

/* Item number `item` of whole runs. */
static void sum_runs(Row *w, LoopIdx item, LoopVal *v) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    int64_t count = outer_places(r), group = r->split.group;
    LoopBuf *part = clear_new(w, "part", r->split.lanes);
    LoopIdx begin = {0}, bound = LOOP_NO_BOUND;
    if (count > group) {
        begin = loop_idx_scale(k, item, group);
        bound = loop_idx_plus(k, begin, group);
    }
    LoopIdx outer = loop_idx_axis(k, loop_open_range(k, LOOP_reduce, count, begin, bound));
    w->outer_at = reduce_place(r, &r->split.reduced, outer);
    add_run(w, loop_idx(k, 0), r->split.run, part, v);
    loop_close(k);
    fold(w, part, r->split.lanes, v);
}

/* --- one result --- */

/* An item's sums into lane item % item_lanes. */
static void add_item(Row *w, LoopIdx item, const LoopBuf *all, const LoopVal *v) {
    Reduce *r = w->r;
    LoopIdx lane = loop_idx_mod(r->k, item, r->split.item_lanes);
    for (int i = 0; i < r->n; i++)
        if (all[i].id)
            loop_store(r->k, all[i], lane,
                       reduce_combine(r, r->red[i], loop_load(r->k, all[i], lane), v[i]));
}

static void sum_blocks(Row *w, const LoopBuf *all, LoopVal *v) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    const ReduceSplit *s = &r->split;
    int64_t full = s->run / s->block, rest = s->run % s->block;
    LoopIdx outer = loop_idx_axis(k, loop_open(k, LOOP_reduce, outer_places(r), LOOP_NO_BOUND));
    LoopIdx first = loop_idx_scale(k, outer, s->blocks);
    LoopIdx block = loop_idx_axis(k, loop_open(k, LOOP_reduce, full, LOOP_NO_BOUND));
    sum_block(w, outer, loop_idx_scale(k, block, s->block), s->block, v);
    add_item(w, loop_idx_add(k, first, block), all, v);
    loop_close(k);
    if (rest > 0) {
        sum_block(w, outer, loop_idx(k, full * s->block), rest, v);
        add_item(w, loop_idx_plus(k, first, full), all, v);
    }
    loop_close(k);
}

static void sum_items(Row *w, LoopVal *v) {
    Reduce *r = w->r;
    LoopKernel *k = r->k;
    LoopBuf *all = clear_new(w, "all", r->split.item_lanes);
    if (r->split.blocks > 1) {
        sum_blocks(w, all, v);
    } else {
        LoopIdx item = loop_idx_axis(k, loop_open(k, LOOP_reduce, r->split.items, LOOP_NO_BOUND));
        sum_runs(w, item, v);
        add_item(w, item, all, v);
        loop_close(k);
    }
    fold(w, all, r->split.item_lanes, v);
}

static void reduce_level(Row *w) {
    Reduce *r = w->r;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, r->n);
    bool any = false;
    w->outer_at = loop_idx(r->k, 0);
    for (int i = 0; i < r->n; i++) {
        any |= reduce_is_of_level(r, i, w->loop);
        if (r->picked[i] && r->level[r->red[i]->out.id] == w->loop) v[i] = reduce_pick(r, i);
    }
    if (any && r->split.items == 1)
        sum_runs(w, loop_idx(r->k, 0), v);
    else if (any && r->split.items > 1)
        sum_items(w, v);
    w->outer_at = loop_idx(r->k, 0);
    for (int i = 0; i < r->n; i++) {
        if (r->level[r->red[i]->out.id] != w->loop) continue;
        if (r->split.items == 0)
            v[i] = loop_const(r->k, reduce_dtype(r, r->red[i]), reduce_first(r, r->red[i]));
        lower_body_bind(r->b, r->red[i]->out, v[i]);
    }
    bind_kept(w);
}

/* Results of the domain's shape, then those of the kept shape: what lies on an operand is written
 * after everything that reads it. */
static void store_results(Row *w) {
    Reduce *r = w->r;
    const Graph *g = r->b->body;
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, g->nout);
    LoopIdx index[NDIM_MAX];
    bool any = false;
    for (int i = 0; i < g->nout; i++) any |= reduce_is_domain_result(r, i);
    if (any && r->split.run > 0) {
        LoopIdx j = loop_idx_axis(r->k, loop_open(r->k, LOOP_vector, r->split.run, LOOP_NO_BOUND));
        LoopIdx at = loop_idx_add(r->k, r->kept_at, j);
        reduce_domain_index(r, at, index);
        for (int i = 0; i < g->nout; i++)
            if (reduce_is_domain_result(r, i)) v[i] = lower_body_value(r->b, g->out[i], index);
        for (int i = 0; i < g->nout; i++)
            if (reduce_is_domain_result(r, i)) loop_store(r->k, r->b->out[i], at, v[i]);
        loop_close(r->k);
    }
    reduce_result_index(r, r->kept_flat, index);
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) v[i] = lower_body_value(r->b, g->out[i], index);
    for (int i = 0; i < g->nout; i++)
        if (!reduce_is_domain_result(r, i)) loop_store(r->k, r->b->out[i], r->kept_flat, v[i]);
}

static void open_results(Reduce *r) {
    lower_open_grid(r->k, 1, &r->split.results, &r->kept_flat);
    r->kept_at = reduce_place(r, &r->split.kept, r->kept_flat);
}

static void rows_whole(Reduce *r) {
    Row w = {.r = r};
    for (int i = 0; i < r->n; i++)
        w.levels = r->level[r->red[i]->out.id] > w.levels ? r->level[r->red[i]->out.id] : w.levels;
    open_results(r);
    w.outer_at = loop_idx(r->k, 0);
    reduce_find_picks(r);
    choose_kept(&w);
    for (w.loop = 1; w.loop <= w.levels; w.loop++) reduce_level(&w);
    store_results(&w);
    loop_close(r->k);
}

/* --- two stages --- */

static LoopIdx work_at(const Reduce *r, int reduction, LoopIdx item) {
    LoopIdx at = loop_idx_add(r->k, item, loop_idx_scale(r->k, r->kept_flat, r->split.items));
    return loop_idx_plus(r->k, at, reduction * r->split.items * r->split.results);
}

static void store_work(Reduce *r, LoopIdx item, const LoopVal *v) {
    for (int i = 0; i < r->n; i++) loop_store(r->k, r->b->workspace, work_at(r, i, item), v[i]);
    loop_close(r->k);
}

static void open_stage(Reduce *r, int n, const int64_t *grid, LoopIdx *at, int result) {
    lower_open_grid(r->k, n, grid, at);
    r->kept_flat = at[result];
    r->kept_at = reduce_place(r, &r->split.kept, at[result]);
}

/* Blocks of n places, `count` a run, from block `first` of each run on, into the workspace. */
static void store_blocks(Row *w, int64_t first, int64_t count, int64_t n, LoopVal *v) {
    Reduce *r = w->r;
    int64_t grid[3] = {r->split.results, outer_places(r), count};
    LoopIdx at[3];
    open_stage(r, 3, grid, at, 0);
    LoopIdx block = loop_idx_plus(r->k, at[2], first);
    sum_block(w, at[1], loop_idx_scale(r->k, block, r->split.block), n, v);
    store_work(r, loop_idx_add(r->k, loop_idx_scale(r->k, at[1], r->split.blocks), block), v);
}

static void rows_first_stage(Reduce *r) {
    const ReduceSplit *s = &r->split;
    Row w = {.r = r, .loop = 1, .levels = 1};
    LoopVal *v = ARENA_ARRAY(r->b->ctx->arena, LoopVal, r->n);
    if (s->blocks == 1) {
        int64_t grid[2] = {s->items, s->results};
        LoopIdx at[2];
        open_stage(r, 2, grid, at, 1);
        sum_runs(&w, at[0], v);
        store_work(r, at[0], v);
        return;
    }
    int64_t full = s->run / s->block, rest = s->run % s->block;
    store_blocks(&w, 0, full, s->block, v);
    if (rest > 0) store_blocks(&w, full, 1, rest, v);
}

/* Lanes [0, n) of buf take in the items from `item` on. */
static void add_items(Reduce *r, int i, LoopBuf buf, LoopIdx item, int64_t n) {
    LoopKernel *k = r->k;
    LoopIdx l = loop_idx_axis(k, loop_open(k, LOOP_vector, n, LOOP_NO_BOUND));
    LoopVal x = loop_load(k, r->b->workspace, work_at(r, i, loop_idx_add(k, item, l)));
    loop_store(k, buf, l, reduce_combine(r, r->red[i], loop_load(k, buf, l), x));
    loop_close(k);
}

static void rows_second_stage(Reduce *r) {
    LoopKernel *k = r->k;
    const ReduceSplit *s = &r->split;
    int64_t groups = s->items / s->item_lanes, rest = s->items % s->item_lanes;
    Row w = {.r = r, .levels = 1, .loop = 2};
    open_results(r);
    for (int i = 0; i < r->n; i++) {
        LoopBuf all = loop_local(k, "all", DT_f32, s->item_lanes);
        reduce_clear(r, r->red[i], all, s->item_lanes);
        if (groups > 0) {
            LoopIdx group = loop_idx_axis(k, loop_open(k, LOOP_reduce, groups, LOOP_NO_BOUND));
            add_items(r, i, all, loop_idx_scale(k, group, s->item_lanes), s->item_lanes);
            loop_close(k);
        }
        if (rest > 0) add_items(r, i, all, loop_idx(k, groups * s->item_lanes), rest);
        lower_body_bind(r->b, r->red[i]->out, loop_fold(k, r->red[i]->op, all, s->item_lanes));
    }
    store_results(&w);
    loop_close(k);
}

void lower_rows(Reduce *r) {
    if (!r->split.apart) {
        rows_whole(r);
        return;
    }
    rows_first_stage(r);
    rows_second_stage(r);
}
