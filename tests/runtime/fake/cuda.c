/* cuda.c - the fake driver: fake.h; its streams are in streams.c. */
#include "tests/runtime/fake/fake.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "tests/runtime/fake/streams.h"

enum { OK = FAKE_OK, INVALID = FAKE_INVALID, FAILED = FAKE_FAILED };
enum { NO_MEMORY = 2, NO_DEVICE = 100, BAD_IMAGE = 200 };

typedef struct Function {
    FakeKernel kernel;
    unsigned shared; /* bytes that launches may ask for; 0: 48 KiB */
} Function;

typedef struct Module {
    Function *function;
    int count;
} Module;

typedef struct Call {
    FakeLaunch launch;
    const FakeKernel *kernel;
} Call;

typedef struct Copy {
    void *to;
    const void *from;
    size_t bytes;
} Copy;

static long launches;
static uint64_t taken_bytes;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* --- device and memory --- */

int cuInit(unsigned flags) {
    (void)flags;
    return setting("FAKE_DEVICES", 1) > 0 ? OK : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    *version = (int)setting("FAKE_DRIVER", 13000);
    return OK;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == FAILED ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return OK;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == FAILED ? "an illegal memory access was encountered" : "an error";
    return OK;
}

int cuDeviceGetCount(int *count) {
    *count = (int)setting("FAKE_DEVICES", 1);
    return OK;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return OK;
}

int cuDeviceGetName(char *name, int bytes, int device) {
    (void)device;
    snprintf(name, (size_t)bytes, "Fake Device");
    return OK;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    memset(uuid, 0, 16);
    uuid[0] = (unsigned char)(1 + device);
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    long arch = setting("FAKE_ARCH", 90);
    (void)device;
    *value = (int)(attribute == 16   ? 132 /* multiprocessors */
                   : attribute == 75 ? arch / 10
                   : attribute == 76 ? arch % 10
                   : attribute == 97 ? setting("FAKE_SHARED", 232448)
                                     : 1000);
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &taken_bytes;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return OK;
}

int cuCtxSetCurrent(void *context) {
    (void)context;
    return OK;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = (size_t)setting("FAKE_MEMORY", 1L << 30);
    *free_bytes = *total - (size_t)taken_bytes;
    return OK;
}

int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    if (bytes + taken_bytes > (size_t)setting("FAKE_MEMORY", 1L << 30)) return NO_MEMORY;
    unsigned char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
    if (!memory) return NO_MEMORY;
    memset(memory, 0xA5, bytes + 4096);
    memcpy(memory, &bytes, sizeof bytes);
    *at = (uint64_t)(uintptr_t)memory + 4096 + fake_shift;
    taken_bytes += bytes;
    return OK;
}

int cuMemFree_v2(uint64_t at) {
    unsigned char *memory = (unsigned char *)fake_pointer(at) - 4096;
    size_t bytes;
    memcpy(&bytes, memory, sizeof bytes);
    taken_bytes -= bytes;
    free(memory);
    return OK;
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
    memset(fake_pointer(at), value, bytes);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    memcpy(fake_pointer(to), from, bytes);
    return OK;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, fake_pointer(from), bytes);
    return OK;
}

static void run_set(void *data) {
    const Copy *set = data;
    memset(set->to, (int)(uintptr_t)set->from, set->bytes);
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream *s) {
    Copy *set = fake_keep(sizeof *set);
    *set = (Copy){fake_pointer(at), (const void *)(uintptr_t)value, bytes};
    fake_put(s, (Work){.run = run_set, .data = set});
    return OK;
}

static void run_copy(void *data) {
    const Copy *copy = data;
    memcpy(copy->to, copy->from, copy->bytes);
}

static int copy_later(void *to, const void *from, size_t bytes, Stream *s) {
    Copy *copy = fake_keep(sizeof *copy);
    *copy = (Copy){to, from, bytes};
    fake_put(s, (Work){.run = run_copy, .data = copy});
    return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *s) {
    return copy_later(fake_pointer(to), from, bytes, s);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *s) {
    return copy_later(fake_pointer(to), fake_pointer(from), bytes, s);
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    (void)flags;
    *at = calloc(1, bytes);
    return *at ? OK : NO_MEMORY;
}

int cuMemFreeHost(void *at) {
    free(at);
    return OK;
}

/* --- modules --- */

/* What the kernels of runtime/cuda_glue.h do. */
static void run_begin(const FakeLaunch *l) {
    const uint32_t *counter = fake_pointer(l->value[1].address);
    const InfTicket *ring = fake_pointer(l->value[0].address);
    const InfTicket *ticket = ring + *counter % INF_DEVICE_DEPTH;
    memcpy(fake_pointer(l->value[2].address), &ticket->moment, sizeof ticket->moment);
    memcpy(fake_pointer(l->value[3].address),
           ticket->scalar[(counter[1] - (uint32_t)ticket->applied) % INF_DEVICE_DEPTH],
           sizeof ticket->scalar[0]);
}

