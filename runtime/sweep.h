/* sweep.h - what a killed mpirun leaves behind. */
#ifndef INF_RUNTIME_SWEEP_H
#define INF_RUNTIME_SWEEP_H

#include <sys/types.h>

/* Removes the files that Open MPI's mpirun of this process id would have removed itself: its
 * session folder, and the memory that its ranks shared.
 *   job   PMIX_NAMESPACE of its ranks; "" when none has told it */
void inf_sweep_mpirun(pid_t mpirun, const char *job);

#endif
