/* lower_body.c - the body of a kernel node as values at an index.
 *
 * A value is emitted where it is first asked for, in the outermost open block in which its index is
 * known, and shared as long as that block is open. Movement ops emit nothing: they change the index
 * (transpose, slice, broadcast, reshape) or guard loads with a condition (pad, concat), so that
 * nothing is read outside a tensor.
 */
#include "codegen/lower.h"
#include "ir/cost.h"

#include <string.h>

enum { MEMO_BUCKETS = 256 };

typedef struct MemoEntry {
    struct MemoEntry *next;
    uint32_t v, guard;
    int ndim;
    LoopIdx index[NDIM_MAX];
    LoopVal value;
    int depth;
    const LoopStmt *open; /* the block it is in: valid while this is open at `depth` */
} MemoEntry;

struct LowerMemo {
    MemoEntry *bucket[MEMO_BUCKETS];
    LoopVal guard; /* condition under which loads are allowed; id 0: always */
};

struct LowerBind {
    LoopVal value;
    LoopBuf buf;
    LoopIdx at;
};

/* --- set-up --- */

static const TypeInfo *type_of(const LowerBody *b, Val v) { return val_info(b->body, v); }

/* Place may put a result on the memory of an operand of the same size (in-place update). */
static bool may_share(const Graph *body, Val a, int nother, const Val *other) {
    const TypeTable *tt = body->mod->types;
    for (int i = 0; i < nother; i++)
        if (type_bytes(tt, val_type(body, a)) == type_bytes(tt, val_type(body, other[i])))
            return true;
    return false;
}

static LoopBuf add_param(LowerBody *b, const char *stem, int i, Val v, bool shared,
                         LoopAccess access) {
    Dtype dtype = type_of(b, v)->dtype;
    int64_t elems = type_elems(b->body->mod->types, val_type(b->body, v));
    LoopBuf buf =
        loop_param(b->k, arena_printf(b->ctx->arena, "%s%d", stem, i), dtype, elems, access);
    b->k->buf.data[buf.id].shared = shared;
    b->k->buf.data[buf.id].loose = b->k->nparam > 64 || b->ctx->loose >> (b->k->nparam - 1) & 1;
    return buf;
}

LowerBody *lower_body_new(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = ARENA_NEW(ctx->arena, LowerBody);
    const Graph *body = kernel->body;
    *b = (LowerBody){.ctx = ctx, .k = loop_new(ctx->arena), .body = body, .kernel = kernel};
    (void)g;
    b->memo = ARENA_NEW(ctx->arena, struct LowerMemo);
    b->bind = ARENA_ARRAY(ctx->arena, struct LowerBind, body->nval + 1);
    b->in = ARENA_ARRAY(ctx->arena, LoopBuf, body->nin);
    b->out = ARENA_ARRAY(ctx->arena, LoopBuf, body->nout);
    for (int i = 0; i < body->nin; i++)
        b->in[i] = add_param(b, "in", i, body->in[i],
                             may_share(body, body->in[i], body->nout, body->out), LOOP_READ);
    for (int i = 0; i < body->nout; i++)
        b->out[i] = add_param(b, "out", i, body->out[i],
                              may_share(body, body->out[i], body->nin, body->in), LOOP_WRITE);
    int64_t workspace = node_int(kernel, ATTR_workspace, 0);
    if (workspace > 0)
        b->workspace = loop_param(b->k, "work", DT_f32, workspace / 4, LOOP_WORKSPACE);
    KernelCost cost = cost_kernel(kernel);
    b->k->work = cost.bytes / 4 + cost.flops;
    b->k->iter_depth = ctx->repeat_depth;
    memcpy(b->k->iter_count, ctx->repeat_count, sizeof b->k->iter_count);
    return b;
}

const Node *lower_body_anchor(const LowerBody *b, Op op) {
    for (int i = 0; i < b->body->nnode; i++)
        if (b->body->node[i]->op == op) return b->body->node[i];
    loop_broken(__FILE__, __LINE__, op_name(op));
}