static void run_end(const FakeLaunch *l) {
    uint32_t *counter = fake_pointer(l->value[1].address), words = l->value[3].word;
    unsigned char *ring = fake_pointer(l->value[0].address);
    memcpy(ring + *counter % INF_DEVICE_DEPTH * words * 4, fake_pointer(l->value[2].address),
           words * 4);
    counter[0] += 1;
    const float *ok = l->value[4].address ? fake_pointer(l->value[4].address) : NULL;
    if (ok && *ok != 0.0f) counter[1] += 1;
}

static void run_join(const FakeLaunch *l) { (void)l; }

static void run_plus(const FakeLaunch *l) {
    float *out = fake_pointer(l->value[0].address);
    for (int64_t i = 0; i < 4 * l->value[6].whole; i++) {
        float sum = ((const float *)fake_pointer(l->value[1].address))[i];
        for (uint32_t k = 1; k < l->value[5].word; k++)
            sum = ((const float *)fake_pointer(l->value[1 + k].address))[i] + sum;
        out[i] = sum;
    }
}

static void run_tree(const FakeLaunch *l) {
    float *rows = fake_pointer(l->value[0].address);
    uint32_t count = l->value[1].word, width = l->value[2].word;
    for (uint32_t apart = 1; apart < count; apart *= 2)
        for (uint32_t i = 0; i + apart < count; i += 2 * apart)
            for (uint32_t k = 0; k < width; k++)
                rows[i * width + k] += rows[(i + apart) * width + k];
    memcpy(fake_pointer(l->value[3].address), rows, width * sizeof *rows);
}

static const FakeKernel glue[] = {{"inf_begin", "pppp", run_begin, NULL},
                                  {"inf_end", "pppwp", run_end, NULL},
                                  {"inf_join", "", run_join, NULL},
                                  {"inf_plus", "pppppwl", run_plus, NULL},
                                  {"inf_tree", "pwwp", run_tree, NULL}};

int cuModuleLoadDataEx(Module **out, const void *image, unsigned count, int *options,
                       void **values) {
    FakeImage text = {FAKE_MAGIC, glue, sizeof glue / sizeof *glue};
    (void)count;
    (void)options;
    (void)values;
    if (memcmp(image, FAKE_MAGIC, 8) == 0)
        memcpy(&text, image, sizeof text);
    else if (strncmp(image, ".version", 8) != 0)
        return BAD_IMAGE;
    else if (!strstr(image, ".entry inf_begin"))
        text = (FakeImage){FAKE_MAGIC, fake_shared_kernels, (uint64_t)fake_shared_kernel_count};
    *out = calloc(1, sizeof **out);
    (*out)->function = calloc(text.count, sizeof(Function));
    (*out)->count = (int)text.count;
    for (uint64_t i = 0; i < text.count; i++) (*out)->function[i].kernel = text.kernel[i];
    return OK;
}

int cuModuleUnload(Module *module) {
    free(module->function);
    free(module);
    return OK;
}

int cuModuleGetFunction(Function **out, Module *module, const char *name) {
    for (int i = 0; i < module->count; i++) {
        *out = &module->function[i];
        if (strcmp((*out)->kernel.name, name) == 0) return OK;
    }
    return INVALID;
}

int cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute == 8) function->shared = (unsigned)value;
    return OK;
}

static void run_call(void *data) {
    const Call *call = data;
    launches++;
    if (launches == setting("FAKE_FAIL_LAUNCH", -1)) fake_failed = true;
    if (!fake_failed) call->kernel->run(&call->launch);
}

int cuLaunchKernel(Function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream *s, void **arguments,
                   void **extra) {
    Call *call = fake_keep(sizeof *call);
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra) return INVALID;
    if (shared > (f->shared ? f->shared : 48u << 10)) return INVALID;
    call->kernel = &f->kernel;
    call->launch = (FakeLaunch){.grid = grid_x, .block = block_x, .context = f->kernel.context};
    for (int i = 0; f->kernel.parameters[i]; i++) {
        char letter = f->kernel.parameters[i];
        size_t bytes = letter == 'w'   ? 4
                       : letter == 'e' ? sizeof(InfDeviceEnv)
                       : letter == 's' ? sizeof(PlanSizes)
                                       : 8;
        memcpy(&call->launch.value[i], arguments[i], bytes);
    }
    fake_put(s, (Work){.run = run_call, .data = call});
    return OK;
}
