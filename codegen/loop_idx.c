/* loop_idx.c - index expressions in a normal form: constant + sum of scale * term.
 *
 * Equal indices get equal ids. Quotients and remainders are simplified by ranges and common
 * factors, and x / b * b + x % b becomes x again, so that a reshape that only merges or splits
 * neighbouring axes leaves plain affine indices behind. Quotients and remainders are taken of
 * indices that are never negative.
 */
#include "codegen/loop.h"

#include <string.h>

enum { TERMS_MAX = 64 };

/* A sum under construction. */
typedef struct Sum {
    int64_t constant;
    int n;
    LoopTerm term[TERMS_MAX];
} Sum;

const LoopIdxInfo *loop_idx_info(const LoopKernel *k, LoopIdx a) {
    LOOP_ASSERT(a.id > 0 && a.id < k->idx.n);
    return &k->idx.data[a.id];
}

static int term_compare(const LoopTerm *a, const LoopTerm *b) {
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    return a->by < b->by ? -1 : a->by > b->by;
}

static void term_range(const LoopKernel *k, const LoopTerm *t, int64_t *low, int64_t *high) {
    switch (t->kind) {
    case LOOP_TERM_axis:
        *low = 0;
        *high = k->axis.data[t->id].extent - 1;
        if (*high < 0) *high = 0;
        break;
    case LOOP_TERM_div:
        *low = k->idx.data[t->id].low / t->by;
        *high = k->idx.data[t->id].high / t->by;
        break;
    case LOOP_TERM_mod:
        *low = 0;
        *high = t->by - 1;
        break;
    case LOOP_TERM_val:
        *low = k->val.data[t->id].low;
        *high = k->val.data[t->id].high;
        break;
    }
}

static void sum_add_term(Sum *s, LoopTerm t) {
    int at = 0;
    while (at < s->n && term_compare(&s->term[at], &t) < 0) at++;
    if (at < s->n && term_compare(&s->term[at], &t) == 0) {
        s->term[at].scale += t.scale;
        if (s->term[at].scale == 0) {
            memmove(&s->term[at], &s->term[at + 1], (size_t)(s->n - at - 1) * sizeof(LoopTerm));
            s->n--;
        }
        return;
    }
    if (t.scale == 0) return;
    LOOP_ASSERT(s->n < TERMS_MAX);
    memmove(&s->term[at + 1], &s->term[at], (size_t)(s->n - at) * sizeof(LoopTerm));
    s->term[at] = t;
    s->n++;
}

static void sum_add(Sum *s, const LoopIdxInfo *a, int64_t scale) {
    s->constant += a->constant * scale;
    for (int i = 0; i < a->nterm; i++) {
        LoopTerm t = a->term[i];
        t.scale *= scale;
        sum_add_term(s, t);
    }
}

/* Whether `s` holds every term of scale * d. */
static bool sum_holds(const Sum *s, const LoopIdxInfo *d, int64_t scale) {
    for (int i = 0; i < d->nterm; i++) {
        bool found = false;
        for (int j = 0; j < s->n && !found; j++)
            found = term_compare(&s->term[j], &d->term[i]) == 0 &&
                    s->term[j].scale == d->term[i].scale * scale;
        if (!found) return false;
    }
    return d->nterm > 0;
}

/* scale * (y % by) + scale * by * (y / by) -> scale * y, as long as there is one. */
static void sum_rejoin(LoopKernel *k, Sum *s) {
    for (int i = 0; i < s->n; i++) {
        LoopTerm t = s->term[i];
        if (t.kind != LOOP_TERM_mod) continue;
        LoopIdx quotient = loop_idx_div(k, (LoopIdx){t.id}, t.by);
        LoopIdxInfo d = *loop_idx_info(k, quotient);
        if (!sum_holds(s, &d, t.scale * t.by)) continue;
        sum_add(s, &d, -t.scale * t.by);
        LoopTerm gone = t;
        gone.scale = -t.scale;
        sum_add_term(s, gone);
        LoopIdxInfo y = *loop_idx_info(k, (LoopIdx){t.id});
        sum_add(s, &y, t.scale);
        i = -1;
    }
}

