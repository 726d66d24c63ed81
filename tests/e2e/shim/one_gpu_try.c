/* one_gpu_try.c - processes that share one GPU through whatever libnccl.so.2 is found: every
 * function of NCCL that the runtime calls, in a stream's order and in a graph that is replayed,
 * with other numbers each time. one_gpu_test.sh runs it behind the fake driver; on a machine with a
 * GPU it needs no more than the stand-in's folder in LD_LIBRARY_PATH.
 *
 *   one_gpu_try RANKS ELEMENTS   every case; prints one line each, by rank 0
 *   one_gpu_try apart            rank 0 adds what rank 1 scatters
 *   one_gpu_try gone HOW         rank 1 ends without a word while rank 0 waits for it; rank 0 then
 *                                leaves by `exit`, or by `abort` of its communicator
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cuda_driver.h"

enum { REPLAYS = 3, COMMS = 2, WRONG = 1, LOST = 5, PATIENCE_S = 120, RANKS_MOST = 32 };

typedef struct Nccl {
#define SYM(member, symbol, arguments) NcclResult(*member) arguments;
#include "runtime/nccl_syms.def"
    const char *(*error_text)(NcclResult result);
    const char *(*last_error)(NcclComm comm);
} Nccl;

/* Between the processes. */
typedef struct Page {
    NcclId id[COMMS];
    _Atomic int named, met;
} Page;

typedef struct Rank {
    Page *page;
    CuFunctions cuda;
    Nccl nccl;
    NcclComm comm[COMMS];
    CuStream stream, side;
    CuEvent fork, join;
    int rank, count;
    uint64_t n;                  /* elements of a vector */
    CuAddress in, out, more;     /* each count + 1 vectors */
    float *host, *want, *second; /* likewise */
} Rank;

/* --- what can go wrong --- */

static void cuda(const Rank *r, CuResult result, const char *what) {
    const char *text = "";
    if (result == CU_SUCCESS) return;
    r->cuda.error_name(result, &text);
    printf("rank %d: %s: %s\n", r->rank, what, text);
    fflush(stdout);
    _exit(LOST);
}

static void nccl(const Rank *r, NcclResult result, const char *what) {
    if (result == NCCL_SUCCESS) return;
    printf("rank %d: %s: %s: %s\n", r->rank, what, r->nccl.error_text(result),
           r->nccl.last_error(NULL));
    fflush(stdout);
    _exit(LOST);
}

#define CUDA(member, ...) cuda(r, r->cuda.member(__VA_ARGS__), #member)
#define NCCL(member, ...) nccl(r, r->nccl.member(__VA_ARGS__), #member)

static void find(void *library, const char *name, void *to) {
    void *address = library ? dlsym(library, name) : NULL;
    memcpy(to, &address, sizeof address);
    if (address) return;
    printf("%s is not there: %s\n", name, dlerror());
    fflush(stdout);
    _exit(LOST);
}

/* --- places --- */

static void *pointer(CuAddress at) { return (void *)(uintptr_t)at; }

static int next(const Rank *r) { return (r->rank + 1) % r->count; }
static int before(const Rank *r) { return (r->rank + r->count - 1) % r->count; }

static void meet(const Rank *r) {
    int goal = (atomic_fetch_add(&r->page->met, 1) / r->count + 1) * r->count;
    while (atomic_load(&r->page->met) < goal) usleep(200);
}

static void open_all(Rank *r) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *messages = dlopen("libnccl.so.2", RTLD_NOW);
#define SYM(member, symbol, arguments) find(driver, #symbol, &r->cuda.member);
#include "runtime/cuda_syms.def"
#define SYM(member, symbol, arguments) find(messages, #symbol, &r->nccl.member);
#include "runtime/nccl_syms.def"
    find(messages, "ncclGetErrorString", &r->nccl.error_text);
    find(messages, "ncclGetLastError", &r->nccl.last_error);
    CuContext context;
    CUDA(init, 0);
    CUDA(context_retain, &context, 0);
    CUDA(context_set, context);
    CUDA(stream_make, &r->stream, CU_STREAM_NON_BLOCKING);
    CUDA(stream_make, &r->side, CU_STREAM_NON_BLOCKING);
    CUDA(event_make, &r->fork, CU_EVENT_DISABLE_TIMING);
    CUDA(event_make, &r->join, CU_EVENT_DISABLE_TIMING);
}

