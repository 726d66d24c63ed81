/* warm.c - starts messages, threads and matrix library, and counts the library's workspace. */
#include "runtime/warm.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/engine.h"
#include "runtime/file.h"
#include "runtime/gemm.h"

/* Only kernels pull the library in: a program without products for it is linked, and runs, without
 * it. */
#pragma weak inf_sgemm

enum { SMALL = 64, FORMS = 8, SIDE = 512, DEPTH = 1024 };
enum { IN_BYTES = SIDE * DEPTH * 4, OUT_BYTES = SIDE * SIDE * 4 };

/* As many and as long as fill the pools that messages in pieces go through; with several ranks at
 * once, as sums over replicas are. */
enum { PEERS = 4, MESSAGES = 2, MESSAGE_BYTES = 1 << 17, MESSAGE_TAG = INF_TAG_MAX };

/* A rank to send to, one to receive from. */
typedef struct Neighbours {
    int to, from;
} Neighbours;

static InfCode send_round(InfError *e, const InfTransport *t, const Neighbours *with, int n,
                          char *memory) {
    InfRequest request[2 * PEERS * MESSAGES] = {{.busy = false}};
    for (int i = 0; i < n * MESSAGES; i++) {
        char *at = memory + (size_t)(i + 1) * MESSAGE_BYTES;
        const Neighbours *w = &with[i / MESSAGES];
        TRY(t->recv(e, w->from, MESSAGE_TAG, at, MESSAGE_BYTES, &request[2 * i]));
        TRY(t->send(e, w->to, MESSAGE_TAG, memory, MESSAGE_BYTES, &request[2 * i + 1]));
    }
    for (int i = 0; i < 2 * n * MESSAGES; i++) TRY(t->wait(e, &request[i]));
    return INF_OK;
}

/* Processes first, first + step, .. of `count`, of which this is number `own`. */
static InfCode send_among(InfError *e, const InfGroup *g, int first, int step, int count,
                          char *memory) {
    int own = (g->rank - first) / step, n = 0;
    Neighbours with[PEERS];
    for (int d = 1; d < count; d++) {
        with[n++] = (Neighbours){first + (own + d) % count * step,
                                 first + (own + count - d) % count * step};
        if (n < PEERS && d + 1 < count) continue;
        TRY(send_round(e, g->transport, with, n, memory));
        n = 0;
    }
    return INF_OK;
}

InfCode inf_warm_messages(InfError *e, const InfGroup *group) {
    const uint64_t bytes = (PEERS * MESSAGES + 1) * MESSAGE_BYTES;
    void *memory = NULL;
    if (!group || group->count == 1) return INF_OK;
    int replicas = inf_plan_replicas(group->plan), ranks = group->count / replicas;
    TRY(inf_map_memory(e, bytes, "the first messages", &memory));
    InfCode code = send_among(e, group, group->rank - group->replica, 1, replicas, memory);
    if (code == INF_OK) code = send_among(e, group, group->replica, replicas, ranks, memory);
    inf_unmap_memory(memory, bytes);
    return code;
}

/* Every form of product on every thread: its kernels get generated. */
static void small_products(const float *in, float *out, int threads) {
#pragma omp parallel for schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int form = 0; form < FORMS; form++)
            inf_sgemm(form & 1, form >> 1 & 1, SMALL, SMALL, SMALL, in, SMALL, in, SMALL,
                      out + t * SIDE * SIDE, SMALL, form >> 2);
}

/* The form that packs, in sizes that change: the allocator keeps blocks of sizes it has seen and
 * leaves gaps between them, in this order as many as it ever does. */
static void large_products(const float *in, float *out, int threads) {
    static const int64_t shapes[][3] = {{128, 512, 784},
                                        {SIDE, SIDE, DEPTH},
                                        {SIDE, SIDE, DEPTH},
                                        {128, 512, 784},
                                        {SIDE, SIDE, DEPTH}};
#pragma omp parallel for schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            inf_sgemm(0, 1, shapes[i][0], shapes[i][1], shapes[i][2], in, DEPTH, in, DEPTH,
                      out + (int64_t)t * SIDE * SIDE, SIDE, 0);
}

InfCode inf_warm_up(InfError *e, int threads, uint64_t *resident, uint64_t *workspace) {
    threads = inf_threads_set(threads);
    *workspace = 0;
    if (!inf_sgemm) {
#pragma omp parallel
        {} *resident = inf_memory_now().resident;
        return INF_OK;
    }
    /* The operand is never written: it is the system's page of zeros and takes no memory. */
    uint64_t out_bytes = (uint64_t)threads * OUT_BYTES;
    void *in = NULL, *out = NULL;
    TRY(inf_map_memory(e, IN_BYTES, "the matrix library", &in));
    InfCode code = inf_map_memory(e, out_bytes, "the matrix library", &out);
    if (code == INF_OK) {
        memset(out, 0, out_bytes);
        small_products(in, out, threads);
        uint64_t before = inf_memory_now().resident;
        large_products(in, out, threads);
        uint64_t after = inf_memory_now().resident;
        *workspace = after > before ? after - before : 0;
        *resident = before > out_bytes ? before - out_bytes : 0;
    }
    inf_unmap_memory(out, out_bytes);
    inf_unmap_memory(in, IN_BYTES);
    return code;
}
