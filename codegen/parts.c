/* parts.c - which kernels are compiled together.
 *
 * NVRTC uses one processor, so the kernels are cut into parts that are compiled side by side. The
 * cut is a function of the kernels alone, never of the machine: as many parts as their weight asks
 * for, and each kernel, the heaviest first, goes where there is least so far.
 */
#include "codegen/program.h"

#include <stdlib.h>

/* About 1.5 s of one processor for a cubin; what comes before a part's kernels costs a tenth. */
enum { PART_WEIGHT = 120000 };

typedef struct Weight {
    int64_t weight;
    uint32_t kernel;
} Weight;

static int compare_weights(const void *a, const void *b) {
    const Weight *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->kernel < y->kernel ? -1 : x->kernel > y->kernel;
}

void parts_plan(Program *p) {
    const KernelRow *row = p->kernels.data;
    Weight *order = ARENA_ARRAY(p->arena, Weight, p->kernels.n + 1);
    int64_t total = 0, held[PLAN_PARTS_MAX] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        if (row[i].kind != PLAN_KERNEL_cuda || row[i].shares) continue;
        order[n++] = (Weight){row[i].weight, i};
        total += row[i].weight;
    }
    qsort(order, n, sizeof *order, compare_weights);
    int64_t parts = (total + PART_WEIGHT - 1) / PART_WEIGHT;
    p->parts = (uint32_t)(parts < 1 ? 1 : parts > PLAN_PARTS_MAX ? PLAN_PARTS_MAX : parts);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t least = 0;
        for (uint32_t j = 1; j < p->parts; j++)
            if (held[j] < held[least]) least = j;
        held[least] += order[i].weight;
        p->kernels.data[order[i].kernel].part = least;
    }
    for (uint32_t i = 0; i < p->kernels.n; i++)
        if (row[i].shares) p->kernels.data[i].part = row[row[i].shares - 1].part;
}
