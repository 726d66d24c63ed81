/* progress.h - how far a run is, on stderr.
 *
 * On a terminal one line is rewritten in place, a few times a second. Elsewhere plain lines: the
 * first step, then one every few seconds, and the last.
 */
#ifndef INF_RUNTIME_PROGRESS_H
#define INF_RUNTIME_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/metrics.h"

typedef struct InfProgress {
    bool quiet, terminal;
    int64_t first, steps, steps_per_epoch; /* step it began with, last step, length of an epoch */
    const char *unit;                      /* of speed: "samples", "tokens" */
    double started_ms, shown_ms;
    bool shown;   /* at least one line */
    bool pending; /* a line without its end is on the terminal */
} InfProgress;

void inf_progress_open(InfProgress *p, bool quiet, int64_t first, int64_t steps,
                       int64_t steps_per_epoch, const char *unit);

/* After step r->step (counted from 1). */
void inf_progress_step(InfProgress *p, const InfStepRecord *r);

/* Ends the line in place, so that something else can be printed. */
void inf_progress_break(InfProgress *p);

/* "1:02:03", "4:05"; `out` has at least 32 bytes. */
const char *inf_duration_text(double seconds, char *out);

#endif
