/* kernels.c - see kernels.h. */
#include "tests/codegen/kernels.h"

#include "ir/bf16.h"
#include "ir/diag.h"
#include "ir/split.h"
#include "ir/text.h"
#include "tests/codegen/object.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CASES_MAX = 4096 };

/* One compiled kernel: which values of the case's body it reads and writes. */
typedef struct Kernel {
    const Node *node; /* the kernel node */
    int nin, nout;
    Val *in, *out;
    uint32_t number; /* in the object */
} Kernel;

typedef struct Case {
    KernelCase c;
    Graph *body;
    Kernel fused;
    Kernel *step; /* one a node of the body */
    int nstep;
    EvalTensor *input;
    double **result; /* of the fused kernel */
} Case;

struct KernelSet {
    Arena arena;
    Sources sources;
    Diag diag;
    Module *m;
    Case *cases;
    int n;
    Object *object;
};

static void die(const char *what) {
    fprintf(stderr, "kernels: %s\n", what);
    exit(3);
}

KernelSet *kernels_new(void) {
    KernelSet *s = calloc(1, sizeof *s);
    sources_init(&s->sources, &s->arena);
    diag_init(&s->diag, &s->arena, &s->sources, stderr);
    s->m = module_new(&s->arena, &s->sources, &s->diag);
    s->m->target = object_is_cuda() ? TARGET_cuda : TARGET_c;
    s->cases = ARENA_ARRAY(&s->arena, Case, CASES_MAX);
    return s;
}

void kernels_free(KernelSet *s) {
    arena_free(&s->arena);
    free(s);
}

/* --- building kernel nodes --- */

static Kernel wrap(KernelSet *s, Graph *body, const char *form) {
    Graph *g = graph_new(s->m, "wrap");
    Kernel k = {.nin = body->nin, .nout = body->nout};
    k.in = ARENA_ARRAY(&s->arena, Val, body->nin);
    for (int i = 0; i < body->nin; i++)
        k.in[i] = graph_add_input(g, val_type(body, body->in[i]), (Port){0});
    Attr attr[3] = {ATTR_STR(name, "k"), ATTR_STR(form, form)};
    int64_t workspace = split_workspace_bytes(body);
    attr[2] = ATTR_INT(workspace, workspace);
    Builder b = {.g = g};
    k.node = graph_add_region(&b, OP_kernel, body->nin, k.in, workspace > 0 ? 3 : 2, attr, body);
    return k;
}

static const char *form_of(const Node *n) {
    switch (op_kind(n->op)) {
    case KIND_elementwise:
    case KIND_source:
    case KIND_random:
    case KIND_movement: return "map";
    case KIND_reduce: return n->op == OP_argmax ? "argmax" : "reduce";
    default: return op_name(n->op);
    }
}

/* A kernel of one node of the body. */
static Kernel single(KernelSet *s, const Graph *body, const Node *n) {
    Graph *g = graph_new(s->m, "single");
    ValMap map = valmap_new(&s->arena, body);
    for (int i = 0; i < n->nin; i++)
        if (!map.to[n->in[i].id].id)
            map.to[n->in[i].id] = graph_add_input(g, val_type(body, n->in[i]), (Port){0});
    graph_copy_node(g, body, n, &map, NULL);
    for (int i = 0; i < n->nout; i++) graph_add_output(g, map.to[node_out(n, i).id], (Port){0});
    Kernel k = wrap(s, g, form_of(n));
    k.in = ARENA_ARRAY(&s->arena, Val, g->nin);
    k.out = ARENA_ARRAY(&s->arena, Val, n->nout);
    int nin = 0;
    for (int i = 0; i < n->nin; i++) {
        bool seen = false;
        for (int j = 0; j < nin; j++) seen |= k.in[j].id == n->in[i].id;
        if (!seen) k.in[nin++] = n->in[i];
    }
    for (int i = 0; i < n->nout; i++) k.out[i] = node_out(n, i);
    return k;
}

