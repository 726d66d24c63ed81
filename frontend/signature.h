/* signature.h - what a layer, function or setting may be given.
 *
 * Signatures are written as text in the tables, "x: tensor, tanh: bool = false", parsed once, and
 * printed in messages. A type ending in '?' may be left out. The types:
 *
 *   any  tensor  tensors (tuple of them)    int  size (>= 0)  count (>= 1)  ints (one or a tuple)
 *   pair (one or two of size)  float  nonneg  positive  share (0..1)  shares (two of [0, 1))
 *   bool  str  strs  word(a|b)  init  optimizer  schedule  data
 *   expr (kept as syntax)  pattern (list -> list)  path (of a parameter)
 */
#ifndef FRONTEND_SIGNATURE_H
#define FRONTEND_SIGNATURE_H

#include "frontend/value.h"

typedef enum ArgKind {
    ARG_any,
    ARG_tensor,
    ARG_tensors,
    ARG_int,
    ARG_size,
    ARG_count,
    ARG_ints,
    ARG_pair,
    ARG_float,
    ARG_nonneg,
    ARG_positive,
    ARG_share,
    ARG_shares,
    ARG_bool,
    ARG_str,
    ARG_strs,
    ARG_word,
    ARG_init,
    ARG_optimizer,
    ARG_schedule,
    ARG_data,
    ARG_expr,
    ARG_pattern,
    ARG_path,
    ARG_KIND_COUNT
} ArgKind;

typedef struct ArgSpec {
    const char *name;
    ArgKind kind;
    const char *words;    /* word: "f32|bf16" */
    const char *fallback; /* default as text; NULL: none */
    bool optional;        /* may be left out; without a fallback its value is VALUE_none */
} ArgSpec;

enum { ARGS_MAX = 12 };

typedef struct Signature {
    const char *name;
    ArgSpec arg[ARGS_MAX];
    int n;
} Signature;

/* Parse the text of a table. A malformed one is our mistake: it ends the program. */
Signature signature_parse(Arena *a, const char *name, const char *text);

/* "Linear(in, out, bias = true)" */
const char *signature_text(Arena *a, const Signature *s);

/* Index of an argument, or -1. */
int signature_find(const Signature *s, const char *name);

/* "a number >= 0", "one of f32, bf16": what an argument must be. */
const char *signature_wants(Arena *a, const ArgSpec *spec);

/* Whether `word` is one of the '|'-separated words. */
bool signature_has_word(const char *words, const char *word);

#endif
