/* tensors.c - sets of weight files: finding them, looking names up, reading and writing values. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/check.h"
#include "runtime/safetensors.h"

enum { INDEX_BYTES_MAX = 100000000, PART_VALUES = 1 << 16 };

static int by_name(const void *a, const void *b) {
    const InfTensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

InfCode inf_tensors_sort(InfError *e, InfTensors *set, const char *path) {
    if (set->count > 1) qsort(set->tensors, (size_t)set->count, sizeof *set->tensors, by_name);
    for (int i = 1; i < set->count; i++)
        if (strcmp(set->tensors[i - 1].name, set->tensors[i].name) == 0)
            return inf_fail(e, INF_DATA, "%s: '%s' is in two shards, %s and %s", path,
                            set->tensors[i].name, set->paths[set->tensors[i - 1].file],
                            set->paths[set->tensors[i].file]);
    return INF_OK;
}

const InfTensor *inf_tensors_find(const InfTensors *set, const char *name) {
    InfTensor key = {.name = name};
    if (set->count == 0) return NULL;
    return bsearch(&key, set->tensors, (size_t)set->count, sizeof key, by_name);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A shard is a plain name beside the index: nothing that leaves its folder. */
static InfCode add_shard(InfError *e, InfTensors *set, const char *index, const char *name) {
    if (strchr(name, '/') || name[0] == '.' || !ends_with(name, ".safetensors"))
        return inf_fail(e, INF_DATA,
                        "%s: names the shard '%.100s'; a shard is a .safetensors file "
                        "beside the index",
                        index, name);
    const char *slash = strrchr(index, '/');
    char *dir = slash ? strndup(index, (size_t)(slash - index)) : strdup(".");
    char *path = dir ? inf_path_join(slash == index ? "/" : dir, name) : NULL;
    InfCode code = INF_OK;
    bool known = false;
    for (int i = 0; path && i < set->file_count; i++)
        known = known || strcmp(set->paths[i], path) == 0;
    if (!path)
        code = inf_fail(e, INF_IO, "%s: out of memory", index);
    else if (!known && access(path, F_OK) != 0)
        code = inf_fail(e, INF_DATA, "%s: the shard %s is missing", index, path);
    else if (!known)
        code = inf_tensors_add_file(e, set, path);
    free(dir);
    free(path);
    return code;
}

static InfCode check_index(InfError *e, const InfTensors *set, const char *index, json_t *map) {
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard) {
        const InfTensor *t = inf_tensors_find(set, name);
        const char *want = json_string_value(shard);
        if (!t || strcmp(base_name(set->paths[t->file]), want) != 0)
            return inf_fail(e, INF_DATA, "%s: '%.200s' is not in its shard %s", index, name, want);
    }
    for (int i = 0; i < set->count; i++)
        if (!json_object_get(map, set->tensors[i].name))
            return inf_fail(e, INF_DATA, "%s: '%s' is in %s but not in the index", index,
                            set->tensors[i].name, set->paths[set->tensors[i].file]);
    return INF_OK;
}

static InfCode add_index(InfError *e, InfTensors *set, const char *path, json_t *root) {
    json_t *map = json_object_get(root, "weight_map"), *shard;
    const char *name;
    if (!json_is_object(map)) return inf_fail(e, INF_DATA, "%s: has no object 'weight_map'", path);
    if (json_object_size(map) == 0)
        return inf_fail(e, INF_DATA, "%s: its 'weight_map' is empty", path);
    json_object_foreach(map, name, shard) {
        if (!json_is_string(shard))
            return inf_fail(e, INF_DATA, "%s: the shard of '%.200s' is not a string", path, name);
        TRY(add_shard(e, set, path, json_string_value(shard)));
    }
    TRY(inf_tensors_sort(e, set, path));
    return check_index(e, set, path, map);
}

static InfCode open_index(InfError *e, InfTensors *set, const char *path) {
    InfFile f;
    TRY(inf_file_open(e, path, &f));
    InfCode code = INF_OK;
    char *text = f.size <= INDEX_BYTES_MAX ? malloc((size_t)f.size + 1) : NULL;
    json_t *root = NULL;
    if (!text)
        code = inf_fail(e, INF_DATA, "%s: too large for an index (%llu bytes)", path,
                        (unsigned long long)f.size);
    if (code == INF_OK) code = inf_file_read_at(e, &f, 0, text, f.size);
    if (code == INF_OK) code = inf_json_parse(e, path, text, (size_t)f.size, &root);
    inf_file_close(&f);
    free(text);
    if (code == INF_OK) code = add_index(e, set, path, root);
    json_decref(root);
    return code;
}

static InfCode fail_pickle(InfError *e, const char *path) {
    return inf_fail(e, INF_DATA,
                    "%s: a %s file is a Python pickle, which can run any program and is never "
                    "read; convert it once with: python -c \"import torch, safetensors.torch as s; "
                    "s.save_file(torch.load('%s', weights_only=True), 'model.safetensors')\"",
                    path, strrchr(path, '.'), path);
}

static InfCode refuse_pickle(InfError *e, const char *path) {
    static const char *const ends[] = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(path, ends[i])) return fail_pickle(e, path);
    return INF_OK;
}

