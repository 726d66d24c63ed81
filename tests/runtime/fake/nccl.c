/* nccl.c - the fake NCCL: communicators of one rank, which may send messages to itself, and of
 * several that all have what this one has: a sum is so many times its own. As with the real one,
 * both halves of a message to itself belong to one group, an exchange of one rank with itself in
 * place is nothing, and a first message or sum during a capture would have to set up a connection:
 * here that fails. A communicator that goes while memory is registered with it ends the program. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda_types.h"
#include "tests/runtime/fake/fake.h"

enum { SYSTEM = 2, ARGUMENT = 4, USAGE = 5, HALVES = 64 };

typedef struct Comm {
    bool connected;
    int rank, count;
    int registered;
} Comm;

typedef struct Half {
    bool send, matched;
    uint64_t at;
    size_t bytes;
    Comm *comm;
    void *stream;
} Half;

typedef struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    struct Copy *last; /* they live as long as the process: graphs run them again and again */
} Copy;

static Copy *copies;

static Half half[HALVES];
static int halves, depth;

int ncclGetVersion(int *version) {
    *version = 22809;
    return 0;
}

const char *ncclGetErrorString(int result) {
    return result == USAGE ? "invalid usage" : result == ARGUMENT ? "invalid argument" : "an error";
}

const char *ncclGetLastError(void *comm) {
    (void)comm;
    return "";
}

int ncclGetUniqueId(NcclId *id) {
    memset(id, 0x5e, sizeof *id);
    return 0;
}

int ncclCommInitRank(Comm **out, int count, NcclId id, int rank) {
    if (id.bytes[0] != 0x5e) return ARGUMENT;
    if (count < 1 || rank < 0 || rank >= count) return SYSTEM;
    *out = calloc(1, sizeof **out);
    (*out)->rank = rank;
    (*out)->count = count;
    return 0;
}

int ncclCommInitRankConfig(Comm **out, int count, NcclId id, int rank, const NcclConfig *config) {
    bool known = config->magic == NCCL_CONFIG_MAGIC && config->version == NCCL_CONFIG_VERSION &&
                 config->size == 40 && config->blocking == NCCL_NOT_GIVEN && !config->net;
    if (!known || config->blocks_most != 132 / 8) return ARGUMENT;
    return ncclCommInitRank(out, count, id, rank);
}

int ncclCommAbort(Comm *comm) {
    if (comm->registered) abort();
    free(comm);
    return 0;
}

/* --- memory --- */

int cuMemAlloc_v2(uint64_t *at, size_t bytes);
int cuMemFree_v2(uint64_t at);

/* FAKE_NCCL_REFUSES: what it does not do. */
static bool refuses(const char *what) {
    const char *asked = getenv("FAKE_NCCL_REFUSES");
    return asked && strcmp(asked, what) == 0;
}

/* How often memory was registered, so far. */
int fake_nccl_registered;

int ncclMemAlloc(void **at, size_t bytes) {
    uint64_t address = 0;
    if (refuses("memory") || cuMemAlloc_v2(&address, bytes) != 0) return SYSTEM;
    *at = (void *)(uintptr_t)address;
    return 0;
}

int ncclMemFree(void *at) { return cuMemFree_v2((uint64_t)(uintptr_t)at); }

int ncclCommRegister(Comm *comm, void *at, size_t bytes, void **handle) {
    if (!comm || !at || bytes == 0) return ARGUMENT;
    if (refuses("register")) return SYSTEM;
    comm->registered++;
    fake_nccl_registered++;
    *handle = comm;
    return 0;
}

int ncclCommDeregister(Comm *comm, void *handle) {
    if (handle != comm || comm->registered == 0) return ARGUMENT;
    comm->registered--;
    return 0;
}

/* --- messages --- */

static void run_copy(void *data) {
    const Copy *copy = data;
    memmove(copy->to, copy->from, copy->bytes);
}

