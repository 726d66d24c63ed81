/* signature.c - signatures from text and back; see signature.h. */
#include "frontend/signature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *wants;
} kinds[ARG_KIND_COUNT] = {
    [ARG_any] = {"any", "a value"},
    [ARG_tensor] = {"tensor", "a tensor"},
    [ARG_tensors] = {"tensors", "a list of tensors"},
    [ARG_int] = {"int", "an integer"},
    [ARG_size] = {"size", "an integer >= 0"},
    [ARG_count] = {"count", "an integer >= 1"},
    [ARG_ints] = {"ints", "an integer or a tuple of integers"},
    [ARG_pair] = {"pair", "an integer >= 0 or two of them"},
    [ARG_float] = {"float", "a number"},
    [ARG_nonneg] = {"nonneg", "a number >= 0"},
    [ARG_positive] = {"positive", "a number > 0"},
    [ARG_share] = {"share", "a number from 0 to 1"},
    [ARG_shares] = {"shares", "two numbers from 0 to below 1"},
    [ARG_bool] = {"bool", "true or false"},
    [ARG_str] = {"str", "a string"},
    [ARG_strs] = {"strs", "a string or a tuple of strings"},
    [ARG_word] = {"word", "a word"},
    [ARG_init] = {"init", "an initialiser"},
    [ARG_optimizer] = {"optimizer", "an optimizer"},
    [ARG_schedule] = {"schedule", "a schedule"},
    [ARG_data] = {"data", "a data source"},
    [ARG_expr] = {"expr", "an expression"},
    [ARG_pattern] = {"pattern", "a pattern [..] -> [..]"},
    [ARG_path] = {"path", "the path of a parameter"},
};

static void malformed(const char *name, const char *text) {
    fprintf(stderr, "infinic: internal error: the signature of %s is malformed: %s\n", name, text);
    exit(3);
}

static ArgKind kind_of(const char *name, const char *text, size_t n) {
    for (int k = 0; k < ARG_KIND_COUNT; k++)
        if (strlen(kinds[k].name) == n && memcmp(kinds[k].name, text, n) == 0) return (ArgKind)k;
    malformed(name, text);
    return ARG_any;
}

/* End of one argument: the next ',' outside parentheses. */
static const char *arg_end(const char *c) {
    for (int depth = 0; *c != '\0' && (*c != ',' || depth > 0); c++)
        depth += (*c == '(') - (*c == ')');
    return c;
}

static ArgSpec parse_arg(Arena *a, const char *name, const char *text, const char *end) {
    ArgSpec spec = {0};
    const char *colon = memchr(text, ':', (size_t)(end - text));
    if (colon == NULL) malformed(name, text);
    spec.name = arena_strndup(a, text, (size_t)(colon - text));
    const char *type = colon + 1;
    while (*type == ' ') type++;
    const char *stop = type + strspn(type, "abcdefghijklmnopqrstuvwxyz");
    spec.kind = kind_of(name, type, (size_t)(stop - type));
    if (*stop == '(') {
        const char *close = memchr(stop, ')', (size_t)(end - stop));
        if (close == NULL) malformed(name, text);
        spec.words = arena_strndup(a, stop + 1, (size_t)(close - stop - 1));
        stop = close + 1;
    }
    if (*stop == '?') {
        spec.optional = true;
        stop++;
    }
    while (stop < end && *stop == ' ') stop++;
    if (stop < end) {
        if (strncmp(stop, "= ", 2) != 0) malformed(name, text);
        spec.fallback = arena_strndup(a, stop + 2, (size_t)(end - stop - 2));
        spec.optional = true;
    }
    return spec;
}

Signature signature_parse(Arena *a, const char *name, const char *text) {
    Signature s = {.name = name};
    while (*text != '\0') {
        const char *end = arg_end(text);
        if (s.n == ARGS_MAX) malformed(name, text);
        s.arg[s.n++] = parse_arg(a, name, text, end);
        text = *end == ',' ? end + 1 : end;
        while (*text == ' ') text++;
    }
    return s;
}

const char *signature_text(Arena *a, const Signature *s) {
    const char *text = arena_printf(a, "%s(", s->name);
    for (int i = 0; i < s->n; i++) {
        const ArgSpec *arg = &s->arg[i];
        const char *fallback = arg->fallback != NULL ? arg->fallback : "none";
        text = arena_printf(a, "%s%s%s%s%s", text, i > 0 ? ", " : "", arg->name,
                            arg->optional ? " = " : "", arg->optional ? fallback : "");
    }
    return arena_printf(a, "%s)", text);
}

int signature_find(const Signature *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->arg[i].name, name) == 0) return i;
    return -1;
}

const char *signature_wants(Arena *a, const ArgSpec *spec) {
    if (spec->kind != ARG_word) return kinds[spec->kind].wants;
    char *list = arena_strdup(a, spec->words);
    for (char *c = list; *c != '\0'; c++)
        if (*c == '|') *c = ' ';
    return arena_printf(a, "one of: %s", list);
}

bool signature_has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *w = words; *w != '\0';) {
        size_t width = strcspn(w, "|");
        if (width == n && memcmp(w, word, n) == 0) return true;
        w += width;
        if (*w == '|') w++;
    }
    return false;
}
