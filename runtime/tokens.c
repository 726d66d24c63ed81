/* tokens.c - opens sets of token files, checks every token, and lays out their samples. */
#include "runtime/tokens.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/signals.h"
#include "runtime/token_file.h"

enum { CHUNK_TOKENS = 1 << 18 };

/* The set under construction. */
typedef struct Reading {
    InfTokens *out;
    int64_t vocabulary;
    uint64_t row;   /* next one to fill */
    uint64_t chunk; /* most tokens of a read */
    void *raw;      /* a chunk as it is in the file */
    int32_t *token; /* a chunk */
} Reading;

static uint64_t samples_of(uint64_t tokens, uint64_t length) {
    return tokens == 0 ? 0 : (tokens - 1) / length;
}

/* The value as it stands in the file. */
static long long value_of(const InfTokenFile *f, const void *raw, uint64_t i) {
    if (f->width == 8) return ((const int64_t *)raw)[i];
    if (f->width == 4 && f->is_signed) return ((const int32_t *)raw)[i];
    if (f->width == 4) return ((const uint32_t *)raw)[i];
    if (f->width == 2) return f->is_signed ? ((const int16_t *)raw)[i] : ((const uint16_t *)raw)[i];
    return f->is_signed ? ((const int8_t *)raw)[i] : ((const uint8_t *)raw)[i];
}

/* All tokens of a chunk, the file's `first` and those behind it, are in the vocabulary. */
static InfCode check_range(InfError *e, const Reading *r, const InfTokenFile *f, uint64_t first,
                           uint64_t count) {
    uint32_t last = r->vocabulary > INT32_MAX ? INT32_MAX : (uint32_t)(r->vocabulary - 1), bad = 0;
    uint64_t i = 0;
    for (; i < count; i++) bad |= (uint32_t)r->token[i] > last;
    if (!bad) return INF_OK;
    for (i = 0; (uint32_t)r->token[i] <= last;) i++;
    return inf_fail(
        e, INF_DATA, "%s: token %llu (at byte %llu) is %lld; the model's vocabulary is 0 to %u%s",
        f->file.path, (unsigned long long)(first + i),
        (unsigned long long)(f->offset + (first + i) * f->width), value_of(f, r->raw, i), last,
        f->raw ? "\n  = hint: the file has no header, so it was read as raw u16" : "");
}

/* u32 tokens without a header, read as u16, have an empty word behind each. */
static InfCode check_raw(InfError *e, const InfTokenFile *f, const int32_t *token, uint64_t count) {
    bool high = false, low = false;
    if (!f->raw || count < 8 || f->count % 2) return INF_OK;
    for (uint64_t i = 0; i < count; i++)
        if (i % 2)
            high |= token[i] != 0;
        else
            low |= token[i] > 1;
    if (high || !low) return INF_OK;
    return inf_fail(e, INF_DATA,
                    "%s: every second 16-bit word is 0: it looks like u32 tokens without a "
                    "header; raw files are read as u16\n  = hint: write the tokens as u16, or with "
                    "the header of llm.c, or as .npy",
                    f->file.path);
}

static void put_row(const InfTokens *t, uint64_t row, const int32_t *from) {
    uint64_t wide = t->length + 1;
    if (t->width == 2) {
        uint16_t *to = (uint16_t *)t->rows + row * wide;
        for (uint64_t i = 0; i < wide; i++) to[i] = (uint16_t)from[i];
    } else {
        memcpy((int32_t *)t->rows + row * wide, from, (size_t)wide * sizeof *from);
    }
}

/* Tokens `first` .. first + count - 1 of a file into the chunk, checked. */
static InfCode read_chunk(InfError *e, Reading *r, const InfTokenFile *f, uint64_t first,
                          uint64_t count) {
    if (inf_signals_pending())
        return inf_fail(e, INF_STOPPED, "stopped by %s while reading %s",
                        inf_signal_name(inf_signals_pending()), f->file.path);
    TRY(inf_token_file_read(e, f, first, count, r->raw, r->token));
    if (first == 0) TRY(check_raw(e, f, r->token, count));
    return check_range(e, r, f, first, count);
}

/* Whole samples with the token behind them, chunk by chunk; then what fills no sample. */
static InfCode read_tokens(InfError *e, Reading *r, const InfTokenFile *f) {
    uint64_t length = r->out->length, rows = samples_of(f->count, length);
    uint64_t step = (r->chunk - 1) / length, used = rows > 0 ? rows * length + 1 : 0;
    for (uint64_t k = 0; k < rows; k += step) {
        uint64_t here = rows - k < step ? rows - k : step;
        TRY(read_chunk(e, r, f, k * length, here * length + 1));
        for (uint64_t i = 0; i < here; i++) put_row(r->out, r->row++, r->token + i * length);
    }
    return used < f->count ? read_chunk(e, r, f, used, f->count - used) : INF_OK;
}

