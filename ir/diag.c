/* diag.c - recording diagnostics and printing them as text or JSON; see diag.h. */
#include "ir/diag.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct DiagLine {
    bool is_hint;
    const char *text;
} DiagLine;

struct DiagEntry {
    bool is_warning, is_notice;
    bool counts_as_error;
    DiagCode code;
    WarnCode warn;
    Span span;
    const char *message;
    const char *label;
    VEC(DiagLine) lines;
};

static const struct {
    const char *name, *title, *text;
} code_table[DIAG_CODE_COUNT] = {
    [DIAG_NONE] = {"E000", "", ""},
#define DIAG(code, title, text) [code] = {#code, title, text},
#include "ir/diag.def"
};

static const struct {
    const char *word, *title;
} warn_table[WARN_CODE_COUNT] = {
#define WARNING(word, ident, title) [WARN_##ident] = {word, title},
#include "ir/diag.def"
};

void diag_init(Diag *d, Arena *arena, const Sources *sources, FILE *out) {
    memset(d, 0, sizeof(*d));
    d->arena = arena;
    d->sources = sources;
    d->out = out;
    d->printed = 1;
    vec_push(arena, &d->entries, (DiagEntry){.code = DIAG_NONE});
}

static DiagEntry *entry_of(Diag *d, DiagRef ref) {
    return ref.id == 0 ? NULL : &d->entries.data[ref.id];
}

static bool is_repeat(const Diag *d, const DiagEntry *e) {
    for (uint32_t i = 1; i < d->entries.n; i++) {
        const DiagEntry *o = &d->entries.data[i];
        if (o->is_warning == e->is_warning && o->is_notice == e->is_notice && o->code == e->code &&
            o->warn == e->warn && o->span.file == e->span.file && o->span.begin == e->span.begin &&
            (e->span.file != 0 || strcmp(o->message, e->message) == 0))
            return true;
    }
    return false;
}

static DiagRef record(Diag *d, DiagEntry e) {
    if (is_repeat(d, &e)) return (DiagRef){0};
    if (e.counts_as_error && d->error_count++ >= DIAG_ERRORS_MAX) return (DiagRef){0};
    vec_push(d->arena, &d->entries, e);
    return (DiagRef){d->entries.n - 1};
}

DiagRef diag_error(Diag *d, DiagCode code, Span span, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(d->arena, fmt, ap);
    va_end(ap);
    return record(
        d, (DiagEntry){.code = code, .span = span, .message = text, .counts_as_error = true});
}

DiagRef diag_warn(Diag *d, WarnCode code, Span span, const char *fmt, ...) {
    if (d->warning_off[code]) return (DiagRef){0};
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(d->arena, fmt, ap);
    va_end(ap);
    bool is_error = d->warnings_are_errors || d->warning_is_error[code];
    return record(d, (DiagEntry){.is_warning = true,
                                 .warn = code,
                                 .span = span,
                                 .message = text,
                                 .counts_as_error = is_error});
}

DiagRef diag_notice(Diag *d, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(d->arena, fmt, ap);
    va_end(ap);
    return record(d, (DiagEntry){.is_notice = true, .message = text});
}

void diag_label(Diag *d, DiagRef ref, const char *fmt, ...) {
    DiagEntry *e = entry_of(d, ref);
    if (e == NULL) return;
    va_list ap;
    va_start(ap, fmt);
    e->label = arena_vprintf(d->arena, fmt, ap);
    va_end(ap);
}

ARENA_PRINTF(4, 0)
static void add_line(Diag *d, DiagRef ref, bool is_hint, const char *fmt, va_list ap) {
    DiagEntry *e = entry_of(d, ref);
    if (e == NULL) return;
    vec_push(d->arena, &e->lines, (DiagLine){is_hint, arena_vprintf(d->arena, fmt, ap)});
}

void diag_note(Diag *d, DiagRef ref, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    add_line(d, ref, false, fmt, ap);
    va_end(ap);
}

void diag_hint(Diag *d, DiagRef ref, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    add_line(d, ref, true, fmt, ap);
    va_end(ap);
}

bool diag_set_warning(Diag *d, const char *word) {
    if (strcmp(word, "error") == 0) {
        d->warnings_are_errors = true;
        return true;
    }
    bool off = strncmp(word, "no-", 3) == 0;
    bool error = strncmp(word, "error=", 6) == 0;
    const char *name = off ? word + 3 : error ? word + 6 : word;
    for (int i = 0; i < WARN_CODE_COUNT; i++) {
        if (strcmp(warn_table[i].word, name) != 0) continue;
        d->warning_off[i] = off;
        d->warning_is_error[i] = error;
        return true;
    }
    return false;
}

/* ---- text ------------------------------------------------------------------------------- */

enum { LINE_BYTES_BEFORE = 100, LINE_BYTES_AFTER = 100 };

