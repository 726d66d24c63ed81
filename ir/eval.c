/* eval.c - the reference evaluator: dispatch, elementwise ops, reductions, regions; see eval.h.
 *
 * The scalar meaning of elementwise ops and reductions is the expression of ops.def over double.
 * Everything else is an obvious loop in eval_move.c, eval_window.c and eval_row.c. */
#include "ir/eval.h"

#include "ir/bf16.h"
#include "ir/eval_rule.h"
#include "ir/panic.h"

#include <math.h>
#include <string.h>

/* ---- shared ------------------------------------------------------------------------------- */

const TypeInfo *eval_info(const EvalNode *x, const EvalTensor *t) {
    return type_info(x->e->types, t->type);
}

int64_t eval_elems(const EvalNode *x, const EvalTensor *t) {
    return type_elems(x->e->types, t->type);
}

const int64_t *eval_ints(const EvalNode *x, AttrKey key) { return node_attr(x->n, key)->v; }

void eval_unravel(const TypeInfo *info, int64_t flat, int64_t index[NDIM_MAX]) {
    for (int i = info->ndim - 1; i >= 0; i--) {
        index[i] = flat % info->dim[i];
        flat /= info->dim[i];
    }
}

int64_t eval_ravel(const TypeInfo *info, const int64_t index[NDIM_MAX]) {
    int64_t flat = 0;
    for (int i = 0; i < info->ndim; i++) flat = flat * info->dim[i] + index[i];
    return flat;
}

static double *new_data(Arena *arena, const TypeTable *types, Type t) {
    return ARENA_ARRAY(arena, double, type_elems(types, t));
}

/* ---- elementwise and reductions ----------------------------------------------------------- */

#define L(x)         (x)
#define EXP          exp
#define EXP2         exp2
#define LOG          log
#define SQRT         sqrt
#define TANH         tanh
#define ERF          erf
#define SIGMOID(x)   (1 / (1 + exp(-(x))))
#define SIN          sin
#define COS          cos
#define POW          pow
#define FABS         fabs
#define FLOOR        floor
#define SEL(c, x, y) ((c) ? (x) : (y))
#define MAX(x, y)    SEL(((x) > (y)) | ((x) != (x)), x, y)
#define MIN(x, y)    SEL(((x) < (y)) | ((x) != (x)), x, y)

typedef double Scalar(double a, double b, double c);

#define EW(name, operands, shape, grad, expr)                                                      \
    static double scalar_##name(double a, double b, double c) {                                    \
        (void)a, (void)b, (void)c;                                                                 \
        return expr;                                                                               \
    }
#define RED(name, shape, grad, first, expr) EW(name, 2, shape, grad, expr)
#include "ir/ops.def"

static Scalar *const scalar_table[OP_count] = {
#define EW(name, ...)  [OP_##name] = scalar_##name,
#define RED(name, ...) [OP_##name] = scalar_##name,
#include "ir/ops.def"
};

static const double reduce_first[OP_count] = {
#define RED(name, shape, grad, first, expr) [OP_##name] = (double)(first),
#include "ir/ops.def"
};

/* A value as the dtype holds it: bf16 rounded as the targets do (f32 is not: see eval.h), integers
 * towards zero within their range, NaN as 0. */
static double convert(double a, Dtype dtype) {
    if (dtype == DT_bool) return a != 0;
    if (dtype == DT_bf16) return (double)bf16_round((float)a);
    if (dtype_is_float(dtype)) return a;
    double low = dtype == DT_u8 ? 0 : INT32_MIN, high = dtype == DT_u8 ? UINT8_MAX : INT32_MAX;
    if (isnan(a)) return 0;
    return a < low ? low : a > high ? high : trunc(a);
}

static void eval_elementwise(const EvalNode *x) {
    Scalar *f = scalar_table[x->n->op];
    Dtype dtype = eval_info(x, &x->out[0])->dtype;
    int64_t n = eval_elems(x, &x->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double a = x->in[0].data[i];
        double b = x->n->nin > 1 ? x->in[1].data[i] : 0, c = x->n->nin > 2 ? x->in[2].data[i] : 0;
        double y = f(a, b, c);
        x->out[0].data[i] = x->n->op == OP_cast || dtype == DT_bf16 ? convert(y, dtype) : y;
    }
}

