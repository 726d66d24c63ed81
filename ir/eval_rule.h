/* eval_rule.h - what the files of the evaluator share. */
#ifndef INFINIC_IR_EVAL_RULE_H
#define INFINIC_IR_EVAL_RULE_H

#include "ir/eval.h"

/* One run of one graph. */
typedef struct Eval {
    const EvalContext *ctx;
    Arena *scratch; /* intermediate values */
    const TypeTable *types;
    int64_t iter[REPEAT_DEPTH_MAX]; /* iterations of the enclosing repeats, outermost first */
    int niter;
} Eval;

/* One node: operand values and results, whose data is allocated and zero. */
typedef struct EvalNode {
    Eval *e;
    const Node *n;
    const EvalTensor *in;
    EvalTensor *out;
} EvalNode;

typedef void EvalRule(const EvalNode *x);

/* eval_move.c */
EvalRule eval_const, eval_iota, eval_random_uniform, eval_reshape, eval_transpose, eval_slice,
    eval_concat, eval_broadcast, eval_pad, eval_gather, eval_gather_dw, eval_put;
/* eval_window.c */
EvalRule eval_conv2d, eval_conv2d_dx, eval_conv2d_dw, eval_max_pool2d, eval_max_pool2d_dx,
    eval_avg_pool2d, eval_avg_pool2d_dx;
/* eval_attention.c */
EvalRule eval_attention, eval_attention_grad;
/* eval_row.c */
EvalRule eval_matmul, eval_argmax, eval_softmax, eval_log_softmax, eval_layer_norm, eval_rms_norm,
    eval_rope, eval_cross_entropy;

const TypeInfo *eval_info(const EvalNode *x, const EvalTensor *t);
int64_t eval_elems(const EvalNode *x, const EvalTensor *t);
const int64_t *eval_ints(const EvalNode *x, AttrKey key);

/* A partial sum: with round_f32 the long ones are rounded term by term, as terms that cancel leave
 * more than the rounding of their sum. */
static inline double eval_partial(const EvalNode *x, double sum) {
    return x->e->ctx->round_f32 > 0 ? (double)(float)sum : sum;
}

/* Position of element `flat` on every axis, and back. */
void eval_unravel(const TypeInfo *info, int64_t flat, int64_t index[NDIM_MAX]);
int64_t eval_ravel(const TypeInfo *info, const int64_t index[NDIM_MAX]);

/* A target that cross_entropy never counts. */
#define EVAL_TARGET_PAD (-2147483648.0)

#endif
