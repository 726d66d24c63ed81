/* schedule_rows.c - the generators: which compute tasks a rank does, in which order.
 *
 * A generator appends the tasks of one rank. Backwards of a chunk are ascending in every strategy,
 * so that gradients add up in one order whatever the strategy. Rules and exact rows: 1F1B
 * (PipeDream flush), interleaved (Megatron-LM), zero-bubble H1 and V (Qi et al. 2024).
 */
#include "passes/schedule.h"

#include <string.h>

typedef struct Row {
    Arena *arena;
    const Table *t;
    int rank;
    VEC(Task) tasks;
} Row;

/* The chunk that is number `local` on a rank. */
static int chunk_of(const Table *t, int rank, int local) {
    for (int c = 0; c < t->chunks; c++)
        if (t->home[c] == rank && t->local[c] == local) return c;
    return -1;
}

static void emit(Row *row, TaskKind kind, int microbatch, int local) {
    Task task = {.kind = kind,
                 .chunk = chunk_of(row->t, row->rank, local),
                 .local = local,
                 .microbatch = microbatch,
                 .first = microbatch == 0};
    vec_push(row->arena, &row->tasks, task);
}

static void emit_update(Row *row) {
    Task task = {.kind = TASK_update, .chunk = -1, .local = -1, .microbatch = -1};
    vec_push(row->arena, &row->tasks, task);
}

/* All forwards, then all backwards. */
static void fill_gpipe(Row *row) {
    for (int m = 0; m < row->t->microbatches; m++) emit(row, TASK_forward, m, 0);
    for (int m = 0; m < row->t->microbatches; m++) emit(row, TASK_backward, m, 0);
}

/* Warm-up, then one forward and one backward in turn, then the rest. The clamp of the warm-up lets
 * fewer microbatches than ranks run. */
static void fill_1f1b(Row *row) {
    int n = row->t->microbatches, before = row->t->ranks - 1 - row->rank;
    int warm = before < n ? before : n;
    for (int m = 0; m < warm; m++) emit(row, TASK_forward, m, 0);
    for (int k = 0; k < n - warm; k++) {
        emit(row, TASK_forward, warm + k, 0);
        emit(row, TASK_backward, k, 0);
    }
    for (int m = n - warm; m < n; m++) emit(row, TASK_backward, m, 0);
}

/* Microbatch and chunk of the k-th virtual microbatch: groups of `group` microbatches go through
 * one chunk after another. */
typedef struct Virtual {
    int microbatch, local;
} Virtual;

static Virtual *virtual_order(Arena *arena, int n, int vpp, int group) {
    Virtual *order = ARENA_ARRAY(arena, Virtual, (size_t)n * (size_t)vpp);
    int k = 0;
    for (int low = 0; low < n; low += group)
        for (int local = 0; local < vpp; local++)
            for (int m = low; m < low + group && m < n; m++)
                order[k++] = (Virtual){.microbatch = m, .local = local};
    return order;
}

static void fill_interleaved(Row *row) {
    int p = row->t->ranks, n = row->t->microbatches, v = row->t->vpp, total = n * v;
    const Virtual *order = virtual_order(row->arena, n, v, row->t->group);
    int warm = 2 * (p - 1 - row->rank) + (v - 1) * row->t->group;
    if (warm > total) warm = total;
    for (int k = 0; k < total + warm; k++) {
        if (k < total) emit(row, TASK_forward, order[k].microbatch, order[k].local);
        if (k >= warm)
            emit(row, TASK_backward, order[k - warm].microbatch, v - 1 - order[k - warm].local);
    }
}

/* 1F1B with each backward split. Rank r may delay weight gradients by r, which fills the slots in
 * which it would wait, and keeps as much as rank 0 has to anyway. */
static void fill_zb_h1(Row *row) {
    int n = row->t->microbatches, before = row->t->ranks - 1 - row->rank, weights = 0;
    int warm = before < n ? before : n;
    for (int m = 0; m < warm; m++) emit(row, TASK_forward, m, 0);
    for (int k = 0; k < n; k++) {
        if (warm + k < n) emit(row, TASK_forward, warm + k, 0);
        emit(row, TASK_input, k, 0);
        if (k >= row->rank) emit(row, TASK_weight, weights++, 0);
    }
    while (weights < n) emit(row, TASK_weight, weights++, 0);
}

/* ZB-V counts as if there were at least 2p - 1 microbatches and leaves out those that are not. */
typedef struct ZbV {
    Row *row;
    int done[2][TASK_update]; /* by local chunk and kind */
} ZbV;

static void zbv(ZbV *z, TaskKind kind, int local) {
    int microbatch = z->done[local][kind]++;
    if (microbatch < z->row->t->microbatches) emit(z->row, kind, microbatch, local);
}

static void zbv_pair(ZbV *z, int local) {
    zbv(z, TASK_input, local);
    zbv(z, TASK_weight, local);
}

static void zbv_steady(ZbV *z, int all) {
    const int *first = z->done[0], *second = z->done[1];
    while (second[TASK_forward] < first[TASK_forward] || first[TASK_forward] < all) {
        if (first[TASK_forward] < all) zbv(z, TASK_forward, 0);
        zbv_pair(z, 0);
        zbv(z, TASK_forward, 1);
        zbv_pair(z, 1);
    }
}

