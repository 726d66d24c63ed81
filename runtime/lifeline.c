/* lifeline.c - the main thread's side: starts the thread that watches, and asks it for things. */
#include "runtime/lifeline.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/engine.h"
#include "runtime/launch.h"
#include "runtime/watch.h"

enum { JOIN_MS = 1000, JOIN_TCP_MS = 10000 };
/* How long a verdict of rank 0 may take; the news of a death that explains a failure of MPI; the
 * thread to end the process. */
enum { VERDICT_MS = 2000, DEATH_MS = 1000, LEAVE_MS = 9000 };

static bool is_centre(const InfLifeline *l) { return l->rank == 0; }

static InfCode start_thread(InfError *e, InfLifeline *l) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the main thread */
    int rc = pthread_create(&l->thread, NULL, inf_watch, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = rc;
    return rc == 0 ? INF_OK : inf_fail_errno(e, "pthread_create", "watching the other ranks");
}

static void munmap_peer(const Peer *p) {
    void *at;
    memcpy(&at, &p->page, sizeof at); /* to the other ranks' memory we are readers */
    if (at) munmap(at, sizeof *p->page);
}

static void free_lifeline(InfLifeline *l) {
    for (int r = 0; r < l->count && l->peer; r++) inf_line_hang_up(&l->peer[r].line);
    for (int i = 0; i < INF_GUESTS; i++) inf_line_hang_up(&l->guest[i]);
    if (l->listener >= 0) close(l->listener);
    if (l->wake >= 0) close(l->wake);
    for (int r = 0; r < l->count && l->peer; r++) munmap_peer(&l->peer[r]);
    if (l->page) munmap(l->page, sizeof *l->page);
    if (l->page_fd >= 0) close(l->page_fd);
    free(l->polled);
    free(l->peer);
    free(l);
}

static InfCode make_page(InfError *e, InfLifeline *l) {
    l->page_fd = memfd_create("infinic-position", MFD_CLOEXEC);
    if (l->page_fd < 0 || ftruncate(l->page_fd, sizeof *l->page) != 0)
        return inf_fail_errno(e, "memfd_create", "watching the other ranks");
    void *at = mmap(NULL, sizeof *l->page, PROT_READ | PROT_WRITE, MAP_SHARED, l->page_fd, 0);
    if (at == MAP_FAILED) return inf_fail_errno(e, "mmap", "watching the other ranks");
    l->page = at;
    l->page->rank = l->rank;
    memcpy(l->page->name, l->name, sizeof l->page->name);
    return INF_OK;
}

static InfCode prepare(InfError *e, InfLifeline *l) {
    pthread_condattr_t attributes;
    l->peer = calloc((size_t)l->count, sizeof *l->peer);
    l->polled = calloc((size_t)l->count + INF_GUESTS + 2, sizeof *l->polled);
    if (!l->peer || !l->polled) return inf_fail(e, INF_IO, "out of memory");
    for (int r = 0; r < l->count; r++) l->peer[r].line.fd = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0) return inf_fail_errno(e, "eventfd", "watching the other ranks");
    inf_place_key(l->name, sizeof l->name);
    TRY(make_page(e, l));
    /* Where the name is taken, TCP follows: join() finds out. */
    if (l->local && is_centre(l)) l->listener = inf_wire_listen_name(l->name);
    return start_thread(e, l);
}

InfCode inf_lifeline_start(InfError *e, const Plan *plan, int rank, int count, bool local,
                           InfLifeline **out) {
    InfLifeline *l = calloc(1, sizeof *l);
    if (!l) return inf_fail(e, INF_IO, "out of memory");
    l->plan = plan;
    l->rank = rank;
    l->count = count;
    l->local = local;
    l->listener = l->wake = l->new_listener = l->page_fd = -1;
    l->mpirun = getenv("INFINIC_JOB") ? getppid() : 0;
    l->started_ms = l->turned_ms = inf_clock_ms();
    for (int i = 0; i < INF_GUESTS; i++) l->guest[i].fd = -1;
    InfCode code = prepare(e, l);
    if (code != INF_OK) {
        free_lifeline(l);
        return code;
    }
    *out = l;
    return INF_OK;
}

