/* Fuzz target: any bytes as the CSV of a schedule. What is read is proven or refused in words, and
 * what is proven can be completed and proven again. */
#include <stdlib.h>

#include "passes/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const ScheduleCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};
    for (int any = 0; any < 2; any++) {
        Arena a = {0};
        Proof proof;
        ScheduleShape shape = {.pipeline = "1f1b", .ranks = 2, .vpp = 1 + any, .microbatches = 2};
        const char *why = NULL;
        Table *t = schedule_import(&a, (const char *)data, size, &shape, &why);
        if ((t == NULL) == (why == NULL)) abort();
        if (t != NULL && prove_tasks(&a, t, &unit, any != 0, &proof) == NULL) {
            if (!schedule_complete(&a, t, &unit)) abort();
            if (prove_table(&a, t, &unit, any != 0, &proof) != NULL) abort();
        }
        arena_free(&a);
    }
    return 0;
}
