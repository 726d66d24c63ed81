/* whole_expect.c - random cases, and what the evaluator says they give; see whole.h.
 *
 * The evaluator runs "eval" as made and "train" after alias and autodiff alone: composites by their
 * definition, nothing folded, fused or placed. It runs exactly and then with every value rounded to
 * f32; the difference says how much of a deviation single precision explains.
 */
#include "tests/codegen/whole_make.h"

#include "passes/pass.h"

#include <math.h>
#include <string.h>

/* ---- cases ------------------------------------------------------------------------------- */

WholeCase whole_case(uint64_t seed) {
    static const OptimizerKind kinds[] = {OPTIM_sgd, OPTIM_adam, OPTIM_adamw};
    bool large = seed % 3 == 1, huge = seed % 12 == 1;
    WholeCase c = {.microbatches = seed % 4 == 0 ? 1 : 2 + (int64_t)(seed % 2),
                   .clip = seed % 5 == 0 ? 0.25 : 0};
    c.rand = (RandOptions){.seed = seed,
                           .nodes = 4 + (int)(seed % (huge    ? 7
                                                      : large ? 13
                                                              : 23)),
                           .composites = seed % 4 != 0,
                           .windows = seed % 3 != 0 && !huge,
                           .repeats = seed % 5 < 3,
                           .random = seed % 4 == 3,
                           .dropout = seed % 4 == 3,
                           .outputs = true,
                           .large = large,
                           .huge = huge,
                           .pads = true};
    c.optimizer = (Optimizer){.kind = kinds[seed % 3],
                              .lr = 0.01,
                              .momentum = seed % 2 == 0 ? 0.9 : 0,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .decay = seed % 7 == 0 ? 0 : 0.1,
                              .nesterov = seed % 12 == 0};
    return c;
}

double whole_scalar(const WholeCase *c, HostScalar which) {
    const double t = 3;
    switch (which) {
    case HOST_lr: return c->optimizer.lr;
    case HOST_bias1: return 1 - pow(c->optimizer.beta1, t);
    case HOST_bias2: return 1 - pow(c->optimizer.beta2, t);
    case HOST_weight_decay: return c->optimizer.decay;
    default: return c->clip > 0 ? c->clip : (double)INFINITY;
    }
}

/* Two metrics, made of the first outputs. */
static void add_metrics(Graph *g) {
    static const int64_t axes[NDIM_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    Builder b = {.g = g};
    int nout = g->nout, metrics = 0;
    for (int i = 0; i < nout && metrics < 2; i++) {
        if (g->out_port[i].role != ROLE_output) continue;
        Val v = build2(&b, OP_mul, g->out[i], g->out[i]); /* no sum of terms that cancel */
        Val sum = build_reduce(&b, OP_reduce_sum, v, val_info(g, v)->ndim, axes);
        Val count = build_const(&b, 3 + metrics, val_type(g, sum));
        Port port = {.role = ROLE_metric_sum, .index = metrics, .name = metrics ? "m1" : "m0"};
        graph_add_output(g, sum, port);
        port.role = ROLE_metric_count;
        graph_add_output(g, count, port);
        metrics++;
    }
}

/* As lowering does: what is neither loss nor metric is no output of "train". */
static void drop_outputs(Graph *g) {
    int n = 0;
    for (int i = 0; i < g->nout; i++) {
        if (g->out_port[i].role == ROLE_output) continue;
        g->out[n] = g->out[i];
        g->out_port[n++] = g->out_port[i];
    }
    g->nout = n;
}

void whole_make(const WholeCase *c, Module *m) {
    Graph *train = randgraph_make(m, &c->rand);
    add_metrics(train);
    module_add_graph(m, graph_clone(train, "eval"));
    drop_outputs(train);
    m->name = "random";
    m->file = "random.it";
    m->train.batch = m->eval.batch = 1;
    m->train.microbatches = c->microbatches;
    m->train.optimizer = c->optimizer;
    m->train.clip = c->clip;
    for (int i = 0; i < m->nparam; i++) m->param[i].decay = (c->rand.seed + (uint64_t)i) % 2 == 0;
}

/* ---- random numbers ----------------------------------------------------------------------- */

enum { STREAMS_MAX = 256 };

/* What the runtime's generator needs to know: the iteration of nested repeats as one number. */
typedef struct Streams {
    InfEnv env;
    int64_t count[STREAMS_MAX][REPEAT_DEPTH_MAX];
} Streams;

static void find_streams(const Graph *g, Streams *s, const int64_t *count, int depth) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        int64_t inner[REPEAT_DEPTH_MAX + 1];
        memcpy(inner, count, (size_t)depth * sizeof *count);
        inner[depth] = node_int(n, ATTR_count, 1);
        if (n->op == OP_random_uniform)
            memcpy(s->count[node_int(n, ATTR_stream, 0)], count, (size_t)depth * sizeof *count);
        if (n->body != NULL) find_streams(n->body, s, inner, depth + (n->op == OP_repeat));
    }
}

