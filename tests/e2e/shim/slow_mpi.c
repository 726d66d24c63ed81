/* slow_mpi.c - makes MPI slow at random, to find orders that only luck keeps right.
 *
 * Loaded with LD_PRELOAD; sits between a program and its MPI by the profiling interface. Before
 * every call that sends, receives, tests or combines it sleeps, now and then: in one of
 * SLOW_ONE_IN calls (8), up to SLOW_US microseconds (300). SLOW_SEED makes other sleeps; each rank
 * sleeps in its own way.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state;

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t draw(uint64_t below) {
    if (state == 0)
        state = setting("SLOW_SEED", 1) * 1000003 + setting("OMPI_COMM_WORLD_RANK", 0) +
                setting("PMI_RANK", 0) + 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : 0;
}

static void maybe_sleep(void) {
    if (draw(setting("SLOW_ONE_IN", 8)) != 0) return;
    struct timespec t = {.tv_nsec = (long)draw(setting("SLOW_US", 300)) * 1000};
    nanosleep(&t, NULL);
}

int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out) {
    maybe_sleep();
    return PMPI_Isend(at, n, type, to, tag, comm, out);
}

int MPI_Irecv(void *at, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *out) {
    maybe_sleep();
    return PMPI_Irecv(at, n, type, from, tag, comm, out);
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    maybe_sleep();
    return PMPI_Test(request, done, status);
}

int MPI_Ibcast(void *at, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *out) {
    maybe_sleep();
    return PMPI_Ibcast(at, n, type, root, comm, out);
}

int MPI_Iallreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *out) {
    maybe_sleep();
    return PMPI_Iallreduce(from, to, n, type, op, comm, out);
}

int MPI_Iallgather(const void *from, int n, MPI_Datatype type, void *to, int each,
                   MPI_Datatype to_type, MPI_Comm comm, MPI_Request *out) {
    maybe_sleep();
    return PMPI_Iallgather(from, n, type, to, each, to_type, comm, out);
}
