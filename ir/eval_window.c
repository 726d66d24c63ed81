/* eval_window.c - the evaluator's convolutions and poolings; see eval.h. */
#include "ir/eval_rule.h"

#include <math.h>

/* One way to visit every (window position, place in the window) pair of [N, C, H, W]. */
typedef struct Walk {
    int64_t n, c, h, w;   /* of x */
    int64_t o, oh, ow;    /* of the result */
    int64_t kh, kw;       /* window */
    const int64_t *s, *p; /* stride, padding */
} Walk;

static Walk walk_of(const EvalNode *x, const TypeInfo *image, const TypeInfo *result) {
    return (Walk){.n = image->dim[0],
                  .c = image->dim[1],
                  .h = image->dim[2],
                  .w = image->dim[3],
                  .o = result->dim[1],
                  .oh = result->dim[2],
                  .ow = result->dim[3],
                  .s = eval_ints(x, ATTR_stride),
                  .p = eval_ints(x, ATTR_padding)};
}

/* Offset of x[n, c, oy * s + i - p, ox * s + j - p], -1 in the padding. */
static int64_t image_at(const Walk *k, int64_t plane, int64_t y, int64_t x) {
    if (y < 0 || y >= k->h || x < 0 || x >= k->w) return -1;
    return (plane * k->h + y) * k->w + x;
}

/* ---- convolution -------------------------------------------------------------------------- */

/* Which of the three tensors is computed from the two others. */
typedef enum Tensor { TENSOR_Y, TENSOR_X, TENSOR_W } Tensor;

typedef struct Conv {
    Walk k;
    double *x, *w, *y;
    Tensor target;
} Conv;

/* All products of one result element. */
static void conv_element(const Conv *c, int64_t n, int64_t o, int64_t oy, int64_t ox) {
    const Walk *k = &c->k;
    int64_t at_y = ((n * k->o + o) * k->oh + oy) * k->ow + ox;
    for (int64_t ch = 0; ch < k->c; ch++)
        for (int64_t i = 0; i < k->kh; i++)
            for (int64_t j = 0; j < k->kw; j++) {
                int64_t at_x = image_at(k, n * k->c + ch, oy * k->s[0] + i - k->p[0],
                                        ox * k->s[1] + j - k->p[1]);
                int64_t at_w = ((o * k->c + ch) * k->kh + i) * k->kw + j;
                if (at_x < 0) continue;
                if (c->target == TENSOR_Y) c->y[at_y] += c->x[at_x] * c->w[at_w];
                if (c->target == TENSOR_X) c->x[at_x] += c->y[at_y] * c->w[at_w];
                if (c->target == TENSOR_W) c->w[at_w] += c->y[at_y] * c->x[at_x];
            }
}

static void conv_run(const EvalNode *node, const EvalTensor *x, const EvalTensor *w,
                     const EvalTensor *y, Tensor target) {
    const TypeInfo *window = eval_info(node, w);
    Conv c = {.k = walk_of(node, eval_info(node, x), eval_info(node, y)),
              .x = x->data,
              .w = w->data,
              .y = y->data,
              .target = target};
    c.k.kh = window->dim[2];
    c.k.kw = window->dim[3];
    for (int64_t n = 0; n < c.k.n; n++)
        for (int64_t o = 0; o < c.k.o; o++)
            for (int64_t oy = 0; oy < c.k.oh; oy++)
                for (int64_t ox = 0; ox < c.k.ow; ox++) conv_element(&c, n, o, oy, ox);
}

void eval_conv2d(const EvalNode *x) { conv_run(x, &x->in[0], &x->in[1], &x->out[0], TENSOR_Y); }

void eval_conv2d_dx(const EvalNode *x) { conv_run(x, &x->out[0], &x->in[1], &x->in[0], TENSOR_X); }

void eval_conv2d_dw(const EvalNode *x) { conv_run(x, &x->in[0], &x->out[0], &x->in[1], TENSOR_W); }

/* ---- pooling ------------------------------------------------------------------------------ */

typedef struct Pool {
    Walk k;
    int64_t plane, oy, ox; /* where the window is */
    int64_t at;            /* of the result element */
} Pool;

typedef void PoolVisit(const EvalNode *x, const Pool *p);

static void pool_run(const EvalNode *x, const EvalTensor *image, const EvalTensor *result,
                     PoolVisit *visit) {
    Pool p = {.k = walk_of(x, eval_info(x, image), eval_info(x, result))};
    const int64_t *window = eval_ints(x, ATTR_window);
    p.k.kh = window[0];
    p.k.kw = window[1];
    for (p.plane = 0; p.plane < p.k.n * p.k.c; p.plane++)
        for (p.oy = 0; p.oy < p.k.oh; p.oy++)
            for (p.ox = 0; p.ox < p.k.ow; p.ox++, p.at++) visit(x, &p);
}

/* Offset of place (i, j) of the window in x, -1 in the padding. */
static int64_t pool_at(const Pool *p, int64_t i, int64_t j) {
    return image_at(&p->k, p->plane, p->oy * p->k.s[0] + i - p->k.p[0],
                    p->ox * p->k.s[1] + j - p->k.p[1]);
}

static void visit_max(const EvalNode *x, const Pool *p) {
    const double *image = x->in[0].data;
    int64_t best = -1;
    for (int64_t i = 0; i < p->k.kh; i++)
        for (int64_t j = 0; j < p->k.kw; j++) {
            int64_t at = pool_at(p, i, j);
            if (at < 0) continue;
            bool larger =
                best < 0 || image[at] > image[best] || (isnan(image[at]) && !isnan(image[best]));
            if (larger) best = at;
        }
    x->out[0].data[p->at] = image[best];
    x->out[1].data[p->at] = (double)(best - p->plane * p->k.h * p->k.w);
}

static void visit_max_dx(const EvalNode *x, const Pool *p) {
    int64_t plane_elems = p->k.h * p->k.w;
    double index = x->in[0].data[p->at];
    if (index >= 0 && index < (double)plane_elems)
        x->out[0].data[p->plane * plane_elems + (int64_t)index] += x->in[1].data[p->at];
}

static void visit_avg(const EvalNode *x, const Pool *p) {
    double sum = 0;
    for (int64_t i = 0; i < p->k.kh; i++)
        for (int64_t j = 0; j < p->k.kw; j++) {
            int64_t at = pool_at(p, i, j);
            if (at >= 0) sum += x->in[0].data[at];
        }
    x->out[0].data[p->at] = sum / (double)(p->k.kh * p->k.kw);
}

static void visit_avg_dx(const EvalNode *x, const Pool *p) {
    for (int64_t i = 0; i < p->k.kh; i++)
        for (int64_t j = 0; j < p->k.kw; j++) {
            int64_t at = pool_at(p, i, j);
            if (at >= 0) x->out[0].data[at] += x->in[0].data[p->at] / (double)(p->k.kh * p->k.kw);
        }
}

void eval_max_pool2d(const EvalNode *x) { pool_run(x, &x->in[0], &x->out[0], visit_max); }

void eval_max_pool2d_dx(const EvalNode *x) { pool_run(x, &x->out[0], &x->in[1], visit_max_dx); }

void eval_avg_pool2d(const EvalNode *x) { pool_run(x, &x->in[0], &x->out[0], visit_avg); }

void eval_avg_pool2d_dx(const EvalNode *x) { pool_run(x, &x->out[0], &x->in[0], visit_avg_dx); }
