/* options.h - infinic's command line, parsed by the table options.def. */
#ifndef FRONTEND_OPTIONS_H
#define FRONTEND_OPTIONS_H

#include "ir/arena.h"

#include <stdbool.h>
#include <stdio.h>

typedef enum OptionId {
#define OPTION(id, letter, name, kind, argument, help) OPT_##id,
#include "frontend/options.def"
    OPT_COUNT
} OptionId;

typedef struct OptionValue {
    bool given;
    const char *text;      /* the argument; NULL for flags and a bare optional */
    int64_t bytes;         /* kind bytes */
    VEC(const char *) all; /* kind list: every argument in order */
} OptionValue;

typedef struct Options {
    OptionValue value[OPT_COUNT];
    bool tokenize;     /* the first word: a text, not a model, is given */
    const char *input; /* the file; NULL when none is given */
} Options;

/* Parse argv[1 ..]. Returns NULL, or the mistake in words (exit 2). Texts are borrowed from argv.
 */
const char *options_parse(Options *o, Arena *a, int argc, char **argv);

void options_print_help(FILE *out);
void options_print_man(FILE *out);
void options_print_completion(FILE *out);

#endif