static int pair(Half *send, Half *recv) {
    if (send->bytes != recv->bytes || send->stream != recv->stream) return USAGE;
    if (!send->comm->connected && fake_is_capturing(send->stream)) return SYSTEM;
    Copy *copy = malloc(sizeof *copy);
    *copy = (Copy){fake_pointer(recv->at), fake_pointer(send->at), send->bytes, copies};
    copies = copy;
    fake_enqueue(send->stream, run_copy, copy);
    send->matched = recv->matched = true;
    send->comm->connected = true;
    return 0;
}

int ncclGroupStart(void) {
    depth++;
    return 0;
}

/* Sends match receives in their order. */
int ncclGroupEnd(void) {
    int result = 0;
    if (--depth > 0) return 0;
    for (int s = 0; s < halves && result == 0; s++) {
        int r = 0;
        if (!half[s].send) continue;
        while (r < halves && (half[r].send || half[r].matched || half[r].comm != half[s].comm)) r++;
        result = r < halves ? pair(&half[s], &half[r]) : USAGE;
    }
    for (int i = 0; i < halves && result == 0; i++)
        if (!half[i].matched) result = USAGE;
    halves = 0;
    return result;
}

static int add(Half h, int type, int peer) {
    if (type != NCCL_TYPE_U8 || peer != 0) return ARGUMENT;
    if (depth == 0 || halves == HALVES) return USAGE;
    half[halves++] = h;
    return 0;
}

int ncclSend(uint64_t at, size_t count, int type, int peer, Comm *comm, void *stream) {
    return add((Half){true, false, at, count, comm, stream}, type, peer);
}

int ncclRecv(uint64_t at, size_t count, int type, int peer, Comm *comm, void *stream) {
    return add((Half){false, false, at, count, comm, stream}, type, peer);
}

/* Sums of floats, in the stream's order. */
typedef struct Sum {
    float *at;
    size_t count;
    int ranks;
    struct Sum *last;
} Sum;

static Sum *sums;

static void run_sum(void *data) {
    const Sum *s = data;
    for (size_t i = 0; i < s->count; i++) s->at[i] *= (float)s->ranks;
}

static int add_up(Comm *comm, uint64_t at, size_t count, void *stream) {
    if (comm->count == 1) return 0;
    if (!comm->connected && fake_is_capturing(stream)) return SYSTEM;
    comm->connected = true;
    Sum *sum = malloc(sizeof *sum);
    *sum = (Sum){fake_pointer(at), count, comm->count, sums};
    sums = sum;
    fake_enqueue(stream, run_sum, sum);
    return 0;
}

int ncclBroadcast(uint64_t from, uint64_t to, size_t count, int type, int root, Comm *comm,
                  void *stream) {
    (void)stream;
    if (!comm || count == 0 || type != NCCL_TYPE_U8 || root < 0 || root >= comm->count)
        return ARGUMENT;
    return from != to ? USAGE : 0;
}

int ncclAllReduce(uint64_t from, uint64_t to, size_t count, int type, int operation, Comm *comm,
                  void *stream) {
    if (!comm || count == 0 || type != NCCL_TYPE_F32 || operation != NCCL_SUM) return ARGUMENT;
    return from != to ? USAGE : add_up(comm, to, count, stream);
}

int ncclReduceScatter(uint64_t from, uint64_t to, size_t each, int type, int operation, Comm *comm,
                      void *stream) {
    if (!comm || each == 0 || type != NCCL_TYPE_F32 || operation != NCCL_SUM) return ARGUMENT;
    uint64_t own = from + (uint64_t)comm->rank * each * sizeof(float);
    return to != own ? USAGE : add_up(comm, to, each, stream);
}

/* The others' parts are what they were: nobody knows better here. */
int ncclAllGather(uint64_t from, uint64_t to, size_t each, int type, Comm *comm, void *stream) {
    (void)stream;
    if (!comm || each == 0 || type != NCCL_TYPE_U8) return ARGUMENT;
    return from != to + (uint64_t)comm->rank * each ? USAGE : 0;
}
