/* randgraph_ops.c - random elementwise ops, reductions and movement; see randgraph_gen.h. */
#include "tests/ir/randgraph_gen.h"

#include "ir/module.h"

static const TypeInfo *info_of(const RandGen *r, Val v) { return val_info(r->b.g, v); }

/* ---- elementwise -------------------------------------------------------------------------- */

typedef enum Domain { DOMAIN_any, DOMAIN_tanh, DOMAIN_positive, DOMAIN_offset } Domain;

typedef struct Unary {
    Op op;
    Domain domain; /* what the operand is brought into first */
    double bound;  /* 0: the operand's */
} Unary;

static bool add_unary(RandGen *r, const Unary *u) {
    Val x = rand_float(r);
    double bound = u->bound > 0 ? u->bound : rand_bound(r, x) + 0.5;
    if (u->domain == DOMAIN_tanh) x = build1(&r->b, OP_tanh, x);
    if (u->domain == DOMAIN_positive) x = rand_positive(r, x);
    if (u->domain == DOMAIN_offset) x = rand_offset(r, x);
    rand_keep(r, build1(&r->b, u->op, x), bound);
    return true;
}

bool rand_op_unary(RandGen *r) {
    static const Unary unary[] = {
        {OP_neg, DOMAIN_any, 0},          {OP_exp, DOMAIN_tanh, 2.72},
        {OP_exp2, DOMAIN_tanh, 2},        {OP_log, DOMAIN_positive, 0.7},
        {OP_sqrt, DOMAIN_positive, 1.23}, {OP_rsqrt, DOMAIN_positive, 1.5},
        {OP_sin, DOMAIN_any, 1},          {OP_cos, DOMAIN_any, 1},
        {OP_tanh, DOMAIN_any, 1},         {OP_erf, DOMAIN_any, 1},
        {OP_sigmoid, DOMAIN_any, 1},      {OP_silu, DOMAIN_any, 0},
        {OP_gelu, DOMAIN_any, 0},         {OP_gelu_tanh, DOMAIN_any, 0},
        {OP_copy, DOMAIN_any, 0},
    };
    return add_unary(r, &unary[rand_below(r, sizeof unary / sizeof unary[0])]);
}

bool rand_op_kink(RandGen *r) {
    static const Unary kink[] = {{OP_relu, DOMAIN_offset, 0},  {OP_relu, DOMAIN_offset, 0},
                                 {OP_abs, DOMAIN_offset, 0},   {OP_sign, DOMAIN_offset, 1},
                                 {OP_floor, DOMAIN_offset, 0}, {OP_stop_gradient, DOMAIN_any, 0}};
    return add_unary(r, &kink[rand_below(r, sizeof kink / sizeof kink[0])]);
}

bool rand_op_binary(RandGen *r) {
    static const Op ops[] = {OP_add, OP_add, OP_sub, OP_mul, OP_mul,
                             OP_div, OP_pow, OP_max, OP_min};
    Op op = ops[rand_below(r, r->o->smooth ? 7 : 9)];
    Val x = rand_float(r), y = rand_partner(r, x);
    double a = rand_bound(r, x), b = rand_bound(r, y);
    if (op == OP_div || op == OP_pow) {
        Val p = rand_positive(r, y);
        if (op == OP_div)
            rand_keep(r, build2(&r->b, op, x, p), a * 2);
        else
            rand_keep(r, build2(&r->b, op, p, build1(&r->b, OP_tanh, x)), 2);
        return true;
    }
    if (op == OP_max || op == OP_min) x = rand_untie(r, x);
    if (rand_chance(r, 50)) {
        Val swap = x;
        x = y;
        y = swap;
    }
    rand_keep(r, build2(&r->b, op, x, y), op == OP_mul ? a * b : a + b + 0.2);
    return true;
}