/* What may stand in a folder instead, made by older programs. */
static InfCode fail_folder(InfError *e, const char *dir) {
    static const char *const names[] = {"pytorch_model.bin", "model.pt", "model.pth"};
    InfCode code = INF_OK;
    for (size_t i = 0; code == INF_OK && i < sizeof names / sizeof *names; i++) {
        char *path = inf_path_join(dir, names[i]);
        if (path && access(path, F_OK) == 0) code = fail_pickle(e, path);
        free(path);
    }
    return code != INF_OK ? code
                          : inf_fail(e, INF_DATA,
                                     "%s: a folder with neither model.safetensors nor "
                                     "model.safetensors.index.json",
                                     dir);
}

static InfCode open_folder(InfError *e, InfTensors *set, const char *dir) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        char *path = inf_path_join(dir, names[i]);
        if (!path) return inf_fail(e, INF_IO, "%s: out of memory", dir);
        InfCode code = INF_OK;
        bool there = access(path, F_OK) == 0;
        if (there) code = inf_tensors_open(e, path, set);
        free(path);
        if (there) return code;
    }
    return fail_folder(e, dir);
}

InfCode inf_tensors_open(InfError *e, const char *path, InfTensors *out) {
    *out = (InfTensors){0};
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) return open_folder(e, out, path);
    TRY(refuse_pickle(e, path));
    if (!there) return inf_fail(e, INF_DATA, "%s: no such weights file", path);
    InfCode code = ends_with(path, ".index.json") ? open_index(e, out, path)
                                                  : inf_tensors_add_file(e, out, path);
    if (code == INF_OK) code = inf_tensors_sort(e, out, path);
    if (code != INF_OK) inf_tensors_close(out);
    return code;
}

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    uint32_t bits = exponent == 31 ? 0xFFu << 23 : (exponent + 112) << 23;
    bits |= sign | mantissa << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float to_float(InfDtype dtype, const unsigned char *from) {
    uint16_t half;
    uint32_t bits;
    double wide;
    float value;
    switch (dtype) {
    case INF_DTYPE_F16: memcpy(&half, from, sizeof half); return half_to_float(half);
    case INF_DTYPE_BF16:
        memcpy(&half, from, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    default: memcpy(&wide, from, sizeof wide); return (float)wide;
    }
}

InfCode inf_tensors_read_f32(InfError *e, const InfTensors *set, const InfTensor *t, float *to) {
    const InfFile *f = &set->files[t->file];
    if (t->dtype == INF_DTYPE_F32) return inf_file_read_at(e, f, t->offset, to, t->bytes);
    if (t->dtype != INF_DTYPE_F16 && t->dtype != INF_DTYPE_BF16 && t->dtype != INF_DTYPE_F64)
        return inf_fail(e, INF_DATA, "%s: '%s' is %s; floating-point values are needed", f->path,
                        t->name, inf_dtype_name(t->dtype));
    uint64_t width = inf_dtype_bytes(t->dtype);
    unsigned char *part = malloc(PART_VALUES * 8);
    if (!part) return inf_fail(e, INF_IO, "%s: out of memory", f->path);
    InfCode code = INF_OK;
    for (uint64_t done = 0; code == INF_OK && done < t->count;) {
        uint64_t n = t->count - done < PART_VALUES ? t->count - done : PART_VALUES;
        code = inf_file_read_at(e, f, t->offset + done * width, part, n * width);
        for (uint64_t i = 0; code == INF_OK && i < n; i++)
            to[done + i] = to_float(t->dtype, part + i * width);
        done += n;
    }
    free(part);
    return code;
}

static int by_out_name(const void *a, const void *b) {
    const InfTensorOut *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static uint64_t out_bytes(const InfTensorOut *t) {
    uint64_t count = 0, bytes = 0;
    bool fits =
        inf_product(t->shape, t->ndim, &count) && inf_mul(count, inf_dtype_bytes(t->dtype), &bytes);
    INF_ASSERT(fits);
    return bytes;
}

/* The header as text, padded with spaces so that the values start at a multiple of 8. */
static char *header_text(const InfTensorOut *tensors, int count) {
    json_t *root = json_object();
    json_object_set_new(root, "__metadata__", json_pack("{s:s}", "format", "pt"));
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        const InfTensorOut *t = &tensors[i];
        uint64_t end = at + out_bytes(t);
        json_t *shape = json_array();
        for (int axis = 0; axis < t->ndim; axis++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[axis]));
        json_object_set_new(root, t->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", inf_dtype_name(t->dtype),
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text) return NULL;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *out = realloc(text, padded + 1);
    if (!out) {
        free(text);
        return NULL;
    }
    memset(out + length, ' ', padded - length);
    out[padded] = '\0';
    return out;
}

InfCode inf_tensors_write(InfError *e, const char *path, InfTensorOut *tensors, int count) {
    if (count > 1) qsort(tensors, (size_t)count, sizeof *tensors, by_out_name);
    char *header = header_text(tensors, count);
    if (!header) return inf_fail(e, INF_IO, "%s: out of memory", path);
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)strlen(header) >> (8 * i));

    InfWriter w;
    InfCode code = inf_writer_open(e, path, &w);
    if (code == INF_OK) code = inf_writer_put(e, &w, length, sizeof length);
    if (code == INF_OK) code = inf_writer_put(e, &w, header, strlen(header));
    for (int i = 0; code == INF_OK && i < count; i++)
        code = inf_writer_put(e, &w, tensors[i].values, (size_t)out_bytes(&tensors[i]));
    free(header);
    if (code != INF_OK) {
        inf_writer_abandon(&w);
        return code;
    }
    return inf_writer_commit(e, &w);
}