static void eval_reduce(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]), *to = eval_info(x, &x->out[0]);
    const Attr *axes = node_attr(x->n, ATTR_axes);
    Scalar *f = scalar_table[x->n->op];
    double *y = x->out[0].data;
    int64_t n = eval_elems(x, &x->out[0]), nfrom = eval_elems(x, &x->in[0]);
    for (int64_t i = 0; i < n; i++) y[i] = reduce_first[x->n->op];
    for (int64_t i = 0; i < nfrom; i++) {
        int64_t index[NDIM_MAX], kept[NDIM_MAX];
        eval_unravel(from, i, index);
        int nkept = 0, next = 0;
        for (int k = 0; k < from->ndim; k++) {
            if (next < axes->n && axes->v[next] == k)
                next++;
            else
                kept[nkept++] = index[k];
        }
        int64_t at = eval_ravel(to, kept);
        y[at] = eval_partial(x, f(y[at], x->in[0].data[i], 0));
    }
}

static void eval_copy(const EvalNode *x) {
    memcpy(x->out[0].data, x->in[0].data, (size_t)eval_elems(x, &x->in[0]) * sizeof(double));
}

/* ---- regions ------------------------------------------------------------------------------ */

static void run_graph(const Eval *outer, const Graph *g, const EvalTensor *in, EvalTensor *out);

/* Slice `i` of a stacked tensor, seen as the body's type. */
static EvalTensor slice_of(const Eval *e, EvalTensor stacked, Type slice, int64_t i) {
    return (EvalTensor){.type = slice, .data = stacked.data + i * type_elems(e->types, slice)};
}

static void eval_repeat(const EvalNode *x) {
    const Node *n = x->n;
    const Graph *body = n->body;
    int64_t count = node_int(n, ATTR_count, 0), first = node_int(n, ATTR_first, 0);
    int ncarry = (int)node_int(n, ATTR_ncarry, 0);
    int nsame = ncarry + (int)node_int(n, ATTR_nconst, 0);
    if (x->e->niter >= REPEAT_DEPTH_MAX) panic_graph(body, n->span, "repeats nest too deep");
    Eval inner = *x->e;
    inner.niter++;
    EvalTensor *in = ARENA_ARRAY(x->e->scratch, EvalTensor, body->nin);
    EvalTensor *out = ARENA_ARRAY(x->e->scratch, EvalTensor, body->nout);
    for (int i = 0; i < nsame; i++) in[i] = x->in[i];
    for (int i = 0; i < body->nout; i++) {
        Type t = val_type(body, body->out[i]);
        out[i] = (EvalTensor){t, new_data(x->e->scratch, x->e->types, t)};
    }
    for (int64_t step = 0; step < count; step++) {
        int64_t i = node_int(n, ATTR_reverse, 0) ? count - 1 - step : step;
        inner.iter[inner.niter - 1] = first + i;
        for (int k = nsame; k < n->nin; k++)
            in[k] = slice_of(x->e, x->in[k], val_type(body, body->in[k]), i);
        for (int k = ncarry; k < body->nout; k++)
            out[k] = slice_of(x->e, x->out[k], out[k].type, i);
        run_graph(&inner, body, in, out);
        /* The next iteration's operands must not share memory with what it writes. */
        for (int k = 0; k < ncarry; k++) {
            size_t bytes = (size_t)type_elems(x->e->types, out[k].type) * sizeof(double);
            memcpy(x->out[k].data, out[k].data, bytes);
            in[k] = x->out[k];
        }
    }
}

static void eval_kernel(const EvalNode *x) { run_graph(x->e, x->n->body, x->in, x->out); }

/* ---- dispatch ----------------------------------------------------------------------------- */

static EvalRule *const kind_rule[] = {
    [KIND_elementwise] = eval_elementwise, [KIND_reduce] = eval_reduce, [KIND_region] = NULL};

