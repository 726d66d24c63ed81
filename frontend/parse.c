/* parse.c - from a file name to syntax trees: is it text, the parser's run, imports. */
#include "frontend/grammar.h"
#include "frontend/parser.h"

#include <string.h>

/* --- nodes for the grammar --- */

Ast *parser_node(Parser *p, AstKind kind, Span span, const Ast *name) {
    if (++p->node_count == AST_NODES_MAX) {
        diag_error(p->diag, E026, span, "the file has more than %d syntax elements", AST_NODES_MAX);
        parser_give_up(p);
    }
    return ast_new(p->arena, kind, span, name != NULL ? name->text : NULL);
}

Ast *parser_push(Parser *p, Ast *parent, Ast *child) {
    ast_push(p->arena, parent, child);
    if (parent->depth > AST_DEPTH_MAX && !p->given_up) {
        diag_error(p->diag, E026, child->span,
                   "an expression is nested deeper than the limit of %d", AST_DEPTH_MAX);
        parser_give_up(p);
    }
    return parent;
}

Ast *parser_binary(Parser *p, AstOp op, Ast *left, Ast *right) {
    Ast *node = parser_node(p, AST_binary, span_join(left->span, right->span), NULL);
    node->op = op;
    return parser_push(p, parser_push(p, node, left), right);
}

/* --- one text --- */

/* NUL bytes and malformed UTF-8 are refused with their place. */
static bool check_text(const Source *src, uint32_t file, Diag *d) {
    for (uint32_t i = 0; i < src->bytes;) {
        uint32_t width = source_utf8_width(src->text + i, src->bytes - i);
        Span at = {file, i, i + 1};
        if (src->text[i] == '\0') {
            DiagRef e = diag_error(d, E027, at, "the file contains a NUL byte, so it is not text");
            if (i > 0 && i < 4) diag_hint(d, e, "it may be UTF-16: save it as UTF-8");
            return false;
        }
        if (width == 0) {
            DiagRef e = diag_error(d, E027, at, "the file is not UTF-8 here (byte 0x%02x)",
                                   (unsigned)(unsigned char)src->text[i]);
            if (i == 0 &&
                ((unsigned char)src->text[0] == 0xFF || (unsigned char)src->text[0] == 0xFE))
                diag_hint(d, e, "it begins like UTF-16: save it as UTF-8");
            return false;
        }
        i += width;
    }
    return true;
}

static Ast *parse_from(Arena *arena, const Sources *sources, Diag *d, Span text, int start) {
    Parser *p = ARENA_NEW(arena, Parser);
    p->arena = arena;
    p->diag = d;
    p->file = text.file;
    p->source = source_get(sources, text.file);
    p->offset = text.begin;
    p->queue[p->queue_count++] =
        (Token){.kind = start, .span = {text.file, text.begin, text.begin}};
    p->previous.kind = START_EXPR; /* nothing before the first token asks for a newline */
    size_t bytes = p->source->bytes - text.begin;
    char *copy = arena_alloc(arena, bytes + 2);
    memcpy(copy, p->source->text + text.begin, bytes);
    lexer_open(p, copy, bytes);
    uint32_t errors = d->error_count;
    int status = itparse(p);
    lexer_close(p);
    if (status != 0 && d->error_count == errors)
        diag_error(d, E002, p->previous.span, "unexpected %s", token_describe(p, p->previous));
    return p->result;
}

Ast *parse_source(Arena *arena, const Sources *sources, Diag *d, uint32_t file) {
    const Source *src = source_get(sources, file);
    if (!check_text(src, file, d)) return NULL;
    bool has_bom = src->bytes >= 3 && memcmp(src->text, "\xEF\xBB\xBF", 3) == 0;
    return parse_from(arena, sources, d, (Span){file, has_bom ? 3 : 0, src->bytes}, START_FILE);
}

Ast *parse_expression(Arena *arena, const Sources *sources, Diag *d, Span text) {
    if (!check_text(source_get(sources, text.file), text.file, d)) return NULL;
    uint32_t errors = d->error_count;
    Ast *expr = parse_from(arena, sources, d, text, START_EXPR);
    return d->error_count == errors ? expr : NULL;
}

/* --- a program --- */

/* The path of an import, relative to the file that imports it. */
static const char *import_path(Arena *arena, const char *from, const char *name) {
    const char *slash = strrchr(from, '/');
    if (name[0] == '/' || slash == NULL) return name;
    return arena_printf(arena, "%.*s/%s", (int)(slash - from), from, name);
}

static bool is_loaded(const Sources *sources, const char *path) {
    for (uint32_t i = 1; i < sources->files.n; i++)
        if (strcmp(sources->files.data[i].name, path) == 0) return true;
    return false;
}

static void load(ModelText *program, Arena *arena, Sources *sources, Diag *d, const char *path,
                 Span from) {
    const char *problem;
    bool missing;
    uint32_t file = source_load(sources, path, &problem, &missing);
    if (file == 0) {
        DiagRef e = diag_error(d, E023, from, "'%s' %s", path, problem);
        if (missing && from.file != 0)
            diag_note(d, e, "an import is looked for beside the file that imports it, here '%s'",
                      path);
        return;
    }
    Ast *tree = parse_source(arena, sources, d, file);
    if (tree != NULL) vec_push(arena, &program->files, tree);
}

ModelText *parse_program(Arena *arena, Sources *sources, Diag *d, const char *path) {
    ModelText *program = ARENA_NEW(arena, ModelText);
    load(program, arena, sources, d, path, (Span){0});
    /* Imports append to the list that is being walked; a file is read once, so cycles end. */
    for (uint32_t i = 0; i < program->files.n; i++) {
        const Ast *file = program->files.data[i];
        for (uint32_t k = 0; k < file->n; k++) {
            const Ast *item = file->child[k];
            if (item->kind != AST_import) continue;
            const char *from = source_get(sources, item->span.file)->name;
            const char *target = import_path(arena, from, item->text);
            if (!is_loaded(sources, target)) load(program, arena, sources, d, target, item->span);
        }
    }
    return program;
}
