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
    NcclComm messages, all; /* NULL: not open */
    int version;            /* 22809 is 2.28.9 */
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

/* Rank 0 makes the names of the communicators and tells them to the others. */
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
static InfCode connect_all(InfError *e, InfNccl *n, const Plan *plan, CuAddress scratch,
                           CuStream stream) {
    void *out = (void *)(uintptr_t)scratch, *in = (void *)(uintptr_t)(scratch + 4);
    InfHalf *half = calloc(2 * (size_t)plan->ranks, sizeof *half);
    bool *used = calloc(2 * (size_t)plan->ranks, sizeof *used);
    uint32_t count = 0;
    InfCode code = INF_OK;
    if (!half || !used) code = inf_fail(e, INF_IO, "out of memory");
    if (code == INF_OK) find_peers(plan, &(Peers){used, used + plan->ranks});
    for (int r = 0; r < plan->ranks && code == INF_OK; r++) {
        if (used[r]) half[count++] = (InfHalf){true, r, out, 4};
        if (used[plan->ranks + r]) half[count++] = (InfHalf){false, r, in, 4};
    }
    if (code == INF_OK && count > 0) code = inf_nccl_exchange(e, n, half, count, stream);
    free(half);
    free(used);
    TRY(code);
    TRY(inf_nccl_broadcast(e, n, 0, out, 4, stream));
    return inf_nccl_sum(e, n, in, 1, stream);
}

InfCode inf_nccl_open(InfError *e, const Plan *plan, const InfGroup *group, CuAddress scratch,
                      CuStream stream, InfNccl **out) {
    InfNccl *n = calloc(1, sizeof *n);
    *out = n;
    if (!n) return inf_fail(e, INF_IO, "out of memory");
    TRY(load(e, n));
    TRY(open_both(e, n, group));
    return connect_all(e, n, plan, scratch, stream);
}

void inf_nccl_close(InfNccl *n) {
    if (!n) return;
    if (n->messages) n->call.close(n->messages);
    if (n->all) n->call.close(n->all);
    if (n->library) dlclose(n->library);
    free(n);
}

/* --- between --- */

InfCode inf_nccl_exchange(InfError *e, InfNccl *n, const InfHalf *half, uint32_t count,
                          CuStream stream) {
    const int type = NCCL_TYPE_U8;
    CHECK(group_begin);
    for (uint32_t i = 0; i < count; i++) {
        const InfHalf *h = &half[i];
        if (h->send)
            CHECK(send, h->at, (size_t)h->bytes, type, h->peer, n->messages, stream);
        else
            CHECK(recv, h->at, (size_t)h->bytes, type, h->peer, n->messages, stream);
    }
    CHECK(group_end);
    return INF_OK;
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
