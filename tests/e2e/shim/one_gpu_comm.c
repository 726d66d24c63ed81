/* one_gpu_comm.c - see one_gpu_comm.h.
 *
 * ONE_GPU_BOX=BYTES   a box, at most; a multiple of 128
 */
#include "tests/e2e/shim/one_gpu_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, NOTES = 64, MAGIC = 0x31677075 };
enum { BOX_BYTES = 4 << 20, BOXES_BYTES = 64 << 20 };

/* What a communicator's name holds: where its memory is, for as long as whoever named it is. */
typedef struct Name {
    uint32_t magic;
    int32_t pid, fd;
} Name;

/* Of a pair of ranks, in one direction. */
typedef struct Pair {
    _Alignas(64) _Atomic uint32_t full; /* the flag, first */
    _Alignas(64) _Atomic uint64_t put[NOTES], taken[NOTES];
} Pair;

/* At the beginning of what is shared; boxes are behind it, from a page on. */
typedef struct Shared {
    _Alignas(64) _Atomic int32_t here; /* ranks that have come */
    Pair pair[];
} Shared;

static char last_error[256];

NcclResult comm_fail(NcclResult result, const char *format, ...) {
    va_list args;
    int length = snprintf(last_error, sizeof last_error, "one GPU's stand-in: ");
    va_start(args, format);
    vsnprintf(last_error + length, sizeof last_error - (size_t)length, format, args);
    va_end(args);
    return result;
}

NcclResult comm_check(const Comm *c, CuResult result, const char *what) {
    const char *text = NULL;
    if (result == CU_SUCCESS) return NCCL_SUCCESS;
    c->gpu.call.error_name(result, &text);
    return comm_fail(DEVICE_FAILED, "%s: %s", what, text ? text : "unknown");
}

const char *comm_last_error(void) { return last_error; }

/* --- what is shared --- */

static uint64_t box_bytes(int count) {
    const char *text = getenv("ONE_GPU_BOX");
    uint64_t most = text ? strtoull(text, NULL, 10) / 128 * 128 : BOX_BYTES;
    uint64_t fair = BOXES_BYTES / PAGE / (uint64_t)(count * count) * PAGE;
    if (most == 0) most = 128;
    return most < fair ? most : fair;
}

static uint64_t pairs_bytes(int count) {
    uint64_t bytes = sizeof(Shared) + (uint64_t)(count * count) * sizeof(Pair);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static Pair *pair_of(const Comm *c, int from, int to) {
    Shared *shared = c->shared;
    return &shared->pair[from * c->count + to];
}

CuAddress comm_flag(const Comm *c, int from, int to) {
    const char *begin = c->shared, *flag = (const char *)pair_of(c, from, to);
    return c->at + (CuAddress)(flag - begin);
}

CuAddress comm_box(const Comm *c, int from, int to) {
    return c->at + pairs_bytes(c->count) + (CuAddress)(from * c->count + to) * c->box_bytes;
}

static NcclResult map(Comm *c, const Name *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return comm_fail(SYSTEM_FAILED, "the rank that named a communicator is gone");
    uint64_t boxes = (uint64_t)(c->count * c->count) * c->box_bytes;
    c->bytes = (size_t)(pairs_bytes(c->count) + boxes);
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)c->bytes) == 0)
        at = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return comm_fail(SYSTEM_FAILED, "mmap: %s", strerror(errno));
    c->shared = at;
    return NCCL_SUCCESS;
}

/* Until all have come; as with the real one, who never comes is waited for. */
static void meet(const Comm *c) {
    const struct timespec pause = {.tv_nsec = 200000};
    Shared *shared = c->shared;
    atomic_fetch_add(&shared->here, 1);
    while (atomic_load(&shared->here) < c->count) nanosleep(&pause, NULL);
}

