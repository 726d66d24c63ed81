/* optim_test.c - the update graph against the formulas of torch.optim, written out in plain C, over
 * several steps; clipping, later uses, padding and steps that do not count. */
#include "tests/passes/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL = 3, LARGE = 200, UNITS = SMALL + LARGE };

/* Parameters b (no decay) and w (decay), used `uses` times. */
static void read_module(Check *c, Optimizer optimizer, int uses) {
    check_empty(c);
    int64_t small = SMALL, large[] = {10, 20};
    Param b = {.name = "b", .type = type_intern(c->m->types, DT_f32, 1, &small)};
    Param w = {.name = "w", .type = type_intern(c->m->types, DT_f32, 2, large)};
    b.trainable = w.trainable = w.decay = true;
    b.uses = 1;
    w.uses = uses;
    module_add_param(c->m, b);
    module_add_param(c->m, w);
    module_add_graph(c->m, graph_new(c->m, "train"));
    c->m->train.optimizer = optimizer;
    check_pass(c, pass_optim);
}

/* The state of training outside the graph. */
typedef struct State {
    double weight[512], grad[512], moment[2][512], later[LARGE], squares[2];
    double host[SCALAR_COUNT], loss, count, norm, ok;
} State;

static double *vector(const Check *c, State *s, const Port *p) {
    bool flat =
        p->role == ROLE_flat_weight || p->role == ROLE_flat_grad || p->role == ROLE_flat_state;
    int64_t at = flat ? c->m->segment[p->index].offset_elems : 0;
    switch (p->role) {
    case ROLE_flat_weight: return s->weight + at;
    case ROLE_flat_grad: return s->grad + at;
    case ROLE_flat_state: return s->moment[p->use] + at;
    case ROLE_grad: return p->use == 0 ? s->grad + c->m->param[p->index].offset_elems : s->later;
    case ROLE_squares: return s->squares + p->index;
    case ROLE_loss_sum: return &s->loss;
    case ROLE_loss_count: return &s->count;
    case ROLE_scalar: return &s->host[p->index];
    case ROLE_grad_norm: return &s->norm;
    case ROLE_update_ok: return &s->ok;
    default: fail_msg("role %d", p->role); return NULL;
    }
}

static void run_graph(Check *c, State *s, const char *name) {
    const Graph *g = module_graph(c->m, name);
    EvalTensor *in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    EvalTensor *out = ARENA_ARRAY(&c->arena, EvalTensor, g->nout);
    for (int i = 0; i < g->nin; i++)
        in[i] = (EvalTensor){val_type(g, g->in[i]), vector(c, s, &g->in_port[i])};
    EvalContext ctx = {.arena = &c->arena};
    eval_graph(&ctx, g, in, out);
    for (int k = 0; k < g->nout; k++)
        memcpy(vector(c, s, &g->out_port[k]), out[k].data,
               (size_t)type_elems(c->m->types, out[k].type) * sizeof(double));
}

static void run_update(Check *c, State *s) {
    run_graph(c, s, "norm");
    run_graph(c, s, "update");
}

/* ---- the formulas ------------------------------------------------------------------------ */

typedef struct Unit {
    double w, m, v;
    bool decay;
} Unit;

typedef struct Step {
    double lr, decay;
    int t; /* from 1 */
} Step;

static void torch_sgd(const Optimizer *o, Step step, Unit *u, double g) {
    if (u->decay) g += step.decay * u->w;
    if (o->momentum != 0) {
        u->m = step.t == 1 ? g : o->momentum * u->m + g;
        g = o->nesterov ? g + o->momentum * u->m : u->m;
    }
    u->w += -step.lr * g;
}

static void torch_adam(const Optimizer *o, Step step, Unit *u, double g) {
    if (u->decay && o->kind == OPTIM_adam) g += step.decay * u->w;
    if (u->decay && o->kind == OPTIM_adamw) u->w *= 1 - step.lr * step.decay;
    double weight = 1 - o->beta1;
    u->m = weight < 0.5 ? u->m + weight * (g - u->m) : g - (g - u->m) * (1 - weight);
    u->v = u->v * o->beta2 + (1 - o->beta2) * g * g;
    double bias1 = 1 - pow(o->beta1, step.t), bias2 = 1 - pow(o->beta2, step.t);
    double below = sqrt(u->v) / sqrt(bias2) + o->eps;
    u->w += -(step.lr / bias1) * u->m / below;
}

/* ---- comparing --------------------------------------------------------------------------- */

static int64_t place_of(const Check *c, int unit) {
    return unit < SMALL ? c->m->param[0].offset_elems + unit
                        : c->m->param[1].offset_elems + unit - SMALL;
}