static double draw(void *ctx, int64_t stream, const int64_t *iter, int niter, int64_t index) {
    const Streams *s = ctx;
    int64_t iteration = 0;
    uint32_t r[4];
    for (int i = 0; i < niter; i++) iteration = iteration * s->count[stream][i] + iter[i];
    inf_random4(&s->env, (uint32_t)stream, (uint32_t)iteration, (uint64_t)index / 4, r);
    return (r[index % 4] >> 8) * 0x1p-24;
}

/* ---- running the evaluator ----------------------------------------------------------------- */

static EvalTensor input_of(const WholeExpected *e, const Graph *g, int i, int microbatch) {
    const Port *p = &g->in_port[i];
    if (p->role == ROLE_weight) return e->weight[p->index];
    for (int k = 0; k < e->forward->nin; k++) {
        const Port *q = &e->forward->in_port[k];
        if (q->role == p->role && q->index == p->index) return e->data[microbatch][k];
    }
    return (EvalTensor){0};
}

static EvalTensor *run_graph(WholeExpected *e, const Graph *g, int microbatch, int round) {
    Streams *streams = ARENA_NEW(&e->arena, Streams);
    streams->env = (InfEnv){.seed = WHOLE_SEED, .step = WHOLE_STEP, .microbatch = microbatch};
    int64_t none[1] = {0};
    find_streams(g, streams, none, 0);
    EvalTensor *in = ARENA_ARRAY(&e->arena, EvalTensor, g->nin);
    EvalTensor *out = ARENA_ARRAY(&e->arena, EvalTensor, g->nout);
    for (int i = 0; i < g->nin; i++) in[i] = input_of(e, g, i, microbatch);
    EvalContext ctx = {
        .arena = &e->arena, .random = draw, .random_ctx = streams, .round_f32 = round};
    eval_graph(&ctx, g, in, out);
    return out;
}

static WholeSection *section(WholeExpected *e, const char *name, int64_t n) {
    for (uint32_t i = 0; i < e->section.n; i++)
        if (strcmp(e->section.data[i].name, name) == 0) return &e->section.data[i];
    WholeSection s = {.name = name, .n = n, .exact = ARENA_ARRAY(&e->arena, double, n)};
    for (int k = 0; k < WHOLE_ROUNDINGS; k++) s.rounded[k] = ARENA_ARRAY(&e->arena, double, n);
    vec_push(&e->arena, &e->section, s);
    return &e->section.data[e->section.n - 1];
}

