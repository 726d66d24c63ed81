/* loop.c - building loop kernels: buffers, blocks, statements (indices: loop_idx.c). */
#include "codegen/loop.h"

#include "ir/panic.h"

void loop_broken(const char *file, int line, const char *what) {
    panic_graph(NULL, (Span){0}, "%s:%d: %s", file, line, what);
}

LoopKernel *loop_new(Arena *arena) {
    LoopKernel *k = ARENA_NEW(arena, LoopKernel);
    k->arena = arena;
    vec_push(arena, &k->buf, (LoopBufInfo){0});
    vec_push(arena, &k->axis, (LoopAxisInfo){0});
    vec_push(arena, &k->idx, (LoopIdxInfo){0});
    vec_push(arena, &k->val, (LoopValInfo){0});
    return k;
}

/* --- statements and blocks --- */

static void block_add(LoopKernel *k, LoopBlock *block, LoopStmt *s) {
    block->data = vec_reserve_one(k->arena, block->data, block->n, &block->cap, sizeof(LoopStmt *));
    block->data[block->n++] = s;
}

static LoopStmt *stmt_new(LoopKernel *k, LoopStmtKind kind) {
    LoopStmt *s = ARENA_NEW(k->arena, LoopStmt);
    s->kind = kind;
    return s;
}

static LoopStmt *stmt_add(LoopKernel *k, LoopStmtKind kind) {
    LoopStmt *s = stmt_new(k, kind);
    block_add(k, &k->block[k->at], s);
    return s;
}

static LoopVal result_new(LoopKernel *k, LoopStmt *s, Dtype dtype, int lanes) {
    s->result = (LoopVal){k->val.n};
    vec_push(k->arena, &k->val, (LoopValInfo){.dtype = dtype, .lanes = lanes, .depth = k->at});
    return s->result;
}

static void block_open(LoopKernel *k, LoopStmt *s) {
    LOOP_ASSERT(k->depth + 1 < LOOP_DEPTH_MAX && k->at == k->depth);
    k->depth++;
    k->at = k->depth;
    k->block[k->depth] = (LoopBlock){0};
    k->open[k->depth] = s;
}

LoopAxis loop_open(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx bound) {
    return loop_open_range(k, kind, extent, LOOP_NO_BOUND, bound);
}

LoopAxis loop_open_range(LoopKernel *k, LoopAxisKind kind, int64_t extent, LoopIdx begin,
                         LoopIdx bound) {
    LoopStmt *s = stmt_new(k, LOOP_STMT_loop);
    s->axis = (LoopAxis){k->axis.n};
    LoopAxisInfo info = {
        .kind = kind, .extent = extent, .begin = begin, .bound = bound, .depth = k->depth + 1};
    vec_push(k->arena, &k->axis, info);
    block_open(k, s);
    return s->axis;
}

void loop_open_if(LoopKernel *k, LoopVal condition) {
    LoopStmt *s = stmt_new(k, LOOP_STMT_if);
    s->arg[0] = condition;
    s->nargs = 1;
    block_open(k, s);
}

void loop_close(LoopKernel *k) {
    LOOP_ASSERT(k->depth > 0 && k->at == k->depth);
    LoopStmt *s = k->open[k->depth];
    s->body = k->block[k->depth];
    k->depth--;
    k->at = k->depth;
    block_add(k, &k->block[k->depth], s);
}

/* The axis that an index is; NULL when it is anything else. */
static const LoopAxisInfo *plain_axis(const LoopKernel *k, LoopIdx value) {
    const LoopIdxInfo *info = loop_idx_info(k, value);
    bool plain = info->nterm == 1 && info->constant == 0 && info->term[0].kind == LOOP_TERM_axis &&
                 info->term[0].scale == 1;
    return plain ? &k->axis.data[info->term[0].id] : NULL;
}

LoopIdx loop_let(LoopKernel *k, LoopIdx value, int64_t extent) {
    return plain_axis(k, value) ? value : loop_name(k, value, extent);
}

