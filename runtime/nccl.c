/* nccl.c - NCCL's communicators; see nccl.h. */
#include "runtime/nccl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/group.h"
#include "runtime/library.h"

typedef struct NcclFunctions {
#define SYM(member, symbol, arguments) NcclResult(*member) arguments;
#include "runtime/nccl_syms.def"
    const char *(*error_text)(NcclResult result);
    const char *(*last_error)(NcclComm comm);
} NcclFunctions;

typedef struct NcclMore { /* NULL: this version lacks it */
#define SYM(member, symbol, arguments) NcclResult(*member) arguments;
#include "runtime/nccl_more_syms.def"
} NcclMore;

enum { COMMS = 2 };

struct InfNccl {
    NcclFunctions call;
    NcclMore more;
    void *library;
    void *memory; /* that NCCL gave; NULL: none */
    size_t bytes;
    void *handle[COMMS];              /* where it is registered: for messages, with replicas */
    NcclComm messages, all, replicas; /* NULL: not open */
    int replica, count;               /* this one, of how many */
    int version;                      /* 22809 is 2.28.9 */
};

static const char *const library_names[] = {"libnccl.so.2", "libnccl.so", NULL};

static InfCode check(InfError *e, const InfNccl *n, NcclResult result, const char *what) {
    if (result == NCCL_SUCCESS) return INF_OK;
    const char *text = n->call.error_text(result), *last = n->call.last_error(NULL);
    bool more = last && *last;
    return inf_fail(e, INF_PEER, "NCCL %d.%d.%d: %s: %s%s%s", n->version / 10000,
                    n->version / 100 % 100, n->version % 100, what, text ? text : "unknown error",
                    more ? "; " : "", more ? last : "");
}

#define CHECK(name, ...) TRY(check(e, n, n->call.name(__VA_ARGS__), #name))

/* --- opening --- */

static InfCode load(InfError *e, InfNccl *n) {
    const InfSymbol symbols[] = {
#define SYM(member, symbol, arguments) {#symbol, &n->call.member},
#include "runtime/nccl_syms.def"
        {"ncclGetErrorString", &n->call.error_text},
        {"ncclGetLastError", &n->call.last_error},
    };
    const InfLibrary library = {library_names, true, "NCCL, the library for messages between GPUs,",
                                "install it (Debian, Ubuntu: NVIDIA's package libnccl2), or let "
                                "LD_LIBRARY_PATH name its folder"};
    const InfSymbol more[] = {
#define SYM(member, symbol, arguments) {#symbol, &n->more.member},
#include "runtime/nccl_more_syms.def"
    };
    TRY(inf_library_open(e, &library, symbols, (int)(sizeof symbols / sizeof *symbols),
                         &n->library));
    CHECK(version, &n->version);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        void *address = dlsym(n->library, more[i].name);
        memcpy(more[i].to, &address, sizeof address);
    }
    return INF_OK;
}

bool inf_nccl_wanted(const Plan *plan, const InfGroup *group) {
    return (plan->transport && group) || inf_plan_talks_alone(plan);
}

InfCode inf_nccl_load(InfError *e, InfNccl **out) {
    *out = calloc(1, sizeof **out);
    return *out ? load(e, *out) : inf_fail(e, INF_IO, "out of memory");
}

CuAddress inf_nccl_take(InfNccl *n, uint64_t bytes) {
    bool registers = n->more.take && n->more.give && n->more.enter && n->more.leave;
    if (!registers || bytes > SIZE_MAX) return 0;
    if (n->more.take(&n->memory, (size_t)bytes) != NCCL_SUCCESS) n->memory = NULL;
    n->bytes = (size_t)bytes;
    return (CuAddress)(uintptr_t)n->memory;
}

/* Rank 0 makes the names of the communicators of all and tells them to the others. */
static InfCode open_both(InfError *e, InfNccl *n, const InfGroup *group) {
    NcclId id[2];
    int rank = group ? group->rank : 0, count = group ? group->count : 1;
    memset(id, 0, sizeof id);
    for (int i = 0; i < 2 && rank == 0; i++) CHECK(unique, &id[i]);
    if (count > 1) TRY(group->transport->broadcast(e, 0, id, sizeof id));
    CHECK(open, &n->messages, count, id[0], rank);
    CHECK(open, &n->all, count, id[1], rank);
    return INF_OK;
}

/* The communicator of replicas, which leaves multiprocessors to what runs beside it. */
static InfCode open_bounded(InfError *e, InfNccl *n, NcclId id, int multiprocessors) {
    const NcclConfig config = {.size = sizeof config,
                               .magic = NCCL_CONFIG_MAGIC,
                               .version = NCCL_CONFIG_VERSION,
                               .blocking = NCCL_NOT_GIVEN,
                               .cluster = NCCL_NOT_GIVEN,
                               .blocks_least = NCCL_NOT_GIVEN,
                               .blocks_most = multiprocessors > 8 ? multiprocessors / 8 : 1};
    if (n->version < NCCL_CONFIG_VERSION || !n->more.configured) {
        CHECK(open, &n->replicas, n->count, id, n->replica);
        return INF_OK;
    }
    return check(e, n, n->more.configured(&n->replicas, n->count, id, n->replica, &config), "open");
}

