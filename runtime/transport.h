/* transport.h - the table of functions through which ranks talk to each other.
 *
 * One thread calls it, the one that opened it. Nothing here spins: whoever waits gives its
 * processor away, because ranks may outnumber processors. Messages between two ranks with the same
 * tag arrive in the order in which they were sent. All ranks call the collectives (broadcast, sum,
 * gather) in the same order, the replicas of a pipeline's rank theirs (add) in one of their own.
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

/* A message or a sum on its way; all zero: none. */
typedef struct InfRequest {
    uint64_t word[2];
    bool busy;
} InfRequest;

typedef struct InfTransport {
    const char *name; /* "Open MPI", "MPICH": what the ranks have to be started with */
    uint64_t add_max; /* elements of one `add` */

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
    /* Whether a request is over, without waiting: then it is not busy any more. Of sums and gathers
     * only. A failure is told by wait(). */
    bool (*over)(InfRequest *r);
    /* Lets messages and sums on their way make progress; cheap. */
    void (*poll)(void);

    InfCode (*broadcast)(InfError *e, int root, void *at, uint64_t bytes);
    /* Sum over all ranks, in place. Exact where at most one rank has another value than 0. */
    InfCode (*sum)(InfError *e, float *at, uint64_t count);
    /* Begins the sum over this process's replicas, in place; wait() ends it, and nobody touches the
     * numbers before. All replicas get the same bits, and in every run, because the order of the
     * additions depends on their number only. */
    InfCode (*add)(InfError *e, float *at, uint64_t count, InfRequest *out);
    /* Begins: replica r gets the sum over this process's replicas of elements [r * each, (r + 1) *
     * each) of `all`, as the first `each` of `all`, whose others are lost; with `add`'s promises.
     */
    InfCode (*scatter)(InfError *e, float *all, uint64_t each, InfRequest *out);
    /* Begins: replica r's elements [r * each, (r + 1) * each) go to all replicas, in place. */
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
