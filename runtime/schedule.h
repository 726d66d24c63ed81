/* schedule.h - prints the task table that a step walks: what each rank does in which slot.
 *
 * Slots are those of unit costs without communication: F 1, B 2, I 1, W 1. Needs the plan only,
 * so that the compiler prints the same bytes.
 */
#ifndef INF_RUNTIME_SCHEDULE_H
#define INF_RUNTIME_SCHEDULE_H

#include <stdio.h>

#include "runtime/plan.h"
#include "runtime/status.h"

/* format: "table", "csv", "json", "svg" or "trace". */
InfCode inf_schedule_print(InfError *e, const Plan *plan, const char *format, FILE *out);

#endif
