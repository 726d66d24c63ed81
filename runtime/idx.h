/* idx.h - the IDX files of MNIST and its relatives, plain or gzip.
 *
 * An IDX file is a magic number (0, 0, type, ndim), ndim big-endian u32 extents, and the values.
 * Only bytes (type 0x08) are read. Every way in which such a file was ever seen to be wrong is
 * refused with INF_DATA and a message that names it.
 */
#ifndef INF_RUNTIME_IDX_H
#define INF_RUNTIME_IDX_H

#include <stdint.h>

#include "runtime/status.h"

/* A pair of files in memory; both arrays are mapped and freed by inf_images_free(). */
typedef struct InfImages {
    uint64_t count;
    uint32_t rows, columns;
    uint8_t *pixels; /* [count, rows, columns] */
    uint8_t *labels; /* [count] */
    uint64_t pixel_bytes, label_bytes;
} InfImages;

/* One file of bytes.
 *   ndim   the rank it must have; dims receives the extents, *out the mapped values */
InfCode inf_idx_read(InfError *e, const char *path, int ndim, uint32_t *dims, uint8_t **out,
                     uint64_t *bytes);

/* The pair of a split, found in `dir` under any of its usual names.
 *   split    "train" or "test"
 *   absent   set, with INF_OK and nothing read, when there is no such folder or neither file is
 *            in it; *why then says in fresh memory what was looked for and what is there
 * Checked: equal counts, at least one image. */
InfCode inf_images_read(InfError *e, const char *dir, const char *split, InfImages *out,
                        bool *absent, char **why);

/* Every label must be below `classes`. */
InfCode inf_images_check_labels(InfError *e, const InfImages *images, const char *dir,
                                uint32_t classes);

void inf_images_free(InfImages *images);

#endif