/* The section that an output belongs to; NULL for none. */
static const char *section_name(WholeExpected *e, const Port *p, const char *prefix) {
    switch (p->role) {
    case ROLE_loss_sum: return arena_printf(&e->arena, "%sloss", prefix);
    case ROLE_loss_count: return arena_printf(&e->arena, "%scount", prefix);
    case ROLE_metric_sum: return arena_printf(&e->arena, "%s%s sum", prefix, p->name);
    case ROLE_metric_count: return arena_printf(&e->arena, "%s%s count", prefix, p->name);
    case ROLE_output: return arena_printf(&e->arena, "%s%s", prefix, p->name);
    case ROLE_grad: return arena_printf(&e->arena, "%sgrad %d", prefix, p->index);
    default: return NULL;
    }
}

/* Outputs are those of the last microbatch; everything else is summed. */
static void add_results(WholeExpected *e, const Graph *g, int microbatch, const char *prefix) {
    for (int round = 0; round <= WHOLE_ROUNDINGS; round++) {
        EvalTensor *out = run_graph(e, g, microbatch, round);
        for (int i = 0; i < g->nout; i++) {
            const Port *p = &g->out_port[i];
            const char *name = section_name(e, p, prefix);
            if (name == NULL) continue;
            int64_t n = type_elems(e->m->types, out[i].type);
            WholeSection *s = section(e, name, n);
            double *to = round > 0 ? s->rounded[round - 1] : s->exact;
            for (int64_t k = 0; k < n; k++)
                to[k] = out[i].data[k] + (p->role == ROLE_output ? 0 : to[k]);
        }
    }
}

/* ---- values of inputs ----------------------------------------------------------------------- */

static void make_values(WholeExpected *e) {
    const Graph *g = e->forward;
    uint64_t seed = e->c->rand.seed;
    e->data = ARENA_ARRAY(&e->arena, EvalTensor *, WHOLE_MICROBATCHES_MAX);
    for (int m = 0; m < WHOLE_MICROBATCHES_MAX; m++) {
        e->data[m] = ARENA_ARRAY(&e->arena, EvalTensor, g->nin);
        randgraph_inputs(g, seed + 1000003u * (uint64_t)m, &e->arena, e->data[m]);
    }
    e->weight = ARENA_ARRAY(&e->arena, EvalTensor, e->m->nparam);
    for (int k = 0; k < WHOLE_STATES_MAX; k++) {
        EvalTensor *values = ARENA_ARRAY(&e->arena, EvalTensor, g->nin);
        randgraph_inputs(g, seed + 500009u + (uint64_t)k, &e->arena, values);
        e->state[k] = ARENA_ARRAY(&e->arena, EvalTensor, e->m->nparam);
        for (int i = 0; i < g->nin; i++) {
            if (g->in_port[i].role != ROLE_weight) continue;
            int param = g->in_port[i].index;
            e->weight[param] = e->data[0][i];
            e->state[k][param] = values[i];
            /* First moments of either sign, second moments positive. */
            int64_t n = type_elems(e->m->types, values[i].type);
            for (int64_t j = 0; k == 1 && j < n; j++)
                values[i].data[j] = (double)(float)(fabs(values[i].data[j]) + 0.01);
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

WholeExpected *whole_expect(const WholeCase *c) {
    WholeExpected *e = mem_alloc(sizeof *e);
    Arena scratch = {0};
    e->c = c;
    sources_init(&e->sources, &e->arena);
    diag_init(&e->diag, &e->arena, &e->sources, stderr);
    e->m = module_new(&e->arena, &e->sources, &e->diag);
    whole_make(c, e->m);
    e->forward = module_graph(e->m, "train");
    make_values(e);
    PassOptions options = {0};
    PassContext ctx = {.mod = e->m, .scratch = &scratch, .options = &options};
    if (!pass_alias(&ctx) || !pass_autodiff(&ctx)) {
        diag_finish(&e->diag);
        return NULL;
    }
    arena_free(&scratch);
    add_results(e, module_graph(e->m, "eval"), 0, "eval ");
    for (int m = 0; m < c->microbatches; m++) add_results(e, module_graph(e->m, "train"), m, "");
    return e;
}

void whole_expected_free(WholeExpected *e) {
    arena_free(&e->arena);
    mem_free(e);
}
