/* bpe_table.h - inside a tokenizer: its tables, filled by bpe_load.c and used by bpe.c. */
#ifndef INF_RUNTIME_BPE_TABLE_H
#define INF_RUNTIME_BPE_TABLE_H

#include <stdbool.h>

#include "runtime/bpe.h"
#include "runtime/pretoken.h"

enum { INF_BPE_TOKENS_MAX = 1 << 24 };

typedef struct InfBpeToken {
    char *text; /* not terminated */
    uint32_t bytes;
} InfBpeToken;

/* Two tokens that become one; the lowest rank comes first. An empty slot has left -1. */
typedef struct InfBpeMerge {
    int32_t left, right, rank, token;
} InfBpeMerge;

enum { INF_BPE_CACHE_SLOTS = 1 << 14, INF_BPE_CACHE_TEXT = 30, INF_BPE_CACHE_TOKENS = 8 };

/* A word and its tokens, of the last words that fell into this slot. */
typedef struct InfBpeCached {
    uint8_t bytes, count; /* bytes 0: empty */
    char text[INF_BPE_CACHE_TEXT];
    int32_t token[INF_BPE_CACHE_TOKENS];
} InfBpeCached;

/* A part of the word that is being encoded. */
typedef struct InfBpePart {
    int32_t token, before, after; /* neighbours, -1 at the ends; token -1: merged away */
} InfBpePart;

typedef struct InfBpeCandidate {
    int32_t rank, part, left, right, token;
} InfBpeCandidate;

struct InfBpe {
    bool bytes_only;
    InfPretokenStyle style;
    bool ignore_merges;      /* a word that is a token is taken whole */
    int32_t count;           /* of tokens, holes included */
    InfBpeToken *token;      /* [count] */
    int32_t byte_token[256]; /* -1: none */
    char byte_text[256];     /* bytes_only: the texts */
    int32_t *by_text;        /* [text_slots], -1: empty */
    size_t text_slots;
    InfBpeMerge *merge; /* [merge_slots] */
    size_t merge_slots;
    int32_t *special; /* tokens found by name in the text, the longest first */
    size_t specials;
    bool special_start[256];
    InfBpeCached *cache;
    InfBpePart *part; /* of one word */
    InfBpeCandidate *heap;
    size_t parts_room, heap_room;
};

/* Makes room for tokens 0 .. count - 1 and for so many merges. */
InfCode inf_bpe_size(InfError *e, InfBpe *b, int64_t count, size_t merges);

/* Gives a token its text. INF_DATA when the token has one already, or the text a token. */
InfCode inf_bpe_put_token(InfError *e, InfBpe *b, int64_t token, const char *text, size_t bytes);

/* The token of a text, -1 if there is none. */
int32_t inf_bpe_find(const InfBpe *b, const char *text, size_t bytes);

/* Later merges of the same pair are ignored. */
void inf_bpe_put_merge(InfBpe *b, InfBpeMerge merge);
const InfBpeMerge *inf_bpe_find_merge(const InfBpe *b, int32_t left, int32_t right);

/* Fills an empty tokenizer from files. */
InfCode inf_bpe_load(InfError *e, InfBpe *b, const char *where);

#endif
