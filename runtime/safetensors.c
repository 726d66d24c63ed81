/* safetensors.c - the header of a weight file, checked before any value is believed.
 *
 * Checked: regular file, 8 bytes of header length, length at most 100,000,000 and inside the
 * file, first byte '{', UTF-8 and strict JSON without duplicate keys, bounded depth or trailing
 * bytes; __metadata__ maps strings to strings; an entry has exactly dtype, shape and data_offsets;
 * known dtype; rank at most 8, extents 0 .. 2^63-1, checked products; begin <= end and end - begin
 * the size that dtype and shape give; taken by begin the entries start at 0 and leave neither hole
 * nor overlap, and the last ends with the file; names are printable and at most 1,024 bytes.
 */
#include "runtime/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"

enum { HEADER_BYTES_MAX = 100000000, DEPTH_MAX = 8 };

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[INF_DTYPE_COUNT] = {
    [INF_DTYPE_none] = {"none", 0},       [INF_DTYPE_BOOL] = {"BOOL", 1},
    [INF_DTYPE_U8] = {"U8", 1},           [INF_DTYPE_I8] = {"I8", 1},
    [INF_DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [INF_DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [INF_DTYPE_I16] = {"I16", 2},         [INF_DTYPE_U16] = {"U16", 2},
    [INF_DTYPE_F16] = {"F16", 2},         [INF_DTYPE_BF16] = {"BF16", 2},
    [INF_DTYPE_I32] = {"I32", 4},         [INF_DTYPE_U32] = {"U32", 4},
    [INF_DTYPE_F32] = {"F32", 4},         [INF_DTYPE_F64] = {"F64", 8},
    [INF_DTYPE_I64] = {"I64", 8},         [INF_DTYPE_U64] = {"U64", 8},
};

const char *inf_dtype_name(InfDtype dtype) { return dtypes[dtype].name; }

uint64_t inf_dtype_bytes(InfDtype dtype) { return dtypes[dtype].bytes; }

const char *inf_shape_text(const uint64_t *shape, int ndim, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < ndim && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
    if (at < bytes) snprintf(out + at, bytes - at, "]");
    return out;
}

/* jansson recurses; this counts first, so that no input can exhaust the stack. */
static bool depth_within(const char *text, size_t bytes, int depth_max) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > depth_max) return false;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return true;
}

InfCode inf_json_parse(InfError *e, const char *path, const char *text, size_t bytes,
                       json_t **out) {
    if (bytes == 0 || text[0] != '{')
        return inf_fail(e, INF_DATA, "%s: its JSON does not start with '{'", path);
    if (!depth_within(text, bytes, DEPTH_MAX))
        return inf_fail(e, INF_DATA, "%s: its JSON nests deeper than %d", path, DEPTH_MAX);
    json_error_t error;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return inf_fail(e, INF_DATA, "%s: bad JSON: %s (byte %d)", path, error.text,
                        error.position);
    return INF_OK;
}

static InfCode check_metadata(InfError *e, const char *path, json_t *metadata) {
    if (!json_is_object(metadata))
        return inf_fail(e, INF_DATA, "%s: __metadata__ is not an object", path);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return inf_fail(
        e, INF_DATA, "%s: __metadata__: '%s' is not a string", path, key);
    return INF_OK;
}

static InfCode check_name(InfError *e, const char *path, const char *name) {
    size_t length = strlen(name);
    if (length > INF_TENSOR_NAME_MAX)
        return inf_fail(e, INF_DATA, "%s: a tensor's name has %zu bytes; at most %d are allowed",
                        path, length, INF_TENSOR_NAME_MAX);
    if (length == 0) return inf_fail(e, INF_DATA, "%s: a tensor has an empty name", path);
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* U+0080 to U+009F */
        if (c[0] < 0x20 || c[0] == 0x7f || high)
            return inf_fail(e, INF_DATA, "%s: a tensor's name holds the control character 0x%02x",
                            path, (unsigned)c[high]);
    }
    return INF_OK;
}

