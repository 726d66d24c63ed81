/* idx.c - reads IDX files and says what is wrong with them. */
#include "runtime/idx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/check.h"
#include "runtime/file.h"

enum { NDIM_MAX = 3, SNIFF_BYTES = 32, TYPE_U8 = 0x08 };

/* No deflate stream expands further, so a header that claims more is a lie. */
enum { DEFLATE_RATIO_MAX = 1032 };

typedef struct Stream {
    const char *path;
    gzFile gz;
    bool compressed;
    uint64_t file_bytes;
} Stream;

static InfCode stream_open(InfError *e, const char *path, Stream *s) {
    InfFile f;
    TRY(inf_file_open(e, path, &f));
    *s = (Stream){.path = path, .file_bytes = f.size};
    s->gz = gzdopen(f.fd, "rb");
    if (!s->gz) {
        inf_file_close(&f);
        return inf_fail(e, INF_IO, "%s: out of memory", path);
    }
    return INF_OK;
}

/* Reads up to `bytes`; fewer only at the end of the data. */
static InfCode stream_read(InfError *e, Stream *s, void *to, uint64_t bytes, uint64_t *got) {
    char *at = to;
    *got = 0;
    while (*got < bytes) {
        uint64_t rest = bytes - *got;
        unsigned part = rest > (1u << 24) ? (1u << 24) : (unsigned)rest;
        int n = gzread(s->gz, at + *got, part);
        if (n < 0) {
            int number = 0;
            const char *text = gzerror(s->gz, &number);
            if (number == Z_ERRNO) return inf_fail_errno(e, "read", s->path);
            return inf_fail(e, INF_DATA, "%s: damaged gzip data: %s", s->path, text);
        }
        if (n == 0) break;
        *got += (uint64_t)n;
    }
    /* A stream cut inside a block hands out what it has and only then reports. */
    int number = Z_OK;
    gzerror(s->gz, &number);
    if (*got < bytes && number == Z_BUF_ERROR)
        return inf_fail(e, INF_DATA, "%s: truncated: the gzip data ends early", s->path);
    return INF_OK;
}