static InfCode read_file(InfError *e, Reading *r, const char *path, uint64_t count) {
    InfTokenFile f;
    TRY(inf_token_file_open(e, path, &f));
    InfCode code = f.count == count
                       ? read_tokens(e, r, &f)
                       : inf_fail(e, INF_DATA, "%s: changed while it was being read", path);
    inf_token_file_close(&f);
    return code;
}

static InfCode take_memory(InfError *e, InfTokens *t, const char *path) {
    uint64_t wide = 0, left = inf_memory_available();
    if (!inf_add(t->length, 1, &wide) || !inf_mul(wide, t->width, &wide) ||
        !inf_mul(wide, t->samples, &t->bytes))
        return inf_fail(e, INF_DATA, "%s: %llu samples of %llu tokens do not fit into 64 bits",
                        path, (unsigned long long)t->samples, (unsigned long long)t->length);
    if (t->bytes > left)
        return inf_fail(e, INF_IO, "%s: %llu tokens take %llu bytes of memory; %llu are available",
                        path, (unsigned long long)t->tokens, (unsigned long long)t->bytes,
                        (unsigned long long)left);
    return inf_map_memory(e, t->bytes, "the tokens", &t->rows);
}

static InfCode take_buffers(InfError *e, Reading *r) {
    uint64_t raw = 0, token = 0;
    /* Whole samples and the token behind them; a file's rest is shorter than a sample. */
    if (!inf_round_up(CHUNK_TOKENS, r->out->length, &r->chunk) ||
        !inf_add(r->chunk, 1, &r->chunk) || !inf_mul(r->chunk, 8, &raw) ||
        !inf_mul(r->chunk, sizeof *r->token, &token))
        return inf_fail(e, INF_IO, "a sample of %llu tokens does not fit into memory",
                        (unsigned long long)r->out->length);
    r->raw = malloc(raw);
    r->token = malloc(token);
    return r->raw && r->token ? INF_OK : inf_fail(e, INF_IO, "out of memory for tokens");
}

/* Files are counted first, then read: shards may be more than files can be open at once. */
static InfCode read_files(InfError *e, Reading *r, const glob_t *names, uint64_t *count) {
    InfTokens *t = r->out;
    for (size_t i = 0; i < names->gl_pathc; i++) {
        InfTokenFile f;
        TRY(inf_token_file_open(e, names->gl_pathv[i], &f));
        count[i] = f.count;
        t->samples += samples_of(f.count, t->length);
        t->tokens += f.count;
        t->files++;
        inf_token_file_close(&f);
    }
    TRY(take_memory(e, t, names->gl_pathv[0]));
    TRY(take_buffers(e, r));
    for (size_t i = 0; i < names->gl_pathc; i++) TRY(read_file(e, r, names->gl_pathv[i], count[i]));
    INF_ASSERT(r->row == t->samples);
    return INF_OK;
}

static InfCode read_names(InfError *e, Reading *r, const glob_t *names) {
    uint64_t *count = calloc(names->gl_pathc + 1, sizeof *count);
    InfCode code =
        count ? read_files(e, r, names, count) : inf_fail(e, INF_IO, "out of memory for tokens");
    free(count);
    free(r->raw);
    free(r->token);
    return code;
}

InfCode inf_tokens_read(InfError *e, const char *pattern, uint64_t length, int64_t vocabulary,
                        InfTokens *out, bool *absent, char **why) {
    INF_ASSERT(length > 0 && vocabulary > 0);
    *out = (InfTokens){.length = length, .width = inf_token_width(vocabulary)};
    *why = NULL;
    /* A file that is really called so comes before what its name would match. */
    bool plain = access(pattern, F_OK) == 0;
    glob_t names = {0};
    int found = plain ? 0 : glob(pattern, 0, NULL, &names);
    char *self[1] = {(char *)(uintptr_t)pattern};
    *absent = found == GLOB_NOMATCH;
    if (*absent) {
        const char *form =
            strpbrk(pattern, "*?[") ? "%s: no file has such a name" : "%s: there is no such file";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        if (asprintf(why, form, pattern) < 0) *why = NULL;
#pragma GCC diagnostic pop
        return INF_OK;
    }
    Reading r = {.out = out, .vocabulary = vocabulary};
    glob_t one = {.gl_pathc = 1, .gl_pathv = self};
    InfCode code = found == 0 ? read_names(e, &r, plain ? &one : &names)
                              : inf_fail(e, INF_IO, "%s: cannot list the files", pattern);
    if (!plain) globfree(&names);
    if (code != INF_OK) inf_tokens_free(out);
    return code;
}

void inf_tokens_free(InfTokens *t) {
    if (t->rows) inf_unmap_memory(t->rows, t->bytes);
    *t = (InfTokens){0};
}
