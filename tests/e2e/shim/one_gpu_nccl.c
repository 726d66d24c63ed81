/* one_gpu_nccl.c - a stand-in for NCCL, for processes of one host that share one device, which the
 * real one refuses: libnccl.so.2 with the functions of runtime/nccl_syms.def.
 *
 * The ranks of a communicator share host memory that all of them have shown to the device. In it is
 * a box for each pair, which one rank fills and the other empties, and a flag that says which of
 * the two it is. Filling and emptying are kernels, waiting and telling are stream operations, all
 * in the order of the caller's stream and the same every time: a graph of them can be replayed.
 * What is larger than a box goes in parts. Messages of a group that go both ways in parts have a
 * stream for each way, so that neither keeps the other from going on.
 *
 * Sums add in the order of the ranks: every rank gets the same bits. A rank that is gone is waited
 * for as long as nobody ends the process: that is for those who watch (runtime/lifeline.h).
 *
 * ONE_GPU_BOX=BYTES   a box, at most; a multiple of 128
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/shim/one_gpu.h"

enum { DEVICE_FAILED = 1, SYSTEM_FAILED = 2, ARGUMENT = 4, USAGE = 5, VERSION = 22899 };
enum { RANKS_MAX = 16, OPS_MAX = 1024, PAGE = 4096, FLAG_BYTES = 64, MAGIC = 0x31677075 };
enum { BOX_BYTES = 4 << 20, BOXES_BYTES = 64 << 20 };

/* What a communicator's name holds: where its memory is, for as long as whoever named it is. */
typedef struct Name {
    uint32_t magic;
    int32_t pid, fd;
} Name;

typedef struct Shared {
    _Atomic int32_t here; /* ranks that have come */
} Shared;

typedef struct NcclCommObject {
    int rank, count;
    Gpu gpu;
    Shared *shared;
    size_t bytes; /* of it */
    CuAddress at; /* of it, for the device */
    uint64_t box_bytes;
    CuStream side; /* of what is sent while something comes */
    CuEvent fork, join;
} Comm;

typedef enum OpKind { OP_send, OP_recv, OP_broadcast, OP_sum, OP_scatter, OP_spread } OpKind;

typedef struct Op {
    OpKind kind;
    CuAddress from, to;
    uint64_t bytes; /* of each part */
    int peer;       /* or root */
    Comm *comm;
    CuStream stream;
} Op;

static Op op[OPS_MAX];
static int ops, depth;
static char last_error[256];

#define SYM(member, symbol, arguments) NcclResult symbol arguments;
#include "runtime/nccl_syms.def"
const char *ncclGetErrorString(NcclResult result);
const char *ncclGetLastError(NcclComm comm);

#define GO(expression)                                                                             \
    do {                                                                                           \
        NcclResult result_ = (expression);                                                         \
        if (result_ != NCCL_SUCCESS) return result_;                                               \
    } while (0)

static NcclResult fail(NcclResult result, const char *what) {
    snprintf(last_error, sizeof last_error, "one GPU's stand-in: %s", what);
    return result;
}

static NcclResult check(const Comm *c, CuResult result, const char *what) {
    const char *text = NULL;
    if (result == CU_SUCCESS) return NCCL_SUCCESS;
    c->gpu.call.error_name(result, &text);
    snprintf(last_error, sizeof last_error, "one GPU's stand-in: %s: %s", what,
             text ? text : "unknown");
    return DEVICE_FAILED;
}

/* --- what is shared --- */

static uint64_t box_bytes(int count) {
    const char *text = getenv("ONE_GPU_BOX");
    uint64_t most = text ? strtoull(text, NULL, 10) / 128 * 128 : BOX_BYTES;
    uint64_t fair = BOXES_BYTES / PAGE / (uint64_t)(count * count) * PAGE;
    if (most == 0) most = 128;
    return most < fair ? most : fair;
}

static uint64_t head_bytes(int count) {
    uint64_t flags = (uint64_t)(count * count) * FLAG_BYTES;
    return PAGE + (flags + PAGE - 1) / PAGE * PAGE;
}

static uint64_t flag_offset(const Comm *c, int from, int to) {
    return PAGE + (uint64_t)(from * c->count + to) * FLAG_BYTES;
}

static CuAddress flag_at(const Comm *c, int from, int to) {
    return c->at + flag_offset(c, from, to);
}

static volatile uint32_t *flag_here(const Comm *c, int from, int to) {
    return (volatile uint32_t *)(void *)((char *)c->shared + flag_offset(c, from, to));
}

static CuAddress box_at(const Comm *c, int from, int to) {
    return c->at + head_bytes(c->count) + (CuAddress)(from * c->count + to) * c->box_bytes;
}

