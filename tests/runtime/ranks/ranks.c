/* ranks.c - a program of several ranks without a model: it starts, talks, fails and ends as the
 * first argument says. ranks_test.sh runs it.
 *
 *   messages SEED     messages of many sizes in random orders, and every collective
 *   sums              over replicas, of many sizes at once; prints a hash of the results
 *   large             a message and collectives of more than 2^31 bytes
 *   loop MS           steps, until a signal or for MS milliseconds
 *   hash WHAT RANK    RANK has another hash of WHAT
 *   fail RANK CODE    RANK gives up at step 3; RANK -1: all do
 *   panic RANK        RANK finds a broken invariant
 *   vanish RANK       RANK ends without a word
 *   misuse WHAT       does to MPI what check_mpi.c has to see: sizes, changed, shared, small, left
 *   data              waits for a signal where nobody can agree on it
 *   say WORD...       rank 0 prints its arguments and how many threads it has
 *   write BYTES       rank 0 prints that many bytes
 *
 * RANKS=N          ranks of the program, 4
 * RANKS_DP=N       replicas among them, 1
 * RANKS_PIDS=DIR   each rank leaves DIR/N with its process id when it has its place
 * RANKS_LATE=N     rank N comes too late
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/engine.h"
#include "runtime/group.h"
#include "runtime/launch.h"
#include "runtime/signals.h"
#include "runtime/sums.h"
#include "tests/runtime/draw.h"

enum { RANKS_MAX = 16, TASKS = 3, LATE_S = 20 };

/* Open MPI frees little of what it takes at its start: what it took is known by where its code is,
 * if that stays loaded; asprintf hides who called it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libmpi.so\nleak:libopen-\nleak:libpmix\nleak:libevent\nleak:libhwloc\n"
           "leak:/mca_\nleak:vasprintf\nleak:libdl\nleak:ld-linux\n";
}
int dlclose(void *handle);
int dlclose(void *handle) {
    (void)handle;
    return 0;
}

static void rest_ms(int ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* --- messages --- */

enum { MESSAGES = 40, BYTES_MAX = 3 << 20 };

typedef struct Message {
    int from, to, tag;
    size_t bytes;
    unsigned char *at;
    InfRequest request;
} Message;

static void fill(Message *m) {
    for (size_t i = 0; i < m->bytes; i++)
        m->at[i] = (unsigned char)(i * 131 + (size_t)m->tag * 7 + (size_t)m->from);
}

static InfCode check(InfError *e, const Message *m) {
    for (size_t i = 0; i < m->bytes; i++)
        if (m->at[i] != (unsigned char)(i * 131 + (size_t)m->tag * 7 + (size_t)m->from))
            return inf_fail(e, INF_INTERNAL, "message %d -> %d, tag %d: byte %zu of %zu is wrong",
                            m->from, m->to, m->tag, i, m->bytes);
    return INF_OK;
}

static size_t draw_size(void) {
    static const size_t sizes[] = {0, 1, 3, 4, 4095, 4096, 4097, 65536, 1 << 20, BYTES_MAX};
    size_t n = sizeof sizes / sizeof *sizes, which = (size_t)draw(2 * n);
    return which < n ? sizes[which] : (size_t)draw(100000);
}

