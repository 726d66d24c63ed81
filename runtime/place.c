/* place.c - where a process stands among the ranks of its run, by what its starter left in the
 * environment: Open MPI's mpirun, MPICH's mpiexec, Slurm's srun. */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/launch.h"

/* A starter is present when its `rank` is set. */
typedef struct Starter {
    const char *name;
    const char *rank, *count, *local_rank, *local_count;
} Starter;

/* Slurm's srun sets PMI_RANK, too, with --mpi=pmi2. */
static const Starter starters[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};
enum { STARTERS = sizeof starters / sizeof *starters, SRUN = STARTERS - 1 };

static int number_of(const char *name) {
    const char *text = name ? getenv(name) : NULL;
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && *end == '\0' && value >= 0 && value < 1 << 24 ? (int)value : -1;
}

static InfPlace place_by(const Starter *s) {
    return (InfPlace){.starter = s->name,
                      .rank = number_of(s->rank),
                      .count = number_of(s->count),
                      .local_rank = number_of(s->local_rank),
                      .local_count = number_of(s->local_count)};
}

InfPlace inf_place_find(void) {
    InfPlace srun = place_by(&starters[SRUN]);
    for (int i = 0; i < STARTERS; i++) {
        InfPlace p = place_by(&starters[i]);
        if (p.rank < 0 || p.count < 1) continue;
        if (p.rank == srun.rank && p.count == srun.count && p.local_count < 0) {
            p.starter = srun.starter;
            /* a step of one task is a shell, or a program that starts its ranks itself */
            if (p.count == 1) continue;
            /* srun says how many hosts there are */
            if (number_of("SLURM_STEP_NUM_NODES") == 1) p.local_count = p.count;
        }
        p.started = true;
        return p;
    }
    return (InfPlace){.rank = -1, .count = -1, .local_rank = -1, .local_count = -1};
}

static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash * 0x100000001b3u;
}

void inf_place_key(char *out, size_t bytes) {
    /* the same in all processes of one start on one host, and in no other start */
    static const char *const names[] = {"INFINIC_JOB",      "PMIX_NAMESPACE", "PMIX_SERVER_URI2",
                                        "PMIX_SERVER_URI4", "SLURM_JOB_ID",   "SLURM_STEP_ID"};
    uint64_t hash = 0xcbf29ce484222325u;
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (!value) continue;
        hash = hash_text(hash, value);
        found = true;
    }
    snprintf(out, bytes, "infinic-%ld-%016llx-%ld", (long)getuid(), (unsigned long long)hash,
             found ? 0L : (long)getppid());
}

int inf_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

socklen_t inf_abstract_address(const char *name, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strlen(name);
    INF_ASSERT(length < sizeof out->sun_path);
    memcpy(out->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}
