/* functions_product.c - matrix products, attention, rotary positions. */
#include "frontend/functions.h"

#include <math.h>

static void report_inner(Lower *l, const Value *x, const Value *y, Span span) {
    Dim a = x->dims[x->ndim - 1], b = y->dims[y->ndim - 2];
    DiagRef e =
        lower_error(l, E012, span, "inner dimension mismatch: %s @ %s",
                    dims_text(l->arena, x->dims, x->ndim), dims_text(l->arena, y->dims, y->ndim));
    diag_label(l->diag, e, "%s against %s", dim_with_value(l->arena, a),
               dim_with_value(l->arena, b));
    diag_note(l->diag, e, "the left operand is from %s, the right one from %s",
              diag_place(l->diag, x->span, span), diag_place(l->diag, y->span, span));
    if (y->ndim >= 2 && dim_equal(a, y->dims[y->ndim - 1]))
        diag_hint(l->diag, e, "transpose(y) swaps its last two axes");
}

/* Give both operands the same leading (batch) dimensions. */
static bool join_batch(Lower *l, Value *x, Value *y, Dim *dims, int *batch, Span span) {
    int bx = x->ndim - 2, by = y->ndim - 2;
    *batch = bx > by ? bx : by;
    for (int i = 0; i < *batch; i++) {
        int xi = i - (*batch - bx), yi = i - (*batch - by);
        bool fits = true;
        if (xi < 0)
            dims[i] = y->dims[yi];
        else if (yi < 0 || dim_equal(x->dims[xi], y->dims[yi]))
            dims[i] = x->dims[xi];
        else if (dim_is_one(x->dims[xi]))
            dims[i] = y->dims[yi];
        else if (dim_is_one(y->dims[yi]))
            dims[i] = x->dims[xi];
        else
            fits = false;
        if (fits) continue;
        lower_error(l, E015, span,
                    "matmul of %s and %s: the leading dimensions need an explicit 1 or rearrange",
                    dims_text(l->arena, x->dims, x->ndim), dims_text(l->arena, y->dims, y->ndim));
        return false;
    }
    Value *both[2] = {x, y};
    for (int k = 0; k < 2; k++) {
        Value *v = both[k];
        Dim full[NDIM_MAX];
        for (int i = 0; i < *batch; i++) full[i] = dims[i];
        full[*batch] = v->dims[v->ndim - 2];
        full[*batch + 1] = v->dims[v->ndim - 1];
        if (!shape_fits(l, v->dtype, *batch + 2, full, span)) return false;
        *v = tensor_new(l, v->dtype, *batch + 2, full,
                        broadcast_to(l, v, v->dtype, *batch + 2, full), v->span);
    }
    return true;
}

Value fn_matmul(Lower *l, const Call *c) {
    Value x = c->arg[0], y = c->arg[1];
    if (!want_ndim(l, &x, 2, NDIM_MAX, "matmul", c->span) ||
        !want_ndim(l, &y, 2, NDIM_MAX, "matmul", c->span) ||
        !want_float(l, &x, "matmul", c->span) || !want_float(l, &y, "matmul", c->span))
        return (Value){0};
    if (!dim_equal(x.dims[x.ndim - 1], y.dims[y.ndim - 2])) {
        report_inner(l, &x, &y, c->span);
        return (Value){0};
    }
    Dim dims[NDIM_MAX];
    int batch = 0;
    /* A plain matrix on the right: the rows of x are one long list. */
    if (y.ndim == 2 && x.ndim > 2) {
        Dim flat[2] = {dim_number(l->arena, 1), x.dims[x.ndim - 1]};
        for (int i = 0; i + 1 < x.ndim; i++) flat[0].value *= x.dims[i].value;
        for (int i = 0; i < x.ndim; i++) dims[i] = x.dims[i];
        dims[x.ndim - 1] = y.dims[1];
        if (!shape_fits(l, x.dtype, x.ndim, dims, c->span)) return (Value){0};
        Val v = build_matmul(&l->b, reshape_to(l, x.val, 2, flat), y.val, false, false);
        caching_note_mix(l, x.dims[x.ndim - 1], "a product", v, c->span);
        return tensor_new(l, x.dtype, x.ndim, dims, reshape_to(l, v, x.ndim, dims), c->span);
    }
    if (!join_batch(l, &x, &y, dims, &batch, c->span)) return (Value){0};
    dims[batch] = x.dims[batch];
    dims[batch + 1] = y.dims[batch + 1];
    if (!shape_fits(l, x.dtype, batch + 2, dims, c->span)) return (Value){0};
    Val v = build_matmul(&l->b, x.val, y.val, false, false);
    caching_note_mix(l, x.dims[batch + 1], "a product", v, c->span);
    return tensor_new(l, x.dtype, batch + 2, dims, v, c->span);
}