static uint32_t big_endian(const unsigned char *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static const char *type_name(int type) {
    switch (type) {
    case 0x09: return "signed bytes";
    case 0x0B: return "16-bit integers";
    case 0x0C: return "32-bit integers";
    case 0x0D: return "f32 values";
    case 0x0E: return "f64 values";
    default: return NULL;
    }
}

static InfCode check_magic(InfError *e, const char *path, const unsigned char *b, uint64_t got,
                           int ndim) {
    const char *kind = ndim == 1 ? "labels" : "images";
    uint64_t header = 4 + 4 * (uint64_t)ndim;
    if (got == 0)
        return inf_fail(e, INF_DATA,
                        "%s: empty file; an IDX file of %s starts with %llu bytes of "
                        "header",
                        path, kind, (unsigned long long)header);
    const char *other = inf_file_sniff(b, (size_t)got);
    if (other)
        return inf_fail(e, INF_DATA, "%s: this is %s, not an IDX file of %s", path, other, kind);
    if (got >= 4 && b[0] == 0 && b[1] == 0 && b[2] == TYPE_U8 && b[3] != ndim)
        return inf_fail(e, INF_DATA, "%s: an IDX file of rank %d%s; %s have rank %d", path, b[3],
                        b[3] == 1   ? " (labels)"
                        : b[3] == 3 ? " (images)"
                                    : "",
                        kind, ndim);
    if (got >= 4 && b[0] == ndim && b[1] == TYPE_U8 && b[2] == 0 && b[3] == 0)
        return inf_fail(e, INF_DATA,
                        "%s: an IDX file with its bytes in the wrong order "
                        "(little-endian); IDX is big-endian",
                        path);
    if (got >= 4 && b[0] == 0 && b[1] == 0 && type_name(b[2]))
        return inf_fail(e, INF_DATA, "%s: holds %s; bytes are needed", path, type_name(b[2]));
    if (got >= 4 && (b[0] != 0 || b[1] != 0 || b[2] != TYPE_U8))
        return inf_fail(e, INF_DATA,
                        "%s: not an IDX file: starts with %02x %02x %02x %02x instead "
                        "of 00 00 08 %02x",
                        path, b[0], b[1], b[2], b[3], (unsigned)ndim);
    if (got < header)
        return inf_fail(e, INF_DATA, "%s: truncated: %llu bytes; the header alone takes %llu", path,
                        (unsigned long long)got, (unsigned long long)header);
    return INF_OK;
}

/* How many bytes of values the extents announce, checked against what the file can hold. */
static InfCode check_size(InfError *e, const Stream *s, const uint32_t *dims, int ndim,
                          uint64_t *values) {
    uint64_t wide[NDIM_MAX], header = 4 + 4 * (uint64_t)ndim, total = 0, most = s->file_bytes;
    for (int i = 0; i < ndim; i++) {
        if (dims[i] == 0)
            return inf_fail(e, INF_DATA, "%s: the header says extent 0 on axis %d", s->path, i);
        wide[i] = dims[i];
    }
    if (!inf_product(wide, ndim, values) || !inf_add(*values, header, &total))
        return inf_fail(e, INF_DATA, "%s: the header's extents multiply to more than 2^64 bytes",
                        s->path);
    if (s->compressed && !inf_mul(s->file_bytes, DEFLATE_RATIO_MAX, &most)) most = UINT64_MAX;
    if (total > most)
        return inf_fail(e, INF_DATA,
                        "%s: truncated: the header says %llu bytes in all, the file "
                        "has %llu%s",
                        s->path, (unsigned long long)total, (unsigned long long)s->file_bytes,
                        s->compressed ? " (compressed)" : "");
    if (!s->compressed && total < most)
        return inf_fail(e, INF_DATA, "%s: %llu bytes too long: the header says %llu bytes in all",
                        s->path, (unsigned long long)(most - total), (unsigned long long)total);
    return INF_OK;
}

static InfCode read_values(InfError *e, Stream *s, uint8_t *to, uint64_t bytes) {
    uint64_t got = 0, extra = 0;
    TRY(stream_read(e, s, to, bytes, &got));
    if (got < bytes)
        return inf_fail(e, INF_DATA, "%s: truncated: %llu bytes of values, the header says %llu",
                        s->path, (unsigned long long)got, (unsigned long long)bytes);
    unsigned char rest[1];
    TRY(stream_read(e, s, rest, 1, &extra));
    if (extra > 0)
        return inf_fail(e, INF_DATA, "%s: longer than the %llu bytes of values in its header",
                        s->path, (unsigned long long)bytes);
    return INF_OK;
}

static InfCode read_stream(InfError *e, Stream *s, int ndim, uint32_t *dims, uint8_t **out,
                           uint64_t *bytes) {
    unsigned char head[SNIFF_BYTES] = {0};
    uint64_t got = 0, header = 4 + 4 * (uint64_t)ndim, values = 0;
    TRY(stream_read(e, s, head, sizeof head, &got));
    s->compressed = !gzdirect(s->gz);
    TRY(check_magic(e, s->path, head, got, ndim));
    for (int i = 0; i < ndim; i++) dims[i] = big_endian(head + 4 + 4 * i);
    TRY(check_size(e, s, dims, ndim, &values));
    if (gzseek(s->gz, (z_off_t)header, SEEK_SET) < 0)
        return inf_fail(e, INF_IO, "%s: cannot seek", s->path);

    void *to = NULL;
    TRY(inf_map_memory(e, values, s->path, &to));
    InfCode code = read_values(e, s, to, values);
    if (code != INF_OK) {
        inf_unmap_memory(to, values);
        return code;
    }
    *out = to;
    *bytes = values;
    return INF_OK;
}

InfCode inf_idx_read(InfError *e, const char *path, int ndim, uint32_t *dims, uint8_t **out,
                     uint64_t *bytes) {
    INF_ASSERT(ndim >= 1 && ndim <= NDIM_MAX);
    Stream s;
    TRY(stream_open(e, path, &s));
    InfCode code = read_stream(e, &s, ndim, dims, out, bytes);
    gzclose(s.gz);
    return code;
}

static const char *const name_forms[] = {
    "%s-%s-idx%d-ubyte",
    "%s-%s.idx%d-ubyte",
    "%s-%s-idx%d-ubyte.gz",
    "%s-%s.idx%d-ubyte.gz",
};

/* The first existing spelling, in fresh memory, or NULL. */
static char *find_file(const char *dir, const char *base, const char *kind, int ndim) {
    for (size_t i = 0; i < sizeof name_forms / sizeof *name_forms; i++) {
        char name[64];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(name, sizeof name, name_forms[i], base, kind, ndim);
#pragma GCC diagnostic pop
        char *path = inf_path_join(dir, name);
        if (path && access(path, F_OK) == 0) return path;
        free(path);
    }
    return NULL;
}

/* "DIR: no images (train-images-idx3-ubyte ...); it holds ..." in fresh memory. */
static char *describe_missing(const char *dir, const char *base, const char *kind, int ndim) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    fprintf(out,
            "%s: no %s: neither %s-%s-idx%d-ubyte nor %s-%s.idx%d-ubyte, with or without .gz; "
            "there is ",
            dir, kind, base, kind, ndim, base, kind, ndim);
    inf_dir_describe(out, dir, 12);
    fclose(out);
    return text;
}

