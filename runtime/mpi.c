/* mpi.c - the transport between ranks by MPI.
 *
 * Reads   nothing of the plan: whoever calls says what goes where.
 * Writes  messages on a communicator of its own, so that nothing else can match them.
 * Keeps   the processor free: every wait is a loop of MPI_Test with rests, never a blocking call,
 *         which spins in every MPI and starves ranks that share its processor.
 * Why     only programs of several ranks refer to this object, so only those link an MPI library.
 */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/launch.h"
#include "runtime/transport.h"

/* Sizes of MPI are int: a larger message is one struct of blocks and a rest. */
enum { BLOCK_BYTES = 1 << 20, GATHER_BYTES_MAX = 1 << 20, PART_BYTES = 1 << 30 };

/* How long a wait looks before it yields, and yields before it sleeps. */
enum { TURNS_LOOK = 2000, TURNS_YIELD = 200, SLEEP_NS = 50000 };

/* MPI is one for a process, and so is this. */
static struct {
    MPI_Comm all;      /* every rank */
    MPI_Comm replicas; /* of this pipeline rank, when `split` */
    bool split;
    MPI_Comm self;    /* this one: where `idle` waits */
    MPI_Request idle; /* a receive that nothing matches: testing it makes others progress */
    int look;         /* turns before yielding: none where ranks outnumber processors */
} mpi;

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "InfRequest.word[0] holds an MPI_Request");

static InfCode fail_mpi(InfError *e, const char *call, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(rc, text, &length) != MPI_SUCCESS) text[0] = '\0';
    return inf_fail(e, INF_PEER, "%s: %s", call, text);
}

#define TRY_MPI(e, call, rc)                                                                       \
    do {                                                                                           \
        int rc_ = (rc);                                                                            \
        if (rc_ != MPI_SUCCESS) return fail_mpi(e, call, rc_);                                     \
    } while (0)

static void rest(int turn) {
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (turn < mpi.look) return;
    if (turn < mpi.look + TURNS_YIELD)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

static InfCode await(InfError *e, const char *call, MPI_Request *request) {
    for (int turn = 0, done = 0; !done; turn += turn < INT_MAX) {
        TRY_MPI(e, call, MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (!done) rest(turn);
    }
    return INF_OK;
}

/* --- open and close --- */

#if defined(OPEN_MPI)
/* Whether this Open MPI has parts that speak PMI-1 or PMI-2, beside those for PMIx. Where no part
 * is found as a file they may all be inside the library. */
static bool may_speak_pmi(void) {
    static const char *const folders[] = {"openmpi", "openmpi/lib/openmpi*", "openmpi*"};
    char path[PATH_MAX], pattern[PATH_MAX + 64];
    size_t parts = 0, old = 0;
    Dl_info info;
    const void *init = dlsym(RTLD_DEFAULT, "MPI_Init");
    if (!init || !dladdr(init, &info) || !realpath(info.dli_fname, path)) return true;
    int length = (int)(strrchr(path, '/') - path);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        glob_t found;
        snprintf(pattern, sizeof pattern, "%.*s/%s/mca_pmix_*.so", length, path, folders[i]);
        if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) continue;
        parts += found.gl_pathc;
        for (size_t k = 0; k < found.gl_pathc; k++)
            old += strstr(found.gl_pathv[k], "/mca_pmix_s1.") ||
                   strstr(found.gl_pathv[k], "/mca_pmix_s2.");
        globfree(&found);
    }
    return parts == 0 || old > 0;
}
#else
static bool may_speak_pmi(void) { return true; }
#endif

/* Ranks that srun starts find each other through what it was asked for; without that MPI_Init ends
 * the process in a long text. */
static InfCode check_srun(InfError *e) {
    InfPlace place = inf_place_find();
    bool pmi = getenv("PMI_RANK") || getenv("PMI_FD");
    if (!place.starter || strcmp(place.starter, "srun") != 0 || getenv("PMIX_RANK")) return INF_OK;
    if (pmi && may_speak_pmi()) return INF_OK;
    return inf_fail(e, INF_USAGE,
                    "srun%s does not connect its %d tasks for %s\n  = hint: srun -n %d --mpi=pmix "
                    "(srun --mpi=list shows what there is), or start it plainly, without srun",
                    pmi ? " --mpi=pmi2" : "", place.count, inf_transport_mpi.name, place.count);
}

static InfCode check_tags(InfError *e) {
    int *bound = NULL, found = 0;
    TRY_MPI(e, "MPI_Comm_get_attr", MPI_Comm_get_attr(mpi.all, MPI_TAG_UB, &bound, &found));
    if (found && *bound >= INF_TAG_MAX) return INF_OK;
    return inf_fail(e, INF_PEER, "this MPI has tags up to %d only; %d are needed",
                    found ? *bound : 0, INF_TAG_MAX);
}

