/* eval_row.c - the evaluator's matrix products and what goes along the last axis; see eval.h.
 * Composites are computed from their definition, never from their decomposition. */
#include "ir/eval_rule.h"

#include <math.h>

void eval_matmul(const EvalNode *x) {
    const TypeInfo *to = eval_info(x, &x->out[0]), *from = eval_info(x, &x->in[0]);
    bool ta = node_int(x->n, ATTR_ta, 0) == 1, tb = node_int(x->n, ATTR_tb, 0) == 1;
    int last = to->ndim - 1;
    int64_t m = to->dim[last - 1], n = to->dim[last], k = from->dim[ta ? last - 1 : last];
    int64_t batches = 1;
    for (int i = 0; i < last - 1; i++) batches *= to->dim[i];
    for (int64_t b = 0; b < batches; b++) {
        const double *a = x->in[0].data + b * m * k, *c = x->in[1].data + b * k * n;
        double *y = x->out[0].data + b * m * n;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++) {
                    double product = a[ta ? l * m + i : i * k + l] * c[tb ? j * k + l : l * n + j];
                    sum = eval_partial(x, sum + product);
                }
                y[i * n + j] = sum;
            }
    }
}

void eval_argmax(const EvalNode *x) {
    const TypeInfo *from = eval_info(x, &x->in[0]);
    int64_t axis = node_int(x->n, ATTR_axis, 0), inner = 1, n = from->dim[axis];
    for (int i = (int)axis + 1; i < from->ndim; i++) inner *= from->dim[i];
    int64_t results = eval_elems(x, &x->out[0]);
    for (int64_t i = 0; i < results; i++) {
        const double *v = x->in[0].data + i / inner * n * inner + i % inner;
        int64_t best = 0;
        for (int64_t k = 1; k < n; k++)
            if (v[k * inner] > v[best * inner] || (isnan(v[k * inner]) && !isnan(v[best * inner])))
                best = k;
        x->out[0].data[i] = (double)best;
    }
}

/* ---- rows: the last axis ------------------------------------------------------------------ */

typedef struct Rows {
    int64_t count, size;
} Rows;

static Rows rows_of(const EvalNode *x) {
    const TypeInfo *info = eval_info(x, &x->in[0]);
    Rows r = {.count = 1, .size = info->dim[info->ndim - 1]};
    for (int i = 0; i + 1 < info->ndim; i++) r.count *= info->dim[i];
    return r;
}

/* Largest element of a row, NaN when it holds one. */
static double row_max(const double *v, int64_t n) {
    double best = -(double)INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (isnan(v[i]) || v[i] > best)
            best = v[i];
        else if (isnan(best))
            break;
    return best;
}

/* log of the sum of exponentials, shifted by the maximum. */
static double row_logsumexp(const double *v, int64_t n) {
    double max = row_max(v, n), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(v[i] - max);
    return max + log(sum);
}

void eval_softmax(const EvalNode *x) {
    Rows r = rows_of(x);
    for (int64_t i = 0; i < r.count; i++) {
        const double *v = x->in[0].data + i * r.size;
        double max = row_max(v, r.size), sum = 0;
        for (int64_t k = 0; k < r.size; k++) sum += exp(v[k] - max);
        for (int64_t k = 0; k < r.size; k++) x->out[0].data[i * r.size + k] = exp(v[k] - max) / sum;
    }
}

void eval_log_softmax(const EvalNode *x) {
    Rows r = rows_of(x);
    for (int64_t i = 0; i < r.count; i++) {
        const double *v = x->in[0].data + i * r.size;
        double lse = row_logsumexp(v, r.size);
        for (int64_t k = 0; k < r.size; k++) x->out[0].data[i * r.size + k] = v[k] - lse;
    }
}

void eval_layer_norm(const EvalNode *x) {
    Rows r = rows_of(x);
    double eps = node_float(x->n, ATTR_eps, 0), n = (double)r.size;
    const double *gamma = x->in[1].data, *beta = x->in[2].data;
    for (int64_t i = 0; i < r.count; i++) {
        const double *v = x->in[0].data + i * r.size;
        /* Relative to the first element, so that a mean far from 0 costs no digits. */
        double shift = 0, variance = 0;
        for (int64_t k = 0; k < r.size; k++) shift += (v[k] - v[0]) / n;
        for (int64_t k = 0; k < r.size; k++) variance += pow(v[k] - v[0] - shift, 2) / n;
        double rstd = 1 / sqrt(variance + eps);
        for (int64_t k = 0; k < r.size; k++)
            x->out[0].data[i * r.size + k] = (v[k] - v[0] - shift) * rstd * gamma[k] + beta[k];
        x->out[1].data[i] = v[0] + shift;
        x->out[2].data[i] = rstd;
    }
}

void eval_rms_norm(const EvalNode *x) {
    Rows r = rows_of(x);
    double eps = node_float(x->n, ATTR_eps, 0), n = (double)r.size;
    for (int64_t i = 0; i < r.count; i++) {
        const double *v = x->in[0].data + i * r.size;
        double square = 0;
        for (int64_t k = 0; k < r.size; k++) square += v[k] * v[k] / n;
        double rstd = 1 / sqrt(square + eps);
        for (int64_t k = 0; k < r.size; k++)
            x->out[0].data[i * r.size + k] = v[k] * rstd * x->in[1].data[k];
        x->out[1].data[i] = rstd;
    }
}

void eval_rope(const EvalNode *x) {
    Rows r = rows_of(x);
    const TypeInfo *info = eval_info(x, &x->in[0]);
    int64_t axis = node_int(x->n, ATTR_axis, 0), half = r.size / 2, inner = 1;
    bool adjacent = node_int(x->n, ATTR_adjacent, 0) == 1;
    double turn = node_int(x->n, ATTR_back, 0) == 1 ? -1 : 1;
    for (int i = (int)axis + 1; i + 1 < info->ndim; i++) inner *= info->dim[i];
    for (int64_t i = 0; i < r.count; i++) {
        int64_t position = i / inner % info->dim[axis];
        for (int64_t k = 0; k < half; k++) {
            int64_t a = i * r.size + (adjacent ? 2 * k : k), b = a + (adjacent ? 1 : half);
            double c = x->in[1].data[position * half + k];
            double s = turn * x->in[2].data[position * half + k];
            x->out[0].data[a] = x->in[0].data[a] * c - x->in[0].data[b] * s;
            x->out[0].data[b] = x->in[0].data[b] * c + x->in[0].data[a] * s;
        }
    }
}

/* A target that is neither counted out nor a class makes the loss NaN. */
void eval_cross_entropy(const EvalNode *x) {
    Rows r = rows_of(x);
    double ignore = (double)node_int(x->n, ATTR_ignore, 0), sum = 0, count = 0;
    int64_t classes = node_int(x->n, ATTR_classes, r.size);
    for (int64_t i = 0; i < r.count; i++) {
        const double *v = x->in[0].data + i * r.size;
        double target = x->in[1].data[i];
        if (target == ignore || target == EVAL_TARGET_PAD) continue;
        bool known = target >= 0 && target < (double)classes;
        sum += known ? row_logsumexp(v, classes) - v[(int64_t)target] : (double)NAN;
        sum = eval_partial(x, sum);
        count += 1;
    }
    x->out[0].data[0] = sum;
    x->out[1].data[0] = count;
}
