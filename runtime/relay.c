/* relay.c - tells the ranks' lines from mpirun's remarks. */
#include "runtime/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Open MPI 4.1 prints it for every rank that dies while its job goes on. */
static const char *const known_noise = "pmix_event_notification.c at line";

enum { DASHES = 40, PIPE_BYTES = 1 << 16 };

static void print(const InfRelay *r, const char *at, size_t n) {
    for (size_t done = 0; done < n && !r->mute;) {
        ssize_t w = write(STDERR_FILENO, at + done, n - done);
        if (w < 0 && errno != EINTR) return; /* nobody can be told */
        done += w > 0 ? (size_t)w : 0;
    }
}

static void hold(InfRelay *r, const char *at, size_t n) {
    size_t room = sizeof r->held - r->held_length;
    if (n > room) n = room;
    memcpy(r->held + r->held_length, at, n);
    r->held_length += n;
}

static bool begins(const char *line, const char *with) {
    return strncmp(line, with, strlen(with)) == 0;
}

/* "[host:123] ..." and "mpirun: ..." of Open MPI; "[mpiexec@host] ...", "[proxy:0:0@host] ..." and
 * the lines of a box of MPICH. */
static bool is_tagged(const char *line, size_t n) {
    static const char *const begin[] = {"mpirun: ",   "mpirun.openmpi: ",
                                        "mpiexec: ",  "[mpiexec@",
                                        "[proxy:",    "=   ",
                                        "==========", "YOUR APPLICATION TERMINATED WITH"};
    size_t i = 1;
    for (size_t k = 0; k < sizeof begin / sizeof *begin; k++)
        if (begins(line, begin[k])) return true;
    if (n < 5 || line[0] != '[') return false;
    while (i < n && line[i] != ':' && line[i] != ']' && line[i] != ' ') i++;
    if (i == 1 || i >= n || line[i] != ':') return false;
    size_t digits = strspn(line + i + 1, "0123456789");
    return digits > 0 && i + 1 + digits < n && line[i + 1 + digits] == ']';
}

static bool is_dashes(const char *line, size_t n) {
    return n > DASHES && strspn(line, "-") >= n - 1;
}

static void end_line(InfRelay *r) {
    size_t n = r->length;
    r->length = 0;
    r->line[n] = '\0';
    bool dashes = is_dashes(r->line, n);
    if (strstr(r->line, known_noise)) return;
    if (dashes || r->inside || is_tagged(r->line, n))
        hold(r, r->line, n);
    else
        print(r, r->line, n);
    if (dashes) r->inside = !r->inside;
}

/* A line that cannot be a remark goes out as it comes. */
static bool may_be_remark(const InfRelay *r) {
    return r->inside || (r->line[0] && strchr("[-=Ym", r->line[0]));
}

/* Collects `part` bytes of a line; returns how many it had room for. */
static size_t collect(InfRelay *r, const char *at, size_t part) {
    if (part > sizeof r->line - 1 - r->length) part = sizeof r->line - 1 - r->length;
    memcpy(r->line + r->length, at, part);
    r->length += part;
    return part;
}

/* The line behind a mark, which may stand inside another line. */
static size_t take_told(InfRelay *r, const char *at, size_t n) {
    const char *newline = memchr(at, '\n', n);
    size_t part = collect(r, at, newline ? (size_t)(newline - at) : n);
    if (!newline && r->length < sizeof r->line - 1) return part;
    r->line[r->length] = '\0';
    r->length = 0;
    r->telling = false;
    r->tell(r->of, r->line);
    return part + (newline == at + part);
}

static size_t take_said(InfRelay *r, const char *at, size_t n) {
    const char *mark = memchr(at, INF_RELAY_MARK, n);
    const char *newline = memchr(at, '\n', mark ? (size_t)(mark - at) : n);
    size_t part = newline ? (size_t)(newline - at) + 1 : mark ? (size_t)(mark - at) : n;
    if (part == 0) { /* the mark */
        if (r->length > 0) end_line(r);
        r->telling = true;
        return 1;
    }
    if (!r->open_line && r->length == 0) r->line[0] = at[0];
    if (r->open_line || !may_be_remark(r)) {
        print(r, at, part);
        r->open_line = !newline;
    } else {
        part = collect(r, at, part);
        if (at[part - 1] == '\n' || r->length == sizeof r->line - 1) end_line(r);
    }
    return part;
}

static void take(InfRelay *r, const char *at, size_t n) {
    for (size_t part; n > 0; at += part, n -= part)
        part = r->telling ? take_told(r, at, n) : take_said(r, at, n);
}

bool inf_relay_read(InfRelay *r) {
    char bytes[PIPE_BYTES];
    for (ssize_t n; (n = read(r->fd, bytes, sizeof bytes)) != 0;) {
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        take(r, bytes, (size_t)n);
    }
    return false;
}

void inf_relay_end(InfRelay *r, bool wanted) {
    if (r->length > 0) end_line(r);
    if (r->open_line) print(r, "\n", 1);
    r->open_line = false;
    if (wanted) print(r, r->held, r->held_length);
    r->held_length = 0;
}
