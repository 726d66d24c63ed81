/* image.c - device code: the CUDA source of a program compiled once for each architecture.
 *
 * Cubins for the architectures that were asked for, and PTX of compute_80 for other chips, in parts
 * (parts.c) that are compiled side by side; the generated C file takes them in with .incbin. What
 * was compiled before is found by content in XDG_CACHE_HOME/infinic (~/.cache/infinic): a folder a
 * result, named by a hash of everything it depends on, and published by renaming it when it is
 * complete.
 */
#include "codegen/loop.h"
#include "codegen/nvrtc.h"
#include "codegen/program.h"
#include "ir/panic.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

enum { EXIT_IO = 5, PATH_BYTES = 4096 };

static const char ptx_arch[] = "compute_80";

extern char **environ;

static void plan_arch(Program *p, const char *arch) {
    for (uint32_t part = 0; part < p->parts; part++) {
        PlanImage image = {.arch = arch, .part = part};
        vec_push(p->arena, &p->images, image);
    }
}

/* What takes longest comes first. */
void image_plan(Program *p) {
    parts_plan(p);
    for (int i = 0; i < p->options->narch && i + 1 < ARCHS_MAX; i++)
        plan_arch(p, p->options->arch[i]);
    if (p->options->narch == 0) plan_arch(p, "sm_90a");
    plan_arch(p, ptx_arch);
}

/* The bytes between two symbols each, then the table. */
void image_print_c(const Program *p, FILE *out) {
    for (uint32_t i = 0; i < p->images.n; i++) {
        fprintf(out, "extern const unsigned char image%u[], image%u_end[];\n", i, i);
        fprintf(out,
                "__asm__(\".section .rodata\\n.balign 64\\nimage%u: .incbin \\\"image%u\\\"\\n\"\n",
                i, i);
        fprintf(out, "        \"image%u_end: .byte 0\\n.previous\\n\");\n", i);
    }
    fputs("static const PlanImage images[] = {\n", out);
    for (uint32_t i = 0; i < p->images.n; i++)
        fprintf(out, "    {\"%s\", image%u, image%u_end, %u},\n", p->images.data[i].arch, i, i,
                p->images.data[i].part);
    fputs("};\n\n", out);
}

/* --- cache --- */

/* The cache's folder, made when it is not there; false when there is none. */
static bool cache_folder(char *path) {
    const char *base = getenv("XDG_CACHE_HOME"), *sub = "";
    if (!base || base[0] != '/') base = getenv("HOME"), sub = "/.cache";
    if (!base || base[0] != '/') return false;
    if (snprintf(path, PATH_BYTES, "%s%s", base, sub) >= PATH_BYTES - 128) return false;
    mkdir(path, 0700);
    strcat(path, "/infinic");
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* A file's bytes; NULL when it cannot be read. */
static unsigned char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    unsigned char *data = NULL;
    long n = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (n > 0 && fseek(f, 0, SEEK_SET) == 0) data = malloc((size_t)n);
    if (data && fread(data, 1, (size_t)n, f) != (size_t)n) {
        free(data);
        data = NULL;
    }
    fclose(f);
    *bytes = (size_t)n;
    return data;
}

static bool write_file(const char *path, const unsigned char *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(data, 1, bytes, f) == bytes;
    return fclose(f) == 0 && ok;
}

/* Where the result for this source and architecture is kept. */
static bool cache_entry(int version, const char *source, const char *arch, char *path) {
    if (!cache_folder(path)) return false;
    XXH3_state_t *state = XXH3_createState();
    if (!state) return false;
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, source, strlen(source) + 1);
    XXH3_128bits_update(state, arch, strlen(arch) + 1);
    XXH3_128bits_update(state, nvrtc_options_text(), strlen(nvrtc_options_text()) + 1);
    XXH3_128bits_update(state, &version, sizeof version);
    XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    sprintf(path + strlen(path), "/%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64,
            (uint64_t)h.low64);
    return true;
}