static NcclResult open_device(Comm *c) {
    const CuFunctions *call = &c->gpu.call;
    const char *wrong = gpu_open(&c->gpu);
    if (wrong) return comm_fail(SYSTEM_FAILED, "%s", wrong);
    if (c->count == 1) return NCCL_SUCCESS;
    GO(comm_check(c, gpu_share(&c->gpu, c->shared, c->bytes, &c->at), "cuMemHostRegister"));
    GO(comm_check(c, call->stream_make(&c->side, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    GO(comm_check(c, call->event_make(&c->fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    return comm_check(c, call->event_make(&c->join, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

/* What still waits for others keeps the driver from giving anything back. */
typedef struct Rescue {
    const Comm *comm;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
} Rescue;

/* After a second this rank's own waits come to an end, whatever they waited for. */
static void *rescue(void *of) {
    Rescue *r = of;
    const Comm *c = r->comm;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&r->lock);
    while (!r->done) {
        if (pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0) continue;
        for (int k = 0; k < c->count; k++) {
            atomic_store(&pair_of(c, k, c->rank)->full, 1);
            atomic_store(&pair_of(c, c->rank, k)->full, 0);
        }
        until.tv_nsec += 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void close_device(Comm *c) {
    const CuFunctions *call = &c->gpu.call;
    Rescue r = {.comm = c, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    bool watched = c->at && pthread_create(&thread, NULL, rescue, &r) == 0;
    if (c->join) call->event_free(c->join);
    if (c->fork) call->event_free(c->fork);
    if (c->side) call->stream_free(c->side);
    if (c->at) gpu_unshare(&c->gpu, c->shared);
    gpu_close(&c->gpu);
    if (!watched) return;
    pthread_mutex_lock(&r.lock);
    r.done = true;
    pthread_cond_signal(&r.changed);
    pthread_mutex_unlock(&r.lock);
    pthread_join(thread, NULL);
}

void comm_close(Comm *c) {
    if (!c) return;
    close_device(c);
    if (c->shared) munmap(c->shared, c->bytes);
    free(c);
}

NcclResult comm_name(NcclId *id) {
    Name name = {.magic = MAGIC, .pid = getpid(), .fd = memfd_create("one_gpu", MFD_CLOEXEC)};
    if (name.fd < 0) return comm_fail(SYSTEM_FAILED, "memfd_create: %s", strerror(errno));
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &name, sizeof name);
    return NCCL_SUCCESS;
}

NcclResult comm_open(const NcclId *id, int count, int rank, Comm **out) {
    Name name;
    memcpy(&name, id->bytes, sizeof name);
    if (name.magic != MAGIC) return comm_fail(ARGUMENT, "a communicator's name that nobody made");
    if (count < 1 || count > RANKS_MAX || rank < 0 || rank >= count)
        return comm_fail(ARGUMENT, "a communicator has 1 to %d ranks", RANKS_MAX);
    Comm *c = calloc(1, sizeof *c);
    if (!c) return comm_fail(SYSTEM_FAILED, "out of memory");
    c->rank = rank;
    c->count = count;
    c->box_bytes = box_bytes(count);
    NcclResult result = map(c, &name);
    if (result == NCCL_SUCCESS) result = open_device(c);
    if (result == NCCL_SUCCESS) meet(c);
    if (name.pid == getpid()) close(name.fd); /* everyone has it */
    if (result == NCCL_SUCCESS)
        *out = c;
    else
        comm_close(c);
    return result;
}

/* --- notes --- */

static const char *const names[] = {
    [OP_send] = "message", [OP_recv] = "message",    [OP_broadcast] = "broadcast",
    [OP_sum] = "sum",      [OP_scatter] = "scatter", [OP_spread] = "spread"};

enum { KIND_AT = 40, NUMBER_AT = 44 };

static uint64_t write_note(OpKind kind, uint32_t number, uint64_t bytes) {
    uint64_t what = kind == OP_send ? OP_recv : kind; /* never 0: that is no note */
    return (uint64_t)number << NUMBER_AT | what << KIND_AT |
           (bytes & ((UINT64_C(1) << KIND_AT) - 1));
}

static const char *kind_in(uint64_t note) { return names[note >> KIND_AT & 15]; }

static unsigned long long bytes_in(uint64_t note) { return note & ((UINT64_C(1) << KIND_AT) - 1); }

NcclResult comm_note(Comm *c, OpKind kind, int peer, uint64_t bytes, bool out) {
    int from = out ? c->rank : peer, to = out ? peer : c->rank;
    uint32_t *count = out ? &c->put[peer] : &c->taken[peer], number = (*count)++;
    Pair *pair = pair_of(c, from, to);
    _Atomic uint64_t *here = &(out ? pair->put : pair->taken)[number % NOTES];
    _Atomic uint64_t *there = &(out ? pair->taken : pair->put)[number % NOTES];
    uint64_t mine = write_note(kind, number, bytes);
    atomic_store(here, mine);
    uint64_t other = atomic_load(there);
    if (other == 0 || other >> NUMBER_AT != mine >> NUMBER_AT || other == mine) return NCCL_SUCCESS;
    return comm_fail(USAGE,
                     "part %u from rank %d to rank %d: rank %d has a %s of %llu bytes, rank %d "
                     "a %s of %llu",
                     number, from, to, c->rank, kind_in(mine), bytes_in(mine), peer, kind_in(other),
                     bytes_in(other));
}
