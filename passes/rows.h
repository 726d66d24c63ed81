/* rows.h - what composites over the last axis are made of.
 *
 * Used by their decompositions and by their derivatives alike, so that after decompose both hold
 * equal nodes and cse leaves one: a row [.., D] has its maximum, exponentials and sum once.
 */
#ifndef INFINIC_PASSES_ROWS_H
#define INFINIC_PASSES_ROWS_H

#include "ir/module.h"

/* x [.., D] -> [..]: OP_reduce_sum, OP_reduce_max. */
Val rows_reduce(Builder *b, Op op, Val x);

/* r [..] -> the shape of `like` [.., D]. */
Val rows_spread(Builder *b, Val r, Val like);

/* x [.., D] over the row's number r [..]. A GPU divides once a row and multiplies. */
Val rows_divide(Builder *b, Val x, Val r);

/* Sum over the last axis divided by its extent. */
Val rows_mean(Builder *b, Val x);

/* v [D] summed over all rows of x's shape: [.., D] -> [D]. */
Val rows_total(Builder *b, Val x);

/* exp(x - max) and what it takes. */
typedef struct RowsExp {
    Val shifted; /* x - max, [.., D] */
    Val e;       /* exp(shifted) */
    Val sum;     /* of e, [..] */
} RowsExp;

RowsExp rows_exp(Builder *b, Val x);

/* x with -inf, which no maximum or sum of exponentials sees, behind the first `count` of a row. */
Val rows_only(Builder *b, Val x, int64_t count);

/* bool [.., V]: class == target. */
Val rows_onehot(Builder *b, Val target, Val logits);

/* bool [..]: target is neither `ignore` nor TARGET_PAD. */
Val rows_counted(Builder *b, Val target, int64_t ignore);

#endif
