/* check.c - what the unit tests of passes share; see check.h. */
#include "tests/passes/check.h"

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/verify_passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

void check_empty(Check *c) {
    memset(c, 0, sizeof *c);
    sources_init(&c->sources, &c->arena);
    diag_init(&c->diag, &c->arena, &c->sources, stderr);
    c->m = module_new(&c->arena, &c->sources, &c->diag);
}

void check_start(Check *c) {
    const char *why = verify_module(c->m);
    if (why != NULL) fail_msg("%s", why);
    const Graph *g = c->forward = module_graph(c->m, "train");
    assert_non_null(g);
    c->in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    for (int i = 0; i < g->nin; i++)
        c->in[i] = verify_random_input(c->m, &c->arena, g->in_port[i], val_type(g, g->in[i]), 3);
}

void check_read(Check *c, const char *text) {
    check_empty(c);
    uint32_t file = source_add(&c->sources, "test.ir", text, strlen(text));
    if (!text_read_module(c->m, file)) {
        diag_finish(&c->diag);
        fail_msg("the test's text does not read:\n%s", text);
    }
    check_start(c);
}

void check_free(Check *c) {
    arena_free(&c->arena);
    arena_free(&c->scratch);
}

static const char *axes_of(Check *c, const char *shape) {
    char axes[64] = "";
    int n = shape[0] != '\0';
    for (const char *s = shape; *s != '\0'; s++) n += *s == ',';
    for (int i = 0; i < n; i++)
        snprintf(axes + strlen(axes), sizeof axes - strlen(axes), i > 0 ? ",%d" : "%d", i);
    return arena_strdup(&c->arena, axes);
}

const char *check_expand(Check *c, const char *text, const char *shape, const char *op) {
    const char *axes = axes_of(c, shape);
    size_t longest = strlen(shape) + strlen(axes) + strlen(op);
    char *out = arena_alloc(&c->arena, strlen(text) * (longest + 1) + 1);
    for (char *to = out; *text != '\0'; text++) {
        const char *by = NULL;
        if (*text == '$') by = text[1] == 'S' ? shape : text[1] == 'A' ? axes : op;
        if (by == NULL) {
            *to++ = *text;
            continue;
        }
        memcpy(to, by, strlen(by));
        to += strlen(by);
        text++;
    }
    return out;
}

void check_pass(Check *c, bool (*pass)(PassContext *ctx)) {
    const PassOptions options = {0};
    PassContext ctx = {.mod = c->m, .scratch = &c->scratch, .options = &options};
    assert_true(pass(&ctx));
    arena_reset(&c->scratch);
    const char *why = verify_module(c->m);
    if (why == NULL) return;
    text_print_module(c->m, stderr, 0);
    fail_msg("%s", why);
}

EvalTensor *check_eval(Check *c, const Graph *g) {
    EvalTensor *in = ARENA_ARRAY(&c->arena, EvalTensor, g->nin);
    EvalTensor *out = ARENA_ARRAY(&c->arena, EvalTensor, g->nout);
    for (int i = 0; i < g->nin; i++)
        for (int k = 0; k < c->forward->nin; k++) {
            const Port *a = &g->in_port[i], *b = &c->forward->in_port[k];
            if (a->role == b->role && a->index == b->index) in[i] = c->in[k];
        }
    EvalContext ctx = {.arena = &c->arena};
    eval_graph(&ctx, g, in, out);
    return out;
}

EvalTensor check_output(const Graph *g, const EvalTensor *out, Role role, int index, int use) {
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out_port[i];
        if (p->role == role && p->index == index && p->use == use) return out[i];
    }
    return (EvalTensor){0};
}

EvalTensor check_grad(Check *c, const Graph *g, const EvalTensor *out, int param) {
    EvalTensor sum = {.type = c->m->param[param].type};
    int64_t n = type_elems(c->m->types, sum.type);
    sum.data = ARENA_ARRAY(&c->arena, double, n);
    int uses = c->m->param[param].uses;
    for (int use = 0; use < uses; use++) {
        EvalTensor t = check_output(g, out, ROLE_grad, param, use);
        assert_non_null(t.data);
        for (int64_t i = 0; i < n; i++) sum.data[i] += t.data[i];
    }
    return sum;
}