LoopBuf lower_body_input(const LowerBody *b, Val v) {
    const Node *n = val_node(b->body, v);
    if (n && n->op == OP_cast && type_of(b, n->in[0])->dtype == DT_bf16) v = n->in[0];
    LOOP_ASSERT(!val_node(b->body, v));
    return b->in[b->body->val[v.id].result];
}

/* Memoised values stay right when a value is bound for the first time: the binding stands for the
 * same numbers, or nothing could ask for them before. */
static void forget(LowerBody *b, Val v) {
    if (b->bind[v.id].value.id || b->bind[v.id].buf.id)
        memset(b->memo->bucket, 0, sizeof b->memo->bucket);
}

void lower_body_bind(LowerBody *b, Val v, LoopVal value) {
    forget(b, v);
    b->bind[v.id] = (struct LowerBind){.value = value};
}

void lower_body_bind_buf(LowerBody *b, Val v, LoopBuf buf, LoopIdx at) {
    forget(b, v);
    b->bind[v.id] = (struct LowerBind){.buf = buf, .at = at};
}

/* --- indices --- */

LoopIdx lower_offset(LoopKernel *k, const TypeInfo *t, const LoopIdx *index) {
    LoopIdx at = loop_idx(k, 0);
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        at = loop_idx_add(k, at, loop_idx_scale(k, index[i], stride));
        stride *= t->dim[i];
    }
    return at;
}

void lower_unflatten(LoopKernel *k, const TypeInfo *t, LoopIdx flat, LoopIdx *index) {
    for (int i = t->ndim - 1; i >= 0; i--) {
        int64_t dim = t->dim[i] > 0 ? t->dim[i] : 1;
        index[i] = i == 0 ? flat : loop_idx_mod(k, flat, dim);
        if (i > 0) flat = loop_idx_div(k, flat, dim);
    }
}

/* --- values --- */

static int max_int(int a, int b) { return a > b ? a : b; }

static int value_depth(const LowerBody *b, LoopVal v) {
    return v.id ? loop_val_info(b->k, v)->depth : 0;
}

static uint32_t memo_hash(Val v, int ndim, const LoopIdx *index) {
    uint32_t h = v.id * 2654435761u;
    for (int i = 0; i < ndim; i++) h = (h ^ index[i].id) * 16777619u;
    return (h >> 8) % MEMO_BUCKETS;
}

static LoopVal memo_find(const LowerBody *b, Val v, int ndim, const LoopIdx *index) {
    const MemoEntry *e = b->memo->bucket[memo_hash(v, ndim, index)];
    for (; e; e = e->next)
        if (e->v == v.id && e->guard == b->memo->guard.id && e->depth <= b->k->depth &&
            b->k->open[e->depth] == e->open &&
            memcmp(e->index, index, (size_t)ndim * sizeof *index) == 0)
            return e->value;
    return (LoopVal){0};
}

static void memo_add(LowerBody *b, Val v, int ndim, const LoopIdx *index, LoopVal value) {
    MemoEntry **head = &b->memo->bucket[memo_hash(v, ndim, index)];
    MemoEntry *e = ARENA_NEW(b->ctx->arena, MemoEntry);
    *e = (MemoEntry){.next = *head,
                     .v = v.id,
                     .guard = b->memo->guard.id,
                     .ndim = ndim,
                     .value = value,
                     .depth = value_depth(b, value)};
    e->open = b->k->open[e->depth];
    memcpy(e->index, index, (size_t)ndim * sizeof *index);
    *head = e;
}

static LoopVal load_input(LowerBody *b, LoopBuf buf, LoopIdx at) {
    LoopVal guard = b->memo->guard;
    int before = loop_seek(b->k, max_int(loop_idx_depth(b->k, at), value_depth(b, guard)));
    LoopVal v = guard.id ? loop_load_if(b->k, buf, at, guard, 0) : loop_load(b->k, buf, at);
    loop_seek(b->k, before);
    return v;
}

