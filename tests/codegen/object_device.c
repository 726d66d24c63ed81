/* object_device.c - see object_device.h. */
#include "tests/codegen/object_device.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "codegen/nvrtc.h"
#include "runtime/cuda_driver.h"

enum { PART = 64, ARGS_MAX = 64, STRIP = 256, LENT_MAX = 1 << 16, SKIPPED = 77 };
static const size_t pool_bytes = (size_t)1 << 30;

typedef struct Lent {
    unsigned char *at;
    size_t bytes;
} Lent;

/* One copy of lent memory on the device, during a launch. */
typedef struct Copy {
    const Lent *of;
    CuAddress at;
} Copy;

struct DeviceObject {
    const DeviceEntry *entry;
    uint32_t n;
    CuModule *module; /* PART kernels each */
    CuFunction *function;
    int *args; /* by kernel: pointers before the InfDeviceEnv */
};

static Lent lent[LENT_MAX];
static int lent_count;
static InfCuda cuda;
static CuAddress pool, moment;
static bool absent; /* no device answers */

static void die(const char *what) {
    fprintf(stderr, "device: %s\n", what);
    exit(3);
}

static void check(CuResult result, const char *what) {
    InfError e = {0};
    if (inf_cuda_check(&e, &cuda, result, what) != INF_OK) die(e.text);
}

/* --- lent memory --- */

void device_lend(void *at, size_t bytes) {
    if (lent_count == LENT_MAX) die("too much memory is lent");
    lent[lent_count++] = (Lent){at, bytes};
}

/* Mostly the latest is given back first. */
void device_give_back(void *at) {
    for (int i = lent_count; i-- > 0;)
        if (lent[i].at == at) {
            lent[i] = lent[--lent_count];
            return;
        }
    die("memory is given back that was not lent");
}

static const Lent *lent_at(const void *pointer) {
    const unsigned char *at = pointer;
    for (int i = lent_count; i-- > 0;)
        if (at >= lent[i].at && at <= lent[i].at + lent[i].bytes) return &lent[i];
    return NULL;
}

/* --- sources and cubins --- */

static void print_part(const DeviceObject *d, uint32_t begin, uint32_t end, const char *prelude,
                       FILE *out) {
    fputs(prelude, out);
    for (uint32_t i = begin; i < end; i++) {
        const char *name = d->entry[i].name;
        fprintf(out, "namespace k%u {\n#define %s k%u_kernel\n%s\n#undef %s\n}\n", i, name, i,
                d->entry[i].text, name);
    }
}

/* Parameters of a kernel of ours: pointers, then an InfDeviceEnv. */
static int count_args(const DeviceEntry *e) {
    char head[256];
    snprintf(head, sizeof head, " %s(", e->name);
    const char *at = strstr(e->text, head), *end = at ? strstr(at, "InfDeviceEnv") : NULL;
    int count = 0;
    if (!end) die(e->text);
    for (; at < end; at++) count += *at == ',';
    return count;
}

static unsigned char *read_file(const char *path) {
    struct stat st;
    FILE *in = fopen(path, "rb");
    if (!in) return NULL;
    if (fstat(fileno(in), &st) != 0) die(path);
    unsigned char *bytes = malloc((size_t)st.st_size + 1);
    if (!bytes || fread(bytes, 1, (size_t)st.st_size, in) != (size_t)st.st_size) die(path);
    fclose(in);
    return bytes;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(bytes, 1, n, out) != n || fclose(out) != 0) die(path);
}

/* Fresh memory. */
static unsigned char *compile(const char *source, const char *arch) {
    static Nvrtc *nvrtc;
    const char *folder = getenv("INFINIC_TEST_CUBINS");
    char path[4096] = "";
    if (folder)
        snprintf(path, sizeof path, "%s/%016llx.%s.cubin", folder,
                 (unsigned long long)XXH64(source, strlen(source), 0), arch);
    unsigned char *found = folder ? read_file(path) : NULL;
    if (found) return found;
    if (!nvrtc && !(nvrtc = nvrtc_open(stderr))) exit(SKIPPED);
    NvrtcImage image = nvrtc_compile(nvrtc, source, "kernels.cu", arch);
    if (!image.bytes) die(image.log ? image.log : "a kernel does not compile");
    if (folder) write_file(path, image.bytes, image.n);
    free(image.log);
    return image.bytes;
}

/* --- the device --- */

/* Without a device everything is compiled, and what the tests then say of results is not believed.
 */
static void skip(void) { _exit(SKIPPED); }

static bool open_device(void) {
    InfError e = {0};
    if (pool || absent) return !absent;
    absent = inf_cuda_open(&e, 0, &cuda) != INF_OK;
    if (absent) {
        fprintf(stderr, "compiled only: %s\n", e.text);
        atexit(skip);
        return false;
    }
    check(cuda.call.memory_take(&pool, pool_bytes), "memory");
    check(cuda.call.memory_take(&moment, sizeof(InfDeviceMoment)), "memory");
    return true;
}

