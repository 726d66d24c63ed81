/* check_mpi.c - watches how a program uses MPI, and ends it with exit code 96 when it does so
 * wrongly.
 *
 * Loaded with LD_PRELOAD; sits between a program and its MPI by the profiling interface.
 *   - all ranks call the same collectives in the same order with the same sizes and roots
 *   - what is sent stays as it is until it is sent; nobody writes into it
 *   - two requests on their way share no byte that one of them writes
 *   - a buffer is there for as long as its request (with an address sanitizer: its own blocks)
 *   - nothing is on its way any more when the program ends MPI
 */
#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PENDING_MAX = 4096, EXIT_WRONG = 96 };

typedef struct Pending {
    MPI_Request request;
    const char *call;
    const unsigned char *at;
    size_t bytes;
    bool written;
    uint64_t sum; /* of what is sent */
} Pending;

/* What all ranks have to agree on. */
typedef struct Collective {
    int64_t number, kind, bytes, root;
} Collective;

enum { KIND_broadcast, KIND_sum, KIND_gather, KIND_end };

static Pending pending[PENDING_MAX];
static int count;
static int64_t collectives;
static MPI_Comm own = MPI_COMM_NULL;

/* Of an address sanitizer in the program: the first byte that may not be used. */
void *__asan_region_is_poisoned(void *at, size_t bytes) __attribute__((weak));

__attribute__((format(printf, 1, 2))) static void wrong(const char *format, ...) {
    char text[512];
    va_list args;
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "check_mpi: rank %d: %s\n", rank, text);
    fflush(stderr);
    _exit(EXIT_WRONG);
}

static uint64_t sum_of(const unsigned char *at, size_t bytes) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

static void check_there(const char *call, const unsigned char *at, size_t bytes) {
    union {
        const unsigned char *in;
        void *out;
    } borrowed = {at};
    if (!__asan_region_is_poisoned || bytes == 0) return;
    void *bad = __asan_region_is_poisoned(borrowed.out, bytes);
    if (bad) wrong("%s: byte %td of %zu is not there", call, (unsigned char *)bad - at, bytes);
}

static void begin(const char *call, MPI_Request request, const void *at, size_t bytes,
                  bool written) {
    Pending new = {request, call, at, bytes, written, 0};
    check_there(call, at, bytes);
    for (int i = 0; i < count; i++) {
        const Pending *p = &pending[i];
        if ((written || p->written) && new.at < p->at + p->bytes && p->at < new.at + bytes)
            wrong("%s of %zu bytes at %p and %s of %zu bytes at %p overlap", call, bytes, at,
                  p->call, p->bytes, (const void *)p->at);
    }
    if (count == PENDING_MAX) wrong("more than %d requests", PENDING_MAX);
    if (!written) new.sum = sum_of(new.at, bytes);
    pending[count++] = new;
}

/* A request may have two buffers: an allgather reads one and writes the other. */
static void end(MPI_Request request) {
    for (int i = 0; i < count; i++) {
        Pending *p = &pending[i];
        if (p->request != request) continue;
        check_there(p->call, p->at, p->bytes);
        if (!p->written && sum_of(p->at, p->bytes) != p->sum)
            wrong("%s of %zu bytes: they have changed on their way", p->call, p->bytes);
        pending[i--] = pending[--count];
    }
}

static size_t size_of(int n, MPI_Datatype type) {
    MPI_Count size = 0;
    PMPI_Type_size_x(type, &size);
    return (size_t)size * (size_t)n;
}

static void agree(int64_t kind, size_t bytes, int64_t root) {
    static const char *const kinds[] = {"broadcast", "sum", "gather", "end"};
    Collective mine = {collectives++, kind, (int64_t)bytes, root}, all[64];
    const struct timespec pause = {.tv_nsec = 20000};
    MPI_Request request;
    int ranks = 0;
    if (own == MPI_COMM_NULL) PMPI_Comm_dup(MPI_COMM_WORLD, &own);
    PMPI_Comm_size(own, &ranks);
    if (ranks > (int)(sizeof all / sizeof *all)) return;
    PMPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, own, &request);
    for (int done = 0; !done;) { /* as mpi.c waits: without spinning */
        PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) nanosleep(&pause, NULL);
    }
    for (int r = 0; r < ranks; r++)
        if (memcmp(&all[r], &mine, sizeof mine) != 0)
            wrong("collective %lld: %s of %zu bytes from %lld; rank %d: %s of %lld bytes from %lld",
                  (long long)mine.number, kinds[kind], bytes, (long long)root, r,
                  kinds[all[r].kind & 3], (long long)all[r].bytes, (long long)all[r].root);
}

int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out) {
    int rc = PMPI_Isend(at, n, type, to, tag, comm, out);
    begin("MPI_Isend", *out, at, size_of(n, type), false);
    return rc;
}

int MPI_Irecv(void *at, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *out) {
    int ranks = 0;
    int rc = PMPI_Irecv(at, n, type, from, tag, comm, out);
    PMPI_Comm_size(comm, &ranks);
    /* What nothing matches and only polls is none of the program's messages. */
    if (ranks > 1) begin("MPI_Irecv", *out, at, size_of(n, type), true);
    return rc;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    MPI_Request before = *request;
    int rc = PMPI_Test(request, done, status);
    if (*done) end(before);
    return rc;
}

int MPI_Ibcast(void *at, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *out) {
    int rank = -1;
    agree(KIND_broadcast, size_of(n, type), root);
    PMPI_Comm_rank(comm, &rank);
    int rc = PMPI_Ibcast(at, n, type, root, comm, out);
    begin("MPI_Ibcast", *out, at, size_of(n, type), rank != root);
    return rc;
}

int MPI_Iallreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *out) {
    agree(KIND_sum, size_of(n, type), -1);
    int rc = PMPI_Iallreduce(from, to, n, type, op, comm, out);
    begin("MPI_Iallreduce", *out, to, size_of(n, type), true);
    if (from != MPI_IN_PLACE) begin("MPI_Iallreduce", *out, from, size_of(n, type), false);
    return rc;
}

int MPI_Iallgather(const void *from, int n, MPI_Datatype type, void *to, int each,
                   MPI_Datatype to_type, MPI_Comm comm, MPI_Request *out) {
    int ranks = 0;
    agree(KIND_gather, size_of(n, type), -1);
    PMPI_Comm_size(comm, &ranks);
    int rc = PMPI_Iallgather(from, n, type, to, each, to_type, comm, out);
    begin("MPI_Iallgather", *out, to, size_of(each, to_type) * (size_t)ranks, true);
    begin("MPI_Iallgather", *out, from, size_of(n, type), false);
    return rc;
}

int MPI_Finalize(void) {
    agree(KIND_end, 0, -1);
    if (count > 0)
        wrong("%d requests are left, the first: %s of %zu bytes", count, pending[0].call,
              pending[0].bytes);
    PMPI_Comm_free(&own);
    return PMPI_Finalize();
}
