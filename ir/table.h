/* table.h - the schedule: for every rank the list of tasks it executes in one step.
 *
 * Filled by a generator or from a file (schedule_rows.c, schedule_import.c), completed with its
 * messages (schedule_order.c), proven (prove.c), placed, turned into the plan and dumped.
 * Microbatch, chunk and stage numbers start at 0; `chunk` is the global chunk (= stage), `local`
 * the chunk's number on its rank.
 */
#ifndef INFINIC_IR_TABLE_H
#define INFINIC_IR_TABLE_H

#include "ir/module.h"

typedef enum TaskKind {
    TASK_forward,
    TASK_backward, /* input and weight gradients together */
    TASK_input,    /* input gradient alone */
    TASK_weight,   /* weight gradient alone */
    TASK_update,
    TASK_send,
    TASK_recv
} TaskKind;

/* What a compute task of a pipeline hands over or is handed. */
typedef enum Window {
    WINDOW_recv,
    WINDOW_send,
    WINDOW_recv_grad,
    WINDOW_send_grad,
    WINDOW_COUNT
} Window;

typedef int WindowSlots[WINDOW_COUNT];

/* What the tasks of one chunk and microbatch cost. */
typedef struct TaskCosts {
    double forward, backward, input, weight;
} TaskCosts;

typedef struct Task {
    TaskKind kind;
    int chunk, local; /* -1 for the update; of a message: the chunk on this rank */
    int microbatch;   /* -1 for the update */
    bool first;       /* gradients are written, not added */
    int slot;         /* compute tasks: which set of its chunk's activations it uses */
    int message;      /* send, recv: index into Table.message; compute: what it waits for, or -1 */
    WindowSlots window;   /* compute tasks: slots of what is handed over; -1: nothing is */
    double start, length; /* predicted, in Table.cost_unit */
} Task;

typedef struct RankTasks {
    Task *task;
    int ntask;
} RankTasks;

/* What one chunk hands to another: activations forward, their gradients backward. */
typedef struct ChunkEdge {
    int from, to;   /* chunks, from < to */
    bool gradient;  /* something comes back */
    double cost[2]; /* of a message there, and back: estimates; on one rank nothing */
} ChunkEdge;

typedef enum MessageKind { MESSAGE_activation, MESSAGE_gradient } MessageKind;

/* One send with its receive. */
typedef struct Message {
    MessageKind kind;
    int from, to; /* chunks; a gradient goes from the later to the earlier one */
    int from_rank, to_rank;
    int microbatch;
    int slot; /* of the receiver, among the messages of this kind between these chunks */
} Message;

/* What a chunk holds. */
typedef struct ChunkInfo {
    int units;                       /* layers and iterations of repeats */
    const char *first, *last;        /* scope paths of its first and last unit */
    int64_t first_layer, last_layer; /* their iterations; -1: not in a repeat */
    int64_t parameters;              /* elements of those that it uses first, without padding */
    double flops;                    /* of one forward */
    double cost, share;              /* what is balanced: of one forward, arithmetic and traffic;
                                        with --costs measured; of the model's */
    TaskCosts task;                  /* estimates, in Table.cost_unit */
} ChunkInfo;

/* A layer, or all iterations of a repeat. */
typedef struct UnitInfo {
    const char *name; /* "conv1", "transformer.h.*" */
    int layers;
} UnitInfo;

typedef struct Table {
    int ranks, chunks, microbatches;
    int vpp;       /* chunks a rank */
    bool loopback; /* chunks of one rank talk by messages, too */
    int group;     /* interleaved: microbatches of a chunk that follow each other; else 0 */
    int *home;     /* by chunk: its rank */
    int *local;    /* by chunk: its number on that rank */
    ChunkEdge *edge;
    int nedge;
    Message *message; /* in the one order in which every rank posts its halves */
    int nmessage;
    RankTasks *rank;
    int *slots;           /* by chunk: sets of activations it needs */
    WindowSlots *windows; /* by chunk: how many slots for what it is handed and what it sends */
    int64_t parameters;   /* elements of all ranks, without padding; in how many blocks */
    int blocks;
    int buckets;          /* of all ranks; 0: there are none */
    UnitInfo *unit; /* what partition cuts between, in order */
    int nunit;
    ChunkInfo *stage;        /* by chunk; NULL before partition */
    const char *layers;      /* "layers 12 = 3+3+3+3"; NULL: nothing repeats */
    const char *pipeline;    /* "1f1b", "interleaved", ... */
    const char *summary;     /* the line below the table: proof, makespan, bubble, peaks */
    const char *cost_unit;   /* of estimates: "ms"; NULL: forwards of a mean chunk */
    double forward_flops;    /* of a mean chunk: arithmetic and traffic */
    const char *estimate;    /* the line below that, with estimated costs; NULL: one rank */
    double makespan, bubble; /* estimated */
    int peak_in_flight;      /* most forwards without their backward on rank 0 */
} Table;

/* Whether a rank runs input and weight gradients as tasks of their own. */
static inline bool table_splits_backward(const Table *t, int rank) {
    for (int i = 0; i < t->rank[rank].ntask; i++)
        if (t->rank[rank].task[i].kind == TASK_weight) return true;
    return false;
}

/* Whether two chunks hand over without a message: in the memory of their rank. */
static inline bool table_is_local(const Table *t, int from, int to) {
    return t->home[from] == t->home[to] && !t->loopback;
}

#endif