static EvalRule *const op_rule[OP_count] = {
    [OP_argmax] = eval_argmax,
    [OP_const] = eval_const,
    [OP_iota] = eval_iota,
    [OP_random_uniform] = eval_random_uniform,
    [OP_reshape] = eval_copy,
    [OP_copy] = eval_copy,
    [OP_transpose] = eval_transpose,
    [OP_slice] = eval_slice,
    [OP_concat] = eval_concat,
    [OP_broadcast] = eval_broadcast,
    [OP_pad] = eval_pad,
    [OP_matmul] = eval_matmul,
    [OP_attention] = eval_attention,
    [OP_attention_grad] = eval_attention_grad,
    [OP_conv2d] = eval_conv2d,
    [OP_conv2d_dx] = eval_conv2d_dx,
    [OP_conv2d_dw] = eval_conv2d_dw,
    [OP_max_pool2d] = eval_max_pool2d,
    [OP_max_pool2d_dx] = eval_max_pool2d_dx,
    [OP_avg_pool2d] = eval_avg_pool2d,
    [OP_avg_pool2d_dx] = eval_avg_pool2d_dx,
    [OP_gather] = eval_gather,
    [OP_gather_dw] = eval_gather_dw,
    [OP_put] = eval_put,
    [OP_softmax] = eval_softmax,
    [OP_log_softmax] = eval_log_softmax,
    [OP_layer_norm] = eval_layer_norm,
    [OP_rms_norm] = eval_rms_norm,
    [OP_rope] = eval_rope,
    [OP_cross_entropy] = eval_cross_entropy,
    [OP_repeat] = eval_repeat,
    [OP_kernel] = eval_kernel,
};

static void round_f32(const Eval *e, const Node *n, EvalTensor *t) {
    int64_t count = type_elems(e->types, t->type);
    if (!dtype_is_float(type_info(e->types, t->type)->dtype) || n->op == OP_const) return;
    uint64_t bits = (uint64_t)e->ctx->round_f32 * UINT64_C(0x9E3779B97F4A7C15) + n->out.id;
    for (int64_t i = 0; i < count; i++) {
        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float x = (float)t->data[i];
        if (e->ctx->round_f32 > 1 && x != 0)
            x = nextafterf(x, bits >> 63 != 0 ? INFINITY : -INFINITY);
        t->data[i] = (double)x;
    }
}

static void run_node(Eval *e, const Graph *g, const Node *n, EvalTensor *value) {
    EvalRule *rule = op_rule[n->op];
    if (rule == NULL && op_kind(n->op) <= KIND_reduce) rule = kind_rule[op_kind(n->op)];
    if (rule == NULL) panic_graph(g, n->span, "the evaluator has no rule for %s", op_name(n->op));
    EvalTensor *in = ARENA_ARRAY(e->scratch, EvalTensor, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = value[n->in[i].id];
    for (int i = 0; i < n->nout; i++) {
        Type t = val_type(g, node_out(n, i));
        value[node_out(n, i).id] = (EvalTensor){t, new_data(e->scratch, e->types, t)};
    }
    rule(&(EvalNode){.e = e, .n = n, .in = in, .out = &value[n->out.id]});
    for (int i = 0; e->ctx->round_f32 > 0 && i < n->nout; i++)
        round_f32(e, n, &value[node_out(n, i).id]);
}

/* Runs g with scratch memory of its own; copies its results into out[].data. */
static void run_graph(const Eval *outer, const Graph *g, const EvalTensor *in, EvalTensor *out) {
    Arena scratch = {0};
    Eval e = *outer;
    e.scratch = &scratch;
    EvalTensor *value = ARENA_ARRAY(&scratch, EvalTensor, g->nval);
    for (int i = 0; i < g->nin; i++) value[g->in[i].id] = in[i];
    for (int i = 0; i < g->nnode; i++) run_node(&e, g, g->node[i], value);
    for (int i = 0; i < g->nout; i++) {
        const EvalTensor *y = &value[g->out[i].id];
        memcpy(out[i].data, y->data, (size_t)type_elems(e.types, y->type) * sizeof(double));
    }
    arena_free(&scratch);
}

void eval_graph(const EvalContext *ctx, const Graph *g, const EvalTensor *in, EvalTensor *out) {
    Eval e = {.ctx = ctx, .types = g->mod->types};
    for (int i = 0; i < g->nin; i++)
        if (in[i].type.id != val_type(g, g->in[i]).id)
            panic_graph(g, (Span){0}, "the evaluator's input %d has another type", i);
    for (int i = 0; i < g->nout; i++) {
        Type t = val_type(g, g->out[i]);
        out[i] = (EvalTensor){t, new_data(ctx->arena, e.types, t)};
    }
    run_graph(&e, g, in, out);
}
