/* parse_fuzz.c - fuzz target: any bytes through lexer, parser, printer, checker and lowering.
 *
 * What parses must print and read back as the same text; everything else must end in diagnostics.
 */
#include "frontend/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *print_tree(const Ast *tree, size_t *bytes) {
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL) abort();
    ast_print(out, tree);
    fclose(out);
    return text;
}

/* print(read(text)) is a fixed point after one round. */
static void check_round_trip(Arena *arena, Sources *sources, Diag *d, const Ast *tree) {
    size_t first_bytes = 0, second_bytes = 0;
    char *first = print_tree(tree, &first_bytes);
    const Ast *again =
        parse_source(arena, sources, d, source_add(sources, "printed", first, first_bytes));
    if (again == NULL || d->error_count > 0) abort();
    char *second = print_tree(again, &second_bytes);
    if (first_bytes != second_bytes || memcmp(first, second, first_bytes) != 0) abort();
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena arena = {0};
    Sources sources;
    Diag diag;
    FILE *nowhere = fopen("/dev/null", "w");
    if (nowhere == NULL) abort();
    sources_init(&sources, &arena);
    diag_init(&diag, &arena, &sources, nowhere);
    diag.format = size % 2 == 0 ? DIAG_TEXT : DIAG_JSON;
    uint32_t file = source_add(&sources, "fuzz.it", (const char *)data, size);
    Ast *tree = parse_source(&arena, &sources, &diag, file);
    if (tree != NULL && diag.error_count == 0) {
        check_round_trip(&arena, &sources, &diag, tree);
        ModelText text = {0};
        vec_push(&arena, &text.files, tree);
        Lower lower = {.arena = &arena, .diag = &diag, .sources = &sources, .program = &text};
        lower.mod = module_new(&arena, &sources, &diag);
        lower.mod->file = "fuzz.it";
        const char *overrides[] = {"train.B=2", "n=3"};
        lower_program(&lower, overrides, size % 3 == 0 ? 2 : 0);
    }
    diag_finish(&diag);
    fclose(nowhere);
    arena_free(&arena);
    return 0;
}
