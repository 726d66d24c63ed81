/* schedule_draw.h - the task table as a picture (SVG) and as a trace of chrome://tracing and
 * Perfetto, in slots of unit costs; with replicas their sums have a lane of their own below their
 * rank's.
 */
#ifndef INF_RUNTIME_SCHEDULE_DRAW_H
#define INF_RUNTIME_SCHEDULE_DRAW_H

#include <stdio.h>

#include "runtime/timeline.h"

void inf_schedule_draw_svg(const InfTimeline *t, FILE *out);
void inf_schedule_draw_trace(const InfTimeline *t, FILE *out);

#endif
