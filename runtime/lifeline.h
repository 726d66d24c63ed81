/* lifeline.h - how ranks see each other die: a thread in each process and a socket to rank 0.
 *
 * The thread beats a few times a second and says where its rank is. A socket that closes without
 * a goodbye is a death, seen at once; a rank that is stopped or whose host is gone misses its
 * beats. Rank 0 decides what the first cause is and tells everyone; when rank 0 dies, each decides
 * for itself. The thread itself then says what it saw and ends the process: it never waits for the
 * main thread, which may hang in a library.
 *
 * On one host the sockets have names that all ranks find alike, so ranks know each other before
 * MPI connects them, and a rank that never comes is noticed. Between hosts (or with
 * INFINIC_LIFELINE=tcp) they are TCP, and their addresses travel by MPI. Whoever may connect: the
 * same user on one host; who knows the run's random token, between hosts.
 */
#ifndef INF_RUNTIME_LIFELINE_H
#define INF_RUNTIME_LIFELINE_H

#include "runtime/cause.h"
#include "runtime/status.h"
#include "runtime/transport.h"

typedef struct InfLifeline InfLifeline;

/* Before the transport is opened. The plan stays the caller's.
 *   local   all ranks are on this host */
InfCode inf_lifeline_start(InfError *e, const Plan *plan, int rank, int count, bool local,
                           InfLifeline **out);

/* After it was opened: everyone is connected when this returns. All ranks call it. */
InfCode inf_lifeline_join(InfError *e, InfLifeline *l, const InfTransport *transport,
                          bool one_host);

void inf_lifeline_at(InfLifeline *l, uint64_t position);

/* This rank gives up with `code`, and the process ends soon. True when it has to print the text
 * itself: it is the first cause, and there is no launcher that has taken it. */
bool inf_lifeline_fail(InfLifeline *l, InfCode code, const char *text);

/* Says goodbye and frees l; rank 0 waits for everyone's goodbye. */
void inf_lifeline_end(InfLifeline *l);

#endif
