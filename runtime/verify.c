/* verify.c - compares the first step, taken in file order, with a reference file.
 *
 * A tensor of the file names what it is compared with: a parameter's name (or "grad.NAME") its
 * gradient averaged over the global batch, "weight.NAME" its value before the step, a metric
 * ("loss") its mean, an output ("logits") its value for the first
 * batch of the eval program. Distances are norms, |ours - reference| / |reference|; those of
 * outputs the largest difference of a value, over the largest value where that is above 1.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/safetensors.h"
#include "runtime/session.h"

/* Values of this model: on rank 0 alone, their count on all. */
typedef struct Ours {
    const float *values;
    float *copy; /* fresh memory, or NULL */
    int64_t count;
} Ours;

typedef struct Worst {
    const char *name;
    double distance;
    uint64_t element;
    float ours, theirs;
} Worst;

static bool strip(const char **name, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(*name, prefix, length) != 0) return false;
    *name += length;
    return true;
}

/* Leaves `out` when no parameter is called so. */
static InfCode take_param(InfError *e, InfSession *s, const char *name, Ours *out) {
    bool weight = strip(&name, "weight.");
    if (!weight) strip(&name, "grad.");
    const InfParam *p = inf_params_find(&s->params, name);
    if (!p || (!weight && !p->block->trainable)) return INF_OK;
    float count = inf_engine_scalar(&s->engine, s->plan->program[0].metric[0].count);
    out->count = p->count;
    return inf_param_values(e, p, &s->engine, weight ? INF_VALUES_weights : INF_VALUES_gradients,
                            count > 0 ? 1.0f / count : 0.0f, &out->values, &out->copy);
}

/* The index of its program, the same on all ranks; 0 when the model has no evaluation. */
static uint32_t outputs_of(const Plan *plan) {
    const PlanProgram *own = inf_program_find(plan, "outputs");
    if (!own) own = inf_program_find(plan, "eval");
    return own ? (uint32_t)(own - plan->program) : 0;
}

/* Of any rank, which is *rank. NULL when no output is called so. */
static const PlanOutput *find_output(const Plan *plan, const char *name, int *rank) {
    for (*rank = 0; *rank < plan->ranks; ++*rank) {
        const Plan *of = plan - plan->rank + *rank;
        const PlanProgram *p = &of->program[outputs_of(of)];
        for (uint32_t i = 0; p != of->program && i < p->noutput; i++) {
            const PlanOutput *output = &p->output[i];
            if (strcmp(output->name, name) == 0 && output->dtype == PLAN_f32) return output;
        }
    }
    return NULL;
}

static InfCode take_output(InfError *e, InfSession *s, const PlanOutput *output, int rank,
                           Ours *out) {
    out->count = 1;
    for (int axis = 0; axis < output->ndim; axis++) out->count *= output->dim[axis];
    if (rank == s->plan->rank) {
        inf_engine_fetch(&s->engine, output->at.region, output->at.offset,
                         out->count * (int64_t)sizeof(float));
        TRY(s->engine.table->finish(e, s->engine.device));
        out->values = inf_engine_at(&s->engine, output->at.region, output->at.offset);
    }
    if (rank == 0) return INF_OK;
    TRY(inf_values_bring(e, &s->engine, rank, out->values, out->count, &out->copy));
    if (inf_engine_leads(&s->engine)) out->values = out->copy;
    return INF_OK;
}

/* What the file calls `name`; count -1 when nothing is called so. */
static InfCode take_ours(InfError *e, InfSession *s, const char *name, Ours *out) {
    const PlanProgram *train = &s->plan->program[0];
    int rank;
    *out = (Ours){.count = -1};
    const PlanOutput *output = find_output(s->plan, name, &rank);
    if (output) return take_output(e, s, output, rank, out);
    for (uint32_t i = 0; i < train->nmetric; i++) {
        const PlanMetric *metric = &train->metric[i];
        if (strcmp(metric->name, name) != 0) continue;
        float count = inf_engine_scalar(&s->engine, metric->count);
        out->copy = malloc(sizeof *out->copy);
        if (!out->copy) return inf_fail(e, INF_IO, "out of memory");
        *out->copy = count > 0 ? inf_engine_scalar(&s->engine, metric->sum) / count : 0.0f;
        out->values = out->copy;
        out->count = 1;
        return INF_OK;
    }
    return take_param(e, s, name, out);
}

static Worst compare(const char *name, const float *ours, const float *theirs, uint64_t count,
                     bool output) {
    Worst w = {.name = name};
    double difference = 0, norm = 0, largest = -1, most = 1;
    for (uint64_t i = 0; i < count; i++) {
        double d = fabs((double)ours[i] - (double)theirs[i]);
        difference += d * d;
        norm += (double)theirs[i] * (double)theirs[i];
        most = fmax(most, fabs((double)theirs[i]));
        if (d > largest || isnan(d)) {
            largest = isnan(d) ? HUGE_VAL : d;
            w.element = i;
            w.ours = ours[i];
            w.theirs = theirs[i];
        }
    }
    w.distance = output ? largest / most : norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    return w;
}

