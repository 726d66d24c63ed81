/* source.h - the texts that a compilation reads, and places in them.
 *
 * A Span is a half-open range of bytes [begin, end) of one file; file 0 is "no place". Lines and
 * columns are computed on demand, both from 1; columns count characters (UTF-8 code points), a
 * tab is one character. Texts are kept whole, with a NUL after the last byte, as long as the
 * Sources live.
 */
#ifndef IR_SOURCE_H
#define IR_SOURCE_H

#include "ir/arena.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Span {
    uint32_t file; /* index from source_load or source_add; 0 is none */
    uint32_t begin;
    uint32_t end;
} Span;

typedef struct Source {
    const char *name; /* as the user wrote it */
    const char *text; /* `bytes` bytes and a NUL */
    uint32_t bytes;
    uint32_t *line_starts; /* byte offset of each line's first byte */
    uint32_t line_count;   /* at least 1 */
} Source;

typedef struct Sources {
    Arena *arena;
    VEC(Source) files; /* [0] is unused, so that file 0 means none */
} Sources;

typedef struct Place {
    const char *file; /* NULL for a span without place */
    uint32_t line;
    uint32_t column;
} Place;

/* Larger files are refused. */
#define SOURCE_BYTES_MAX ((uint32_t)16 * 1024 * 1024)

void sources_init(Sources *s, Arena *arena);

/* Read a file. Returns its index, or 0 with *problem set to the reason in words ("is a
 * directory"), kept in the arena. *missing is true exactly when no such file exists. */
uint32_t source_load(Sources *s, const char *path, const char **problem, bool *missing);

/* Take a text that is in memory already (copied), such as a command-line setting. */
uint32_t source_add(Sources *s, const char *name, const char *text, size_t bytes);

const Source *source_get(const Sources *s, uint32_t file);

/* Where a span begins. */
Place source_place(const Sources *s, Span span);

/* Where a span ends (the position just after its last byte). */
Place source_place_end(const Sources *s, Span span);

/* Bytes of the well-formed UTF-8 character at s (n bytes left), 0 when there is none. */
uint32_t source_utf8_width(const char *s, size_t n);

/* The smallest span that covers both; a span without place gives the other one. */
Span span_join(Span a, Span b);

#endif
