/* signals.c - notes a request to stop, on a thread that does nothing else.
 *
 * Why     a handler's frame is written below the stack pointer of the thread that it interrupts.
 *         oneDNN's products let that register point into the heap for a while (AVX2 and AVX-512,
 *         2.6 to 3.11: its issue 4845), so a handler that runs there overwrites the heap. Every
 *         thread but one therefore blocks these signals; threads started later inherit that.
 */
#include "runtime/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 18 };

static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};

/* The one fact a handler may write: there is no other way to reach the loop. */
static atomic_int pending;

static void note(int number) {
    if (number == SIGINT && atomic_load(&pending) == SIGINT) _exit(INF_STOPPED);
    atomic_store(&pending, number);
}

static sigset_t ours(void) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&set, numbers[i]);
    return set;
}

static void *take(void *nothing) {
    sigset_t set = ours();
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    for (;;) pause();
    return nothing;
}

static int start_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    int rc = pthread_attr_init(&attributes);
    if (rc != 0) return rc;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    rc = pthread_create(&thread, &attributes, take, NULL);
    pthread_attr_destroy(&attributes);
    return rc;
}

InfCode inf_signals_install(InfError *e) {
    static pid_t installed; /* a rank takes its place first, and then trains */
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigset_t all, before, set = ours();
    if (installed == getpid()) return INF_OK;
    sigemptyset(&action.sa_mask);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    /* A closed pipe or a full quota is an error of the write, not the end of the process. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = start_thread();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = rc;
    if (rc != 0) return inf_fail_errno(e, "pthread_create", "taking signals");
    installed = getpid();
    return INF_OK;
}

int inf_signals_pending(void) { return atomic_load_explicit(&pending, memory_order_relaxed); }

const char *inf_signal_name(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGUSR1";
}