static InfCode compare_tensor(InfError *e, const InfTensors *set, const InfTensor *t,
                              const float *ours, bool output, double tolerance) {
    float *theirs = malloc((size_t)t->count * sizeof *theirs + 1);
    InfCode code = theirs ? INF_OK : inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) code = inf_tensors_read_f32(e, set, t, theirs);
    if (code == INF_OK) {
        Worst w = compare(t->name, ours, theirs, t->count, output);
        bool good = w.distance <= tolerance;
        printf("%-8s %.3e  %s\n", good ? "same" : "DIFFERS", w.distance, t->name);
        if (!good)
            code = inf_fail(e, INF_DATA,
                            "'%s' is the first that differs: relative distance %.3e "
                            "(at most %.3e); most at element %llu, %.9g instead of %.9g",
                            t->name, w.distance, tolerance, (unsigned long long)w.element,
                            (double)w.ours, (double)w.theirs);
    }
    free(theirs);
    return code;
}

/* All ranks come here for every tensor; rank 0 compares. */
static InfCode check_tensor(InfError *e, InfSession *s, const InfTensors *set, const InfTensor *t,
                            bool output) {
    const char *path = set->files[t->file].path;
    Ours ours;
    InfCode code = take_ours(e, s, t->name, &ours);
    if (code == INF_OK && ours.count < 0)
        code = inf_fail(e, INF_DATA, "%s: '%s' is no parameter, metric or output of %s", path,
                        t->name, s->plan->model);
    if (code == INF_OK && (uint64_t)ours.count != t->count)
        code = inf_fail(e, INF_DATA, "%s: '%s' has %llu values, the model %lld", path, t->name,
                        (unsigned long long)t->count, (long long)ours.count);
    if (code == INF_OK && inf_engine_leads(&s->engine))
        code = compare_tensor(e, set, t, ours.values, output,
                              inf_option_real(s->options, OPT_tolerance, 1e-5));
    free(ours.copy);
    return inf_params_agree(e, &s->engine, code);
}

/* Those that are outputs, or those that are not. */
static InfCode check_some(InfError *e, InfSession *s, const InfTensors *set, bool outputs) {
    for (int i = 0, rank; i < set->count; i++)
        if ((find_output(s->plan, set->tensors[i].name, &rank) != NULL) == outputs)
            TRY(check_tensor(e, s, set, &set->tensors[i], outputs));
    return INF_OK;
}

/* The program of outputs on the samples of the training set. */
static InfCode check_outputs(InfError *e, InfSession *s, const InfTensors *set) {
    uint32_t program = outputs_of(s->plan);
    const PlanProgram *train = &s->plan->program[0], *eval = &s->plan->program[program];
    bool any = false;
    for (int i = 0, rank; i < set->count; i++)
        any = any || find_output(s->plan, set->tensors[i].name, &rank);
    if (!any) return INF_OK;
    if (inf_units(train) != inf_units(eval))
        return inf_fail(e, INF_USAGE,
                        "outputs are compared on training data, so T of eval (%llu) and of train "
                        "(%llu) have to be the same: -D eval.T=%llu",
                        (unsigned long long)inf_units(eval), (unsigned long long)inf_units(train),
                        (unsigned long long)inf_units(train));
    TRY(inf_step_forward(e, &s->engine, &s->data, program));
    return check_some(e, s, set, true);
}

static InfCode check_all(InfError *e, InfSession *s, const InfTensors *set) {
    const PlanTrain *train = &s->plan->train;
    InfStepInput first = {.host = {train->lr, train->decay, train->clip, 0}};
    InfStepResult result;
    TRY(check_outputs(e, s, set));
    TRY(inf_step_gradients(e, &s->engine, &s->data, &first, &result));
    inf_engine_fetch_all(&s->engine, PLAN_REGION_grad);
    TRY(s->engine.table->finish(e, s->engine.device));
    TRY(check_some(e, s, set, false));
    printf("%d tensors agree\n", set->count);
    return INF_OK;
}

InfCode inf_verify(InfError *e, const Plan *plan, const InfOptions *o) {
    const char *ref = inf_option_text(o, OPT_ref, NULL);
    InfTensors set;
    TRY(inf_tensors_open(e, ref, &set));
    InfSession s;
    InfCode code = inf_session_open_train(e, plan, o, &s);
    if (code == INF_OK) {
        code = check_all(e, &s, &set);
        inf_session_close(&s);
    }
    inf_tensors_close(&set);
    return code;
}