static double loss_of_forward(Check *c) {
    Arena kept = c->arena;
    c->arena = (Arena){0};
    double loss = check_output(c->forward, check_eval(c, c->forward), ROLE_loss_sum, 0, 0).data[0];
    arena_free(&c->arena);
    c->arena = kept;
    return loss;
}

/* (loss(w + h d) - loss(w - h d)) / 2h */
static double difference(Check *c, EvalTensor w, const double *direction, int64_t n) {
    const double h = 1e-5;
    double *kept = ARENA_ARRAY(&c->arena, double, n);
    memcpy(kept, w.data, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++) w.data[i] = kept[i] + h * direction[i];
    double above = loss_of_forward(c);
    for (int64_t i = 0; i < n; i++) w.data[i] = kept[i] - h * direction[i];
    double below = loss_of_forward(c);
    memcpy(w.data, kept, (size_t)n * sizeof *kept);
    return (above - below) / (2.0 * h);
}

static void compare_direction(Check *c, const Port *p, int round, const double *direction,
                              int64_t n, const EvalTensor grad[3], CheckDiff diff) {
    static const char *const after[3] = {"autodiff", "decompose", "cleanup"};
    EvalTensor w = {0};
    for (int i = 0; i < c->forward->nin; i++)
        if (&c->forward->in_port[i] == p) w = c->in[i];
    double want = difference(c, w, direction, n);
    for (int stage = 0; stage < 3; stage++) {
        double got = 0.0;
        for (int64_t i = 0; i < n; i++) got += grad[stage].data[i] * direction[i];
        if (fabs(got - want) <= diff.tolerance * (1.0 + fabs(want))) continue;
        text_print_graph(c->forward, stderr, 0);
        fail_msg("after %s: gradient of parameter %d in direction %d is %.9g, difference %.9g",
                 after[stage], p->index, round, got, want);
    }
}

static void compare_param(Check *c, const Port *p, const EvalTensor grad[3], CheckDiff diff) {
    int64_t n = type_elems(c->m->types, c->m->param[p->index].type);
    bool single = n <= 24;
    int rounds = single ? (int)n : diff.directions;
    for (int round = 0; round < rounds; round++) {
        const Port key = {.role = ROLE_output, .index = p->index, .use = round};
        EvalTensor d = verify_random_input(c->m, &c->arena, key, grad[0].type, 2);
        for (int64_t i = 0; single && i < n; i++) d.data[i] = i == round;
        compare_direction(c, p, round, d.data, n, grad, diff);
    }
}

static void compare_losses(Check *c, const Graph *g, const EvalTensor *out) {
    double want = loss_of_forward(c);
    double got = check_output(g, out, ROLE_loss_sum, 0, 0).data[0];
    if (fabs(got - want) > 1e-5 * (1.0 + fabs(want))) fail_msg("loss %.9g was %.9g", got, want);
}

void check_gradients(Check *c, CheckDiff diff) {
    static bool (*const passes[3])(PassContext *) = {pass_autodiff, pass_decompose, pass_cleanup};
    EvalTensor *grad[3];
    check_pass(c, pass_alias);
    for (int stage = 0; stage < 3; stage++) {
        check_pass(c, passes[stage]);
        const Graph *g = module_graph(c->m, "train");
        const EvalTensor *out = check_eval(c, g);
        compare_losses(c, g, out);
        grad[stage] = ARENA_ARRAY(&c->arena, EvalTensor, c->m->nparam);
        for (int i = 0; i < c->m->nparam; i++) grad[stage][i] = check_grad(c, g, out, i);
    }
    for (int i = 0; i < c->forward->nin; i++) {
        const Port *p = &c->forward->in_port[i];
        if (p->role != ROLE_weight) continue;
        const EvalTensor of[3] = {grad[0][p->index], grad[1][p->index], grad[2][p->index]};
        compare_param(c, p, of, diff);
    }
}

void check_gradients_of(const char *text, double tolerance) {
    Check c;
    check_read(&c, text);
    check_gradients(&c, (CheckDiff){.tolerance = tolerance, .directions = 6});
    check_free(&c);
}