/* Decode one code point at s (n bytes left, n > 0); *width is its length in bytes. */
static uint32_t decode_utf8(const char *s, uint32_t n, uint32_t *width) {
    unsigned char c = (unsigned char)s[0];
    uint32_t want = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (want > n) want = n;
    uint32_t point = want == 1 ? c : c & (0xFFu >> (want + 1));
    for (uint32_t i = 1; i < want; i++) point = point << 6 | ((unsigned char)s[i] & 0x3F);
    *width = want;
    return point;
}

/* Terminal cells of a code point: East Asian wide ones and emoji take two, combining marks none. */
static int cells_of(uint32_t p) {
    static const struct {
        uint32_t first, last;
        int cells;
    } ranges[] = {{0x0300, 0x036F, 0}, {0x1100, 0x115F, 2},   {0x200B, 0x200F, 0},
                  {0x20D0, 0x20FF, 0}, {0x2E80, 0xA4CF, 2},   {0xAC00, 0xD7A3, 2},
                  {0xF900, 0xFAFF, 2}, {0xFE00, 0xFE0F, 0},   {0xFE30, 0xFE6F, 2},
                  {0xFF00, 0xFF60, 2}, {0x1F300, 0x1FAFF, 2}, {0x20000, 0x3FFFD, 2}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (p >= ranges[i].first && p <= ranges[i].last) return ranges[i].cells;
    return 1;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

/* Print bytes [from, to) of a line; control characters other than tab become '?'. */
static void print_bytes(FILE *out, const char *text, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
        unsigned char c = (unsigned char)text[i];
        fputc((c < 0x20 && c != '\t') || c == 0x7F ? '?' : c, out);
    }
}

/* Print blanks as wide as bytes [from, to): tabs stay tabs, so the caret stands right. */
static void print_blanks(FILE *out, const char *text, uint32_t from, uint32_t to, char fill) {
    for (uint32_t i = from; i < to;) {
        uint32_t width = 1;
        uint32_t p = decode_utf8(text + i, to - i, &width);
        if (p == '\t' && fill == ' ')
            fputc('\t', out);
        else
            for (int cell = cells_of(p); cell > 0; cell--) fputc(fill, out);
        i += width;
    }
}

static void print_excerpt(const Diag *d, const DiagEntry *e) {
    const Source *src = source_get(d->sources, e->span.file);
    Place place = source_place(d->sources, e->span);
    uint32_t line_begin = src->line_starts[place.line - 1];
    uint32_t line_end = place.line < src->line_count ? src->line_starts[place.line] : src->bytes;
    while (line_end > line_begin &&
           (src->text[line_end - 1] == '\n' || src->text[line_end - 1] == '\r'))
        line_end--;
    uint32_t begin = e->span.begin > line_end ? line_end : e->span.begin;
    uint32_t end = e->span.end > line_end ? line_end : e->span.end;
    uint32_t from = line_begin, to = line_end;
    if (begin - from > LINE_BYTES_BEFORE) from = begin - LINE_BYTES_BEFORE;
    while (from < begin && is_continuation(src->text[from])) from++;
    if (to - begin > LINE_BYTES_AFTER) to = begin + LINE_BYTES_AFTER;
    while (to < line_end && is_continuation(src->text[to])) to++;
    if (end > to) end = to;
    const char *more = from > line_begin ? "..." : "";
    int gutter = fprintf(d->out, "%5u", place.line);
    fprintf(d->out, " | %s", more);
    print_bytes(d->out, src->text, from, to);
    fprintf(d->out, "%s\n%*s | %*s", to < line_end ? "..." : "", gutter, "", (int)strlen(more), "");
    print_blanks(d->out, src->text, from, begin, ' ');
    fputc('^', d->out);
    /* The caret itself covers the first cell of the span; the rest is underlined. */
    uint32_t width = 1;
    if (begin < end) decode_utf8(src->text + begin, end - begin, &width);
    if (begin + width < end) print_blanks(d->out, src->text, begin + width, end, '~');
    if (e->label != NULL) fprintf(d->out, " %s", e->label);
    fputc('\n', d->out);
}

static void print_text(const Diag *d, const DiagEntry *e) {
    Place place = source_place(d->sources, e->span);
    if (place.file != NULL)
        fprintf(d->out, "%s:%u:%u: ", place.file, place.line, place.column);
    else
        fprintf(d->out, "infinic: ");
    if (e->is_notice)
        fprintf(d->out, "notice: %s\n", e->message);
    else if (!e->is_warning)
        fprintf(d->out, "error[%s]: %s\n", code_table[e->code].name, e->message);
    else
        fprintf(d->out, "%s[-W%s]: %s\n", e->counts_as_error ? "error" : "warning",
                warn_table[e->warn].word, e->message);
    if (place.file != NULL)
        print_excerpt(d, e);
    else if (e->label != NULL)
        fprintf(d->out, "      = %s\n", e->label);
    for (uint32_t i = 0; i < e->lines.n; i++)
        fprintf(d->out, "      = %s%s\n", e->lines.data[i].is_hint ? "hint: " : "",
                e->lines.data[i].text);
}

/* ---- JSON ------------------------------------------------------------------------------- */

/* A JSON string: quotes, backslashes and control characters escaped; bytes that are not UTF-8
 * become U+FFFD, so that a strict reader always accepts the line. */
static void print_json_string(FILE *out, const char *s) {
    fputc('"', out);
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c == '\t')
            fputs("\\t", out);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else if (c < 0x80)
            fputc(c, out);
        else {
            uint32_t width = source_utf8_width(s + i, n - i);
            if (width == 0)
                fputs("\\ufffd", out);
            else
                fwrite(s + i, 1, width, out);
            i += width == 0 ? 1 : width;
            continue;
        }
        i++;
    }
    fputc('"', out);
}

