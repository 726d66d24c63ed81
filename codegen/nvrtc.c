/* nvrtc.c - finds libnvrtc and compiles with it; see nvrtc.h.
 *
 * --fmad=false: no multiply-add is formed but those written as such, so a fused kernel has the bits
 * of its parts. Division, square roots and denormals are IEEE's by default. PTX is for chips that
 * nobody named and goes through the driver's compiler, too: it is made with less effort, in a third
 * less time, where the library is new enough to offer that.
 */
#include "codegen/nvrtc.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct Table {
#define NVRTC(result, name, parameters) result(*name) parameters;
#include "codegen/nvrtc_syms.def"
} Table;

struct Nvrtc {
    void *handle;
    Table f;
    int version;
};

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
static const char *const folders[] = {"/usr/local/cuda/lib64",
                                      "/usr/local/cuda/targets/x86_64-linux/lib",
                                      "/usr/local/cuda-13/lib64",
                                      "/usr/local/cuda-12/lib64",
                                      "/opt/cuda/lib64",
                                      "/usr/lib/x86_64-linux-gnu",
                                      "/usr/lib64"};
static const char *const options[] = {"--fmad=false", "--std=c++17"};
static const char quick_option[] = "--Ofast-compile=min";

enum {
    NAMES = sizeof names / sizeof names[0],
    FOLDERS = sizeof folders / sizeof folders[0],
    OPTIONS = sizeof options / sizeof options[0],
    PATH_BYTES = 4096,
    INVALID_OPTION = 5
};

const char *nvrtc_options_text(void) {
    return "--fmad=false --std=c++17 (PTX: --Ofast-compile=min)";
}

/* --- finding it --- */

