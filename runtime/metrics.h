/* metrics.h - the record of a run: JSON lines, one object each, `event` first.
 *
 * events: start, step, eval, epoch, checkpoint, nan, resume, warn, end. A NULL stream (no
 * --metrics) writes nothing. Each line is flushed, so a killed run leaves whole lines.
 */
#ifndef INF_RUNTIME_METRICS_H
#define INF_RUNTIME_METRICS_H

#include "runtime/json.h"
#include "runtime/plan.h"
#include "runtime/status.h"
#include "runtime/step.h"

typedef struct InfMetrics {
    FILE *out; /* NULL: off */
    bool owned;
    bool failed;
    const char *path;
    InfJson json;
} InfMetrics;

/* path NULL: off; "-": stdout. `append` keeps what a resumed run wrote before. */
InfCode inf_metrics_open(InfError *e, const char *path, bool append, InfMetrics *out);

/* INF_IO when any line could not be written. */
InfCode inf_metrics_close(InfError *e, InfMetrics *m);

/* Starts and ends one record; between them callers put keys into m->json. False: off. */
bool inf_metrics_begin(InfMetrics *m, const char *event);
void inf_metrics_end(InfMetrics *m);

/* Memory of a rank, in bytes. */
typedef struct InfUse {
    uint64_t used;     /* what its plan needs at most: regions, workspace, resident data */
    uint64_t reserved; /* what it has taken for that, measured */
    int64_t rank;      /* -1: there is one only */
} InfUse;

typedef struct InfStepRecord {
    int64_t step;
    float loss;
    double lr, ms, units_per_s;
    double mfu; /* share of the device's peak, work.h; 0: unknown */
    bool has_norm;
    float grad_norm;
    InfUse memory; /* of the rank that has reserved the most, as last looked at */
} InfStepRecord;

void inf_metrics_step(InfMetrics *m, const InfStepRecord *r);
void inf_metrics_eval(InfMetrics *m, int64_t step, const PlanProgram *eval, const InfEvaluation *r);
/* " on rank 3"; nothing with one rank. */
const char *inf_use_rank(const InfUse *u, char out[32]);

void inf_metrics_warn(InfMetrics *m, const char *text);

/* Largest resident set of the process so far, in bytes; cheap. */
uint64_t inf_memory_peak(void);

#endif