static void load_part(DeviceObject *d, uint32_t begin, uint32_t end, const unsigned char *image) {
    CuModule *module = &d->module[begin / PART];
    check(cuda.call.module_load(module, image, 0, NULL, NULL), "loading kernels");
    for (uint32_t i = begin; i < end; i++) {
        char name[32];
        uint32_t shared = d->entry[i].shared_bytes;
        snprintf(name, sizeof name, "k%u_kernel", i);
        check(cuda.call.module_function(&d->function[i], *module, name), name);
        if (shared > 48 << 10)
            check(cuda.call.function_set(d->function[i], CU_FUNCTION_DYNAMIC_SHARED_BYTES,
                                         (int)shared),
                  name);
    }
}

DeviceObject *device_object_new(const DeviceEntry *entry, uint32_t n, const char *prelude) {
    const char *arch = getenv("INFINIC_TEST_ARCH");
    DeviceObject *d = calloc(1, sizeof *d);
    if (!d) die("memory");
    d->entry = entry;
    d->n = n;
    d->module = calloc(n / PART + 1, sizeof(CuModule));
    d->function = calloc(n + 1, sizeof(CuFunction));
    d->args = calloc(n + 1, sizeof *d->args);
    if (!d->module || !d->function || !d->args) die("memory");
    for (uint32_t i = 0; i < n; i++) d->args[i] = count_args(&entry[i]);
    for (uint32_t begin = 0; begin < n; begin += PART) {
        uint32_t end = n - begin > PART ? begin + PART : n;
        char *source = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&source, &bytes);
        if (!out) die("memory");
        print_part(d, begin, end, prelude, out);
        fclose(out);
        unsigned char *image = compile(source, arch ? arch : "sm_90a");
        if (open_device()) load_part(d, begin, end, image);
        free(image);
        free(source);
    }
    return d;
}

void device_object_free(DeviceObject *d) {
    for (uint32_t i = 0; !absent && i * PART < d->n; i++) cuda.call.module_unload(d->module[i]);
    free(d->module);
    free(d->function);
    free(d->args);
    free(d);
}

/* --- launches --- */

/* The copy of what an argument reaches; made where it is not there yet, as far from a multiple of
 * 256 as the host's. */
static CuAddress copy_in(Copy *copy, int *copies, CuAddress *end, const void *argument) {
    const Lent *of = lent_at(argument);
    if (!of) die("an argument is not in lent memory");
    CuAddress inside = (CuAddress)((const unsigned char *)argument - of->at);
    for (int i = 0; i < *copies; i++)
        if (copy[i].of == of) return copy[i].at + inside;
    CuAddress at = (*end + 2 * STRIP) / STRIP * STRIP + (CuAddress)(uintptr_t)of->at % STRIP;
    *end = at + of->bytes + STRIP;
    if (*end > pool + pool_bytes) die("the arguments do not fit");
    check(cuda.call.memory_set(at - STRIP, 0xA5, of->bytes + 2 * STRIP), "memory");
    check(cuda.call.copy_in(at, of->at, of->bytes), "copying in");
    copy[(*copies)++] = (Copy){of, at};
    return at + inside;
}

static void copy_out(const Copy *copy) {
    unsigned char strip[STRIP];
    check(cuda.call.copy_out(copy->of->at, copy->at, copy->of->bytes), "copying out");
    for (int side = 0; side < 2; side++) {
        CuAddress at = side ? copy->at + copy->of->bytes : copy->at - STRIP;
        check(cuda.call.copy_out(strip, at, STRIP), "copying out");
        for (int i = 0; i < STRIP; i++)
            if (strip[i] != 0xA5) die("a kernel wrote outside of its arguments");
    }
}

void device_object_run(DeviceObject *d, uint32_t i, void *const *arg, const InfEnv *env) {
    Copy copy[ARGS_MAX];
    CuAddress at[ARGS_MAX], end = pool;
    void *arguments[ARGS_MAX + 1];
    int copies = 0;
    if (absent) return;
    InfDeviceMoment now = {.seed = env->seed, .step = (uint64_t)env->step};
    InfDeviceEnv own = {.moment = (const void *)(uintptr_t)moment,
                        .microbatch = (int32_t)env->microbatch};
    for (int k = 0; k < PLAN_REPEAT_DEPTH_MAX; k++) own.iter[k] = (int32_t)env->iter[k];
    check(cuda.call.copy_in(moment, &now, sizeof now), "copying in");
    for (int k = 0; k < d->args[i]; k++) {
        at[k] = copy_in(copy, &copies, &end, arg[k]);
        arguments[k] = &at[k];
    }
    for (uint32_t next = i + 1; next > 0; next = d->entry[next - 1].then) {
        const DeviceEntry *e = &d->entry[next - 1];
        arguments[d->args[next - 1]] = &own;
        if (e->grid == 0) continue; /* nothing to do */
        check(cuda.call.launch(d->function[next - 1], e->grid, 1, 1, e->block, 1, 1,
                               e->shared_bytes, NULL, arguments, NULL),
              e->text);
    }
    check(cuda.call.context_sync(), d->entry[i].text);
    for (int k = 0; k < copies; k++) copy_out(&copy[k]);
}
