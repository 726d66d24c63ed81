/* token_file.c - recognises token files and reads their tokens. */
#include "runtime/token_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"

enum { SNIFF_BYTES = 64, TEXT_BYTES = 4096, NPY_HEADER_MAX = 65536 };

static uint32_t little_endian(const unsigned char *b) {
    return (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | (uint32_t)b[1] << 8 | b[0];
}

static uint32_t swapped(uint32_t x) { return __builtin_bswap32(x); }

/* The size that follows from the header against the size of the file. */
static InfCode check_size(InfError *e, InfTokenFile *f) {
    uint64_t values = 0, total = 0;
    if (!inf_mul(f->count, f->width, &values) || !inf_add(values, f->offset, &total))
        return inf_fail(e, INF_DATA, "%s: the header says %llu tokens, more than 2^64 bytes",
                        f->file.path, (unsigned long long)f->count);
    if (total == f->file.size) return INF_OK;
    uint64_t body = f->file.size - f->offset, other = f->width == 2 ? 4 : 2, wide = 0;
    if (inf_mul(f->count, other, &wide) && wide == body)
        return inf_fail(e, INF_DATA,
                        "%s: the header says %llu tokens of %u bytes, but the file has %llu bytes "
                        "for each: it looks like u%llu tokens under a header for u%u",
                        f->file.path, (unsigned long long)f->count, f->width,
                        (unsigned long long)other, (unsigned long long)other * 8, f->width * 8);
    return inf_fail(e, INF_DATA,
                    "%s: %s: the header says %llu tokens of %u bytes, so %llu bytes in all; the "
                    "file has %llu",
                    f->file.path, total > f->file.size ? "truncated" : "too long",
                    (unsigned long long)f->count, f->width, (unsigned long long)total,
                    (unsigned long long)f->file.size);
}

/* The header of llm.c. */
static InfCode open_header(InfError *e, InfTokenFile *f, const unsigned char *head) {
    bool wide = little_endian(head) == INF_TOKEN_MAGIC_U32;
    uint32_t version = little_endian(head + 4);
    uint32_t expected = wide ? INF_TOKEN_VERSION_U32 : INF_TOKEN_VERSION_U16;
    if (f->file.size < INF_TOKEN_HEADER_BYTES)
        return inf_fail(e, INF_DATA, "%s: truncated: %llu bytes; the header alone takes %d",
                        f->file.path, (unsigned long long)f->file.size, INF_TOKEN_HEADER_BYTES);
    if (version != expected)
        return inf_fail(e, INF_DATA,
                        "%s: version %u of a token file with magic %u; version %u is read",
                        f->file.path, version, little_endian(head), expected);
    /* A 32-bit field; llm.c counts on it below 2^31. */
    f->count = little_endian(head + 8);
    f->offset = INF_TOKEN_HEADER_BYTES;
    f->width = wide ? 4 : 2;
    return check_size(e, f);
}

/* The value behind 'key': in the dictionary of a .npy header, or NULL. */
static const char *npy_value(const char *header, const char *key) {
    const char *at = strstr(header, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ') at++;
    if (*at != ':') return NULL;
    at++;
    while (*at == ' ') at++;
    return at;
}

/* 'shape': (N,) as a count; false for another rank, or a count beyond 64 bits. */
static bool npy_count(const char *at, uint64_t *count) {
    if (*at++ != '(') return false;
    while (*at == ' ') at++;
    if (!isdigit((unsigned char)*at)) return false;
    for (*count = 0; isdigit((unsigned char)*at); at++)
        if (!inf_mul(*count, 10, count) || !inf_add(*count, (uint64_t)(*at - '0'), count))
            return false;
    while (*at == ' ' || *at == ',') at++;
    return *at == ')';
}

static InfCode read_npy_header(InfError *e, InfTokenFile *f, const char *header) {
    const char *path = f->file.path;
    const char *type = npy_value(header, "'descr'"), *shape = npy_value(header, "'shape'");
    if (!type || !shape)
        return inf_fail(e, INF_DATA, "%s: a NumPy array whose header lacks 'descr' or 'shape'",
                        path);
    char order = 0, kind = 0, width = 0, quote = 0;
    if (sscanf(type, "'%c%c%c%c", &order, &kind, &width, &quote) != 4 || quote != '\'' ||
        (kind != 'u' && kind != 'i') || !strchr("1248", width))
        return inf_fail(e, INF_DATA,
                        "%s: a NumPy array of type %.12s; tokens are integers: save it with "
                        ".astype(numpy.uint16)",
                        path, type);
    if (order == '>' || (order != '<' && order != '|' && order != '='))
        return inf_fail(e, INF_DATA,
                        "%s: a NumPy array of big-endian integers; save it with "
                        ".astype(numpy.uint16)",
                        path);
    f->width = (uint32_t)(width - '0');
    f->is_signed = kind == 'i';
    if (!npy_count(shape, &f->count))
        return inf_fail(e, INF_DATA,
                        "%s: a NumPy array of shape %.*s; tokens are of rank 1: save "
                        "it with .reshape(-1)",
                        path, (int)strcspn(shape, ")") + 1, shape);
    return check_size(e, f);
}

static InfCode open_npy(InfError *e, InfTokenFile *f, const unsigned char *head, uint64_t got) {
    uint32_t major = got > 6 ? head[6] : 0, prefix = major >= 2 ? 12 : 10, length = 0;
    if (got < prefix)
        return inf_fail(e, INF_DATA, "%s: truncated inside the header of a NumPy array",
                        f->file.path);
    if (major < 1 || major > 3)
        return inf_fail(e, INF_DATA, "%s: version %u of the NumPy format; 1 to 3 are read",
                        f->file.path, major);
    length = major >= 2 ? little_endian(head + 8) : (uint32_t)head[8] | (uint32_t)head[9] << 8;
    if (length > NPY_HEADER_MAX || length > f->file.size - prefix)
        return inf_fail(e, INF_DATA, "%s: a NumPy array whose header claims %u bytes", f->file.path,
                        length);
    char *header = calloc(length + 1, 1);
    if (!header) return inf_fail(e, INF_IO, "%s: out of memory", f->file.path);
    InfCode code = inf_file_read_at(e, &f->file, prefix, header, length);
    f->offset = (uint64_t)prefix + length;
    if (code == INF_OK) code = read_npy_header(e, f, header);
    free(header);
    return code;
}

/* Whether the beginning of the file is text and nothing else. */
static InfCode is_text(InfError *e, const InfTokenFile *f, bool *text) {
    unsigned char bytes[TEXT_BYTES];
    uint64_t count = f->file.size < sizeof bytes ? f->file.size : sizeof bytes;
    *text = count >= 16;
    TRY(inf_file_read_at(e, &f->file, 0, bytes, count));
    for (uint64_t i = 0; i < count && *text; i++)
        *text = isprint(bytes[i]) || isspace(bytes[i]) || bytes[i] >= 0x80;
    return INF_OK;
}

static InfCode open_raw(InfError *e, InfTokenFile *f, const unsigned char *head, uint64_t got) {
    const char *path = f->file.path, *other = inf_file_sniff(head, (size_t)got);
    bool text = false;
    uint32_t magic = got >= 4 ? swapped(little_endian(head)) : 0;
    if (other) return inf_fail(e, INF_DATA, "%s: this is %s, not a token file", path, other);
    if (magic == INF_TOKEN_MAGIC_U16 || magic == INF_TOKEN_MAGIC_U32)
        return inf_fail(e, INF_DATA,
                        "%s: a token file with its bytes in the wrong order (big-endian); it has "
                        "to be little-endian",
                        path);
    TRY(is_text(e, f, &text));
    if (text)
        return inf_fail(e, INF_DATA,
                        "%s: this is text; make tokens of it: infinic tokenize %s -o %s.bin", path,
                        path, path);
    if (f->file.size % 2)
        return inf_fail(e, INF_DATA,
                        "%s: %llu bytes, an odd number, and no header: not raw u16 tokens", path,
                        (unsigned long long)f->file.size);
    f->raw = true;
    f->width = 2;
    f->count = f->file.size / 2;
    return INF_OK;
}

static InfCode open_any(InfError *e, InfTokenFile *f) {
    unsigned char head[SNIFF_BYTES] = {0};
    uint64_t got = f->file.size < sizeof head ? f->file.size : sizeof head;
    if (got == 0) return inf_fail(e, INF_DATA, "%s: empty file; tokens are needed", f->file.path);
    TRY(inf_file_read_at(e, &f->file, 0, head, got));
    uint32_t magic = got >= 12 ? little_endian(head) : 0;
    if (magic == INF_TOKEN_MAGIC_U16 || magic == INF_TOKEN_MAGIC_U32)
        return open_header(e, f, head);
    if (got >= 6 && memcmp(head, "\x93NUMPY", 6) == 0) return open_npy(e, f, head, got);
    return open_raw(e, f, head, got);
}

InfCode inf_token_file_open(InfError *e, const char *path, InfTokenFile *out) {
    *out = (InfTokenFile){.file.fd = -1};
    TRY(inf_file_open(e, path, &out->file));
    InfCode code = open_any(e, out);
    if (code != INF_OK) inf_token_file_close(out);
    return code;
}

void inf_token_file_close(InfTokenFile *f) { inf_file_close(&f->file); }

static void widen(const InfTokenFile *f, const void *raw, uint64_t count, int32_t *to) {
    const uint8_t *bytes = raw;
    const uint16_t *halves = raw;
    const int32_t *words = raw; /* u32 beyond i32 is negative, and so out of every vocabulary */
    const int64_t *doubles = raw;
    switch (f->width) {
    case 1:
        for (uint64_t i = 0; i < count; i++) to[i] = f->is_signed ? (int8_t)bytes[i] : bytes[i];
        break;
    case 2:
        for (uint64_t i = 0; i < count; i++) to[i] = f->is_signed ? (int16_t)halves[i] : halves[i];
        break;
    case 4: memcpy(to, words, (size_t)count * sizeof *to); break;
    default:
        for (uint64_t i = 0; i < count; i++)
            to[i] = doubles[i] < 0 || doubles[i] > INT32_MAX ? -1 : (int32_t)doubles[i];
        break;
    }
}

InfCode inf_token_file_read(InfError *e, const InfTokenFile *f, uint64_t first, uint64_t count,
                            void *raw, int32_t *to) {
    uint64_t begin = 0, bytes = 0;
    bool fits = inf_mul(first, f->width, &begin) && inf_add(begin, f->offset, &begin) &&
                inf_mul(count, f->width, &bytes);
    INF_ASSERT(fits);
    TRY(inf_file_read_at(e, &f->file, begin, raw, bytes));
    widen(f, raw, count, to);
    return INF_OK;
}
