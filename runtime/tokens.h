/* tokens.h - a set of token files in memory, cut into samples.
 *
 * A sample is `length` tokens and the one behind them. Sample k of a file holds its tokens
 * [k * length, k * length + length]; the samples of several files follow each other in the order
 * of the files' names, and none reaches over the end of its file. Tokens at the end of a file that
 * fill no sample are not used.
 * Each sample is one row: its inputs are the row without the last token, its targets the row
 * without the first.
 */
#ifndef INF_RUNTIME_TOKENS_H
#define INF_RUNTIME_TOKENS_H

#include "runtime/status.h"

#include <stdint.h>

typedef struct InfTokens {
    uint64_t samples;
    uint64_t length; /* tokens of a sample, without the one behind them */
    uint32_t width;  /* bytes of a token: 2 or 4, little-endian */
    void *rows;      /* [samples, length + 1]; mapped */
    uint64_t bytes;
    uint64_t files, tokens; /* what was read */
} InfTokens;

/* Bytes of a token of a vocabulary, in memory and on a device. */
static inline uint32_t inf_token_width(int64_t vocabulary) { return vocabulary <= 65536 ? 2 : 4; }

/* Reads the files that `pattern` names (a path, or one with * ? []).
 *   vocabulary  every token of every file must be in [0, vocabulary)
 *   absent      set with INF_OK when there is no such file; *why then says so in fresh memory */
InfCode inf_tokens_read(InfError *e, const char *pattern, uint64_t length, int64_t vocabulary,
                        InfTokens *out, bool *absent, char **why);

void inf_tokens_free(InfTokens *t);

/* Token `i` of a row. */
static inline int32_t inf_token_at(const InfTokens *t, const void *row, uint64_t i) {
    return t->width == 2 ? ((const uint16_t *)row)[i] : ((const int32_t *)row)[i];
}

#endif