/* --- attention --- */

/* q [B, H, T, K], k [B, G, S, K], v [B, G, S, Kv], G divides H. */
static bool check_attention(Lower *l, const Call *c) {
    const Value *q = &c->arg[0], *k = &c->arg[1], *v = &c->arg[2];
    for (int i = 0; i < 3; i++)
        if (!want_ndim(l, &c->arg[i], 4, 4, "attention", c->span) ||
            !want_float(l, &c->arg[i], "attention", c->span))
            return false;
    bool fits = dim_equal(q->dims[0], k->dims[0]) && dim_equal(k->dims[0], v->dims[0]) &&
                dim_equal(k->dims[1], v->dims[1]) && dim_equal(k->dims[2], v->dims[2]) &&
                dim_equal(q->dims[3], k->dims[3]);
    if (!fits) {
        DiagRef e =
            lower_error(l, E012, c->span, "dimension mismatch: attention of q %s, k %s, v %s",
                        dims_text(l->arena, q->dims, 4), dims_text(l->arena, k->dims, 4),
                        dims_text(l->arena, v->dims, 4));
        diag_hint(l->diag, e, "q is [B, H, T, K], k and v are [B, G, S, K]");
        return false;
    }
    if (q->dims[1].value % k->dims[1].value != 0) {
        lower_error(l, E012, c->span, "attention: %s query heads are no multiple of %s key heads",
                    dim_with_value(l->arena, q->dims[1]), dim_with_value(l->arena, k->dims[1]));
        return false;
    }
    if (c->arg[3].truth && !dim_equal(q->dims[2], k->dims[2])) {
        lower_error(l, E012, c->span,
                    "causal attention needs as many queries as keys, got %s and %s",
                    dim_with_value(l->arena, q->dims[2]), dim_with_value(l->arena, k->dims[2]));
        return false;
    }
    return true;
}

/* Operands of different float types meet in f32. */
static Val attention_operand(Lower *l, const Call *c, int i) {
    bool equal = c->arg[0].dtype == c->arg[1].dtype && c->arg[1].dtype == c->arg[2].dtype;
    if (equal || c->arg[i].dtype == DT_f32) return c->arg[i].val;
    return build_cast(&l->b, c->arg[i].val, DT_f32);
}

Value fn_attention(Lower *l, const Call *c) {
    if (!check_attention(l, c)) return (Value){0};
    const Value *q = &c->arg[0], *k = &c->arg[1], *v = &c->arg[2];
    double scale =
        c->arg[4].kind == VALUE_float ? c->arg[4].number : 1.0 / sqrt((double)q->dims[3].value);
    if (!caching_store(l, c->arg, c->arg[3].truth, c->span)) return (Value){0};
    if (l->caching.on && l->caching.decode) {
        Dim dims[4] = {q->dims[0], q->dims[1], q->dims[2], v->dims[3]};
        return tensor_new(l, q->dtype, 4, dims, caching_attend(l, c->arg, scale, c->span), c->span);
    }
    Dim square[4] = {q->dims[0], q->dims[1], q->dims[2], k->dims[2]};
    if (!shape_fits(l, q->dtype, 4, square, c->span)) return (Value){0};
    Val in[3];
    for (int i = 0; i < 3; i++) in[i] = attention_operand(l, c, i);
    Attr attr[] = {ATTR_INT(causal, c->arg[3].truth), ATTR_FLOAT(scale, scale)};
    Val out = graph_add(&l->b, OP_attention, 3, in, 2, attr, (Type){0})->out;
    Dim dims[4] = {q->dims[0], q->dims[1], q->dims[2], v->dims[3]};
    return tensor_new(l, val_info(l->b.g, out)->dtype, 4, dims, out, c->span);
}

/* --- rope --- */

enum { ROPE_x, ROPE_theta, ROPE_style, ROPE_scaling, ROPE_original, ROPE_low, ROPE_high };

static Val number(Lower *l, double value, Type type) { return build_const(&l->b, value, type); }

/* LLaMA 3.1's frequencies: those that turn fewer than `low` times in the original context are
 * divided by `scaling`, those that turn more than `high` times are kept, between them it is a
 * blend. Source: Hugging Face transformers, _compute_llama3_parameters. */
