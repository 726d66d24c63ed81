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
 * What the two ends say of a part is compared: a message of another size, or a sum where the other
 * end scatters, is invalid usage.
 *
 * ONE_GPU_FAIL=RANK:N   what that rank (of its first communicator) enqueues as its Nth, fails
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/shim/one_gpu_comm.h"

enum { OPS_MAX = 1024, VERSION = 22899 };

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
static int own_rank = -1, runs; /* of the first communicator; groups that were run */

#define SYM(member, symbol, arguments) NcclResult symbol arguments;
#include "runtime/nccl_syms.def"
const char *ncclGetErrorString(NcclResult result);
const char *ncclGetLastError(NcclComm comm);

NcclResult ncclGetUniqueId(NcclId *id) { return comm_name(id); }

NcclResult ncclCommInitRank(Comm **out, int count, NcclId id, int rank) {
    if (own_rank < 0) own_rank = rank;
    return comm_open(&id, count, rank, out);
}

NcclResult ncclCommAbort(Comm *c) {
    comm_close(c);
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
    return comm_last_error();
}

/* --- boxes --- */

/* What goes through boxes at a time: between this rank and ranks first <= r < end, itself left out.
 */
typedef struct Part {
    Comm *comm;
    OpKind kind;
    int first, end;
    uint64_t bytes;
    CuStream stream;
} Part;

static NcclResult flags(const Part *p, bool out, int what, uint64_t value) {
    const Comm *c = p->comm;
    GpuFlag flag[RANKS_MAX];
    int n = 0;
    for (int r = p->first; r < p->end; r++)
        if (r != c->rank)
            flag[n++] = (GpuFlag){.what = what,
                                  .at = out ? comm_flag(c, c->rank, r) : comm_flag(c, r, c->rank),
                                  .value = value,
                                  .flags = what == GPU_AWAIT ? GPU_AWAIT_EQUAL : 0};
    return comm_check(c, gpu_flags(&c->gpu, flag, n, p->stream), "cuStreamBatchMemOp");
}

/* Waits until the boxes are empty, or full. */
static NcclResult await(const Part *p, bool out) {
    for (int r = p->first; r < p->end; r++)
        if (r != p->comm->rank) GO(comm_note(p->comm, p->kind, r, p->bytes, out));
    return flags(p, out, GPU_AWAIT, out ? 0 : 1);
}

static NcclResult tell(const Part *p, bool out) { return flags(p, out, GPU_SET, out ? 1 : 0); }

static NcclResult copy(const Comm *c, CuAddress to, CuAddress from, uint64_t bytes, CuStream s) {
    if (to == from) return NCCL_SUCCESS;
    return comm_check(c, gpu_copy(&c->gpu, to, from, bytes, s), "copying");
}

/* Elements from + r * stride go to rank r. */
static NcclResult fill(const Part *p, CuAddress from, uint64_t stride) {
    const Comm *c = p->comm;
    GO(await(p, true));
    for (int r = p->first; r < p->end; r++)
        if (r != c->rank)
            GO(copy(c, comm_box(c, c->rank, r), from + (CuAddress)r * stride, p->bytes, p->stream));
    return tell(p, true);
}

/* Elements of rank r go to to + r * stride. */
static NcclResult empty(const Part *p, CuAddress to, uint64_t stride) {
    const Comm *c = p->comm;
    GO(await(p, false));
    for (int r = p->first; r < p->end; r++)
        if (r != c->rank)
            GO(copy(c, to + (CuAddress)r * stride, comm_box(c, r, c->rank), p->bytes, p->stream));
    return tell(p, false);
}

static NcclResult add_up(const Part *p, CuAddress to, CuAddress own) {
    const Comm *c = p->comm;
    const GpuSum sum = {.to = to,
                        .own = own,
                        .rank = c->rank,
                        .count = c->count,
                        .others = comm_box(c, 0, c->rank),
                        .stride = (uint64_t)c->count * c->box_bytes,
                        .n = p->bytes / sizeof(float)};
    GO(await(p, false));
    GO(comm_check(c, gpu_sum(&c->gpu, &sum, p->stream), "adding"));
    return tell(p, false);
}

/* Of each of the operation's parts what begins at `at`. */
static Part part_of(const Op *o, uint64_t at, int first, int end) {
    uint64_t most = o->comm->box_bytes, left = o->bytes - at;
    return (Part){o->comm, o->kind, first, end, left < most ? left : most, o->stream};
}

/* --- what all ranks do together: the same parts in the same order on each --- */

