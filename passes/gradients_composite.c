/* gradients_composite.c - hand-written derivatives of composites, over the last axis at any rank.
 *
 * Their parts come from rows.c like those of the decompositions.
 */
#include "passes/grad.h"
#include "passes/rope.h"
#include "passes/rows.h"

static Val add(Grad *c, Val x, Val y) { return build2(&c->b, OP_add, x, y); }
static Val sub(Grad *c, Val x, Val y) { return build2(&c->b, OP_sub, x, y); }
static Val mul(Grad *c, Val x, Val y) { return build2(&c->b, OP_mul, x, y); }

/* A row's number times each of the row's elements. */
static Val scale_rows(Grad *c, Val x, Val r) { return mul(c, x, rows_spread(&c->b, r, x)); }

static Val add_maybe(Grad *c, Val sum, Val more) { return sum.id == 0 ? more : add(c, sum, more); }

/* dx = y (dy - sum(dy y)) */
void grad_softmax(Grad *c) {
    Val y = c->n->out, dy = c->dout[0];
    Val dot = rows_reduce(&c->b, OP_reduce_sum, mul(c, dy, y));
    c->din[0] = mul(c, sub(c, dy, rows_spread(&c->b, dot, dy)), y);
}

/* dx = dy - exp(y) sum(dy) */
void grad_log_softmax(Grad *c) {
    Val y = c->n->out, dy = c->dout[0];
    Val total = rows_reduce(&c->b, OP_reduce_sum, dy);
    c->din[0] = sub(c, dy, scale_rows(c, build1(&c->b, OP_exp, y), total));
}

/* With h = (x - mean) rstd and dh = dy gamma:
 *   dx = rstd (dh - mean(dh) - h mean(dh h)), dgamma = sum of rows dy h, dbeta = sum of rows dy.
 * The statistics are results like any other: dx gets dmean / D and -drstd rstd^2 h / D. */
void grad_layer_norm(Grad *c) {
    Builder *b = &c->b;
    Val x = c->n->in[0], gamma = c->n->in[1];
    Val mean = node_out(c->n, 1), rstd = node_out(c->n, 2);
    Val dy = c->dout[0], dmean = c->dout[1], drstd = c->dout[2], dx = {0};
    Val h = scale_rows(c, sub(c, x, rows_spread(b, mean, x)), rstd);
    double extent = (double)type_elems(b->g->mod->types, val_type(b->g, gamma));
    if (dy.id != 0) {
        Val dh = mul(c, dy, build_broadcast_suffix(b, gamma, val_type(b->g, dy)));
        Val centred = sub(c, dh, rows_spread(b, rows_mean(b, dh), dh));
        Val along = scale_rows(c, h, rows_mean(b, mul(c, dh, h)));
        if (c->need[0]) dx = scale_rows(c, sub(c, centred, along), rstd);
        if (c->need[1]) c->din[1] = rows_total(b, mul(c, dy, h));
        if (c->need[2]) c->din[2] = rows_total(b, dy);
    }
    if (dmean.id != 0) {
        Val each = build2(b, OP_div, dmean, build_scalar_like(b, extent, dmean));
        dx = add_maybe(c, dx, rows_spread(b, each, x));
    }
    if (drstd.id != 0) {
        Val square = mul(c, rstd, rstd);
        Val each = mul(c, mul(c, drstd, build_scalar_like(b, -1.0 / extent, drstd)), square);
        dx = add_maybe(c, dx, scale_rows(c, h, each));
    }
    if (c->need[0]) c->din[0] = dx;
}

/* With h = x rstd and dh = dy gamma: dx = rstd (dh - h mean(dh h)), dgamma = sum of rows dy h. */
void grad_rms_norm(Grad *c) {
    Builder *b = &c->b;
    Val x = c->n->in[0], gamma = c->n->in[1], rstd = node_out(c->n, 1);
    Val dy = c->dout[0], drstd = c->dout[1], dx = {0};
    Val h = scale_rows(c, x, rstd);
    double extent = (double)type_elems(b->g->mod->types, val_type(b->g, gamma));
    if (dy.id != 0) {
        Val dh = mul(c, dy, build_broadcast_suffix(b, gamma, val_type(b->g, dy)));
        Val along = scale_rows(c, h, rows_mean(b, mul(c, dh, h)));
        if (c->need[0]) dx = scale_rows(c, sub(c, dh, along), rstd);
        if (c->need[1]) c->din[1] = rows_total(b, mul(c, dy, h));
    }
    if (drstd.id != 0) {
        Val square = mul(c, rstd, rstd);
        Val each = mul(c, mul(c, drstd, build_scalar_like(b, -1.0 / extent, drstd)), square);
        dx = add_maybe(c, dx, scale_rows(c, h, each));
    }
    if (c->need[0]) c->din[0] = dx;
}

/* dlogits = (softmax - onehot) dsum on counted rows, exactly 0 on others, whatever they hold, and
 * exactly 0 behind the classes. */
void grad_cross_entropy(Grad *c) {
    Builder *b = &c->b;
    Val logits = c->n->in[0], target = c->n->in[1], dsum = c->dout[0];
    if (dsum.id == 0) return; /* the count alone does not depend on the logits */
    Type type = val_type(b->g, logits);
    RowsExp r = rows_exp(b, rows_only(b, logits, node_int(c->n, ATTR_classes, INT64_MAX)));
    Val p = rows_divide(b, r.e, r.sum);
    Val hot = build_cast(b, rows_onehot(b, target, logits), val_info(b->g, logits)->dtype);
    Val counted = rows_counted(b, target, node_int(c->n, ATTR_ignore, 0));
    dsum = build_cast(b, dsum, val_info(b->g, logits)->dtype);
    Val spread = build_broadcast(b, dsum, type, NULL);
    Val d = mul(c, sub(c, p, hot), spread);
    Val zero = build_const(b, 0.0, type);
    c->din[0] = build3(b, OP_select, rows_spread(b, counted, logits), d, zero);
}

/* dx: the pairs of dy turned back. */
void grad_rope(Grad *c) {
    Val in[3] = {c->dout[0], c->n->in[1], c->n->in[2]};
    Attr attr[] = {ATTR_INT(axis, node_int(c->n, ATTR_axis, 0)),
                   ATTR_INT(adjacent, node_int(c->n, ATTR_adjacent, 0)),
                   ATTR_INT(back, !node_int(c->n, ATTR_back, 0))};
    if (c->need[0]) c->din[0] = graph_add(&c->b, OP_rope, 3, in, 3, attr, (Type){0})->out;
    for (int i = 1; i < 3; i++)
        if (c->need[i]) c->din[i] = rope_table_grad(&c->b, c->n, c->dout[0], i - 1);
}
