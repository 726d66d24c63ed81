/* prove.h - what the parts of the proof share: prove.c, prove_messages.c, prove_sums.c. */
#ifndef INFINIC_PASSES_PROVE_H
#define INFINIC_PASSES_PROVE_H

#include "passes/events.h"
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
    int *made;      /* index into `task` by chunk, microbatch and what is made; -1 when none */
    int *count;     /* by chunk and what is made: how many so far */
    ProveTask *sum; /* sums and gathers, whose events follow those of messages */
} Prover;

/* Indices into `task` of what makes a message and of what uses it. */
int prove_producer(const Prover *p, const Message *m);
int prove_consumer(const Prover *p, const Message *m);

/* Messages: one for each handover between ranks, posted in time and in one order on both sides.
 * Fills proof->received. */
const char *prove_messages(const Prover *p, Proof *proof);

/* Sums and gathers: each once, where the table's rules want it. */
const char *prove_sums(const Prover *p);

/* Their events behind those of the graph, with what they wait for and what waits for them; one
 * replica waits for none. `at` gets their tasks, by event from the first one on. */
void prove_add_sums(const Prover *p, Events *g, ProveTask *at);

/* How many events that takes. */
int prove_count_sums(const Table *t);

/* Gathers of the step before, as events at cost, and the tasks that wait for them. */
void prove_add_waits(const Prover *p, Events *g, const ScheduleCosts *costs);

/* Start and length of sums and gathers from those of tasks, before or behind which they stand.
 * Returns when the last sum is over. */
double prove_time_sums(Table *t, const ScheduleCosts *costs);

/* No slot holds two things at once. */
const char *prove_slots(const Prover *p);

#endif
