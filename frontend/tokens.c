/* tokens.c - from raw tokens to the tokens of the grammar.
 *
 * Decides which newlines end a statement: none inside ( ) or [ ], none before a line that starts
 * with '|>' or 'else', one before every '}' and before the end of the file. Keeps the bracket
 * stack: a bracket that the user left open, or closed with another kind, is one E001, and the
 * grammar sees what was meant. After a syntax error it skips to the end of the statement, whole
 * { } groups included, so that one slip gives one message.
 */
#include "frontend/grammar.h"
#include "frontend/parser.h"

#include <string.h>

static char open_of(int kind) {
    return kind == LBRACE || kind == RBRACE ? '{' : kind == LPAREN || kind == RPAREN ? '(' : '[';
}

static int closer_of(char open) { return open == '{' ? RBRACE : open == '(' ? RPAREN : RBRACKET; }

static const char *closer_text(char open) { return open == '{' ? "}" : open == '(' ? ")" : "]"; }

static bool is_opener(int kind) { return kind == LBRACE || kind == LPAREN || kind == LBRACKET; }

static bool is_closer(int kind) { return kind == RBRACE || kind == RPAREN || kind == RBRACKET; }

static char top_bracket(const Parser *p) {
    return p->bracket_count == 0 ? '\0' : p->bracket[p->bracket_count - 1].open;
}

static bool in_parens(const Parser *p) {
    char top = top_bracket(p);
    return top == '(' || top == '[';
}

void parser_give_up(Parser *p) {
    p->given_up = true;
    p->queue_count = 0;
}

static void bracket_push(Parser *p, Token t) {
    if (p->bracket_count == NESTING_MAX) {
        diag_error(p->diag, E026, t.span, "brackets are nested deeper than the limit of %d",
                   NESTING_MAX);
        parser_give_up(p);
        return;
    }
    p->bracket[p->bracket_count++] = (Bracket){open_of(t.kind), t.span};
}

static Token made(const Token *at, int kind) {
    Span here = {at->span.file, at->span.begin, at->span.begin};
    return (Token){.kind = kind, .span = here};
}

static void queue_add(Parser *p, Token t) {
    if (p->queue_count < TOKEN_QUEUE_MAX) p->queue[p->queue_count++] = t;
}

/* Say that the innermost bracket should have been closed before `got`. */
static void report_unclosed(Parser *p, Token got) {
    Bracket top = p->bracket[p->bracket_count - 1];
    Span at = got.span;
    diag_error(p->diag, E001, at, "expected '%s' to close '%c' opened at %s, got %s",
               closer_text(top.open), top.open, diag_place(p->diag, top.span, at),
               token_describe(p, got));
}

/* How many more ( and [ than ) and ] the rest of the line has. */
static int rest_balance(const Parser *p) {
    int balance = 0;
    for (uint32_t i = p->offset; i < p->source->bytes; i++) {
        char c = p->source->text[i];
        if (c == '\n' || c == '{' || c == '#') break;
        balance += (c == '(' || c == '[') - (c == ')' || c == ']');
    }
    return balance;
}

/* A closer of the wrong kind: was its bracket's own closer forgotten (then this one closes the
 * bracket around it), or was the wrong kind typed? Whichever makes the line balance. */
static bool closer_was_forgotten(const Parser *p, char want) {
    if (want == '{') return true;
    if (p->bracket_count < 2 || p->bracket[p->bracket_count - 2].open != want) return false;
    int open = 0;
    for (uint32_t i = p->bracket_count; i > 0 && p->bracket[i - 1].open != '{'; i--) open++;
    return rest_balance(p) == 2 - open;
}

/* A closer arrives; *t becomes the token to hand out. False: there is nothing to hand out. */
static bool close_bracket(Parser *p, Token *t) {
    char want = open_of(t->kind);
    if (p->bracket_count == 0) {
        diag_error(p->diag, E001, t->span, "unexpected %s: no bracket is open",
                   token_describe(p, *t));
        return false;
    }
    Bracket top = p->bracket[p->bracket_count - 1];
    if (top.open == want) {
        p->bracket_count--;
        return true;
    }
    if (top.open == '{') { /* ) or ] in a body */
        diag_error(p->diag, E001, t->span, "unexpected %s: the innermost open bracket is '{' at %s",
                   token_describe(p, *t), diag_place(p->diag, top.span, t->span));
        return false;
    }
    report_unclosed(p, *t);
    if (closer_was_forgotten(p, want)) {
        /* The closer was forgotten: hand it out first, then look at this token again. */
        queue_add(p, *t);
        *t = made(t, closer_of(top.open));
    } else {
        t->kind = closer_of(top.open); /* the wrong kind was typed */
    }
    p->bracket_count--;
    return true;
}

