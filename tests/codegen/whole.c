/* whole.c - compiled cases and their runs on the runtime's engine; see whole.h. */
#include "tests/codegen/whole_make.h"

#include "codegen/program.h"
#include "ir/bf16.h"
#include "passes/pass.h"
#include "runtime/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Whole {
    Arena arena;
    Sources sources;
    Diag diag;
    const WholeCase *c;
    Module *m;
    Program *program;
    Plan plan; /* with kernel functions */
    PlanKernel *kernel;
    uint32_t *number; /* of each kernel in the object */
};

static void die(const char *what) {
    fprintf(stderr, "whole: %s\n", what);
    exit(3);
}

/* ---- compiling ------------------------------------------------------------------------------ */

static Program *whole_program(Whole *w, WholeVariant v, int64_t replicas) {
    Arena scratch = {0};
    sources_init(&w->sources, &w->arena);
    diag_init(&w->diag, &w->arena, &w->sources, stderr);
    w->m = module_new(&w->arena, &w->sources, &w->diag);
    whole_make(w->c, w->m);
    w->m->target = object_is_cuda() ? TARGET_cuda : TARGET_c;
    if (w->c->half) w->m->train.dtype = DT_bf16;
    w->m->train.recompute = v.recompute;
    w->m->parallel.dp = replicas;
    w->m->parallel.bucketed = v.bucket > 0;
    w->m->parallel.bucket_bytes = v.bucket;
    w->m->parallel.loopback = v.zero;
    w->m->parallel.zero = v.zero;
    PassOptions options = {.no_fuse = v.no_fuse, .no_reuse = v.no_reuse};
    PassContext ctx = {.mod = w->m, .scratch = &scratch, .options = &options};
    if (!passes_run(&ctx)) {
        if (v.zero) return NULL;
        diag_finish(&w->diag);
        die("passes refused a random graph");
    }
    arena_free(&scratch);
    CodegenOptions *codegen = ARENA_NEW(&w->arena, CodegenOptions);
    *codegen = (CodegenOptions){.version = "test", .threads_always = true};
    return codegen_build(&w->m, 1, ctx.table, codegen, &w->arena);
}

Whole *whole_new(const WholeCase *c, WholeVariant v, Object *o) {
    Whole *w = mem_alloc(sizeof *w);
    w->c = c;
    w->program = whole_program(w, v, 1);
    if (w->program == NULL) {
        whole_free(w);
        return NULL;
    }
    w->number = ARENA_ARRAY(&w->arena, uint32_t, w->program->kernels.n);
    for (uint32_t i = 0; i < w->program->kernels.n; i++) {
        const KernelRow *row = &w->program->kernels.data[i];
        if (row->prelude) object_add_prelude(o, row->prelude);
        w->number[i] = object_is_cuda()
                           ? object_add_cuda(o, row->name, row->text, row->grid, row->block)
                           : object_add(o, row->name, row->text);
    }
    return w;
}

/* Compiles the case for three replicas: passes and plans prove what they make. */
uint32_t whole_buckets(const WholeCase *c, int64_t bucket) {
    Whole *w = mem_alloc(sizeof *w);
    *w = (Whole){.c = c};
    Program *p = whole_program(w, (WholeVariant){.bucket = bucket}, 3);
    uint32_t n = codegen_plan(p)->nbucket;
    whole_free(w);
    return n;
}

uint32_t whole_steps(const Whole *w) { return w->program->steps.n; }

int64_t whole_owned(const Whole *w) { return module_master_elems(w->m); }

void whole_free(Whole *w) {
    arena_free(&w->arena);
    mem_free(w);
}

