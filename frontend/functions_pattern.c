/* functions_pattern.c - rearrange([B, T, (H K)] -> [B, H, T, K]) and einsum("ij,jk->ik"). */
#include "frontend/functions.h"

#include <ctype.h>
#include <string.h>

/* --- rearrange --- */

/* The axes of one side, groups taken apart. */
typedef struct Side {
    const char *name[NDIM_MAX]; /* NULL: a literal 1 */
    Dim size[NDIM_MAX];
    bool known[NDIM_MAX];
    Span span[NDIM_MAX];
    int group[NDIM_MAX]; /* which element of the list it stands in */
    int n;               /* axes */
    int elements;        /* of the list */
} Side;

static bool side_add(Lower *l, Side *s, const Ast *e, int element) {
    bool one = e->kind == AST_number && e->is_integer && e->integer == 1;
    if (e->kind != AST_name && !one) {
        lower_error(l, E016, e->span, "rearrange: an axis is a name, 1, or a group (H K)");
        return false;
    }
    if (s->n == NDIM_MAX) {
        lower_error(l, E026, e->span, "rearrange has more than %d axes", NDIM_MAX);
        return false;
    }
    int i = s->n++;
    s->name[i] = one ? NULL : e->text;
    s->span[i] = e->span;
    s->group[i] = element;
    s->known[i] = one;
    if (one) s->size[i] = dim_number(l->arena, 1);
    for (int k = 0; k < i && !one; k++) {
        if (s->name[k] == NULL || strcmp(s->name[k], e->text) != 0) continue;
        lower_error(l, E016, e->span, "rearrange: name %s stands twice on one side", e->text);
        return false;
    }
    return true;
}

static bool read_side(Lower *l, const Ast *list, Side *s) {
    *s = (Side){.elements = (int)list->n};
    if (list->n > NDIM_MAX) {
        lower_error(l, E026, list->span, "a tensor of rank %u is over the limit of %d", list->n,
                    NDIM_MAX);
        return false;
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const Ast *e = list->child[i];
        if (e->kind != AST_group && !side_add(l, s, e, (int)i)) return false;
        for (uint32_t k = 0; e->kind == AST_group && k < e->n; k++)
            if (!side_add(l, s, e->child[k], (int)i)) return false;
    }
    return true;
}

/* Names that are dims or integers of the model have that size; others take it from the tensor. */
static void know_sizes(Lower *l, const Ast *list, Side *s) {
    int axis = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const Ast *e = list->child[i];
        uint32_t parts = e->kind == AST_group ? e->n : 1;
        for (uint32_t k = 0; k < parts; k++, axis++) {
            const Ast *name = e->kind == AST_group ? e->child[k] : e;
            if (name->kind != AST_name || !expr_is_static(l, name)) continue;
            Value v = expr_eval(l, name);
            if (v.kind != VALUE_int) continue;
            s->size[axis] = v.dim;
            s->known[axis] = true;
        }
    }
}

static const char *group_text(Lower *l, const Side *s, int element) {
    const char *text = "";
    for (int i = 0; i < s->n; i++)
        if (s->group[i] == element)
            text = arena_printf(l->arena, "%s%s%s", text, *text != '\0' ? " " : "",
                                s->name[i] != NULL ? s->name[i] : "1");
    return text;
}

