/* transport.h - the table of functions through which ranks talk to each other.
 *
 * One thread calls it, the one that opened it. Nothing here spins: whoever waits gives its
 * processor away, because ranks may outnumber processors. Messages between two ranks with the same
 * tag arrive in the order in which they were sent. All ranks call the collectives (broadcast, sum,
 * gather) in the same order, the replicas of a pipeline's rank theirs (spread, collect) in one of
 * their own. Sums over replicas are messages: sums.h.
 *
 * A function that fails says INF_PEER; that a peer died is not learnt here but from the lifelines
 * (lifeline.h): a wait for a dead rank may never come back.
 */
#ifndef INF_RUNTIME_TRANSPORT_H
#define INF_RUNTIME_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/status.h"

/* Tags are 0 .. INF_TAG_MAX. */
enum { INF_TAG_MAX = (1 << 24) - 1 };

/* A message or a collective on its way; all zero: none. */
typedef struct InfRequest {
    uint64_t word[2];
    bool busy;
} InfRequest;

typedef struct InfTransport {
    const char *name; /* "Open MPI", "MPICH": what the ranks have to be started with */

    /* Before anything else: whether whoever started this process lets open() connect it. All ranks
     * of one start find the same. */
    InfCode (*check)(InfError *e);
    /* Connects this process with the others of its run. */
    InfCode (*open)(InfError *e, int *rank, int *count, int *local_rank, int *local_count);
    /* Once, behind open, by all ranks: replica + dp * rank of the pipeline is a process's rank. */
    InfCode (*split)(InfError *e, int dp);
    /* In good order only: waits for every rank. */
    void (*close)(void);

    /* Both return at once; `at` stays as it is until wait() has come back. A message has the size
     * that its receiver names, any number of bytes from 0. */
    InfCode (*send)(InfError *e, int to, int tag, const void *at, uint64_t bytes, InfRequest *out);
    InfCode (*recv)(InfError *e, int from, int tag, void *at, uint64_t bytes, InfRequest *out);
    /* Nothing to do for a request that is not busy. */
    InfCode (*wait)(InfError *e, InfRequest *r);
    /* The same without waiting: r->busy says whether it goes on. */
    InfCode (*test)(InfError *e, InfRequest *r);
    /* Between two looks at something that goes on: gives the processor away, the more the more
     * looks, `turn`, there were. */
    void (*rest)(int turn);
    /* Lets messages on their way make progress; cheap. */
    void (*poll)(void);

    InfCode (*broadcast)(InfError *e, int root, void *at, uint64_t bytes);
    /* Sum over all ranks, in place. Exact where at most one rank has another value than 0. */
    InfCode (*sum)(InfError *e, float *at, uint64_t count);
    /* Begins: replica r's elements [r * each, (r + 1) * each) go to all replicas of this process's
     * rank of the pipeline, in place; wait() ends it, and nobody touches the numbers before. */
    InfCode (*spread)(InfError *e, float *all, uint64_t each, InfRequest *out);
    /* Begins: everyone's `mine` of this process's replicas, in their order: all[dp][bytes]. At most
     * 1 MiB from each; wait() ends it. */
    InfCode (*collect)(InfError *e, const void *mine, uint64_t bytes, void *all, InfRequest *out);
    /* Everyone's `mine` in rank order: all[count][bytes]. At most 1 MiB from each. */
    InfCode (*gather)(InfError *e, const void *mine, uint64_t bytes, void *all);
} InfTransport;

/* By the MPI library that infinic was built with; in programs of several ranks only. */
extern const InfTransport inf_transport_mpi;

#endif
