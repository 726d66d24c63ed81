/* choose.c - train.chunk_loss, train.recompute and one thing of pipelines by the memory plan.
 *
 * Reads   the module as lowered, --memory-limit, and which of the two settings are not written.
 * Writes  the settings that are not written, where the plan would not fit without them, and says
 *         so: whole logits and nothing computed again if that fits; else the smallest number of
 *         chunks that does; else recompute = layer too, with as few chunks as possible. Where
 *         nothing fits, what needs least: E024 then shows the leanest plan. Where weight gradients
 *         are tasks of their own, those of layers go back to the input tasks (separate.c) before
 *         layers run again.
 * Keeps   what is written. The number of chunks is a function of the model, its batch and the limit
 *         alone: it is found for the plan of one rank whatever the layout, because gradients are
 *         added in another order with other chunks, and a layout changes no bit. recompute = layer
 *         changes none, so that choice looks at the ranks as they are.
 * Why     chunks cost about one part in a hundred of a step, running each layer twice a third;
 *         weight gradients in the input tasks fill no bubbles and keep nothing from task to task.
 *
 * A trial runs the passes on a copy of the module, in memory of its own, and says nothing.
 */
#include "passes/choose.h"

#include "passes/chunk_loss.h"

#include <inttypes.h>
#include <string.h>

enum {
    CHUNKS_TRIED_MAX = 64, /* each chunk reads the head's weight and adds to its gradient again */
    CLOSE_SHARE = 64       /* one part in so many: not worth more chunks */
};

typedef struct Trial {
    int64_t chunks;
    bool layer, as_laid_out;
    bool together; /* weight gradients of layers in the input tasks */
    bool splits;   /* found: a rank has tasks for weight gradients */
    int64_t bytes; /* that the largest rank's plan needs; -1: the passes refuse it */
    int64_t rows;  /* of the logits; 0: there is nothing to cut into chunks */
} Trial;

typedef bool Pass(PassContext *ctx);

static Pass *const pass_table[] = {
#define PASS(name_, what_) pass_##name_,
#include "passes/passes.def"
#undef PASS
};

/* ---- a trial ---------------------------------------------------------------------------- */

/* A copy that passes may change; settings, names and types are those of `m`. */
static Module *copy_module(const Module *m, Arena *arena, Diag *quiet) {
    Module *copy = ARENA_NEW(arena, Module);
    *copy = *m;
    copy->arena = arena;
    copy->diag = quiet;
    copy->cap_scope = copy->nscope; /* what is added goes to new memory */
    copy->cap_build = copy->nbuild;
    copy->cap_alias = copy->nalias;
    copy->param = ARENA_ARRAY(arena, Param, m->nparam);
    copy->cap_param = m->nparam;
    for (int i = 0; i < m->nparam; i++) copy->param[i] = m->param[i];
    copy->graph = NULL;
    copy->ngraph = copy->cap_graph = 0;
    for (int i = 0; i < m->ngraph; i++)
        module_add_graph(copy, graph_clone_into(copy, m->graph[i], m->graph[i]->name));
    return copy;
}

static bool run_pass(PassContext *ctx, Pass *pass, Trial *t) {
    int nrank = ctx->nrank; /* partition makes them */
    if (pass == pass_chunk_loss && t->chunks < 2 && nrank == 0)
        t->rows = chunk_loss_rows(module_graph(ctx->mod, "train"), ctx->scratch);
    bool ok = nrank > 0 || pass(ctx);
    for (int r = 0; r < nrank && ok; r++) {
        PassContext one = *ctx;
        one.mod = ctx->rank[r];
        one.nrank = 0;
        ok = pass(&one);
    }
    arena_reset(ctx->scratch);
    return ok;
}

static void run_passes(PassContext *ctx, Trial *t) {
    t->bytes = -1;
    for (size_t i = 0; i < sizeof pass_table / sizeof pass_table[0]; i++)
        if (!run_pass(ctx, pass_table[i], t)) return;
    t->bytes = ctx->mod->plan_bytes;
    for (int r = 0; ctx->table != NULL && r < ctx->table->ranks; r++)
        t->splits |= table_splits_backward(ctx->table, r);
    for (int r = 0; r < ctx->nrank; r++)
        if (r == 0 || ctx->rank[r]->plan_bytes > t->bytes) t->bytes = ctx->rank[r]->plan_bytes;
}

static void run_trial(const PassContext *ctx, Trial *t) {
    Arena arena = {0};
    Diag quiet;
    diag_init(&quiet, &arena, ctx->mod->sources, NULL);
    const PassOptions options = {.no_fuse = ctx->options->no_fuse,
                                 .no_reuse = ctx->options->no_reuse,
                                 .costs = ctx->options->costs,
                                 .memory_limit_bytes = INT64_MAX};
    PassContext own = {.scratch = ctx->scratch, .options = &options};
    own.mod = copy_module(ctx->mod, &arena, &quiet);
    own.mod->train.chunk_loss = t->chunks;
    own.mod->train.recompute = t->layer;
    if (!t->as_laid_out)
        own.mod->parallel = (ParallelSettings){.dp = 1, .tp = 1, .pp = 1, .vpp = 1};
    own.mod->parallel.together = t->together;
    run_passes(&own, t);
    arena_reset(ctx->scratch);
    arena_free(&arena);
}

/* ---- the choice ------------------------------------------------------------------------- */

