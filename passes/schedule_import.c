/* schedule_import.c - a table from the CSV format of PyTorch's pipelining.
 *
 * A row a rank; cells are <stage><F|B|I|W><microbatch>; empty cells are idle slots. Strict: what is
 * not such a cell is refused with its place. Which stages a rank has is what its row says.
 */
#include "passes/schedule.h"

#include <ctype.h>
#include <string.h>

typedef struct Import {
    Arena *arena;
    const ScheduleShape *shape;
    Table *t;
    const char *at, *end; /* what is left of the text */
    int row, column;      /* of the cell, from 1 */
    const char *why;
} Import;

static bool refuse(Import *in, const char *what) {
    if (in->why == NULL)
        in->why = arena_printf(in->arena, "row %d, cell %d: %s", in->row, in->column, what);
    return false;
}

/* A number below `limit`, without sign or blanks. */
static bool read_number(Import *in, const char **at, const char *end, int limit, int *out) {
    int value = 0;
    const char *first = *at;
    for (; *at < end && isdigit((unsigned char)**at); (*at)++) {
        value = value * 10 + (**at - '0');
        if (value >= limit)
            return refuse(in, arena_printf(in->arena, "'%.*s' is not below %d",
                                           (int)(*at - first + 1), first, limit));
    }
    *out = value;
    return *at > first || refuse(in, "a cell is <stage><F|B|I|W><microbatch>, as in 0F3");
}

static bool read_kind(char letter, TaskKind *kind) {
    static const char letters[] = "FBIW";
    const char *found = letter != '\0' ? strchr(letters, letter) : NULL;
    if (found != NULL) *kind = (TaskKind)(found - letters);
    return found != NULL;
}

typedef VEC(Task) Tasks;

static bool read_cell(Import *in, const char *first, const char *last, Tasks *tasks) {
    while (first < last && (*first == ' ' || *first == '\r')) first++;
    while (last > first && (last[-1] == ' ' || last[-1] == '\r')) last--;
    if (first == last) return true;
    Task task = {0};
    const char *at = first;
    if (!read_number(in, &at, last, in->t->chunks, &task.chunk)) return false;
    if (at == last || !read_kind(*at++, &task.kind))
        return refuse(in, "the stage is followed by F, B, I or W");
    if (!read_number(in, &at, last, in->t->microbatches, &task.microbatch)) return false;
    if (at != last)
        return refuse(in,
                      arena_printf(in->arena, "'%.*s' after the microbatch", (int)(last - at), at));
    int *home = &in->t->home[task.chunk];
    if (*home >= 0 && *home != in->row - 1)
        return refuse(in,
                      arena_printf(in->arena, "stage %d is also on rank %d", task.chunk, *home));
    *home = in->row - 1;
    vec_push(in->arena, tasks, task);
    return true;
}

static bool read_row(Import *in) {
    const char *stop = memchr(in->at, '\n', (size_t)(in->end - in->at));
    const char *line_end = stop != NULL ? stop : in->end;
    Tasks tasks = {0};
    for (in->column = 1; in->at <= line_end; in->column++) {
        const char *comma = memchr(in->at, ',', (size_t)(line_end - in->at));
        const char *last = comma != NULL ? comma : line_end;
        if (!read_cell(in, in->at, last, &tasks)) return false;
        in->at = last + 1;
    }
    Task update = {.kind = TASK_update, .chunk = -1, .local = -1, .microbatch = -1};
    vec_push(in->arena, &tasks, update);
    in->t->rank[in->row - 1] = (RankTasks){.task = tasks.data, .ntask = (int)tasks.n};
    return true;
}

/* The first forward of a chunk writes sums, and so do its first gradients. */
static void mark_first(Import *in) {
    enum { FORWARD = 1, INPUT = 2, WEIGHT = 4 };
    static const int makes[] = {[TASK_forward] = FORWARD,
                                [TASK_backward] = INPUT | WEIGHT,
                                [TASK_input] = INPUT,
                                [TASK_weight] = WEIGHT};
    int *made = ARENA_ARRAY(in->arena, int, in->t->chunks);
    for (int r = 0; r < in->t->ranks; r++)
        for (int i = 0; i < in->t->rank[r].ntask - 1; i++) {
            Task *task = &in->t->rank[r].task[i];
            task->first = (made[task->chunk] & makes[task->kind]) == 0;
            made[task->chunk] |= makes[task->kind];
        }
}

/* Stages of a rank are its chunks 0, 1, .. in ascending order. */
static bool number_chunks(Import *in) {
    Table *t = in->t;
    int *count = ARENA_ARRAY(in->arena, int, t->ranks);
    for (int c = 0; c < t->chunks; c++) {
        if (t->home[c] < 0) {
            in->why = arena_printf(in->arena, "no row has stage %d", c);
            return false;
        }
        t->local[c] = count[t->home[c]]++;
    }
    for (int r = 0; r < t->ranks; r++) {
        if (count[r] != t->vpp) {
            in->why =
                arena_printf(in->arena, "row %d has %d stages, vpp is %d", r + 1, count[r], t->vpp);
            return false;
        }
        for (int i = 0; i < t->rank[r].ntask; i++) {
            Task *task = &t->rank[r].task[i];
            if (task->kind != TASK_update) task->local = t->local[task->chunk];
        }
    }
    return true;
}

static Table *empty_table(Arena *arena, const ScheduleShape *shape) {
    Table *t = ARENA_NEW(arena, Table);
    int chunks = shape->ranks * shape->vpp;
    *t = (Table){.ranks = shape->ranks,
                 .vpp = shape->vpp,
                 .chunks = chunks,
                 .microbatches = shape->microbatches,
                 .pipeline = "imported",
                 .home = ARENA_ARRAY(arena, int, chunks),
                 .local = ARENA_ARRAY(arena, int, chunks),
                 .rank = ARENA_ARRAY(arena, RankTasks, shape->ranks),
                 .nedge = shape->edge != NULL ? shape->nedge : chunks - 1};
    t->edge = ARENA_ARRAY(arena, ChunkEdge, t->nedge + 1);
    for (int i = 0; i < t->nedge; i++)
        t->edge[i] = shape->edge != NULL ? shape->edge[i]
                                         : (ChunkEdge){.from = i, .to = i + 1, .gradient = true};
    for (int c = 0; c < chunks; c++) t->home[c] = -1;
    return t;
}

Table *schedule_import(Arena *arena, const char *text, size_t bytes, const ScheduleShape *shape,
                       const char **why) {
    Import in = {.arena = arena,
                 .shape = shape,
                 .t = empty_table(arena, shape),
                 .at = text,
                 .end = text + bytes};
    while (in.why == NULL && in.at < in.end) {
        if (in.row == shape->ranks) {
            in.why = arena_printf(arena, "there are more than pp = %d rows", shape->ranks);
            break;
        }
        in.row++;
        if (!read_row(&in)) break;
    }
    if (in.why == NULL && in.row < shape->ranks)
        in.why = arena_printf(arena, "there are %d rows, pp is %d", in.row, shape->ranks);
    if (in.why == NULL && number_chunks(&in)) mark_first(&in);
    *why = in.why;
    return in.why == NULL ? in.t : NULL;
}