static InfCode find_neighbours(InfError *e, int *rank, int *count) {
    MPI_Comm host;
    TRY_MPI(e, "MPI_Comm_split_type",
            MPI_Comm_split_type(mpi.all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    TRY_MPI(e, "MPI_Comm_rank", MPI_Comm_rank(host, rank));
    TRY_MPI(e, "MPI_Comm_size", MPI_Comm_size(host, count));
    TRY_MPI(e, "MPI_Comm_free", MPI_Comm_free(&host));
    return INF_OK;
}

static InfCode open_mpi(InfError *e, int *rank, int *count, int *local_rank, int *local_count) {
    static char nothing;
    int level = MPI_THREAD_SINGLE;
    TRY_MPI(e, "MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    if (level < MPI_THREAD_FUNNELED)
        return inf_fail(e, INF_PEER, "this MPI cannot run in a process with several threads");
    TRY_MPI(e, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &mpi.all));
    TRY_MPI(e, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_SELF, &mpi.self));
    TRY_MPI(e, "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(mpi.all, MPI_ERRORS_RETURN));
    TRY_MPI(e, "MPI_Comm_rank", MPI_Comm_rank(mpi.all, rank));
    TRY_MPI(e, "MPI_Comm_size", MPI_Comm_size(mpi.all, count));
    TRY_MPI(e, "MPI_Irecv", MPI_Irecv(&nothing, 1, MPI_BYTE, 0, 0, mpi.self, &mpi.idle));
    TRY(check_tags(e));
    TRY(find_neighbours(e, local_rank, local_count));
    mpi.look = *local_count > inf_cores() ? 0 : TURNS_LOOK;
    return INF_OK;
}

static InfCode split_mpi(InfError *e, int dp) {
    int rank = 0;
    TRY_MPI(e, "MPI_Comm_rank", MPI_Comm_rank(mpi.all, &rank));
    TRY_MPI(e, "MPI_Comm_split", MPI_Comm_split(mpi.all, rank / dp, rank % dp, &mpi.replicas));
    mpi.split = true;
    TRY_MPI(e, "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(mpi.replicas, MPI_ERRORS_RETURN));
    return INF_OK;
}

static void close_mpi(void) {
    MPI_Cancel(&mpi.idle);
    MPI_Wait(&mpi.idle, MPI_STATUS_IGNORE);
    if (mpi.split) MPI_Comm_free(&mpi.replicas);
    MPI_Comm_free(&mpi.self);
    MPI_Comm_free(&mpi.all);
    MPI_Finalize();
}

/* --- messages --- */

/* The type and count of `bytes` bytes; a type that was made is freed by type_done. */
static InfCode type_of(InfError *e, uint64_t bytes, MPI_Datatype *type, int *n) {
    *type = MPI_BYTE;
    *n = (int)bytes;
    if (bytes <= INT_MAX) return INF_OK;
    uint64_t blocks = bytes / BLOCK_BYTES;
    if (blocks > INT_MAX)
        return inf_fail(e, INF_INTERNAL, "a message of %llu bytes", (unsigned long long)bytes);
    MPI_Datatype block, types[2];
    int lengths[2] = {(int)blocks, (int)(bytes % BLOCK_BYTES)};
    MPI_Aint places[2] = {0, (MPI_Aint)(blocks * BLOCK_BYTES)};
    TRY_MPI(e, "MPI_Type_contiguous", MPI_Type_contiguous(BLOCK_BYTES, MPI_BYTE, &block));
    types[0] = block;
    types[1] = MPI_BYTE;
    TRY_MPI(e, "MPI_Type_create_struct", MPI_Type_create_struct(2, lengths, places, types, type));
    TRY_MPI(e, "MPI_Type_free", MPI_Type_free(&block));
    TRY_MPI(e, "MPI_Type_commit", MPI_Type_commit(type));
    *n = 1;
    return INF_OK;
}

static void type_done(MPI_Datatype *type) {
    if (*type != MPI_BYTE) MPI_Type_free(type);
}

static void keep_request(InfRequest *out, MPI_Request request, uint64_t bytes) {
    *out = (InfRequest){.word = {0, bytes}, .busy = true};
    memcpy(&out->word[0], &request, sizeof request);
}

/* As a request's size: nothing is received. */
static const uint64_t sent = UINT64_MAX, exchanged = UINT64_MAX - 1;

static InfCode send_mpi(InfError *e, int to, int tag, const void *at, uint64_t bytes,
                        InfRequest *out) {
    MPI_Datatype type;
    MPI_Request request;
    int n;
    INF_ASSERT(tag >= 0 && tag <= INF_TAG_MAX && !out->busy);
    TRY(type_of(e, bytes, &type, &n));
    TRY_MPI(e, "MPI_Isend", MPI_Isend(at, n, type, to, tag, mpi.all, &request));
    type_done(&type);
    keep_request(out, request, sent);
    return INF_OK;
}

static InfCode recv_mpi(InfError *e, int from, int tag, void *at, uint64_t bytes, InfRequest *out) {
    MPI_Datatype type;
    MPI_Request request;
    int n;
    INF_ASSERT(tag >= 0 && tag <= INF_TAG_MAX && !out->busy);
    TRY(type_of(e, bytes, &type, &n));
    TRY_MPI(e, "MPI_Irecv", MPI_Irecv(at, n, type, from, tag, mpi.all, &request));
    type_done(&type);
    keep_request(out, request, bytes);
    return INF_OK;
}

static InfCode test_mpi(InfError *e, InfRequest *r) {
    MPI_Request request;
    MPI_Status status;
    MPI_Count got = 0;
    int done = 0;
    if (!r->busy) return INF_OK;
    memcpy(&request, &r->word[0], sizeof request);
    const char *what = r->word[1] == sent        ? "sending to a rank"
                       : r->word[1] == exchanged ? "an exchange between replicas"
                                                 : "receiving from a rank";
    TRY_MPI(e, what, MPI_Test(&request, &done, &status));
    if (!done) return INF_OK;
    r->busy = false;
    if (r->word[1] >= exchanged) return INF_OK;
    TRY_MPI(e, "MPI_Get_elements_x", MPI_Get_elements_x(&status, MPI_BYTE, &got));
    if ((uint64_t)got == r->word[1]) return INF_OK;
    return inf_fail(e, INF_INTERNAL, "a message from rank %d has %lld bytes instead of %llu",
                    status.MPI_SOURCE, (long long)got, (unsigned long long)r->word[1]);
}

static InfCode wait_mpi(InfError *e, InfRequest *r) {
    for (int turn = 0; r->busy; turn += turn < INT_MAX) {
        TRY(test_mpi(e, r));
        if (r->busy) rest(turn);
    }
    return INF_OK;
}

static void poll_mpi(void) {
    int done;
    MPI_Test(&mpi.idle, &done, MPI_STATUS_IGNORE);
}

/* --- collectives --- */

static InfCode broadcast_mpi(InfError *e, int root, void *at, uint64_t bytes) {
    for (uint64_t done = 0, n; done < bytes; done += n) {
        MPI_Request request;
        n = bytes - done < PART_BYTES ? bytes - done : PART_BYTES;
        TRY_MPI(e, "MPI_Ibcast",
                MPI_Ibcast((char *)at + done, (int)n, MPI_BYTE, root, mpi.all, &request));
        TRY(await(e, "MPI_Ibcast", &request));
    }
    return INF_OK;
}

static InfCode sum_mpi(InfError *e, float *at, uint64_t count) {
    const uint64_t part = PART_BYTES / sizeof *at;
    for (uint64_t done = 0, n; done < count; done += n) {
        MPI_Request request;
        n = count - done < part ? count - done : part;
        TRY_MPI(
            e, "MPI_Iallreduce",
            MPI_Iallreduce(MPI_IN_PLACE, at + done, (int)n, MPI_FLOAT, MPI_SUM, mpi.all, &request));
        TRY(await(e, "MPI_Iallreduce", &request));
    }
    return INF_OK;
}

static InfCode gather_mpi(InfError *e, const void *mine, uint64_t bytes, void *all) {
    MPI_Request request;
    INF_ASSERT(bytes <= GATHER_BYTES_MAX);
    TRY_MPI(
        e, "MPI_Iallgather",
        MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi.all, &request));
    return await(e, "MPI_Iallgather", &request);
}

static InfCode spread_mpi(InfError *e, float *all, uint64_t each, InfRequest *out) {
    MPI_Request request;
    INF_ASSERT(mpi.split && each <= INT_MAX && !out->busy);
    TRY_MPI(e, "MPI_Iallgather",
            MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)each, MPI_FLOAT,
                           mpi.replicas, &request));
    keep_request(out, request, exchanged);
    return INF_OK;
}

static InfCode collect_mpi(InfError *e, const void *mine, uint64_t bytes, void *all,
                           InfRequest *out) {
    MPI_Request request;
    INF_ASSERT(mpi.split && bytes <= GATHER_BYTES_MAX && !out->busy);
    TRY_MPI(e, "MPI_Iallgather",
            MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi.replicas,
                           &request));
    keep_request(out, request, exchanged);
    return INF_OK;
}

const InfTransport inf_transport_mpi = {
#if defined(OPEN_MPI)
    .name = "Open MPI",
#elif defined(MPICH_VERSION)
    .name = "MPICH",
#else
    .name = "MPI",
#endif
    .check = check_srun,
    .open = open_mpi,
    .split = split_mpi,
    .close = close_mpi,
    .send = send_mpi,
    .recv = recv_mpi,
    .wait = wait_mpi,
    .test = test_mpi,
    .rest = rest,
    .poll = poll_mpi,
    .broadcast = broadcast_mpi,
    .sum = sum_mpi,
    .spread = spread_mpi,
    .collect = collect_mpi,
    .gather = gather_mpi,
};
