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

/* "F3" on one chunk a rank, "F3_1" on several; "sendF3", "recvB3_1"; "U" for the update. */
enum { INF_TASK_NAME_BYTES = 40 };
const char *inf_task_name(const Plan *plan, const PlanTask *task, char out[INF_TASK_NAME_BYTES]);
/* "forward", "send", .. */
const char *inf_task_kind_name(const PlanTask *task);

/* format: "table", "csv", "json", "svg" or "trace". */
InfCode inf_schedule_print(InfError *e, const Plan *plan, const char *format, FILE *out);

#endif
