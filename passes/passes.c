/* passes.c - run the pipeline of passes.def.
 *
 * After each pass: verify, compare by the evaluator if asked, in debug builds print, read back and
 * compare, then dump if asked. A pass that leaves a broken graph is our mistake: exit 3 with the
 * name of the pass and the graph.
 */
#include "ir/panic.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/choose.h"
#include "passes/pass.h"
#include "passes/verify_passes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Pass {
    const char *name;
    const char *what;
    bool (*run)(PassContext *ctx);
} Pass;

static const Pass pass_table[] = {
#define PASS(name_, what_) {.name = #name_, .what = what_, .run = pass_##name_},
#include "passes/passes.def"
#undef PASS
};

enum { PASS_COUNT = sizeof pass_table / sizeof pass_table[0] };

static bool named(const char *option, const char *name) {
    return option != NULL && strcmp(option, name) == 0;
}

bool passes_known(const char *name) {
    if (strcmp(name, "all") == 0 || strcmp(name, "lower") == 0) return true;
    for (int i = 0; i < PASS_COUNT; i++)
        if (strcmp(pass_table[i].name, name) == 0) return true;
    return false;
}

void passes_list(FILE *out) {
    fprintf(out, "%-12s %s\n", "lower", "the model as operations, before any pass");
    for (int i = 0; i < PASS_COUNT; i++)
        fprintf(out, "%-12s %s\n", pass_table[i].name, pass_table[i].what);
}

static void dump(const PassContext *ctx, const char *after) {
    const PassOptions *o = ctx->options;
    FILE *out = o->dump_to != NULL ? o->dump_to : stdout;
    bool last = named(o->only, after) || named(o->stop_after, after);
    if (!named(o->dump, "all") && !named(o->dump, after) && !(o->dump == NULL && last)) return;
    if (named(o->dump, "all")) fprintf(out, "# after %s\n", after);
    text_print_module(ctx->mod, out, o->print_locations ? PRINT_LOCATIONS : 0);
}

#ifdef INFINIC_DEBUG
static char *print_to_memory(const Module *m, size_t *bytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    if (f == NULL) panic_graph(NULL, (Span){0}, "no memory to print the module");
    text_print_module(m, f, 0);
    fclose(f);
    return text;
}

/* What is printed reads back as what it was: dumps can be trusted and cut into tests. */
static void check_round_trip(const Module *m, const char *after) {
    Arena arena = {0};
    Sources sources;
    Diag diag;
    size_t bytes = 0, bytes_back = 0;
    sources_init(&sources, &arena);
    diag_init(&diag, &arena, &sources, stderr);
    char *text = print_to_memory(m, &bytes);
    Module *back = module_new(&arena, &sources, &diag);
    back->target = m->target; /* of the command line, not of the text */
    if (!text_read_module(back, source_add(&sources, "<printed>", text, bytes))) {
        diag_finish(&diag);
        panic_graph(NULL, (Span){0}, "after %s: the printed module does not read back", after);
    }
    char *again = print_to_memory(back, &bytes_back);
    if (bytes != bytes_back || memcmp(text, again, bytes) != 0) {
        fprintf(stderr, "%s# reads back as\n%s", text, again);
        panic_graph(NULL, (Span){0}, "after %s: the printed module reads back differently", after);
    }
    free(text);
    free(again);
    arena_free(&arena);
}
#else
static void check_round_trip(const Module *m, const char *after) { (void)m, (void)after; }
#endif

static void check(const Module *m, const char *after) {
    const char *why = verify_module(m);
    if (why != NULL) panic_graph(NULL, (Span){0}, "after %s: %s", after, why);
    check_round_trip(m, after);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void time_pass(const PassContext *ctx, const Pass *pass, double ms) {
    if (!ctx->options->time_passes) return;
    fprintf(stderr, "%-12s %9.3f ms", pass->name, ms);
    if (ctx->mod->nrank > 1) fprintf(stderr, "  rank %d", ctx->mod->rank);
    fputc('\n', stderr);
}

static bool run_on_module(PassContext *ctx, const Pass *pass) {
    VerifyGraphs *before = ctx->options->verify_passes ? verify_passes_before(ctx->mod) : NULL;
    double start = now_ms();
    bool ok = pass->run(ctx);
    double ms = now_ms() - start;
    arena_reset(ctx->scratch);
    time_pass(ctx, pass, ms);
    if (ok) {
        check(ctx->mod, pass->name);
        if (before != NULL) verify_passes_after(before, ctx->mod, pass->name);
    }
    verify_passes_free(before);
    return ok;
}

/* On the module, or on what each rank runs. */
static bool run_pass(PassContext *ctx, const Pass *pass) {
    bool ok = true;
    if (ctx->nrank == 0) ok = run_on_module(ctx, pass);
    for (int r = 0; r < ctx->nrank && ok; r++) {
        PassContext one = *ctx;
        one.mod = ctx->rank[r];
        one.nrank = 0;
        if (pass->run == pass_partition)
            check(one.mod, pass->name);
        else
            ok = run_on_module(&one, pass);
    }
    for (int r = 0; r < ctx->nrank && ok; r++) {
        PassContext one = *ctx;
        one.mod = ctx->rank[r];
        dump(&one, pass->name);
    }
    if (ctx->nrank == 0 && ok) dump(ctx, pass->name);
    return ok;
}

bool passes_run(PassContext *ctx) {
    const PassOptions *o = ctx->options;
    check(ctx->mod, "lower");
    if (o->only == NULL) passes_choose(ctx);
    dump(ctx, "lower");
    if (named(o->stop_after, "lower") || named(o->only, "lower")) return true;
    for (int i = 0; i < PASS_COUNT; i++) {
        const Pass *pass = &pass_table[i];
        if (o->only != NULL && !named(o->only, pass->name)) continue;
        if (!run_pass(ctx, pass)) return false;
        if (named(o->stop_after, pass->name)) break;
    }
    return true;
}