/* Replica 0 of each rank of the pipeline makes the name of theirs; everyone hears of all names. */
static InfCode open_replicas(InfError *e, InfNccl *n, const Plan *plan, const InfGroup *group,
                             int multiprocessors) {
    NcclId id, *all = NULL;
    int first = group ? group->rank - group->replica : 0;
    memset(&id, 0, sizeof id);
    if (n->replica == 0) CHECK(unique, &id);
    if (n->count > 1) {
        all = calloc((size_t)inf_plan_processes(plan), sizeof *all);
        if (!all) return inf_fail(e, INF_IO, "out of memory");
        InfCode code = group->transport->gather(e, &id, sizeof id, all);
        id = all[first];
        free(all);
        TRY(code);
    }
    return open_bounded(e, n, id, multiprocessors);
}

/* ---- memory that exchanges use without copies */

static void leave_all(InfNccl *n) {
    const NcclComm comm[COMMS] = {n->messages, n->replicas};
    for (int i = 0; i < COMMS; i++)
        if (n->handle[i]) n->more.leave(comm[i], n->handle[i]);
    memset(n->handle, 0, sizeof n->handle);
}

/* On all ranks or on none: who has copies does not fit with who has none. Sums need the same
 * offsets on all of their ranks, which replicas have, but not ranks of a pipeline: what those do
 * all together is a few numbers. That it is refused somewhere is no failure. */
static InfCode enter_all(InfError *e, InfNccl *n, const InfGroup *group) {
    const NcclComm comm[COMMS] = {n->messages, n->replicas};
    float refused = n->memory ? 0 : 1;
    for (int i = 0; i < COMMS && refused == 0; i++)
        if (comm[i] && n->more.enter(comm[i], n->memory, n->bytes, &n->handle[i]) != NCCL_SUCCESS)
            refused = 1;
    if (group && group->count > 1) TRY(group->transport->sum(e, &refused, 1));
    if (refused > 0) leave_all(n);
    return INF_OK;
}

/* Which ranks this one sends to and receives from, itself included. */
typedef struct Peers {
    bool *to, *from;
} Peers;

static void find_peers(const Plan *plan, const Peers *p) {
    for (uint32_t i = 0; i < plan->nmessage; i++) {
        const PlanMessage *m = &plan->message[i];
        if (m->from_rank == plan->rank) p->to[m->to_rank] = true;
        if (m->to_rank == plan->rank) p->from[m->from_rank] = true;
    }
    for (uint32_t i = 0; i < plan->nshare; i++) {
        const PlanShare *s = &plan->share[i];
        if (s->from_rank == plan->rank) p->to[s->to_rank] = true;
        if (s->to_rank == plan->rank) p->from[s->from_rank] = true;
    }
}

/* One small message over every connection that the plan uses, and one exchange of each kind:
 * libraries connect when they are first asked to, which must not be during a capture. */
static InfCode connect_ranks(InfError *e, InfNccl *n, const Plan *plan, CuAddress scratch,
                             CuStream stream) {
    void *out = (void *)(uintptr_t)scratch, *in = (void *)(uintptr_t)(scratch + 4);
    InfHalf *half = calloc(2 * (size_t)plan->ranks, sizeof *half);
    bool *used = calloc(2 * (size_t)plan->ranks, sizeof *used);
    uint32_t count = 0;
    InfCode code = INF_OK;
    if (!half || !used) code = inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) find_peers(plan, &(Peers){used, used + plan->ranks});
    for (int r = 0; r < plan->ranks && code == INF_OK; r++) {
        int peer = n->replica + n->count * r;
        if (used[r]) half[count++] = (InfHalf){true, peer, out, 4};
        if (used[plan->ranks + r]) half[count++] = (InfHalf){false, peer, in, 4};
    }
    if (code == INF_OK && count > 0) code = inf_nccl_exchange(e, n, half, count, stream);
    free(half);
    free(used);
    TRY(code);
    TRY(inf_nccl_broadcast(e, n, 0, out, 4, stream));
    return inf_nccl_sum(e, n, in, 1, stream);
}

/* A number between each two replicas. */
static InfCode trade_with_all(InfError *e, InfNccl *n, float *at, CuStream stream) {
    InfHalf *half = calloc(2 * (size_t)n->count, sizeof *half);
    uint32_t count = 0;
    if (!half) return inf_fail(e, INF_IO, "out of memory");
    for (int peer = 0; peer < n->count; peer++) {
        if (peer == n->replica) continue;
        half[count++] = (InfHalf){true, peer, &at[n->replica], sizeof *at};
        half[count++] = (InfHalf){false, peer, &at[peer], sizeof *at};
    }
    InfCode code = inf_nccl_trade(e, n, half, count, stream);
    free(half);
    return code;
}

