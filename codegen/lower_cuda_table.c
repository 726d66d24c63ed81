/* lower_cuda_table.c - the gradient of a table for CUDA, where walking all indices for each row of
 * it would be too much: indices are sorted by row first.
 *
 * Three launches (CudaTable of ir/split.h): chunks of indices are counted by bucket; each chunk
 * finds where its indices belong in the list and puts them there, in order; a block takes a
 * bucket's list, sorts it by row and adds the rows of dy. Every thread counts and places for one
 * bucket or row by walking what lies in shared memory, so the order never depends on who comes
 * first. Indices outside the table add nothing.
 */
#include "codegen/lower_cuda_table.h"

#include "codegen/lower_cuda.h"
#include "codegen/lower_space.h"

Table table_new(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Table t = {.b = lower_body_new(ctx, g, kernel)};
    t.k = t.b->k;
    t.node = lower_body_anchor(t.b, OP_gather_dw);
    t.s = split_cuda_table(t.b->body, t.node);
    t.index = lower_body_input(t.b, t.node->in[0]);
    t.work = t.b->workspace;
    t.k->buf.data[t.work.id].dtype = DT_i32;
    t.zero = loop_idx(t.k, 0);
    return t;
}

LoopVal table_number(Table *t, int64_t n) { return loop_const(t->k, DT_i32, (double)n); }

LoopIdx table_loop(Table *t, LoopAxisKind kind, int64_t n) {
    return loop_idx_axis(t->k, loop_open(t->k, kind, n, LOOP_NO_BOUND));
}

LoopIdx table_at(Table *t, LoopIdx row, int64_t width, LoopIdx column) {
    return loop_idx_add(t->k, loop_idx_scale(t->k, row, width), column);
}

LoopBuf table_register(Table *t, const char *name, LoopVal first) {
    LoopBuf b = loop_reg(t->k, name, DT_i32, 1, 1);
    loop_store(t->k, b, t->zero, first);
    return b;
}

LoopVal table_add(Table *t, LoopBuf number, LoopVal v) {
    LoopVal sum = loop_op2(t->k, OP_add, loop_load(t->k, number, t->zero), v);
    loop_store(t->k, number, t->zero, sum);
    return sum;
}

LoopVal table_sum_before(Table *t, LoopBuf array, int threads, LoopVal own) {
    LoopKernel *k = t->k;
    LoopVal sum = own;
    for (int step = 1; step < threads; step *= 2) {
        loop_store(k, array, t->thread, sum);
        loop_sync(k);
        LoopVal exists = loop_range(k, t->thread, step, threads);
        LoopVal left = loop_load_if(k, array, loop_idx_plus(k, t->thread, -step), exists, 0);
        sum = loop_op2(k, OP_add, sum, left);
        loop_sync(k);
    }
    return loop_op2(k, OP_sub, sum, own);
}

/* --- chunks --- */

/* The bucket of each index of the block's chunk into shared memory, -1 where it names no row. */
static LoopBuf mark_chunk(Table *t, LoopIdx chunk) {
    LoopKernel *k = t->k;
    LoopBuf mark = loop_shared(k, "mark", DT_i32, t->s.chunk);
    int depth = k->depth;
    LoopIdx turn = table_loop(t, LOOP_serial, t->s.chunk / t->s.count_threads);
    LoopIdx place = table_at(t, turn, t->s.count_threads, t->thread);
    LoopIdx i = table_at(t, chunk, t->s.chunk, place);
    LoopVal exists = loop_range(k, i, 0, t->s.indices);
    LoopVal v = loop_load_if(k, t->index, i, exists, -1);
    LoopVal low = loop_compare(k, OP_ge, v, table_number(t, 0));
    LoopVal good = loop_op2(k, OP_and, low, loop_compare(k, OP_lt, v, table_number(t, t->s.rows)));
    LoopVal row = loop_select(k, good, v, table_number(t, 0));
    LoopIdx bucket = loop_idx_mod(k, loop_idx_val(k, row, 0, t->s.rows - 1), t->s.buckets);
    loop_store(k, mark, place, loop_select(k, good, loop_index(k, bucket), table_number(t, -1)));
    lower_space_close(k, depth);
    loop_sync(k);
    return mark;
}

