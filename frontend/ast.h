/* ast.h - the syntax tree of a model file.
 *
 * One node type for everything; ast.def says what `text` and the children of each kind are. Nodes
 * live in the arena of the compilation and are never changed after parsing. Trees are at most
 * AST_DEPTH_MAX deep, so walks may recurse.
 */
#ifndef FRONTEND_AST_H
#define FRONTEND_AST_H

#include "ir/source.h"

#include <stdio.h>

typedef enum AstKind {
#define AST(kind, text, children) AST_##kind,
#include "frontend/ast.def"
    AST_KIND_COUNT
} AstKind;

/* Operators of unary, binary and dim nodes, loosest first (the order of the grammar). */
typedef enum AstOp {
    AST_OP_none,
    AST_OP_pipe,
    AST_OP_or,
    AST_OP_and,
    AST_OP_not,
    AST_OP_lt,
    AST_OP_gt,
    AST_OP_le,
    AST_OP_ge,
    AST_OP_eq,
    AST_OP_ne,
    AST_OP_add,
    AST_OP_sub,
    AST_OP_mul,
    AST_OP_div,
    AST_OP_mod,
    AST_OP_floordiv,
    AST_OP_matmul,
    AST_OP_neg,
    AST_OP_pow,
    AST_OP_assign, /* dim D = expr */
    AST_OP_COUNT
} AstOp;

enum { AST_DEPTH_MAX = 1024, AST_NODES_MAX = 1000000 };

typedef struct Ast Ast;
struct Ast {
    AstKind kind;
    AstOp op;
    Span span;
    const char *text;
    union {
        double number;
        bool truth;
    } u;
    int64_t integer; /* number: its exact value when is_integer */
    uint16_t depth;  /* 1 for a leaf */
    bool is_integer; /* number: written without '.' and exponent, or a whole number of bytes */
    uint32_t n;
    uint32_t cap;
    Ast **child;
};

Ast *ast_new(Arena *a, AstKind kind, Span span, const char *text);

/* Append a child; the parent's span grows to cover it. Returns the parent. */
Ast *ast_push(Arena *a, Ast *parent, Ast *child);

/* Spelling of an operator ("+", "|>", "not"). */
const char *ast_op_text(AstOp op);

/* Print a tree as canonical model.it text: reading it back gives the same tree. */
void ast_print(FILE *out, const Ast *node);

/* The same for one expression, kept in the arena: for messages. */
const char *ast_text(Arena *a, const Ast *expr);

#endif
