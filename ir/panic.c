/* panic.c - internal errors; see panic.h. */
#include "ir/panic.h"

#include "ir/module.h"
#include "ir/text.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void panic_graph(const Graph *g, Span span, const char *fmt, ...) {
    fprintf(stderr, "infinic: internal error: ");
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    if (g != NULL && g->mod->sources != NULL) {
        Place p = source_place(g->mod->sources, span);
        if (p.file != NULL) fprintf(stderr, "at %s:%u:%u\n", p.file, p.line, p.column);
    }
    if (g != NULL) text_print_graph(g, stderr, 0);
    fflush(stderr);
    exit(EXIT_INTERNAL);
}