static bool fits(const PassContext *ctx, const Trial *t) {
    return t->bytes >= 0 && t->bytes <= ctx->options->memory_limit_bytes;
}

/* Whether `b` needs so much less than `a` that it is worth its time. */
static bool is_leaner(const Trial *a, const Trial *b) {
    return b->bytes >= 0 && b->bytes < a->bytes - a->bytes / CLOSE_SHARE;
}

/* Tries more and more chunks until one fits: *best, or what needs least. */
static bool try_chunks(const PassContext *ctx, Trial *best) {
    int64_t rows = best->rows;
    for (int64_t n = 2; n <= CHUNKS_TRIED_MAX && n <= rows; n++) {
        if (rows % n != 0) continue;
        Trial t = {.chunks = n, .layer = best->layer};
        run_trial(ctx, &t);
        if (fits(ctx, &t) || is_leaner(best, &t)) *best = t;
        if (fits(ctx, &t)) return true;
    }
    return false;
}

/* For the plan of one rank. */
static Trial choose_for_one(const PassContext *ctx, const Trial *written) {
    bool may_chunk = ctx->options->may_chunk_loss;
    Trial best = *written;
    if (fits(ctx, &best) || (may_chunk && try_chunks(ctx, &best))) return best;
    if (!ctx->options->may_recompute) return best;
    Trial layer = {.chunks = written->chunks, .layer = true};
    run_trial(ctx, &layer);
    if (!fits(ctx, &layer) && may_chunk) try_chunks(ctx, &layer);
    return fits(ctx, &layer) || is_leaner(&best, &layer) ? layer : best;
}

static bool is_one_rank(const ParallelSettings *p) {
    return p->dp * p->tp * p->pp * p->vpp == 1 && p->schedule_file == NULL &&
           (p->pipeline == NULL || strcmp(p->pipeline, "1f1b") == 0);
}

/* Whether the ranks as they are need weight gradients together with input gradients, and then
 * whether recompute = layer. */
static void choose_for_ranks(const PassContext *ctx, Trial *chosen) {
    Trial t = {.chunks = chosen->chunks, .layer = ctx->mod->train.recompute, .as_laid_out = true};
    if (is_one_rank(&ctx->mod->parallel)) return;
    chosen->layer = t.layer;
    run_trial(ctx, &t);
    if (!fits(ctx, &t) && t.splits) {
        Trial both = {.chunks = t.chunks, .layer = t.layer, .as_laid_out = true, .together = true};
        run_trial(ctx, &both);
        if (fits(ctx, &both) || is_leaner(&t, &both)) t = both;
    }
    chosen->together = t.together;
    if (ctx->options->may_recompute) chosen->layer = t.bytes > ctx->options->memory_limit_bytes;
}

/* The setting as the executable states it, and in words for the user. */
static void set_build(Module *m, const char *key, const char *value) {
    for (int i = 0; i < m->nbuild; i++)
        if (strcmp(m->build[i].key, key) == 0) m->build[i].value = value;
}

static void say_together(const PassContext *ctx) {
    DiagRef ref = diag_notice(ctx->mod->diag, "weight gradients of layers stay in the input tasks: "
                                              "chosen by the memory plan");
    diag_note(ctx->mod->diag, ref,
              "they fill no bubbles there; the limit of each rank is %" PRId64 " bytes",
              ctx->options->memory_limit_bytes);
}

static void say(const PassContext *ctx, const Trial *written, const Trial *chosen) {
    Module *m = ctx->mod;
    if (chosen->together) say_together(ctx);
    bool chunks = chosen->chunks != written->chunks, layer = chosen->layer != written->layer;
    if (!chunks && !layer) return;
    const char *number = arena_printf(m->arena, "%" PRId64, chosen->chunks);
    const char *what = arena_printf(m->arena, "%s%s%s%s", chunks ? "train.chunk_loss = " : "",
                                    chunks ? number : "", chunks && layer ? " and " : "",
                                    layer ? "train.recompute = layer" : "");
    DiagRef ref = diag_notice(m->diag, "%s %s chosen by the memory plan", what,
                              chunks && layer ? "are" : "is");
    if (is_one_rank(&m->parallel))
        diag_note(m->diag, ref,
                  "it needs %" PRId64 " bytes without, %" PRId64 " with; the limit is %" PRId64,
                  written->bytes, chosen->bytes, ctx->options->memory_limit_bytes);
    else
        diag_note(m->diag, ref,
                  "one rank alone would need %" PRId64 " bytes; the limit of each is %" PRId64,
                  written->bytes, ctx->options->memory_limit_bytes);
    if (chunks) set_build(m, "train.chunk_loss", number);
    if (layer) set_build(m, "train.recompute", "layer");
}

void passes_choose(PassContext *ctx) {
    Module *m = ctx->mod;
    const PassOptions *o = ctx->options;
    bool may_choose = o->may_chunk_loss || o->may_recompute || !is_one_rank(&m->parallel);
    if (o->memory_limit_bytes == 0 || !may_choose) return;
    Trial written = {.chunks = m->train.chunk_loss, .layer = m->train.recompute};
    run_trial(ctx, &written);
    if (written.bytes < 0) return; /* the passes will say why */
    Trial chosen = choose_for_one(ctx, &written);
    choose_for_ranks(ctx, &chosen);
    m->train.chunk_loss = chosen.chunks;
    m->train.recompute = chosen.layer;
    m->parallel.together = chosen.together;
    say(ctx, &written, &chosen);
}
