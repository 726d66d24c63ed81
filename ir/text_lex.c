/* text_lex.c - tokens of the IR's text; see text_lex.h. */
#include "ir/text_lex.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_word_begin(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_word_part(char c) { return is_word_begin(c) || is_digit(c) || c == '.'; }

/* ---- mistakes ----------------------------------------------------------------------------- */

Span text_span(const TextReader *r) {
    return (Span){.file = r->file, .begin = r->begin, .end = r->end};
}

__attribute__((format(printf, 4, 0))) static void fail(TextReader *r, DiagCode code, Span span,
                                                       const char *fmt, va_list ap) {
    if (!r->failed) diag_error(r->m->diag, code, span, "%s", arena_vprintf(r->m->arena, fmt, ap));
    r->failed = true;
    r->kind = TOKEN_end;
    r->pos = r->begin = r->end = r->bytes;
}

void text_fail(TextReader *r, Span span, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail(r, E030, span, fmt, ap);
    va_end(ap);
}

void text_fail_limit(TextReader *r, Span span, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail(r, E026, span, fmt, ap);
    va_end(ap);
}

void text_fail_expected(TextReader *r, const char *what) {
    int n = r->end - r->begin > 40 ? 40 : (int)(r->end - r->begin);
    switch (r->kind) {
    case TOKEN_end: text_fail(r, text_span(r), "expected %s, the text ends", what); break;
    case TOKEN_string: text_fail(r, text_span(r), "expected %s, got a string", what); break;
    default:
        text_fail(r, text_span(r), "expected %s, got '%.*s'", what, n, r->text + r->begin);
        break;
    }
}

/* ---- tokens ------------------------------------------------------------------------------- */

static char peek(const TextReader *r, uint32_t at) { return at < r->bytes ? r->text[at] : '\0'; }

static void skip_blanks(TextReader *r) {
    for (;;) {
        char c = peek(r, r->pos);
        if (c == '#')
            while (r->pos < r->bytes && r->text[r->pos] != '\n') r->pos++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            r->pos++;
        else
            return;
    }
}

static void lex_number(TextReader *r) {
    r->kind = TOKEN_number;
    if (peek(r, r->pos) == '-') r->pos++;
    for (;;) {
        char c = peek(r, r->pos), before = peek(r, r->pos - 1);
        bool exponent_sign = (c == '-' || c == '+') && (before == 'e' || before == 'E');
        if (!is_word_part(c) && !exponent_sign) break;
        r->pos++;
    }
}

static void lex_string(TextReader *r) {
    r->kind = TOKEN_string;
    r->pos++;
    for (;;) {
        char c = peek(r, r->pos);
        if ((unsigned char)c < 0x20) {
            r->end = r->pos;
            text_fail(r, text_span(r), "a string has no closing quote on its line");
            return;
        }
        r->pos++;
        if (c == '"') return;
        if (c == '\\' && peek(r, r->pos) != '\0') r->pos++;
    }
}

void text_next(TextReader *r) {
    if (r->failed) return;
    r->end_before = r->end;
    skip_blanks(r);
    r->begin = r->end = r->pos;
    if (r->pos >= r->bytes) {
        r->kind = TOKEN_end;
        return;
    }
    char c = r->text[r->pos];
    if (is_word_begin(c)) {
        r->kind = TOKEN_word;
        while (is_word_part(peek(r, r->pos))) r->pos++;
    } else if (is_digit(c) || c == '-') {
        lex_number(r);
    } else if (c == '"') {
        lex_string(r);
    } else if (c == '%') {
        r->kind = TOKEN_value;
        r->pos++;
        while (is_digit(peek(r, r->pos))) r->pos++;
    } else if (c != '\0' && strchr("(){}[],:=!@+", c) != NULL) {
        r->kind = TOKEN_punct;
        r->pos++;
    } else {
        r->end = r->pos + 1;
        text_fail(r, text_span(r), "unexpected byte 0x%02x", (unsigned char)c);
        return;
    }
    r->end = r->pos;
    if (!r->failed && r->end - r->begin > TEXT_TOKEN_BYTES_MAX)
        text_fail_limit(r, text_span(r), "a token has %u bytes, the limit is %d", r->end - r->begin,
                        TEXT_TOKEN_BYTES_MAX);
}

bool text_is(const TextReader *r, const char *token) {
    if (r->kind != TOKEN_word && r->kind != TOKEN_punct) return false;
    size_t n = strlen(token);
    return r->end - r->begin == n && memcmp(r->text + r->begin, token, n) == 0;
}

bool text_accept(TextReader *r, const char *token) {
    if (!text_is(r, token)) return false;
    text_next(r);
    return true;
}

