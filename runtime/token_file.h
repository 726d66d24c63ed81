/* token_file.h - one file of tokens: which format it has, and what is wrong with it.
 *
 * Formats: a header of 1024 bytes (256 little-endian i32: magic, version, count) before u16 tokens
 * (20240520, version 1) or u32 tokens (20240801, version 7), as llm.c writes them; a NumPy array of
 * integers of rank 1 (.npy); anything else is raw u16 without a header. Sizes are 64 bits wide and
 * have to fit together exactly.
 */
#ifndef INF_RUNTIME_TOKEN_FILE_H
#define INF_RUNTIME_TOKEN_FILE_H

#include "runtime/file.h"

enum { INF_TOKEN_HEADER_BYTES = 1024, INF_TOKEN_HEADER_WORDS = 256 };
enum { INF_TOKEN_MAGIC_U16 = 20240520, INF_TOKEN_VERSION_U16 = 1 };
enum { INF_TOKEN_MAGIC_U32 = 20240801, INF_TOKEN_VERSION_U32 = 7 };

typedef struct InfTokenFile {
    InfFile file;
    uint64_t offset; /* bytes before the first token */
    uint64_t count;  /* tokens */
    uint32_t width;  /* bytes of one: 1, 2, 4, 8 */
    bool is_signed;
    bool raw; /* nothing in the file says what it is */
} InfTokenFile;

/* Opens and checks everything but the tokens. On failure nothing is left open. */
InfCode inf_token_file_open(InfError *e, const char *path, InfTokenFile *out);

/* Reads tokens first .. first + count - 1.
 *   raw   count * width bytes of room
 *   to    [count]; values beyond i32 become -1, which no vocabulary holds */
InfCode inf_token_file_read(InfError *e, const InfTokenFile *f, uint64_t first, uint64_t count,
                            void *raw, int32_t *to);

void inf_token_file_close(InfTokenFile *f);

#endif
