/* costs.h - measured or hand-written costs of layers: the file of --costs.
 *
 *   {"unit": "ms", "message": 0.02, "megabyte": 0.1,
 *    "layers": {"transformer.wte": {"forward": 0.1, "backward": 0.2},
 *               "transformer.h.*": {"forward": 1.5, "input": 1.4, "weight": 1.3}}}
 *
 * A layer is a unit of partition: a path without the parameter's name; `*` stands for all
 * iterations of a repeat, and the row of one of them ("transformer.h.3") goes before it. Costs are
 * those of one microbatch. Backward is input and weight together: without all three it is twice the
 * forward, and halves of it are input and weight. What goes to another process, a message or a sum
 * of replicas, takes `message` whatever its size, and `megabyte` for each million bytes; without
 * costs it takes no time. "model" and "device" say where a file comes from; no other keys are
 * known.
 */
#ifndef INFINIC_PASSES_COSTS_H
#define INFINIC_PASSES_COSTS_H

#include "passes/partition.h"

typedef struct CostRow {
    const char *name;
    TaskCosts cost;
} CostRow;

struct Costs {
    uint32_t file;    /* of the module's sources */
    const char *name; /* as the user wrote it */
    const char *unit;
    double message, megabyte;
    VEC(CostRow) rows;
};

/* Reads a file of the module's sources. NULL after a diagnostic (E020). */
const Costs *costs_read(Module *m, uint32_t file);

/* The costs of each unit. False after a diagnostic: a unit has none, or a row names no unit. */
bool costs_of_units(Module *m, const Costs *costs, const UnitList *units, TaskCosts *out);

#endif
