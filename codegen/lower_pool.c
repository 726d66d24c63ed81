/* lower_pool.c - pooling over the last two axes of [N, C, H, W], and its gradients.
 *
 * Forward kernels walk the window of each output; gradient kernels walk, for each input element,
 * the windows that cover it, so nothing is written twice and overlapping windows add up in a fixed
 * order. Elementwise epilogues run on the results in registers.
 */
#include "codegen/lower_space.h"

#include <math.h>

enum { UNROLL_MAX = 25 };

typedef struct Pool {
    LowerBody *b;
    LoopKernel *k;
    const Node *node;
    const TypeInfo *out; /* shape of the results */
    int64_t h, w;        /* of the unpooled side */
    int64_t oh, ow;      /* of the pooled side */
    const int64_t *window, *stride, *padding;
    LoopIdx index[4]; /* the open result element */
} Pool;

static bool pool_open(Pool *p, LowerContext *ctx, const Graph *g, const Node *kernel, Op op,
                      bool gradient) {
    p->b = lower_body_new(ctx, g, kernel);
    p->k = p->b->k;
    p->node = lower_body_anchor(p->b, op);
    p->out = val_info(p->b->body, p->node->out);
    const TypeInfo *in = val_info(p->b->body, p->node->in[0]);
    const TypeInfo *plain = gradient ? p->out : in, *pooled = gradient ? in : p->out;
    p->h = plain->dim[2];
    p->w = plain->dim[3];
    p->oh = pooled->dim[2];
    p->ow = pooled->dim[3];
    p->window = node_attr(p->node, ATTR_window)->v;
    p->stride = node_attr(p->node, ATTR_stride)->v;
    p->padding = node_attr(p->node, ATTR_padding)->v;
    if (type_elems(p->b->body->mod->types, val_type(p->b->body, p->node->out)) == 0) return false;
    lower_open_elements(ctx, p->k, p->out, p->index);
    return true;
}

static void pool_close(Pool *p) {
    lower_body_store_all(p->b, p->index);
    lower_space_close(p->k, 0);
}

/* Opens the loops over a [rows, cols] set of window places. */
static void open_places(Pool *p, int64_t rows, int64_t cols, LoopIdx *row, LoopIdx *col) {
    LoopAxisKind kind = rows * cols <= UNROLL_MAX ? LOOP_unroll : LOOP_reduce;
    *row = loop_idx_axis(p->k, loop_open(p->k, kind, rows, LOOP_NO_BOUND));
    *col = loop_idx_axis(p->k, loop_open(p->k, kind, cols, LOOP_NO_BOUND));
}

static void close_places(Pool *p) {
    loop_close(p->k);
    loop_close(p->k);
}

/* Offset in a [N, C, rows, cols] tensor of (y, x) in the plane of the open element. */
static LoopIdx plane_at(Pool *p, int64_t rows, int64_t cols, LoopIdx y, LoopIdx x) {
    TypeInfo t = {.ndim = 4, .dim = {p->out->dim[0], p->out->dim[1], rows, cols}};
    LoopIdx index[4] = {p->index[0], p->index[1], y, x};
    return lower_offset(p->k, &t, index);
}

static LoopVal inside(Pool *p, LoopIdx y, int64_t rows, LoopIdx x, int64_t cols) {
    return loop_op2(p->k, OP_and, loop_range(p->k, y, 0, rows), loop_range(p->k, x, 0, cols));
}

static LoopBuf reg_new(Pool *p, const char *name, Dtype dtype, double first) {
    LoopBuf r = loop_reg(p->k, name, dtype, 1, 1);
    loop_store(p->k, r, loop_idx(p->k, 0), loop_const(p->k, dtype, first));
    return r;
}

static LoopVal reg_get(Pool *p, LoopBuf r) { return loop_load(p->k, r, loop_idx(p->k, 0)); }

static void reg_set(Pool *p, LoopBuf r, LoopVal v) { loop_store(p->k, r, loop_idx(p->k, 0), v); }

/* Input place under the open output element and window place. */
static LoopIdx under(Pool *p, int axis, LoopIdx place) {
    LoopIdx at = loop_idx_scale(p->k, p->index[2 + axis], p->stride[axis]);
    return loop_idx_plus(p->k, loop_idx_add(p->k, at, place), -p->padding[axis]);
}

/* --- forward --- */

LoopKernel *lower_max_pool2d(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Pool p = {0};
    if (!pool_open(&p, ctx, g, kernel, OP_max_pool2d, false)) return p.k;
    LoopBuf x = lower_body_input(p.b, p.node->in[0]);
    LoopBuf best = reg_new(&p, "best", p.out->dtype, -(double)INFINITY),
            place = reg_new(&p, "place", DT_i32, -1);
    LoopIdx i, j;
    open_places(&p, p.window[0], p.window[1], &i, &j);
    LoopIdx iy = under(&p, 0, i), ix = under(&p, 1, j);
    LoopVal in = inside(&p, iy, p.h, ix, p.w);
    LoopVal v = loop_load_if(p.k, x, plane_at(&p, p.h, p.w, iy, ix), in, -(double)INFINITY);
    LoopVal old = reg_get(&p, best), at = reg_get(&p, place);
    // larger, the first NaN, or the first of all
    LoopVal nan = loop_compare(p.k, OP_and, loop_compare(p.k, OP_ne, v, v),
                               loop_compare(p.k, OP_eq, old, old));
    LoopVal first = loop_compare(p.k, OP_lt, at, loop_const(p.k, DT_i32, 0));
    LoopVal better = loop_compare(p.k, OP_or, loop_compare(p.k, OP_gt, v, old),
                                  loop_compare(p.k, OP_or, nan, first));
    better = loop_compare(p.k, OP_and, in, better);
    LoopIdx flat = loop_idx_add(p.k, loop_idx_scale(p.k, iy, p.w), ix);
    reg_set(&p, best, loop_select(p.k, better, v, old));
    reg_set(&p, place, loop_select(p.k, better, loop_index(p.k, flat), at));
    close_places(&p);
    lower_body_bind(p.b, node_out(p.node, 0), reg_get(&p, best));
    lower_body_bind(p.b, node_out(p.node, 1), reg_get(&p, place));
    pool_close(&p);
    return p.k;
}