static void open_rank(Rank *r) {
    size_t bytes = (size_t)(r->count + 1) * r->n * sizeof(float);
    CuAddress *const device[] = {&r->in, &r->out, &r->more};
    float **const host[] = {&r->host, &r->want, &r->second};
    open_all(r);
    for (int i = 0; i < COMMS && r->rank == 0; i++) NCCL(unique, &r->page->id[i]);
    if (r->rank == 0) atomic_store(&r->page->named, 1);
    while (!atomic_load(&r->page->named)) usleep(200);
    for (int i = 0; i < COMMS; i++) NCCL(open, &r->comm[i], r->count, r->page->id[i], r->rank);
    for (int i = 0; i < 3; i++) {
        CUDA(memory_take, device[i], bytes);
        *host[i] = calloc(1, bytes);
        if (!*host[i]) _exit(LOST);
    }
}

static void close_rank(Rank *r) {
    for (int i = 0; i < COMMS; i++) NCCL(close, r->comm[i]);
    CuAddress device[] = {r->in, r->out, r->more};
    for (int i = 0; i < 3; i++) CUDA(memory_free, device[i]);
    CUDA(event_free, r->fork);
    CUDA(event_free, r->join);
    CUDA(stream_free, r->side);
    CUDA(stream_free, r->stream);
    free(r->host);
    free(r->want);
    free(r->second);
}

/* Element i of a rank's vectors, in that round: of many sizes, so that the order of sums shows. */
static float value(int rank, uint64_t i, int round) {
    uint64_t z = (i * 31 + (uint64_t)rank * 7 + (uint64_t)round) * 0x9e3779b97f4a7c15u;
    z ^= z >> 29;
    return (float)((int64_t)(z % 20001) - 10000) * (float)(1u << (z >> 40) % 12);
}

/* The sum over ranks of their element i. */
static float total(const Rank *r, uint64_t i, int round) {
    float sum = value(0, i, round);
    for (int k = 1; k < r->count; k++) sum += value(k, i, round);
    return sum;
}

/* --- cases: what is enqueued, and what is then in `out` --- */

typedef struct Case {
    const char *name;
    void (*enqueue)(Rank *r);
    void (*expect)(const Rank *r, float *want, int round);
} Case;

static void put_in(Rank *r, CuAddress to) {
    CUDA(copy_later, to, r->in, (size_t)(r->count + 1) * r->n * sizeof(float), r->stream);
}

static void sum(Rank *r) {
    put_in(r, r->out);
    NCCL(group_begin);
    NCCL(sum, pointer(r->out), pointer(r->out), r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0],
         r->stream);
    float *second = (float *)pointer(r->out) + r->n;
    NCCL(sum, second, second, 1, NCCL_TYPE_F32, NCCL_SUM, r->comm[0], r->stream);
    NCCL(group_end);
}

static void expect_sum(const Rank *r, float *want, int round) {
    for (uint64_t i = 0; i <= r->n; i++) want[i] = total(r, i, round);
}

static void scatter(Rank *r) {
    float *all = pointer(r->out);
    put_in(r, r->out);
    NCCL(scatter, all, all + (uint64_t)r->rank * r->n, r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0],
         r->stream);
}

static void expect_scatter(const Rank *r, float *want, int round) {
    uint64_t first = (uint64_t)r->rank * r->n;
    for (uint64_t i = first; i < first + r->n; i++) want[i] = total(r, i, round);
}

