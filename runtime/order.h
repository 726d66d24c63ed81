/* order.h - which launches of a recorded step wait for which.
 *
 * A launch must wait for an earlier one when one of the two writes what the other reads or writes.
 * A device pays for every edge between parallel parts of a graph, so there are two lanes only: the
 * longest chain of launches that have to wait for each other, and one beside it for the others:
 * gradients of weights, sums of metrics. Messages between ranks, which wait for others, have a
 * third one, and what replicas do together a fourth: each of the two keeps one order on all ranks
 * that take part. Within a lane launches follow one another. The results are the same: every launch
 * sees the same bytes.
 *
 * Used in two rounds over the same launches: a survey (use, end), then `plan`, then `next`.
 */
#ifndef INF_RUNTIME_ORDER_H
#define INF_RUNTIME_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/status.h"

/* A range of addresses that a launch uses. Addresses below INF_ORDER_TOKENS are no memory but
 * things that only one launch may have at a time. */
typedef struct InfReach {
    uint64_t begin, end;
    bool written;
} InfReach;

enum { INF_ORDER_TOKENS = 1 << 20 };

typedef enum InfLane {
    INF_LANE_main,
    INF_LANE_beside,
    INF_LANE_messages,
    INF_LANE_replicas,
    INF_LANE_COUNT
} InfLane;

/* Whether a launch waits for other ranks: it then has the lane that it was given. */
static inline bool inf_lane_is_joint(InfLane lane) { return lane >= INF_LANE_messages; }

/* What the survey knows of a launch. `first` and `wait` are of lists that end where those of the
 * next launch begin. */
typedef struct InfOrderLaunch {
    uint32_t first; /* of its ranges */
    uint32_t wait;  /* of the earlier launches that it clashes with most directly */
    uint32_t next;  /* on the longest chain from here; the count of launches: none */
    double cost_us; /* about how long it takes */
    double rest_us; /* the longest chain from its begin on */
    InfLane lane;
} InfOrderLaunch;

typedef struct InfOrder {
    bool on, surveying;
    uint32_t count; /* launches of the survey */
    uint32_t at;    /* launches that `next` was asked for */
    InfReach *reach;
    uint32_t reach_count, reach_most;
    InfOrderLaunch *launch;
    uint32_t *wait; /* by launch, latest first */
    uint32_t wait_count, wait_most;
    uint64_t *behind; /* by launch: bits of the launches it comes after, directly or not */
    uint32_t *waits;  /* for the launch at hand */
    uint32_t words;   /* of 64 bits a launch */
    uint32_t lane[INF_LANE_COUNT]; /* 1 + the latest launch in a lane; 0: none */
} InfOrder;

/* Room for `launches` launches with `reaches` ranges altogether. More than INF_ORDER_MOST launches
 * are not looked at: then the order stays off, and each launch waits for the one before. */
enum { INF_ORDER_MOST = 20000 };
InfCode inf_order_open(InfError *e, uint32_t launches, uint32_t reaches, InfOrder *out);
void inf_order_close(InfOrder *o);

/* Survey: notes a range of the next launch; ends it.
 *   lane   INF_LANE_main: whichever of the first two is found for it */
void inf_order_use(InfOrder *o, uint64_t begin, uint64_t bytes, bool written);
void inf_order_end(InfOrder *o, double cost_us, InfLane lane);

/* Ends the survey and chooses lanes: one where a second would gain too little. The order goes off
 * where there is no memory for it. */
void inf_order_plan(InfOrder *o);

/* The launches that the next one waits for, in *waits until the next call; returns how many. */
uint32_t inf_order_next(InfOrder *o, const uint32_t **waits);

#endif
