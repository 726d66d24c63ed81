/* gradients_product.c - derivatives of products, convolutions, pooling and tables.
 *
 * Each is again one such op on the stored operands: no transposed copy is ever made.
 */
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