static bool same(const LoopIdxInfo *a, const Sum *s) {
    if (a->constant != s->constant || a->nterm != s->n) return false;
    for (int i = 0; i < s->n; i++)
        if (term_compare(&a->term[i], &s->term[i]) != 0 || a->term[i].scale != s->term[i].scale)
            return false;
    return true;
}

static LoopIdx intern(LoopKernel *k, const Sum *s) {
    for (uint32_t i = 1; i < k->idx.n; i++)
        if (same(&k->idx.data[i], s)) return (LoopIdx){i};
    LoopIdxInfo info = {
        .constant = s->constant, .nterm = s->n, .low = s->constant, .high = s->constant};
    info.term = ARENA_ARRAY(k->arena, LoopTerm, s->n);
    for (int i = 0; i < s->n; i++) {
        int64_t low = 0, high = 0, scale = s->term[i].scale;
        info.term[i] = s->term[i];
        term_range(k, &s->term[i], &low, &high);
        info.low += scale > 0 ? low * scale : high * scale;
        info.high += scale > 0 ? high * scale : low * scale;
    }
    LoopIdx made = {k->idx.n};
    vec_push(k->arena, &k->idx, info);
    return made;
}

static LoopIdx finish(LoopKernel *k, Sum *s) {
    sum_rejoin(k, s);
    return intern(k, s);
}

LoopIdx loop_idx(LoopKernel *k, int64_t constant) {
    Sum s = {.constant = constant};
    return intern(k, &s);
}

static LoopIdx one_term(LoopKernel *k, LoopTermKind kind, uint32_t id, int64_t by) {
    Sum s = {.n = 1};
    s.term[0] = (LoopTerm){.kind = kind, .id = id, .by = by, .scale = 1};
    return intern(k, &s);
}

LoopIdx loop_idx_axis(LoopKernel *k, LoopAxis axis) {
    return k->axis.data[axis.id].extent == 1 ? loop_idx(k, 0)
                                             : one_term(k, LOOP_TERM_axis, axis.id, 0);
}

LoopIdx loop_idx_val(LoopKernel *k, LoopVal v, int64_t low, int64_t high) {
    LOOP_ASSERT(loop_val_info(k, v)->dtype == DT_i32);
    k->val.data[v.id].low = low;
    k->val.data[v.id].high = high;
    return one_term(k, LOOP_TERM_val, v.id, 0);
}

LoopIdx loop_idx_add(LoopKernel *k, LoopIdx a, LoopIdx b) {
    Sum s = {0};
    sum_add(&s, loop_idx_info(k, a), 1);
    sum_add(&s, loop_idx_info(k, b), 1);
    return finish(k, &s);
}

LoopIdx loop_idx_plus(LoopKernel *k, LoopIdx a, int64_t constant) {
    Sum s = {.constant = constant};
    sum_add(&s, loop_idx_info(k, a), 1);
    return intern(k, &s);
}

