/* lower_reduce.h - what the two ways of reducing share: rows (lower_rows.c), columns
 * (lower_columns.c). The order of additions is that of ir/split.h. */
#ifndef INFINIC_CODEGEN_LOWER_REDUCE_H
#define INFINIC_CODEGEN_LOWER_REDUCE_H

#include "codegen/lower_space.h"
#include "ir/split.h"

typedef struct Reduce {
    LowerBody *b;
    LoopKernel *k;
    ReduceSplit split;
    const TypeInfo *domain; /* of every reduction's operand */
    const TypeInfo *result;
    int n; /* reductions */
    const Node **red;
    int *level;        /* by value id: how many reductions deep */
    bool *picked;      /* by reduction: it takes one element of a row; see reduce_find_picks */
    LoopIdx kept_at;   /* offset of the open kept groups in the domain */
    LoopIdx kept_flat; /* the same, numbered: place among the results (inner) or rows of them */
} Reduce;

/* A new loop kernel, its reductions found. */
Reduce reduce_start(LowerContext *ctx, const Graph *g, const Node *kernel);

/* What a reduction starts with. */
double reduce_first(const Reduce *r, const Node *red);
/* acc combined with v by the reduction's expression. */
LoopVal reduce_combine(const Reduce *r, const Node *red, LoopVal acc, LoopVal v);
Dtype reduce_dtype(const Reduce *r, const Node *red);

/* Index in the domain of the element at offset `at`, in the result of element number `flat`. */
void reduce_domain_index(const Reduce *r, LoopIdx at, LoopIdx *index);
void reduce_result_index(const Reduce *r, LoopIdx flat, LoopIdx *index);

/* Offset in the domain of place number `flat` of some groups, its parts named. */
LoopIdx reduce_place(const Reduce *r, const SplitAxes *groups, LoopIdx flat);

/* A loop that sets buf[0 .. n) to the reduction's first value. */
void reduce_clear(const Reduce *r, const Node *red, LoopBuf buf, int64_t n);

/* Finds sums of rows in which only one place, which the row names, is not zero: what cross-entropy
 * does with the target's logit. They need no loop: reduce_pick gives the element there, or 0 when
 * the row has no such place; call it where no loop over the row is open. */
void reduce_find_picks(Reduce *r);
LoopVal reduce_pick(Reduce *r, int i);
/* Reduction i adds up something in the loops of this level. */
bool reduce_is_of_level(const Reduce *r, int i, int level);

/* Whether computing it twice costs more than keeping it. */
bool reduce_is_dear(const Node *n);
/* Result i has the domain's shape, not the kept one. */
bool reduce_is_domain_result(const Reduce *r, int i);

void lower_rows(Reduce *r);
void lower_columns(Reduce *r);
void lower_cuda_rows(Reduce *r);
void lower_cuda_columns(Reduce *r);

#endif
