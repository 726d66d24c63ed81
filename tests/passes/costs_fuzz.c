/* Fuzz target: any bytes as the file of --costs. What is read gives every layer costs that can be
 * added up, or is refused in words. */
#include <math.h>
#include <stdlib.h>

#include "passes/costs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_cost(double value) { return isfinite(value) && value >= 0; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena a = {0};
    Sources sources;
    Diag diag;
    UnitList units = {0};
    TaskCosts cost[4];
    sources_init(&sources, &a);
    diag_init(&diag, &a, &sources, NULL);
    Module *m = module_new(&a, &sources, &diag);
    vec_push(&a, &units, ((Unit){.name = "a", .layer = -1}));
    for (int i = 0; i < 2; i++) vec_push(&a, &units, ((Unit){.name = "h.*", .layer = i}));
    vec_push(&a, &units, ((Unit){.name = "b", .layer = -1}));
    const Costs *costs =
        costs_read(m, source_add(&sources, "costs.json", (const char *)data, size));
    bool fits = costs != NULL && costs_of_units(m, costs, &units, cost);
    if (fits == (diag.error_count > 0)) abort();
    for (int i = 0; fits && i < 4; i++)
        if (!is_cost(cost[i].forward) || !is_cost(cost[i].backward) || !is_cost(cost[i].input) ||
            !is_cost(cost[i].weight))
            abort();
    arena_free(&a);
    return 0;
}
