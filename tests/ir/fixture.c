/* fixture.c - a module read from text; see fixture.h. */
#include "tests/ir/fixture.h"

#include "ir/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fixture_empty(Fixture *f) {
    memset(f, 0, sizeof *f);
    sources_init(&f->sources, &f->arena);
    diag_init(&f->diag, &f->arena, &f->sources, stderr);
    f->m = module_new(&f->arena, &f->sources, &f->diag);
    f->message = "";
}

void fixture_read_bytes(Fixture *f, const char *text, size_t bytes) {
    fixture_empty(f);
    uint32_t file = source_add(&f->sources, "test.ir", text, bytes);
    char *message = NULL;
    size_t n = 0;
    f->diag.out = open_memstream(&message, &n);
    if (f->diag.out == NULL) abort();
    f->ok = text_read_module(f->m, file);
    diag_finish(&f->diag);
    fclose(f->diag.out);
    f->diag.out = stderr;
    f->message = arena_strndup(&f->arena, message, n);
    free(message);
}

void fixture_read(Fixture *f, const char *text) { fixture_read_bytes(f, text, strlen(text)); }

const char *fixture_print(Fixture *f, int flags) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (out == NULL) abort();
    text_print_module(f->m, out, flags);
    fclose(out);
    const char *copy = arena_strndup(&f->arena, text, n);
    free(text);
    return copy;
}

void fixture_free(Fixture *f) { arena_free(&f->arena); }