/* Match one element of the left side with an axis of x: sizes of its names. */
static bool match_element(Lower *l, Side *s, int element, Dim axis, const Value *x) {
    Dim product = dim_number(l->arena, 1);
    int unknown = -1, first = -1, count = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->group[i] != element) continue;
        if (first < 0) first = i;
        count++;
        if (s->known[i]) {
            bool fits = count == 1 ? (product = s->size[i], true)
                                   : dim_apply(l->arena, '*', product, s->size[i], &product);
            if (!fits) return false;
        } else if (unknown < 0)
            unknown = i;
        else {
            lower_error(l, E016, s->span[i], "rearrange: (%s) has two names of unknown size",
                        group_text(l, s, element));
            return false;
        }
    }
    Dim rest = axis;
    if (unknown >= 0) {
        bool divides = product.value > 0 && axis.value % product.value == 0;
        if (divides && count > 1) divides = dim_apply(l->arena, '/', axis, product, &rest);
        if (divides && rest.free == NULL) rest = dim_bound(rest.value, s->name[unknown]);
        if (divides) {
            s->size[unknown] = rest;
            s->known[unknown] = true;
            return true;
        }
    } else if (dim_equal(product, axis))
        return true;
    const char *shape = dims_text(l->arena, x->dims, x->ndim);
    if (count > 1) {
        const char *sizes = "";
        for (int i = 0; i < s->n; i++)
            if (s->group[i] == element && s->known[i])
                sizes =
                    arena_printf(l->arena, "%s, %s", sizes, dim_with_value(l->arena, s->size[i]));
        lower_error(l, E016, s->span[first], "rearrange: (%s) does not divide: %s%s",
                    group_text(l, s, element), dim_with_value(l->arena, axis), sizes);
    } else if (product.value == axis.value) {
        lower_error(l, E014, s->span[first],
                    "rearrange of %s: '%s' and '%s' are different dims although both are %lld",
                    shape, product.text, axis.text, (long long)axis.value);
    } else {
        lower_error(l, E012, s->span[first], "rearrange of %s: %s here, the tensor has %s", shape,
                    dim_with_value(l->arena, product), dim_with_value(l->arena, axis));
    }
    return false;
}

static int side_find(const Side *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (s->name[i] != NULL && strcmp(s->name[i], name) == 0) return i;
    return -1;
}

/* Every name stands on both sides; literal 1s come and go. */
static bool same_names(Lower *l, const Side *from, const Side *to, Span from_span, Span to_span) {
    for (int i = 0; i < from->n; i++) {
        if (from->name[i] == NULL || side_find(to, from->name[i]) >= 0) continue;
        lower_error(l, E016, to_span, "rearrange: name %s missing on the right", from->name[i]);
        return false;
    }
    for (int i = 0; i < to->n; i++) {
        if (to->name[i] == NULL || side_find(from, to->name[i]) >= 0) continue;
        lower_error(l, E016, from_span, "rearrange: name %s missing on the left", to->name[i]);
        return false;
    }
    return true;
}

/* Take apart, permute, put together: reshape, transpose, reshape. */
static Value apply_pattern(Lower *l, const Value *x, const Side *from, const Side *to, Span span) {
    Dim apart[NDIM_MAX], joined[NDIM_MAX];
    int64_t perm[NDIM_MAX];
    int position[NDIM_MAX], n = 0;
    for (int i = 0; i < from->n; i++) { /* literal 1s vanish in the first reshape */
        position[i] = n;
        if (from->name[i] != NULL) apart[n++] = from->size[i];
    }
    int k = 0;
    bool moved = false;
    for (int i = 0; i < to->n; i++) {
        if (to->name[i] == NULL) continue;
        perm[k] = position[side_find(from, to->name[i])];
        moved = moved || perm[k] != k;
        k++;
    }
    Val v = reshape_to(l, x->val, n, apart);
    if (moved) v = build_transpose(&l->b, v, perm);
    for (int e = 0; e < to->elements; e++) {
        bool first = true;
        for (int i = 0; i < to->n; i++) {
            if (to->group[i] != e) continue;
            Dim size = to->name[i] == NULL ? to->size[i] : from->size[side_find(from, to->name[i])];
            if (first)
                joined[e] = size;
            else if (!dim_apply(l->arena, '*', joined[e], size, &joined[e]))
                return (Value){0};
            first = false;
        }
    }
    return tensor_new(l, x->dtype, to->elements, joined, reshape_to(l, v, to->elements, joined),
                      span);
}

Value fn_rearrange(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    const Ast *arrow = c->arg[1].ast;
    Side from, to;
    if (!read_side(l, arrow->child[0], &from) || !read_side(l, arrow->child[1], &to))
        return (Value){0};
    if (!same_names(l, &from, &to, arrow->child[0]->span, arrow->child[1]->span)) return (Value){0};
    if (from.elements != x->ndim) {
        lower_error(l, E016, arrow->child[0]->span,
                    "rearrange: the pattern has %d axes, the tensor %s has %d", from.elements,
                    dims_text(l->arena, x->dims, x->ndim), x->ndim);
        return (Value){0};
    }
    know_sizes(l, arrow->child[0], &from);
    for (int i = 0; i < from.elements; i++)
        if (!match_element(l, &from, i, x->dims[i], x)) return (Value){0};
    l->b.span = c->span;
    return apply_pattern(l, x, &from, &to, c->span);
}

