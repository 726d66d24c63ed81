/* ast.c - making syntax nodes; see ast.h. */
#include "frontend/ast.h"

#include <string.h>

Ast *ast_new(Arena *a, AstKind kind, Span span, const char *text) {
    Ast *node = ARENA_NEW(a, Ast);
    node->kind = kind;
    node->span = span;
    node->text = text;
    node->depth = 1;
    return node;
}

Ast *ast_push(Arena *a, Ast *parent, Ast *child) {
    if (parent->n == parent->cap) {
        uint32_t cap = parent->cap == 0 ? 2 : parent->cap * 2;
        Ast **bigger = ARENA_ARRAY(a, Ast *, cap);
        if (parent->n > 0) memcpy(bigger, parent->child, parent->n * sizeof(Ast *));
        parent->child = bigger;
        parent->cap = cap;
    }
    parent->child[parent->n++] = child;
    parent->span = span_join(parent->span, child->span);
    if (child->depth >= parent->depth && child->depth < UINT16_MAX)
        parent->depth = (uint16_t)(child->depth + 1);
    return parent;
}

const char *ast_op_text(AstOp op) {
    static const char *const text[AST_OP_COUNT] = {
        [AST_OP_none] = "",       [AST_OP_pipe] = "|>",  [AST_OP_or] = "or", [AST_OP_and] = "and",
        [AST_OP_not] = "not",     [AST_OP_lt] = "<",     [AST_OP_gt] = ">",  [AST_OP_le] = "<=",
        [AST_OP_ge] = ">=",       [AST_OP_eq] = "==",    [AST_OP_ne] = "!=", [AST_OP_add] = "+",
        [AST_OP_sub] = "-",       [AST_OP_mul] = "*",    [AST_OP_div] = "/", [AST_OP_mod] = "%",
        [AST_OP_floordiv] = "//", [AST_OP_matmul] = "@", [AST_OP_neg] = "-", [AST_OP_pow] = "^",
        [AST_OP_assign] = "="};
    return text[op];
}
