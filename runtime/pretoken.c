/* pretoken.c - the two pre-tokenizers, written out by hand. */
#include "runtime/pretoken.h"

#include <stdbool.h>
#include <string.h>

#include "runtime/unicode.h"

typedef struct Text {
    const char *at;
    size_t bytes;
} Text;

static InfChar char_at(const Text *t, size_t offset) {
    return inf_char_at(t->at + offset, t->bytes - offset);
}

/* The end of the run of characters of `class` at `from`, of `most` at most. */
static size_t run_end(const Text *t, size_t from, InfCharClass class, int most) {
    for (int i = 0; i != most; i++) {
        InfChar c = char_at(t, from);
        if (c.bytes == 0 || c.class != class) break;
        from += c.bytes;
    }
    return from;
}

/* 's 't 're 've 'm 'll 'd; in any case where `fold`, the long s included. 0: none here. */
static size_t contraction(const Text *t, bool fold) {
    static const char *const forms[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (t->at[0] != '\'') return 0;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        size_t end = 1, i = 0;
        for (; forms[f][i]; i++) {
            InfChar c = char_at(t, end);
            uint32_t code = fold && c.code == 0x17f ? 's' : c.code;
            if (fold && code >= 'A' && code <= 'Z') code |= 0x20;
            if (c.bytes == 0 || code != (unsigned char)forms[f][i]) break;
            end += c.bytes;
        }
        if (!forms[f][i]) return end;
    }
    return 0;
}

/* \s+(?!\S)|\s+ on the run of spaces [0, end): all of it at the end of the text; else all but the
 * last, unless that is the only one. */
static size_t spaces(const Text *t, size_t end) {
    size_t last = 0;
    if (end == t->bytes) return end;
    for (size_t at = 0; at < end; at += char_at(t, at).bytes) last = at;
    return last > 0 ? last : end;
}

static size_t next_gpt2(const Text *t) {
    size_t end = contraction(t, false), start = t->at[0] == ' ';
    if (end) return end;
    InfChar c = char_at(t, start);
    if (c.bytes > 0 && c.class != INF_CHAR_space) return run_end(t, start, c.class, -1);
    return spaces(t, run_end(t, 0, INF_CHAR_space, -1));
}

static bool is_newline(InfChar c) { return c.code == '\r' || c.code == '\n'; }

/* [^\r\n\p{L}\p{N}]?\p{L}+; 0: not here. */
static size_t letters(const Text *t) {
    InfChar first = char_at(t, 0);
    bool before = first.class != INF_CHAR_letter && first.class != INF_CHAR_number;
    size_t start = before && !is_newline(first) ? first.bytes : 0;
    size_t end = run_end(t, start, INF_CHAR_letter, -1);
    return end > start ? end : 0;
}

static size_t next_llama3(const Text *t) {
    size_t end = contraction(t, true), start = t->at[0] == ' ';
    if (end || (end = letters(t))) return end;
    end = run_end(t, 0, INF_CHAR_number, 3);
    if (end) return end;
    end = run_end(t, start, INF_CHAR_other, -1);
    if (end > start) {
        while (end < t->bytes && (t->at[end] == '\r' || t->at[end] == '\n')) end++;
        return end;
    }
    end = run_end(t, 0, INF_CHAR_space, -1);
    for (size_t at = end; at > 0; at--)
        if (t->at[at - 1] == '\r' || t->at[at - 1] == '\n') return at;
    return spaces(t, end);
}

size_t inf_pretoken_next(InfPretokenStyle style, const char *text, size_t bytes) {
    Text t = {text, bytes};
    return style == INF_PRETOKEN_llama3 ? next_llama3(&t) : next_gpt2(&t);
}

int inf_pretoken_style(const char *pattern) {
    static const char *const patterns[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
    for (int i = 0; i < 2; i++)
        if (strcmp(pattern, patterns[i]) == 0) return i;
    return -1;
}