static LoopVal load_bound(LowerBody *b, Val v, const LoopIdx *index) {
    LoopIdx at = loop_idx_add(b->k, lower_offset(b->k, type_of(b, v), index), b->bind[v.id].at);
    int before = loop_seek(b->k, b->k->depth);
    LoopVal value = loop_load(b->k, b->bind[v.id].buf, at);
    loop_seek(b->k, before);
    return value;
}

typedef LoopVal EmitFn(LowerBody *b, const Node *n, const LoopIdx *index);

/* Whether `place < limit` along an axis is known from the index's range: 1 always, -1 never. */
static int decided(const LowerBody *b, Val condition, const LoopIdx *index) {
    const Node *n = val_node(b->body, condition);
    if (n == NULL || n->op != OP_lt || b->bind[condition.id].value.id) return 0;
    const Node *place = val_node(b->body, n->in[0]), *limit = val_node(b->body, n->in[1]);
    if (place == NULL || place->op != OP_iota || limit == NULL || limit->op != OP_const) return 0;
    const LoopIdxInfo *at = loop_idx_info(b->k, index[node_int(place, ATTR_axis, 0)]);
    double end = node_float(limit, ATTR_value, 0);
    return (double)at->high < end ? 1 : (double)at->low >= end ? -1 : 0;
}

static LoopVal emit_elementwise(LowerBody *b, const Node *n, const LoopIdx *index) {
    LoopVal arg[LOOP_ARGS_MAX];
    int depth = 0, known = n->op == OP_select ? decided(b, n->in[0], index) : 0;
    if (known != 0) return lower_body_value(b, n->in[known > 0 ? 1 : 2], index);
    for (int i = 0; i < n->nin; i++) {
        arg[i] = lower_body_value(b, n->in[i], index);
        depth = max_int(depth, value_depth(b, arg[i]));
    }
    if (n->op == OP_stop_gradient) return arg[0];
    int before = loop_seek(b->k, depth);
    LoopVal v = loop_op(b->k, n->op, type_of(b, n->out)->dtype, n->nin, arg);
    loop_seek(b->k, before);
    return v;
}

static LoopVal emit_const(LowerBody *b, const Node *n, const LoopIdx *index) {
    (void)index;
    int before = loop_seek(b->k, 0);
    LoopVal v = loop_const(b->k, type_of(b, n->out)->dtype, node_float(n, ATTR_value, 0));
    loop_seek(b->k, before);
    return v;
}

static LoopVal emit_iota(LowerBody *b, const Node *n, const LoopIdx *index) {
    LoopIdx at = index[node_int(n, ATTR_axis, 0)];
    int before = loop_seek(b->k, loop_idx_depth(b->k, at));
    LoopVal v = loop_index(b->k, at);
    loop_seek(b->k, before);
    return v;
}

enum { RANDOM_ROW_MAX = 16384 };

/* Iterations of the open vector loop when the element `at` moves by one with each of them; else 0.
 */
static int64_t random_row(const LowerBody *b, LoopIdx at, LoopIdx *first) {
    LoopKernel *k = b->k;
    const LoopStmt *loop = k->open[k->depth];
    if (k->depth == 0 || loop->kind != LOOP_STMT_loop) return 0;
    const LoopAxisInfo a = k->axis.data[loop->axis.id];
    if (a.kind != LOOP_vector || a.extent == 1) return 0;
    LoopIdx axis = loop_idx_axis(k, loop->axis);
    LoopIdx rest = loop_idx_add(k, at, loop_idx_scale(k, axis, -1));
    if (loop_idx_depth(k, rest) >= k->depth) return 0;
    int64_t n = a.extent;
    *first = rest;
    if (a.begin.id) {
        *first = loop_idx_add(k, rest, a.begin);
        if (!a.bound.id) return 0;
        LoopIdx size = loop_idx_add(k, a.bound, loop_idx_scale(k, a.begin, -1));
        if (loop_idx_info(k, size)->nterm > 0) return 0;
        n = loop_idx_info(k, size)->constant;
    }
    return n <= RANDOM_ROW_MAX ? n : 0;
}

