/* status.c - failures: recorded once, printed once. */
#include "runtime/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

InfCode inf_fail(InfError *e, InfCode code, const char *format, ...) {
    if (e->code != INF_OK) return e->code;
    e->code = code;

    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) return code;

    e->text = malloc((size_t)length + 1);
    if (!e->text) return code;
    va_start(args, format);
    vsnprintf(e->text, (size_t)length + 1, format, args);
    va_end(args);
    return code;
}

InfCode inf_fail_errno(InfError *e, const char *call, const char *what) {
    int number = errno;
    return inf_fail(e, INF_IO, "%s: %s: %s", what, call, strerror(number));
}

void inf_error_print(const InfError *e, const char *program) {
    const char *text = e->text ? e->text : "out of memory";
    if (e->rank_count > 1)
        fprintf(stderr, "%s: rank %d: error: %s\n", program, e->rank, text);
    else
        fprintf(stderr, "%s: error: %s\n", program, text);
}

static bool silent;

void inf_say_nothing(void) { silent = true; }

bool inf_says(void) { return !silent; }

void inf_say(const char *format, ...) {
    va_list args;
    if (silent) return;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

void inf_error_free(InfError *e) {
    free(e->text);
    e->text = NULL;
    e->code = INF_OK;
}

_Noreturn void inf_panic(const char *file, int line, const char *what) {
    fprintf(stderr, "internal error: %s:%d: %s does not hold; please report this\n", file, line,
            what);
    exit(INF_INTERNAL);
}
