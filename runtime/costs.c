/* costs.c - measured costs of layers. */
#include "runtime/costs.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"

enum { KINDS = PTASK_update };

InfCode inf_costs_open(InfError *e, InfProfile *p) {
    p->unit_ms = calloc((size_t)p->plan->nunit * KINDS + 1, sizeof *p->unit_ms);
    return p->unit_ms ? INF_OK : inf_fail(e, INF_IO, "out of memory");
}

/* Whether a scope lies in a unit: `*` stands for itself or a number. */
static bool lies_in(const char *scope, const char *unit) {
    while (*unit) {
        if (*unit == '*' && isdigit((unsigned char)*scope)) {
            while (isdigit((unsigned char)*scope)) scope++;
        } else if (*unit == *scope) {
            scope++;
        } else {
            return false;
        }
        unit++;
    }
    return *scope == '\0' || *scope == '.';
}

static uint32_t unit_of(const Plan *plan, const char *scope, uint32_t otherwise) {
    for (uint32_t u = 0; scope && u < plan->nunit; u++)
        if (lies_in(scope, plan->unit[u].name)) return u;
    return otherwise;
}

void inf_costs_add(InfProfile *p) {
    const Plan *plan = p->plan;
    uint32_t unit = 0, task = UINT32_MAX;
    for (uint32_t i = 0; i < p->count && plan->nunit > 0; i++) {
        const InfSpan *span = &p->span[i];
        uint8_t kind = plan->task[span->task].kind;
        bool computes = span->kind == INF_SPAN_launch || span->kind == INF_SPAN_stage;
        if (!computes || kind >= KINDS) continue;
        /* a forward begins with the first layer, all that goes back with the last */
        if (span->task != task) unit = kind == PTASK_forward ? 0 : plan->nunit - 1;
        task = span->task;
        unit = unit_of(plan, span->scope, unit);
        p->unit_ms[unit * KINDS + kind] += p->table->between(p->device, 2 * i + 1, 2 * i + 2);
    }
}

/* One decimal more than a clock can tell: readable, and the same number when it is read. */
static double rounded(double ms) { return (double)(int64_t)(ms * 1e6 + 0.5) / 1e6; }

static void put_unit(const InfSession *s, uint32_t u, double share, InfJson *j) {
    static const char *const names[KINDS] = {"forward", "backward", "input", "weight"};
    const double *ms = &s->engine.profile.unit_ms[u * KINDS];
    inf_json_key(j, s->plan->unit[u].name);
    inf_json_open(j, '{');
    bool split = ms[PTASK_input] + ms[PTASK_weight] > 0;
    for (int k = 0; k < KINDS; k++)
        if (k == PTASK_forward || (k == PTASK_backward ? ms[k] > 0 : split))
            inf_json_put_double(j, names[k], rounded(ms[k] * share / s->plan->unit[u].layers));
    inf_json_close(j);
}

InfCode inf_costs_write(InfError *e, const InfSession *s, int64_t steps, const char *path) {
    InfJson j;
    FILE *out = fopen(path, "we");
    if (!out) return inf_fail_errno(e, "open", path);
    inf_json_init(&j, out);
    inf_json_open(&j, '{');
    inf_json_put_text(&j, "model", s->plan->model);
    inf_json_put_text(&j, "device", s->engine.table->describe(s->engine.device));
    inf_json_put_text(&j, "unit", "ms");
    inf_json_key(&j, "layers");
    inf_json_open(&j, '{');
    double tasks = (double)steps * (double)s->plan->program[0].microbatches;
    for (uint32_t u = 0; u < s->plan->nunit; u++) put_unit(s, u, 1 / tasks, &j);
    inf_json_close(&j);
    inf_json_close(&j);
    fputc('\n', out);
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? inf_fail(e, INF_IO, "%s: could not write the costs", path) : INF_OK;
}