static NcclResult map(Comm *c, const Name *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail(SYSTEM_FAILED, "the rank that named a communicator is gone");
    uint64_t boxes = (uint64_t)(c->count * c->count) * c->box_bytes;
    c->bytes = (size_t)(head_bytes(c->count) + boxes);
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)c->bytes) == 0)
        at = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return fail(SYSTEM_FAILED, strerror(errno));
    c->shared = at;
    return NCCL_SUCCESS;
}

/* Until all have come; as with the real one, who never comes is waited for. */
static void meet(const Comm *c) {
    const struct timespec pause = {.tv_nsec = 200000};
    atomic_fetch_add(&c->shared->here, 1);
    while (atomic_load(&c->shared->here) < c->count) nanosleep(&pause, NULL);
}

static NcclResult open_device(Comm *c) {
    const CuFunctions *call = &c->gpu.call;
    const char *wrong = gpu_open(&c->gpu);
    if (wrong) return fail(SYSTEM_FAILED, wrong);
    if (c->count == 1) return NCCL_SUCCESS;
    GO(check(c, gpu_share(&c->gpu, c->shared, c->bytes, &c->at), "cuMemHostRegister"));
    GO(check(c, call->stream_make(&c->side, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    GO(check(c, call->event_make(&c->fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    return check(c, call->event_make(&c->join, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

NcclResult ncclGetUniqueId(NcclId *id) {
    Name name = {.magic = MAGIC, .pid = getpid(), .fd = memfd_create("one_gpu", MFD_CLOEXEC)};
    if (name.fd < 0) return fail(SYSTEM_FAILED, strerror(errno));
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &name, sizeof name);
    return NCCL_SUCCESS;
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
            *flag_here(c, k, c->rank) = 1;
            *flag_here(c, c->rank, k) = 0;
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

NcclResult ncclCommAbort(Comm *c) {
    if (!c) return NCCL_SUCCESS;
    close_device(c);
    if (c->shared) munmap(c->shared, c->bytes);
    free(c);
    return NCCL_SUCCESS;
}

NcclResult ncclCommInitRank(Comm **out, int count, NcclId id, int rank) {
    Name name;
    memcpy(&name, id.bytes, sizeof name);
    if (name.magic != MAGIC) return fail(ARGUMENT, "a communicator's name that nobody made");
    if (count < 1 || count > RANKS_MAX || rank < 0 || rank >= count)
        return fail(ARGUMENT, "a communicator has 1 to 16 ranks");
    Comm *c = calloc(1, sizeof *c);
    if (!c) return fail(SYSTEM_FAILED, "out of memory");
    c->rank = rank;
    c->count = count;
    c->box_bytes = box_bytes(count);
    NcclResult result = map(c, &name);
    if (result == NCCL_SUCCESS) result = open_device(c);
    if (result == NCCL_SUCCESS) meet(c);
    if (name.pid == getpid()) close(name.fd); /* everyone has it */
    if (result != NCCL_SUCCESS) {
        ncclCommAbort(c);
        return result;
    }
    *out = c;
    return NCCL_SUCCESS;
}

NcclResult ncclGetVersion(int *version) {
    *version = VERSION;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(NcclResult result) {
    switch (result) {
    case DEVICE_FAILED: return "unhandled cuda error";
    case SYSTEM_FAILED: return "unhandled system error";
    case ARGUMENT: return "invalid argument";
    case USAGE: return "invalid usage";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(Comm *comm) {
    (void)comm;
    return last_error;
}

/* --- boxes --- */

/* Boxes of this rank and one other, or of this rank and all others. */
typedef struct Peers {
    int first, end;
} Peers;

static Peers everyone(const Comm *c) { return (Peers){0, c->count}; }
static Peers only(int rank) { return (Peers){rank, rank + 1}; }

static NcclResult flags(const Comm *c, Peers p, bool out, int what, uint64_t value, CuStream s) {
    GpuFlag flag[RANKS_MAX];
    int n = 0;
    for (int r = p.first; r < p.end; r++) {
        if (r == c->rank) continue;
        CuAddress at = out ? flag_at(c, c->rank, r) : flag_at(c, r, c->rank);
        flag[n++] = (GpuFlag){.what = what,
                              .at = at,
                              .value = value,
                              .flags = what == GPU_AWAIT ? GPU_AWAIT_EQUAL : 0};
    }
    return check(c, gpu_flags(&c->gpu, flag, n, s), "cuStreamBatchMemOp");
}

static NcclResult copy(const Comm *c, CuAddress to, CuAddress from, uint64_t bytes, CuStream s) {
    if (to == from) return NCCL_SUCCESS;
    return check(c, gpu_copy(&c->gpu, to, from, bytes, s), "copying");
}

/* Elements from + r * stride go to rank r. */
static NcclResult fill(const Comm *c, Peers p, CuAddress from, uint64_t stride, uint64_t bytes,
                       CuStream s) {
    GO(flags(c, p, true, GPU_AWAIT, 0, s));
    for (int r = p.first; r < p.end; r++)
        if (r != c->rank)
            GO(copy(c, box_at(c, c->rank, r), from + (CuAddress)r * stride, bytes, s));
    return flags(c, p, true, GPU_SET, 1, s);
}

/* Elements of rank r go to to + r * stride. */
static NcclResult empty(const Comm *c, Peers p, CuAddress to, uint64_t stride, uint64_t bytes,
                        CuStream s) {
    GO(flags(c, p, false, GPU_AWAIT, 1, s));
    for (int r = p.first; r < p.end; r++)
        if (r != c->rank) GO(copy(c, to + (CuAddress)r * stride, box_at(c, r, c->rank), bytes, s));
    return flags(c, p, false, GPU_SET, 0, s);
}

static NcclResult add_up(const Comm *c, CuAddress to, CuAddress own, uint64_t bytes, CuStream s) {
    const GpuSum sum = {.to = to,
                        .own = own,
                        .rank = c->rank,
                        .count = c->count,
                        .others = box_at(c, 0, c->rank),
                        .stride = (uint64_t)c->count * c->box_bytes,
                        .n = bytes / sizeof(float)};
    GO(flags(c, everyone(c), false, GPU_AWAIT, 1, s));
    GO(check(c, gpu_sum(&c->gpu, &sum, s), "adding"));
    return flags(c, everyone(c), false, GPU_SET, 0, s);
}

static uint64_t part_bytes(const Comm *c, uint64_t bytes, uint64_t at) {
    return bytes - at < c->box_bytes ? bytes - at : c->box_bytes;
}

/* --- what all ranks do together: the same parts in the same order on each --- */

/* `at` of `bytes` of each part. */
static NcclResult run_part(const Op *o, uint64_t at, uint64_t bytes) {
    const Comm *c = o->comm;
    CuAddress mine = (CuAddress)c->rank * o->bytes;
    switch (o->kind) {
    case OP_broadcast:
        if (c->rank != o->peer) return empty(c, only(o->peer), o->to + at, 0, bytes, o->stream);
        GO(fill(c, everyone(c), o->from + at, 0, bytes, o->stream));
        return copy(c, o->to + at, o->from + at, bytes, o->stream);
    case OP_sum:
        GO(fill(c, everyone(c), o->from + at, 0, bytes, o->stream));
        return add_up(c, o->to + at, o->from + at, bytes, o->stream);
    case OP_scatter:
        GO(fill(c, everyone(c), o->from + at, o->bytes, bytes, o->stream));
        return add_up(c, o->to + at, o->from + mine + at, bytes, o->stream);
    default:
        GO(fill(c, everyone(c), o->from + at, 0, bytes, o->stream));
        GO(copy(c, o->to + mine + at, o->from + at, bytes, o->stream));
        return empty(c, everyone(c), o->to + at, o->bytes, bytes, o->stream);
    }
}

static NcclResult run_together(const Op *o) {
    const Comm *c = o->comm;
    if (c->count == 1) return copy(c, o->to, o->from, o->bytes, o->stream);
    for (uint64_t at = 0; at < o->bytes; at += c->box_bytes)
        GO(run_part(o, at, part_bytes(c, o->bytes, at)));
    return NCCL_SUCCESS;
}

/* --- messages --- */

/* What a rank sends itself: its sends match its receives in their order. */
static NcclResult run_own(const Op *first, int n) {
    const Comm *c = first->comm;
    int r = 0;
    for (int s = 0; s < n; s++) {
        if (first[s].kind != OP_send || first[s].peer != c->rank) continue;
        while (r < n && !(first[r].kind == OP_recv && first[r].peer == c->rank)) r++;
        if (r == n || first[r].bytes != first[s].bytes)
            return fail(USAGE, "a message to oneself without its other half");
        GO(copy(c, first[r].to, first[s].from, first[s].bytes, first->stream));
        r++;
    }
    return NCCL_SUCCESS;
}

static NcclResult run_messages_part(const Op *first, int n, uint64_t at, CuStream out) {
    const Comm *c = first->comm;
    for (int i = 0; i < n; i++) {
        const Op *o = &first[i];
        if (o->kind != OP_send || o->peer == c->rank || at >= o->bytes) continue;
        GO(fill(c, only(o->peer), o->from + at, 0, part_bytes(c, o->bytes, at), out));
    }
    for (int i = 0; i < n; i++) {
        const Op *o = &first[i];
        if (o->kind != OP_recv || o->peer == c->rank || at >= o->bytes) continue;
        GO(empty(c, only(o->peer), o->to + at, 0, part_bytes(c, o->bytes, at), o->stream));
    }
    return NCCL_SUCCESS;
}

static NcclResult run_messages(const Op *first, int n) {
    Comm *c = first->comm;
    const CuFunctions *call = &c->gpu.call;
    uint64_t most = 0;
    bool sends = false, receives = false;
    GO(run_own(first, n));
    for (int i = 0; i < n; i++) {
        if (first[i].peer == c->rank) continue;
        if (first[i].bytes > most) most = first[i].bytes;
        sends = sends || first[i].kind == OP_send;
        receives = receives || first[i].kind == OP_recv;
    }
    bool fork = sends && receives && (most > c->box_bytes || n > 2);
    CuStream in = first->stream, out = fork ? c->side : in;
    if (fork) {
        GO(check(c, call->event_record(c->fork, in), "cuEventRecord"));
        GO(check(c, call->stream_wait(out, c->fork, 0), "cuStreamWaitEvent"));
    }
    for (uint64_t at = 0; at < most; at += c->box_bytes) GO(run_messages_part(first, n, at, out));
    if (!fork) return NCCL_SUCCESS;
    GO(check(c, call->event_record(c->join, out), "cuEventRecord"));
    return check(c, call->stream_wait(in, c->join, 0), "cuStreamWaitEvent");
}

/* --- groups --- */

static bool is_message(const Op *o) { return o->kind == OP_send || o->kind == OP_recv; }

static NcclResult run_all(void) {
    for (int i = 0; i < ops;) {
        int n = 1;
        if (!is_message(&op[i])) {
            GO(run_together(&op[i++]));
            continue;
        }
        while (i + n < ops && is_message(&op[i + n]) && op[i + n].comm == op[i].comm &&
               op[i + n].stream == op[i].stream)
            n++;
        GO(run_messages(&op[i], n));
        i += n;
    }
    return NCCL_SUCCESS;
}

NcclResult ncclGroupStart(void) {
    depth++;
    return NCCL_SUCCESS;
}

NcclResult ncclGroupEnd(void) {
    if (depth == 0) return fail(USAGE, "a group ends that has not begun");
    if (--depth > 0) return NCCL_SUCCESS;
    NcclResult result = run_all();
    ops = 0;
    return result;
}

static NcclResult add(Op o) {
    if (!o.comm || o.peer < 0 || o.peer >= o.comm->count)
        return fail(ARGUMENT, "no such rank or communicator");
    if (ops == OPS_MAX) return fail(USAGE, "a group of more than 1024");
    GO(ncclGroupStart());
    op[ops++] = o;
    return ncclGroupEnd();
}

static CuAddress address(const void *at) { return (CuAddress)(uintptr_t)at; }

NcclResult ncclSend(const void *at, size_t count, int type, int peer, Comm *comm, CuStream stream) {
    if (type != NCCL_TYPE_U8) return fail(ARGUMENT, "messages are of bytes");
    return add((Op){OP_send, address(at), 0, count, peer, comm, stream});
}

NcclResult ncclRecv(void *at, size_t count, int type, int peer, Comm *comm, CuStream stream) {
    if (type != NCCL_TYPE_U8) return fail(ARGUMENT, "messages are of bytes");
    return add((Op){OP_recv, 0, address(at), count, peer, comm, stream});
}

NcclResult ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm,
                         CuStream stream) {
    if (type != NCCL_TYPE_U8) return fail(ARGUMENT, "broadcasts are of bytes");
    return add((Op){OP_broadcast, address(from), address(to), count, root, comm, stream});
}

static NcclResult add_sum(OpKind kind, int type, int operation, Op o) {
    if (type != NCCL_TYPE_F32 || operation != NCCL_SUM)
        return fail(ARGUMENT, "what is added is f32");
    o.kind = kind;
    o.bytes *= sizeof(float);
    return add(o);
}

NcclResult ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                         Comm *comm, CuStream stream) {
    return add_sum(OP_sum, type, operation,
                   (Op){OP_sum, address(from), address(to), count, 0, comm, stream});
}

NcclResult ncclReduceScatter(const void *from, void *to, size_t each, int type, int operation,
                             Comm *comm, CuStream stream) {
    return add_sum(OP_scatter, type, operation,
                   (Op){OP_scatter, address(from), address(to), each, 0, comm, stream});
}

NcclResult ncclAllGather(const void *from, void *to, size_t each, int type, Comm *comm,
                         CuStream stream) {
    if (type != NCCL_TYPE_U8) return fail(ARGUMENT, "what is gathered is bytes");
    return add((Op){OP_spread, address(from), address(to), each, 0, comm, stream});
}