LoopKernel *lower_avg_pool2d(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Pool p = {0};
    if (!pool_open(&p, ctx, g, kernel, OP_avg_pool2d, false)) return p.k;
    LoopBuf x = lower_body_input(p.b, p.node->in[0]), sum = reg_new(&p, "sum", DT_f32, 0);
    LoopIdx i, j;
    open_places(&p, p.window[0], p.window[1], &i, &j);
    LoopIdx iy = under(&p, 0, i), ix = under(&p, 1, j);
    LoopVal in = inside(&p, iy, p.h, ix, p.w);
    LoopVal v = loop_load_if(p.k, x, plane_at(&p, p.h, p.w, iy, ix), in, 0);
    reg_set(&p, sum, loop_op2(p.k, OP_add, reg_get(&p, sum), v));
    close_places(&p);
    LoopVal size = loop_const(p.k, DT_f32, (double)(p.window[0] * p.window[1]));
    lower_body_bind(p.b, p.node->out, loop_op2(p.k, OP_div, reg_get(&p, sum), size));
    pool_close(&p);
    return p.k;
}

/* --- gradients --- */

/* How many windows along an axis can cover one element. */
static int64_t covers(const Pool *p, int axis) {
    return (p->window[axis] + p->stride[axis] - 1) / p->stride[axis];
}

/* Pooled place of window number `back` over the open element, in ascending order of places. */
static LoopIdx over(Pool *p, int axis, LoopIdx back) {
    LoopIdx at = loop_idx_plus(p->k, p->index[2 + axis], p->padding[axis]);
    LoopIdx last = loop_idx_div(p->k, at, p->stride[axis]);
    return loop_idx_plus(p->k, loop_idx_add(p->k, last, back), 1 - covers(p, axis));
}

/* Distance of the open element from the first one of that window. */
static LoopIdx distance(Pool *p, int axis, LoopIdx window) {
    LoopIdx at = loop_idx_plus(p->k, p->index[2 + axis], p->padding[axis]);
    return loop_idx_add(p->k, at, loop_idx_scale(p->k, window, -p->stride[axis]));
}

LoopKernel *lower_max_pool2d_dx(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Pool p = {0};
    if (!pool_open(&p, ctx, g, kernel, OP_max_pool2d_dx, true)) return p.k;
    LoopBuf place = lower_body_input(p.b, p.node->in[0]), dy = lower_body_input(p.b, p.node->in[1]);
    LoopBuf sum = reg_new(&p, "sum", DT_f32, 0);
    LoopIdx flat = loop_idx_add(p.k, loop_idx_scale(p.k, p.index[2], p.w), p.index[3]);
    LoopVal own = loop_index(p.k, flat);
    LoopIdx i, j;
    open_places(&p, covers(&p, 0), covers(&p, 1), &i, &j);
    LoopIdx y = over(&p, 0, i), x = over(&p, 1, j), at = plane_at(&p, p.oh, p.ow, y, x);
    LoopVal in = inside(&p, y, p.oh, x, p.ow);
    LoopVal mine = loop_compare(
        p.k, OP_and, in, loop_compare(p.k, OP_eq, loop_load_if(p.k, place, at, in, -1), own));
    LoopVal v = loop_load_if(p.k, dy, at, in, 0), old = reg_get(&p, sum);
    reg_set(&p, sum, loop_select(p.k, mine, loop_op2(p.k, OP_add, old, v), old));
    close_places(&p);
    lower_body_bind(p.b, p.node->out, reg_get(&p, sum));
    pool_close(&p);
    return p.k;
}

LoopKernel *lower_avg_pool2d_dx(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Pool p = {0};
    if (!pool_open(&p, ctx, g, kernel, OP_avg_pool2d_dx, true)) return p.k;
    LoopBuf dy = lower_body_input(p.b, p.node->in[0]), sum = reg_new(&p, "sum", DT_f32, 0);
    LoopIdx i, j;
    open_places(&p, covers(&p, 0), covers(&p, 1), &i, &j);
    LoopIdx y = over(&p, 0, i), x = over(&p, 1, j);
    LoopVal in = inside(&p, y, p.oh, x, p.ow);
    LoopVal covered = inside(&p, distance(&p, 0, y), p.window[0], distance(&p, 1, x), p.window[1]);
    in = loop_compare(p.k, OP_and, in, covered);
    LoopVal v = loop_load_if(p.k, dy, plane_at(&p, p.oh, p.ow, y, x), in, 0);
    reg_set(&p, sum, loop_op2(p.k, OP_add, reg_get(&p, sum), v));
    close_places(&p);
    LoopVal size = loop_const(p.k, DT_f32, (double)(p.window[0] * p.window[1]));
    lower_body_bind(p.b, p.node->out, loop_op2(p.k, OP_div, reg_get(&p, sum), size));
    pool_close(&p);
    return p.k;
}
