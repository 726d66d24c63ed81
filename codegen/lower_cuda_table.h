/* lower_cuda_table.h - between the launches of a table's gradient; see lower_cuda_table.c. */
#ifndef INFINIC_CODEGEN_LOWER_CUDA_TABLE_H
#define INFINIC_CODEGEN_LOWER_CUDA_TABLE_H

#include "codegen/lower.h"
#include "ir/split.h"

/* A kernel node of form gather_dw that is sorted (CudaTable of ir/split.h): all launches. */
LowerFn lower_cuda_table;

typedef struct Table {
    LowerBody *b;
    LoopKernel *k;
    const Node *node;
    CudaTable s;
    LoopBuf index, work; /* work: seen as i32 */
    LoopIdx zero, thread;
} Table;

Table table_new(LowerContext *ctx, const Graph *g, const Node *kernel);

/* Numbers: a constant, a register that begins as `first`, adding to it (returns the sum). */
LoopVal table_number(Table *t, int64_t n);
LoopBuf table_register(Table *t, const char *name, LoopVal first);
LoopVal table_add(Table *t, LoopBuf number, LoopVal v);

LoopIdx table_loop(Table *t, LoopAxisKind kind, int64_t n);
/* row * width + column */
LoopIdx table_at(Table *t, LoopIdx row, int64_t width, LoopIdx column);

/* The sum of the values of all threads before this one; `array` has one place a thread. */
LoopVal table_sum_before(Table *t, LoopBuf array, int threads, LoopVal own);

/* The launch that sorts the buckets' lists and adds the rows of dy. */
LowerFn lower_cuda_table_sums;

#endif
