/* relay.h - passes on what mpirun prints on stderr: the ranks' lines at once, its own remarks held
 * back, because they matter only when no rank says what went wrong.
 *
 * Its own remarks are paragraphs between two lines of dashes, and lines that begin "[host:12345]";
 * those of MPICH begin "[mpiexec@host]", or stand in a box of '='.
 */
#ifndef INF_RUNTIME_RELAY_H
#define INF_RUNTIME_RELAY_H

#include <stdbool.h>
#include <stddef.h>

enum { INF_RELAY_LINE_MAX = 512, INF_RELAY_HELD_MAX = 16384 };

/* Begins a line that is meant for the launcher alone: a rank on another host tells something. */
enum { INF_RELAY_MARK = 0x1e };

typedef struct InfRelay {
    int fd;
    bool mute;      /* drops everything */
    bool inside;    /* between two lines of dashes */
    bool telling;   /* behind a mark */
    bool open_line; /* its beginning is out, so the rest follows: progress on a terminal */
    size_t length;  /* of the line's beginning that is looked at */
    char line[INF_RELAY_LINE_MAX];
    size_t held_length;
    char held[INF_RELAY_HELD_MAX];
    void (*tell)(void *of, const char *line); /* what follows a mark, without the newline */
    void *of;
} InfRelay;

/* Everything there is now; false at the end of the stream. */
bool inf_relay_read(InfRelay *r);

/* The end: prints what was held back when it is `wanted`. What follows begins a line. */
void inf_relay_end(InfRelay *r, bool wanted);

#endif
