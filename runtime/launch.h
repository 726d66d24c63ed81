/* launch.h - starting the ranks of a program, and where a process stands among them.
 *
 * An executable compiled for several ranks that is started plainly becomes their launcher: it runs
 * mpirun with itself, relays what they print, passes signals on and returns the first cause's exit
 * code. Its ranks find it through a socket without a file (INFINIC_JOB names it), so nothing has to
 * be removed afterwards. Started by mpirun or srun there is no launcher, and telling it something
 * returns false.
 */
#ifndef INF_RUNTIME_LAUNCH_H
#define INF_RUNTIME_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "runtime/status.h"

/* What the environment says; -1: it does not say. */
typedef struct InfPlace {
    bool started;
    const char *starter; /* "mpirun", "mpiexec", "srun" */
    int rank, count, local_rank, local_count;
} InfPlace;

InfPlace inf_place_find(void);

/* The exit code of a start that all its processes see to be wrong. The first one says why; a
 * launcher ends a job with the first code that is not 0, perhaps before that. */
static inline InfCode inf_place_refuses(InfPlace place, InfCode code) {
    return place.rank > 0 ? INF_OK : code;
}

/* A name that all ranks of this run on this host find alike and no other run has. */
void inf_place_key(char *out, size_t bytes);

/* Processors that this process may run on. */
int inf_cores(void);

/* The address of a socket without a file. */
socklen_t inf_abstract_address(const char *name, struct sockaddr_un *out);

/* Runs `ranks` ranks of this executable with these arguments and waits for them.
 *   mpi      the library they are linked with: InfTransport.name
 *   program  named in messages
 * Says on stderr why they failed. */
InfCode inf_launch(InfError *e, const char *program, const char *mpi, int ranks, char **argv,
                   int *exit_code);

/* What a rank tells its launcher. */
typedef enum InfTell {
    INF_TELL_here,  /* this rank has started; the text is PMIX_NAMESPACE */
    INF_TELL_cause, /* why everything ends: the first one is shown */
    INF_TELL_end,   /* rank 0: all ends in good order, with this code */
} InfTell;

typedef struct InfTold {
    InfTell what;
    int rank; /* of a cause: that failed; INF_NO_RANK: the text names it */
    InfCode code;
    bool early; /* it failed before its first step, so what mpirun says may matter */
    const char *text;
} InfTold;

enum { INF_NO_RANK = -1 };

/* False when there is no launcher, or it is on another host. */
bool inf_launch_tell(InfTold told);

#endif