static void fill_zb_v(Row *row) {
    ZbV z = {.row = row};
    int p = row->t->ranks, r = row->rank, n = row->t->microbatches;
    int all = n > 2 * p - 1 ? n : 2 * p - 1;
    for (int i = 0; i < 2 * (p - r) - 1; i++) zbv(&z, TASK_forward, 0);
    for (int i = 0; i < r; i++) {
        zbv(&z, TASK_forward, 1);
        zbv(&z, TASK_forward, 0);
    }
    for (int i = 0; i < p - r; i++) {
        zbv(&z, TASK_forward, 1);
        zbv_pair(&z, 1);
    }
    zbv_steady(&z, all);
    for (int i = 0; i < r; i++) {
        zbv(&z, TASK_input, 0);
        zbv(&z, TASK_input, 1);
    }
    for (int i = 0; i < p - r; i++) zbv_pair(&z, 0);
    while (z.done[1][TASK_weight] < all) zbv(&z, TASK_weight, 1);
    while (z.done[0][TASK_weight] < all) zbv(&z, TASK_weight, 0);
}

/* Which pipelines there are, and how many chunks a rank they take. */
static const struct {
    const char *name;
    int vpp_min, vpp_max; /* max 0: any */
    void (*fill)(Row *row);
    bool v_placement;
    const char *shown;
} generators[] = {
    {"1f1b", 1, 1, fill_1f1b, false, "1f1b"},
    {"1f1b", 2, 0, fill_interleaved, false, "interleaved"},
    {"gpipe", 1, 1, fill_gpipe, false, "gpipe"},
    {"zb-h1", 1, 1, fill_zb_h1, false, "zb-h1"},
    {"zb-v", 2, 2, fill_zb_v, true, "zb-v"},
};

bool schedule_group_runs(int ranks, int microbatches, int group) {
    if (microbatches < ranks) return group == microbatches;
    return ranks <= group && group <= microbatches &&
           (microbatches % group == 0 || microbatches % group >= ranks);
}

int schedule_group(int ranks, int microbatches) {
    int group = ranks < microbatches ? ranks : microbatches;
    while (!schedule_group_runs(ranks, microbatches, group)) group++;
    return group;
}

/* Loop placement: stage s on rank s % p; V placement: back on the way up. */
static void place_chunks(Arena *arena, Table *t, bool v_placement) {
    t->home = ARENA_ARRAY(arena, int, t->chunks);
    t->local = ARENA_ARRAY(arena, int, t->chunks);
    for (int c = 0; c < t->chunks; c++) {
        bool back = v_placement && c >= t->ranks;
        t->home[c] = back ? 2 * t->ranks - 1 - c : c % t->ranks;
        t->local[c] = c / t->ranks;
    }
}

static void set_edges(Arena *arena, Table *t, const ScheduleShape *shape) {
    t->nedge = shape->edge != NULL ? shape->nedge : t->chunks - 1;
    t->edge = ARENA_ARRAY(arena, ChunkEdge, t->nedge + 1);
    for (int i = 0; i < t->nedge; i++)
        t->edge[i] = shape->edge != NULL ? shape->edge[i]
                                         : (ChunkEdge){.from = i, .to = i + 1, .gradient = true};
}

Table *schedule_rows(Arena *arena, const ScheduleShape *shape) {
    for (size_t k = 0; k < sizeof generators / sizeof *generators; k++) {
        if (strcmp(generators[k].name, shape->pipeline) != 0) continue;
        if (shape->vpp < generators[k].vpp_min) continue;
        if (generators[k].vpp_max != 0 && shape->vpp > generators[k].vpp_max) continue;
        Table *t = ARENA_NEW(arena, Table);
        *t = (Table){.ranks = shape->ranks,
                     .vpp = shape->vpp,
                     .chunks = shape->ranks * shape->vpp,
                     .microbatches = shape->microbatches,
                     .pipeline = generators[k].shown};
        if (generators[k].fill == fill_interleaved)
            t->group = shape->group != 0 ? shape->group
                                         : schedule_group(shape->ranks, shape->microbatches);
        place_chunks(arena, t, generators[k].v_placement);
        set_edges(arena, t, shape);
        t->rank = ARENA_ARRAY(arena, RankTasks, t->ranks);
        for (int r = 0; r < t->ranks; r++) {
            Row row = {.arena = arena, .t = t, .rank = r};
            generators[k].fill(&row);
            emit_update(&row);
            t->rank[r] = (RankTasks){.task = row.tasks.data, .ntask = (int)row.tasks.n};
        }
        return t;
    }
    return NULL;
}

Table *schedule_make(Arena *arena, const ScheduleShape *shape, const ScheduleCosts *costs) {
    Table *t = schedule_rows(arena, shape);
    return t != NULL && schedule_complete(arena, t, costs) ? t : NULL;
}

const char *schedule_row(Arena *arena, const RankTasks *rank) {
    static const char letter[] = {
        [TASK_forward] = 'F', [TASK_backward] = 'B', [TASK_input] = 'I', [TASK_weight] = 'W'};
    char *text = arena_alloc(arena, (size_t)rank->ntask * 32 + 1);
    size_t used = 0;
    for (int i = 0; i < rank->ntask; i++) {
        const Task *t = &rank->task[i];
        if (t->kind >= TASK_update) continue;
        used += (size_t)snprintf(text + used, 32, "%s%c%d_%d", used > 0 ? " " : "", letter[t->kind],
                                 t->microbatch, t->local);
    }
    return text;
}
