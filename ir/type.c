/* type.c - interned tensor types; see type.h. */
#include "ir/type.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int bytes;
    bool is_float;
} dtype_table[DT_count] = {
    [DT_none] = {"none", 0, false}, [DT_f32] = {"f32", 4, true}, [DT_bf16] = {"bf16", 2, true},
    [DT_i32] = {"i32", 4, false},   [DT_u8] = {"u8", 1, false},  [DT_bool] = {"bool", 1, false},
};

/* Open addressing over ids; a slot of 0 is free. The infos are allocated one by one, so that a
 * TypeInfo never moves. */
struct TypeTable {
    Arena *arena;
    VEC(TypeInfo *) info; /* [0] is unused */
    uint32_t *slot;
    uint32_t slot_count; /* a power of two, more than twice the number of types */
};

enum { SLOTS_FIRST = 64 };

TypeTable *type_table_new(Arena *arena) {
    TypeTable *tt = ARENA_NEW(arena, TypeTable);
    tt->arena = arena;
    vec_push(arena, &tt->info, ARENA_NEW(arena, TypeInfo));
    tt->slot = ARENA_ARRAY(arena, uint32_t, SLOTS_FIRST);
    tt->slot_count = SLOTS_FIRST;
    return tt;
}

static uint32_t hash_info(const TypeInfo *info) {
    uint64_t h = (uint64_t)info->dtype * 31 + (uint64_t)info->ndim;
    for (int i = 0; i < info->ndim; i++) {
        h = (h ^ (uint64_t)info->dim[i]) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 29;
    }
    return (uint32_t)(h ^ h >> 32);
}

/* The slot that holds `info`, or the free one where it belongs. */
static uint32_t slot_find(const TypeTable *tt, const TypeInfo *info) {
    uint32_t mask = tt->slot_count - 1;
    uint32_t at = hash_info(info) & mask;
    while (tt->slot[at] != 0 && memcmp(tt->info.data[tt->slot[at]], info, sizeof *info) != 0)
        at = (at + 1) & mask;
    return at;
}

static void slots_grow(TypeTable *tt) {
    tt->slot_count *= 2;
    tt->slot = ARENA_ARRAY(tt->arena, uint32_t, tt->slot_count);
    for (uint32_t id = 1; id < tt->info.n; id++) tt->slot[slot_find(tt, tt->info.data[id])] = id;
}

/* False when the byte size overflows. Dimensions of 0 count as 1, so that strides are safe too. */
static bool size_fits(Dtype dtype, int ndim, const int64_t *dim) {
    int64_t bytes = dtype_table[dtype].bytes;
    for (int i = 0; i < ndim; i++) {
        if (dim[i] < 0) return false;
        if (dim[i] > 1 && bytes > INT64_MAX / dim[i]) return false;
        if (dim[i] > 1) bytes *= dim[i];
    }
    return true;
}

Type type_intern(TypeTable *tt, Dtype dtype, int ndim, const int64_t *dim) {
    if (dtype <= DT_none || dtype >= DT_count || ndim < 0 || ndim > NDIM_MAX) return (Type){0};
    if (!size_fits(dtype, ndim, dim)) return (Type){0};
    TypeInfo info;
    memset(&info, 0, sizeof info);
    info.dtype = dtype;
    info.ndim = ndim;
    for (int i = 0; i < ndim; i++) info.dim[i] = dim[i];
    uint32_t at = slot_find(tt, &info);
    if (tt->slot[at] != 0) return (Type){tt->slot[at]};
    TypeInfo *kept = ARENA_NEW(tt->arena, TypeInfo);
    *kept = info;
    uint32_t id = tt->info.n;
    vec_push(tt->arena, &tt->info, kept);
    tt->slot[at] = id;
    if (tt->info.n * 2 >= tt->slot_count) slots_grow(tt);
    return (Type){id};
}

const TypeInfo *type_info(const TypeTable *tt, Type t) {
    return tt->info.data[t.id < tt->info.n ? t.id : 0];
}

int64_t type_elems(const TypeTable *tt, Type t) {
    const TypeInfo *info = type_info(tt, t);
    int64_t n = 1;
    for (int i = 0; i < info->ndim; i++) n *= info->dim[i];
    return n;
}

int64_t type_bytes(const TypeTable *tt, Type t) {
    return type_elems(tt, t) * dtype_table[type_info(tt, t)->dtype].bytes;
}

const char *dtype_name(Dtype dtype) { return dtype_table[dtype].name; }

int dtype_bytes(Dtype dtype) { return dtype_table[dtype].bytes; }

bool dtype_is_float(Dtype dtype) { return dtype_table[dtype].is_float; }

Dtype dtype_from_name(const char *name, size_t len) {
    for (int d = DT_none + 1; d < DT_count; d++)
        if (strlen(dtype_table[d].name) == len && memcmp(dtype_table[d].name, name, len) == 0)
            return (Dtype)d;
    return DT_none;
}

const char *type_print(const TypeTable *tt, Arena *arena, Type t) {
    if (t.id == 0) return "none";
    const TypeInfo *info = type_info(tt, t);
    char text[NDIM_MAX * 21 + 16];
    size_t n = (size_t)snprintf(text, sizeof text, "%s[", dtype_table[info->dtype].name);
    for (int i = 0; i < info->ndim; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i > 0 ? "," : "",
                              (long long)info->dim[i]);
    snprintf(text + n, sizeof text - n, "]");
    return arena_strdup(arena, text);
}