/* --- einsum --- */

enum { LETTERS = 26 };

typedef struct Einsum {
    const char *in[2]; /* letters of each operand, not terminated */
    int n[2];
    const char *out;
    int nout;
    int operands;
} Einsum;

static bool parse_einsum(const char *spec, Einsum *e) {
    const char *arrow = strstr(spec, "->");
    *e = (Einsum){.operands = 1};
    if (arrow == NULL) return false;
    const char *c = spec;
    e->in[0] = c;
    for (; c < arrow; c++) {
        if (*c == ',' && e->operands == 1) {
            e->in[e->operands++] = c + 1;
        } else if (islower((unsigned char)*c)) {
            e->n[e->operands - 1]++;
        } else {
            return false;
        }
    }
    e->out = arrow + 2;
    for (c = e->out; *c != '\0'; c++, e->nout++)
        if (!islower((unsigned char)*c)) return false;
    return e->nout <= NDIM_MAX;
}

/* Where a letter stands in a list, or -1. */
static int letter_at(const char *letters, int n, char letter) {
    for (int i = 0; i < n; i++)
        if (letters[i] == letter) return i;
    return -1;
}

/* Sum an operand over letters that stand nowhere else. */
static Value sum_lonely(Lower *l, const Einsum *e, int k, const Value *x, char *letters, int *n,
                        Span span) {
    int64_t axes[NDIM_MAX];
    int removed = 0;
    *n = 0;
    for (int i = 0; i < e->n[k]; i++) {
        char letter = e->in[k][i];
        bool elsewhere = letter_at(e->out, e->nout, letter) >= 0 ||
                         (e->operands == 2 && letter_at(e->in[1 - k], e->n[1 - k], letter) >= 0);
        if (elsewhere)
            letters[(*n)++] = letter;
        else
            axes[removed++] = i;
    }
    return removed == 0 ? *x : reduce_axes(l, x, OP_reduce_sum, axes, removed, false, span);
}

/* Transpose x with `letters` to the order of `order`. */
static Value order_axes(Lower *l, const Value *x, const char *letters, const char *order, int n,
                        Span span) {
    int64_t perm[NDIM_MAX];
    Dim dims[NDIM_MAX];
    bool moved = false;
    for (int i = 0; i < n; i++) {
        perm[i] = letter_at(letters, n, order[i]);
        dims[i] = x->dims[perm[i]];
        moved = moved || perm[i] != i;
    }
    return tensor_new(l, x->dtype, n, dims, moved ? build_transpose(&l->b, x->val, perm) : x->val,
                      span);
}

static bool check_einsum(Lower *l, const Call *c, Einsum *e) {
    int given = c->arg[2].kind == VALUE_none ? 1 : 2;
    Dim size[LETTERS];
    bool known[LETTERS] = {false};
    if (!parse_einsum(c->arg[0].s, e) || e->operands != given) {
        lower_error(
            l, E019, c->span, "einsum needs a pattern of %d operand%s such as %s, got \"%s\"",
            given, given == 1 ? "" : "s", given == 1 ? "\"ij->ji\"" : "\"ij,jk->ik\"", c->arg[0].s);
        return false;
    }
    for (int k = 0; k < given; k++) {
        const Value *x = &c->arg[1 + k];
        if (!want_ndim(l, x, e->n[k], e->n[k], "einsum", c->span) ||
            !want_float(l, x, "einsum", c->span))
            return false;
        for (int i = 0; i < e->n[k]; i++) {
            int letter = e->in[k][i] - 'a';
            bool twice = letter_at(e->in[k], i, e->in[k][i]) >= 0;
            if (!twice && (!known[letter] || dim_equal(size[letter], x->dims[i]))) {
                size[letter] = x->dims[i];
                known[letter] = true;
                continue;
            }
            if (twice)
                lower_error(l, E019, c->span, "einsum: '%c' stands twice in one operand",
                            e->in[k][i]);
            else
                lower_error(l, E012, c->span, "dimension mismatch: einsum '%c' is %s and %s",
                            e->in[k][i], dim_with_value(l->arena, size[letter]),
                            dim_with_value(l->arena, x->dims[i]));
            return false;
        }
    }
    for (int i = 0; i < e->nout; i++) {
        if (known[e->out[i] - 'a'] && letter_at(e->out, i, e->out[i]) < 0) continue;
        lower_error(l, E019, c->span, "einsum: '%c' of the result %s", e->out[i],
                    known[e->out[i] - 'a'] ? "stands twice" : "stands in no operand");
        return false;
    }
    return true;
}