static double gradient(int unit, int t) { return sin(unit * 1.7 + t * 0.3) * 40; }

static void set_scalars(State *s, const Optimizer *o, Step step, double clip) {
    s->host[SCALAR_lr] = step.lr;
    s->host[SCALAR_decay] = step.decay;
    s->host[SCALAR_clip] = clip;
    s->host[SCALAR_bias1] = 1 - pow(o->beta1, step.t);
    s->host[SCALAR_bias2] = 1 - pow(o->beta2, step.t);
}

/* Several steps with gradients of sums over 8 targets; the second use has a tenth of the first. */
static void expect_training(Optimizer o, int uses, double clip) {
    static State s;
    static Unit unit[UNITS];
    Check c;
    memset(&s, 0, sizeof s);
    memset(unit, 0, sizeof unit);
    read_module(&c, o, uses);
    for (int i = 0; i < UNITS; i++) {
        unit[i].w = s.weight[place_of(&c, i)] = cos(i * 0.9);
        unit[i].decay = i >= SMALL;
    }
    for (int t = 1; t <= 5; t++) {
        Step step = {.lr = 0.1 / t, .decay = 0.01, .t = t};
        double square = 0, mean[UNITS];
        s.loss = 3;
        s.count = 8;
        set_scalars(&s, &o, step, clip);
        for (int i = 0; i < UNITS; i++) {
            double sum = s.grad[place_of(&c, i)] = gradient(i, t);
            if (i >= SMALL && uses > 1) sum += s.later[i - SMALL] = gradient(i, t) / 10;
            mean[i] = sum * (1.0 / 8);
            square += mean[i] * mean[i];
        }
        run_update(&c, &s);
        double shrink = fmin(clip / (sqrt(square) + 1e-6), 1);
        assert_float_equal(s.norm, sqrt(square), 1e-9);
        assert_float_equal(s.ok, 1, 0);
        for (int i = 0; i < UNITS; i++) {
            double g = mean[i] * shrink;
            if (o.kind == OPTIM_sgd)
                torch_sgd(&o, step, &unit[i], g);
            else
                torch_adam(&o, step, &unit[i], g);
            assert_float_equal(s.weight[place_of(&c, i)], unit[i].w, 1e-7);
        }
    }
    for (int64_t i = 0; i < c.m->flat_elems; i++) {
        bool padding = true;
        for (int k = 0; k < UNITS; k++) padding = padding && place_of(&c, k) != i;
        if (padding) assert_true(s.weight[i] == 0);
    }
    check_free(&c);
}

static void test_sgd(void **state) {
    (void)state;
    Optimizer o = {.kind = OPTIM_sgd};
    expect_training(o, 1, INFINITY);
    o.momentum = 0.9;
    expect_training(o, 1, INFINITY);
    o.nesterov = true;
    expect_training(o, 1, 1.0);
}

static void test_adam(void **state) {
    (void)state;
    Optimizer o = {.kind = OPTIM_adam, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    expect_training(o, 1, INFINITY);
    o.kind = OPTIM_adamw;
    expect_training(o, 1, INFINITY);
    o.beta1 = 0.3; /* the other form of lerp */
    expect_training(o, 1, 0.5);
}

static void test_later_uses(void **state) {
    (void)state;
    Optimizer o = {.kind = OPTIM_adamw, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    expect_training(o, 2, 1.0);
}

/* A loss or a gradient that is not finite changes nothing. */
static void test_not_finite(void **state) {
    (void)state;
    const Optimizer o = {.kind = OPTIM_adam, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    for (int k = 0; k < 3; k++) {
        static State s, was;
        Check c;
        memset(&s, 0, sizeof s);
        read_module(&c, o, 1);
        for (int i = 0; i < UNITS; i++) {
            s.weight[place_of(&c, i)] = i;
            s.grad[place_of(&c, i)] = s.moment[0][place_of(&c, i)] = 1;
        }
        s.loss = k == 0 ? NAN : 1;
        s.count = k == 2 ? 0 : 4;
        if (k == 1) s.grad[place_of(&c, 7)] = INFINITY;
        set_scalars(&s, &o, (Step){.lr = 1, .t = 1}, INFINITY);
        was = s;
        run_update(&c, &s);
        assert_float_equal(s.ok, k == 2, 0); /* no target counted: a step of gradients 0 */
        if (k < 2) {
            assert_memory_equal(s.weight, was.weight, sizeof s.weight);
            assert_memory_equal(s.moment, was.moment, sizeof s.moment);
        }
        check_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_later_uses),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
