/* file.h - files read whole or in parts, folders listed, files written so that a crash leaves
 * either the old one or the new one.
 */
#ifndef INF_RUNTIME_FILE_H
#define INF_RUNTIME_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/status.h"

/* A regular file, opened once for reading. */
typedef struct InfFile {
    int fd; /* -1 when closed */
    uint64_t size;
    const char *path; /* borrowed */
} InfFile;

/* Folders, devices and pipes are refused (INF_DATA); a file that cannot be opened is INF_IO. */
InfCode inf_file_open(InfError *e, const char *path, InfFile *out);

/* Reads exactly `bytes` at `offset`; INF_DATA when the file ends before. */
InfCode inf_file_read_at(InfError *e, const InfFile *f, uint64_t offset, void *to, uint64_t bytes);

void inf_file_close(InfFile *f);

/* What a file is that is not what it should be: "an HTML page", ... or NULL.
 *   head   its first bytes, `count` of them */
const char *inf_file_sniff(const unsigned char *head, size_t count);

/* Appends "a, b, c" to `out`: the names in a folder, sorted, at most `most` of them. */
void inf_dir_describe(FILE *out, const char *dir, int most);

/* "dir/name" in fresh memory, or NULL without memory. */
char *inf_path_join(const char *dir, const char *name);

/* A file under construction: written beside its final name, moved there when complete. */
typedef struct InfWriter {
    FILE *stream;
    char *path;
    char *temporary;
} InfWriter;

InfCode inf_writer_open(InfError *e, const char *path, InfWriter *out);
InfCode inf_writer_put(InfError *e, InfWriter *w, const void *from, size_t bytes);
/* Flushes to the disk and renames. On failure the temporary file is gone. */
InfCode inf_writer_commit(InfError *e, InfWriter *w);
/* Gives up: removes the temporary file. Harmless after a commit. */
void inf_writer_abandon(InfWriter *w);

/* Makes a folder and its parents; an existing one is fine. */
InfCode inf_dir_make(InfError *e, const char *path);

/* INF_IO when the file system of `path` has less than `bytes` free. */
InfCode inf_disk_check(InfError *e, const char *path, uint64_t bytes);

/* Flushes a folder's entries to the disk. */
InfCode inf_dir_sync(InfError *e, const char *path);

/* Anonymous zeroed memory from the system, page aligned, committed when touched. */
InfCode inf_map_memory(InfError *e, uint64_t bytes, const char *what, void **out);
void inf_unmap_memory(void *at, uint64_t bytes);

#endif
