/* prove.h - what the parts of the proof share: prove.c, prove_messages.c. */
#ifndef INFINIC_PASSES_PROVE_H
#define INFINIC_PASSES_PROVE_H

#include "passes/schedule.h"

typedef struct ProveTask {
    const Task *task;
    int rank, position; /* in that rank's list */
} ProveTask;

typedef struct Prover {
    Arena *arena;
    const Table *t;
    ProveTask *task; /* compute tasks and updates, rank by rank */
    int ntask;
    int *made;  /* index into `task` by chunk, microbatch and what is made; -1 when none */
    int *count; /* by chunk and what is made: how many so far */
} Prover;

/* Indices into `task` of what makes a message and of what uses it. */
int prove_producer(const Prover *p, const Message *m);
int prove_consumer(const Prover *p, const Message *m);

/* Messages: one for each handover between ranks, posted in time and in one order on both sides.
 * Fills proof->received. */
const char *prove_messages(const Prover *p, Proof *proof);

/* No slot holds two things at once. */
const char *prove_slots(const Prover *p);

#endif