bool rand_op_select(RandGen *r) {
    static const Op compare[] = {OP_lt, OP_le, OP_gt, OP_ge, OP_eq, OP_ne};
    Val x = rand_float(r), y = rand_partner(r, x), z = rand_partner(r, x);
    Val c = build2(&r->b, compare[rand_below(r, 6)], rand_untie(r, x), y);
    switch (rand_below(r, 5)) {
    case 0: c = build1(&r->b, OP_not, c); break;
    case 1: c = build2(&r->b, OP_and, c, build1(&r->b, OP_is_finite, z)); break;
    case 2: c = build2(&r->b, OP_or, c, build2(&r->b, OP_gt, rand_offset(r, z), x)); break;
    case 3: rand_keep(r, build_cast(&r->b, c, DT_f32), 1); return true;
    default: break;
    }
    double a = rand_bound(r, y), b = rand_bound(r, z);
    rand_keep(r, build3(&r->b, OP_select, c, y, z), a > b ? a : b);
    return true;
}

/* Integers stay in [0, 3). */
bool rand_op_int(RandGen *r) {
    if (r->ints.n == 0) return false;
    Val i = r->ints.data[rand_below(r, r->ints.n)];
    switch (rand_below(r, 3)) {
    case 0: rand_keep(r, build_cast(&r->b, i, DT_f32), 2); return true;
    case 1: {
        Val two = build_scalar_like(&r->b, 2, i);
        rand_keep(r, build2(&r->b, OP_sub, two, i), 2);
        return true;
    }
    default: {
        Val one = build_scalar_like(&r->b, 1, i);
        rand_keep(r, build2(&r->b, rand_chance(r, 50) ? OP_max : OP_min, i, one), 2);
        return true;
    }
    }
}

bool rand_op_source(RandGen *r) {
    const TypeInfo *info = info_of(r, rand_float(r));
    Type t = rand_type(r, DT_f32, info->ndim, info->dim);
    if (r->o->random && rand_chance(r, 50)) {
        Attr stream = ATTR_INT(stream, r->b.g->mod->nstream++);
        rand_keep(r, graph_add(&r->b, OP_random_uniform, 0, NULL, 1, &stream, t)->out, 1);
        return true;
    }
    if (info->ndim == 0) return false;
    Type ti = rand_type(r, DT_i32, info->ndim, info->dim);
    Attr axis = ATTR_INT(axis, rand_below(r, (uint32_t)info->ndim));
    Val i = graph_add(&r->b, OP_iota, 0, NULL, 1, &axis, ti)->out;
    double bound = (double)info->dim[axis.i];
    Val x = rand_scale(r, build_cast(&r->b, i, DT_f32), 0.31);
    rand_keep(r, build2(&r->b, OP_add, x, rand_float_of(r, t)), bound * 0.31 + 4);
    return true;
}

/* ---- reductions --------------------------------------------------------------------------- */

bool rand_op_reduce(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    int64_t axes[NDIM_MAX];
    int n = 0;
    double count = 1;
    for (int i = 0; i < info->ndim; i++)
        if (rand_chance(r, 50)) {
            axes[n++] = i;
            count *= (double)info->dim[i];
        }
    if (n == 0) return false;
    double bound = rand_bound(r, x);
    if (r->o->smooth || rand_chance(r, 60)) {
        rand_keep(r, build_reduce(&r->b, OP_reduce_sum, x, n, axes), bound * count);
    } else {
        Op op = rand_chance(r, 50) ? OP_reduce_max : OP_reduce_min;
        rand_keep(r, build_reduce(&r->b, op, rand_untie(r, x), n, axes), bound + 0.2);
    }
    return true;
}

bool rand_op_argmax(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0) return false;
    Val y = rand_untie(r, x);
    int64_t axis = rand_below(r, (uint32_t)info->ndim);
    Val i = graph_add(&r->b, OP_argmax, 1, &y, 1, &ATTR_INT(axis, axis), (Type){0})->out;
    if (info->dim[axis] <= 3 && rand_chance(r, 50))
        rand_keep(r, i, 2);
    else
        rand_keep(r, build_cast(&r->b, i, DT_f32), (double)info->dim[axis]);
    return true;
}

/* ---- movement ----------------------------------------------------------------------------- */

/* A repeat may stack any value: one axis is left for that. */
enum { RAND_NDIM_MAX = NDIM_MAX - 1 };

