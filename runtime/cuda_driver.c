/* cuda_driver.c - opens the driver and a device, and loads device code. */
#include "runtime/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"

static const char *const library_names[] = {"libcuda.so.1", "libcuda.so", NULL};
static const char *const driver_hint =
    "this program was built for NVIDIA GPUs; run it on a machine with one and its driver, or build "
    "it for the CPU: infinic --target=cpu";

InfCode inf_cuda_check(InfError *e, const InfCuda *c, CuResult result, const char *what) {
    const char *name = NULL, *text = NULL;
    if (result == CU_SUCCESS) return INF_OK;
    if (c->call.error_name(result, &name) != CU_SUCCESS || !name) name = "an unknown error";
    if (c->call.error_text(result, &text) != CU_SUCCESS || !text) text = "no description";
    return inf_fail(e, INF_IO, "%s: %s (%d): %s", what, name, result, text);
}

#define CHECK(call_, what) TRY(inf_cuda_check(e, c, (call_), (what)))

static InfCode find_device(InfError *e, int local_rank, InfCuda *c) {
    int count = 0;
    CuResult result = c->call.init(0);
    if (result == CU_SUCCESS) result = c->call.device_count(&count);
    if (result == CU_ERROR_NO_DEVICE || (result == CU_SUCCESS && count == 0)) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return inf_fail(e, INF_IO,
                        "no CUDA device: the driver (CUDA %d.%d) sees none%s%s%s\n"
                        "  = hint: %s",
                        c->version / 1000, c->version % 1000 / 10,
                        visible ? " among CUDA_VISIBLE_DEVICES='" : "", visible ? visible : "",
                        visible ? "'" : "", driver_hint);
    }
    CHECK(result, "the CUDA driver does not start");
    c->visible = count;
    CHECK(c->call.device_get(&c->device, local_rank % count), "cuDeviceGet");
    CHECK(c->call.device_uuid(c->uuid, c->device), "cuDeviceGetUuid");
    CHECK(c->call.device_name(c->name, (int)sizeof c->name, c->device), "cuDeviceGetName");
    const struct {
        int attribute, *to;
    } wanted[] = {
        {CU_ATTRIBUTE_CAPABILITY_MAJOR, &c->major},
        {CU_ATTRIBUTE_CAPABILITY_MINOR, &c->minor},
        {CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, &c->multiprocessors},
        {CU_ATTRIBUTE_CLOCK_RATE_KHZ, &c->clock_khz},
        {CU_ATTRIBUTE_BLOCK_SHARED_BYTES_MOST, &c->shared_bytes},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CHECK(c->call.device_attribute(wanted[i].to, wanted[i].attribute, c->device),
              "cuDeviceGetAttribute");
    return INF_OK;
}

InfCode inf_cuda_open(InfError *e, int local_rank, InfCuda *c) {
    *c = (InfCuda){0};
    const InfSymbol symbols[] = {
#define SYM(member, symbol, arguments) {#symbol, &c->call.member},
#include "runtime/cuda_syms.def"
    };
    const InfLibrary driver = {library_names, false, "the NVIDIA driver", driver_hint};
    TRY(inf_library_open(e, &driver, symbols, (int)(sizeof symbols / sizeof *symbols),
                         &c->library));
    CHECK(c->call.driver_version(&c->version), "cuDriverGetVersion");
    TRY(find_device(e, local_rank, c));
    CHECK(c->call.context_retain(&c->context, c->device), "cuDevicePrimaryCtxRetain");
    CHECK(c->call.context_set(c->context), "cuCtxSetCurrent");
    return INF_OK;
}

void inf_cuda_close(InfCuda *c) {
    if (c->context) c->call.context_release(c->device);
    if (c->library) dlclose(c->library);
    *c = (InfCuda){0};
}

