/* ast_print.c - syntax trees as canonical model.it text, one printer for files and messages. */
#include "frontend/ast.h"

#include <string.h>

typedef struct Text {
    Arena *arena;
    VEC(char) out;
    int indent;
} Text;

static void put(Text *t, const char *s) {
    for (; *s != '\0'; s++) vec_push(t->arena, &t->out, *s);
}

static void put_line(Text *t) {
    put(t, "\n");
    for (int i = 0; i < t->indent; i++) put(t, "  ");
}

static void print(Text *t, const Ast *n);

static void print_list(Text *t, const Ast *n, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
        if (i > from) put(t, ", ");
        print(t, n->child[i]);
    }
}

static void print_parens(Text *t, const Ast *n) {
    put(t, "(");
    print(t, n);
    put(t, ")");
}

static void print_spaced(Text *t, const Ast *n) {
    for (uint32_t i = 0; i < n->n; i++) {
        put(t, i > 0 ? " " : "");
        print(t, n->child[i]);
    }
}

static void print_string(Text *t, const char *s) {
    put(t, "\"");
    for (; *s != '\0'; s++) {
        char one[3] = {'\\', *s, '\0'};
        if (*s == '\n')
            one[1] = 'n';
        else if (*s == '\t')
            one[1] = 't';
        else if (*s != '"' && *s != '\\')
            one[0] = *s, one[1] = '\0';
        put(t, one);
    }
    put(t, "\"");
}

/* Binding strength: operators of one level of the grammar share it; primaries bind tightest. */
static int strength(const Ast *n) {
    static const int of_op[AST_OP_COUNT] = {
        [AST_OP_pipe] = 1,   [AST_OP_or] = 2,  [AST_OP_and] = 3,      [AST_OP_not] = 4,
        [AST_OP_lt] = 5,     [AST_OP_gt] = 5,  [AST_OP_le] = 5,       [AST_OP_ge] = 5,
        [AST_OP_eq] = 5,     [AST_OP_ne] = 5,  [AST_OP_add] = 6,      [AST_OP_sub] = 6,
        [AST_OP_mul] = 7,    [AST_OP_div] = 7, [AST_OP_floordiv] = 7, [AST_OP_mod] = 7,
        [AST_OP_matmul] = 8, [AST_OP_neg] = 9, [AST_OP_pow] = 10};
    return n->kind == AST_binary || n->kind == AST_unary ? of_op[n->op] : 11;
}

static void print_at(Text *t, const Ast *n, int least) {
    bool parens = strength(n) < least;
    if (parens) put(t, "(");
    print(t, n);
    if (parens) put(t, ")");
}

static void print_binary(Text *t, const Ast *n) {
    int s = strength(n);
    bool right = n->op == AST_OP_pow, compare = s == 5;
    bool tight = n->op == AST_OP_pow;
    print_at(t, n->child[0], right || compare ? s + 1 : s);
    put(t, tight ? "" : " ");
    put(t, ast_op_text(n->op));
    put(t, tight ? "" : " ");
    print_at(t, n->child[1], right ? s : s + 1);
}

static void print_body(Text *t, const Ast *n) {
    put(t, "{");
    t->indent++;
    for (uint32_t i = 0; i < n->n; i++) {
        put_line(t);
        print(t, n->child[i]);
    }
    t->indent--;
    put_line(t);
    put(t, "}");
}

static void print_block(Text *t, const Ast *n) {
    put(t, n->kind == AST_model ? "model " : "block ");
    put(t, n->text);
    put(t, "(");
    print_list(t, n->child[0], 0, n->child[0]->n);
    put(t, ")");
    if (n->child[1]->n > 0) {
        put(t, " -> ");
        print_list(t, n->child[1], 0, n->child[1]->n);
    }
    put(t, " ");
    print_body(t, n->child[2]);
}

static void print_if(Text *t, const Ast *n) {
    put(t, "if ");
    print(t, n->child[0]);
    put(t, " ");
    print_body(t, n->child[1]);
    if (n->n > 2) {
        put(t, " else ");
        print_body(t, n->child[2]);
    }
}