static InfCode read_pair(InfError *e, const char *images, const char *labels, InfImages *out) {
    uint32_t shape[3], count;
    TRY(inf_idx_read(e, images, 3, shape, &out->pixels, &out->pixel_bytes));
    TRY(inf_idx_read(e, labels, 1, &count, &out->labels, &out->label_bytes));
    if (shape[0] != count)
        return inf_fail(e, INF_DATA, "%s holds %u images but %s holds %u labels", images, shape[0],
                        labels, count);
    out->count = count;
    out->rows = shape[1];
    out->columns = shape[2];
    return INF_OK;
}

InfCode inf_images_read(InfError *e, const char *dir, const char *split, InfImages *out,
                        bool *absent, char **why) {
    *out = (InfImages){0};
    *absent = false;
    *why = NULL;
    const char *base = strcmp(split, "test") == 0 ? "t10k" : "train";
    char *images = find_file(dir, base, "images", 3);
    char *labels = find_file(dir, base, "labels", 1);
    InfCode code = INF_OK;
    if (!images && !labels) {
        *absent = true;
        *why = describe_missing(dir, base, "images", 3);
    } else if (!images || !labels) {
        char *text = images ? describe_missing(dir, base, "labels", 1)
                            : describe_missing(dir, base, "images", 3);
        code = inf_fail(e, INF_DATA, "%s", text ? text : dir);
        free(text);
    } else {
        code = read_pair(e, images, labels, out);
        if (code != INF_OK) inf_images_free(out);
    }
    free(images);
    free(labels);
    return code;
}

InfCode inf_images_check_labels(InfError *e, const InfImages *images, const char *dir,
                                uint32_t classes) {
    for (uint64_t i = 0; i < images->count; i++)
        if (images->labels[i] >= classes)
            return inf_fail(e, INF_DATA,
                            "%s: label %u of image %llu is out of range; the model has "
                            "classes 0 to %u",
                            dir, images->labels[i], (unsigned long long)i, classes - 1);
    return INF_OK;
}

void inf_images_free(InfImages *images) {
    inf_unmap_memory(images->pixels, images->pixel_bytes);
    inf_unmap_memory(images->labels, images->label_bytes);
    *images = (InfImages){0};
}
