/* gradients_product.c - derivatives of products, attention, convolutions, pooling and tables.
 *
 * Each is again one such op on the stored operands: no transposed copy is ever made.
 */
#include "passes/attention.h"
#include "passes/grad.h"

/* The gradient of the second operand, the weight, comes first: once it is made nothing but the
 * gradient of the first may still read the activation, which then often takes its place.
 */

/* y = A B with A [M, K], B [K, N]; stored transposed where ta, tb say so.
 *   dA = dY B^T, dB = A^T dY, and the transposes of these where the operand is stored transposed.
 */
void grad_matmul(Grad *c) {
    Val dy = c->dout[0], a = c->n->in[0], b = c->n->in[1];
    bool ta = node_int(c->n, ATTR_ta, 0) != 0, tb = node_int(c->n, ATTR_tb, 0) != 0;
    if (c->need[1])
        c->din[1] =
            tb ? build_matmul(&c->b, dy, a, true, ta) : build_matmul(&c->b, a, dy, !ta, false);
    if (c->need[0])
        c->din[0] =
            ta ? build_matmul(&c->b, b, dy, tb, true) : build_matmul(&c->b, dy, b, false, !tb);
}

/* A node `op` on (x, y) with the forward node's attributes; its result has the type of `like`. */
static Val same_attrs(Grad *c, Op op, int nin, Val x, Val y, Val like) {
    Type type = val_type(c->b.g, like);
    return graph_add(&c->b, op, nin, (Val[]){x, y}, c->n->nattr, c->n->attr, type)->out;
}

void grad_conv2d(Grad *c) {
    Val dy = c->dout[0], x = c->n->in[0], w = c->n->in[1];
    if (c->need[1]) c->din[1] = same_attrs(c, OP_conv2d_dw, 2, x, dy, w);
    if (c->need[0]) c->din[0] = same_attrs(c, OP_conv2d_dx, 2, dy, w, x);
}

/* Only the indices of the maxima are saved. */
void grad_max_pool2d(Grad *c) {
    Val index = node_out(c->n, 1);
    c->din[0] = same_attrs(c, OP_max_pool2d_dx, 2, index, c->dout[0], c->n->in[0]);
}

void grad_avg_pool2d(Grad *c) {
    c->din[0] = same_attrs(c, OP_avg_pool2d_dx, 1, c->dout[0], (Val){0}, c->n->in[0]);
}

void grad_gather(Grad *c) {
    c->din[0] = same_attrs(c, OP_gather_dw, 2, c->n->in[1], c->dout[0], c->n->in[0]);
}

/* The result in the layout that the model goes on with, which is kept for the backward pass anyway:
 * seen through the inverse of a transpose that reads it, if there is one. */
static Val kept_result(Grad *c) {
    Val out = c->n->out;
    for (int i = 0; i < c->b.g->nnode; i++) {
        const Node *n = c->b.g->node[i];
        if (n->op != OP_transpose || n->in[0].id != out.id) continue;
        const Attr *perm = node_attr(n, ATTR_perm);
        int64_t inverse[NDIM_MAX];
        for (int k = 0; k < perm->n; k++) inverse[perm->v[k]] = k;
        return build_transpose(&c->b, n->out, inverse);
    }
    return out;
}

void grad_attention(Grad *c) {
    Builder *b = &c->b;
    const Val *in = c->n->in;
    Val lse = node_out(c->n, 1), d[3] = {{0}}, more[2];
    if (c->dout[0].id != 0) {
        Val all[6] = {in[0], in[1], in[2], kept_result(c), lse, c->dout[0]};
        const Node *grad =
            graph_add(b, OP_attention_grad, 6, all, c->n->nattr, c->n->attr, (Type){0});
        for (int i = 0; i < 3; i++) d[i] = node_out(grad, i);
    }
    if (c->dout[1].id != 0) {
        attention_backward_lse(b, c->n, lse, c->dout[1], more);
        for (int i = 0; i < 2; i++)
            d[i] = d[i].id == 0 ? more[i] : build2(b, OP_add, d[i], more[i]);
    }
    for (int i = 0; i < 3; i++)
        if (c->need[i]) c->din[i] = d[i];
}
