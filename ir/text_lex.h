/* text_lex.h - tokens of the IR's text, for text_read*.c.
 *
 * The first mistake is reported and ends the reading: from then on every token is the end of the
 * text, so loops end by themselves and callers look at `failed` only where they would act.
 */
#ifndef INFINIC_IR_TEXT_LEX_H
#define INFINIC_IR_TEXT_LEX_H

#include "ir/module.h"

typedef enum TokenKind {
    TOKEN_end,
    TOKEN_word,   /* letters, digits, '_' and inner '.' */
    TOKEN_number, /* with sign, also -inf */
    TOKEN_string,
    TOKEN_value, /* %12 */
    TOKEN_punct  /* one character */
} TokenKind;

typedef struct TextReader {
    Module *m;
    uint32_t file, bytes, pos;
    const char *text;
    TokenKind kind;      /* of the current token */
    uint32_t begin, end; /* its bytes */
    uint32_t end_before; /* where the token before it ended */
    int depth;           /* of nested bodies */
    int nested_repeats;
    bool failed;
} TextReader;

enum { TEXT_TOKEN_BYTES_MAX = 4096 };

void text_next(TextReader *r);
Span text_span(const TextReader *r);
void text_fail(TextReader *r, Span span, const char *fmt, ...) ARENA_PRINTF(3, 4);
void text_fail_limit(TextReader *r, Span span, const char *fmt, ...) ARENA_PRINTF(3, 4);

/* "expected WHAT, got TOKEN" at the current token. */
void text_fail_expected(TextReader *r, const char *what);

bool text_is(const TextReader *r, const char *token); /* a word or a character */
bool text_accept(TextReader *r, const char *token);   /* and steps over it */
void text_expect(TextReader *r, const char *token);

/* Each reads one thing and steps over it; after a mistake they return 0, "" or type 0. */
int64_t text_read_int(TextReader *r, int64_t min, int64_t max);
double text_read_float(TextReader *r);
const char *text_read_string(TextReader *r);
const char *text_read_word(TextReader *r, const char *what);
int text_read_ints(TextReader *r, int64_t v[NDIM_MAX]); /* "[1,2]": how many */
Type text_read_type(TextReader *r);

#endif
