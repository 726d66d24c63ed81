/* gradients_elementwise.c - derivatives of elementwise ops, one a line.
 *
 * dy is the gradient of the result y; x the operand, or a, b, c. A rule prefers y to x where it
 * can, so that less is saved. PyTorch's conventions: relu'(0) = 0, abs'(0) = 0, equal operands of
 * max and min share the gradient.
 */
#include "passes/grad.h"

#include <math.h>

static Val neg(Grad *g, Val x) { return build1(&g->b, OP_neg, x); }
static Val add(Grad *g, Val x, Val y) { return build2(&g->b, OP_add, x, y); }
static Val sub(Grad *g, Val x, Val y) { return build2(&g->b, OP_sub, x, y); }
static Val mul(Grad *g, Val x, Val y) { return build2(&g->b, OP_mul, x, y); }
static Val quot(Grad *g, Val x, Val y) { return build2(&g->b, OP_div, x, y); }
static Val sel(Grad *g, Val c, Val x, Val y) { return build3(&g->b, OP_select, c, x, y); }
static Val is(Grad *g, Op op, Val x, Val y) { return build2(&g->b, op, x, y); }
static Val fn(Grad *g, Op op, Val x) { return build1(&g->b, op, x); }

/* A constant of the gradient's type, and one times or minus something. */
static Val num(Grad *g, double value) { return build_scalar_like(&g->b, value, g->n->out); }
static Val times(Grad *g, double value, Val x) { return mul(g, x, num(g, value)); }
static Val one_minus(Grad *g, Val x) { return sub(g, num(g, 1.0), x); }

/* C leaves open which argument of a call is evaluated first; a rule makes at most one node in the
 * arguments of a call, so that every compiler of ours orders the nodes alike. */

#define UNARY(name, dx)                                                                            \
    void grad_##name(Grad *g) {                                                                    \
        Val dy = g->dout[0], x = g->n->in[0], y = g->n->out;                                       \
        (void)x, (void)y;                                                                          \
        g->din[0] = dx;                                                                            \
    }

#define BINARY(name, da, db)                                                                       \
    void grad_##name(Grad *g) {                                                                    \
        Val dy = g->dout[0], a = g->n->in[0], b = g->n->in[1], y = g->n->out;                      \
        (void)a, (void)b, (void)y;                                                                 \
        if (g->need[0]) g->din[0] = da;                                                            \
        if (g->need[1]) g->din[1] = db;                                                            \
    }

static Val d_silu(Grad *g, Val dy, Val x) {
    Val s = fn(g, OP_sigmoid, x);
    Val slope = mul(g, x, one_minus(g, s));
    return mul(g, dy, mul(g, s, add(g, num(g, 1.0), slope)));
}

/* cdf + x * pdf of the normal distribution. */
static Val d_gelu(Grad *g, Val dy, Val x) {
    Val e = fn(g, OP_erf, times(g, sqrt(0.5), x));
    Val cdf = times(g, 0.5, add(g, num(g, 1.0), e));
    Val pdf = times(g, 0.5 * M_2_SQRTPI * sqrt(0.5), fn(g, OP_exp, times(g, -0.5, mul(g, x, x))));
    return mul(g, dy, add(g, cdf, mul(g, x, pdf)));
}

/* y = x s, s = sigmoid(u), u = k (x + c x^3): s (1 + x (1 - s) du). */
static Val d_gelu_tanh(Grad *g, Val dy, Val x) {
    const double k = 1.5957691216057307, c = 0.044715;
    Val xx = mul(g, x, x);
    Val s = fn(g, OP_sigmoid, mul(g, x, add(g, num(g, k), times(g, k * c, xx))));
    Val du = add(g, num(g, k), times(g, 3.0 * k * c, xx));
    Val slope = mul(g, mul(g, x, one_minus(g, s)), du);
    return mul(g, dy, mul(g, s, add(g, num(g, 1.0), slope)));
}