static void spread(Rank *r) {
    float *all = pointer(r->out);
    put_in(r, r->out);
    NCCL(spread, all + (uint64_t)r->rank * r->n, all, r->n * sizeof *all, NCCL_TYPE_U8, r->comm[0],
         r->stream);
}

static void expect_spread(const Rank *r, float *want, int round) {
    for (uint64_t i = 0; i < (uint64_t)r->count * r->n; i++)
        want[i] = value((int)(i / r->n), i, round);
}

static void broadcast(Rank *r) {
    put_in(r, r->out);
    NCCL(broadcast, pointer(r->out), pointer(r->out), r->n * 4 - 1, NCCL_TYPE_U8, r->count - 1,
         r->comm[0], r->stream);
}

static void expect_broadcast(const Rank *r, float *want, int round) {
    float keep = want[r->n - 1];
    for (uint64_t i = 0; i < r->n; i++) want[i] = value(r->count - 1, i, round);
    memcpy((char *)&want[r->n - 1] + 3, (char *)&keep + 3, 1); /* the byte that does not go */
}

/* A vector to the next rank and one element back, all at once. */
static void ring(Rank *r) {
    float *to = pointer(r->out), *from = pointer(r->in);
    put_in(r, r->out);
    NCCL(group_begin);
    NCCL(send, from, r->n * sizeof *from, NCCL_TYPE_U8, next(r), r->comm[1], r->stream);
    NCCL(recv, to, r->n * sizeof *to, NCCL_TYPE_U8, before(r), r->comm[1], r->stream);
    NCCL(recv, to + r->n, sizeof *to, NCCL_TYPE_U8, next(r), r->comm[1], r->stream);
    NCCL(send, from + r->n, sizeof *from, NCCL_TYPE_U8, before(r), r->comm[1], r->stream);
    NCCL(group_end);
}

static void expect_ring(const Rank *r, float *want, int round) {
    for (uint64_t i = 0; i < r->n; i++) want[i] = value(before(r), i, round);
    want[r->n] = value(next(r), r->n, round);
}

/* Two messages to everyone and from everyone at once, then a sum, by one communicator. */
static void trade(Rank *r) {
    float *from = pointer(r->in), *to = pointer(r->out), *last = to + (uint64_t)r->count * r->n;
    uint64_t rest = (r->n - 1) * sizeof *to;
    put_in(r, r->out);
    NCCL(group_begin);
    for (int peer = 0; peer < r->count; peer++) {
        float *at = to + (uint64_t)peer * r->n;
        if (peer == r->rank) continue;
        NCCL(send, from, sizeof *from, NCCL_TYPE_U8, peer, r->comm[0], r->stream);
        NCCL(send, from + 1, rest, NCCL_TYPE_U8, peer, r->comm[0], r->stream);
        NCCL(recv, at, sizeof *at, NCCL_TYPE_U8, peer, r->comm[0], r->stream);
        NCCL(recv, at + 1, rest, NCCL_TYPE_U8, peer, r->comm[0], r->stream);
    }
    NCCL(group_end);
    NCCL(sum, last, last, r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0], r->stream);
}

static void expect_trade(const Rank *r, float *want, int round) {
    uint64_t last = (uint64_t)r->count * r->n;
    for (uint64_t i = 0; i < last; i++)
        if ((int)(i / r->n) != r->rank) want[i] = value((int)(i / r->n), i % r->n, round);
    for (uint64_t i = last; i < last + r->n; i++) want[i] = total(r, i, round);
}

/* Down the ranks and up again, one message at a time. */
static void line(Rank *r) {
    uint64_t bytes = r->n * sizeof(float);
    void *at = pointer(r->out);
    put_in(r, r->out);
    if (r->rank > 0) NCCL(recv, at, bytes, NCCL_TYPE_U8, r->rank - 1, r->comm[1], r->stream);
    if (r->rank + 1 < r->count) {
        NCCL(send, at, bytes, NCCL_TYPE_U8, r->rank + 1, r->comm[1], r->stream);
        NCCL(recv, at, bytes, NCCL_TYPE_U8, r->rank + 1, r->comm[1], r->stream);
    }
    if (r->rank > 0) NCCL(send, at, bytes, NCCL_TYPE_U8, r->rank - 1, r->comm[1], r->stream);
}