static InfCode parse_dtype(InfError *e, const char *path, json_t *value, InfTensor *t) {
    const char *text = json_string_value(value);
    if (!text) return inf_fail(e, INF_DATA, "%s: '%s': dtype is not a string", path, t->name);
    for (int d = INF_DTYPE_none + 1; d < INF_DTYPE_COUNT; d++)
        if (strcmp(dtypes[d].name, text) == 0) {
            t->dtype = (InfDtype)d;
            return INF_OK;
        }
    return inf_fail(e, INF_DATA, "%s: '%s': unknown dtype '%.32s'", path, t->name, text);
}

static InfCode parse_shape(InfError *e, const char *path, json_t *value, InfTensor *t) {
    if (!json_is_array(value))
        return inf_fail(e, INF_DATA, "%s: '%s': shape is not a list", path, t->name);
    size_t ndim = json_array_size(value);
    if (ndim > INF_TENSOR_NDIM_MAX)
        return inf_fail(e, INF_DATA, "%s: '%s': rank %zu; at most %d is allowed", path, t->name,
                        ndim, INF_TENSOR_NDIM_MAX);
    t->ndim = (int)ndim;
    for (int i = 0; i < t->ndim; i++) {
        json_t *extent = json_array_get(value, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return inf_fail(e, INF_DATA,
                            "%s: '%s': extent %d of its shape is not an integer in "
                            "0 .. 2^63-1",
                            path, t->name, i);
        t->shape[i] = (uint64_t)json_integer_value(extent);
    }
    if (!inf_product(t->shape, t->ndim, &t->count) ||
        !inf_mul(t->count, inf_dtype_bytes(t->dtype), &t->bytes))
        return inf_fail(e, INF_DATA, "%s: '%s': its shape multiplies to more than 2^64 bytes", path,
                        t->name);
    return INF_OK;
}

/* Leaves t->offset relative to the end of the header. */
static InfCode parse_offsets(InfError *e, const char *path, json_t *value, InfTensor *t) {
    json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return inf_fail(e, INF_DATA,
                        "%s: '%s': data_offsets is not [begin, end] with "
                        "0 <= begin <= end",
                        path, t->name);
    t->offset = (uint64_t)json_integer_value(begin);
    uint64_t span = (uint64_t)json_integer_value(end) - t->offset;
    char shape[256];
    if (span != t->bytes)
        return inf_fail(e, INF_DATA, "%s: '%s': its offsets span %llu bytes, but %s %s takes %llu",
                        path, t->name, (unsigned long long)span, inf_dtype_name(t->dtype),
                        inf_shape_text(t->shape, t->ndim, shape, sizeof shape),
                        (unsigned long long)t->bytes);
    return INF_OK;
}

static InfCode parse_entry(InfError *e, const char *path, json_t *entry, InfTensor *t) {
    if (!json_is_object(entry))
        return inf_fail(e, INF_DATA, "%s: '%s' is not an object", path, t->name);
    json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    json_t *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !shape || !offsets || json_object_size(entry) != 3)
        return inf_fail(e, INF_DATA, "%s: '%s' must have exactly dtype, shape and data_offsets",
                        path, t->name);
    TRY(parse_dtype(e, path, dtype, t));
    TRY(parse_shape(e, path, shape, t));
    return parse_offsets(e, path, offsets, t);
}

static int by_offset(const void *a, const void *b) {
    const InfTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The entries, sorted by begin, tile the file from the end of the header to its own end. */
static InfCode check_layout(InfError *e, const char *path, InfTensor *t, int count,
                            uint64_t bytes) {
    qsort(t, (size_t)count, sizeof *t, by_offset);
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (t[i].offset < at)
            return inf_fail(e, INF_DATA, "%s: '%s' overlaps '%s'", path, t[i].name, t[i - 1].name);
        if (t[i].offset > at)
            return inf_fail(e, INF_DATA, "%s: %llu bytes before '%s' belong to no tensor", path,
                            (unsigned long long)(t[i].offset - at), t[i].name);
        if (!inf_add(t[i].offset, t[i].bytes, &at) || at > bytes)
            return inf_fail(e, INF_DATA, "%s: truncated: '%s' ends after the end of the file", path,
                            t[i].name);
    }
    if (at != bytes)
        return inf_fail(e, INF_DATA, "%s: %llu bytes at its end belong to no tensor", path,
                        (unsigned long long)(bytes - at));
    return INF_OK;
}