/* Numbers come four at a time: a vector loop finds those of all its iterations in an array. */
static LoopVal emit_random(LowerBody *b, const Node *n, const LoopIdx *index) {
    LoopKernel *k = b->k;
    LoopIdx at = lower_offset(k, type_of(b, n->out), index), first = {0};
    int64_t stream = node_int(n, ATTR_stream, 0), row = random_row(b, at, &first);
    int before = loop_seek(k, row ? k->depth - 1 : loop_idx_depth(k, at));
    LoopVal v = {0};
    if (row) {
        LoopAxis axis = k->open[k->depth]->axis;
        LoopBuf buf = loop_random_row(k, stream, first, axis, row);
        LoopIdx begin = k->axis.data[axis.id].begin, in_row = loop_idx_axis(k, axis);
        if (begin.id) in_row = loop_idx_add(k, in_row, loop_idx_scale(k, begin, -1));
        loop_seek(k, k->depth);
        v = loop_load(k, buf, in_row);
    } else {
        v = loop_random(k, stream, at);
    }
    loop_seek(k, before);
    return v;
}

static LoopVal emit_copy(LowerBody *b, const Node *n, const LoopIdx *index) {
    return lower_body_value(b, n->in[0], index);
}

static LoopVal emit_broadcast(LowerBody *b, const Node *n, const LoopIdx *index) {
    const TypeInfo *from = type_of(b, n->in[0]);
    const Attr *axes = node_attr(n, ATTR_axes);
    LoopIdx at[NDIM_MAX];
    for (int i = 0; i < from->ndim; i++)
        at[i] = from->dim[i] == 1 ? loop_idx(b->k, 0) : index[axes->v[i]];
    return lower_body_value(b, n->in[0], at);
}

static LoopVal emit_transpose(LowerBody *b, const Node *n, const LoopIdx *index) {
    const Attr *perm = node_attr(n, ATTR_perm);
    LoopIdx at[NDIM_MAX];
    for (int i = 0; i < type_of(b, n->in[0])->ndim; i++) at[perm->v[i]] = index[i];
    return lower_body_value(b, n->in[0], at);
}

static LoopVal emit_slice(LowerBody *b, const Node *n, const LoopIdx *index) {
    const Attr *begin = node_attr(n, ATTR_begin), *step = node_attr(n, ATTR_step);
    LoopIdx at[NDIM_MAX];
    for (int i = 0; i < type_of(b, n->in[0])->ndim; i++)
        at[i] = loop_idx_plus(b->k, loop_idx_scale(b->k, index[i], step->v[i]), begin->v[i]);
    return lower_body_value(b, n->in[0], at);
}

/* An index and its bounds. */
typedef struct Within {
    LoopIdx index;
    int64_t low, high;
} Within;

/* The same condition on as few loops as possible: where `by` divides both bounds, low <= x < high
 * is low / by <= x / by < high / by, and the quotient may be the same all along an inner loop,
 * which then needs no mask. */
static Within coarsest(LowerBody *b, Within w) {
    LoopIdxInfo info = *loop_idx_info(b->k, w.index);
    Within best = w;
    if (b->ctx->target != TARGET_c || info.low < 0) return w;
    for (int i = 0; i < info.nterm; i++) {
        int64_t by = info.term[i].scale;
        if (by <= 1 || w.low % by != 0 || w.high % by != 0) continue;
        LoopIdx quotient = loop_idx_div(b->k, w.index, by);
        if (loop_idx_depth(b->k, quotient) < loop_idx_depth(b->k, best.index))
            best = (Within){quotient, w.low / by, w.high / by};
    }
    return best;
}

