/* cause.h - why a run of several ranks ended: which rank, what happened, where it was. */
#ifndef INF_RUNTIME_CAUSE_H
#define INF_RUNTIME_CAUSE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/plan.h"

typedef enum InfCauseKind {
    INF_CAUSE_none,
    INF_CAUSE_failed,  /* it gave up, and says why itself */
    INF_CAUSE_died,    /* its process is gone */
    INF_CAUSE_silent,  /* its process is there and does not answer */
    INF_CAUSE_missing, /* it never came */
    INF_CAUSE_stuck,   /* MPI does not connect the ranks */
    INF_CAUSE_alone,   /* mpirun is gone */
} InfCauseKind;

/* Travels between ranks as it is. */
typedef struct InfCause {
    int32_t kind; /* InfCauseKind */
    int32_t rank;
    int32_t code; /* failed: its exit code */
    int32_t pid;
    uint64_t position; /* inf_position */
} InfCause;

/* Where a rank is, in one word: its step and the task of its own table; 0: before its first step.
 *   task   -1: between tasks */
uint64_t inf_position(int64_t step, int32_t task);

/* One sentence that names the rank: "rank 2 (process 71) died at step 17, in task 43 of 96:
 * backward of microbatch 3 in chunk 1". */
void inf_cause_text(char *out, size_t bytes, const Plan *plan, int ranks, const InfCause *cause);

enum { INF_MISSING_S = 10, INF_SILENT_S = 8, INF_STUCK_S = 120 };

#endif
