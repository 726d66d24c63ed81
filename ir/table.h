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
    TASK_recv,
    TASK_reduce, /* replicas add up a bucket */
    TASK_gather  /* zero = 1: replicas hand each other the weights of a part that they share */
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

/* What it costs to send something to another process. */
typedef struct LinkCost {
    double once; /* whatever its size */
    double rate; /* bytes in one unit of cost; 0: size does not matter */
} LinkCost;

static inline double link_cost(const LinkCost *link, double bytes) {
    return link->once + (link->rate > 0 ? bytes / link->rate : 0);
}

typedef struct Task {
    TaskKind kind;
    int chunk, local;   /* -1 for the update; of a message: the chunk on this rank; sums and gathers
                           have a local one only: what completes a bucket, what reads weights first
                           (-1: nothing does) */
    int microbatch;     /* -1 for the update, sums and gathers */
    bool first;         /* gradients are written, not added */
    int slot;           /* compute tasks: which set of its chunk's activations it uses */
    int message;        /* send, recv: index into Table.message; compute: what it waits for, or -1;
                           sums: the bucket, by readiness; gathers: the part, in order */
    WindowSlots window; /* compute tasks: slots of what is handed over; -1: nothing is */
    double start, length; /* predicted, in Table.cost_unit */
    double done; /* sums: the share of its chunk's last task that has passed when it begins */
    double sent; /* sums and gathers: bytes that leave each replica; 0: there is only one */
} Task;

typedef struct RankTasks {
    Task *task;
    int ntask;
    int nsum, ngather; /* what has to be added up, and gathered, once each */
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
    int buckets;      /* of all ranks; 0: there are none */
    int replicas;     /* of every rank */
    bool sums_last;   /* sums of replicas wait for all that computes */
    bool whole_steps; /* nothing of a step begins before all of the one before is over */
    LinkCost link;    /* of messages, sums and gathers */
    UnitInfo *unit;   /* what partition cuts between, in order */
    int nunit;
    ChunkInfo *stage;        /* by chunk; NULL before partition */
    const char *layers;      /* "layers 12 = 3+3+3+3"; NULL: nothing repeats */
    const char *pipeline;    /* "1f1b", "interleaved", ... */
    const char *summary;     /* the line below the table: proof, makespan, bubble, peaks */
    const char *cost_unit;   /* of estimates: "ms"; NULL: forwards of a mean chunk */
    double forward_flops;    /* of a mean chunk: arithmetic and traffic */
    const char *estimate;    /* the line below that, with estimated costs; NULL: one process */
    double makespan, bubble; /* estimated */
    double exposed;          /* what of the makespan is there for sums and gathers alone */
} Table;

/* Whether a task of this kind runs nodes of a phase. */
static inline bool table_task_runs(TaskKind kind, Phase phase) {
    switch (kind) {
    case TASK_forward: return phase == PHASE_F;
    case TASK_backward: return phase != PHASE_F;
    case TASK_input: return phase == PHASE_I;
    case TASK_weight: return phase == PHASE_W;
    default: return false;
    }
}

/* The place of a chunk's last task that writes gradients of weights, behind which they are all
 * there; -1: it has none. */
static inline int table_last_task(const RankTasks *rank, int local) {
    for (int i = rank->ntask - 1; i >= 0; i--) {
        TaskKind kind = rank->task[i].kind;
        if ((kind == TASK_backward || kind == TASK_weight) && rank->task[i].local == local)
            return i;
    }
    return -1;
}

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
