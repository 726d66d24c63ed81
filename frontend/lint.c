/* lint.c - warnings about what a program declares and never mentions: blocks, config keys, values.
 *
 * By name only, over the whole text, so that what another branch of an `if` uses counts as used.
 * Names that begin with '_' are meant to go unused.
 */
#include "frontend/lower.h"

#include <string.h>

/* Whether an expression somewhere below mentions a name; names that are assigned do not count. */
static bool mentions(const Ast *n, const char *name) {
    if (n->kind == AST_name) return strcmp(n->text, name) == 0;
    uint32_t first = n->kind == AST_assign ? n->n - 1 : 0;
    for (uint32_t i = first; i < n->n; i++)
        if (mentions(n->child[i], name)) return true;
    return false;
}

static bool program_mentions(const Lower *l, const char *name) {
    for (uint32_t f = 0; f < l->program->files.n; f++)
        if (mentions(l->program->files.data[f], name)) return true;
    return false;
}

static void lint_values(Lower *l, const Ast *body, const Ast *statements) {
    for (uint32_t i = 0; i < statements->n; i++) {
        const Ast *stmt = statements->child[i];
        if (stmt->kind != AST_assign) {
            for (uint32_t k = 0; k < stmt->n; k++)
                if (stmt->child[k]->kind == AST_body) lint_values(l, body, stmt->child[k]);
            continue;
        }
        for (uint32_t k = 0; k + 1 < stmt->n; k++) {
            const Ast *name = stmt->child[k];
            if (name->text[0] == '_' || mentions(body, name->text)) continue;
            diag_warn(l->diag, WARN_UNUSED_VALUE, name->span, "'%s' is computed but never used",
                      name->text);
        }
    }
}

void lint_program(Lower *l) {
    for (uint32_t i = 0; i < l->settings.config.n; i++) {
        const ConfigEntry *c = &l->settings.config.data[i];
        if (c->name[0] != '_' && !program_mentions(l, c->name))
            diag_warn(l->diag, WARN_UNUSED_VALUE, c->span, "config key '%s' is never used",
                      c->name);
    }
    for (uint32_t i = 0; i < l->blocks.n; i++) {
        const Ast *block = l->blocks.data[i];
        bool imported = block->span.file != l->model->span.file;
        if (!l->block_used[i] && !imported)
            diag_warn(l->diag, WARN_UNUSED_BLOCK, block->span, "block '%s' is never used",
                      block->text);
        lint_values(l, block->child[2], block->child[2]);
    }
    lint_values(l, l->model->child[2], l->model->child[2]);
}
