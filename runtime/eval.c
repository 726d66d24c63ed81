/* eval.c - loss and metrics of given weights over the evaluation set. */
#include <math.h>

#include "runtime/json.h"
#include "runtime/session.h"
#include "runtime/signals.h"

static void print_result(const InfSession *s, const InfEvaluation *r) {
    const PlanProgram *eval = &s->plan->program[1];
    if (!inf_option_given(s->options, OPT_json)) {
        for (int k = 0; k < r->count; k++) printf("%s %.6f\n", eval->metric[k].name, r->mean[k]);
        if (inf_has_perplexity(eval)) printf("perplexity %.6g\n", exp(r->mean[0]));
        printf("samples %llu\n", (unsigned long long)r->samples);
        return;
    }
    InfJson j;
    inf_json_init(&j, stdout);
    inf_json_open(&j, '{');
    for (int k = 0; k < r->count; k++) inf_json_put_double(&j, eval->metric[k].name, r->mean[k]);
    if (inf_has_perplexity(eval)) inf_json_put_double(&j, "perplexity", exp(r->mean[0]));
    inf_json_put_int(&j, "samples", (int64_t)r->samples);
    inf_json_close(&j);
    putchar('\n');
}

InfCode inf_eval(InfError *e, const Plan *plan, const InfOptions *o) {
    InfSession s;
    InfEvaluation result;
    TRY(inf_signals_install(e));
    TRY(inf_session_open_eval(e, plan, o, &s));
    bool stopped = false;
    InfCode code = inf_session_weights(e, &s);
    if (code == INF_OK) code = inf_evaluate(e, &s.engine, &s.data, &result, &stopped);
    if (code == INF_OK && stopped)
        code = inf_fail(e, INF_STOPPED, "stopped by %s during the evaluation",
                        inf_signal_name(inf_signals_pending()));
    if (code == INF_OK) print_result(&s, &result);
    inf_session_close(&s);
    return code;
}
