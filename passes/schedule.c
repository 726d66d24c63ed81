/* schedule.c - the task table of every rank.
 *
 * Reads   the section parallel, train.microbatches.
 * Writes  the context's Table, with the proof's summary line.
 * Keeps   all graphs.
 * Why     one table, filled by a generator or a file and walked by the runtime: strategies differ
 *         only in how they fill it, and prove.c checks every one of them in the same way.
 */
#include "passes/schedule.h"

#include "ir/panic.h"
#include "passes/pass.h"

#include <inttypes.h>
#include <string.h>

/* 124439808 as "124,439,808". */
static const char *with_commas(Arena *arena, int64_t value) {
    if (value < 1000) return arena_printf(arena, "%" PRId64, value);
    return arena_printf(arena, "%s,%03d", with_commas(arena, value / 1000), (int)(value % 1000));
}

static int64_t count_logical_elems(const Module *m) {
    int64_t total = 0;
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        const TypeInfo *t = type_info(m->types, p->type);
        int64_t elems = 1;
        for (int a = 0; a < t->ndim; a++)
            elems *= a < p->nstack ? t->dim[a] : p->logical[a - p->nstack];
        total += elems;
    }
    return total;
}

static const char *numbers(Arena *a, const int *value, int n) {
    const char *text = "";
    for (int i = 0; i < n; i++) text = arena_printf(a, "%s%s%d", text, i > 0 ? " " : "", value[i]);
    return text;
}

static const ScheduleCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};

/* What a rank would need without waiting. */
static double ideal_makespan(const Table *t) {
    return (unit.forward + unit.backward) * t->vpp * t->microbatches;
}

static const char *summarize(const Module *m, const Table *t, const Proof *proof) {
    Arena *a = m->arena;
    int count = t->buckets > 0 ? t->buckets : t->blocks;
    const char *messages =
        t->ranks == 1 ? ""
                      : arena_printf(a, ", recv slots %s", numbers(a, proof->received, t->ranks));
    return arena_printf(a,
                        "%dx%dx%d %s: acyclic (%d nodes, %d edges), %smakespan %.1f (ideal %.1f), "
                        "bubble %.1f %%, peak chunks %s%s%s%s, parameters %s in %d %s%s",
                        t->ranks, t->vpp, t->microbatches, t->pipeline, proof->nodes, proof->edges,
                        t->ranks == 1 ? "" : "FIFO ok, ", proof->makespan, ideal_makespan(t),
                        100 * proof->bubble, numbers(a, proof->peak, t->ranks), messages,
                        t->layers != NULL ? ", " : "", t->layers != NULL ? t->layers : "",
                        with_commas(a, t->parameters), count, t->buckets > 0 ? "bucket" : "block",
                        count == 1 ? "" : "s");
}

/* Costs of chunks, messages and sums as partition estimates them. */
static ScheduleCosts estimates(Arena *a, const Table *t) {
    ScheduleCosts c = {
        .forward = 1, .backward = 2, .input = 1, .weight = 1, .edge = t->edge, .link = t->link};
    if (t->stage == NULL) return c;
    TaskCosts *chunk = ARENA_ARRAY(a, TaskCosts, t->chunks);
    for (int i = 0; i < t->chunks; i++) chunk[i] = t->stage[i].task;
    c.chunk = chunk;
    return c;
}

/* "0.31", "0.31 ms" */
static const char *cost_text(Arena *a, const Table *t, double cost) {
    if (t->cost_unit == NULL) return arena_printf(a, "%.3f", cost);
    return arena_printf(a, "%.3g %s", cost, t->cost_unit);
}

/* What replicas have to do with each other, of a mean rank: ", sums 0.31, 0.05 not hidden". */
static const char *describe_sums(Arena *a, const Table *t) {
    double sum = 0, gather = 0;
    if (t->replicas == 1) return "";
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            const Task *task = &t->rank[r].task[i];
            if (task->kind == TASK_reduce) sum += task->length / t->ranks;
            if (task->kind == TASK_gather) gather += task->length / t->ranks;
        }
    const char *text = arena_printf(a, ", sums of replicas %s", cost_text(a, t, sum));
    if (gather > 0) text = arena_printf(a, "%s, gathers %s", text, cost_text(a, t, gather));
    return arena_printf(a, "%s, %s not hidden", text, cost_text(a, t, t->exposed));
}

static const char *describe_estimate(const Module *m, const Table *t, const ScheduleCosts *costs) {
    Arena *a = m->arena;
    double messages = 0, ideal = t->makespan * (1 - t->bubble);
    const char *unit_name = t->cost_unit, *message = "";
    if (t->ranks == 1 && t->replicas == 1) return NULL;
    for (int i = 0; i < t->nmessage; i++)
        messages += schedule_message_cost(costs, t, &t->message[i]) / t->nmessage;
    if (unit_name != NULL) {
        if (t->ranks > 1) message = arena_printf(a, ", a message %.3g %s", messages, unit_name);
        return arena_printf(
            a, "measured costs: makespan %.4g %s (ideal %.4g %s), bubble %.1f %%%s%s", t->makespan,
            unit_name, ideal, unit_name, 100 * t->bubble, message, describe_sums(a, t));
    }
    if (t->ranks > 1) message = arena_printf(a, ", a message %.3f", messages);
    return arena_printf(a,
                        "estimated costs: makespan %.1f (ideal %.1f), bubble %.1f %%%s%s, in "
                        "forwards of a mean chunk",
                        t->makespan, ideal, 100 * t->bubble, message, describe_sums(a, t));
}

