/* kernel_set.c - see kernel_set.h. */
#include "tests/codegen/kernel_set.h"

#include "ir/eval.h"
#include "ir/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

KernelSet *kernel_set_new(void) {
    KernelSet *set = mem_alloc(sizeof *set);
    set->m = module_new(&set->arena, NULL, NULL);
    set->m->target = object_is_cuda() ? TARGET_cuda : TARGET_c;
    set->outer = graph_new(set->m, "outer");
    return set;
}

void kernel_set_free(KernelSet *set) {
    for (int i = 0; i < set->n; i++) {
        for (int j = 0; j < set->item[i].narg; j++) {
            object_give_back(set->item[i].arg[j]);
            free(set->item[i].arg[j]);
        }
    }
    if (set->object) object_free(set->object);
    arena_free(&set->arena);
    mem_free(set);
}

Builder kernel_set_body(KernelSet *set) { return (Builder){.g = graph_new(set->m, "body")}; }

static void *fill_new(const KernelSet *set, Type t, uint64_t seed) {
    int64_t n = type_elems(set->m->types, t);
    Dtype dtype = type_info(set->m->types, t)->dtype;
    size_t bytes = (size_t)(type_bytes(set->m->types, t) + 63) / 64 * 64 + 64;
    void *data = aligned_alloc(64, bytes);
    if (!data) abort();
    object_lend(data, bytes);
    memset(data, 0xff, bytes); // NaN where nothing is written
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < n && seed > 0; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(x >> 40) & (set->coarse ? ~0x3FFFu : ~0u);
        if (dtype == DT_f32)
            ((float *)data)[i] = (float)bits * 0x1p-24f - 0.5f;
        else if (dtype == DT_i32)
            ((int32_t *)data)[i] = (int32_t)(bits % 8);
        else
            ((uint8_t *)data)[i] = bits % 2;
    }
    return data;
}

int kernel_set_add(KernelSet *set, Graph *body, const char *form, const char *text) {
    if (set->n == KERNEL_SET_MAX) abort();
    KernelCase *c = &set->item[set->n];
    *c = (KernelCase){.body = body, .nin = body->nin, .nout = body->nout};
    snprintf(c->text, sizeof c->text, "%s", text);
    Builder b = {.g = graph_new(set->m, "outer")};
    Val *in = ARENA_ARRAY(&set->arena, Val, body->nin + 1);
    for (int i = 0; i < body->nin; i++)
        in[i] = graph_add_input(b.g, val_type(body, body->in[i]), (Port){0});
    int64_t workspace = split_workspace_bytes(body);
    Attr attr[] = {ATTR_STR(name, text), ATTR_STR(form, form), ATTR_INT(workspace, workspace)};
    c->node = graph_add_region(&b, OP_kernel, body->nin, in, workspace > 0 ? 3 : 2, attr, body);
    c->narg = body->nin + body->nout + (workspace > 0);
    c->arg = ARENA_ARRAY(&set->arena, void *, c->narg);
    for (int i = 0; i < body->nin; i++)
        c->arg[i] = fill_new(set, val_type(body, body->in[i]), (uint64_t)i + 1);
    for (int i = 0; i < body->nout; i++)
        c->arg[body->nin + i] = fill_new(set, val_type(body, body->out[i]), 0);
    if (workspace > 0)
        c->arg[c->narg - 1] = fill_new(set, type_intern(set->m->types, DT_u8, 1, &workspace), 0);
    set->outer = b.g;
    return set->n++;
}

void kernel_set_build(KernelSet *set, const char *cc, const char *march) {
    LowerContext ctx = {.arena = &set->arena, .target = set->m->target};
    set->object = object_new();
    for (int i = 0; i < set->n; i++)
        set->item[i].number =
            object_add_loop(set->object, lower_kernel(&ctx, set->outer, set->item[i].node));
    object_build(set->object, cc, march);
}

void kernel_set_run(KernelSet *set, int i, int threads) {
    InfEnv env = {.seed = 1, .threads = threads};
    object_run(set->object, set->item[i].number, set->item[i].arg, &env);
}