static NcclResult run_part(const Op *o, uint64_t at) {
    const Comm *c = o->comm;
    Part all = part_of(o, at, 0, c->count), root = part_of(o, at, o->peer, o->peer + 1);
    CuAddress mine = (CuAddress)c->rank * o->bytes, to = o->to + at, from = o->from + at;
    switch (o->kind) {
    case OP_broadcast:
        if (c->rank != o->peer) return empty(&root, to, 0);
        GO(fill(&all, from, 0));
        return copy(c, to, from, all.bytes, o->stream);
    case OP_sum: GO(fill(&all, from, 0)); return add_up(&all, to, from);
    case OP_scatter: GO(fill(&all, from, o->bytes)); return add_up(&all, to, from + mine);
    default:
        GO(fill(&all, from, 0));
        GO(copy(c, to + mine, from, all.bytes, o->stream));
        return empty(&all, to, o->bytes);
    }
}

static NcclResult run_together(const Op *o) {
    const Comm *c = o->comm;
    if (c->count == 1) return copy(c, o->to, o->from, o->bytes, o->stream);
    for (uint64_t at = 0; at < o->bytes; at += c->box_bytes) GO(run_part(o, at));
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
            return comm_fail(USAGE, "a message to oneself without its other half");
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
        Part part = part_of(o, at, o->peer, o->peer + 1);
        part.stream = out;
        GO(fill(&part, o->from + at, 0));
    }
    for (int i = 0; i < n; i++) {
        const Op *o = &first[i];
        if (o->kind != OP_recv || o->peer == c->rank || at >= o->bytes) continue;
        Part part = part_of(o, at, o->peer, o->peer + 1);
        GO(empty(&part, o->to + at, 0));
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
        GO(comm_check(c, call->event_record(c->fork, in), "cuEventRecord"));
        GO(comm_check(c, call->stream_wait(out, c->fork, 0), "cuStreamWaitEvent"));
    }
    for (uint64_t at = 0; at < most; at += c->box_bytes) GO(run_messages_part(first, n, at, out));
    if (!fork) return NCCL_SUCCESS;
    GO(comm_check(c, call->event_record(c->join, out), "cuEventRecord"));
    return comm_check(c, call->stream_wait(in, c->join, 0), "cuStreamWaitEvent");
}

/* --- groups --- */

static bool is_message(const Op *o) { return o->kind == OP_send || o->kind == OP_recv; }

static bool is_to_fail(void) {
    const char *text = getenv("ONE_GPU_FAIL");
    int rank = 0, number = 0;
    runs++;
    return text && sscanf(text, "%d:%d", &rank, &number) == 2 && rank == own_rank && number == runs;
}

static NcclResult run_all(void) {
    if (ops > 0 && is_to_fail()) return comm_fail(DEVICE_FAILED, "this one was to fail");
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
    if (depth == 0) return comm_fail(USAGE, "a group ends that has not begun");
    if (--depth > 0) return NCCL_SUCCESS;
    NcclResult result = run_all();
    ops = 0;
    return result;
}

static NcclResult add(Op o) {
    if (!o.comm || o.peer < 0 || o.peer >= o.comm->count)
        return comm_fail(ARGUMENT, "no such rank or communicator");
    if (ops == OPS_MAX) return comm_fail(USAGE, "a group of more than 1024");
    GO(ncclGroupStart());
    op[ops++] = o;
    return ncclGroupEnd();
}

static CuAddress address(const void *at) { return (CuAddress)(uintptr_t)at; }

NcclResult ncclSend(const void *at, size_t count, int type, int peer, Comm *comm, CuStream stream) {
    if (type != NCCL_TYPE_U8) return comm_fail(ARGUMENT, "messages are of bytes");
    return add((Op){OP_send, address(at), 0, count, peer, comm, stream});
}

NcclResult ncclRecv(void *at, size_t count, int type, int peer, Comm *comm, CuStream stream) {
    if (type != NCCL_TYPE_U8) return comm_fail(ARGUMENT, "messages are of bytes");
    return add((Op){OP_recv, 0, address(at), count, peer, comm, stream});
}

NcclResult ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm,
                         CuStream stream) {
    if (type != NCCL_TYPE_U8) return comm_fail(ARGUMENT, "broadcasts are of bytes");
    return add((Op){OP_broadcast, address(from), address(to), count, root, comm, stream});
}

static NcclResult add_sum(OpKind kind, int type, int operation, Op o) {
    if (type != NCCL_TYPE_F32 || operation != NCCL_SUM)
        return comm_fail(ARGUMENT, "what is added is f32");
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
    if (type != NCCL_TYPE_U8) return comm_fail(ARGUMENT, "what is gathered is bytes");
    return add((Op){OP_spread, address(from), address(to), each, 0, comm, stream});
}
