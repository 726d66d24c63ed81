/* text.h - the two ends of generate: a prompt in, tokens out as they come, as text or as ids.
 *
 * Text needs a tokenizer. One that the model names and that is not there is as good as none: ids
 * are read and printed then, with a notice.
 */
#ifndef INF_RUNTIME_TEXT_H
#define INF_RUNTIME_TEXT_H

#include "runtime/bpe.h"
#include "runtime/options.h"

typedef struct InfIds {
    int32_t *id; /* freed with free() */
    int64_t count, room;
} InfIds;

InfCode inf_ids_push(InfError *e, InfIds *t, int32_t id);

typedef struct InfText {
    const Plan *plan;
    const InfOptions *options;
    InfBpe *bpe; /* NULL: none is needed, or there is none */
    const char *where; /* of the tokenizer; NULL: nobody named one */
    bool ids;      /* tokens are printed as ids */
    int64_t limit; /* tokens of the model are in [0, limit) */
    int64_t printed;
    char held[4]; /* the beginning of a character whose end is in a later token */
    size_t nheld;
} InfText;

/* Opens the tokenizer where one is needed. */
InfCode inf_text_open(InfError *e, const Plan *plan, const InfOptions *o, int64_t limit,
                      InfText *out);
void inf_text_close(InfText *t);

/* The prompt that the command line gives; at least one token. */
InfCode inf_text_prompt(InfError *e, InfText *t, InfIds *out);

/* Prints one token at once, but for a character that it does not complete; and the end of a text,
 * so that another may follow. */
InfCode inf_text_put(InfError *e, InfText *t, int32_t id);
InfCode inf_text_end(InfError *e, InfText *t);

/* How many of the bytes are whole characters: all but an incomplete one at the end. What is no
 * UTF-8 counts as whole. */
size_t inf_text_whole(const char *text, size_t bytes);

#endif
