/* eval_attention.c - the evaluator's attention and its gradient, from their definition. */
#include "ir/eval_rule.h"

#include <math.h>

typedef struct Attention {
    int64_t batch, heads, groups, queries, keys, dim, width; /* width: of v's rows */
    bool causal;
    double scale;
} Attention;

static Attention attention_of(const EvalNode *x) {
    const TypeInfo *q = eval_info(x, &x->in[0]), *v = eval_info(x, &x->in[2]);
    return (Attention){.batch = q->dim[0],
                       .heads = q->dim[1],
                       .groups = v->dim[1],
                       .queries = q->dim[2],
                       .keys = v->dim[2],
                       .dim = q->dim[3],
                       .width = v->dim[3],
                       .causal = node_int(x->n, ATTR_causal, 0) == 1,
                       .scale = node_float(x->n, ATTR_scale, 1)};
}

/* Number of the group that head `row` (of all batches) reads. */
static int64_t group_of(const Attention *a, int64_t row) {
    return row / a->heads * a->groups + row % a->heads / (a->heads / a->groups);
}

static int64_t keys_seen(const Attention *a, int64_t query) {
    return a->causal ? query + 1 : a->keys;
}

static double dot(const EvalNode *x, const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum = eval_partial(x, sum + a[i] * b[i]);
    return sum;
}

static void add_scaled(const EvalNode *x, double *to, double by, const double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = eval_partial(x, to[i] + by * a[i]);
}

/* One row of the scores' softmax; returns the log of the sum of exponentials. */
static double shares_of(const EvalNode *x, const Attention *a, const double *q, const double *k,
                        int64_t n, double *share) {
    double max = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        share[j] = a->scale * dot(x, q, k + j * a->dim, a->dim);
        if (isnan(share[j]) || share[j] > max) max = share[j];
    }
    for (int64_t j = 0; j < n; j++) sum += share[j] = exp(share[j] - max);
    for (int64_t j = 0; j < n; j++) share[j] /= sum;
    return max + log(sum);
}

void eval_attention(const EvalNode *x) {
    Attention a = attention_of(x);
    double *share = ARENA_ARRAY(x->e->scratch, double, a.keys);
    for (int64_t row = 0; row < a.batch * a.heads; row++) {
        const double *k = x->in[1].data + group_of(&a, row) * a.keys * a.dim;
        const double *v = x->in[2].data + group_of(&a, row) * a.keys * a.width;
        for (int64_t t = 0; t < a.queries; t++) {
            int64_t at = row * a.queries + t, n = keys_seen(&a, t);
            x->out[1].data[at] = shares_of(x, &a, x->in[0].data + at * a.dim, k, n, share);
            for (int64_t j = 0; j < n; j++)
                add_scaled(x, x->out[0].data + at * a.width, share[j], v + j * a.width, a.width);
        }
    }
}

/* With p the shares as lse gives them: dv = p' dout, dp = dout v', ds = p (dp - sum of dout out),
 * dq = scale ds k, dk = scale ds' q. */
void eval_attention_grad(const EvalNode *x) {
    Attention a = attention_of(x);
    for (int64_t row = 0; row < a.batch * a.heads; row++) {
        int64_t group = group_of(&a, row);
        const double *k = x->in[1].data + group * a.keys * a.dim;
        const double *v = x->in[2].data + group * a.keys * a.width;
        double *dk = x->out[1].data + group * a.keys * a.dim;
        double *dv = x->out[2].data + group * a.keys * a.width;
        for (int64_t t = 0; t < a.queries; t++) {
            int64_t at = row * a.queries + t;
            const double *q = x->in[0].data + at * a.dim, *dout = x->in[5].data + at * a.width;
            double delta = dot(x, dout, x->in[3].data + at * a.width, a.width);
            for (int64_t j = 0; j < keys_seen(&a, t); j++) {
                double score = a.scale * dot(x, q, k + j * a.dim, a.dim);
                double p = exp(score - x->in[4].data[at]);
                double ds = p * (dot(x, dout, v + j * a.width, a.width) - delta) * a.scale;
                add_scaled(x, x->out[0].data + at * a.dim, ds, k + j * a.dim, a.dim);
                add_scaled(x, dk + j * a.dim, ds, q, a.dim);
                add_scaled(x, dv + j * a.width, p, dout, a.width);
            }
        }
    }
}