/* The same of what replicas do: once around all of them. */
static InfCode connect_replicas(InfError *e, InfNccl *n, const Plan *plan, CuAddress scratch,
                                CuStream stream) {
    float *at = (float *)(uintptr_t)scratch;
    bool shares = plan->nshard > 0, ordered = plan->ordered != NULL;
    TRY(inf_nccl_add(e, n, &(InfAddend){at, 1}, 1, stream));
    if (shares) TRY(inf_nccl_scatter(e, n, at, 1, stream));
    if (shares || ordered) TRY(inf_nccl_spread(e, n, at, sizeof *at, stream));
    return ordered && n->count > 1 ? trade_with_all(e, n, at, stream) : INF_OK;
}

uint64_t inf_nccl_scratch(const Plan *plan) {
    uint64_t replicas = (uint64_t)inf_plan_replicas(plan);
    return (replicas > 2 ? replicas : 2) * sizeof(float);
}

InfCode inf_nccl_open(InfError *e, InfNccl *n, const Plan *plan, const InfGroup *group,
                      const InfNcclPlace *place) {
    n->replica = group ? group->replica : 0;
    n->count = group ? inf_plan_replicas(plan) : 1;
    TRY(open_both(e, n, group));
    if (inf_plan_adds(plan)) TRY(open_replicas(e, n, plan, group, place->multiprocessors));
    TRY(enter_all(e, n, group));
    TRY(connect_ranks(e, n, plan, place->scratch, place->stream));
    return n->replicas ? connect_replicas(e, n, plan, place->scratch, place->stream) : INF_OK;
}

void inf_nccl_close(InfNccl *n) {
    if (!n) return;
    leave_all(n);
    if (n->messages) n->call.close(n->messages);
    if (n->all) n->call.close(n->all);
    if (n->replicas) n->call.close(n->replicas);
    if (n->memory) n->more.give(n->memory);
    if (n->library) dlclose(n->library);
    free(n);
}

/* --- between --- */

/* All halves at once. */
typedef struct Halves {
    const InfHalf *half;
    uint32_t count;
} Halves;

static InfCode put_halves(InfError *e, InfNccl *n, NcclComm comm, Halves all, CuStream stream) {
    const int type = NCCL_TYPE_U8;
    CHECK(group_begin);
    for (uint32_t i = 0; i < all.count; i++) {
        const InfHalf *h = &all.half[i];
        if (h->send)
            CHECK(send, h->at, (size_t)h->bytes, type, h->peer, comm, stream);
        else
            CHECK(recv, h->at, (size_t)h->bytes, type, h->peer, comm, stream);
    }
    CHECK(group_end);
    return INF_OK;
}

InfCode inf_nccl_exchange(InfError *e, InfNccl *n, const InfHalf *half, uint32_t count,
                          CuStream stream) {
    return put_halves(e, n, n->messages, (Halves){half, count}, stream);
}

InfCode inf_nccl_broadcast(InfError *e, InfNccl *n, int root, void *at, uint64_t bytes,
                           CuStream stream) {
    CHECK(broadcast, at, at, (size_t)bytes, NCCL_TYPE_U8, root, n->all, stream);
    return INF_OK;
}

InfCode inf_nccl_sum(InfError *e, InfNccl *n, float *at, uint64_t count, CuStream stream) {
    CHECK(sum, at, at, (size_t)count, NCCL_TYPE_F32, NCCL_SUM, n->all, stream);
    return INF_OK;
}

/* --- between replicas --- */

InfCode inf_nccl_add(InfError *e, InfNccl *n, const InfAddend *part, uint32_t count,
                     CuStream stream) {
    CHECK(group_begin);
    for (uint32_t i = 0; i < count; i++)
        CHECK(sum, part[i].at, part[i].at, (size_t)part[i].count, NCCL_TYPE_F32, NCCL_SUM,
              n->replicas, stream);
    CHECK(group_end);
    return INF_OK;
}

InfCode inf_nccl_scatter(InfError *e, InfNccl *n, float *all, uint64_t each, CuStream stream) {
    float *own = all + (uint64_t)n->replica * each;
    CHECK(scatter, all, own, (size_t)each, NCCL_TYPE_F32, NCCL_SUM, n->replicas, stream);
    return INF_OK;
}

InfCode inf_nccl_spread(InfError *e, InfNccl *n, void *all, uint64_t each, CuStream stream) {
    const unsigned char *own = (const unsigned char *)all + (uint64_t)n->replica * each;
    CHECK(spread, own, all, (size_t)each, NCCL_TYPE_U8, n->replicas, stream);
    return INF_OK;
}

InfCode inf_nccl_trade(InfError *e, InfNccl *n, const InfHalf *half, uint32_t count,
                       CuStream stream) {
    return put_halves(e, n, n->replicas, (Halves){half, count}, stream);
}