static void expect_line(const Rank *r, float *want, int round) {
    for (uint64_t i = 0; i < r->n && r->count > 0; i++) want[i] = value(0, i, round);
}

/* Messages beside sums, each in an order of its own; half of the ranks enqueue sums first. */
static void lanes(Rank *r) {
    float *all = pointer(r->more);
    uint64_t bytes = r->n * sizeof *all;
    put_in(r, r->more);
    CUDA(event_record, r->fork, r->stream);
    CUDA(stream_wait, r->side, r->fork, 0);
    for (int turn = 0; turn < 2; turn++) {
        if (turn == r->rank % 2) {
            line(r);
            ring(r);
            line(r);
            continue;
        }
        for (int i = 0; i < 3; i++)
            NCCL(spread, all + (uint64_t)r->rank * r->n, all, bytes, NCCL_TYPE_U8, r->comm[0],
                 r->side);
        NCCL(sum, all, all, r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0], r->side);
    }
    CUDA(event_record, r->join, r->side);
    CUDA(stream_wait, r->stream, r->join, 0);
    CUDA(copy_later, r->out + bytes, r->more, (size_t)bytes, r->stream);
}

static void expect_lanes(const Rank *r, float *want, int round) {
    expect_line(r, want, round);
    for (uint64_t i = 0; i < r->n; i++) {
        float all = value(0, i, round), add = all;
        for (int k = 1; k < r->count; k++) all += add;
        want[r->n + i] = all;
    }
}

/* --- a case: eager, then recorded and replayed --- */

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Elements of the first wrong, -1: none. */
static int64_t first_wrong(Rank *r, const Case *c, int round) {
    uint64_t n = (uint64_t)(r->count + 1) * r->n;
    for (uint64_t i = 0; i < n; i++) r->want[i] = value(r->rank, i, round);
    c->expect(r, r->want, round);
    CUDA(copy_out, r->second, r->out, (size_t)n * sizeof(float));
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&r->second[i], &r->want[i], sizeof(float)) != 0) return (int64_t)i;
    return -1;
}

static void load(Rank *r, int round) {
    uint64_t n = (uint64_t)(r->count + 1) * r->n;
    for (uint64_t i = 0; i < n; i++) r->host[i] = value(r->rank, i, round);
    CUDA(copy_in, r->in, r->host, (size_t)n * sizeof(float));
    CUDA(context_sync);
}

static void record(Rank *r, const Case *c, CuGraphExec *exec) {
    CuGraph graph;
    CUDA(capture_begin, r->stream, CU_CAPTURE_THREAD_LOCAL);
    c->enqueue(r);
    CUDA(capture_end, r->stream, &graph);
    CUDA(graph_make, exec, graph, 0);
    CUDA(graph_free, graph);
}

static bool run_case(Rank *r, const Case *c) {
    CuGraphExec exec = NULL;
    double ms[REPLAYS + 1];
    int64_t wrong = -1;
    for (int round = 0; round <= REPLAYS && wrong < 0; round++) {
        if (round == 1) record(r, c, &exec);
        load(r, round);
        meet(r);
        ms[round] = now_ms();
        if (round == 0)
            c->enqueue(r);
        else
            CUDA(graph_launch, exec, r->stream);
        CUDA(stream_sync, r->stream);
        ms[round] = now_ms() - ms[round];
        wrong = first_wrong(r, c, round);
        if (wrong >= 0)
            printf("rank %d: %s: round %d: element %lld is %g, not %g\n", r->rank, c->name, round,
                   (long long)wrong, (double)r->second[wrong], (double)r->want[wrong]);
    }
    if (exec) CUDA(graph_exec_free, exec);
    if (r->rank == 0 && wrong < 0)
        printf("ok: %d ranks, %llu elements, %s: %.2f ms, in a graph %.2f %.2f %.2f\n", r->count,
               (unsigned long long)r->n, c->name, ms[0], ms[1], ms[2], ms[3]);
    fflush(stdout);
    return wrong < 0;
}