LoopIdx loop_name(LoopKernel *k, LoopIdx value, int64_t extent) {
    const LoopAxisInfo *plain = plain_axis(k, value);
    if (loop_idx_info(k, value)->nterm == 0 || (plain && plain->extent <= extent)) return value;
    LoopStmt *s = stmt_add(k, LOOP_STMT_let);
    s->axis = (LoopAxis){k->axis.n};
    LoopAxisInfo axis = {.kind = LOOP_let, .extent = extent, .begin = value, .depth = k->at};
    vec_push(k->arena, &k->axis, axis);
    return loop_idx_axis(k, s->axis);
}

static int64_t count_quotients(const LoopKernel *k, LoopIdx index) {
    int64_t n = 0;
    const LoopIdxInfo *info = index.id ? loop_idx_info(k, index) : NULL;
    for (int i = 0; info && i < info->nterm; i++)
        if (info->term[i].kind == LOOP_TERM_div || info->term[i].kind == LOOP_TERM_mod)
            n += 1 + count_quotients(k, (LoopIdx){info->term[i].id});
    return n;
}

static int64_t count_block(const LoopKernel *k, const LoopBlock *block) {
    int64_t n = 0;
    for (uint32_t i = 0; i < block->n; i++)
        n += count_quotients(k, block->data[i]->index) + count_block(k, &block->data[i]->body);
    return n;
}

int64_t loop_count_quotients(const LoopKernel *k) { return count_block(k, &k->block[0]); }

int loop_seek(LoopKernel *k, int depth) {
    LOOP_ASSERT(depth >= 0 && depth <= k->depth);
    int before = k->at;
    k->at = depth;
    return before;
}

/* --- buffers --- */

static LoopBuf buf_new(LoopKernel *k, LoopBufInfo info) {
    LoopBuf b = {k->buf.n};
    vec_push(k->arena, &k->buf, info);
    return b;
}

LoopBuf loop_param(LoopKernel *k, const char *name, Dtype dtype, int64_t elems, LoopAccess access) {
    LOOP_ASSERT((int)k->buf.n == k->nparam + 1);
    k->nparam++;
    return buf_new(k, (LoopBufInfo){.name = name,
                                    .space = LOOP_param,
                                    .dtype = dtype,
                                    .lanes = 1,
                                    .elems = elems,
                                    .access = access});
}

static LoopBuf declare(LoopKernel *k, LoopBufInfo info) {
    LoopBuf b = buf_new(k, info);
    stmt_add(k, LOOP_STMT_buf)->buf = b;
    return b;
}

LoopBuf loop_local(LoopKernel *k, const char *name, Dtype dtype, int64_t elems) {
    return declare(
        k, (LoopBufInfo){
               .name = name, .space = LOOP_local, .dtype = dtype, .lanes = 1, .elems = elems});
}

LoopBuf loop_shared(LoopKernel *k, const char *name, Dtype dtype, int64_t elems) {
    int before = loop_seek(k, 0);
    LoopBuf b = declare(
        k, (LoopBufInfo){
               .name = name, .space = LOOP_shared, .dtype = dtype, .lanes = 1, .elems = elems});
    loop_seek(k, before);
    return b;
}

LoopBuf loop_shared_dynamic(LoopKernel *k, const char *name, Dtype dtype, int64_t elems) {
    LoopBuf b = loop_shared(k, name, dtype, elems);
    LOOP_ASSERT(k->shared_bytes == 0 && elems * dtype_bytes(dtype) <= LOOP_DYNAMIC_MAX);
    k->buf.data[b.id].dynamic = true;
    k->shared_bytes = elems * dtype_bytes(dtype);
    return b;
}

LoopBuf loop_reg(LoopKernel *k, const char *name, Dtype dtype, int64_t elems, int lanes) {
    LOOP_ASSERT(lanes == 1 || (lanes == LOOP_LANES && dtype == DT_f32));
    return declare(
        k, (LoopBufInfo){
               .name = name, .space = LOOP_reg, .dtype = dtype, .lanes = lanes, .elems = elems});
}

