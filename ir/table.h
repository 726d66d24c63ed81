/* table.h - the schedule: for every rank the list of tasks it executes in one step.
 *
 * Filled by a generator (schedule.c), proven (prove.c), placed, turned into the plan and dumped.
 * Microbatch, chunk and stage numbers start at 0; with V placement or vpp > 1 `chunk` is the
 * global chunk (= stage) and `local` the chunk's number on its rank.
 */
#ifndef INFINIC_IR_TABLE_H
#define INFINIC_IR_TABLE_H

#include "ir/module.h"

typedef enum TaskKind {
    TASK_forward,
    TASK_backward, /* input and weight gradients together */
    TASK_input,    /* input gradient alone */
    TASK_weight,   /* weight gradient alone */
    TASK_update
} TaskKind;

typedef struct Task {
    TaskKind kind;
    int chunk, local; /* -1 for the update */
    int microbatch;   /* -1 for the update */
    bool first;       /* gradients are written, not added */
} Task;

typedef struct RankTasks {
    Task *task;
    int ntask;
} RankTasks;

typedef struct Table {
    int ranks, chunks, microbatches;
    RankTasks *rank;
    const char *pipeline;  /* "1f1b", ... */
    const char *summary;   /* the line below the table: proof, makespan, bubble, peaks */
    int peak_in_flight;    /* most forwards without their backward on rank 0 */
} Table;

#endif
