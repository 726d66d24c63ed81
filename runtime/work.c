/* work.c - FLOPs of a step, peaks of devices. */
#include "runtime/work.h"

#include <ctype.h>
#include <string.h>

#include "runtime/loader.h"
#include "runtime/step.h"

/* Of one rank, but for copies that another one counts. */
static double count_parameters(const Plan *plan) {
    double parameters = 0;
    for (uint32_t i = 0; i < plan->nparam; i++) {
        const PlanParam *p = &plan->param[i];
        double count = p->copied ? 0 : 1;
        for (int axis = 0; axis < p->nstack; axis++) count *= (double)p->stack[axis];
        for (int axis = 0; axis < p->ndim; axis++) count *= (double)p->dim[axis];
        parameters += count;
    }
    return parameters;
}

double inf_work_step(const Plan *plan) {
    const PlanProgram *train = &plan->program[0];
    double parameters = 0, length = (double)inf_units(train);
    if (!inf_input_find(train, PLAN_INPUT_tokens)) return 0;
    for (int r = 0; r < (plan->ranks); r++) parameters += count_parameters(plan - plan->rank + r);
    double token = 6 * parameters + 6 * (double)plan->attention_width * length;
    return token * length * (double)inf_global_batch(plan);
}

double inf_work_peak(const char *device) {
    /* The first row whose words the device's name begins with. */
    static const struct {
        const char *name;
        double tera;
    } rows[] = {{"NVIDIA H100 PCIe", 756}, {"NVIDIA H100 NVL", 835}, {"NVIDIA H100", 989},
                {"NVIDIA H200", 989},      {"NVIDIA GH200", 989},    {"NVIDIA H20", 148},
                {"NVIDIA H800", 989},      {"NVIDIA B200", 2250},    {"NVIDIA GB200", 2500},
                {"NVIDIA A100", 312},      {"NVIDIA A800", 312},     {"NVIDIA A40", 150},
                {"NVIDIA A30", 165},       {"NVIDIA A10", 125},      {"NVIDIA L40S", 362},
                {"NVIDIA L40", 181},       {"NVIDIA L4", 121}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].name);
        /* "H200" is no "H20". */
        bool same = strncmp(device, rows[i].name, n) == 0 && !isalnum((unsigned char)device[n]);
        if (same) return rows[i].tera * 1e12;
    }
    return 0;
}

double inf_work_share(const Plan *plan, const char *device, double ms) {
    double peak = inf_work_peak(device) * plan->dp * plan->tp * plan->pp;
    return peak > 0 && ms > 0 ? inf_work_step(plan) / peak / ms * 1e3 : 0;
}
