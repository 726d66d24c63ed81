/* limits.h - which values a batch tensor of integers may hold.
 *
 * Found from its uses: the index of a gather stays below the table's rows, a target of a
 * cross-entropy below the number of classes or equals `ignore`. The loader checks data against
 * these before step 0.
 */
#ifndef INFINIC_IR_LIMITS_H
#define INFINIC_IR_LIMITS_H

#include "ir/module.h"

typedef struct DataLimit {
    int64_t limit;  /* values lie in [0, limit); INT64_MAX: any */
    int64_t ignore; /* also allowed; INT64_MIN: none */
} DataLimit;

/* The limit of data input `index` in graph g as lowered, before autodiff. */
DataLimit limits_of_input(const Graph *g, int index);

#endif
