/* functions.h - the functions of the language, one declaration a row of the table in functions.c.
 */
#ifndef FRONTEND_FUNCTIONS_H
#define FRONTEND_FUNCTIONS_H

#include "frontend/lower.h"

/* functions.c: elementwise and reductions */
Value fn_unary(Lower *l, const Call *c);
Value fn_gelu(Lower *l, const Call *c);
Value fn_cast(Lower *l, const Call *c);
Value fn_where(Lower *l, const Call *c);
Value fn_minmax(Lower *l, const Call *c);
Value fn_reduce(Lower *l, const Call *c);
Value fn_var(Lower *l, const Call *c);

/* functions_shape.c: movement and sources */
Value fn_flatten(Lower *l, const Call *c);
Value fn_reshape(Lower *l, const Call *c);
Value fn_transpose(Lower *l, const Call *c);
Value fn_split(Lower *l, const Call *c);
Value fn_concat(Lower *l, const Call *c);
Value fn_slice(Lower *l, const Call *c);
Value fn_pad(Lower *l, const Call *c);
Value fn_arange(Lower *l, const Call *c);
Value fn_one_hot(Lower *l, const Call *c);
Value fn_gather(Lower *l, const Call *c);

/* functions_pattern.c */
Value fn_rearrange(Lower *l, const Call *c);
Value fn_einsum(Lower *l, const Call *c);

/* functions_product.c */
Value fn_matmul(Lower *l, const Call *c);
Value fn_attention(Lower *l, const Call *c);
Value fn_rope(Lower *l, const Call *c);

/* functions_loss.c */
Value fn_softmax(Lower *l, const Call *c);
Value fn_cross_entropy(Lower *l, const Call *c);
Value fn_mse(Lower *l, const Call *c);
Value fn_accuracy(Lower *l, const Call *c);
Value fn_topk(Lower *l, const Call *c);
Value fn_dropout(Lower *l, const Call *c);

/* Sum or mean over axes of a float tensor, keeping them as literal 1 when asked (functions.c). */
Value reduce_axes(Lower *l, const Value *x, Op op, const int64_t *axes, int n, bool keep,
                  Span span);

/* x times a constant (functions.c). */
Value scale_by(Lower *l, const Value *x, double factor, Span span);

#endif
