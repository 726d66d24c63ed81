/* status.h - how the runtime says that the world went wrong.
 *
 * A function that can fail returns an InfCode and takes an InfError; INF_OK is 0. The first
 * failure wins: inf_fail() keeps the message already there. The code is the exit status of the
 * executable, so nothing has to be translated on the way out.
 * Broken invariants are not reported here: they end in INF_ASSERT, exit 3.
 */
#ifndef INF_RUNTIME_STATUS_H
#define INF_RUNTIME_STATUS_H

#include <stdbool.h>

typedef enum InfCode {
    INF_OK = 0,
    INF_USAGE = 2,     /* the command line */
    INF_INTERNAL = 3,  /* our own fault */
    INF_DATA = 4,      /* bad data, weights or checkpoint */
    INF_IO = 5,        /* files that cannot be read or written, memory, devices */
    INF_NONFINITE = 6, /* NaN or infinity in the loss or the gradients */
    INF_PEER = 7,      /* another rank failed */
    INF_STOPPED = 75,  /* SIGINT or SIGTERM, after a clean end */
} InfCode;

/* One failure. `text` is heap memory owned by the struct, or NULL before any failure. */
typedef struct InfError {
    InfCode code;
    int rank; /* this process's rank; shown when rank_count > 1 */
    int rank_count;
    char *text;
} InfError;

/* Runs an expression of type InfCode and leaves the function when it failed. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        InfCode try_code_ = (expr);                                                                \
        if (try_code_ != INF_OK) return try_code_;                                                 \
    } while (0)

/* Records a failure unless one is already there; returns the code that is kept. */
InfCode inf_fail(InfError *e, InfCode code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: adds "call: reason (errno)"; code is INF_IO.
 *   what   the file or object acted upon */
InfCode inf_fail_errno(InfError *e, const char *call, const char *what);

/* Prints "NAME: error: text" on stderr (with the rank when there are several). */
void inf_error_print(const InfError *e, const char *program);

/* What a run tells on its way, on stderr: of several ranks only rank 0 does. */
void inf_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool inf_says(void);
void inf_say_nothing(void);

void inf_error_free(InfError *e);

/* A broken invariant: prints the place and exits with 3. On in release builds too. */
_Noreturn void inf_panic(const char *file, int line, const char *what);
#define INF_ASSERT(condition) ((condition) ? (void)0 : inf_panic(__FILE__, __LINE__, #condition))

#endif