static InfCode parse_header(InfError *e, InfTensors *set, int file, json_t *root, uint64_t base) {
    const char *path = set->paths[file];
    uint64_t data_bytes = set->files[file].size - base;
    size_t old = (size_t)set->count, total = old + json_object_size(root);
    InfTensor *grown = realloc(set->tensors, (total + 1) * sizeof *grown);
    if (!grown) return inf_fail(e, INF_IO, "%s: out of memory", path);
    set->tensors = grown;

    const char *key;
    json_t *entry;
    json_object_foreach(root, key, entry) {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(check_metadata(e, path, entry));
            continue;
        }
        TRY(check_name(e, path, key));
        InfTensor *t = &set->tensors[set->count];
        *t = (InfTensor){.name = strdup(key), .file = file};
        if (!t->name) return inf_fail(e, INF_IO, "%s: out of memory", path);
        set->count++;
        TRY(parse_entry(e, path, entry, t));
    }
    TRY(check_layout(e, path, set->tensors + old, set->count - (int)old, data_bytes));
    for (size_t i = old; i < (size_t)set->count; i++)
        if (!inf_add(set->tensors[i].offset, base, &set->tensors[i].offset))
            return inf_fail(e, INF_DATA, "%s: an offset is too large", path);
    return INF_OK;
}

static InfCode read_header(InfError *e, InfTensors *set, int file) {
    InfFile *f = &set->files[file];
    unsigned char head[32] = {0};
    if (f->size < 8)
        return inf_fail(e, INF_DATA, "%s: truncated: %llu bytes; a safetensors file has at least 8",
                        f->path, (unsigned long long)f->size);
    size_t sample = f->size < sizeof head ? (size_t)f->size : sizeof head;
    TRY(inf_file_read_at(e, f, 0, head, sample));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | head[i];
    if (length > HEADER_BYTES_MAX || length > f->size - 8) {
        const char *other = inf_file_sniff(head, sample);
        if (other)
            return inf_fail(e, INF_DATA, "%s: this is %s, not a safetensors file", f->path, other);
        return inf_fail(e, INF_DATA,
                        "%s: not a safetensors file, or truncated: its header would "
                        "have %llu bytes (at most %d, and %llu are in the file)",
                        f->path, (unsigned long long)length, HEADER_BYTES_MAX,
                        (unsigned long long)(f->size - 8));
    }
    char *text = malloc((size_t)length + 1);
    if (!text) return inf_fail(e, INF_IO, "%s: out of memory", f->path);
    json_t *root = NULL;
    InfCode code = inf_file_read_at(e, f, 8, text, length);
    if (code == INF_OK) code = inf_json_parse(e, f->path, text, (size_t)length, &root);
    free(text);
    if (code == INF_OK) code = parse_header(e, set, file, root, length + 8);
    json_decref(root);
    return code;
}

InfCode inf_tensors_add_file(InfError *e, InfTensors *set, const char *path) {
    size_t count = (size_t)set->file_count + 1;
    InfFile *files = realloc(set->files, count * sizeof *files);
    if (files) set->files = files;
    char **paths = realloc(set->paths, count * sizeof *paths);
    if (paths) set->paths = paths;
    char *copy = strdup(path);
    if (!files || !paths || !copy) {
        free(copy);
        return inf_fail(e, INF_IO, "%s: out of memory", path);
    }
    int file = set->file_count++;
    paths[file] = copy;
    files[file] = (InfFile){-1, 0, copy};
    TRY(inf_file_open(e, copy, &files[file]));
    return read_header(e, set, file);
}

void inf_tensors_close(InfTensors *set) {
    for (int i = 0; i < set->count; i++) {
        union {
            const char *in;
            char *out;
        } name = {set->tensors[i].name};
        free(name.out);
    }
    for (int i = 0; i < set->file_count; i++) {
        inf_file_close(&set->files[i]);
        free(set->paths[i]);
    }
    free(set->tensors);
    free(set->files);
    free(set->paths);
    *set = (InfTensors){0};
}