/* Letters of `from` by class: in both others, only in the result, only in the other operand. */
static int pick(const char *from, int n, const char *a, int na, bool in_a, const char *b, int nb,
                bool in_b, char *out) {
    int count = 0;
    for (int i = 0; i < n; i++)
        if ((letter_at(a, na, from[i]) >= 0) == in_a && (letter_at(b, nb, from[i]) >= 0) == in_b)
            out[count++] = from[i];
    return count;
}

static int64_t product_at(const Value *x, int from, int to) {
    int64_t product = 1;
    for (int i = from; i < to; i++) product *= x->dims[i].value;
    return product;
}

/* Two operands: batch, rows, inner | batch, inner, columns; one matrix product. */
static Value einsum_product(Lower *l, const Einsum *e, Value x, Value y, char letters[2][NDIM_MAX],
                            const int n[2], Span span) {
    char order_x[3 * NDIM_MAX], order_y[3 * NDIM_MAX], result[3 * NDIM_MAX];
    const char *out = e->out;
    int batch = pick(letters[0], n[0], letters[1], n[1], true, out, e->nout, true, order_x);
    memcpy(order_y, order_x, (size_t)batch);
    memcpy(result, order_x, (size_t)batch);
    int rows = pick(letters[0], n[0], letters[1], n[1], false, out, e->nout, true, order_x + batch);
    int inner =
        pick(letters[0], n[0], letters[1], n[1], true, out, e->nout, false, order_x + batch + rows);
    memcpy(order_y + batch, order_x + batch + rows, (size_t)inner);
    int columns = pick(letters[1], n[1], letters[0], n[0], false, out, e->nout, true,
                       order_y + batch + inner);
    memcpy(result + batch, order_x + batch, (size_t)rows);
    memcpy(result + batch + rows, order_y + batch + inner, (size_t)columns);
    x = order_axes(l, &x, letters[0], order_x, n[0], span);
    y = order_axes(l, &y, letters[1], order_y, n[1], span);
    int64_t b = product_at(&x, 0, batch), r = product_at(&x, batch, batch + rows),
            k = product_at(&x, batch + rows, x.ndim);
    int64_t col = product_at(&y, batch + inner, y.ndim);
    int64_t xs[3] = {b, r, k}, ys[3] = {b, k, col};
    Val v = build_matmul(&l->b, build_reshape(&l->b, x.val, 3, xs),
                         build_reshape(&l->b, y.val, 3, ys), false, false);
    Dim dims[NDIM_MAX];
    int total = batch + rows + columns;
    for (int i = 0; i < batch + rows; i++) dims[i] = x.dims[i];
    for (int i = 0; i < columns; i++) dims[batch + rows + i] = y.dims[batch + inner + i];
    if (!shape_fits(l, x.dtype, total, dims, span)) return (Value){0};
    Value joined = tensor_new(l, x.dtype, total, dims, reshape_to(l, v, total, dims), span);
    return order_axes(l, &joined, result, out, total, span);
}

Value fn_einsum(Lower *l, const Call *c) {
    Einsum e;
    char letters[2][NDIM_MAX];
    int n[2] = {0, 0};
    if (!check_einsum(l, c, &e)) return (Value){0};
    Value x = sum_lonely(l, &e, 0, &c->arg[1], letters[0], &n[0], c->span);
    if (e.operands == 1) return order_axes(l, &x, letters[0], e.out, n[0], c->span);
    Value y = sum_lonely(l, &e, 1, &c->arg[2], letters[1], &n[1], c->span);
    Value v = einsum_product(l, &e, x, y, letters, n, c->span);
    for (int i = 0; i < n[0] && v.kind != VALUE_none; i++)
        if (letter_at(e.out, e.nout, letters[0][i]) < 0)
            caching_note_mix(l, x.dims[i], "einsum", v.val, c->span);
    return v;
}