int kernels_add(KernelSet *s, KernelCase c) {
    if (s->n == CASES_MAX) die("too many cases");
    Case *x = &s->cases[s->n];
    char *name = arena_printf(&s->arena, "case%d", s->n);
    char *text = arena_printf(&s->arena, "graph %s%s", name, c.body);
    uint32_t file = source_add(&s->sources, name, text, strlen(text));
    if (!text_read_module(s->m, file)) {
        diag_finish(&s->diag);
        fprintf(stderr, "%s\n", text);
        die("the text was not read");
    }
    x->c = c;
    x->c.body = text;
    x->body = module_graph(s->m, name);
    if (c.form) {
        x->fused = wrap(s, x->body, c.form);
        x->fused.in = x->body->in;
        x->fused.out = x->body->out;
    }
    x->nstep = x->body->nnode;
    x->step = ARENA_ARRAY(&s->arena, Kernel, x->nstep);
    for (int i = 0; i < x->nstep; i++) x->step[i] = single(s, x->body, x->body->node[i]);
    return s->n++;
}

int kernels_addf(KernelSet *s, KernelCase c, const char *body, ...) {
    va_list ap;
    va_start(ap, body);
    c.body = arena_vprintf(&s->arena, body, ap);
    va_end(ap);
    return kernels_add(s, c);
}

/* --- text and compilation --- */

const char *kernels_text(KernelSet *s, int which) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    LowerContext ctx = {.arena = &s->arena};
    loop_print_c(lower_kernel(&ctx, NULL, s->cases[which].fused.node), "k", out);
    fclose(out);
    const char *kept = arena_strndup(&s->arena, text, n);
    free(text);
    return kept;
}

static void add_kernel(KernelSet *s, Kernel *k) {
    LowerContext ctx = {.arena = &s->arena, .target = s->m->target};
    LoopKernel *loop = lower_kernel(&ctx, NULL, k->node);
    loop->work = INT64_MAX; // always on several threads
    k->number = object_add_loop(s->object, loop);
}

static void build(KernelSet *s) {
    s->object = object_new();
    for (int i = 0; i < s->n; i++) {
        Case *c = &s->cases[i];
        if (c->c.form) add_kernel(s, &c->fused);
        for (int j = 0; j < c->nstep; j++) add_kernel(s, &c->step[j]);
    }
    object_build(s->object, NULL, NULL);
}

/* --- values --- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double make_value(const KernelCase *c, Dtype dtype, uint64_t *state) {
    static const double special[] = {(double)NAN, HUGE_VAL,  -HUGE_VAL, 0.0,   -0.0,
                                     0x1p-140,    -0x1p-149, 1e30,      -1e30, 88.5,
                                     -100.0,      1.0,       -1.0,      0.625, 2147483520.0};
    uint64_t r = next_random(state);
    if (dtype == DT_bool) return (double)(r & 1);
    if (dtype == DT_u8) return (double)(r & 255);
    if (dtype == DT_i32)
        return c->limit ? (double)(r % (uint64_t)(c->limit + 1)) - 1 : (double)(r % 100) - 50;
    if (c->input == INPUT_equal) return 1.5;
    if (c->input == INPUT_constant) return c->value;
    if (c->input == INPUT_special && (r >> 32) % 2)
        return (double)(float)special[r % (sizeof special / sizeof *special)];
    return (double)(float)((double)(r >> 40) * 0x1p-24 * 6 - 3);
}

/* The nearest value that the dtype holds. */
static double hold_value(double x, Dtype dtype) {
    return dtype == DT_bf16 ? (double)bf16_round((float)x) : x;
}

static void store_value(void *to, Dtype dtype, int64_t i, double v) {
    if (dtype == DT_f32) ((float *)to)[i] = (float)v;
    if (dtype == DT_bf16) {
        float x = (float)v;
        memcpy((char *)to + 2 * i, (const char *)&x + 2, 2);
    }
    if (dtype == DT_i32) ((int32_t *)to)[i] = (int32_t)v;
    if (dtype == DT_u8 || dtype == DT_bool) ((uint8_t *)to)[i] = (uint8_t)v;
}