static int run_rank(Rank *r) {
    static const Case cases[] = {
        {"sum", sum, expect_sum},          {"scatter", scatter, expect_scatter},
        {"spread", spread, expect_spread}, {"broadcast", broadcast, expect_broadcast},
        {"ring", ring, expect_ring},       {"trade", trade, expect_trade},
        {"line", line, expect_line},       {"lanes", lanes, expect_lanes},
    };
    bool good = true;
    open_rank(r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && good; i++) good = run_case(r, &cases[i]);
    if (good) close_rank(r);
    return good ? 0 : WRONG;
}

/* --- a rank that is gone --- */

static int lose(Rank *r, bool abort_first) {
    open_rank(r);
    if (r->rank == 1) _exit(0);
    NCCL(recv, pointer(r->out), 4, NCCL_TYPE_U8, 1, r->comm[0], r->stream);
    usleep(300000);
    double begin_ms = now_ms();
    for (int i = 0; i < COMMS && abort_first; i++) NCCL(close, r->comm[i]);
    printf("ok: left after %.0f ms\n", now_ms() - begin_ms);
    fflush(stdout);
    _exit(0);
}

/* One of the two, or both, hear of it. */
static int part(Rank *r) {
    float *at = NULL;
    open_rank(r);
    at = pointer(r->out);
    if (r->rank == 0)
        NCCL(sum, at, at, r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0], r->stream);
    else
        NCCL(scatter, at, at + r->n, r->n, NCCL_TYPE_F32, NCCL_SUM, r->comm[0], r->stream);
    usleep(300000);
    _exit(0);
}

static int run_as(Rank *r, const char *what) {
    if (!what) return run_rank(r);
    return strcmp(what, "apart") == 0 ? part(r) : lose(r, strcmp(what, "abort") == 0);
}

static int start(Page *page, int count, uint64_t n, const char *what) {
    pid_t pid[RANKS_MOST];
    int worst = 0, left = 0;
    double begin_ms = now_ms();
    for (int i = 0; i < count; i++) {
        Rank r = {.page = page, .rank = i, .count = count, .n = n};
        pid[i] = fork();
        if (pid[i] == 0) {
            alarm(PATIENCE_S);
            exit(run_as(&r, what));
        }
        left += pid[i] > 0;
    }
    for (int status = 0; left > 0; left--) {
        pid_t ended = wait(&status);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (worst == 0) worst = code; /* the first; others may wait for that one */
        for (int i = 0; i < count; i++)
            if (pid[i] == ended) pid[i] = 0;
        for (int i = 0; i < count && code != 0; i++)
            if (pid[i] > 0) kill(pid[i], SIGKILL);
    }
    if (what) printf("ended within %.0f ms\n", now_ms() - begin_ms);
    return worst;
}

int main(int argc, char **argv) {
    Page *page =
        mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return LOST;
    if (argc == 3 && strcmp(argv[1], "gone") == 0) return start(page, 2, 1, argv[2]);
    if (argc == 2 && strcmp(argv[1], "apart") == 0) return start(page, 2, 1, argv[1]);
    int count = argc == 3 ? atoi(argv[1]) : 0;
    long long n = argc == 3 ? atoll(argv[2]) : 0;
    if (count >= 1 && count <= RANKS_MOST && n >= 1) return start(page, count, (uint64_t)n, NULL);
    printf("usage: one_gpu_try RANKS ELEMENTS | apart | gone exit | gone abort\n");
    return 2;
}