static Val scale_frequencies(Lower *l, const Call *c, Val frequency, Type table) {
    double scaling = c->arg[ROPE_scaling].number, low = c->arg[ROPE_low].number,
           high = c->arg[ROPE_high].number, original = (double)c->arg[ROPE_original].dim.value;
    Builder *b = &l->b;
    Val turns = build2(b, OP_mul, frequency, number(l, original / (2 * M_PI), table));
    Val share = build2(b, OP_sub, turns, number(l, low, table));
    share = build2(b, OP_mul, share, number(l, 1 / (high - low), table));
    share = build2(b, OP_max, share, number(l, 0, table));
    share = build2(b, OP_min, share, number(l, 1, table));
    Val slow = build2(b, OP_div, frequency, number(l, scaling, table));
    Val rest = build2(b, OP_sub, number(l, 1, table), share);
    return build2(b, OP_add, build2(b, OP_mul, rest, slow), build2(b, OP_mul, share, frequency));
}

/* cos and sin of position * theta^(-2i/K): f32 [T, K/2] each. */
static void rope_tables(Lower *l, const Call *c, int64_t length, int64_t half, Val *cosine,
                        Val *sine) {
    double theta = c->arg[ROPE_theta].number, scaling = c->arg[ROPE_scaling].number;
    bool blended = c->arg[ROPE_original].kind != VALUE_none;
    int64_t dims[2] = {length, half};
    Type index = type_intern(l->mod->types, DT_i32, 2, dims),
         table = type_intern(l->mod->types, DT_f32, 2, dims);
    Attr row = ATTR_INT(axis, 0), column = ATTR_INT(axis, 1);
    Val place = caching_positions(l, graph_add(&l->b, OP_iota, 0, NULL, 1, &row, index)->out);
    Val t = build_cast(&l->b, place, DT_f32);
    Val i = build_cast(&l->b, graph_add(&l->b, OP_iota, 0, NULL, 1, &column, index)->out, DT_f32);
    Val power = build2(&l->b, OP_mul, i, build_const(&l->b, -log(theta) / (double)half, table));
    Val frequency = build1(&l->b, OP_exp, power);
    if (blended) frequency = scale_frequencies(l, c, frequency, table);
    Val angle = build2(&l->b, OP_mul, t, frequency);
    if (scaling != 1.0 && !blended)
        angle = build2(&l->b, OP_mul, angle, build_const(&l->b, 1.0 / scaling, table));
    *cosine = build1(&l->b, OP_cos, angle);
    *sine = build1(&l->b, OP_sin, angle);
}

/* Turns the pairs of x [.., T, K]. A transpose that leaves the last axis alone comes after: then
 * the turned tensor lies in memory as the one before it, and nothing has to be moved for it. */
static Val rope_turn(Lower *l, Val x, Val cosine, Val sine, bool interleaved) {
    const Node *n = val_node(l->b.g, x);
    int last = val_info(l->b.g, x)->ndim - 1;
    const Attr *perm = n != NULL && n->op == OP_transpose ? node_attr(n, ATTR_perm) : NULL;
    bool below = perm != NULL && perm->v[last] == last;
    Val in[3] = {below ? n->in[0] : x, cosine, sine};
    Attr attr[] = {ATTR_INT(axis, below ? perm->v[last - 1] : last - 1),
                   ATTR_INT(adjacent, interleaved), ATTR_INT(back, 0)};
    Val y = graph_add(&l->b, OP_rope, 3, in, 3, attr, (Type){0})->out;
    return below ? build_transpose(&l->b, y, perm->v) : y;
}

Value fn_rope(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    bool interleaved = c->arg[ROPE_style].s[0] == 'i';
    if (!want_ndim(l, x, 2, NDIM_MAX - 1, "rope", c->span) || !want_float(l, x, "rope", c->span))
        return (Value){0};
    Dim size = x->dims[x->ndim - 1];
    if (size.value % 2 != 0) {
        lower_error(l, E019, c->span, "rope needs an even last dimension, got %s",
                    dim_with_value(l->arena, size));
        return (Value){0};
    }
    Val cosine, sine;
    if (c->arg[ROPE_low].number >= c->arg[ROPE_high].number) {
        lower_error(l, E019, c->span, "rope: low must be below high, got %g and %g",
                    c->arg[ROPE_low].number, c->arg[ROPE_high].number);
        return (Value){0};
    }
    rope_tables(l, c, x->dims[x->ndim - 2].value, size.value / 2, &cosine, &sine);
    if (x->dtype != DT_f32) {
        cosine = build_cast(&l->b, cosine, x->dtype);
        sine = build_cast(&l->b, sine, x->dtype);
    }
    Val y = rope_turn(l, x->val, cosine, sine, interleaved);
    return tensor_like(x, x->dtype, y, c->span);
}
