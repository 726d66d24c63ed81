/* metrics.c - writes the record of a run. */
#include "runtime/metrics.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>

uint64_t inf_memory_peak(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss << 10 : 0;
}

InfCode inf_metrics_open(InfError *e, const char *path, bool append, InfMetrics *out) {
    *out = (InfMetrics){.path = path};
    if (!path) return INF_OK;
    out->owned = strcmp(path, "-") != 0;
    out->out = out->owned ? fopen(path, append ? "ae" : "we") : stdout;
    if (!out->out) return inf_fail_errno(e, "open", path);
    return INF_OK;
}

InfCode inf_metrics_close(InfError *e, InfMetrics *m) {
    if (!m->out) return INF_OK;
    bool failed = m->failed;
    if (m->owned && fclose(m->out) != 0) failed = true;
    m->out = NULL;
    return failed ? inf_fail(e, INF_IO, "%s: could not write every record", m->path) : INF_OK;
}

bool inf_metrics_begin(InfMetrics *m, const char *event) {
    if (!m->out) return false;
    inf_json_init(&m->json, m->out);
    inf_json_open(&m->json, '{');
    inf_json_put_text(&m->json, "event", event);
    return true;
}

void inf_metrics_end(InfMetrics *m) {
    inf_json_close(&m->json);
    fputc('\n', m->out);
    if (fflush(m->out) != 0 || ferror(m->out)) m->failed = true;
}

void inf_metrics_step(InfMetrics *m, const InfStepRecord *r) {
    if (!inf_metrics_begin(m, "step")) return;
    inf_json_put_int(&m->json, "step", r->step);
    inf_json_put_float(&m->json, "loss", r->loss);
    inf_json_put_double(&m->json, "lr", r->lr);
    inf_json_put_float(&m->json, "ms", (float)r->ms);
    inf_json_put_float(&m->json, "units_per_s", (float)r->units_per_s);
    if (r->mfu > 0) inf_json_put_float(&m->json, "mfu", (float)r->mfu);
    inf_json_put_int(&m->json, "mem_peak", (int64_t)inf_memory_peak());
    inf_json_put_int(&m->json, "mem_used", (int64_t)r->memory.used);
    inf_json_put_int(&m->json, "mem_reserved", (int64_t)r->memory.reserved);
    if (r->memory.rank >= 0) inf_json_put_int(&m->json, "mem_rank", r->memory.rank);
    if (r->has_norm) inf_json_put_float(&m->json, "grad_norm", r->grad_norm);
    inf_metrics_end(m);
}

void inf_metrics_eval(InfMetrics *m, int64_t step, const PlanProgram *eval,
                      const InfEvaluation *r) {
    if (!inf_metrics_begin(m, "eval")) return;
    inf_json_put_int(&m->json, "step", step);
    for (int k = 0; k < r->count; k++)
        inf_json_put_double(&m->json, eval->metric[k].name, r->mean[k]);
    if (inf_has_perplexity(eval)) inf_json_put_double(&m->json, "perplexity", exp(r->mean[0]));
    inf_json_put_int(&m->json, "samples", (int64_t)r->samples);
    inf_metrics_end(m);
}

const char *inf_use_rank(const InfUse *u, char out[32]) {
    out[0] = '\0';
    if (u->rank >= 0) snprintf(out, 32, " on rank %d", (int)u->rank);
    return out;
}

void inf_metrics_warn(InfMetrics *m, const char *text) {
    if (!inf_metrics_begin(m, "warn")) return;
    inf_json_put_text(&m->json, "text", text);
    inf_metrics_end(m);
}
