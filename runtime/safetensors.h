/* safetensors.h - weight files: read with every check, written sorted.
 *
 * A file is opened once and its header checked in full before any value is read (see
 * safetensors.c for the list); tensors are then read or converted one at a time, straight to
 * where they belong. A sharded set (model.safetensors.index.json) looks like one file.
 */
#ifndef INF_RUNTIME_SAFETENSORS_H
#define INF_RUNTIME_SAFETENSORS_H

#include <stdint.h>

#include "runtime/file.h"
#include "runtime/status.h"

enum { INF_TENSOR_NDIM_MAX = 8, INF_TENSOR_NAME_MAX = 1024 };

typedef enum InfDtype {
    INF_DTYPE_none,
    INF_DTYPE_BOOL,
    INF_DTYPE_U8,
    INF_DTYPE_I8,
    INF_DTYPE_F8_E5M2,
    INF_DTYPE_F8_E4M3,
    INF_DTYPE_I16,
    INF_DTYPE_U16,
    INF_DTYPE_F16,
    INF_DTYPE_BF16,
    INF_DTYPE_I32,
    INF_DTYPE_U32,
    INF_DTYPE_F32,
    INF_DTYPE_F64,
    INF_DTYPE_I64,
    INF_DTYPE_U64,
    INF_DTYPE_COUNT
} InfDtype;

typedef struct InfTensor {
    const char *name; /* owned by the set */
    InfDtype dtype;
    int ndim;
    uint64_t shape[INF_TENSOR_NDIM_MAX];
    uint64_t count;  /* elements */
    uint64_t offset; /* of the first value, from the start of its file */
    uint64_t bytes;
    int file; /* index into InfTensors.files */
} InfTensor;

/* The tensors of one file or of a sharded set, sorted by name. Opaque outside safetensors*.c but
 * for `tensors` and `count`. */
typedef struct InfTensors {
    InfTensor *tensors;
    int count;
    InfFile *files;
    char **paths;
    int file_count;
} InfTensors;

/* `path` is a .safetensors file, an .index.json, or a folder that holds
 * model.safetensors or model.safetensors.index.json. Pickle files are refused by name. */
InfCode inf_tensors_open(InfError *e, const char *path, InfTensors *out);
void inf_tensors_close(InfTensors *set);

/* NULL when there is none. */
const InfTensor *inf_tensors_find(const InfTensors *set, const char *name);

/* Reads a tensor as f32, converting from F64, F16 and BF16; `to` holds t->count values. Other
 * dtypes are INF_DATA. */
InfCode inf_tensors_read_f32(InfError *e, const InfTensors *set, const InfTensor *t, float *to);

const char *inf_dtype_name(InfDtype dtype);
uint64_t inf_dtype_bytes(InfDtype dtype);

/* "[2, 3]" into `out`; returns out. */
const char *inf_shape_text(const uint64_t *shape, int ndim, char *out, size_t bytes);

/* One tensor to be written; f32 or i64. */
typedef struct InfTensorOut {
    const char *name;
    InfDtype dtype;
    int ndim;
    uint64_t shape[INF_TENSOR_NDIM_MAX];
    const void *values;
} InfTensorOut;

/* Writes a file with `__metadata__ {"format": "pt"}`; sorts `tensors` by name in place. */
InfCode inf_tensors_write(InfError *e, const char *path, InfTensorOut *tensors, int count);

/* Used by safetensors.c and sharded.c: appends the checked entries of one open file. */
InfCode inf_tensors_add_file(InfError *e, InfTensors *set, const char *path);
InfCode inf_tensors_sort(InfError *e, InfTensors *set, const char *path);

/* A JSON document of a file, strict: duplicates, trailing bytes and deep nesting are refused. */
struct json_t;
InfCode inf_json_parse(InfError *e, const char *path, const char *text, size_t bytes,
                       struct json_t **out);

#endif