/* NAME separator child: kv, params, dims, arguments, suffixes. */
static void print_named(Text *t, const Ast *n, const char *separator) {
    if (n->text != NULL) {
        put(t, n->text);
        if (n->n > 0) put(t, separator);
    }
    print_list(t, n, 0, n->n);
}

static void print_expr(Text *t, const Ast *n) {
    switch (n->kind) {
    case AST_name:
    case AST_number: put(t, n->text); break;
    case AST_string: print_string(t, n->text); break;
    case AST_bool: put(t, n->u.truth ? "true" : "false"); break;
    case AST_unary:
        put(t, n->op == AST_OP_not ? "not " : "-");
        print_at(t, n->child[0], strength(n));
        break;
    case AST_binary: print_binary(t, n); break;
    case AST_field: print_at(t, n->child[0], 11), put(t, "."), put(t, n->text); break;
    case AST_call:
        print_at(t, n->child[0], 11);
        print_parens(t, n->child[1]);
        break;
    case AST_index: print_at(t, n->child[0], 11), print(t, n->child[1]); break;
    case AST_tuple: put(t, "("), print_list(t, n, 0, n->n), put(t, ")"); break;
    default: break;
    }
}

static void print(Text *t, const Ast *n) {
    switch (n->kind) {
    case AST_file:
        for (uint32_t i = 0; i < n->n; i++) {
            print(t, n->child[i]);
            put(t, "\n");
        }
        break;
    case AST_section:
    case AST_scope:
        put(t, n->kind == AST_scope ? "scope " : "");
        put(t, n->text);
        put(t, " ");
        print_body(t, n->kind == AST_scope ? n->child[0] : n);
        break;
    case AST_dims: put(t, "dim "), print_list(t, n, 0, n->n); break;
    case AST_dim: print_named(t, n, n->op == AST_OP_le ? " <= " : " = "); break;
    case AST_import: put(t, "import "), print_string(t, n->text); break;
    case AST_block:
    case AST_model: print_block(t, n); break;
    case AST_params:
    case AST_types:
    case AST_args: print_list(t, n, 0, n->n); break;
    case AST_param: print_named(t, n, n->child[0]->kind == AST_type ? ": " : " = "); break;
    case AST_type: print_named(t, n, ""); break;
    case AST_body: print_body(t, n); break;
    case AST_member:
        put(t, n->text);
        put(t, ": ");
        print_spaced(t, n);
        break;
    case AST_ctor:
        put(t, n->text);
        if (n->n > 0) print_parens(t, n->child[0]);
        break;
    case AST_suffix: print_named(t, n, " "); break;
    case AST_assign:
        print_list(t, n, 0, n->n - 1);
        put(t, " = ");
        print(t, n->child[n->n - 1]);
        break;
    case AST_return: put(t, "return "), print_list(t, n, 0, n->n); break;
    case AST_assert: put(t, "assert "), print_list(t, n, 0, n->n); break;
    case AST_if: print_if(t, n); break;
    case AST_kv:
    case AST_arg: print_named(t, n, " = "); break;
    case AST_arrow: print(t, n->child[0]), put(t, " -> "), print(t, n->child[1]); break;
    case AST_list: put(t, "["), print_list(t, n, 0, n->n), put(t, "]"); break;
    case AST_group:
        put(t, "(");
        print_spaced(t, n);
        put(t, ")");
        break;
    default: print_expr(t, n); break;
    }
}

void ast_print(FILE *out, const Ast *node) {
    Arena arena = {0};
    Text t = {.arena = &arena};
    print(&t, node);
    if (t.out.n > 0) fwrite(t.out.data, 1, t.out.n, out);
    arena_free(&arena);
}

const char *ast_text(Arena *a, const Ast *expr) {
    Arena scratch = {0};
    Text t = {.arena = &scratch};
    print(&t, expr);
    char *text = arena_strndup(a, t.out.data != NULL ? t.out.data : "", t.out.n);
    arena_free(&scratch);
    return text;
}