/* Condition low <= index < high, emitted where the index is known; id 0 when it always holds. */
static LoopVal in_range(LowerBody *b, LoopIdx index, int64_t low, int64_t high) {
    const LoopIdxInfo *info = loop_idx_info(b->k, index);
    if (info->low >= low && info->high < high) return (LoopVal){0};
    Within w = coarsest(b, (Within){index, low, high});
    index = w.index;
    low = w.low;
    high = w.high;
    int before = loop_seek(b->k, loop_idx_depth(b->k, index));
    LoopVal v = loop_range(b->k, index, low, high);
    loop_seek(b->k, before);
    return v;
}

static LoopVal both(LowerBody *b, LoopVal x, LoopVal y) {
    if (!x.id || !y.id) return x.id ? x : y;
    int before = loop_seek(b->k, max_int(value_depth(b, x), value_depth(b, y)));
    LoopVal v = loop_op2(b->k, OP_and, x, y);
    loop_seek(b->k, before);
    return v;
}

static LoopVal choose(LowerBody *b, LoopVal condition, LoopVal yes, LoopVal no) {
    int depth =
        max_int(value_depth(b, condition), max_int(value_depth(b, yes), value_depth(b, no)));
    int before = loop_seek(b->k, depth);
    LoopVal v = loop_select(b->k, condition, yes, no);
    loop_seek(b->k, before);
    return v;
}

/* An index that a guard keeps in range, as one whose range is known to be [0, size). */
static LoopIdx clamp_index(LowerBody *b, LoopIdx index, int64_t size) {
    LoopVal inside = in_range(b, index, 0, size);
    if (!inside.id || size <= 0) return index;
    int before = loop_seek(b->k, loop_idx_depth(b->k, index));
    LoopVal zero = loop_const(b->k, DT_i32, 0);
    LoopVal v = loop_select(b->k, inside, loop_index(b->k, index), zero);
    loop_seek(b->k, before);
    return loop_idx_val(b->k, v, 0, size - 1);
}

static LoopVal emit_reshape(LowerBody *b, const Node *n, const LoopIdx *index) {
    const TypeInfo *to = type_of(b, n->out);
    LoopIdx safe[NDIM_MAX], at[NDIM_MAX];
    for (int i = 0; i < to->ndim; i++) safe[i] = clamp_index(b, index[i], to->dim[i]);
    lower_unflatten(b->k, type_of(b, n->in[0]), lower_offset(b->k, to, safe), at);
    return lower_body_value(b, n->in[0], at);
}

static LoopVal emit_pad(LowerBody *b, const Node *n, const LoopIdx *index) {
    const TypeInfo *from = type_of(b, n->in[0]);
    const Attr *low = node_attr(n, ATTR_low);
    LoopIdx at[NDIM_MAX];
    LoopVal inside = {0};
    for (int i = 0; i < from->ndim; i++) {
        at[i] = loop_idx_plus(b->k, index[i], -low->v[i]);
        inside = both(b, inside, in_range(b, at[i], 0, from->dim[i]));
    }
    LoopVal outer = b->memo->guard;
    b->memo->guard = both(b, outer, inside);
    LoopVal v = lower_body_value(b, n->in[0], at);
    b->memo->guard = outer;
    if (!inside.id) return v;
    int before = loop_seek(b->k, 0);
    LoopVal filler = loop_const(b->k, from->dtype, node_float(n, ATTR_value, 0));
    loop_seek(b->k, before);
    return choose(b, inside, v, filler);
}