const LoopBufInfo *loop_buf_info(const LoopKernel *k, LoopBuf b) {
    LOOP_ASSERT(b.id > 0 && b.id < k->buf.n);
    return &k->buf.data[b.id];
}

/* --- values --- */

const LoopValInfo *loop_val_info(const LoopKernel *k, LoopVal v) {
    LOOP_ASSERT(v.id > 0 && v.id < k->val.n);
    return &k->val.data[v.id];
}

LoopVal loop_const(LoopKernel *k, Dtype dtype, double number) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_const);
    s->number = number;
    return result_new(k, s, dtype, 1);
}

LoopVal loop_index(LoopKernel *k, LoopIdx index) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_index);
    s->index = index;
    return result_new(k, s, DT_i32, 1);
}

LoopVal loop_range(LoopKernel *k, LoopIdx index, int64_t low, int64_t high) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_range);
    s->index = index;
    s->low = low;
    s->high = high;
    return result_new(k, s, DT_bool, 1);
}

LoopVal loop_op(LoopKernel *k, Op op, Dtype dtype, int nargs, const LoopVal *arg) {
    LOOP_ASSERT(nargs >= 1 && nargs <= LOOP_ARGS_MAX && op_expr(op));
    int lanes = loop_val_info(k, arg[0])->lanes;
    LoopStmt *s = stmt_add(k, LOOP_STMT_op);
    s->op = op;
    s->nargs = nargs;
    for (int i = 0; i < nargs; i++) {
        LOOP_ASSERT(loop_val_info(k, arg[i])->lanes == lanes);
        s->arg[i] = arg[i];
    }
    return result_new(k, s, dtype, lanes);
}

LoopVal loop_op2(LoopKernel *k, Op op, LoopVal a, LoopVal b) {
    LoopVal arg[2] = {a, b};
    return loop_op(k, op, loop_val_info(k, a)->dtype, 2, arg);
}

LoopVal loop_compare(LoopKernel *k, Op op, LoopVal a, LoopVal b) {
    LoopVal arg[2] = {a, b};
    return loop_op(k, op, DT_bool, 2, arg);
}

LoopVal loop_select(LoopKernel *k, LoopVal condition, LoopVal yes, LoopVal no) {
    LoopVal arg[3] = {condition, yes, no};
    return loop_op(k, OP_select, loop_val_info(k, yes)->dtype, 3, arg);
}

LoopVal loop_fold(LoopKernel *k, Op op, LoopBuf b, int lanes) {
    LOOP_ASSERT(op_expr(op) && lanes >= 1 && (lanes & (lanes - 1)) == 0);
    LoopStmt *s = stmt_add(k, LOOP_STMT_fold);
    s->op = op;
    s->buf = b;
    s->index = loop_idx(k, 0);
    s->low = lanes;
    return result_new(k, s, loop_buf_info(k, b)->dtype, 1);
}

LoopVal loop_fma(LoopKernel *k, LoopVal a, LoopVal b, LoopVal c) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_fma);
    s->nargs = 3;
    s->arg[0] = a;
    s->arg[1] = b;
    s->arg[2] = c;
    return result_new(k, s, DT_f32, loop_val_info(k, c)->lanes);
}

LoopVal loop_splat(LoopKernel *k, LoopVal a) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_splat);
    s->nargs = 1;
    s->arg[0] = a;
    return result_new(k, s, DT_f32, LOOP_LANES);
}

static LoopVal load(LoopKernel *k, LoopBuf b, LoopIdx at, int lanes) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_load);
    s->buf = b;
    s->index = at;
    return result_new(k, s, loop_buf_info(k, b)->dtype, lanes);
}

LoopVal loop_load(LoopKernel *k, LoopBuf b, LoopIdx at) {
    return load(k, b, at, loop_buf_info(k, b)->lanes);
}

LoopVal loop_load_vector(LoopKernel *k, LoopBuf b, LoopIdx at) {
    const LoopBufInfo *info = loop_buf_info(k, b);
    LOOP_ASSERT(info->space != LOOP_reg && info->dtype == DT_f32);
    return load(k, b, at, LOOP_LANES);
}