/* Words that are keywords only where an item begins. */
static void promote_keyword(const Parser *p, Token *t) {
    static const struct {
        const char *word;
        int kind;
    } words[] = {{"dim", DIM}, {"import", IMPORT}, {"block", BLOCK}, {"model", MODEL}};
    bool begins = p->previous.kind == NL || p->previous.kind == START_FILE;
    if (t->kind != NAME || p->bracket_count != 0 || !begins) return;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(t->node->text, words[i].word) == 0) t->kind = words[i].kind;
}

/* After a syntax error: raw tokens up to the one that begins the next statement, or that ends
 * the group around it. */
static Token skip_statement(Parser *p, Token t) {
    while (t.kind != END) {
        bool level = p->bracket_count <= p->skip_depth;
        bool fresh_line = t.after_newline && t.kind != PIPE && t.kind != ELSE;
        if (level && (fresh_line || t.kind == NL || t.kind == RBRACE)) break;
        if (t.kind == LBRACE) bracket_push(p, t);
        if (t.kind == RBRACE) p->bracket_count--;
        if (p->given_up) break;
        t = lexer_next(p);
    }
    p->skipping = false;
    return t;
}

void token_recover(Parser *p, Token got) {
    if (got.kind == NL || p->given_up) return;
    bool in_group = in_parens(p) || is_opener(got.kind);
    while (in_parens(p)) p->bracket_count--;
    if (in_group && got.after_newline && !is_opener(got.kind)) {
        /* The statement ended with the line before: hand this token out again after its end. */
        p->queue_count = 0;
        queue_add(p, made(&got, NL));
        queue_add(p, got);
        return;
    }
    p->queue_count = 0;
    p->skipping = true;
    p->skip_depth = p->bracket_count - (got.kind == LBRACE && p->bracket_count > 0 ? 1 : 0);
}

/* A newline token at the end of what was handed out last. */
static Token newline_after(const Parser *p) {
    Span end = p->previous.span;
    end.begin = end.end;
    return (Token){.kind = NL, .span = end};
}

static bool wants_newline(const Parser *p, const Token *t) {
    int before = p->previous.kind;
    if (before == NL || before == START_FILE || before == LBRACE || in_parens(p)) return false;
    if (t->kind == END || t->kind == RBRACE) return true;
    return t->after_newline && t->kind != PIPE && t->kind != ELSE;
}

static Token produce(Parser *p) {
    for (;;) {
        Token t;
        if (p->queue_count > 0) {
            t = p->queue[0];
            memmove(p->queue, p->queue + 1, --p->queue_count * sizeof(Token));
        } else {
            t = lexer_next(p);
            if (p->skipping) t = skip_statement(p, t);
        }
        if (p->given_up) return (Token){.kind = END, .span = t.span};
        if (p->previous.kind != START_EXPR && wants_newline(p, &t)) {
            t.after_newline = false;
            if (p->queue_count == 0)
                queue_add(p, t);
            else { /* keep order: t goes before what is queued */
                memmove(p->queue + 1, p->queue, p->queue_count * sizeof(Token));
                p->queue[0] = t;
                p->queue_count++;
            }
            return newline_after(p);
        }
        if (t.kind == ITerror) {
            token_recover(p, t);
            return t;
        }
        if (t.kind == NL && p->previous.kind == NL) continue;
        if (in_parens(p) && (t.kind == NL || t.kind == LBRACE || t.kind == END)) {
            report_unclosed(p, t);
            queue_add(p, t);
            Token closer = made(&t, closer_of(top_bracket(p)));
            p->bracket_count--;
            return closer;
        }
        if (t.kind == END && p->bracket_count > 0) { /* a '{' is open */
            report_unclosed(p, t);
            p->bracket_count--;
            queue_add(p, t);
            return made(&t, RBRACE);
        }
        if (is_opener(t.kind)) bracket_push(p, t);
        if (is_closer(t.kind) && !close_bracket(p, &t)) continue;
        promote_keyword(p, &t);
        return t;
    }
}

Token token_next(Parser *p) {
    Token t = produce(p);
    if (p->given_up) t.kind = END;
    p->previous = t;
    bool boundary = t.kind == NL || t.kind == LBRACE || t.kind == RBRACE;
    if (boundary)
        p->history_count = 0;
    else {
        if (p->history_count < HISTORY_MAX) p->history[p->history_count] = t;
        p->history_count++;
    }
    return t;
}
