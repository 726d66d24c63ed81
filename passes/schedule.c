/* schedule.c - the task table of every rank.
 *
 * Reads   parallel.pipeline, parallel.pp, train.microbatches.
 * Writes  the context's Table, with the proof's summary line.
 * Keeps   all graphs.
 * Why     one table, filled by a generator and walked by the runtime: strategies differ only in how
 *         they fill it, and prove.c checks every one of them in the same way.
 *
 * A row of the generators is a list of compute tasks. Backwards are ascending in every strategy, so
 * that gradients add up in one order whatever the strategy.
 */
#include "passes/schedule.h"

#include "ir/panic.h"
#include "passes/pass.h"

#include <inttypes.h>
#include <string.h>

typedef struct Row {
    Arena *arena;
    int rank;
    VEC(Task) tasks;
} Row;

static void emit(Row *row, TaskKind kind, int microbatch) {
    Task t = {.kind = kind, .chunk = row->rank, .microbatch = microbatch, .first = microbatch == 0};
    vec_push(row->arena, &row->tasks, t);
}

static void emit_update(Row *row) {
    Task t = {.kind = TASK_update, .chunk = -1, .local = -1, .microbatch = -1};
    vec_push(row->arena, &row->tasks, t);
}

/* All forwards, then all backwards. */
static void fill_gpipe(Row *row, int p, int n) {
    (void)p;
    for (int m = 0; m < n; m++) emit(row, TASK_forward, m);
    for (int m = 0; m < n; m++) emit(row, TASK_backward, m);
}

/* Warm-up, then one forward and one backward in turn, then the rest. The clamp of the warm-up lets
 * fewer microbatches than ranks run. */
static void fill_1f1b(Row *row, int p, int n) {
    int warm = p - 1 - row->rank < n ? p - 1 - row->rank : n;
    for (int m = 0; m < warm; m++) emit(row, TASK_forward, m);
    for (int k = 0; k < n - warm; k++) {
        emit(row, TASK_forward, warm + k);
        emit(row, TASK_backward, k);
    }
    for (int m = n - warm; m < n; m++) emit(row, TASK_backward, m);
}

static const struct {
    const char *name;
    void (*fill)(Row *row, int p, int n);
} generators[] = {{"1f1b", fill_1f1b}, {"gpipe", fill_gpipe}};

Table *schedule_make(Arena *arena, const char *pipeline, int p, int n) {
    for (size_t k = 0; k < sizeof generators / sizeof *generators; k++) {
        if (strcmp(generators[k].name, pipeline) != 0) continue;
        Table *t = ARENA_NEW(arena, Table);
        *t = (Table){.ranks = p, .chunks = p, .microbatches = n, .pipeline = generators[k].name};
        t->rank = ARENA_ARRAY(arena, RankTasks, p);
        for (int r = 0; r < p; r++) {
            Row row = {.arena = arena, .rank = r};
            generators[k].fill(&row, p, n);
            emit_update(&row);
            t->rank[r] = (RankTasks){.task = row.tasks.data, .ntask = (int)row.tasks.n};
        }
        return t;
    }
    return NULL;
}

const char *schedule_row(Arena *arena, const RankTasks *rank) {
    static const char letter[] = {
        [TASK_forward] = 'F', [TASK_backward] = 'B', [TASK_input] = 'I', [TASK_weight] = 'W'};
    char *text = arena_alloc(arena, (size_t)rank->ntask * 32 + 1);
    size_t used = 0;
    for (int i = 0; i < rank->ntask; i++) {
        const Task *t = &rank->task[i];
        if (t->kind == TASK_update) continue;
        used += (size_t)snprintf(text + used, 32, "%s%c%d_%d", used > 0 ? " " : "", letter[t->kind],
                                 t->microbatch, t->local);
    }
    return text;
}

/* ---- the pass --------------------------------------------------------------------------- */

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

static const char *summarize(const Module *m, const Table *t, const Proof *proof) {
    Arena *a = m->arena;
    const char *peaks = "";
    for (int r = 0; r < t->ranks; r++)
        peaks = arena_printf(a, "%s%s%d", peaks, r > 0 ? " " : "", proof->peak[r]);
    double ideal = 3.0 * t->microbatches;
    return arena_printf(a,
                        "%dx%dx%d %s: acyclic (%d nodes, %d edges), makespan %.1f (ideal %.1f), "
                        "bubble %.1f %%, peak chunks %s, parameters %s in %d blocks",
                        t->ranks, t->chunks / t->ranks, t->microbatches, t->pipeline, proof->nodes,
                        proof->edges, proof->makespan, ideal, 100 * proof->bubble, peaks,
                        with_commas(a, count_logical_elems(m)), m->nparam);
}

/* One rank runs with one set of activations; a schedule that keeps more is refused. */
static bool check_in_flight(Module *m, const Table *t) {
    if (t->ranks > 1 || t->peak_in_flight == 1) return true;
    DiagRef ref = diag_error(m->diag, E020, (Span){0},
                             "pipeline '%s' on one rank keeps %d microbatches in flight, this "
                             "version keeps one",
                             t->pipeline, t->peak_in_flight);
    diag_hint(m->diag, ref, "parallel.pipeline = \"1f1b\" gives the same results");
    return false;
}

bool pass_schedule(PassContext *ctx) {
    Module *m = ctx->mod;
    const char *pipeline = m->parallel.pipeline != NULL ? m->parallel.pipeline : "1f1b";
    Table *t = schedule_make(m->arena, pipeline, (int)m->parallel.pp, (int)m->train.microbatches);
    if (t == NULL) {
        DiagRef ref = diag_error(m->diag, E020, (Span){0},
                                 "pipeline '%s' cannot be scheduled by this version", pipeline);
        diag_hint(m->diag, ref, "the pipelines are 1f1b and gpipe");
        return false;
    }
    const ProveCosts unit = {.forward = 1, .backward = 2, .input = 1, .weight = 1};
    Proof proof = {0};
    const char *why = prove_table(m->arena, t, &unit, &proof);
    if (why == NULL) why = prove_module(ctx->scratch, m);
    if (why != NULL) panic_graph(NULL, (Span){0}, "schedule: %s", why);
    t->peak_in_flight = proof.peak_first;
    t->summary = summarize(m, t, &proof);
    ctx->table = t;
    return check_in_flight(m, t);
}