/* All ranks draw the same messages; each posts its halves in an order of its own. */
static InfCode exchange(InfError *e, const InfGroup *g) {
    static Message m[MESSAGES];
    int order[MESSAGES];
    InfCode code = INF_OK;
    for (int i = 0; i < MESSAGES; i++) {
        m[i] = (Message){.from = (int)draw((uint64_t)g->count), .tag = i, .bytes = draw_size()};
        m[i].to = (m[i].from + 1 + (int)draw((uint64_t)g->count - 1)) % g->count;
        if (i % 9 == 0) m[i].tag = INF_TAG_MAX - i;
        order[i] = i;
    }
    uint64_t shared = draw_state;
    draw_state ^= (uint64_t)g->rank << 32;
    for (int i = MESSAGES - 1; i > 0; i--) {
        int k = (int)draw((uint64_t)i + 1), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
    for (int i = 0; i < MESSAGES && code == INF_OK; i++) {
        Message *one = &m[order[i]];
        if (one->from != g->rank && one->to != g->rank) continue;
        one->at = malloc(one->bytes + 1);
        if (one->from == g->rank) {
            fill(one);
            code = g->transport->send(e, one->to, one->tag, one->at, one->bytes, &one->request);
        } else {
            code = g->transport->recv(e, one->from, one->tag, one->at, one->bytes, &one->request);
        }
        if (draw(3) == 0) g->transport->poll();
    }
    for (int i = 0; i < MESSAGES && code == INF_OK; i++)
        code = g->transport->wait(e, &m[i].request);
    for (int i = 0; i < MESSAGES && code == INF_OK; i++)
        if (m[i].to == g->rank) code = check(e, &m[i]);
    for (int i = 0; i < MESSAGES; i++) free(m[i].at);
    draw_state = shared;
    return code;
}

/* Two messages with one tag come in the order in which they were sent. */
static InfCode in_order(InfError *e, const InfGroup *g) {
    int value[8];
    InfRequest r[8] = {{.busy = false}};
    for (int i = 0; i < 8 && g->rank < 2; i++) {
        value[i] = g->rank == 0 ? i : -1;
        if (g->rank == 0)
            TRY(g->transport->send(e, 1, 5, &value[i], sizeof value[i], &r[i]));
        else
            TRY(g->transport->recv(e, 0, 5, &value[i], sizeof value[i], &r[i]));
    }
    for (int i = 7; i >= 0; i--) TRY(g->transport->wait(e, &r[i]));
    for (int i = 0; i < 8 && g->rank == 1; i++)
        if (value[i] != i) return inf_fail(e, INF_INTERNAL, "message %d came as %d", i, value[i]);
    return INF_OK;
}

static InfCode collectives(InfError *e, const InfGroup *g) {
    enum { N = 10001 };
    static float sum[N];
    int all[RANKS_MAX], root = (int)draw((uint64_t)g->count);
    for (int i = 0; i < N; i++) sum[i] = i % g->count == g->rank ? (float)i * 1.1f : 0;
    TRY(g->transport->sum(e, sum, N));
    for (int i = 0; i < N; i++)
        if (sum[i] != (float)i * 1.1f) return inf_fail(e, INF_INTERNAL, "sum of %d is wrong", i);
    for (int i = 0; i < N; i++) sum[i] = g->rank == root ? (float)i : -1;
    TRY(g->transport->broadcast(e, root, sum, sizeof sum));
    for (int i = 0; i < N; i++)
        if (sum[i] != (float)i) return inf_fail(e, INF_INTERNAL, "broadcast of %d is wrong", i);
    TRY(g->transport->gather(e, &g->rank, sizeof g->rank, all));
    for (int r = 0; r < g->count; r++)
        if (all[r] != r) return inf_fail(e, INF_INTERNAL, "rank %d gathered as %d", r, all[r]);
    return INF_OK;
}

static InfCode run_messages(InfError *e, InfGroup *g, char **arg) {
    draw_state = arg[0] ? strtoull(arg[0], NULL, 10) : 1;
    for (int round = 0; round < 6; round++) {
        TRY(exchange(e, g));
        TRY(in_order(e, g));
        TRY(collectives(e, g));
    }
    if (g->rank == 0) printf("messages are right\n");
    return INF_OK;
}

/* Of element i in a sum on one replica: numbers whose order of addition matters. */
static float summand(int replica, int sum, uint64_t i) {
    uint64_t key[3] = {(uint64_t)replica, (uint64_t)sum, i}, hash = XXH3_64bits(key, sizeof key);
    return (float)((double)(int64_t)hash / 9.2e18) * (float)(1 << (hash & 7));
}

/* Sums of all sizes are on their way together and are waited for backwards; the results are right,
 * and the same bits on all replicas. */
static InfCode run_sums(InfError *e, InfGroup *g, char **arg) {
    static const uint64_t counts[] = {1, 2, 3, 5, 127, 4096, 16383, 16384, 65537, 1 << 20, 3};
    enum { N = sizeof counts / sizeof *counts };
    enum { BYTES = 300000 };
    int dp = g->plan->dp;
    float *at[N], *memory = malloc(BYTES);
    uint64_t hash = 0, all[RANKS_MAX];
    InfRequest r[N] = {{.busy = false}};
    InfSums *sums;
    InfSumsOf of = {.transport = g->transport,
                    .replica = g->replica,
                    .replicas = dp,
                    .first = g->rank - g->replica,
                    .most = N};
    (void)arg;
    if (!memory) return inf_fail(e, INF_IO, "out of memory");
    TRY(inf_sums_open(e, &of, &sums));
    inf_sums_place(sums, memory, BYTES);
    for (int k = 0; k < N; k++) {
        at[k] = malloc(counts[k] * sizeof *at[k]);
        if (!at[k]) return inf_fail(e, INF_IO, "out of memory");
        for (uint64_t i = 0; i < counts[k]; i++) at[k][i] = summand(g->replica, k, i);
        TRY(inf_sums_begin(e, sums, &(InfSummand){at[k], counts[k], false}, &r[k]));
        g->transport->poll();
    }
    for (int k = N - 1; k >= 0; k--) TRY(inf_sums_wait(e, sums, &r[k]));
    inf_sums_close(sums);
    free(memory);
    for (int k = 0; k < N; k++) {
        for (uint64_t i = 0; i < counts[k]; i++) {
            double want = 0;
            for (int replica = 0; replica < dp; replica++) want += (double)summand(replica, k, i);
            double error = want - (double)at[k][i];
            if (error > 1e-3 || error < -1e-3)
                return inf_fail(e, INF_INTERNAL, "sum %d of %llu: element %llu is wrong", k,
                                (unsigned long long)counts[k], (unsigned long long)i);
        }
        hash = XXH3_64bits_withSeed(at[k], counts[k] * sizeof *at[k], hash);
        free(at[k]);
    }
    TRY(g->transport->gather(e, &hash, sizeof hash, all));
    for (int i = 0; i < g->count; i++)
        if (all[i] != all[0]) return inf_fail(e, INF_INTERNAL, "rank %d has other sums", i);
    if (g->rank == 0) printf("sums are right: %016llx\n", (unsigned long long)hash);
    return INF_OK;
}

static InfCode run_large(InfError *e, InfGroup *g, char **arg) {
    const uint64_t bytes = (1ull << 31) + 12345;
    InfRequest r = {.busy = false};
    unsigned char *at = g->rank < 2 ? malloc(bytes) : NULL;
    (void)arg;
    if (g->rank < 2 && !at) return inf_fail(e, INF_IO, "out of memory");
    for (uint64_t i = 0; i < bytes && g->rank == 0; i += 4093) at[i] = (unsigned char)(i / 4093);
    if (g->rank == 0) TRY(g->transport->send(e, 1, 1, at, bytes, &r));
    if (g->rank == 1) TRY(g->transport->recv(e, 0, 1, at, bytes, &r));
    TRY(g->transport->wait(e, &r));
    for (uint64_t i = 0; i < bytes && g->rank == 1; i += 4093)
        if (at[i] != (unsigned char)(i / 4093)) return inf_fail(e, INF_INTERNAL, "wrong bytes");
    free(at);
    if (g->rank == 0) printf("large messages are right\n");
    return INF_OK;
}

/* --- steps --- */

/* What a training loop does: tasks with messages around a ring, then all agree on going on. */
static InfCode step(InfError *e, InfGroup *g, int64_t at, int *stop) {
    int next = (g->rank + 1) % g->count, before = (g->rank + g->count - 1) % g->count;
    int mine = g->rank, got = -1;
    InfRequest out = {.busy = false}, in = {.busy = false};
    for (int task = 0; task < TASKS; task++) {
        inf_group_at(g, at, task);
        TRY(g->transport->recv(e, before, task, &got, sizeof got, &in));
        TRY(g->transport->send(e, next, task, &mine, sizeof mine, &out));
        rest_ms(1);
        TRY(g->transport->wait(e, &in));
        TRY(g->transport->wait(e, &out));
        if (got != before) return inf_fail(e, INF_INTERNAL, "step %d", (int)at);
    }
    return inf_group_signal(e, g, stop);
}

static InfCode run_loop(InfError *e, InfGroup *g, char **arg) {
    double end_ms = inf_clock_ms() + (arg[0] ? atof(arg[0]) : 60000);
    int stop = 0;
    if (g->rank == 0) fprintf(stderr, "started\n");
    for (int64_t at = 0; stop == 0; at++) {
        TRY(step(e, g, at, &stop));
        float over = inf_clock_ms() > end_ms;
        TRY(g->transport->sum(e, &over, 1));
        if (over > 0) return INF_OK;
    }
    return inf_fail(e, INF_STOPPED, "stopped by %s, all together", inf_signal_name(stop));
}

static InfCode run_data(InfError *e, InfGroup *g, char **arg) {
    (void)arg;
    if (g->rank == 0) fprintf(stderr, "started\n");
    while (g->rank != 1 || !inf_signals_pending()) rest_ms(5);
    return inf_fail(e, INF_STOPPED, "stopped by a signal in the data");
}

/* --- faults --- */

static bool is_named(const InfGroup *g, const char *rank) {
    return rank && (atoi(rank) == g->rank || atoi(rank) < 0);
}

static InfCode run_hash(InfError *e, InfGroup *g, char **arg) {
    TRY(inf_group_same(e, g, "plan", 17));
    return inf_group_same(e, g, arg[0], is_named(g, arg[1]) ? 5 : 4);
}

static InfCode run_fail(InfError *e, InfGroup *g, char **arg) {
    int stop = 0;
    for (int64_t at = 0;; at++) {
        if (at == 3 && is_named(g, arg[0]))
            return inf_fail(e, (InfCode)atoi(arg[1]), "rank %d gives up", g->rank);
        TRY(step(e, g, at, &stop));
    }
}

static InfCode run_panic(InfError *e, InfGroup *g, char **arg) {
    int stop = 0;
    INF_ASSERT(!is_named(g, arg[0]));
    for (int64_t at = 0;; at++) TRY(step(e, g, at, &stop));
}

static InfCode run_vanish(InfError *e, InfGroup *g, char **arg) {
    int stop = 0;
    for (int64_t at = 0;; at++) {
        TRY(step(e, g, at, &stop));
        if (at == 5 && is_named(g, arg[0])) _exit(0);
    }
}

static InfCode run_say(InfError *e, InfGroup *g, char **arg) {
    (void)e;
    if (g->rank != 0) return INF_OK;
    printf("%d of %d, %d here, %d threads:", g->rank, g->count, g->local_count, inf_threads_set(0));
    for (; *arg; arg++) printf(" [%s]", *arg);
    printf("\n");
    return INF_OK;
}

static InfCode run_write(InfError *e, InfGroup *g, char **arg) {
    (void)e;
    for (long i = 0; i < atol(arg[0]) && g->rank == 0; i++) putchar('a' + (int)(i % 26));
    return INF_OK;
}

static InfCode run_misuse(InfError *e, InfGroup *g, char **arg) {
    enum { BYTES = 100000 };
    const InfTransport *t = g->transport;
    const char *what = arg[0];
    InfRequest one = {.busy = false}, other = {.busy = false};
    int next = (g->rank + 1) % g->count, before = (g->rank + g->count - 1) % g->count;
    char *at = calloc(2, BYTES);
    if (!at) return inf_fail(e, INF_IO, "out of memory");
    if (strcmp(what, "sizes") == 0)
        return t->broadcast(e, 0, at, is_named(g, "1") ? BYTES : BYTES - 1);
    if (strcmp(what, "small") == 0) return t->recv(e, before, 1, at + BYTES, BYTES + 1, &one);
    TRY(t->recv(e, before, 1, at, BYTES, &one));
    if (strcmp(what, "left") == 0) return INF_OK;
    if (strcmp(what, "shared") == 0) return t->recv(e, before, 2, at + BYTES - 1, 2, &other);
    TRY(t->send(e, next, 1, at + BYTES, BYTES, &other));
    at[2 * BYTES - 1] = 1;
    TRY(t->wait(e, &one));
    return t->wait(e, &other);
}

/* --- the program --- */

typedef struct Mode {
    const char *name;
    int narg;
    InfCode (*run)(InfError *, InfGroup *, char **);
} Mode;

static const Mode modes[] = {
    {"messages", 0, run_messages}, {"large", 0, run_large},   {"loop", 0, run_loop},
    {"hash", 2, run_hash},         {"fail", 2, run_fail},     {"panic", 1, run_panic},
    {"vanish", 1, run_vanish},     {"data", 0, run_data},     {"say", 0, run_say},
    {"write", 1, run_write},       {"misuse", 1, run_misuse}, {"sums", 0, run_sums},
};

/* Three tasks a rank: what the messages about a death name. */
static void make_plan(Plan *plan, int ranks) {
    static PlanTask task[RANKS_MAX * TASKS];
    static PlanRank rank[RANKS_MAX];
    static PlanProgram program = {.name = "train", .rank = rank};
    static const uint8_t kinds[TASKS] = {PTASK_forward, PTASK_backward, PTASK_update};
    for (int r = 0; r < ranks; r++) {
        rank[r] = (PlanRank){(uint32_t)(r * TASKS), TASKS};
        for (int k = 0; k < TASKS; k++)
            task[r * TASKS + k] = (PlanTask){.kind = kinds[k], .chunk = k < 2 ? r : -1};
    }
    int dp = getenv("RANKS_DP") ? atoi(getenv("RANKS_DP")) : 1;
    *plan = (Plan){.version = PLAN_VERSION,
                   .model = "toy",
                   .file = "toy.it",
                   .dp = dp,
                   .tp = 1,
                   .pp = ranks / dp,
                   .ranks = ranks / dp,
                   .task = task,
                   .program = &program,
                   .nprogram = 1,
                   .transport = ranks > 1 ? &inf_transport_mpi : NULL};
}

static void leave_pid(int rank) {
    const char *dir = getenv("RANKS_PIDS");
    char path[4096];
    if (!dir) return;
    snprintf(path, sizeof path, "%s/%d", dir, rank);
    FILE *out = fopen(path, "w");
    if (!out) exit(99);
    fprintf(out, "%d\n", (int)getpid());
    fclose(out);
}

int main(int argc, char **argv) {
    Plan plan;
    InfGroup g;
    InfError e = {.rank = 0};
    bool launched = false;
    int ranks = getenv("RANKS") ? atoi(getenv("RANKS")) : 4, code = 0;
    const char *late = getenv("RANKS_LATE");
    const Mode *mode = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && argc > 1; i++)
        if (strcmp(argv[1], modes[i].name) == 0 && argc >= 2 + modes[i].narg) mode = &modes[i];
    if (!mode || ranks < 1 || ranks > RANKS_MAX) return INF_USAGE;
    make_plan(&plan, ranks);
    if (late && inf_place_find().started && atoi(late) == inf_place_find().rank)
        rest_ms(LATE_S * 1000);
    InfCode rc = inf_group_start(&e, &plan, ranks, argc, argv, &g, &launched, &code);
    if (launched) return code;
    leave_pid(g.rank);
    if (rc == INF_OK) rc = mode->run(&e, &g, argv + 2);
    if (fflush(stdout) != 0 && rc == INF_OK) rc = inf_fail(&e, INF_IO, "stdout");
    if (rc == INF_OK)
        inf_group_end(&g);
    else
        inf_group_fail(&g, rc, e.text);
    inf_error_free(&e);
    return rc;
}
