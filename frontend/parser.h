/* parser.h - text of model.it to a syntax tree.
 *
 * parse_program reads the main file and everything it imports. Syntax mistakes are diagnostics;
 * parsing goes on after each, so that independent ones are reported together. The rest of this
 * header is shared by the lexer (lexer.l, tokens.c), the grammar (grammar.y) and the messages
 * (parse_error.c).
 *
 * The bracket stack lives in tokens.c: it decides which newlines are tokens, closes what the user
 * left open (so that the grammar never sees unbalanced brackets), and bounds nesting.
 */
#ifndef FRONTEND_PARSER_H
#define FRONTEND_PARSER_H

#include "frontend/ast.h"
#include "ir/diag.h"

enum {
    NESTING_MAX = 256,
    TOKEN_BYTES_MAX = 4096,
    HISTORY_MAX = 8,
    EXPECTED_MAX = 5,
    TOKEN_QUEUE_MAX = 4
};

typedef struct Token {
    int kind; /* a token of grammar.h */
    Span span;
    Ast *node;          /* NAME, NUMBER, STRING; else NULL */
    bool after_newline; /* a newline stands between the token before and this one */
} Token;

typedef struct Bracket {
    char open; /* ( [ { */
    Span span;
} Bracket;

typedef struct Parser {
    Arena *arena;
    Diag *diag;
    const Source *source;
    uint32_t file;
    void *scanner; /* flex's state */
    Bracket bracket[NESTING_MAX];
    uint32_t bracket_count;
    uint32_t offset;              /* the lexer's place in the text */
    bool newline;                 /* the lexer passed a newline since its last token */
    Token queue[TOKEN_QUEUE_MAX]; /* tokens to hand out before reading on, in order */
    uint32_t queue_count;
    Token previous;             /* the last token handed out */
    Token history[HISTORY_MAX]; /* the first tokens of the statement at hand */
    uint32_t history_count;     /* how many tokens it has, also beyond HISTORY_MAX */
    bool skipping;              /* after a syntax error: to the end of the statement */
    uint32_t skip_depth;        /* the bracket depth of that statement */
    uint32_t node_count;
    bool given_up; /* a limit was hit: only the end of the file follows */
    Ast *result;
} Parser;

/* A whole program: [0] is the main file, imported files follow, each once. */
typedef struct ModelText {
    VEC(Ast *) files;
} ModelText;

/* Parse `path` and what it imports. Errors are recorded in d; what could be parsed is returned. */
ModelText *parse_program(Arena *arena, Sources *sources, Diag *d, const char *path);

/* Parse one text that is in memory, without following imports. NULL when it is not text. */
Ast *parse_source(Arena *arena, const Sources *sources, Diag *d, uint32_t file);

/* Parse one expression, from byte `begin` of a text to its end (a -D value). NULL after errors. */
Ast *parse_expression(Arena *arena, const Sources *sources, Diag *d, Span text);

/* --- between lexer, grammar and messages --- */

/* A node for the grammar's actions; counts nodes and bounds the tree. */
Ast *parser_node(Parser *p, AstKind kind, Span span, const Ast *name);
Ast *parser_push(Parser *p, Ast *parent, Ast *child);
Ast *parser_binary(Parser *p, AstOp op, Ast *left, Ast *right);

/* The next token for the grammar (tokens.c), and the next raw one (lexer.l). */
Token token_next(Parser *p);
Token lexer_next(Parser *p);

/* Begin and end scanning; text has two NULs behind its `bytes` bytes and is written to. */
void lexer_open(Parser *p, char *text, size_t bytes);
void lexer_close(Parser *p);

/* Stop reading: what follows is the end of the file, without further errors. */
void parser_give_up(Parser *p);

/* Forget brackets opened since the last '{' and skip to the end of the statement of `got`. */
void token_recover(Parser *p, Token got);

/* Record a syntax error at `got`; `expected` are token names, `n` of them (parse_error.c). */
void parse_report(Parser *p, Token got, const char *const *expected, int n);

/* "name 'T'", "')'", "end of file" */
const char *token_describe(const Parser *p, Token t);

#endif