/* Keeps a result. Whoever comes first wins; failures leave the cache as it was. */
static void cache_publish(const char *entry, const unsigned char *data, size_t bytes) {
    char folder[PATH_BYTES + 32], file[PATH_BYTES + 64];
    snprintf(folder, sizeof folder, "%s.XXXXXX", entry);
    if (!mkdtemp(folder)) return;
    snprintf(file, sizeof file, "%s/image", folder);
    if (write_file(file, data, bytes) && rename(folder, entry) == 0) return;
    unlink(file);
    rmdir(folder);
}

/* --- compiling, in processes of their own --- */

/* NVRTC's optimizer orders some of its work by addresses: the same source gives other code in
 * another memory layout. So each image is compiled by a process that does nothing else and whose
 * addresses the system does not randomise; as many at once as there are processors. */
typedef struct Job {
    const char *arch;
    uint32_t part, number;  /* of the image */
    char entry[PATH_BYTES]; /* in the cache; empty: there is none */
    char out[PATH_BYTES + 16];
    pid_t pid; /* 0: not running */
    bool done;
} Job;

int image_job(char *const *arg) {
    size_t bytes;
    unsigned char *source = read_file(arg[0], &bytes);
    Nvrtc *nvrtc = source ? nvrtc_open(stderr) : NULL;
    if (!nvrtc) return EXIT_IO;
    source[bytes - 1] = 0; /* its last character is a newline */
    NvrtcImage image = nvrtc_compile(nvrtc, (char *)source, arg[1], arg[2]);
    int rc = 0;
    if (!image.bytes) {
        fprintf(stderr, "infinic: error: NVRTC failed for '%s'; its own words:\n%s\n", arg[2],
                image.log ? image.log : "(none)");
        rc = EXIT_INTERNAL;
    } else if (!write_file(arg[3], image.bytes, image.n)) {
        fprintf(stderr, "infinic: error: cannot write '%s': %s\n", arg[3], strerror(errno));
        rc = EXIT_IO;
    }
    free(image.bytes);
    free(image.log);
    free(source);
    nvrtc_close(nvrtc);
    return rc;
}

/* "NAME=VALUE" of the environment, NULL when it is not set. */
static char *variable(const char *name) {
    size_t n = strlen(name);
    for (char **e = environ; *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return *e;
    return NULL;
}

/* In `dir`, so that no path, and with little environment, so that no user's settings move things
 * in memory. */
static void start_job(Job *job, const char *dir, const char *name) {
    char source[32], out[32], *env[3] = {0};
    int n = 0;
    job->pid = fork();
    if (job->pid != 0) return;
    snprintf(source, sizeof source, "source%u.cu", job->part);
    snprintf(out, sizeof out, "image%u", job->number);
    const char *const argv[] = {"infinic", IMAGE_JOB, source, name, job->arch, out, NULL};
    char *args[sizeof argv / sizeof argv[0]];
    memcpy(args, argv, sizeof argv);
    if ((env[n] = variable("CUDA_HOME"))) n++;
    if ((env[n] = variable("LD_LIBRARY_PATH"))) n++;
    personality(ADDR_NO_RANDOMIZE); /* where it is forbidden the code is right all the same */
    if (chdir(dir) == 0) execve("/proc/self/exe", args, env);
    _exit(EXIT_IO);
}

static void job_publish(const Job *job) {
    size_t bytes;
    unsigned char *data = job->entry[0] ? read_file(job->out, &bytes) : NULL;
    if (data) cache_publish(job->entry, data, bytes);
    free(data);
}

static int end_job(Job *job, int status) {
    job->pid = 0;
    if (!WIFEXITED(status)) {
        fprintf(stderr, "infinic: error: NVRTC ended by signal %d on '%s'\n", WTERMSIG(status),
                job->arch);
        return EXIT_INTERNAL;
    }
    if (WEXITSTATUS(status) == 0) job_publish(job);
    return WEXITSTATUS(status);
}

/* Waits until one of the jobs that run has ended; its exit code. */
static int wait_job(Job *job, uint32_t n) {
    for (;;) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno != EINTR) return EXIT_INTERNAL;
        for (uint32_t i = 0; i < n && pid > 0; i++)
            if (job[i].pid == pid) return end_job(&job[i], status);
    }
}

