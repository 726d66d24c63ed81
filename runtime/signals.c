/* signals.c - notes a request to stop. */
#include "runtime/signals.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "runtime/status.h"

/* The one fact a handler may write: there is no other way to reach the loop. */
static volatile sig_atomic_t pending;

static void note(int number) {
    if (pending == SIGINT && number == SIGINT) _exit(INF_STOPPED);
    pending = number;
}

void inf_signals_install(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    /* A closed pipe or a full quota is an error of the write, not the end of the process. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

int inf_signals_pending(void) { return pending; }

const char *inf_signal_name(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGUSR1";
}
