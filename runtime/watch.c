/* watch.c - the thread that watches the other ranks.
 *
 * Reads   messages of the others, the time, what the main thread wants.
 * Writes  beats, the verdict on the first cause, and the end of the process.
 * Keeps   away from MPI, from locks of libraries and from anything that could wait.
 */
#include "runtime/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/engine.h"
#include "runtime/launch.h"

enum { MAGIC = 0x6c696665, TEXT_BYTES = 512 };
enum { BEAT_MS = 250, TICK_MS = 100, TRY_MS = 20 };
/* How long others let the rank that failed end first, so that its exit code is seen first: until it
 * closes its sockets, and a bit more, because its parent learns of its end later; how long rank 0
 * holds its sockets for what is still to be read. */
enum { FIRST_MS = 5000, AFTER_MS = 100, SETTLE_MS = 400 };

static bool is_centre(const InfLifeline *l) { return l->rank == 0; }

/* --- messages --- */

static void post(const InfLifeline *l, const Line *line, MessageKind kind, const InfCause *cause) {
    Message m = {.magic = MAGIC, .kind = kind, .page = l->page_fd};
    if (line->fd < 0) return;
    m.cause = cause ? *cause
                    : (InfCause){.rank = l->rank,
                                 .code = (int32_t)l->code,
                                 .pid = (int32_t)getpid(),
                                 .position = atomic_load(&l->page->position)};
    memcpy(m.token, l->book.token, sizeof m.token);
    /* What cannot be sent is not: the other side will miss the beats. */
    if (send(line->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) errno = 0;
}

void inf_line_hang_up(Line *line) {
    if (line->fd >= 0) close(line->fd);
    *line = (Line){.fd = -1};
}

/* 1: a message is in line->in; 0: not yet; -1: the line is dead. */
static int receive(Line *line) {
    char *at = (char *)&line->in;
    while (line->filled < sizeof line->in) {
        ssize_t n = recv(line->fd, at + line->filled, sizeof line->in - line->filled, MSG_DONTWAIT);
        if (n > 0)
            line->filled += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return -1;
        else
            return 0;
    }
    line->filled = 0;
    return line->in.magic == MAGIC ? 1 : -1;
}

/* --- the verdict --- */

static bool decide(InfLifeline *l, InfCause cause) {
    pthread_mutex_lock(&l->lock);
    bool first = l->cause.kind == INF_CAUSE_none;
    if (first) l->cause = cause;
    pthread_mutex_unlock(&l->lock);
    return first;
}

static void decide_on_peer(InfLifeline *l, InfCauseKind kind, int rank) {
    const Peer *p = &l->peer[rank];
    uint64_t position = p->page ? atomic_load(&p->page->position) : p->position;
    decide(l, (InfCause){.kind = kind, .rank = rank, .pid = p->pid, .position = position});
}

/* Reads and forgets. False when the line is closed. */
static bool drain(Line *line) {
    int got = 1;
    while (line->fd >= 0 && (got = receive(line)) > 0) continue;
    if (got < 0) inf_line_hang_up(line);
    return line->fd >= 0;
}

/* Reads all lines until `rank` closes its own, or time is up; rank -1: until all are closed. */
static void drain_until(InfLifeline *l, int rank, int ms) {
    double end_ms = inf_clock_ms() + ms;
    for (int open = 1; open > 0 && inf_clock_ms() < end_ms;) {
        open = 0;
        for (int r = 0; r < l->count; r++) {
            bool is_open = drain(&l->peer[r].line);
            open += is_open && (rank < 0 || rank == r);
        }
        if (open > 0) poll(NULL, 0, TRY_MS / 4);
    }
}

/* Lets everyone read what was sent: closing at once could discard it. */
static void settle(InfLifeline *l) {
    for (int r = 0; r < l->count; r++)
        if (l->peer[r].line.fd >= 0) shutdown(l->peer[r].line.fd, SHUT_WR);
    drain_until(l, -1, SETTLE_MS);
}

static void speak(const InfLifeline *l, const InfCause *c) {
    char text[TEXT_BYTES];
    bool early = c->position == 0 || c->kind == INF_CAUSE_missing;
    if (c->kind == INF_CAUSE_failed || l->spoken) return;
    inf_cause_text(text, sizeof text, l->plan, l->count, c);
    InfTold told = {INF_TELL_cause, INF_NO_RANK, INF_PEER, early, text};
    if (inf_launch_tell(told)) return;
    InfError e = {.rank = l->rank, .rank_count = l->count, .text = text};
    inf_error_print(&e, l->plan->model);
}

/* Ends the process, unless the main thread is already ending it. */
static void leave(InfLifeline *l) {
    pthread_mutex_lock(&l->lock);
    InfCause cause = l->cause;
    bool failing = l->main == FAILING;
    pthread_mutex_unlock(&l->lock);
    if (is_centre(l))
        for (int r = 1; r < l->count; r++) post(l, &l->peer[r].line, LEAVE, &cause);
    speak(l, &cause);
    pthread_mutex_lock(&l->lock);
    l->told = true; /* from here on the main thread may end the process */
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (cause.kind == INF_CAUSE_failed && cause.rank != l->rank)
        drain_until(l, is_centre(l) ? cause.rank : 0, FIRST_MS);
    if (!failing && cause.kind == INF_CAUSE_failed) poll(NULL, 0, AFTER_MS);
    while (failing && is_centre(l)) drain_until(l, -1, FIRST_MS), poll(NULL, 0, TRY_MS);
    if (failing) return;
    if (is_centre(l)) settle(l);
    _exit(cause.code == INF_STOPPED ? INF_STOPPED : INF_PEER);
}

/* --- what comes in --- */

static void count_present(InfLifeline *l) {
    int present = 0;
    for (int r = 0; r < l->count; r++) present += l->peer[r].here;
    pthread_mutex_lock(&l->lock);
    if (!l->renewed) l->present = present;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* A process id means little between containers, so the page says whose it is. */
static void find_page(const InfLifeline *l, Peer *p, int rank, const Message *m) {
    char path[64];
    p->pid = m->cause.pid;
    if (p->page || !l->local) return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", m->cause.pid, m->page);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat st;
    bool fits = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == sizeof(Page);
    const Page *page = fits ? mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (page == MAP_FAILED) return;
    if (page->rank == rank && memcmp(page->name, l->name, sizeof page->name) == 0) p->page = page;
}

static void take_message(InfLifeline *l, int rank, const Message *m) {
    Peer *p = &l->peer[rank];
    p->heard_ms = inf_clock_ms();
    find_page(l, p, rank, m);
    switch ((MessageKind)m->kind) {
    case HELLO:
    case BEAT: p->position = m->cause.position; break;
    case BYE: p->gone = true; break;
    case FAIL: {
        InfCause cause = m->cause;
        cause.kind = INF_CAUSE_failed;
        cause.rank = rank;
        p->gone = true;
        decide(l, cause);
        break;
    }
    case LEAVE:
        p->gone = true;
        l->spoken = decide(l, m->cause);
        break;
    }
}

static void read_peer(InfLifeline *l, int rank) {
    Peer *p = &l->peer[rank];
    int got;
    while ((got = receive(&p->line)) > 0) take_message(l, rank, &p->line.in);
    if (got == 0) return;
    inf_line_hang_up(&p->line);
    if (!p->gone) decide_on_peer(l, INF_CAUSE_died, rank);
    p->gone = true;
}

/* Someone who has connected and not said who it is. */
static void read_guest(InfLifeline *l, Line *guest) {
    int got = receive(guest);
    if (got == 0) return;
    const Message *m = &guest->in;
    int rank = m->cause.rank;
    bool ok = got > 0 && m->kind == HELLO && rank > 0 && rank < l->count && !l->peer[rank].here &&
              memcmp(m->token, l->book.token, sizeof m->token) == 0;
    if (!ok) {
        inf_line_hang_up(guest);
        return;
    }
    l->peer[rank] = (Peer){
        .line = *guest, .here = true, .position = m->cause.position, .heard_ms = inf_clock_ms()};
    find_page(l, &l->peer[rank], rank, m);
    post(l, &l->peer[rank].line, BEAT, NULL); /* now it knows who rank 0 is */
    *guest = (Line){.fd = -1};
    count_present(l);
}

static void accept_guests(InfLifeline *l) {
    for (int i = 0; i < INF_GUESTS && l->listener >= 0; i++) {
        if (l->guest[i].fd >= 0) continue;
        int fd = inf_wire_accept(l->listener, l->local);
        if (fd < 0) return;
        l->guest[i] = (Line){.fd = fd};
    }
}

static void try_connect(InfLifeline *l) {
    Peer *p = &l->peer[0];
    if (is_centre(l) || p->here || (!l->local && l->book.count == 0)) return;
    int fd = l->local ? inf_wire_connect_name(l->name) : inf_wire_connect_tcp(&l->book);
    if (fd < 0) return;
    *p = (Peer){.line = {.fd = fd}, .here = true, .heard_ms = inf_clock_ms()};
    post(l, &p->line, HELLO, NULL);
    count_present(l);
}

/* --- what time tells --- */

static void beat(InfLifeline *l, double now_ms) {
    if (now_ms - l->beat_ms < BEAT_MS) return;
    l->beat_ms = now_ms;
    for (int r = 0; r < l->count; r++) post(l, &l->peer[r].line, BEAT, NULL);
}

/* A thread that was not running itself has heard nobody: that says nothing about the others. */
static void forgive_own_pause(InfLifeline *l, double now_ms) {
    double pause_ms = now_ms - l->turned_ms;
    l->turned_ms = now_ms;
    if (pause_ms < 10 * TICK_MS) return;
    l->started_ms += pause_ms;
    for (int r = 0; r < l->count; r++) l->peer[r].heard_ms += pause_ms;
}

static void check_arrival(InfLifeline *l, double now_ms, bool opened) {
    double waited_s = (now_ms - l->started_ms) * 1e-3;
    if (opened) return;
    if (waited_s > INF_STUCK_S) decide(l, (InfCause){.kind = INF_CAUSE_stuck});
    if (!l->local || waited_s <= INF_MISSING_S) return;
    if (!is_centre(l)) {
        if (!l->peer[0].here) decide(l, (InfCause){.kind = INF_CAUSE_missing});
        return;
    }
    for (int r = 1; r < l->count; r++)
        if (!l->peer[r].here) decide(l, (InfCause){.kind = INF_CAUSE_missing, .rank = r});
}

static void check_beats(InfLifeline *l, double now_ms) {
    for (int r = 0; r < l->count; r++) {
        const Peer *p = &l->peer[r];
        if (p->here && !p->gone && now_ms - p->heard_ms > INF_SILENT_S * 1e3)
            decide_on_peer(l, INF_CAUSE_silent, r);
    }
    if (l->mpirun != 0 && getppid() != l->mpirun) decide(l, (InfCause){.kind = INF_CAUSE_alone});
}

/* --- the thread --- */

/* Lines by TCP instead of those by name. */
static void renew(InfLifeline *l) {
    for (int r = 0; r < l->count; r++) {
        post(l, &l->peer[r].line, BYE, NULL); /* this end is no death */
        inf_line_hang_up(&l->peer[r].line);
        l->peer[r].here = l->peer[r].gone = false;
    }
    for (int i = 0; i < INF_GUESTS; i++) inf_line_hang_up(&l->guest[i]);
    if (l->listener >= 0) close(l->listener);
    l->listener = l->new_listener;
    l->local = false;
    l->present = 0;
}

/* What the main thread wants. Returns its state. */
static MainState take_requests(InfLifeline *l, bool *opened) {
    uint64_t times;
    if (read(l->wake, &times, sizeof times) < 0) times = 0;
    pthread_mutex_lock(&l->lock);
    if (l->renewed) renew(l);
    l->renewed = false;
    MainState state = l->main;
    bool fails = l->requested;
    l->requested = false;
    *opened = l->opened;
    pthread_mutex_unlock(&l->lock);
    if (!fails) return state;
    InfCause mine = {.kind = INF_CAUSE_failed,
                     .rank = l->rank,
                     .code = (int32_t)l->code,
                     .pid = (int32_t)getpid(),
                     .position = atomic_load(&l->page->position)};
    if (is_centre(l) || !l->peer[0].here || l->peer[0].gone)
        decide(l, mine);
    else
        post(l, &l->peer[0].line, FAIL, NULL);
    return state;
}

static void wait_for_news(InfLifeline *l) {
    struct pollfd *p = l->polled;
    int n = 0;
    bool connected = is_centre(l) || l->peer[0].here;
    p[n++] = (struct pollfd){.fd = l->wake, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = l->listener, .events = POLLIN};
    for (int r = 0; r < l->count; r++)
        p[n++] = (struct pollfd){.fd = l->peer[r].line.fd, .events = POLLIN};
    for (int i = 0; i < INF_GUESTS; i++)
        p[n++] = (struct pollfd){.fd = l->guest[i].fd, .events = POLLIN};
    poll(p, (nfds_t)n, connected ? TICK_MS : TRY_MS);
    forgive_own_pause(l, inf_clock_ms());
    accept_guests(l);
    for (int i = 0; i < INF_GUESTS; i++)
        if (l->guest[i].fd >= 0) read_guest(l, &l->guest[i]);
    for (int r = 0; r < l->count; r++)
        if (l->peer[r].line.fd >= 0) read_peer(l, r);
}

static bool all_gone(const InfLifeline *l) {
    for (int r = 1; r < l->count; r++)
        if (l->peer[r].here && !l->peer[r].gone) return false;
    return true;
}

void *inf_watch(void *of) {
    InfLifeline *l = of;
    bool opened = false, said_bye = false;
    for (;;) {
        MainState state = take_requests(l, &opened);
        try_connect(l);
        wait_for_news(l);
        double now_ms = inf_clock_ms();
        check_arrival(l, now_ms, opened);
        check_beats(l, now_ms);
        pthread_mutex_lock(&l->lock);
        bool decided = l->cause.kind != INF_CAUSE_none;
        pthread_mutex_unlock(&l->lock);
        if (decided) {
            leave(l); /* comes back when the main thread ends the process */
            return NULL;
        }
        if (state == ENDING && !said_bye)
            for (int r = 0; r < l->count; r++) post(l, &l->peer[r].line, BYE, NULL);
        said_bye = state == ENDING;
        if (said_bye && (!is_centre(l) || all_gone(l))) return NULL;
        beat(l, now_ms);
    }
}