static LoopVal emit_concat(LowerBody *b, const Node *n, const LoopIdx *index) {
    int64_t axis = node_int(n, ATTR_axis, 0);
    int ndim = type_of(b, n->out)->ndim;
    LoopIdx at[NDIM_MAX];
    LoopVal result = {0}, outer = b->memo->guard;
    memcpy(at, index, (size_t)ndim * sizeof *at);
    int64_t end = type_of(b, n->out)->dim[axis];
    for (int i = n->nin - 1; i >= 0; i--) {
        int64_t size = type_of(b, n->in[i])->dim[axis];
        const LoopIdxInfo *info = loop_idx_info(b->k, index[axis]);
        int64_t begin = end - size;
        bool met = size > 0 && info->high >= begin && info->low < end;
        end = begin;
        if (!met) continue;
        at[axis] = loop_idx_plus(b->k, index[axis], -begin);
        LoopVal inside = in_range(b, at[axis], 0, size);
        b->memo->guard = both(b, outer, inside);
        LoopVal v = lower_body_value(b, n->in[i], at);
        b->memo->guard = outer;
        result = result.id && inside.id ? choose(b, inside, v, result) : v;
    }
    LOOP_ASSERT(result.id);
    return result;
}

/* Movement ops by id, everything else by kind. */
static EmitFn *const emit_movement[OP_count] = {
    [OP_reshape] = emit_reshape, [OP_transpose] = emit_transpose, [OP_slice] = emit_slice,
    [OP_concat] = emit_concat,   [OP_broadcast] = emit_broadcast, [OP_pad] = emit_pad,
    [OP_copy] = emit_copy,       [OP_const] = emit_const,         [OP_iota] = emit_iota,
};

static EmitFn *emitter(Op op) {
    switch (op_kind(op)) {
    case KIND_elementwise: return emit_elementwise;
    case KIND_random: return emit_random;
    default: return emit_movement[op];
    }
}

LoopVal lower_body_value(LowerBody *b, Val v, const LoopIdx *index) {
    if (b->bind[v.id].value.id) return b->bind[v.id].value;
    int ndim = type_of(b, v)->ndim;
    LoopVal value = memo_find(b, v, ndim, index);
    if (value.id) return value;
    const Node *n = val_node(b->body, v);
    if (b->bind[v.id].buf.id)
        value = load_bound(b, v, index);
    else if (!n)
        value = load_input(b, lower_body_input(b, v), lower_offset(b->k, type_of(b, v), index));
    else {
        EmitFn *emit = emitter(n->op);
        if (!emit) loop_broken(__FILE__, __LINE__, op_name(n->op));
        value = emit(b, n, index);
    }
    memo_add(b, v, ndim, index, value);
    return value;
}

void lower_body_store(LowerBody *b, int i, const LoopIdx *index) {
    LoopVal v = lower_body_value(b, b->body->out[i], index);
    loop_store(b->k, b->out[i], lower_offset(b->k, type_of(b, b->body->out[i]), index), v);
}

void lower_body_store_all(LowerBody *b, const LoopIdx *index) {
    LoopVal *v = ARENA_ARRAY(b->ctx->arena, LoopVal, b->body->nout);
    for (int i = 0; i < b->body->nout;
         i++) // all loads before any store: results may lie on operands
        v[i] = lower_body_value(b, b->body->out[i], index);
    for (int i = 0; i < b->body->nout; i++)
        loop_store(b->k, b->out[i], lower_offset(b->k, type_of(b, b->body->out[i]), index), v[i]);
}

LoopBuf *lower_body_registers(LowerBody *b, int64_t elems) {
    LoopBuf *kept = ARENA_ARRAY(b->ctx->arena, LoopBuf, b->body->nout);
    for (int i = 0; i < b->body->nout; i++)
        kept[i] = loop_reg(b->k, "kept", val_info(b->body, b->body->out[i])->dtype, elems, 1);
    return kept;
}

void lower_body_keep_all(LowerBody *b, const LoopIdx *index, const LoopBuf *kept, LoopIdx at) {
    for (int i = 0; i < b->body->nout; i++)
        loop_store(b->k, kept[i], at, lower_body_value(b, b->body->out[i], index));
}

void lower_body_store_kept(LowerBody *b, const LoopIdx *index, const LoopBuf *kept, LoopIdx at) {
    for (int i = 0; i < b->body->nout; i++)
        loop_store(b->k, b->out[i], lower_offset(b->k, type_of(b, b->body->out[i]), index),
                   loop_load(b->k, kept[i], at));
}
