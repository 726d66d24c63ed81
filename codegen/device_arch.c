/* device_arch.c - asks libcuda, when there is one, for the first GPU's architecture. */
#include "codegen/codegen.h"
#include "codegen/nvrtc.h"

#include <dlfcn.h>
#include <string.h>

typedef int CudaInit(unsigned flags);
typedef int CudaCount(int *count);
typedef int CudaAttribute(int *value, int which, int device);

enum { MAJOR = 75, MINOR = 76, FEATURES_MAJOR_MIN = 9 };

static void *symbol(void *handle, const char *name, void *function) {
    void *address = dlsym(handle, name);
    memcpy(function, &address, sizeof address);
    return address;
}

/* From 9.0 on chips have features of their own ("sm_90a"). */
const char *codegen_device_arch(Arena *arena) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CudaInit *init;
    CudaCount *count;
    CudaAttribute *attribute;
    int devices = 0, major = 0, minor = 0;
    const char *arch = NULL;
    if (!handle) return NULL;
    if (symbol(handle, "cuInit", &init) && symbol(handle, "cuDeviceGetCount", &count) &&
        symbol(handle, "cuDeviceGetAttribute", &attribute) && init(0) == 0 &&
        count(&devices) == 0 && devices > 0 && attribute(&major, MAJOR, 0) == 0 &&
        attribute(&minor, MINOR, 0) == 0)
        arch =
            arena_printf(arena, "sm_%d%d%s", major, minor, major >= FEATURES_MAJOR_MIN ? "a" : "");
    dlclose(handle);
    return arch;
}

bool codegen_has_nvrtc(void) {
    Nvrtc *n = nvrtc_open(NULL);
    nvrtc_close(n);
    return n != NULL;
}