/* How well an image fits: 0 not at all; a cubin before PTX, a nearer architecture before others. */
static int fitness(const InfCuda *c, const char *arch) {
    int number = 0, minor;
    char suffix = '\0';
    bool cubin = sscanf(arch, "sm_%d%c", &number, &suffix) >= 1;
    if (!cubin && sscanf(arch, "compute_%d%c", &number, &suffix) < 1) return 0;
    minor = number % 10;
    if (suffix) return number == c->major * 10 + c->minor ? (cubin ? 2000 : 1000) : 0;
    if (!cubin) return number <= c->major * 10 + c->minor ? 1 + number : 0;
    return number / 10 == c->major && minor <= c->minor ? 1500 + minor : 0;
}

static InfCode fail_unfit(InfError *e, const InfCuda *c, const Plan *plan) {
    char held[256] = "";
    for (uint32_t i = 0; i < plan->nimage; i++) {
        size_t at = strlen(held);
        if (plan->image[i].part > 0) continue;
        snprintf(held + at, sizeof held - at, "%s%s", i ? ", " : "", plan->image[i].arch);
    }
    return inf_fail(e, INF_IO,
                    "this file holds no code for the device, %s (sm_%d%d): it holds code for %s\n"
                    "  = hint: build it for this device: infinic --target=cuda --arch=sm_%d%d %s",
                    c->name, c->major, c->minor, held[0] ? held : "none", c->major, c->minor,
                    plan->file);
}

static InfCode load_image(InfError *e, const InfCuda *c, const Plan *plan, const PlanImage *image,
                          CuModule *out) {
    char log[2048] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    size_t bytes = (size_t)(image->end - image->bytes);
    char *copy = malloc(bytes + 1); /* PTX ends with a zero byte */
    if (!copy) return inf_fail(e, INF_IO, "out of memory");
    memcpy(copy, image->bytes, bytes);
    copy[bytes] = '\0';
    CuResult result = c->call.module_load(out, copy, 2, options, values);
    free(copy);
    if (result == CU_ERROR_UNSUPPORTED_PTX_VERSION || result == CU_ERROR_INVALID_IMAGE ||
        result == CU_ERROR_NO_BINARY_FOR_GPU)
        return inf_fail(e, INF_IO,
                        "the driver (CUDA %d.%d) of %s cannot load this file's code for %s: it is "
                        "older than the compiler that made the code%s%s\n"
                        "  = hint: update the driver, or build on a machine with a libnvrtc of "
                        "CUDA %d.%d or older: infinic --target=cuda %s",
                        c->version / 1000, c->version % 1000 / 10, c->name, image->arch,
                        log[0] ? "; " : "", log, c->version / 1000, c->version % 1000 / 10,
                        plan->file);
    char what[128];
    snprintf(what, sizeof what, "loading the code for %s", image->arch);
    return inf_cuda_check(e, c, result, what);
}

InfCode inf_cuda_load(InfError *e, const InfCuda *c, const Plan *plan, InfCudaCode *out) {
    const char *best = NULL;
    int most = 0;
    *out = (InfCudaCode){0};
    for (uint32_t i = 0; i < plan->nimage; i++) {
        int fit = fitness(c, plan->image[i].arch);
        if (fit <= most) continue;
        most = fit;
        best = plan->image[i].arch;
    }
    if (!best) return fail_unfit(e, c, plan);
    for (uint32_t i = 0; i < plan->nimage; i++) {
        const PlanImage *image = &plan->image[i];
        INF_ASSERT(image->part < PLAN_PARTS_MAX);
        if (strcmp(image->arch, best) != 0 || out->part[image->part]) continue;
        TRY(load_image(e, c, plan, image, &out->part[image->part]));
    }
    return INF_OK;
}

void inf_cuda_unload(const InfCuda *c, InfCudaCode *code) {
    for (int i = 0; i < PLAN_PARTS_MAX; i++)
        if (code->part[i]) c->call.module_unload(code->part[i]);
    *code = (InfCudaCode){0};
}