static void wake(const InfLifeline *l) {
    uint64_t one = 1;
    if (write(l->wake, &one, sizeof one) < 0) errno = 0;
}

static struct timespec after(int ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

/* Waits for the lines of all peers, and asks everyone whether they have theirs. */
static InfCode all_connected(InfError *e, InfLifeline *l, const InfTransport *t, int ms, int *bad) {
    struct timespec end = after(ms);
    int need = is_centre(l) ? l->count - 1 : 1;
    unsigned char *all = calloc((size_t)l->count, 1), mine = 0;
    if (!all) return inf_fail(e, INF_IO, "out of memory");
    pthread_mutex_lock(&l->lock);
    while (ms > 0 && l->present < need)
        if (pthread_cond_timedwait(&l->changed, &l->lock, &end) == ETIMEDOUT) break;
    mine = l->present >= need;
    pthread_mutex_unlock(&l->lock);
    InfCode code = t->gather(e, &mine, 1, all);
    *bad = -1;
    for (int r = l->count - 1; r >= 0; r--)
        if (!all[r]) *bad = r;
    free(all);
    return code;
}

static InfCode join_tcp(InfError *e, InfLifeline *l, const InfTransport *t, bool one_host) {
    InfWireBook book = {0};
    int listener = -1, bad = -1;
    if (is_centre(l)) listener = inf_wire_listen_tcp(one_host, &book);
    InfCode code = t->broadcast(e, 0, &book, sizeof book);
    if (code == INF_OK && book.count == 0)
        code = inf_fail(e, INF_PEER, "rank 0 has no address that other hosts could reach");
    pthread_mutex_lock(&l->lock);
    l->book = book;
    l->new_listener = listener;
    l->renewed = true;
    l->present = 0;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    if (code == INF_OK) code = all_connected(e, l, t, JOIN_TCP_MS, &bad);
    if (code == INF_OK && bad >= 0)
        code = inf_fail(e, INF_PEER, "rank %d cannot %s: is there a firewall between the hosts?",
                        bad, bad == 0 ? "be reached by all others" : "reach rank 0");
    return code;
}

InfCode inf_lifeline_join(InfError *e, InfLifeline *l, const InfTransport *t, bool one_host) {
    int bad = 0;
    TRY(all_connected(e, l, t, l->local ? JOIN_MS : 0, &bad));
    if (bad >= 0) TRY(join_tcp(e, l, t, one_host));
    pthread_mutex_lock(&l->lock);
    l->opened = true;
    pthread_mutex_unlock(&l->lock);
    return INF_OK;
}

void inf_lifeline_at(InfLifeline *l, uint64_t position) {
    atomic_store_explicit(&l->page->position, position, memory_order_relaxed);
}

/* Waits for the verdict; false when it does not come. Under the lock. */
static bool await_verdict(InfLifeline *l, int ms) {
    struct timespec end = after(ms);
    while (!l->told)
        if (pthread_cond_timedwait(&l->changed, &l->lock, &end) == ETIMEDOUT) return false;
    return true;
}

bool inf_lifeline_fail(InfLifeline *l, InfCode code, const char *text) {
    InfTold told = {INF_TELL_cause, l->rank, code, false, text};
    pthread_mutex_lock(&l->lock);
    if (code == INF_PEER) await_verdict(l, DEATH_MS);
    if (l->cause.kind != INF_CAUSE_none) {
        pthread_mutex_unlock(&l->lock);
        poll(NULL, 0, LEAVE_MS); /* the thread ends the process */
        return false;
    }
    l->main = FAILING;
    l->code = code;
    pthread_mutex_unlock(&l->lock);
    bool taken = inf_launch_tell(told);
    pthread_mutex_lock(&l->lock);
    l->requested = true;
    wake(l);
    bool decided = await_verdict(l, VERDICT_MS);
    bool first = !decided || (l->cause.kind == INF_CAUSE_failed && l->cause.rank == l->rank);
    pthread_mutex_unlock(&l->lock);
    return first && !taken;
}

void inf_lifeline_end(InfLifeline *l) {
    pthread_mutex_lock(&l->lock);
    l->main = ENDING;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free_lifeline(l);
}
