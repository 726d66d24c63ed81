/* schedule.h - task tables: generators, rows as text, and their proof.
 *
 * schedule.c fills a Table by a generator; prove.c knows nothing of the generators and checks any
 * table against what training means. Rules and exact rows: GPipe and 1F1B.
 */
#ifndef INFINIC_PASSES_SCHEDULE_H
#define INFINIC_PASSES_SCHEDULE_H

#include "ir/table.h"

/* A table of p ranks with one chunk each and n microbatches, the update last on every rank; NULL
 * when the pipeline has no generator. Kept in `arena`. */
Table *schedule_make(Arena *arena, const char *pipeline, int p, int n);

/* "F0_0 F1_0 B0_0 ...": the compute tasks of one rank as <kind><microbatch>_<local chunk>. */
const char *schedule_row(Arena *arena, const RankTasks *rank);

/* Costs of the proof's simulation, in units of one forward of one chunk. */
typedef struct ProveCosts {
    double forward, backward, input, weight;
} ProveCosts;

typedef struct Proof {
    int nodes, edges; /* of the happens-before graph: tasks and messages */
    double makespan;  /* of one step without the update, under the costs */
    double bubble;    /* idle share of all ranks until then */
    int *peak;        /* most forwards without their backward, per rank */
    int peak_first;   /* the same on rank 0 */
} Proof;

/* Checks the table: each (chunk, microbatch) has exactly one forward and one backward (or one input
 * and one weight gradient), on one rank, microbatches of a chunk's backward ascend, the first is
 * marked, every rank updates once, last; and the happens-before graph has no cycle. Returns NULL
 * and fills *proof, or says what is wrong; both kept in `arena`. */
const char *prove_table(Arena *arena, const Table *t, const ProveCosts *costs, Proof *proof);

/* Checks that the module's graphs do what the table promises: every node of train belongs to the
 * forward or the backward of the one chunk, every use of every parameter has exactly one gradient,
 * the update covers each element of each parameter exactly once. */
const char *prove_module(Arena *arena, const Module *m);

#endif
