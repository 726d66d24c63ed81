/* schedule.h - task tables: generators, messages, rows as text, import, and their proof.
 *
 * A table begins as rows of compute tasks, one a rank, from a generator (schedule_rows.c) or a file
 * (schedule_import.c); schedule_order.c adds messages and slots. prove.c knows nothing of these and
 * checks any table against what training means.
 */
#ifndef INFINIC_PASSES_SCHEDULE_H
#define INFINIC_PASSES_SCHEDULE_H

#include "passes/pass.h"

/* What a table is for. */
typedef struct ScheduleShape {
    const char *pipeline; /* 1f1b, gpipe, zb-h1, zb-v; 1f1b with vpp > 1 is interleaved */
    int ranks, vpp, microbatches;
    int group;             /* interleaved: microbatches of a chunk in a row; 0: schedule_group */
    const ChunkEdge *edge; /* NULL: every chunk hands over to the next */
    int nedge;
} ScheduleShape;

/* Costs of tasks, in units of one forward of one chunk. */
typedef struct ScheduleCosts {
    double forward, backward, input, weight;
    double message;
    const TaskCosts *chunk; /* by chunk; NULL: all cost the same */
    const ChunkEdge *edge;  /* by edge of the table: its messages; NULL: all cost the same */
    LinkCost link;          /* of sums and gathers */
} ScheduleCosts;

double schedule_cost(const ScheduleCosts *costs, const Task *task);
double schedule_message_cost(const ScheduleCosts *costs, const Table *t, const Message *m);

/* A table with all its rows: its proof, and what is printed below it. */
void schedule_finish(PassContext *ctx);

/* The compute tasks of the module's layout: from its generator or its file. NULL after a
 * diagnostic. */
Table *schedule_begin(PassContext *ctx);

/* The table, complete with messages and slots, the update last on every rank; NULL when the
 * pipeline has no generator or cannot have this many chunks a rank. Kept in `arena`. */
Table *schedule_make(Arena *arena, const ScheduleShape *shape, const ScheduleCosts *costs);

/* The same with compute tasks only, for schedule_complete. */
Table *schedule_rows(Arena *arena, const ScheduleShape *shape);

/* Adds the messages of `t`'s edges, in timed order: sorted by the predicted end of what makes them.
 * Every rank posts its halves in this order and each stands after its producer and before its
 * consumer, so no rank can wait for ever, whatever the timing. Then gives tasks and messages their
 * slots. False when the compute tasks alone wait for each other. */
bool schedule_complete(Arena *arena, Table *t, const ScheduleCosts *costs);

/* Interleaved schedules: whether a group runs, and the smallest one that does. */
bool schedule_group_runs(int ranks, int microbatches, int group);
int schedule_group(int ranks, int microbatches);

/* A table from PyTorch's CSV: a row a rank, cells <stage><F|B|I|W><microbatch>, empty cells are
 * idle slots. `any_order`: backwards of a chunk need not ascend. NULL with *why when it does not
 * fit `shape` (its ranks, vpp, microbatches and edges). */
Table *schedule_import(Arena *arena, const char *text, size_t bytes, const ScheduleShape *shape,
                       const char **why);

/* "F0_0 F1_0 B0_0 ...": the compute tasks of one rank as <kind><microbatch>_<local chunk>. */
const char *schedule_row(Arena *arena, const RankTasks *rank);

typedef struct Proof {
    int nodes, edges;       /* of the happens-before graph: tasks and messages */
    double makespan;        /* of one step without the update, messages at no cost */
    double makespan_queued; /* the same with messages one after another on each rank */
    double bubble;          /* idle share of all ranks until `makespan` */
    int *peak;              /* most forwards without their backward, per rank */
    int *received;          /* most messages received and not used, per rank */
} Proof;

/* Checks the table: each (chunk, microbatch) has exactly one forward and one backward (or one input
 * and one weight gradient), on one rank; backwards of a chunk ascend (unless any_order), the first
 * is marked; every rank updates once, behind all that computes; every edge between ranks has one
 * message a microbatch and direction, sent after it is made and received before it is used; both
 * ends of each pair of ranks agree on the order; slots hold one thing at a time; every bucket is
 * summed once, behind the task that completes it and before the update, in the order in which that
 * happens, and every part of the weights gathered once behind that; the happens-before graph has no
 * cycle. Returns NULL and fills *proof, or says what is wrong in words; both kept in `arena`. */
const char *prove_table(Arena *arena, const Table *t, const ScheduleCosts *costs, bool any_order,
                        Proof *proof);

/* Start and length of every task of a proven table, with messages one after another on each rank,
 * and sums on a way of their own, likewise; the table's makespan and bubble. Weights travel while
 * the next step begins (on a device before it does), so every step's first tasks wait for those of
 * the step before; their rows have times behind the step. What of sums and gathers is not hidden is
 * part of the makespan. */
void prove_times(Arena *arena, Table *t, const ScheduleCosts *costs);

/* The part of prove_table that concerns compute tasks: of a table without messages and slots. */
const char *prove_tasks(Arena *arena, const Table *t, const ScheduleCosts *costs, bool any_order,
                        Proof *proof);

/* Checks that the module's graphs do what the table promises: every node of train belongs to the
 * forward or the backward of the one chunk, every use of every parameter has exactly one gradient,
 * the update covers each element of each parameter exactly once. */
const char *prove_module(Arena *arena, Module *m);

/* The same for the flat vectors (prove_layout.c): pieces of parameters lie apart in their segments;
 * buckets are whole blocks for all replicas and lie apart, and the gradient of every use that is
 * trained and computed here is in exactly one, of the chunk that computes it. */
const char *prove_layout(Arena *arena, Module *m);

#endif
