/* signals.h - SIGINT, SIGTERM and SIGUSR1 ask for a clean end; a second SIGINT does not ask. */
#ifndef INF_RUNTIME_SIGNALS_H
#define INF_RUNTIME_SIGNALS_H

void inf_signals_install(void);

/* The signal that asked to stop, or 0. Polled between steps. */
int inf_signals_pending(void);

/* "SIGINT", ... */
const char *inf_signal_name(int number);

#endif