void text_expect(TextReader *r, const char *token) {
    if (text_accept(r, token)) return;
    char what[32];
    snprintf(what, sizeof what, "'%s'", token);
    text_fail_expected(r, what);
}

/* ---- atoms -------------------------------------------------------------------------------- */

/* The token as a C string; tokens are bounded. */
static const char *token_text(const TextReader *r, char out[TEXT_TOKEN_BYTES_MAX + 1]) {
    size_t n = r->end - r->begin;
    if (n > TEXT_TOKEN_BYTES_MAX) n = TEXT_TOKEN_BYTES_MAX;
    memcpy(out, r->text + r->begin, n);
    out[n] = '\0';
    return out;
}

int64_t text_read_int(TextReader *r, int64_t min, int64_t max) {
    char text[TEXT_TOKEN_BYTES_MAX + 1], *end = text;
    if (r->kind != TOKEN_number) {
        text_fail_expected(r, "an integer");
        return 0;
    }
    token_text(r, text);
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (*end != '\0') {
        text_fail_expected(r, "an integer");
        return 0;
    }
    if (errno != 0 || x < min || x > max) {
        text_fail(r, text_span(r), "the number is not within %lld and %lld", (long long)min,
                  (long long)max);
        return 0;
    }
    text_next(r);
    return x;
}

double text_read_float(TextReader *r) {
    char text[TEXT_TOKEN_BYTES_MAX + 1], *end = text;
    if (text_accept(r, "inf")) return (double)INFINITY;
    if (text_accept(r, "nan")) return (double)NAN;
    if (r->kind != TOKEN_number) {
        text_fail_expected(r, "a number");
        return 0;
    }
    token_text(r, text);
    double x = strtod(text, &end);
    bool hexadecimal = strpbrk(text, "xX") != NULL;
    if (end == text || *end != '\0' || hexadecimal || (isinf(x) && strcmp(text, "-inf") != 0)) {
        text_fail_expected(r, "a number");
        return 0;
    }
    text_next(r);
    return x;
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

const char *text_read_string(TextReader *r) {
    if (r->kind != TOKEN_string) {
        text_fail_expected(r, "a string");
        return "";
    }
    char *out = arena_alloc(r->m->arena, r->end - r->begin);
    size_t n = 0;
    for (uint32_t i = r->begin + 1; i + 1 < r->end; i++) {
        char c = r->text[i];
        if (c != '\\') {
            out[n++] = c;
            continue;
        }
        c = r->text[++i];
        int high = hex_digit(peek(r, i + 1)), low = hex_digit(peek(r, i + 2));
        if (c == '"' || c == '\\') {
            out[n++] = c;
        } else if (c == 'x' && high >= 0 && low >= 0 && high + low > 0) {
            out[n++] = (char)(high * 16 + low);
            i += 2;
        } else {
            text_fail(r, text_span(r), "a string knows only \\\" \\\\ and \\x01 to \\xff");
            return "";
        }
    }
    out[n] = '\0';
    text_next(r);
    return out;
}

const char *text_read_word(TextReader *r, const char *what) {
    if (r->kind != TOKEN_word) {
        text_fail_expected(r, what);
        return "";
    }
    const char *word = arena_strndup(r->m->arena, r->text + r->begin, r->end - r->begin);
    text_next(r);
    return word;
}

int text_read_ints(TextReader *r, int64_t v[NDIM_MAX]) {
    int n = 0;
    text_expect(r, "[");
    while (!r->failed && !text_is(r, "]")) {
        if (n > 0) text_expect(r, ",");
        if (n == NDIM_MAX) {
            text_fail_limit(r, text_span(r), "a list has more than %d values", NDIM_MAX);
            break;
        }
        v[n++] = text_read_int(r, INT64_MIN, INT64_MAX);
    }
    text_expect(r, "]");
    return r->failed ? 0 : n;
}

Type text_read_type(TextReader *r) {
    Span span = text_span(r);
    Dtype dtype = DT_none;
    if (r->kind == TOKEN_word) dtype = dtype_from_name(r->text + r->begin, r->end - r->begin);
    if (dtype == DT_none) {
        text_fail_expected(r, "a type such as f32[4,8]");
        return (Type){0};
    }
    text_next(r);
    int64_t dim[NDIM_MAX];
    int n = text_read_ints(r, dim);
    if (r->failed) return (Type){0};
    Type t = type_intern(r->m->types, dtype, n, dim);
    if (t.id == 0)
        text_fail(r, span, "dimensions are not negative and their product is below 2^63");
    return t;
}
