/* dim.c - arithmetic and spelling of symbolic dimensions; see dim.h. */
#include "frontend/dim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

Dim dim_number(Arena *a, int64_t value) {
    return dim_bound(value, arena_printf(a, "%" PRId64, value));
}

Dim dim_bound(int64_t value, const char *text) {
    return (Dim){.value = value, .text = text, .factor = 1};
}

Dim dim_free(int64_t value, const char *name) {
    return (Dim){.value = value, .text = name, .free = name, .factor = 1};
}

bool dim_equal(Dim a, Dim b) {
    if ((a.free == NULL) != (b.free == NULL)) return false;
    if (a.free == NULL) return a.value == b.value;
    return a.factor == b.factor && strcmp(a.free, b.free) == 0;
}

bool dim_is_one(Dim d) { return d.free == NULL && d.value == 1 && strcmp(d.text, "1") == 0; }

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "T*B" and "B" to "B*B*T": the factors in order, so that equal products are spelled alike. */
static const char *join_free(Arena *a, const char *x, const char *y) {
    if (x == NULL || y == NULL) return x != NULL ? x : y;
    VEC(const char *) parts = {0};
    char *copy = arena_printf(a, "%s*%s", x, y);
    int depth = 0; /* sums are kept in parentheses and are not split */
    char *begin = copy;
    for (char *c = copy;; c++) {
        depth += (*c == '(') - (*c == ')');
        if ((*c != '*' || depth > 0) && *c != '\0') continue;
        bool last = *c == '\0';
        *c = '\0';
        vec_push(a, &parts, begin);
        begin = c + 1;
        if (last) break;
    }
    qsort(parts.data, parts.n, sizeof(char *), compare_names);
    const char *joined = parts.data[0];
    for (uint32_t i = 1; i < parts.n; i++) joined = arena_printf(a, "%s*%s", joined, parts.data[i]);
    return joined;
}

/* How strongly a text's loosest operator binds: 1 for + and -, 2 for * // %, 3 for none. */
static int text_strength(const char *text) {
    int depth = 0, strength = 3;
    for (const char *c = text; *c != '\0'; c++) {
        depth += (*c == '(') - (*c == ')');
        if (depth > 0 || c == text) continue;
        if (*c == '+' || *c == '-') return 1;
        if (*c == '*' || *c == '/' || *c == '%') strength = 2;
    }
    return strength;
}

static const char *join_text(Arena *a, char op, const char *x, const char *y) {
    int level = op == '+' || op == '-' ? 1 : op == '^' ? 3 : 2;
    bool wrap_x = text_strength(x) < level + (op == '^');
    bool wrap_y = text_strength(y) < level + (op != '+' && op != '*');
    const char *sign = op == '/'   ? "//"
                       : op == '*' ? "*"
                       : op == '+' ? "+"
                       : op == '-' ? "-"
                       : op == '%' ? "%"
                                   : "^";
    return arena_printf(a, "%s%s%s%s%s%s%s", wrap_x ? "(" : "", x, wrap_x ? ")" : "", sign,
                        wrap_y ? "(" : "", y, wrap_y ? ")" : "");
}

static bool power(int64_t x, int64_t y, int64_t *result) {
    int64_t value = 1;
    if (y < 0) return false;
    for (int64_t i = 0; i < y; i++) {
        if (__builtin_mul_overflow(value, x, &value)) return false;
        if (value == 0 || value == 1) break;
        if (value == -1 && x == -1) {
            *result = y % 2 == 0 ? 1 : -1;
            return true;
        }
    }
    *result = value;
    return true;
}

static bool apply_values(char op, int64_t x, int64_t y, int64_t *result) {
    switch (op) {
    case '+': return !__builtin_add_overflow(x, y, result);
    case '-': return !__builtin_sub_overflow(x, y, result);
    case '*': return !__builtin_mul_overflow(x, y, result);
    case '^': return power(x, y, result);
    default: break;
    }
    if (y == 0 || (y == -1 && x == INT64_MIN)) return false;
    int64_t quotient = x / y, rest = x % y;
    if (rest != 0 && (rest < 0) != (y < 0)) { /* floor, as in Python */
        quotient--;
        rest += y;
    }
    *result = op == '/' ? quotient : rest;
    return true;
}

bool dim_apply(Arena *a, char op, Dim x, Dim y, Dim *result) {
    Dim r = {.factor = 1};
    if (!apply_values(op, x.value, y.value, &r.value)) return false;
    r.text = join_text(a, op, x.text, y.text);
    if (x.free != NULL || y.free != NULL) {
        bool exact_split = op == '/' && y.free == NULL && y.value != 0 && x.factor % y.value == 0;
        if (op == '*') {
            r.free = join_free(a, x.free, y.free);
            int64_t fx = x.free != NULL ? x.factor : x.value;
            int64_t fy = y.free != NULL ? y.factor : y.value;
            if (__builtin_mul_overflow(fx, fy, &r.factor)) return false;
        } else if (exact_split) {
            r.free = x.free;
            r.factor = x.factor / y.value;
        } else if (op == '+' || op == '-' || op == '/' || op == '%' || op == '^') {
            if (y.free == NULL && y.value == 0 && (op == '+' || op == '-'))
                r = x;
            else
                r.free = arena_printf(a, "(%s)", r.text);
        }
    }
    *result = r;
    return true;
}

const char *dims_text(Arena *a, const Dim *dims, int n) {
    const char *text = "[";
    for (int i = 0; i < n; i++)
        text = arena_printf(a, "%s%s%s", text, i > 0 ? ", " : "", dims[i].text);
    return arena_printf(a, "%s]", text);
}

const char *dim_with_value(Arena *a, Dim d) {
    const char *number = arena_printf(a, "%" PRId64, d.value);
    return strcmp(number, d.text) == 0 ? number : arena_printf(a, "%s = %s", d.text, number);
}