void loop_prefetch(LoopKernel *k, LoopBuf b, LoopIdx at) {
    LOOP_ASSERT(loop_buf_info(k, b)->space != LOOP_reg);
    LoopStmt *s = stmt_add(k, LOOP_STMT_prefetch);
    s->buf = b;
    s->index = at;
}

LoopVal loop_load_if(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal condition, double otherwise) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_load);
    s->buf = b;
    s->index = at;
    s->nargs = 1;
    s->arg[0] = condition;
    s->number = otherwise;
    return result_new(k, s, loop_buf_info(k, b)->dtype, 1);
}

void loop_store(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal v) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_store);
    s->buf = b;
    s->index = at;
    s->nargs = 1;
    s->arg[0] = v;
}

void loop_store_if(LoopKernel *k, LoopBuf b, LoopIdx at, LoopVal v, LoopVal condition) {
    loop_store(k, b, at, v);
    LoopStmt *s = k->block[k->at].data[k->block[k->at].n - 1];
    s->nargs = 2;
    s->arg[1] = condition;
}

LoopVal loop_random(LoopKernel *k, int64_t stream, LoopIdx element) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_random);
    s->stream = stream;
    s->index = element;
    return result_new(k, s, DT_f32, 1);
}

LoopBuf loop_random_row(LoopKernel *k, int64_t stream, LoopIdx first, LoopAxis axis,
                        int64_t elems) {
    LoopBuf b = loop_local(k, "random", DT_f32, elems);
    LoopStmt *s = stmt_add(k, LOOP_STMT_fill);
    s->stream = stream;
    s->index = first;
    s->axis = axis;
    s->buf = b;
    return b;
}

void loop_gemm(LoopKernel *k, LoopGemm gemm) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_gemm);
    s->gemm = ARENA_NEW(k->arena, LoopGemm);
    *s->gemm = gemm;
}

void loop_transpose(LoopKernel *k, LoopTranspose transpose) {
    LOOP_ASSERT(loop_buf_info(k, transpose.to)->dtype == DT_f32);
    LOOP_ASSERT(loop_buf_info(k, transpose.from)->dtype == DT_f32);
    LoopStmt *s = stmt_add(k, LOOP_STMT_transpose);
    s->transpose = ARENA_NEW(k->arena, LoopTranspose);
    *s->transpose = transpose;
}

/* --- threads of a block --- */

void loop_sync(LoopKernel *k) { stmt_add(k, LOOP_STMT_sync); }

LoopVal loop_group_fold(LoopKernel *k, Op op, LoopVal v, int64_t width) {
    LOOP_ASSERT(op_expr(op) && width >= 1 && (width & (width - 1)) == 0);
    LoopStmt *s = stmt_add(k, LOOP_STMT_group);
    s->op = op;
    s->nargs = 1;
    s->arg[0] = v;
    s->low = width;
    return result_new(k, s, loop_val_info(k, v)->dtype, 1);
}

LoopVal loop_last(LoopKernel *k, LoopIdx which, int64_t counters, int64_t blocks) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_last);
    s->index = which;
    s->low = blocks;
    if (counters > k->counters) k->counters = counters;
    return result_new(k, s, DT_bool, 1);
}

/* --- the tensor cores --- */

LoopVal loop_tf32(LoopKernel *k, LoopVal v) {
    LoopStmt *s = stmt_add(k, LOOP_STMT_tf32);
    s->nargs = 1;
    s->arg[0] = v;
    return result_new(k, s, DT_f32, 1);
}

void loop_mma(LoopKernel *k, LoopMma mma) {
    LOOP_ASSERT(loop_buf_info(k, mma.a)->space == LOOP_reg);
    LOOP_ASSERT(loop_buf_info(k, mma.b)->space == LOOP_reg);
    LOOP_ASSERT(loop_buf_info(k, mma.c)->space == LOOP_reg);
    k->math = LOOP_MATH_tf32;
    LoopStmt *s = stmt_add(k, LOOP_STMT_mma);
    s->mma = ARENA_NEW(k->arena, LoopMma);
    *s->mma = mma;
}