/* How many of four neighbours are `own`, added to `count`; the whole chunk. */
static void count_chunk(Table *t, LoopBuf mark, LoopVal own, LoopBuf count) {
    LoopKernel *k = t->k;
    LoopIdx quad = table_loop(t, LOOP_reduce, t->s.chunk / CUDA_VECTOR);
    LoopIdx lane = table_loop(t, LOOP_vector, CUDA_VECTOR);
    LoopVal v = loop_load(k, mark, table_at(t, quad, CUDA_VECTOR, lane));
    LoopVal same = loop_compare(k, OP_eq, v, own);
    table_add(t, count, loop_select(k, same, table_number(t, 1), table_number(t, 0)));
    loop_close(k);
    loop_close(k);
}

static LoopKernel *lower_count(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Table t = table_new(ctx, g, kernel);
    LoopKernel *k = t.k;
    LoopIdx chunk;
    lower_cuda_open(k, t.s.chunks, t.s.count_threads, &chunk, &t.thread);
    LoopBuf mark = mark_chunk(&t, chunk);
    LoopBuf count = table_register(&t, "count", table_number(&t, 0));
    count_chunk(&t, mark, loop_index(k, t.thread), count);
    LoopIdx bucket = lower_cuda_open_below(k, t.thread, t.s.buckets);
    loop_store(k, t.work, table_at(&t, chunk, t.s.buckets, bucket), loop_load(k, count, t.zero));
    lower_space_close(k, 0);
    return k;
}

/* The bucket's indices in the chunks [0, bound). */
static LoopVal count_chunks(Table *t, LoopIdx bucket, LoopIdx bound) {
    LoopKernel *k = t->k;
    LoopBuf sum = table_register(t, "sum", table_number(t, 0));
    int depth = k->depth;
    LoopVal exists = loop_range(k, t->thread, 0, t->s.buckets);
    LoopIdx chunk = loop_idx_axis(k, loop_open(k, LOOP_reduce, t->s.chunks, bound));
    LoopIdx at = table_at(t, chunk, t->s.buckets, bucket);
    table_add(t, sum, loop_load_if(k, t->work, at, exists, 0));
    lower_space_close(k, depth);
    return loop_load(k, sum, t->zero);
}

/* Writes the chunk's indices of the thread's bucket into the list, from place `begin` on. */
static void list_chunk(Table *t, LoopIdx chunk, LoopBuf mark, LoopVal own, LoopVal begin) {
    LoopKernel *k = t->k;
    LoopBuf next = table_register(t, "next", begin);
    int depth = k->depth;
    LoopIdx place = table_loop(t, LOOP_reduce, t->s.chunk);
    loop_open_if(k, loop_compare(k, OP_eq, loop_load(k, mark, place), own));
    LoopIdx at = loop_idx_val(k, loop_load(k, next, t->zero), 0, t->s.indices - 1);
    LoopVal i = loop_index(k, table_at(t, chunk, t->s.chunk, place));
    loop_store(k, t->work, loop_idx_plus(k, at, t->s.list_at), i);
    table_add(t, next, table_number(t, 1));
    lower_space_close(k, depth);
}

static LoopKernel *lower_list(LowerContext *ctx, const Graph *g, const Node *kernel) {
    Table t = table_new(ctx, g, kernel);
    LoopKernel *k = t.k;
    LoopIdx chunk;
    LoopBuf array = loop_shared(k, "sums", DT_i32, t.s.count_threads);
    lower_cuda_open(k, t.s.chunks, t.s.count_threads, &chunk, &t.thread);
    LoopBuf mark = mark_chunk(&t, chunk);
    LoopVal all = count_chunks(&t, t.thread, LOOP_NO_BOUND);
    LoopVal before = count_chunks(&t, t.thread, chunk);
    LoopVal first = table_sum_before(&t, array, t.s.count_threads, all);
    list_chunk(&t, chunk, mark, loop_index(k, t.thread), loop_op2(k, OP_add, first, before));
    int depth = k->depth;
    loop_open_if(k, loop_range(k, chunk, 0, 1));
    LoopIdx bucket = lower_cuda_open_below(k, t.thread, t.s.buckets);
    LoopIdx at = loop_idx_plus(k, bucket, t.s.first_at);
    loop_store(k, t.work, at, first);
    loop_store_if(k, t.work, loop_idx_plus(k, at, 1), loop_op2(k, OP_add, first, all),
                  loop_range(k, bucket, t.s.buckets - 1, t.s.buckets));
    lower_space_close(k, depth);
    lower_space_close(k, 0);
    return k;
}

LoopKernel *lower_cuda_table(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LoopKernel *count = lower_count(ctx, g, kernel), *list = lower_list(ctx, g, kernel);
    count->next = list;
    list->next = lower_cuda_table_sums(ctx, g, kernel);
    return count;
}