static double *as_double(const KernelSet *set, Arena *arena, Type t, const void *data) {
    int64_t n = type_elems(set->m->types, t);
    Dtype dtype = type_info(set->m->types, t)->dtype;
    double *to = ARENA_ARRAY(arena, double, n);
    for (int64_t i = 0; i < n; i++)
        to[i] = dtype == DT_f32   ? (double)((const float *)data)[i]
                : dtype == DT_i32 ? ((const int32_t *)data)[i]
                                  : ((const uint8_t *)data)[i];
    return to;
}

static double difference(const double *got, const double *want, int64_t n) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i])) return INFINITY;
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

/* Runs with 2 and 4 threads and compares all results with those of 1. */
static bool same_for_threads(KernelSet *set, KernelCase *c, int i) {
    bool same = true;
    void *kept[8];
    for (int r = 0; r < c->nout; r++) {
        size_t bytes = (size_t)type_bytes(set->m->types, val_type(c->body, c->body->out[r]));
        kept[r] = malloc(bytes + 1);
        if (!kept[r]) abort();
        memcpy(kept[r], c->arg[c->nin + r], bytes);
    }
    for (int threads = 2; threads <= 4; threads += 2) {
        kernel_set_run(set, i, threads);
        for (int r = 0; r < c->nout; r++) {
            size_t bytes = (size_t)type_bytes(set->m->types, val_type(c->body, c->body->out[r]));
            same &= memcmp(kept[r], c->arg[c->nin + r], bytes) == 0;
        }
    }
    for (int r = 0; r < c->nout; r++) free(kept[r]);
    return same;
}

double kernel_set_check(KernelSet *set, int i, double limit) {
    KernelCase *c = &set->item[i];
    kernel_set_run(set, i, 1);
    Arena arena = {0};
    EvalContext ctx = {.arena = &arena};
    EvalTensor *in = ARENA_ARRAY(&arena, EvalTensor, c->nin + 1);
    EvalTensor *out = ARENA_ARRAY(&arena, EvalTensor, c->nout + 1);
    for (int j = 0; j < c->nin; j++) {
        Type t = val_type(c->body, c->body->in[j]);
        in[j] = (EvalTensor){.type = t, .data = as_double(set, &arena, t, c->arg[j])};
    }
    eval_graph(&ctx, c->body, in, out);
    double worst = 0;
    for (int r = 0; r < c->nout; r++) {
        Type t = val_type(c->body, c->body->out[r]);
        double *got = as_double(set, &arena, t, c->arg[c->nin + r]);
        worst = fmax(worst, difference(got, out[r].data, type_elems(set->m->types, t)));
    }
    arena_free(&arena);
    if (!(worst <= limit)) fprintf(stderr, "%s: differs by %g\n", c->text, worst);
    if (!same_for_threads(set, c, i)) {
        fprintf(stderr, "%s: bits depend on the number of threads\n", c->text);
        worst = INFINITY;
    }
    return worst;
}

int kernel_set_same(KernelSet *set, int a, int result_a, int b, int result_b) {
    KernelCase *x = &set->item[a], *y = &set->item[b];
    size_t bytes = (size_t)type_bytes(set->m->types, val_type(x->body, x->body->out[result_a]));
    return memcmp(x->arg[x->nin + result_a], y->arg[y->nin + result_b], bytes) == 0;
}

void kernel_set_feed(KernelSet *set, int from, int i, int to, int j) {
    KernelCase *x = &set->item[from];
    size_t bytes = (size_t)type_bytes(set->m->types, val_type(x->body, x->body->out[i]));
    memcpy(set->item[to].arg[j], x->arg[x->nin + i], bytes);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kernel_set_time(KernelSet *set, int i, int threads, int runs) {
    double least = INFINITY;
    for (int r = 0; r < runs; r++) {
        double start = now();
        kernel_set_run(set, i, threads);
        least = fmin(least, now() - start);
    }
    return least;
}
