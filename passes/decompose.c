/* decompose.c - composites into primitives.
 *
 * Reads   every graph, bodies of repeats too.
 * Writes  softmax, log_softmax, layer_norm, rms_norm, rope, cross_entropy as reductions and
 *         elementwise ops, in the phase of the composite; attention where there is no kernel for
 *         it; stop_gradient, which has done its work, is its operand. On CUDA rope waits for fuse.
 * Keeps   meaning up to rounding; maxima are subtracted before exp, variances are taken of
 *         centred values (never E[x^2] - E[x]^2).
 */
#include "passes/attention.h"
#include "passes/rewrite.h"
#include "passes/rope.h"
#include "passes/rows.h"

/* Writes the results that stand for node n, whose operands in the new graph are `in`. */
typedef void Decomposition(Builder *b, const Node *n, const Val *in, Val *out);

static void decompose_softmax(Builder *b, const Node *n, const Val *in, Val *out) {
    (void)n;
    RowsExp r = rows_exp(b, in[0]);
    out[0] = rows_divide(b, r.e, r.sum);
}

static void decompose_log_softmax(Builder *b, const Node *n, const Val *in, Val *out) {
    (void)n;
    RowsExp r = rows_exp(b, in[0]);
    out[0] = build2(b, OP_sub, r.shifted, rows_spread(b, build1(b, OP_log, r.sum), in[0]));
}

/* 1 / sqrt(mean of x^2 + eps) */
static Val inverse_deviation(Builder *b, const Node *n, Val x) {
    Val square = rows_mean(b, build2(b, OP_mul, x, x));
    Val eps = build_scalar_like(b, node_float(n, ATTR_eps, 0.0), square);
    return build1(b, OP_rsqrt, build2(b, OP_add, square, eps));
}

static void decompose_layer_norm(Builder *b, const Node *n, const Val *in, Val *out) {
    Type type = val_type(b->g, in[0]);
    out[1] = rows_mean(b, in[0]);
    Val centred = build2(b, OP_sub, in[0], rows_spread(b, out[1], in[0]));
    out[2] = inverse_deviation(b, n, centred);
    Val h = build2(b, OP_mul, centred, rows_spread(b, out[2], in[0]));
    Val scaled = build2(b, OP_mul, h, build_broadcast_suffix(b, in[1], type));
    out[0] = build2(b, OP_add, scaled, build_broadcast_suffix(b, in[2], type));
}

static void decompose_rms_norm(Builder *b, const Node *n, const Val *in, Val *out) {
    out[1] = inverse_deviation(b, n, in[0]);
    Val h = build2(b, OP_mul, in[0], rows_spread(b, out[1], in[0]));
    out[0] = build2(b, OP_mul, h, build_broadcast_suffix(b, in[1], val_type(b->g, in[0])));
}

/* -log p of the target's class is log(sum) - shifted[target]; rows that are not counted are left
 * out by selection, so neither their logits nor their targets matter. */
static void decompose_cross_entropy(Builder *b, const Node *n, const Val *in, Val *out) {
    int64_t axes[NDIM_MAX];
    for (int i = 0; i < NDIM_MAX; i++) axes[i] = i;
    int rows = val_info(b->g, in[1])->ndim;
    RowsExp r = rows_exp(b, rows_only(b, in[0], node_int(n, ATTR_classes, INT64_MAX)));
    Val hot = rows_onehot(b, in[1], in[0]);
    Val counted = rows_counted(b, in[1], node_int(n, ATTR_ignore, 0));
    Val only = build3(b, OP_select, hot, r.shifted, build_scalar_like(b, 0.0, r.shifted));
    Val picked = rows_reduce(b, OP_reduce_sum, only);
    Val loss = build2(b, OP_sub, build1(b, OP_log, r.sum), picked);
    loss = build3(b, OP_select, counted, loss, build_scalar_like(b, 0.0, loss));
    loss = build_cast(b, loss, DT_f32);
    out[0] = build_reduce(b, OP_reduce_sum, loss, rows, axes);
    out[1] = build_reduce(b, OP_reduce_sum, build_cast(b, counted, DT_f32), rows, axes);
}

static void decompose_rope(Builder *b, const Node *n, const Val *in, Val *out) {
    out[0] = rope_forward(b, n, in);
}

static void decompose_stop_gradient(Builder *b, const Node *n, const Val *in, Val *out) {
    (void)b, (void)n;
    out[0] = in[0];
}

static Decomposition *const decompose_table[OP_count] = {
    [OP_softmax] = decompose_softmax,
    [OP_log_softmax] = decompose_log_softmax,
    [OP_layer_norm] = decompose_layer_norm,
    [OP_rms_norm] = decompose_rms_norm,
    [OP_cross_entropy] = decompose_cross_entropy,
    [OP_rope] = decompose_rope,
    [OP_attention] = attention_forward,
    [OP_attention_grad] = attention_backward,
    [OP_stop_gradient] = decompose_stop_gradient,
};

static Decomposition *decomposition(const Graph *g, const Node *n) {
    bool attention = n->op == OP_attention || n->op == OP_attention_grad;
    bool later = n->op == OP_rope && g->mod->target == TARGET_cuda; /* fuse_rope.c */
    return later || (attention && attention_has_kernel(g, n)) ? NULL : decompose_table[n->op];
}

static Graph *decompose_graph(const Graph *g, Arena *scratch) {
    Builder b = {.g = graph_new(g->mod, g->name)};
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(b.g, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Decomposition *decompose = decomposition(g, n);
        if (decompose == NULL) {
            Graph *body = n->body != NULL ? decompose_graph(n->body, scratch) : NULL;
            graph_copy_node(b.g, g, n, &map, body);
            continue;
        }
        b.phase = n->phase;
        b.span = n->span;
        b.scope = n->scope;
        Val *in = ARENA_ARRAY(scratch, Val, n->nin), *out = ARENA_ARRAY(scratch, Val, n->nout);
        for (int k = 0; k < n->nin; k++) in[k] = map.to[n->in[k].id];
        decompose(&b, n, in, out);
        for (int k = 0; k < n->nout; k++) map.to[node_out(n, k).id] = out[k];
    }
    graph_copy_outputs(b.g, g, &map);
    return b.g;
}

bool pass_decompose(PassContext *ctx) {
    rewrite_module(ctx, decompose_graph);
    return true;
}