static double load_value(const void *from, Dtype dtype, int64_t i) {
    if (dtype == DT_f32) return (double)((const float *)from)[i];
    if (dtype == DT_bf16) {
        float x = 0;
        memcpy((char *)&x + 2, (const char *)from + 2 * i, 2);
        return (double)x;
    }
    if (dtype == DT_i32) return ((const int32_t *)from)[i];
    return ((const uint8_t *)from)[i];
}

/* Memory that ends SLACK bytes before an unmapped page. gcc 12 folds a masked load whose mask is
 * known into an unmasked one (vblendps with memory), so a vector may reach over the end of a
 * tensor, though not use what it finds there; the runtime's memory has that much to spare. The
 * slack holds NaN. */
enum { SLACK = 64 };

typedef struct Guarded {
    void *map, *data;
    size_t map_bytes, bytes;
} Guarded;

static Guarded guarded_new(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = bytes + 2 * SLACK;
    if (object_is_cuda()) all = (all + 15) / 16 * 16; /* accesses of 16 bytes are aligned */
    Guarded b = {.bytes = bytes, .map_bytes = (all + page - 1) / page * page + page};
    b.map = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED) die("mmap");
    char *end = (char *)b.map + b.map_bytes - page;
    if (mprotect(end, page, PROT_NONE) != 0) die("mprotect");
    b.data = object_is_cuda() ? end - all + SLACK : end - SLACK - bytes;
    memset(end - all, 0xFF, all);
    object_lend(b.data, bytes);
    return b;
}

static void guarded_free(Guarded b) {
    object_give_back(b.data);
    munmap(b.map, b.map_bytes);
}

/* Numbers of the runtime's generator, so that the evaluator draws the same. */
static double random_of(void *ctx, int64_t stream, const int64_t *iter, int niter, int64_t index) {
    uint32_t r[4];
    (void)iter;
    (void)niter;
    inf_random4(ctx, (uint32_t)stream, 0, (uint64_t)index / 4, r);
    return (r[index % 4] >> 8) * 0x1p-24;
}

/* --- running --- */

static size_t bytes_of(const Graph *g, Val v) {
    return (size_t)type_bytes(g->mod->types, val_type(g, v));
}

static void call(const KernelSet *s, const Kernel *k, const Guarded *value, int threads) {
    void *arg[64];
    int n = 0;
    InfEnv env = {.seed = 7, .step = 3, .microbatch = 1, .threads = threads};
    const Graph *own = k->node->body;
    for (int i = 0; i < k->nin; i++) arg[n++] = value[k->in[i].id].data;
    for (int i = 0; i < k->nout; i++) arg[n++] = value[k->out[i].id].data;
    int64_t workspace = split_workspace_bytes(own);
    Guarded work = guarded_new(((size_t)workspace + 63) / 64 * 64);
    arg[n++] = work.data;
    object_run(s->object, k->number, arg, &env);
    guarded_free(work);
}

static bool close_enough(double got, double want, double tolerance) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    float rounded = (float)want;
    if (isinf(rounded) || isinf(got))
        return got == (double)rounded || fabs(got - want) <= 1e-6 * fabs(want);
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

static bool compare_values(const Case *c, const Guarded *value, const EvalTensor *want) {
    const Graph *g = c->body;
    for (int i = 0; i < g->nout; i++) {
        const TypeInfo *t = val_info(g, g->out[i]);
        int64_t n = type_elems(g->mod->types, val_type(g, g->out[i]));
        for (int64_t j = 0; j < n; j++) {
            double got = load_value(value[g->out[i].id].data, t->dtype, j);
            double tolerance = !dtype_is_float(t->dtype) ? 0
                               : c->c.tolerance != 0     ? c->c.tolerance
                                                         : 2e-6;
            if (close_enough(got, want[i].data[j], tolerance)) continue;
            fprintf(stderr, "%s\n  result %d element %lld: %.9g, the evaluator says %.9g\n",
                    c->c.body, i, (long long)j, got, want[i].data[j]);
            return false;
        }
    }
    return true;
}

