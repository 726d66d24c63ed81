/* bpe.h - text to tokens and back.
 *
 * Two kinds: bytes (a token is a byte, 0 to 255), and byte-level byte-pair encoding as GPT-2 and
 * LLaMA-3 use it, read from Hugging Face's files: tokenizer.json, or vocab.json and merges.txt.
 * Encoding gives the tokens that the `tokenizers` library gives without special tokens added; names
 * of special tokens ("<|endoftext|>") inside the text become those tokens. Bytes that are no UTF-8
 * are kept: every text comes back from its tokens byte for byte.
 * Not thread-safe: encoding fills a cache.
 */
#ifndef INF_RUNTIME_BPE_H
#define INF_RUNTIME_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/status.h"

typedef struct InfBpe InfBpe;

/* Opens a tokenizer.
 *   where   "bytes"; a folder with tokenizer.json, or with vocab.json and merges.txt; or the path
 * of a tokenizer.json INF_DATA says what is missing or not understood. *out is NULL after a
 * failure. */
InfCode inf_bpe_open(InfError *e, const char *where, InfBpe **out);
void inf_bpe_close(InfBpe *b); /* NULL is fine */

/* Every token is in [0, this). */
int32_t inf_bpe_vocabulary(const InfBpe *b);

/* Takes tokens as they come; what it returns ends the encoding when it is not INF_OK. */
typedef InfCode InfBpeSink(InfError *e, void *context, const int32_t *token, size_t count);

InfCode inf_bpe_encode(InfError *e, InfBpe *b, const char *text, size_t bytes, InfBpeSink *sink,
                       void *context);

/* The same into fresh memory, freed with free(). */
InfCode inf_bpe_encode_all(InfError *e, InfBpe *b, const char *text, size_t bytes, int32_t **token,
                           size_t *count);

/* The bytes of a token, not terminated; owned by `b`. *bytes is 0 for one that the tokenizer lacks
 * (a model may have padding rows). A character may be spread over several tokens. */
const char *inf_bpe_token(const InfBpe *b, int32_t token, size_t *bytes);

#endif
