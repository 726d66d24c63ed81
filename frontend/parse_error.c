/* parse_error.c - what a syntax error says.
 *
 * bison tells which token does not fit and which would; the first tokens of the statement tell
 * what the user was about. Known slips get advice of their own, everything else lists what was
 * expected.
 */
#include "frontend/grammar.h"
#include "frontend/parser.h"

#include <string.h>

static const char *token_name(const Parser *p, const Token *t) {
    const char *begin = p->source->text + t->span.begin;
    uint32_t n = t->span.end - t->span.begin;
    if (n > 40) n = 40;
    return arena_strndup(p->arena, begin, n);
}

const char *token_describe(const Parser *p, Token t) {
    switch (t.kind) {
    case END: return "end of the file";
    case NL: return t.span.begin < t.span.end ? "';'" : "end of the line";
    case NAME: return arena_printf(p->arena, "name '%s'", token_name(p, &t));
    case NUMBER: return arena_printf(p->arena, "number %s", token_name(p, &t));
    case STRING: return arena_printf(p->arena, "string %s", token_name(p, &t));
    default: return arena_printf(p->arena, "'%s'", token_name(p, &t));
    }
}

static bool expects(const char *const *expected, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(expected[i], name) == 0) return true;
    return false;
}

static const char *name_text(const Token *t) {
    return t->node != NULL && t->node->text != NULL ? t->node->text : "";
}

/* The rest of the line from a token on, as an example to show. */
static const char *rest_of_line(const Parser *p, Token t) {
    uint32_t end = t.span.begin;
    const char *text = p->source->text;
    while (end < p->source->bytes && strchr("\n;#}", text[end]) == NULL && end - t.span.begin < 40)
        end++;
    while (end > t.span.begin && (text[end - 1] == ' ' || text[end - 1] == '\r')) end--;
    return arena_strndup(p->arena, text + t.span.begin, end - t.span.begin);
}

/* `fc: Linear(4, 4) * 3` */
static bool report_suffix(Parser *p, Token got) {
    bool member = p->history_count > 3 && p->history[0].kind == NAME &&
                  p->history[1].kind == COLON && p->history[2].kind == NAME;
    bool in_body = p->bracket_count > 0 && p->bracket[p->bracket_count - 1].open == '{';
    if (!member || !in_body || got.kind == NAME) return false;
    DiagRef e = diag_error(p->diag, E005, got.span,
                           "unexpected %s after a member; repetition is written 'x 3'",
                           token_describe(p, got));
    uint32_t begin = p->history[2].span.begin, end = got.span.begin;
    while (end > begin && p->source->text[end - 1] == ' ') end--;
    if (end - begin <= 60)
        diag_hint(p->diag, e, "%s: %.*s x 3", name_text(&p->history[0]), (int)(end - begin),
                  p->source->text + begin);
    return true;
}

/* `a Linear(4, 4)`, `B 4` */
static bool report_after_name(Parser *p, Token got, const char *const *expected, int n) {
    if (p->history_count != 2 || p->history[0].kind != NAME) return false;
    const char *name = name_text(&p->history[0]);
    if (expects(expected, n, "':'")) {
        bool layer = got.kind == NAME;
        DiagRef e =
            diag_error(p->diag, E004, got.span, "expected ':' or '=' after '%s'%s%s", name,
                       layer ? "; members are declared " : "",
                       layer ? arena_printf(p->arena, "'%s: %s'", name, rest_of_line(p, got)) : "");
        if (got.kind == LPAREN)
            diag_hint(p->diag, e, "a call must be used: y = %s or return %s",
                      rest_of_line(p, p->history[0]), rest_of_line(p, p->history[0]));
        return true;
    }
    if (expects(expected, n, "'='") && p->bracket_count > 0) {
        DiagRef e = diag_error(p->diag, E004, got.span, "expected '=' after '%s', got %s", name,
                               token_describe(p, got));
        diag_hint(p->diag, e, "entries of a section are written '%s = VALUE'", name);
        return true;
    }
    return false;
}

static void report_expected(Parser *p, Token got, const char *const *expected, int n) {
    const char *list = "";
    for (int i = 0; i < n && n <= EXPECTED_MAX; i++)
        list = arena_printf(p->arena, "%s%s%s", list,
                            i == 0       ? ""
                            : i == n - 1 ? " or "
                                         : ", ",
                            expected[i]);
    diag_error(p->diag, E002, got.span, "unexpected %s%s%s", token_describe(p, got),
               list[0] != '\0' ? "; expected " : "", list);
}

static bool report_statement_end(Parser *p, Token got, const char *const *expected, int n) {
    if (!expects(expected, n, "end of line") || p->bracket_count == 0) return false;
    if (got.kind == COLON || got.kind == EQUALS) return false;
    const char *what = p->history[1].kind == COLON ? "a member" : "a value";
    diag_error(p->diag, E002, got.span, "unexpected %s after %s; entries end with a newline or ';'",
               token_describe(p, got), what);
    return true;
}

void parse_report(Parser *p, Token got, const char *const *expected, int n) {
    if (p->given_up) return;
    char top = p->bracket_count > 0 ? p->bracket[p->bracket_count - 1].open : '\0';
    if ((top == '(' || top == '[') && got.after_newline) {
        Bracket open = p->bracket[p->bracket_count - 1];
        diag_error(p->diag, E001, got.span, "expected '%c' to close '%c' opened at %s, got %s",
                   top == '(' ? ')' : ']', top, diag_place(p->diag, open.span, got.span),
                   token_describe(p, got));
    } else if (!report_suffix(p, got) && !report_after_name(p, got, expected, n) &&
               !report_statement_end(p, got, expected, n)) {
        report_expected(p, got, expected, n);
    }
    if (p->diag->error_count >= DIAG_ERRORS_MAX) parser_give_up(p);
    token_recover(p, got);
}
