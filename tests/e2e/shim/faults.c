/* faults.c - makes one call that writes to a folder fail, or the last one that a program makes.
 *
 * Loaded with LD_PRELOAD by checkpoint_test.sh and checkpoint_ranks_test.sh. Counts the calls that
 * change what lies below FAULT_UNDER: mkdir, fopen for writing, fwrite, fflush, fclose, fsync,
 * rename, renameat2, unlink.
 *
 *   FAULT_AT=N        the N-th of them, from 1
 *   FAULT_KIND=kill   ends the program there, as kill -9 would; of its write, half is done before
 *   FAULT_KIND=full   fails with ENOSPC, as all writes after it do
 *   FAULT_RANK=N      with kill: ends rank N of the run instead, which then need not write at all
 *   FAULT_PIDS=DIR    where ranks leave their process ids, for that
 *   FAULT_FREE=N      what the disk is said to have free
 *   FAULT_COUNT=FILE  receives, at the end of a program that made any, how many there were
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { STREAMS = 64 };
static FILE *watched[STREAMS];
static long count;

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static bool below(const char *path) {
    const char *under = getenv("FAULT_UNDER");
    return under && strncmp(path, under, strlen(under)) == 0;
}

static FILE **slot_of(FILE *stream) {
    for (int i = 0; i < STREAMS; i++)
        if (watched[i] == stream) return &watched[i];
    return NULL;
}

static bool is_watched(FILE *stream) { return stream && slot_of(stream); }

static bool kills(void) {
    const char *kind = getenv("FAULT_KIND");
    return kind && strcmp(kind, "kill") == 0;
}

/* A rank's file of its process id; false: there is none. */
static bool pid_file(const char *rank, char *out, size_t bytes) {
    const char *dir = getenv("FAULT_PIDS");
    if (dir && rank) snprintf(out, bytes, "%s/%s", dir, rank);
    return dir && rank;
}

__attribute__((constructor)) static void leave_pid(void) {
    char path[4096];
    FILE *out =
        pid_file(getenv("OMPI_COMM_WORLD_RANK"), path, sizeof path) ? fopen(path, "a") : NULL;
    if (!out) return;
    rewind(out);
    fprintf(out, "%ld\n", (long)getpid());
    fclose(out);
}

static pid_t victim(void) {
    char path[4096];
    long pid = 0;
    FILE *in = pid_file(getenv("FAULT_RANK"), path, sizeof path) ? fopen(path, "r") : NULL;
    if (!in) return getpid();
    if (fscanf(in, "%ld", &pid) != 1 || pid <= 1) _exit(99);
    fclose(in);
    return (pid_t)pid;
}

/* Counts a call; true: it has to fail. `writes`: needs space on the disk. */
static bool fails(bool writes) {
    long at = setting("FAULT_AT");
    count++;
    if (at == 0 || count < at) return false;
    if (kills()) {
        if (count == at) kill(victim(), SIGKILL);
        return false;
    }
    if (!writes && count != at) return false;
    errno = ENOSPC;
    return true;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int mkdir(const char *path, mode_t mode) {
    return below(path) && fails(true) ? -1 : NEXT(mkdir)(path, mode);
}

FILE *fopen(const char *path, const char *mode) {
    bool counts = mode[0] == 'w' && below(path);
    if (counts && fails(true)) return NULL;
    FILE *stream = NEXT(fopen)(path, mode);
    FILE **slot = counts && stream ? slot_of(NULL) : NULL;
    if (slot) *slot = stream;
    return stream;
}

size_t fwrite(const void *from, size_t size, size_t n, FILE *stream) {
    if (!is_watched(stream)) return NEXT(fwrite)(from, size, n, stream);
    if (kills() && count + 1 == setting("FAULT_AT") && victim() == getpid()) {
        NEXT(fwrite)(from, 1, size * n / 2, stream);
        NEXT(fflush)(stream);
    }
    return fails(true) ? 0 : NEXT(fwrite)(from, size, n, stream);
}

int fflush(FILE *stream) { return is_watched(stream) && fails(true) ? EOF : NEXT(fflush)(stream); }

int fclose(FILE *stream) {
    bool counts = is_watched(stream);
    if (counts) *slot_of(stream) = NULL;
    bool failed = counts && fails(true);
    int result = NEXT(fclose)(stream);
    return failed ? EOF : result;
}

int fsync(int fd) { return fails(true) ? -1 : NEXT(fsync)(fd); }

int rename(const char *from, const char *to) {
    return below(to) && fails(false) ? -1 : NEXT(rename)(from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return below(to) && fails(false) ? -1 : NEXT(renameat2)(from_dir, from, to_dir, to, flags);
}

int statvfs(const char *path, struct statvfs *out) {
    int result = NEXT(statvfs)(path, out);
    if (getenv("FAULT_FREE")) {
        out->f_frsize = 1;
        out->f_bavail = (fsblkcnt_t)setting("FAULT_FREE");
    }
    return result;
}

/* Removing what is half written frees space: it is a point to be killed at, but never fails. */
int unlink(const char *path) {
    if (below(path)) {
        int kept = errno;
        if (kills()) fails(false);
        errno = kept;
    }
    return NEXT(unlink)(path);
}

__attribute__((destructor)) static void report(void) {
    const char *path = count > 0 ? getenv("FAULT_COUNT") : NULL;
    char text[32];
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0) return;
    int length = snprintf(text, sizeof text, "%ld\n", count);
    if (write(fd, text, (size_t)length) != length) _exit(99);
    close(fd);
}
