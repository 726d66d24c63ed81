/* diag.h - the one sink for what is wrong with the user's input.
 *
 * diag_error records an error with a stable code at a place and returns a handle, to which a
 * label under the caret, notes and hints may be added. Nothing is printed before diag_flush.
 * At most DIAG_ERRORS_MAX errors are printed a run, the rest are counted; a second error with the
 * same code at the same place is dropped, so one root cause gives one error however often its
 * block is instantiated. Output depends on nothing but the input.
 */
#ifndef IR_DIAG_H
#define IR_DIAG_H

#include "ir/source.h"

#include <stdio.h>

typedef enum DiagCode {
    DIAG_NONE,
#define DIAG(code, title, text) code,
#include "ir/diag.def"
    DIAG_CODE_COUNT
} DiagCode;

typedef enum WarnCode {
#define WARNING(word, ident, title) WARN_##ident,
#include "ir/diag.def"
    WARN_CODE_COUNT
} WarnCode;

typedef enum DiagFormat { DIAG_TEXT, DIAG_JSON } DiagFormat;

enum { DIAG_ERRORS_MAX = 20 };

/* A recorded diagnostic; 0 is one that was dropped. Adding to a dropped one does nothing. */
typedef struct DiagRef {
    uint32_t id;
} DiagRef;

typedef struct DiagEntry DiagEntry;

typedef struct Diag {
    Arena *arena;
    const Sources *sources;
    DiagFormat format;
    FILE *out;
    VEC(DiagEntry) entries; /* [0] is unused */
    uint32_t printed;       /* entries before this one are printed */
    uint32_t error_count;   /* every error, printed or not, dropped repeats excluded */
    bool warnings_are_errors;
    bool warning_off[WARN_CODE_COUNT];
    bool warning_is_error[WARN_CODE_COUNT];
} Diag;

void diag_init(Diag *d, Arena *arena, const Sources *sources, FILE *out);

/* Record an error. The message is one line, begins in lower case and ends without a dot. */
DiagRef diag_error(Diag *d, DiagCode code, Span span, const char *fmt, ...) ARENA_PRINTF(4, 5);

/* Record a warning, unless -Wno-... switched it off; under -Werror it counts as an error. */
DiagRef diag_warn(Diag *d, WarnCode code, Span span, const char *fmt, ...) ARENA_PRINTF(4, 5);

/* Record what was decided for the user: neither error nor warning, without a place. */
DiagRef diag_notice(Diag *d, const char *fmt, ...) ARENA_PRINTF(2, 3);

/* Text after the caret. */
void diag_label(Diag *d, DiagRef ref, const char *fmt, ...) ARENA_PRINTF(3, 4);

/* A line "= ..." below. */
void diag_note(Diag *d, DiagRef ref, const char *fmt, ...) ARENA_PRINTF(3, 4);

/* A line "= hint: ..." below. */
void diag_hint(Diag *d, DiagRef ref, const char *fmt, ...) ARENA_PRINTF(3, 4);

/* Obey one -W word: "error", "NAME", "no-NAME", "error=NAME". False when there is no such. */
bool diag_set_warning(Diag *d, const char *word);

/* Print what is not printed yet, in order of place. */
void diag_flush(Diag *d);

/* Flush, then say how many errors were found when more than DIAG_ERRORS_MAX were (text only). */
void diag_finish(Diag *d);

/* "12:3", or "FILE:12:3" when the place is in another file than `near`. Kept in the arena. */
const char *diag_place(const Diag *d, Span span, Span near);

/* Title and explanation of a code; the code of "E012" or "e012", DIAG_NONE when there is none. */
const char *diag_title(DiagCode code);
const char *diag_explain(DiagCode code);
DiagCode diag_code_parse(const char *text);

/* The warning words and titles, for --help. */
const char *diag_warning_word(WarnCode code);
const char *diag_warning_title(WarnCode code);

#endif
