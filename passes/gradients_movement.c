/* gradients_movement.c - derivatives of movement and reductions.
 *
 * Movement is linear, so its derivative is the movement back. Broadcast is explicit in the IR: the
 * one sum over broadcast axes of the whole compiler is grad_broadcast.
 */
#include "passes/grad.h"

static const TypeInfo *operand_info(const Grad *c, int i) { return val_info(c->b.g, c->n->in[i]); }

static Val reshape_like(Grad *c, Val x, Val like) {
    TypeInfo to = *val_info(c->b.g, like);
    return build_reshape(&c->b, x, to.ndim, to.dim);
}

static Val pad(Grad *c, Val x, const int64_t *low, const int64_t *high) {
    int n = val_info(c->b.g, x)->ndim;
    Attr attr[] = {ATTR_INTS(low, n, low), ATTR_INTS(high, n, high), ATTR_FLOAT(value, 0.0)};
    return graph_add(&c->b, OP_pad, 1, &x, 3, attr, (Type){0})->out;
}

void grad_reshape(Grad *c) { c->din[0] = reshape_like(c, c->dout[0], c->n->in[0]); }

void grad_transpose(Grad *c) {
    const Attr *perm = node_attr(c->n, ATTR_perm);
    int64_t inverse[NDIM_MAX];
    for (int i = 0; i < perm->n; i++) inverse[perm->v[i]] = i;
    c->din[0] = build_transpose(&c->b, c->dout[0], inverse);
}

/* Sum over the axes that broadcast made or stretched, then the operand's shape back. */
void grad_broadcast(Grad *c) {
    const Attr *to = node_attr(c->n, ATTR_axes);
    TypeInfo x = *operand_info(c, 0), y = *val_info(c->b.g, c->n->out);
    bool kept[NDIM_MAX] = {false};
    for (int i = 0; i < to->n; i++) kept[to->v[i]] = x.dim[i] == y.dim[to->v[i]];
    int64_t axes[NDIM_MAX];
    int n = 0;
    for (int i = 0; i < y.ndim; i++)
        if (!kept[i]) axes[n++] = i;
    Val sum = build_reduce(&c->b, OP_reduce_sum, c->dout[0], n, axes);
    c->din[0] = reshape_like(c, sum, c->n->in[0]);
}

/* [.., n, ..] -> [.., n * step, ..]: element i moves to i * step, zeros between. */
static Val spread_out(Grad *c, Val x, int axis, int64_t step) {
    TypeInfo type = *val_info(c->b.g, x);
    int64_t rows = 1, inner = 1;
    for (int i = 0; i <= axis; i++) rows *= type.dim[i];
    for (int i = axis + 1; i < type.ndim; i++) inner *= type.dim[i];
    const int64_t low[3] = {0, 0, 0}, high[3] = {0, step - 1, 0};
    x = pad(c, build_reshape(&c->b, x, 3, (int64_t[]){rows, 1, inner}), low, high);
    type.dim[axis] *= step;
    return build_reshape(&c->b, x, type.ndim, type.dim);
}

/* Zeros around what was cut out; between the elements too where it was cut in steps. */
void grad_slice(Grad *c) {
    const Attr *begin = node_attr(c->n, ATTR_begin), *step = node_attr(c->n, ATTR_step);
    TypeInfo x = *operand_info(c, 0);
    int64_t zero[NDIM_MAX] = {0}, one[NDIM_MAX], keep[NDIM_MAX], high[NDIM_MAX];
    Val dy = c->dout[0];
    bool cut = false;
    for (int i = 0; i < x.ndim; i++) {
        int64_t extent = val_info(c->b.g, dy)->dim[i];
        one[i] = 1;
        if (step->v[i] > 1 && extent > 1) dy = spread_out(c, dy, i, step->v[i]);
        extent = val_info(c->b.g, dy)->dim[i];
        int64_t room = x.dim[i] - begin->v[i];
        keep[i] = extent < room ? extent : room;
        cut = cut || keep[i] < extent;
        high[i] = room - keep[i];
    }
    if (cut) dy = build_slice(&c->b, dy, zero, keep, one);
    c->din[0] = pad(c, dy, begin->v, high);
}

void grad_pad(Grad *c) {
    const Attr *low = node_attr(c->n, ATTR_low);
    TypeInfo x = *operand_info(c, 0);
    int64_t end[NDIM_MAX], one[NDIM_MAX];
    for (int i = 0; i < x.ndim; i++) {
        end[i] = low->v[i] + x.dim[i];
        one[i] = 1;
    }
    c->din[0] = build_slice(&c->b, c->dout[0], low->v, end, one);
}

void grad_concat(Grad *c) {
    int64_t axis = node_int(c->n, ATTR_axis, 0), at = 0;
    for (int k = 0; k < c->n->nin; k++) {
        TypeInfo x = *operand_info(c, k);
        int64_t begin[NDIM_MAX] = {0}, one[NDIM_MAX];
        for (int i = 0; i < x.ndim; i++) one[i] = 1;
        begin[axis] = at;
        at += x.dim[axis];
        x.dim[axis] = at;
        if (c->need[k]) c->din[k] = build_slice(&c->b, c->dout[0], begin, x.dim, one);
    }
}

/* ---- reductions -------------------------------------------------------------------------- */

/* r, which lacks the axes that the node reduced, in the shape of the node's operand. */
static Val spread_reduced(Grad *c, Val r) {
    const Attr *reduced = node_attr(c->n, ATTR_axes);
    TypeInfo x = *operand_info(c, 0);
    int64_t axes[NDIM_MAX];
    int n = 0, next = 0;
    for (int i = 0; i < x.ndim; i++) {
        if (next < reduced->n && reduced->v[next] == i)
            next++;
        else
            axes[n++] = i;
    }
    Type to = type_intern(c->b.g->mod->types, val_info(c->b.g, r)->dtype, x.ndim, x.dim);
    return build_broadcast(&c->b, r, to, axes);
}

void grad_reduce_sum(Grad *c) { c->din[0] = spread_reduced(c, c->dout[0]); }

/* Equal extrema share the gradient; they are counted in f32. */
void grad_reduce_minmax(Grad *c) {
    Builder *b = &c->b;
    const Attr *axes = node_attr(c->n, ATTR_axes);
    Dtype dtype = operand_info(c, 0)->dtype;
    Val mask = build2(b, OP_eq, c->n->in[0], spread_reduced(c, c->n->out));
    Val share = build_cast(b, mask, DT_f32);
    Val count = build_reduce(b, OP_reduce_sum, share, axes->n, axes->v);
    Val each = build2(b, OP_div, build_cast(b, c->dout[0], DT_f32), count);
    Val dx = build2(b, OP_mul, share, spread_reduced(c, each));
    c->din[0] = build_cast(b, dx, dtype);
}