/* Processors that this process may use. */
static int processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN) > 1 ? (int)sysconf(_SC_NPROCESSORS_ONLN) : 1;
}

/* After a failure no more are started. */
static int run_jobs(Job *job, uint32_t n, const char *dir, const char *name) {
    int rc = 0, running = 0, most = processors();
    for (uint32_t i = 0; (i < n && rc == 0) || running > 0;) {
        if (i == n || rc != 0 || running == most) {
            int ended = wait_job(job, n);
            if (rc == 0) rc = ended;
            running--;
            continue;
        }
        if (!job[i].done) start_job(&job[i], dir, name);
        if (job[i].pid < 0) {
            fprintf(stderr, "infinic: error: cannot start a process: %s\n", strerror(errno));
            rc = EXIT_IO;
        }
        running += job[i++].pid > 0;
    }
    return rc;
}

/* Takes the image from the cache if it is there. */
static bool job_cached(Job *job, const char *source, int version) {
    char file[PATH_BYTES + 32];
    if (!cache_entry(version, source, job->arch, job->entry)) {
        job->entry[0] = 0;
        return false;
    }
    size_t bytes;
    snprintf(file, sizeof file, "%s/image", job->entry);
    unsigned char *data = read_file(file, &bytes);
    bool ok = data && write_file(job->out, data, bytes);
    free(data);
    return ok;
}

/* The source of a part as a string in fresh memory. */
static char *source_text(const Program *p, uint32_t part) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) panic_graph(NULL, (Span){0}, "out of memory while writing the program");
    loop_print_cuda_prelude(f);
    if (part == 0) loop_print_cuda_stage(f);
    program_print_part(p, part, f);
    fclose(f);
    return text;
}

/* Version of the library that is there, 0 after saying what is wrong with it or an architecture. */
static int check_library(const Program *p) {
    Nvrtc *nvrtc = nvrtc_open(stderr);
    int version = nvrtc ? nvrtc_version(nvrtc) : 0;
    for (uint32_t i = 0; i < p->images.n && version; i++)
        if (!nvrtc_knows(nvrtc, p->images.data[i].arch, stderr)) version = 0;
    nvrtc_close(nvrtc);
    return version;
}

/* Writes the part's source; takes from the cache what is there. */
static int open_part(const Program *p, uint32_t part, const char *dir, int version, Job *job) {
    char path[PATH_BYTES], *source = source_text(p, part);
    snprintf(path, sizeof path, "%s/source%u.cu", dir, part);
    bool ok = write_file(path, (unsigned char *)source, strlen(source));
    if (!ok) fprintf(stderr, "infinic: error: cannot write '%s': %s\n", path, strerror(errno));
    for (uint32_t i = 0; i < p->images.n && ok; i++)
        if (job[i].part == part) job[i].done = job_cached(&job[i], source, version);
    free(source);
    return ok ? 0 : EXIT_IO;
}

int image_compile(const Program *p, const char *dir, bool verbose) {
    int version = check_library(p), rc = 0;
    if (!version) return EXIT_IO;
    Job *job = ARENA_ARRAY(p->arena, Job, p->images.n);
    for (uint32_t i = 0; i < p->images.n; i++) {
        job[i].arch = p->images.data[i].arch;
        job[i].part = p->images.data[i].part;
        job[i].number = i;
        snprintf(job[i].out, sizeof job[i].out, "%s/image%u", dir, i);
    }
    for (uint32_t part = 0; part < p->parts && rc == 0; part++)
        rc = open_part(p, part, dir, version, job);
    for (uint32_t i = 0; i < p->images.n && rc == 0 && verbose; i++)
        fprintf(stderr, "%s, part %u of %u: %s\n", job[i].arch, job[i].part + 1, p->parts,
                job[i].done ? "cached" : "NVRTC");
    return rc ? rc : run_jobs(job, p->images.n, dir, p->mod->file);
}