/* b * a^(b - 1), and 0 for b = 0 whatever a is. */
static Val d_pow_base(Grad *g, Val dy, Val a, Val b) {
    Val d = mul(g, dy, mul(g, b, is(g, OP_pow, a, sub(g, b, num(g, 1.0)))));
    Val zero = num(g, 0.0);
    return sel(g, is(g, OP_eq, b, zero), zero, d);
}

/* y * log(a), and 0 for a = 0 with b >= 0, where y does not change with b. */
static Val d_pow_exponent(Grad *g, Val dy, Val a, Val b, Val y) {
    Val zero = num(g, 0.0);
    Val no_base = is(g, OP_eq, a, zero), flat = is(g, OP_ge, b, zero);
    flat = is(g, OP_and, no_base, flat);
    return sel(g, flat, zero, mul(g, dy, mul(g, y, fn(g, OP_log, a))));
}

/* The winner takes dy, equals take half of it; a NaN takes it too and passes it on. */
static Val d_winner(Grad *g, Val dy, Op loses, Val mine, Val other) {
    Val half = times(g, 0.5, dy), zero = num(g, 0.0);
    Val shared = sel(g, is(g, OP_eq, mine, other), half, dy);
    return sel(g, is(g, loses, mine, other), zero, shared);
}

static Val d_rsqrt(Grad *g, Val dy, Val y) {
    Val cube = mul(g, y, mul(g, y, y));
    return mul(g, times(g, -0.5, dy), cube);
}

static Val d_relu(Grad *g, Val dy, Val y) {
    Val zero = num(g, 0.0);
    return sel(g, is(g, OP_le, y, zero), zero, dy);
}

UNARY(neg, neg(g, dy))
UNARY(abs, mul(g, dy, fn(g, OP_sign, x)))
UNARY(exp, mul(g, dy, y))
UNARY(exp2, times(g, M_LN2, mul(g, dy, y)))
UNARY(log, quot(g, dy, x))
UNARY(sqrt, quot(g, times(g, 0.5, dy), y))
UNARY(rsqrt, d_rsqrt(g, dy, y))
UNARY(sin, mul(g, dy, fn(g, OP_cos, x)))
UNARY(cos, neg(g, mul(g, dy, fn(g, OP_sin, x))))
UNARY(tanh, mul(g, dy, one_minus(g, mul(g, y, y))))
UNARY(erf, mul(g, dy, times(g, M_2_SQRTPI, fn(g, OP_exp, neg(g, mul(g, x, x))))))
UNARY(sigmoid, mul(g, dy, mul(g, y, one_minus(g, y))))
UNARY(relu, d_relu(g, dy, y))
UNARY(silu, d_silu(g, dy, x))
UNARY(gelu, d_gelu(g, dy, x))
UNARY(gelu_tanh, d_gelu_tanh(g, dy, x))
UNARY(cast, build_cast(&g->b, dy, val_info(g->b.g, x)->dtype))
UNARY(copy, dy)

BINARY(add, dy, dy)
BINARY(sub, dy, neg(g, dy))
BINARY(mul, mul(g, dy, b), mul(g, dy, a))
BINARY(div, quot(g, dy, b), neg(g, mul(g, quot(g, dy, b), y)))
BINARY(pow, d_pow_base(g, dy, a, b), d_pow_exponent(g, dy, a, b, y))
BINARY(max, d_winner(g, dy, OP_lt, a, b), d_winner(g, dy, OP_lt, b, a))
BINARY(min, d_winner(g, dy, OP_gt, a, b), d_winner(g, dy, OP_gt, b, a))

void grad_select(Grad *g) {
    Val dy = g->dout[0], c = g->n->in[0];
    if (g->need[1]) g->din[1] = sel(g, c, dy, num(g, 0.0));
    if (g->need[2]) g->din[2] = sel(g, c, num(g, 0.0), dy);
}
