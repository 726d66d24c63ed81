/* sums.h - sums over the replicas of a pipeline's rank, by messages between them.
 *
 * A vector is cut into one part a replica. Everyone sends each part to its owner; the owner adds
 * what it gets to its own numbers, and unless `scatter` sends the sum to all. It goes piece by
 * piece: a few are on their way at a time, in memory that is given once, however much is summed and
 * however many sums have begun. They follow one another in the order in which they begin, which has
 * to be the same on all replicas.
 *
 * An element's sum is ((x0 + x1) + x2) + .. in the order of replicas: it depends neither on how
 * vectors are cut nor on the MPI library, and all replicas get the same bits.
 * Nothing goes on by itself: inf_sums_poll has to be called now and then.
 */
#ifndef INF_RUNTIME_SUMS_H
#define INF_RUNTIME_SUMS_H

#include "runtime/transport.h"

typedef struct InfSums InfSums;

/* Whose they are: this process is `first` + `replica`, of `replicas`. At most `most` sums are
 * on their way. */
typedef struct InfSumsOf {
    const InfTransport *transport;
    int replica, replicas, first;
    uint32_t most;
} InfSumsOf;

InfCode inf_sums_open(InfError *e, const InfSumsOf *of, InfSums **out);
void inf_sums_close(InfSums *s);

/* Memory for what is on its way, `bytes` >= 0 of it; as large on all replicas. Before the first sum
 * begins. */
void inf_sums_place(InfSums *s, void *memory, uint64_t bytes);

/* What is summed, in place. With `scatter` only this replica's part becomes the sum: elements
 * [replica, replica + 1) * count / replicas. */
typedef struct InfSummand {
    float *at;
    uint64_t count;
    bool scatter;
} InfSummand;

/* Begins; out->busy until it is over, and nobody touches the numbers before. No other field of it
 * is used, and it is none of the transport's. */
InfCode inf_sums_begin(InfError *e, InfSums *s, const InfSummand *all, InfRequest *out);

/* Does what can be done at once. Cheap where nothing is on its way. */
InfCode inf_sums_poll(InfError *e, InfSums *s);

/* Until this one is over; nothing to do where it is. */
InfCode inf_sums_wait(InfError *e, InfSums *s, const InfRequest *r);

/* Begins and waits. */
InfCode inf_sums_add(InfError *e, InfSums *s, float *at, uint64_t count);

#endif
