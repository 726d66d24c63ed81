/* type.h - interned tensor types: dtype and static shape.
 *
 * A Type is an id into a TypeTable; equal types have equal ids, so `a.id == b.id` compares them.
 * Id 0 is "no type". Shapes are static: every dimension is a known int64 >= 0, row-major and
 * dense. Tables live in the module's arena and are never shrunk.
 */
#ifndef INFINIC_IR_TYPE_H
#define INFINIC_IR_TYPE_H

#include "ir/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NDIM_MAX = 8 };

typedef enum Dtype { DT_none, DT_f32, DT_bf16, DT_i32, DT_u8, DT_bool, DT_count } Dtype;

typedef struct {
    uint32_t id;
} Type;

typedef struct TypeInfo {
    Dtype dtype;
    int ndim;
    int64_t dim[NDIM_MAX];
} TypeInfo;

typedef struct TypeTable TypeTable;

TypeTable *type_table_new(Arena *arena);

/* Interns (dtype, dims). Returns type 0 when ndim > NDIM_MAX, a dimension is negative or the
 * element count or byte size overflows int64: the caller turns that into a diagnostic. */
Type type_intern(TypeTable *tt, Dtype dtype, int ndim, const int64_t *dim);

/* The description of `t`; stays valid as long as the table. `t` must not be 0. */
const TypeInfo *type_info(const TypeTable *tt, Type t);

int64_t type_elems(const TypeTable *tt, Type t); /* product of the dimensions, 1 for [] */
int64_t type_bytes(const TypeTable *tt, Type t);

const char *dtype_name(Dtype dtype); /* "f32", ... */
int dtype_bytes(Dtype dtype);        /* f32 4, bf16 2, i32 4, u8 1, bool 1 */
bool dtype_is_float(Dtype dtype);
Dtype dtype_from_name(const char *name, size_t len); /* DT_none when unknown */

/* "f32[64,10]", "i32[]"; allocated in `arena`. */
const char *type_print(const TypeTable *tt, Arena *arena, Type t);

#endif