LoopIdx loop_idx_scale(LoopKernel *k, LoopIdx a, int64_t by) {
    Sum s = {0};
    sum_add(&s, loop_idx_info(k, a), by);
    return finish(k, &s);
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Splits a into by * whole + rest, with the terms that `by` divides in `whole`. */
static void divide(const LoopIdxInfo *a, int64_t by, Sum *whole, Sum *rest) {
    whole->constant = floor_div(a->constant, by);
    rest->constant = a->constant - whole->constant * by;
    for (int i = 0; i < a->nterm; i++) {
        LoopTerm t = a->term[i];
        int64_t q = floor_div(t.scale, by);
        LoopTerm left = t;
        left.scale = t.scale - q * by;
        t.scale = q;
        sum_add_term(whole, t);
        sum_add_term(rest, left);
    }
}

/* Takes the common factor of the terms of `rest` that also divides `by`: rest = factor * y + low.
 */
static LoopIdx take_factor(LoopKernel *k, const Sum *rest, int64_t by, int64_t *factor,
                           int64_t *low) {
    int64_t g = by;
    for (int i = 0; i < rest->n; i++) g = gcd(g, rest->term[i].scale);
    Sum y = {.constant = rest->constant / g, .n = rest->n};
    for (int i = 0; i < rest->n; i++) {
        y.term[i] = rest->term[i];
        y.term[i].scale /= g;
    }
    *factor = g;
    *low = rest->constant % g;
    return finish(k, &y);
}

/* Whether a single term of kind `kind` and scale 1 is all there is. */
static bool is_single(const LoopIdxInfo *a, LoopTermKind kind) {
    return a->constant == 0 && a->nterm == 1 && a->term[0].kind == kind && a->term[0].scale == 1;
}

LoopIdx loop_idx_div(LoopKernel *k, LoopIdx a, int64_t by) {
    LOOP_ASSERT(by >= 1 && loop_idx_info(k, a)->low >= 0);
    if (by == 1) return a;
    Sum whole = {0}, rest = {0};
    divide(loop_idx_info(k, a), by, &whole, &rest);
    LoopIdx r = finish(k, &rest);
    if (loop_idx_info(k, r)->high >= by) {
        int64_t factor, low;
        LoopIdx y = take_factor(k, &rest, by, &factor, &low);
        LoopIdxInfo info = *loop_idx_info(k, y);
        LoopTerm t = {.kind = LOOP_TERM_div, .id = y.id, .by = by / factor, .scale = 1};
        if (is_single(&info, LOOP_TERM_div)) { // (z / c) / by
            t.id = info.term[0].id;
            t.by *= info.term[0].by;
        }
        if (is_single(&info, LOOP_TERM_mod) && info.term[0].by % t.by == 0) { // (z % c) / by
            LoopIdx inner = loop_idx_div(k, (LoopIdx){info.term[0].id}, t.by);
            sum_add(&whole, loop_idx_info(k, loop_idx_mod(k, inner, info.term[0].by / t.by)), 1);
        } else if (t.by == 1) {
            sum_add(&whole, &info, 1);
        } else {
            sum_add_term(&whole, t);
        }
    }
    return finish(k, &whole);
}

LoopIdx loop_idx_mod(LoopKernel *k, LoopIdx a, int64_t by) {
    LOOP_ASSERT(by >= 1 && loop_idx_info(k, a)->low >= 0);
    Sum whole = {0}, rest = {0};
    divide(loop_idx_info(k, a), by, &whole, &rest);
    LoopIdx r = finish(k, &rest);
    if (loop_idx_info(k, r)->high < by) return r;
    int64_t factor, low;
    LoopIdx y = take_factor(k, &rest, by, &factor, &low);
    LoopIdxInfo info = *loop_idx_info(k, y);
    LoopTerm t = {.kind = LOOP_TERM_mod, .id = y.id, .by = by / factor, .scale = factor};
    if (is_single(&info, LOOP_TERM_mod) && info.term[0].by % t.by == 0) // (z % (b * c)) % b
        t.id = info.term[0].id;
    Sum result = {.constant = low};
    if (t.by > 1) sum_add_term(&result, t);
    return finish(k, &result);
}

bool loop_idx_is(const LoopKernel *k, LoopIdx a, int64_t constant) {
    const LoopIdxInfo *info = loop_idx_info(k, a);
    return info->nterm == 0 && info->constant == constant;
}

int loop_idx_depth(const LoopKernel *k, LoopIdx a) {
    const LoopIdxInfo *info = loop_idx_info(k, a);
    int depth = 0;
    for (int i = 0; i < info->nterm; i++) {
        const LoopTerm *t = &info->term[i];
        int d = t->kind == LOOP_TERM_axis  ? k->axis.data[t->id].depth
                : t->kind == LOOP_TERM_val ? k->val.data[t->id].depth
                                           : loop_idx_depth(k, (LoopIdx){t->id});
        depth = d > depth ? d : depth;
    }
    return depth;
}