static bool compare_bits(const Case *c, const Guarded *a, const Guarded *b, const char *what) {
    const Graph *g = c->body;
    for (int i = 0; i < g->nout; i++) {
        uint32_t id = g->out[i].id;
        if (memcmp(a[id].data, b[id].data, a[id].bytes) == 0) continue;
        size_t at = 0;
        while (((char *)a[id].data)[at] == ((char *)b[id].data)[at]) at++;
        fprintf(stderr, "%s\n  result %d differs at byte %zu: %s\n", c->c.body, i, at, what);
        return false;
    }
    return true;
}

static Guarded *values_new(const Case *c) {
    Guarded *v = calloc(c->body->nval + 1, sizeof *v);
    for (uint32_t id = 1; id < c->body->nval; id++)
        v[id] = guarded_new(bytes_of(c->body, (Val){id}));
    return v;
}

static void values_free(const Case *c, Guarded *v) {
    for (uint32_t id = 1; id < c->body->nval; id++) guarded_free(v[id]);
    free(v);
}

static void make_inputs(KernelSet *s, Case *c, Guarded *v) {
    uint64_t state = 42;
    const Graph *g = c->body;
    c->input = ARENA_ARRAY(&s->arena, EvalTensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        int64_t n = type_elems(g->mod->types, val_type(g, g->in[i]));
        Dtype dtype = val_info(g, g->in[i])->dtype;
        c->input[i] = (EvalTensor){val_type(g, g->in[i]), ARENA_ARRAY(&s->arena, double, n)};
        for (int64_t j = 0; j < n; j++) {
            double x = hold_value(make_value(&c->c, dtype, &state), dtype);
            c->input[i].data[j] = x;
            store_value(v[g->in[i].id].data, dtype, j, x);
        }
    }
}

static void run_steps(const KernelSet *s, const Case *c, const Guarded *v, int threads) {
    for (int i = 0; i < c->nstep; i++) call(s, &c->step[i], v, threads);
}

/* The fused kernel, or all steps when there is none. */
static void run_whole(const KernelSet *s, const Case *c, const Guarded *v, int threads) {
    if (c->c.form)
        call(s, &c->fused, v, threads);
    else
        run_steps(s, c, v, threads);
}

static void keep_results(KernelSet *s, Case *c, const Guarded *v) {
    const Graph *g = c->body;
    c->result = ARENA_ARRAY(&s->arena, double *, g->nout);
    for (int i = 0; i < g->nout; i++) {
        int64_t n = type_elems(g->mod->types, val_type(g, g->out[i]));
        c->result[i] = ARENA_ARRAY(&s->arena, double, n);
        for (int64_t j = 0; j < n; j++)
            c->result[i][j] = load_value(v[g->out[i].id].data, val_info(g, g->out[i])->dtype, j);
    }
}

static bool run_case(KernelSet *s, Case *c) {
    const Graph *g = c->body;
    InfEnv env = {.seed = 7, .step = 3, .microbatch = 1, .threads = 1};
    EvalContext ctx = {.arena = &s->arena, .random = random_of, .random_ctx = &env};
    Guarded *one = values_new(c), *again = values_new(c), *steps = values_new(c);
    make_inputs(s, c, one);
    make_inputs(s, c, again);
    make_inputs(s, c, steps);
    EvalTensor *want = ARENA_ARRAY(&s->arena, EvalTensor, g->nout);
    eval_graph(&ctx, g, c->input, want);
    run_whole(s, c, one, 1);
    bool ok = compare_values(c, one, want);
    for (int threads = 2; threads <= 4 && ok; threads *= 2) {
        run_whole(s, c, again, threads);
        ok = compare_bits(c, one, again, "1 thread and several");
    }
    if (c->c.form) {
        run_steps(s, c, steps, 1);
        ok = ok && compare_bits(c, one, steps, "fused and one kernel a node");
    }
    keep_results(s, c, one);
    values_free(c, one);
    values_free(c, again);
    values_free(c, steps);
    return ok;
}

int kernels_run(KernelSet *s) {
    int failed = 0;
    build(s);
    for (int i = 0; i < s->n; i++) failed += !run_case(s, &s->cases[i]);
    object_free(s->object);
    return failed;
}

const double *kernels_result(KernelSet *s, int which, int i) { return s->cases[which].result[i]; }