void schedule_finish(PassContext *ctx) {
    Module *m = ctx->mod;
    Table *t = ctx->table;
    ScheduleCosts costs = estimates(ctx->scratch, t);
    Proof proof = {0};
    const char *why = prove_table(m->arena, t, &unit, m->parallel.any_order, &proof);
    if (why != NULL) panic_graph(NULL, (Span){0}, "schedule: %s", why);
    t->summary = summarize(m, t, &proof);
    prove_times(ctx->scratch, t, &costs);
    t->estimate = describe_estimate(m, t, &costs);
}

/* "1, 2, 4": the groups that run. */
static const char *legal_groups(Arena *a, int ranks, int microbatches) {
    const char *text = "";
    for (int group = 1; group <= microbatches; group++)
        if (schedule_group_runs(ranks, microbatches, group))
            text = arena_printf(a, "%s%s%d", text, *text != '\0' ? ", " : "", group);
    return text;
}

static bool check_group(Module *m, const ScheduleShape *s) {
    if (s->group == 0 || schedule_group_runs(s->ranks, s->microbatches, s->group)) return true;
    DiagRef ref = diag_error(m->diag, E020, (Span){0},
                             "a group of %d cannot run with pp = %d and %d microbatches", s->group,
                             s->ranks, s->microbatches);
    diag_hint(m->diag, ref, "groups that can: %s",
              legal_groups(m->arena, s->ranks, s->microbatches));
    return false;
}

static Table *generate(PassContext *ctx, const ScheduleShape *shape) {
    Module *m = ctx->mod;
    if (!check_group(m, shape)) return NULL;
    Table *t = schedule_rows(m->arena, shape);
    if (t != NULL) return t;
    DiagRef ref =
        diag_error(m->diag, E020, (Span){0}, "pipeline '%s' with vpp = %d has no schedule",
                   shape->pipeline, shape->vpp);
    diag_hint(m->diag, ref, "1f1b takes any vpp, gpipe and zb-h1 need vpp = 1, zb-v needs vpp = 2");
    return NULL;
}

/* What makes a table impossible is said of its own tasks, before messages are added. */
static Table *import(PassContext *ctx, const ScheduleShape *shape) {
    Module *m = ctx->mod;
    const ParallelSettings *p = &m->parallel;
    const char *why = NULL;
    Table *t = schedule_import(m->arena, p->schedule_text, p->schedule_bytes, shape, &why);
    Proof proof;
    if (t != NULL) why = prove_tasks(m->arena, t, &unit, p->any_order, &proof);
    if (why == NULL) return t;
    diag_error(m->diag, E020, p->schedule_span, "%s: %s", p->schedule_file, why);
    return NULL;
}

Table *schedule_begin(PassContext *ctx) {
    const ParallelSettings *p = &ctx->mod->parallel;
    ScheduleShape shape = {.pipeline = p->pipeline != NULL ? p->pipeline : "1f1b",
                           .ranks = (int)p->pp,
                           .vpp = (int)p->vpp,
                           .microbatches = (int)ctx->mod->train.microbatches,
                           .group = (int)p->group};
    Table *t = p->schedule_file != NULL ? import(ctx, &shape) : generate(ctx, &shape);
    if (t == NULL) return NULL;
    t->loopback = p->loopback;
    t->parameters = count_logical_elems(ctx->mod);
    t->blocks = ctx->mod->nparam;
    t->replicas = (int)p->dp;
    t->sums_last = p->ordered && ctx->mod->target != TARGET_cuda;
    t->whole_steps = ctx->mod->target == TARGET_cuda;
    return t;
}

bool pass_schedule(PassContext *ctx) {
    Module *m = ctx->mod;
    Table *t = ctx->table != NULL ? ctx->table : schedule_begin(ctx);
    if (t == NULL) return false;
    ctx->table = t;
    const char *why = prove_module(ctx->scratch, m);
    bool first = t->slots == NULL; /* the table is one for all ranks */
    ScheduleCosts costs = estimates(ctx->scratch, t);
    /* Measured costs also decide in which order messages are posted. */
    if (why == NULL && first &&
        !schedule_complete(m->arena, t, t->cost_unit != NULL ? &costs : &unit))
        why = "tasks wait for each other";
    if (why != NULL) panic_graph(NULL, (Span){0}, "schedule: %s", why);
    if (first && !module_has_buckets(m)) schedule_finish(ctx); /* else when it has all its rows */
    return true;
}