bool rand_op_reshape(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    int64_t dim[NDIM_MAX];
    int n = 0;
    for (int i = 0; i < info->ndim; i++) {
        bool merge = n > 0 && rand_chance(r, 40);
        if (merge)
            dim[n - 1] *= info->dim[i];
        else
            dim[n++] = info->dim[i];
    }
    for (int i = 0; i < n && n < 4; i++)
        if (dim[i] % 2 == 0 && rand_chance(r, 40) && n < RAND_NDIM_MAX) {
            for (int k = n++; k > i; k--) dim[k] = dim[k - 1];
            dim[i] = 2;
            dim[i + 1] /= 2;
            i++;
        }
    if (n < 4 && rand_chance(r, 20)) dim[n++] = 1;
    Val y = build_reshape(&r->b, x, n, dim);
    if (y.id == x.id) return false;
    rand_keep(r, y, rand_bound(r, x));
    return true;
}

bool rand_op_transpose(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim < 2) return false;
    int64_t perm[NDIM_MAX];
    for (int i = 0; i < info->ndim; i++) perm[i] = i;
    for (int i = info->ndim - 1; i > 0; i--) {
        uint32_t k = rand_below(r, (uint32_t)i + 1);
        int64_t swap = perm[i];
        perm[i] = perm[k];
        perm[k] = swap;
    }
    rand_keep(r, build_transpose(&r->b, x, perm), rand_bound(r, x));
    return true;
}

bool rand_op_slice(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0) return false;
    int64_t begin[NDIM_MAX], end[NDIM_MAX], step[NDIM_MAX];
    for (int i = 0; i < info->ndim; i++) {
        uint32_t n = (uint32_t)info->dim[i];
        bool whole = rand_chance(r, 50);
        begin[i] = whole ? 0 : rand_below(r, n);
        end[i] = whole ? n : begin[i] + 1 + rand_below(r, n - (uint32_t)begin[i]);
        step[i] = !whole && rand_chance(r, 30) ? 2 : 1;
    }
    rand_keep(r, build_slice(&r->b, x, begin, end, step), rand_bound(r, x));
    return true;
}

bool rand_op_concat(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0) return false;
    Val in[3] = {x, rand_partner(r, x), x};
    int n = 2 + (int)rand_below(r, 2);
    if (rand_chance(r, 50)) in[2] = rand_partner(r, x);
    double bound = 0;
    for (int i = 0; i < n; i++) bound = rand_bound(r, in[i]) > bound ? rand_bound(r, in[i]) : bound;
    Attr axis = ATTR_INT(axis, rand_below(r, (uint32_t)info->ndim));
    rand_keep(r, graph_add(&r->b, OP_concat, n, in, 1, &axis, (Type){0})->out, bound);
    return true;
}

bool rand_op_broadcast(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    int64_t dim[NDIM_MAX], axes[NDIM_MAX];
    int n = 0;
    for (int i = 0; i <= info->ndim; i++) {
        bool room = n + info->ndim - i < RAND_NDIM_MAX;
        if (n < 4 && rand_chance(r, 30) && room) dim[n++] = 1 + rand_below(r, 4);
        if (i == info->ndim) break;
        axes[i] = n;
        dim[n++] = info->dim[i] == 1 ? 1 + rand_below(r, 4) : info->dim[i];
    }
    Val y = build_broadcast(&r->b, x, rand_type(r, DT_f32, n, dim), axes);
    if (y.id == x.id) return false;
    rand_keep(r, y, rand_bound(r, x));
    return true;
}

bool rand_op_pad(RandGen *r) {
    Val x = rand_float(r);
    const TypeInfo *info = info_of(r, x);
    if (info->ndim == 0) return false;
    int64_t low[NDIM_MAX], high[NDIM_MAX];
    for (int i = 0; i < info->ndim; i++) {
        low[i] = rand_chance(r, 30) ? 1 + rand_below(r, 2) : 0;
        high[i] = rand_chance(r, 30) ? 1 + rand_below(r, 2) : 0;
    }
    Attr attr[] = {ATTR_INTS(low, info->ndim, low), ATTR_INTS(high, info->ndim, high),
                   ATTR_FLOAT(value, rand_chance(r, 50) ? 0 : 0.625)};
    rand_keep(r, graph_add(&r->b, OP_pad, 1, &x, 3, attr, (Type){0})->out, rand_bound(r, x) + 1);
    return true;
}
