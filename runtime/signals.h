/* signals.h - SIGINT, SIGTERM and SIGUSR1 ask for a clean end; a second SIGINT does not ask. */
#ifndef INF_RUNTIME_SIGNALS_H
#define INF_RUNTIME_SIGNALS_H

#include "runtime/status.h"

/* From here on the calling thread, and all that are started later, block these signals; a thread of
 * their own takes them. A second call does nothing.
 * Errors: INF_IO when that thread cannot be started. */
InfCode inf_signals_install(InfError *e);

/* The signal that asked to stop, or 0. Polled between steps. */
int inf_signals_pending(void);

/* "SIGINT", ... */
const char *inf_signal_name(int number);

#endif
