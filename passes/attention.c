/* attention.c - see attention.h. */
#include "passes/attention.h"

#include "passes/rows.h"

#include <math.h>

bool attention_has_kernel(const Graph *g, const Node *n) {
    const TypeInfo *q = val_info(g, n->in[0]), *v = val_info(g, n->in[2]);
    return q->dtype == DT_f32 && q->dim[3] == v->dim[3] && q->dim[3] % ATTENTION_DIM_STEP == 0 &&
           q->dim[3] <= ATTENTION_DIM_MOST;
}

/* [B, G, S, K] to [B, H, S, K]: every group serves H / G heads in a row. */
static Val repeat_groups(Builder *b, Val x, int64_t heads) {
    TypeInfo from = *val_info(b->g, x);
    if (from.dim[1] == heads) return x;
    int64_t wide[5] = {from.dim[0], from.dim[1], heads / from.dim[1], from.dim[2], from.dim[3]};
    int64_t axes[4] = {0, 1, 3, 4}, flat[4] = {wide[0], heads, wide[3], wide[4]};
    Val v = build_broadcast(b, x, type_intern(b->g->mod->types, from.dtype, 5, wide), axes);
    return build_reshape(b, v, 4, flat);
}

/* The reverse: [B, H, S, K] summed over the heads of each group. */
static Val sum_groups(Builder *b, Val x, int64_t groups) {
    TypeInfo from = *val_info(b->g, x);
    if (from.dim[1] == groups) return x;
    int64_t wide[5] = {from.dim[0], groups, from.dim[1] / groups, from.dim[2], from.dim[3]};
    int64_t axis = 2;
    return build_reduce(b, OP_reduce_sum, build_reshape(b, x, 5, wide), 1, &axis);
}

/* Scores above the diagonal become -inf: query t sees keys 0 .. t. */
static Val mask_causal(Builder *b, Val scores) {
    TypeInfo t = *val_info(b->g, scores);
    int64_t axes[2] = {2, 3};
    Type index = type_intern(b->g->mod->types, DT_i32, 2, t.dim + 2);
    Attr row = ATTR_INT(axis, 0), column = ATTR_INT(axis, 1);
    Val i = graph_add(b, OP_iota, 0, NULL, 1, &row, index)->out;
    Val j = graph_add(b, OP_iota, 0, NULL, 1, &column, index)->out;
    Val seen = build2(b, OP_le, j, i);
    Val wide = build_broadcast(b, seen, type_intern(b->g->mod->types, DT_bool, 4, t.dim), axes);
    return build3(b, OP_select, wide, scores, build_scalar_like(b, -(double)INFINITY, scores));
}

/* scale q k' [B, H, T, S]. */
static Val make_scores(Builder *b, const Node *n, Val q, Val k) {
    Val scaled = build2(b, OP_mul, q, build_scalar_like(b, node_float(n, ATTR_scale, 1), q));
    Val wide = repeat_groups(b, k, val_info(b->g, q)->dim[1]);
    Val scores = build_matmul(b, scaled, wide, false, true);
    return node_int(n, ATTR_causal, 0) ? mask_causal(b, scores) : scores;
}

void attention_forward(Builder *b, const Node *n, const Val *in, Val *out) {
    Val scores = make_scores(b, n, in[0], in[1]);
    RowsExp r = rows_exp(b, scores);
    Val shares = build2(b, OP_div, r.e, rows_spread(b, r.sum, scores));
    Val v = repeat_groups(b, in[2], val_info(b->g, in[0])->dim[1]);
    out[0] = build_matmul(b, shares, v, false, false);
    Val max = build_cast(b, rows_reduce(b, OP_reduce_max, scores), DT_f32);
    out[1] = build2(b, OP_add, max, build1(b, OP_log, build_cast(b, r.sum, DT_f32)));
}

/* exp(scores - lse) */
static Val make_shares(Builder *b, const Node *n, Val q, Val k, Val lse) {
    Val scores = make_scores(b, n, q, k);
    lse = build_cast(b, lse, val_info(b->g, q)->dtype);
    return build1(b, OP_exp, build2(b, OP_sub, scores, rows_spread(b, lse, scores)));
}

/* dq and dk from the gradient of the unscaled products. */
static void score_backward(Builder *b, const Node *n, Val ds, const Val *in, Val *out) {
    int64_t heads = val_info(b->g, in[0])->dim[1], groups = val_info(b->g, in[1])->dim[1];
    ds = build2(b, OP_mul, ds, build_scalar_like(b, node_float(n, ATTR_scale, 1), ds));
    out[0] = build_matmul(b, ds, repeat_groups(b, in[1], heads), false, false);
    out[1] = sum_groups(b, build_matmul(b, ds, in[0], true, false), groups);
}

void attention_backward(Builder *b, const Node *n, const Val *in, Val *out) {
    Val dout = in[5], p = make_shares(b, n, in[0], in[1], in[4]);
    int64_t heads = val_info(b->g, in[0])->dim[1], groups = val_info(b->g, in[1])->dim[1];
    out[2] = sum_groups(b, build_matmul(b, p, dout, true, false), groups);
    Val dp = build_matmul(b, dout, repeat_groups(b, in[2], heads), false, true);
    Val delta = rows_reduce(b, OP_reduce_sum, build2(b, OP_mul, dout, in[3]));
    Val ds = build2(b, OP_mul, p, build2(b, OP_sub, dp, rows_spread(b, delta, dp)));
    score_backward(b, n, ds, in, out);
}

void attention_backward_lse(Builder *b, const Node *n, Val lse, Val dlse, Val *out) {
    Val p = make_shares(b, n, n->in[0], n->in[1], lse);
    dlse = build_cast(b, dlse, val_info(b->g, p)->dtype);
    score_backward(b, n, build2(b, OP_mul, p, rows_spread(b, dlse, p)), n->in, out);
}
