/* trace.h - one Chrome trace (chrome://tracing, Perfetto) of all ranks.
 *
 * A rank is a process of the trace, with a track of its tasks as they ran, one of its tasks and one
 * of its messages as the table predicts them (its times stretched to the length of the step), and
 * one of its kernels; where there are replicas two of their sums. Every rank writes its events; at
 * the end rank 0 puts them into one file.
 */
#ifndef INF_RUNTIME_TRACE_H
#define INF_RUNTIME_TRACE_H

#include <stdio.h>

#include "runtime/json.h"
#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfTrace {
    FILE *out; /* NULL: no trace; on rank 0 the file */
    const char *path;
    const Plan *plan;
    int replica, rank; /* of this process, which is the trace's */
    char *text;        /* what other ranks write */
    size_t bytes;
    bool first;       /* no event written yet */
    double origin_ms; /* 0 of the trace, by this rank's clock */
} InfTrace;

typedef enum InfTrack {
    INF_TRACK_tasks,
    INF_TRACK_table,
    INF_TRACK_messages,
    INF_TRACK_kernels,
    INF_TRACK_sums,       /* of replicas: as they were on their way */
    INF_TRACK_sums_table, /* and as the table predicts them */
    INF_TRACK_more_sums,  /* from here on: those that were on their way beside others */
} InfTrack;

/* A piece of a track; times in ms from origin_ms on. */
typedef struct InfEvent {
    int track; /* InfTrack, and beyond */
    int rank;
    const char *name, *category;
    double at_ms, ms;
    int64_t step; /* from 0 */
} InfEvent;

/* All ranks of the plan call these two. */
InfCode inf_trace_open(InfError *e, const Plan *plan, int replica, const char *path, InfTrace *out);
InfCode inf_trace_end(InfError *e, InfTrace *t);
/* Without the end: the file stays as it is. */
void inf_trace_close(InfTrace *t);

/* An event with its open object of arguments; then the caller's arguments; then its end. */
void inf_trace_begin(InfTrace *t, const InfEvent *event, InfJson *j);
void inf_trace_finish(InfJson *j);

/* What a track of this rank is called, where its events do not tell. */
void inf_trace_name(InfTrace *t, int track, const char *name);

/* An arrow from the moment that a message is sent to the moment that it is used. */
void inf_trace_arrow(InfTrace *t, bool ends, int64_t step, int32_t message, double at_ms);

/* On rank 0: what the table says of one step of all ranks, from its begin to its last update. */
void inf_trace_predict(InfTrace *t, int64_t step, double at_ms, double ms);

#endif