static void print_json_list(const Diag *d, const DiagEntry *e, bool hints) {
    const char *separator = "";
    fputc('[', d->out);
    for (uint32_t i = 0; i < e->lines.n; i++) {
        if (e->lines.data[i].is_hint != hints) continue;
        fputs(separator, d->out);
        print_json_string(d->out, e->lines.data[i].text);
        separator = ", ";
    }
    fputc(']', d->out);
}

static void print_json(const Diag *d, const DiagEntry *e) {
    Place begin = source_place(d->sources, e->span), end = source_place_end(d->sources, e->span);
    const char *severity = e->counts_as_error ? "error" : e->is_notice ? "notice" : "warning";
    const char *code = e->is_notice    ? "notice"
                       : e->is_warning ? warn_table[e->warn].word
                                       : code_table[e->code].name;
    fprintf(d->out, "{\"severity\": \"%s\", \"code\": \"%s%s\", \"title\": ", severity,
            e->is_warning ? "-W" : "", code);
    print_json_string(d->out,
                      e->is_warning ? warn_table[e->warn].title : code_table[e->code].title);
    fputs(", \"file\": ", d->out);
    if (begin.file == NULL)
        fputs("null", d->out);
    else
        print_json_string(d->out, begin.file);
    fprintf(d->out, ", \"line\": %u, \"column\": %u, \"end_line\": %u, \"end_column\": %u",
            begin.line, begin.column, end.line, end.column);
    fputs(", \"message\": ", d->out);
    print_json_string(d->out, e->message);
    fputs(", \"label\": ", d->out);
    if (e->label == NULL)
        fputs("null", d->out);
    else
        print_json_string(d->out, e->label);
    fputs(", \"notes\": ", d->out);
    print_json_list(d, e, false);
    fputs(", \"hints\": ", d->out);
    print_json_list(d, e, true);
    fputs("}\n", d->out);
}

/* By place; what has none first, equal places in order of recording. */
static int compare_entries(const void *a, const void *b) {
    const DiagEntry *x = *(const DiagEntry *const *)a, *y = *(const DiagEntry *const *)b;
    if (x->span.file != y->span.file) return x->span.file < y->span.file ? -1 : 1;
    if (x->span.begin != y->span.begin) return x->span.begin < y->span.begin ? -1 : 1;
    return (x > y) - (x < y);
}

void diag_flush(Diag *d) {
    uint32_t n = d->entries.n - d->printed;
    const DiagEntry **order = ARENA_ARRAY(d->arena, const DiagEntry *, n);
    for (uint32_t i = 0; i < n; i++) order[i] = &d->entries.data[d->printed + i];
    if (n > 1) qsort(order, n, sizeof(order[0]), compare_entries);
    for (uint32_t i = 0; i < n; i++) {
        if (d->format == DIAG_JSON)
            print_json(d, order[i]);
        else
            print_text(d, order[i]);
    }
    d->printed = d->entries.n;
    fflush(d->out);
}

void diag_finish(Diag *d) {
    diag_flush(d);
    if (d->error_count > DIAG_ERRORS_MAX && d->format == DIAG_TEXT)
        fprintf(d->out, "infinic: %u errors, the first %d are shown\n", d->error_count,
                DIAG_ERRORS_MAX);
}

/* ---- names ------------------------------------------------------------------------------ */

const char *diag_place(const Diag *d, Span span, Span near) {
    Place p = source_place(d->sources, span);
    if (p.file == NULL) return "nowhere";
    if (span.file == near.file) return arena_printf(d->arena, "%u:%u", p.line, p.column);
    return arena_printf(d->arena, "%s:%u:%u", p.file, p.line, p.column);
}

const char *diag_title(DiagCode code) { return code_table[code].title; }

const char *diag_explain(DiagCode code) { return code_table[code].text; }

DiagCode diag_code_parse(const char *text) {
    for (int code = 1; code < DIAG_CODE_COUNT; code++) {
        const char *name = code_table[code].name;
        size_t i = 0;
        while (name[i] != '\0' && toupper((unsigned char)text[i]) == name[i]) i++;
        if (name[i] == '\0' && text[i] == '\0') return (DiagCode)code;
    }
    return DIAG_NONE;
}

const char *diag_warning_word(WarnCode code) { return warn_table[code].word; }

const char *diag_warning_title(WarnCode code) { return warn_table[code].title; }