static void link_kernels(Whole *w, const Object *o) {
    if (w->kernel != NULL) return;
    w->plan = *codegen_plan(w->program);
    w->kernel = ARENA_ARRAY(&w->arena, PlanKernel, w->plan.nkernel);
    for (uint32_t i = 0; i < w->plan.nkernel; i++) {
        w->kernel[i] = w->plan.kernel[i];
        w->kernel[i].fn = object_kernel(o, w->number[i]);
        w->kernel[i].kind = PLAN_KERNEL_c; /* emulated kernels are called like C ones */
    }
    w->plan.target = "cpu";
    w->plan.kernel = w->kernel;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* NaN as f32, an index far outside as i32, true as bool. */
static void poison(const InfEngine *m, PlanRegion region, int64_t begin, int64_t end) {
    memset(m->base[region] + begin, 0xFF, (size_t)(end - begin));
}

static void poison_scratch(const InfEngine *m) {
    poison(m, PLAN_REGION_slot, 0, m->plan->region_bytes[PLAN_REGION_slot]);
    poison(m, PLAN_REGION_scratch, 0, m->plan->region_bytes[PLAN_REGION_scratch]);
}

/* What lies behind a region up to the next one belongs to nobody. */
static int64_t region_room(const InfEngine *m, int r) {
    return r + 1 < PLAN_REGION_count ? m->base[r + 1] - m->base[r] : m->plan->region_bytes[r];
}

enum { UNTOUCHED = 0x5A };

static void mark_gaps(const InfEngine *m) {
    for (int r = 0; r < PLAN_REGION_count; r++)
        for (int64_t i = m->plan->region_bytes[r]; i < region_room(m, r); i++)
            m->base[r][i] = UNTOUCHED;
}

static const char *check_gaps(const InfEngine *m, WholeResult *r) {
    for (int region = 0; region < PLAN_REGION_count; region++)
        for (int64_t i = m->plan->region_bytes[region]; i < region_room(m, region); i++)
            if (m->base[region][i] != UNTOUCHED)
                return arena_printf(&r->arena,
                                    "byte %lld of region %d, which has %lld, was written",
                                    (long long)i, region, (long long)m->plan->region_bytes[region]);
    return NULL;
}

static int64_t param_elems(const Whole *w, int i) {
    return type_elems(w->m->types, w->m->param[i].type);
}

/* Element k of a parameter in the flat vector; of the gradient of a use, in the grad region. */
static int64_t elem_at(const Whole *w, int param, int64_t k) {
    const Param *p = &w->m->param[param];
    int64_t slice = param_slice_elems(w->m, p);
    return p->offset_elems + k / slice * param_slice_stride(w->m, p) + k % slice;
}

static int64_t grad_at(const Whole *w, int param, int use, int64_t k) {
    const Param *p = &w->m->param[param];
    return use == 0 ? elem_at(w, param, k) : param_grad_offset(w->m, p, use) + k;
}

/* What the one replica owns of a vector: where zero = 1 has element `at` of it, from `begin` of
 * the shard's on; NULL: nowhere. */
static float *owned_at(const Whole *w, const InfEngine *m, int64_t at, int k) {
    for (uint32_t i = 0; i < w->plan.nshard; i++) {
        const PlanShard *s = &w->plan.shard[i];
        int64_t in = 4 * at - s->at, begin = k < 0 ? s->master_at : s->state_at;
        if (in < 0 || in >= s->bytes) continue;
        return inf_engine_at(m, PLAN_REGION_state,
                             (k < 0 ? 0 : k * w->plan.state_bytes) + begin + in);
    }
    return NULL;
}

/* Element `at` of the vector of weights, of a state vector; padding may be nowhere. */
static float *weight_at(const Whole *w, const InfEngine *m, int64_t at) {
    if (4 * at >= w->plan.region_bytes[PLAN_REGION_param]) return owned_at(w, m, at, -1);
    return inf_engine_at(m, PLAN_REGION_param, 4 * at);
}

static float *state_at(const Whole *w, const InfEngine *m, int k, int64_t at) {
    if (w->plan.nshard > 0) return owned_at(w, m, at, k);
    return inf_engine_at(m, PLAN_REGION_state, k * w->plan.state_bytes + 4 * at);
}

/* Weights as files and seeds bring them: tensor by tensor. */
static void store_weights(const Whole *w, InfEngine *m, const WholeExpected *e) {
    InfError error = {0};
    InfParams all;
    if (inf_params_open(&error, &w->plan, &all) != INF_OK) die("no memory");
    for (int i = 0; i < all.count; i++) {
        const InfParam *p = &all.param[i];
        int64_t n = inf_param_stored(p), first = p->use_offset / 4;
        const EvalTensor *t = &e->weight[p->block - w->plan.param];
        float *values = ARENA_ARRAY(&((Whole *)(uintptr_t)w)->arena, float, n + 1);
        for (int64_t k = 0; k < n; k++) values[k] = (float)t->data[first + k];
        inf_param_put(p, m, 0, values, n);
    }
    inf_params_close(&all);
}

static void store_states(const Whole *w, const InfEngine *m, const WholeExpected *e, int param) {
    for (int k = 0; k < w->m->nstate; k++)
        for (int64_t i = 0; i < param_elems(w, param); i++) {
            float *to = state_at(w, m, k, elem_at(w, param, i));
            if (to != NULL) *to = (float)e->state[k][param].data[i];
        }
}

static void fill(const Whole *w, const InfEngine *m, const WholeExpected *e) {
    poison(m, PLAN_REGION_scalar, 0, w->plan.region_bytes[PLAN_REGION_scalar]);
    poison(m, PLAN_REGION_data, 0, w->plan.region_bytes[PLAN_REGION_data]);
    store_weights(w, (InfEngine *)(uintptr_t)m, e);
    for (int i = 0; i < w->m->nparam; i++) {
        store_states(w, m, e, i);
        for (int use = 0; use < w->m->param[i].uses; use++)
            for (int64_t k = 0; k < param_elems(w, i); k++) {
                int64_t at = 4 * grad_at(w, i, use, k);
                poison(m, PLAN_REGION_grad, at, at + 4);
            }
    }
    inf_engine_push_weights((InfEngine *)(uintptr_t)m);
    for (int k = 0; k < HOST_SCALAR_COUNT; k++)
        inf_engine_set((InfEngine *)(uintptr_t)m, (HostScalar)k, whole_scalar(w->c, k));
}

static void stage(const InfEngine *m, const PlanProgram *p, const WholeExpected *e,
                  int microbatch) {
    for (uint32_t i = 0; i < p->ninput; i++) {
        const PlanInput *in = &p->input[i];
        for (int k = 0; k < e->forward->nin; k++) {
            const Port *port = &e->forward->in_port[k];
            if (port->role != ROLE_data || strcmp(port->name, in->name) != 0) continue;
            const EvalTensor *t = &e->data[microbatch][k];
            void *to = inf_engine_at(m, in->at.region, in->at.offset);
            int64_t n = type_elems(e->m->types, t->type);
            for (int64_t j = 0; j < n; j++) {
                if (in->dtype == PLAN_i32)
                    ((int32_t *)to)[j] = (int32_t)t->data[j];
                else
                    ((float *)to)[j] = (float)t->data[j];
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static void keep(WholeResult *r, const char *name, const float *value, int64_t n) {
    vec_push(&r->arena, &r->name, arena_strdup(&r->arena, name));
    vec_push(&r->arena, &r->begin, (int64_t)r->value.n);
    for (int64_t i = 0; i < n; i++) vec_push(&r->arena, &r->value, value[i]);
}

static void keep_program(const InfEngine *m, const PlanProgram *p, const char *prefix,
                         WholeResult *r) {
    if (p->nmetric > 0) {
        float sum = inf_engine_scalar(m, p->metric[0].sum);
        float count = inf_engine_scalar(m, p->metric[0].count);
        keep(r, arena_printf(&r->arena, "%sloss", prefix), &sum, 1);
        keep(r, arena_printf(&r->arena, "%scount", prefix), &count, 1);
    }
    for (uint32_t i = 1; i < p->nmetric; i++) {
        const PlanMetric *metric = &p->metric[i];
        float sum = inf_engine_scalar(m, metric->sum), count = inf_engine_scalar(m, metric->count);
        keep(r, arena_printf(&r->arena, "%s%s sum", prefix, metric->name), &sum, 1);
        keep(r, arena_printf(&r->arena, "%s%s count", prefix, metric->name), &count, 1);
    }
    for (uint32_t i = 0; i < p->noutput; i++) {
        const PlanOutput *out = &p->output[i];
        int64_t n = 1;
        for (int k = 0; k < out->ndim; k++) n *= out->dim[k];
        keep(r, arena_printf(&r->arena, "%s%s", prefix, out->name),
             inf_engine_at(m, out->at.region, out->at.offset), n);
    }
}

/* Gradients of each use, and one a parameter, all uses added. */
static void keep_grads(const Whole *w, const InfEngine *m, WholeResult *r) {
    const float *grad = inf_engine_at(m, PLAN_REGION_grad, 0);
    for (int i = 0; i < w->m->nparam; i++) {
        int64_t n = param_elems(w, i);
        float *sum = ARENA_ARRAY(&r->arena, float, n), *own = ARENA_ARRAY(&r->arena, float, n);
        for (int use = 0; use < w->m->param[i].uses; use++) {
            for (int64_t k = 0; k < n; k++) own[k] = grad[grad_at(w, i, use, k)];
            keep(r, arena_printf(&r->arena, "use %d of grad %d", use, i), own, n);
        }
        for (int64_t k = 0; k < n; k++) {
            double all = 0;
            for (int use = 0; use < w->m->param[i].uses; use++)
                all += (double)grad[grad_at(w, i, use, k)];
            sum[k] = (float)all;
        }
        keep(r, arena_printf(&r->arena, "grad %d", i), sum, n);
    }
}

/* A flat vector, parameter by parameter: state k, or the weights (-1). */
static void keep_flat(const Whole *w, const InfEngine *m, const char *name, int which,
                      WholeResult *r) {
    int64_t total = 0, n = 0;
    for (int i = 0; i < w->m->nparam; i++) total += param_elems(w, i);
    float *value = ARENA_ARRAY(&r->arena, float, total);
    for (int i = 0; i < w->m->nparam; i++)
        for (int64_t k = 0; k < param_elems(w, i); k++) {
            int64_t at = elem_at(w, i, k);
            const float *from = which < 0 ? weight_at(w, m, at) : state_at(w, m, which, at);
            value[n++] = from != NULL ? *from : 0;
        }
    keep(r, name, value, total);
}

/* The bits of an element of the copy in bf16, as a float's. */
static uint32_t copy_bits(const InfEngine *m, int64_t at) {
    return (uint32_t) * (const uint16_t *)inf_engine_at(m, PLAN_REGION_copy, 2 * at) << 16;
}

/* Whether some graph reads a parameter's copy. */
static bool has_copy(const Whole *w, int param) {
    for (int i = 0; i < w->m->ngraph; i++)
        for (int k = 0; k < w->m->graph[i]->nin; k++) {
            const Port *port = &w->m->graph[i]->in_port[k];
            if (port->role == ROLE_weight_copy && port->index == param) return true;
        }
    return false;
}

/* What is read of the copy in bf16 as the update left it, widened. */
static void keep_copy(const Whole *w, const InfEngine *m, WholeResult *r) {
    for (int i = 0; i < w->m->nparam; i++) {
        int64_t n = has_copy(w, i) ? param_elems(w, i) : 0;
        float *wide = ARENA_ARRAY(&r->arena, float, n + 1);
        for (int64_t k = 0; k < n; k++) {
            uint32_t bits = copy_bits(m, elem_at(w, i, k));
            memcpy(&wide[k], &bits, sizeof bits);
        }
        if (n > 0) keep(r, arena_printf(&r->arena, "copy %d", i), wide, n);
    }
}

static void keep_vectors(const Whole *w, const InfEngine *m, WholeResult *r) {
    keep_flat(w, m, "weights", -1, r);
    for (int k = 0; k < w->m->nstate; k++)
        keep_flat(w, m, arena_printf(&r->arena, "state %d", k), k, r);
}

/* What the norm has a part in, which is not the same in all layouts. */
static void keep_update(const Whole *w, const InfEngine *m, WholeResult *r) {
    float norm = inf_engine_scalar(m, w->plan.grad_norm);
    keep(r, WHOLE_UPDATED, &norm, 1);
    keep_copy(w, m, r);
    keep_vectors(w, m, r);
}

static const float *find_section(const WholeResult *r, const char *name, int64_t *n) {
    for (uint32_t i = 0; i < r->name.n; i++) {
        if (strcmp(r->name.data[i], name) != 0) continue;
        int64_t end = i + 1 < r->name.n ? r->begin.data[i + 1] : (int64_t)r->value.n;
        *n = end - r->begin.data[i];
        return r->value.data + r->begin.data[i];
    }
    return NULL;
}

/* ---- the update, checked by PyTorch's formulas in f64 -------------------- */

typedef struct Element {
    double weight, state[WHOLE_STATES_MAX];
} Element;

static Element update_element(const WholeCase *c, bool decay, double g, Element old) {
    const Optimizer *o = &c->optimizer;
    double rate = decay ? o->decay : 0, lr = o->lr;
    Element x = old;
    if (o->kind != OPTIM_adamw) g += rate * x.weight;
    if (o->kind == OPTIM_sgd) {
        if (o->momentum != 0) {
            x.state[0] = o->momentum * x.state[0] + g;
            g = o->nesterov ? g + o->momentum * x.state[0] : x.state[0];
        }
        x.weight -= lr * g;
        return x;
    }
    if (o->kind == OPTIM_adamw) x.weight *= 1 - lr * rate;
    x.state[0] = o->beta1 * x.state[0] + (1 - o->beta1) * g;
    x.state[1] = o->beta2 * x.state[1] + (1 - o->beta2) * g * g;
    double root = sqrt(x.state[1] / whole_scalar(c, HOST_bias2)) + o->eps;
    x.weight -= lr / whole_scalar(c, HOST_bias1) * x.state[0] / root;
    return x;
}

static bool near(double got, double want, double size) {
    return fabs(got - want) <= 4e-6 * (fabs(want) + size);
}

/* Elements between blocks, all zero: of weights (-1), states, or gradients (-2). */
static bool padding_is_zero(const Whole *w, const InfEngine *m, int which, bool *seen) {
    memset(seen, 0, (size_t)w->m->flat_elems * sizeof *seen);
    for (int i = 0; i < w->m->nparam; i++)
        for (int64_t k = 0; k < param_elems(w, i); k++) seen[elem_at(w, i, k)] = true;
    for (int64_t k = 0; k < w->m->flat_elems; k++) {
        const float *at = which == -1   ? weight_at(w, m, k)
                          : which == -2 ? inf_engine_at(m, PLAN_REGION_grad, 4 * k)
                                        : state_at(w, m, which, k);
        if (!seen[k] && at != NULL && *at != 0) return false;
    }
    return true;
}

static const char *check_update(const Whole *w, const InfEngine *m, const WholeExpected *e,
                                WholeResult *r) {
    int64_t n, count = 0;
    double inverse = 1 / fmax((double)*find_section(r, "count", &n), 1), sum = 0;
    for (int i = 0; i < w->m->nparam; i++) {
        const float *g = find_section(r, arena_printf(&r->arena, "grad %d", i), &count);
        for (int64_t k = 0; k < count; k++) sum += pow((double)g[k] * inverse, 2);
    }
    double norm = sqrt(sum), clip = fmin(1, whole_scalar(w->c, HOST_clip) / (norm + 1e-6));
    if (inf_engine_scalar(m, w->plan.update_ok) != 1) return "the update was not applied";
    if (!near((double)inf_engine_scalar(m, w->plan.grad_norm), norm, 0)) return "grad_norm";
    for (int i = 0; i < w->m->nparam; i++) {
        const float *g = find_section(r, arena_printf(&r->arena, "grad %d", i), &count);
        for (int64_t k = 0; k < count; k++) {
            int64_t at = elem_at(w, i, k);
            Element x = {.weight = e->weight[i].data[k]};
            for (int s = 0; s < w->m->nstate; s++) x.state[s] = e->state[s][i].data[k];
            double mean = (double)g[k] * inverse * clip;
            x = update_element(w->c, w->m->param[i].decay, mean, x);
            float weight = *weight_at(w, m, at), half = bf16_round(weight);
            bool ok = near((double)weight, x.weight, 1);
            for (int s = 0; s < w->m->nstate; s++)
                ok &=
                    near((double)*state_at(w, m, s, at), x.state[s], 1 + fabs(mean) + mean * mean);
            if (!ok)
                return arena_printf(&r->arena,
                                    "the update of parameter %d, element %lld: %g, not %g", i,
                                    (long long)k, (double)weight, x.weight);
            uint32_t bits = has_copy(w, i) ? copy_bits(m, at) : 0;
            if (has_copy(w, i) && memcmp(&half, &bits, sizeof bits) != 0)
                return arena_printf(&r->arena, "the copy of weight %lld", (long long)at);
        }
    }
    bool *seen = ARENA_ARRAY(&r->arena, bool, w->m->flat_elems + 1);
    if (!padding_is_zero(w, m, -1, seen)) return "padding between weights is not 0";
    if (!padding_is_zero(w, m, -2, seen)) return "padding between gradients is not 0";
    for (int s = 0; s < w->m->nstate; s++)
        if (!padding_is_zero(w, m, s, seen)) return "padding between states is not 0";
    return NULL;
}

/* ---- running -------------------- */

static void run_update(const Whole *w, InfEngine *m) {
    const PlanRank *rank = &w->plan.program[0].rank[0];
    poison_scratch(m);
    m->env.microbatch = 0;
    if (w->plan.nshard > 0) {
        inf_engine_run(m, (uint32_t)w->plan.finish.blocks_program);
        inf_engine_run(m, (uint32_t)w->plan.finish.norm);
    }
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++)
        if (w->plan.task[i].kind == PTASK_update) inf_engine_run(m, w->plan.task[i].program);
    if (w->plan.nshard > 0) inf_engine_copy_weights(m);
}

static void run_forward(const Whole *w, InfEngine *m, const WholeExpected *e, const char *name,
                        WholeResult *r) {
    const PlanProgram *program = inf_program_find(&w->plan, name);
    if (program == NULL) return; /* no outputs */
    poison_scratch(m);
    stage(m, program, e, 0);
    m->env.microbatch = 0;
    inf_engine_run(m, w->plan.task[program->rank[0].task].program);
    keep_program(m, program, "eval ", r);
}

static void run_gradients(const Whole *w, InfEngine *m, const WholeExpected *e, WholeResult *r) {
    const PlanProgram *train = &w->plan.program[0];
    const PlanRank *rank = &train->rank[0];
    for (uint32_t i = rank->task; i < rank->task + rank->ntask; i++) {
        const PlanTask *task = &w->plan.task[i];
        if (task->kind >= PTASK_update) continue;
        if (task->kind == PTASK_forward) {
            poison_scratch(m);
            stage(m, train, e, task->microbatch);
        }
        m->env.microbatch = task->microbatch;
        inf_engine_run(m, task->program);
    }
    keep_program(m, train, "", r);
    keep_grads(w, m, r);
}

/* A loss that is not finite changes nothing. */
static const char *check_refusal(const Whole *w, InfEngine *m, WholeResult *r) {
    int64_t n;
    *(float *)inf_engine_at(m, PLAN_REGION_scalar, w->plan.program[0].metric[0].sum) = NAN;
    run_update(w, m);
    if (inf_engine_scalar(m, w->plan.update_ok) != 0) return "an update with a NaN loss";
    WholeResult after = {0};
    keep_vectors(w, m, &after);
    const float *was = find_section(r, "weights", &n);
    bool kept = memcmp(was, after.value.data, after.value.n * sizeof *was) == 0;
    arena_free(&after.arena);
    return kept ? NULL : "weights or states changed after a NaN loss";
}

const char *whole_run(Whole *w, const Object *o, const WholeExpected *e, int threads,
                      WholeResult *r) {
    InfError error = {0};
    InfEngine m = {0};
    *r = (WholeResult){0};
    link_kernels(w, o);
    if (inf_engine_open(&error, &w->plan, threads, WHOLE_SEED, &m) != INF_OK) die("no memory");
    m.env.step = WHOLE_STEP;
    mark_gaps(&m);
    fill(w, &m, e);
    run_forward(w, &m, e, "eval", r);
    run_forward(w, &m, e, "outputs", r);
    run_gradients(w, &m, e, r);
    run_update(w, &m);
    keep_update(w, &m, r);
    const char *why = check_update(w, &m, e, r);
    if (why == NULL) why = check_refusal(w, &m, r);
    if (why == NULL) why = check_gaps(&m, r);
    inf_engine_close(&m);
    return why;
}

/* ---- comparing -------------------- */

void whole_result_free(WholeResult *r) { arena_free(&r->arena); }

static double norm_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Largest gradient norm: what the rounding of others may leave in a small one. */
static double grad_scale(const WholeExpected *e) {
    double largest = 0;
    for (uint32_t i = 0; i < e->section.n; i++)
        if (strncmp(e->section.data[i].name, "grad ", 5) == 0)
            largest = fmax(largest, norm_of(e->section.data[i].exact, e->section.data[i].n));
    return largest;
}

/* Norm of the difference over what is allowed: 4 times what rounding every value costs, 4e-6 of the
 * value, and for gradients 2e-7 of the largest one, since a gradient may be a sum of large terms
 * that cancel. Sums in f32 round more often than values do, and the C target's functions err by 2
 * units in the last place. Of 1,000 cases half stay below a tenth of it. */
static WholeShare share_of(const WholeExpected *e, const WholeSection *s, const float *got) {
    double difference = 0, rounding[WHOLE_ROUNDINGS] = {0}, most = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (!isfinite(got[i])) return (WholeShare){(double)INFINITY, 0, s->name};
        difference += pow((double)got[i] - s->exact[i], 2);
        for (int k = 0; k < WHOLE_ROUNDINGS; k++)
            rounding[k] += pow(s->rounded[k][i] - s->exact[i], 2);
    }
    for (int k = 0; k < WHOLE_ROUNDINGS; k++) most = fmax(most, sqrt(rounding[k]));
    bool grad = strncmp(s->name, "grad ", 5) == 0;
    double norm = norm_of(s->exact, s->n);
    double allowed = 4 * most + 4e-6 * norm + (grad ? 2e-7 * grad_scale(e) : 0) + 1e-30;
    return (WholeShare){sqrt(difference) / allowed, sqrt(difference) / norm, s->name};
}

const char *whole_compare(const WholeExpected *e, WholeResult *r, WholeShare *worst) {
    *worst = (WholeShare){0};
    for (uint32_t i = 0; i < e->section.n; i++) {
        const WholeSection *s = &e->section.data[i];
        int64_t n = 0;
        const float *got = find_section(r, s->name, &n);
        if (got == NULL || n != s->n) return arena_printf(&r->arena, "'%s' is missing", s->name);
        WholeShare share = share_of(e, s, got);
        if (share.share > worst->share) *worst = share;
    }
    if (worst->share <= 1) return NULL;
    return arena_printf(&r->arena, "'%s' differs by %.3g times what is allowed, relative %.3g",
                        worst->name, worst->share, worst->relative);
}

const char *whole_compare_bits(const WholeResult *a, WholeResult *b, bool gradients) {
    if (a->value.n != b->value.n || a->name.n != b->name.n) return "other results";
    for (uint32_t i = 0; i < a->name.n; i++) {
        int64_t n = 0, m = 0;
        if (gradients && strcmp(a->name.data[i], WHOLE_UPDATED) == 0) break;
        const float *x = find_section(a, a->name.data[i], &n);
        const float *y = find_section(b, a->name.data[i], &m);
        if (y == NULL || n != m) return "other results";
        for (int64_t k = 0; k < n; k++)
            if (memcmp(x + k, y + k, sizeof *x) != 0)
                return arena_printf(&b->arena, "'%s'[%lld] is %.9g, not %.9g", a->name.data[i],
                                    (long long)k, (double)y[k], (double)x[k]);
    }
    return NULL;
}
