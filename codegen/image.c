/* image.c - device code: the CUDA source of a program compiled once for each architecture.
 *
 * Cubins for the architectures that were asked for, and PTX of compute_80 for other chips; the
 * generated C file takes them in with .incbin. What was compiled before is found by content in
 * XDG_CACHE_HOME/infinic (~/.cache/infinic): a folder a result, named by a hash of everything it
 * depends on, and published by renaming it when it is complete.
 */
#include "codegen/loop.h"
#include "codegen/nvrtc.h"
#include "codegen/program.h"
#include "ir/panic.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { EXIT_IO = 5, PATH_BYTES = 4096 };

static const char ptx_arch[] = "compute_80";

void image_print_source(const Program *p, FILE *out) {
    loop_print_cuda_prelude(out);
    codegen_print_kernels(p, out);
}

void image_plan(Program *p) {
    static const char *const usual[] = {"sm_90a"};
    const char *const *arch = p->options->narch ? p->options->arch : usual;
    int n = p->options->narch ? p->options->narch : 1;
    for (int i = 0; i < n && i + 1 < IMAGES_MAX; i++) {
        PlanImage image = {.arch = arch[i]};
        vec_push(p->arena, &p->images, image);
    }
    PlanImage ptx = {.arch = ptx_arch};
    vec_push(p->arena, &p->images, ptx);
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
        fprintf(out, "    {\"%s\", image%u, image%u_end},\n", p->images.data[i].arch, i, i);
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
static bool cache_entry(const Nvrtc *n, const char *source, const char *arch, char *path) {
    if (!cache_folder(path)) return false;
    XXH3_state_t *state = XXH3_createState();
    if (!state) return false;
    int version = nvrtc_version(n);
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

/* --- compiling --- */

typedef struct Job {
    const Nvrtc *nvrtc;
    const char *source, *name, *arch;
    NvrtcImage image;
} Job;

static void *run_job(void *data) {
    Job *job = data;
    char entry[PATH_BYTES], file[PATH_BYTES + 32];
    bool cached = cache_entry(job->nvrtc, job->source, job->arch, entry);
    snprintf(file, sizeof file, "%s/image", entry);
    if (cached) job->image.bytes = read_file(file, &job->image.n);
    if (job->image.bytes) return NULL;
    job->image = nvrtc_compile(job->nvrtc, job->source, job->name, job->arch);
    if (job->image.bytes && cached) cache_publish(entry, job->image.bytes, job->image.n);
    return NULL;
}

/* All jobs at once: the compiler uses one thread each. */
static void run_jobs(Job *job, uint32_t n) {
    pthread_t thread[IMAGES_MAX];
    bool started[IMAGES_MAX];
    for (uint32_t i = 0; i < n; i++)
        started[i] = i + 1 < n && pthread_create(&thread[i], NULL, run_job, &job[i]) == 0;
    for (uint32_t i = 0; i < n; i++)
        if (!started[i]) run_job(&job[i]);
    for (uint32_t i = 0; i < n; i++)
        if (started[i]) pthread_join(thread[i], NULL);
}

static int keep_job(const Job *job, uint32_t i, const char *dir, bool verbose) {
    char path[PATH_BYTES];
    if (!job->image.bytes) {
        fprintf(stderr, "infinic: error: NVRTC failed for '%s'; its own words:\n%s\n", job->arch,
                job->image.log ? job->image.log : "(none)");
        return EXIT_INTERNAL;
    }
    snprintf(path, sizeof path, "%s/image%u", dir, i);
    if (verbose) fprintf(stderr, "%s: %zu bytes\n", job->arch, job->image.n);
    if (write_file(path, job->image.bytes, job->image.n)) return 0;
    fprintf(stderr, "infinic: error: cannot write '%s': %s\n", path, strerror(errno));
    return EXIT_IO;
}

/* The source as a string in fresh memory. */
static char *source_text(const Program *p) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) panic_graph(NULL, (Span){0}, "out of memory while writing the program");
    image_print_source(p, f);
    fclose(f);
    return text;
}

int image_compile(const Program *p, const char *dir, bool verbose) {
    Nvrtc *nvrtc = nvrtc_open(stderr);
    if (!nvrtc) return EXIT_IO;
    Job job[IMAGES_MAX] = {{0}};
    int rc = 0;
    for (uint32_t i = 0; i < p->images.n && !rc; i++)
        if (!nvrtc_knows(nvrtc, p->images.data[i].arch, stderr)) rc = EXIT_IO;
    if (!rc) {
        char *source = source_text(p);
        for (uint32_t i = 0; i < p->images.n; i++)
            job[i] = (Job){nvrtc, source, p->mod->file, p->images.data[i].arch, {0}};
        run_jobs(job, p->images.n);
        free(source);
    }
    for (uint32_t i = 0; i < p->images.n; i++) {
        if (!rc) rc = keep_job(&job[i], i, dir, verbose);
        free(job[i].image.bytes);
        free(job[i].image.log);
    }
    nvrtc_close(nvrtc);
    return rc;
}