static void *open_in(const char *folder, const char *sub) {
    char path[PATH_BYTES];
    void *handle = NULL;
    for (int i = 0; i < NAMES && !handle; i++) {
        int n = snprintf(path, sizeof path, "%s%s/%s", folder, sub, names[i]);
        if (n < (int)sizeof path) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

static void *find_library(void) {
    void *handle = NULL;
    const char *home = getenv("CUDA_HOME");
    if (home && *home) handle = open_in(home, "/lib64");
    if (home && *home && !handle) handle = open_in(home, "/lib");
    for (int i = 0; i < NAMES && !handle; i++) handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < FOLDERS && !handle; i++) handle = open_in(folders[i], "");
    return handle;
}

static void say_missing(FILE *why) {
    const char *home = getenv("CUDA_HOME");
    fputs("infinic: error: NVRTC, NVIDIA's CUDA compiler, is not on this machine\n  = note: looked "
          "for ",
          why);
    for (int i = 0; i < NAMES; i++) fprintf(why, "%s%s", i ? ", " : "", names[i]);
    fputs(" among the system's libraries and in ", why);
    if (home && *home) fprintf(why, "%s/lib64, ", home);
    for (int i = 0; i < FOLDERS; i++) fprintf(why, "%s%s", i ? ", " : "", folders[i]);
    fputs(
        "\n  = hint: install it (CUDA's package cuda-nvrtc; no GPU is needed), or say where it is: "
        "CUDA_HOME=DIR; or compile for the CPU: --target=cpu\n",
        why);
}

static bool find_symbols(Nvrtc *n, const char **missing) {
    void *address;
#define NVRTC(result, name, parameters)                                                            \
    address = dlsym(n->handle, #name);                                                             \
    if (!address) {                                                                                \
        *missing = #name;                                                                          \
        return false;                                                                              \
    }                                                                                              \
    memcpy(&n->f.name, &address, sizeof address);
#include "codegen/nvrtc_syms.def"
    return true;
}

Nvrtc *nvrtc_open(FILE *why) {
    void *handle = find_library();
    if (!handle) {
        if (why) say_missing(why);
        return NULL;
    }
    Nvrtc *n = calloc(1, sizeof *n);
    const char *missing = "memory";
    int major = 0, minor = 0;
    if (n) n->handle = handle;
    if (n && find_symbols(n, &missing) && n->f.nvrtcVersion(&major, &minor) == 0) {
        n->version = 1000 * major + 10 * minor;
        return n;
    }
    if (why)
        fprintf(why,
                "infinic: error: the libnvrtc on this machine cannot be used: it lacks %s\n"
                "  = hint: CUDA 12 or 13 has what is needed; CUDA_HOME=DIR says where to look\n",
                missing);
    free(n);
    dlclose(handle);
    return NULL;
}

void nvrtc_close(Nvrtc *n) {
    if (n) dlclose(n->handle);
    free(n);
}

int nvrtc_version(const Nvrtc *n) { return n->version; }

/* --- architectures --- */

bool nvrtc_knows(const Nvrtc *n, const char *arch, FILE *why) {
    int count = 0, list[128], number = 0;
    char suffix = 0;
    bool form = sscanf(arch, "sm_%d%c", &number, &suffix) >= 1 ||
                sscanf(arch, "compute_%d%c", &number, &suffix) >= 1;
    if (n->f.nvrtcGetNumSupportedArchs(&count) != 0 || count > 128 ||
        n->f.nvrtcGetSupportedArchs(list) != 0)
        return form;
    for (int i = 0; i < count && form; i++)
        if (list[i] == number) return true;
    if (!why) return false;
    fprintf(why, "infinic: error: NVRTC %d.%d does not know the architecture '%s'; it has",
            n->version / 1000, n->version % 1000 / 10, arch);
    for (int i = 0; i < count; i++) fprintf(why, "%s sm_%d", i ? "," : "", list[i]);
    fputc('\n', why);
    return false;
}

/* --- compiling --- */

static char *program_log(const Nvrtc *n, void *program) {
    size_t bytes = 0;
    if (n->f.nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes < 2) return NULL;
    char *log = malloc(bytes);
    if (log && n->f.nvrtcGetProgramLog(program, log) == 0) return log;
    free(log);
    return NULL;
}

static void take_result(const Nvrtc *n, void *program, bool ptx, NvrtcImage *image) {
    size_t bytes = 0;
    int rc = ptx ? n->f.nvrtcGetPTXSize(program, &bytes) : n->f.nvrtcGetCUBINSize(program, &bytes);
    char *data = rc == 0 && bytes > 0 ? malloc(bytes) : NULL;
    if (!data) return;
    rc = ptx ? n->f.nvrtcGetPTX(program, data) : n->f.nvrtcGetCUBIN(program, data);
    if (rc != 0) {
        free(data);
        return;
    }
    image->bytes = (unsigned char *)data;
    image->n = bytes;
}

/* NVRTC's error code. */
static int compile(const Nvrtc *n, const char *source, const char *name, const char *arch,
                   bool quick, NvrtcImage *image) {
    void *program = NULL;
    char arch_option[64];
    const char *list[OPTIONS + 2] = {arch_option};
    snprintf(arch_option, sizeof arch_option, "--gpu-architecture=%s", arch);
    memcpy(list + 1, options, sizeof options);
    list[OPTIONS + 1] = quick_option;
    int rc = n->f.nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
    if (rc != 0) return rc;
    rc = n->f.nvrtcCompileProgram(program, OPTIONS + 1 + quick, list);
    image->log = program_log(n, program);
    if (rc == 0) take_result(n, program, strncmp(arch, "compute", 7) == 0, image);
    n->f.nvrtcDestroyProgram(&program);
    return rc;
}

NvrtcImage nvrtc_compile(const Nvrtc *n, const char *source, const char *name, const char *arch) {
    NvrtcImage image = {0};
    bool quick = strncmp(arch, "compute", 7) == 0;
    if (compile(n, source, name, arch, quick, &image) == INVALID_OPTION && quick) {
        free(image.log);
        image.log = NULL;
        compile(n, source, name, arch, false, &image);
    }
    return image;
}
