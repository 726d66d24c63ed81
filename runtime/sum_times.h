/* sum_times.h - when the sums and gathers of a traced step were on their way: events of its trace.
 *
 * For ranks whose host knows their requests. Events of one track do not overlap: what goes beside
 * others has a track of its own. Requests are looked at whenever messages go on and when
 * somebody waits for one, so an event may end that much later than what it shows.
 */
#ifndef INF_RUNTIME_SUM_TIMES_H
#define INF_RUNTIME_SUM_TIMES_H

#include "runtime/profile.h"
#include "runtime/transport.h"

/* A bucket or a shard, as a row of the table: what of it is on its way. */
typedef struct InfSumTime {
    PlanTaskKind kind; /* PTASK_reduce, PTASK_gather */
    uint32_t number;
    InfRequest *request; /* the transport's, or where it is a sum that of sums.h */
    uint32_t lane;       /* 0: INF_TRACK_sums */
    double begun_ms;
    int64_t step;
} InfSumTime;

typedef struct InfSumTimes {
    InfProfile *profile; /* NULL: no training step has begun */
    int64_t step;
    InfSumTime *on_way;
    uint32_t count, most;
    uint32_t lanes; /* used so far */
} InfSumTimes;

InfCode inf_sum_times_open(InfError *e, const Plan *plan, InfSumTimes *out);
void inf_sum_times_close(InfSumTimes *t);

/* A training step begins. */
void inf_sum_times_step(InfSumTimes *t, InfProfile *profile, int64_t step);

/* It has begun. Nothing is noted while no trace is written. */
void inf_sum_times_begin(InfSumTimes *t, const InfSumTime *begun);

/* Writes those that are over; a failure is told by whoever waits. */
void inf_sum_times_look(InfSumTimes *t, const InfTransport *transport);

#endif
