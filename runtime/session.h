/* session.h - what a subcommand works with: memory, parameters, data, opened in one order so that
 * the cheap checks come first and the memory figures mean the same everywhere.
 */
#ifndef INF_RUNTIME_SESSION_H
#define INF_RUNTIME_SESSION_H

#include "runtime/engine.h"
#include "runtime/loader.h"
#include "runtime/metrics.h"
#include "runtime/options.h"
#include "runtime/params.h"
#include "runtime/step.h"

typedef struct InfSession {
    const Plan *plan;
    const InfOptions *options;
    uint64_t seed;
    InfLoader data; /* of the running section */
    InfLoader test; /* train: the evaluation set, when has_test */
    bool has_test;
    InfEngine engine;
    InfParams params;
    uint64_t resident_before; /* VmRSS just before memory is taken */
    uint64_t workspace_bytes; /* of the matrix library */
    uint64_t planned_bytes;   /* arena, resident data, workspace */
} InfSession;

/* Training data, and evaluation data when there is any; an absent evaluation set is a notice on
 * stderr. Then memory and initial weights. */
InfCode inf_session_open_train(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out);

/* Evaluation data and memory. */
InfCode inf_session_open_eval(InfError *e, const Plan *plan, const InfOptions *o, InfSession *out);

/* Memory and the weights that --weights names; no data. */
InfCode inf_session_open_generate(InfError *e, const Plan *plan, const InfOptions *o,
                                  InfSession *out);

/* The weights that --weights names, in place of the seed's; without it a notice on stderr. */
InfCode inf_session_weights(InfError *e, InfSession *s);

/* Random data in place of files. */
InfCode inf_session_open_synthetic(InfError *e, const Plan *plan, const InfOptions *o,
                                   InfSession *out);

void inf_session_close(InfSession *s);

/* What was taken since: VmHWM now minus VmRSS before memory was taken; where the device has memory
 * of its own, that memory. */
uint64_t inf_session_measured(const InfSession *s);

/* Of all ranks the one that has taken the most: what it uses at most, all of it planned, and what
 * it has reserved so far, measured as above. An exchange between ranks. */
InfCode inf_session_use(InfError *e, const InfSession *s, InfUse *out);

/* --trace FILE: starts writing when each task and kernel ran; completes the file. */
InfCode inf_session_trace(InfError *e, InfSession *s);
InfCode inf_session_trace_end(InfError *e, InfSession *s);
enum { INF_TRACE_STEPS = 20 };

/* Where `path` keeps its weights: itself, or the newest checkpoint of an --out folder. Fresh
 * memory, NULL without memory. */
char *inf_weights_path(const char *path);

/* The subcommands; results go to stdout. */
InfCode inf_train(InfError *e, const Plan *plan, const InfOptions *o);
InfCode inf_eval(InfError *e, const Plan *plan, const InfOptions *o);
InfCode inf_generate_ready(InfError *e, const Plan *plan); /* whether the plan has what it needs */
InfCode inf_generate(InfError *e, const Plan *plan, const InfOptions *o);
InfCode inf_bench(InfError *e, const Plan *plan, const InfOptions *o);
InfCode inf_verify(InfError *e, const Plan *plan, const InfOptions *o);
InfCode inf_info(InfError *e, const Plan *plan, const InfOptions *o);

#endif
