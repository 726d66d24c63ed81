/* fixture.h - a module read from text, for the unit tests of ir. */
#ifndef INFINIC_TESTS_IR_FIXTURE_H
#define INFINIC_TESTS_IR_FIXTURE_H

#include "ir/module.h"

typedef struct Fixture {
    Arena arena;
    Sources sources;
    Diag diag;
    Module *m;
    bool ok;             /* the text was read without a diagnostic */
    const char *message; /* diagnostics as printed, "" when none */
} Fixture;

/* Reads `bytes` bytes of text. Free with fixture_free. */
void fixture_read_bytes(Fixture *f, const char *text, size_t bytes);
void fixture_read(Fixture *f, const char *text);

/* An empty module, to build graphs by calls. */
void fixture_empty(Fixture *f);

/* The module printed; in f's arena. */
const char *fixture_print(Fixture *f, int flags);

void fixture_free(Fixture *f);

#endif
