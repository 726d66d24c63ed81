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

struct InfNccl {
    NcclFunctions call;
    void *library;
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
    TRY(inf_library_open(e, &library, symbols, (int)(sizeof symbols / sizeof *symbols),
                         &n->library));
    CHECK(version, &n->version);
    return INF_OK;
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

/* Replica 0 of each rank of the pipeline makes the name of theirs; everyone hears of all names. */
static InfCode open_replicas(InfError *e, InfNccl *n, const Plan *plan, const InfGroup *group) {
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
    CHECK(open, &n->replicas, n->count, id, n->replica);
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

InfCode inf_nccl_open(InfError *e, const Plan *plan, const InfGroup *group, CuAddress scratch,
                      CuStream stream, InfNccl **out) {
    InfNccl *n = calloc(1, sizeof *n);
    *out = n;
    if (!n) return inf_fail(e, INF_IO, "out of memory");
    n->replica = group ? group->replica : 0;
    n->count = group ? inf_plan_replicas(plan) : 1;
    TRY(load(e, n));
    TRY(open_both(e, n, group));
    if (inf_plan_adds(plan)) TRY(open_replicas(e, n, plan, group));
    TRY(connect_ranks(e, n, plan, scratch, stream));
    return n->replicas ? connect_replicas(e, n, plan, scratch, stream) : INF_OK;
}

void inf_nccl_close(InfNccl *n) {
    if (!n) return;
    if (n->messages) n->call.close(n->messages);
    if (n->all) n->call.close(n->all);
    if (n->replicas) n->call.close(n->replicas);
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
