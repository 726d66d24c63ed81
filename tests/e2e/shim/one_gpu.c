/* one_gpu.c - see one_gpu.h. */
#include "tests/e2e/shim/one_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 256, GRID_MOST = 128, SHARE_PORTABLE = 1, SHARE_MAPPED = 2 };

/* A thread's first element in %i, their count in %n, the step in %d. Others write what is read here
 * through their own addresses: nothing may come from a cache. */
#define KERNEL_BEGIN                                                                               \
    "  mov.u32 %a, %ctaid.x;\n"                                                                    \
    "  mov.u32 %b, %ntid.x;\n"                                                                     \
    "  mov.u32 %c, %tid.x;\n"                                                                      \
    "  cvt.u64.u32 %i, %c;\n"                                                                      \
    "  mad.wide.u32 %i, %a, %b, %i;\n"                                                             \
    "  mov.u32 %a, %nctaid.x;\n"                                                                   \
    "  mul.wide.u32 %d, %a, %b;\n"                                                                 \
    "LOOP:\n"                                                                                      \
    "  setp.ge.u64 %p, %i, %n;\n"                                                                  \
    "  @%p bra DONE;\n"
#define KERNEL_END                                                                                 \
    "  add.u64 %i, %i, %d;\n"                                                                      \
    "  bra LOOP;\n"                                                                                \
    "DONE:\n"                                                                                      \
    "  ret;\n"                                                                                     \
    "}\n"
#define COPY(bytes, kind, words)                                                                   \
    ".visible .entry copy" bytes "(.param .u64 to, .param .u64 from, .param .u64 count)\n"         \
    "{\n"                                                                                          \
    "  .reg .pred %p;\n"                                                                           \
    "  .reg .b32 %a, %b, %c, %w0, %w1, %w2, %w3;\n"                                                \
    "  .reg .b64 %i, %n, %d, %to, %from, %x, %y;\n"                                                \
    "  ld.param.u64 %to, [to];\n"                                                                  \
    "  ld.param.u64 %from, [from];\n"                                                              \
    "  ld.param.u64 %n, [count];\n" KERNEL_BEGIN "  mad.lo.u64 %x, %i, " bytes ", %from;\n"        \
    "  mad.lo.u64 %y, %i, " bytes ", %to;\n"                                                       \
    "  ld.volatile.global" kind " " words ", [%x];\n"                                              \
    "  st.volatile.global" kind " [%y], " words ";\n" KERNEL_END

static const char text[] = /**/
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n" COPY("16", ".v4.u32", "{%w0, %w1, %w2, %w3}") COPY("4", ".u32", "%w0")
        COPY("1", ".u8",
             "%w0") ".visible .entry sum(.param .u64 to, .param .u64 own, .param .u64 others, "
                    ".param .u64 stride,\n"
                    "                    .param .u32 rank, .param .u32 ranks, .param .u64 count)\n"
                    "{\n"
                    "  .reg .pred %p;\n"
                    "  .reg .b32 %a, %b, %c, %r, %rank, %ranks;\n"
                    "  .reg .b64 %i, %n, %d, %to, %own, %others, %stride, %x, %y;\n"
                    "  .reg .f32 %s, %f;\n"
                    "  ld.param.u64 %to, [to];\n"
                    "  ld.param.u64 %own, [own];\n"
                    "  ld.param.u64 %others, [others];\n"
                    "  ld.param.u64 %stride, [stride];\n"
                    "  ld.param.u32 %rank, [rank];\n"
                    "  ld.param.u32 %ranks, [ranks];\n"
                    "  ld.param.u64 %n, [count];\n" KERNEL_BEGIN "  mov.u32 %r, 0;\n"
                    "NEXT:\n"
                    "  cvt.u64.u32 %y, %r;\n"
                    "  mad.lo.u64 %x, %y, %stride, %others;\n"
                    "  setp.eq.u32 %p, %r, %rank;\n"
                    "  selp.b64 %x, %own, %x, %p;\n"
                    "  mad.lo.u64 %x, %i, 4, %x;\n"
                    "  ld.volatile.global.f32 %f, [%x];\n"
                    "  setp.eq.u32 %p, %r, 0;\n"
                    "  @%p mov.f32 %s, %f;\n"
                    "  @!%p add.rn.f32 %s, %s, %f;\n"
                    "  add.u32 %r, %r, 1;\n"
                    "  setp.lt.u32 %p, %r, %ranks;\n"
                    "  @%p bra NEXT;\n"
                    "  mad.lo.u64 %y, %i, 4, %to;\n"
                    "  st.volatile.global.f32 [%y], %s;\n" KERNEL_END;

static const char *fail(const char *what, const char *which) {
    static char message[160];
    snprintf(message, sizeof message, "%s %s", what, which);
    return message;
}

static const char *find(const Gpu *g, const char *name, void *to) {
    void *address = dlsym(g->library, name);
    memcpy(to, &address, sizeof address);
    return address ? NULL : fail("the driver has no function", name);
}

const char *gpu_open(Gpu *g) {
    static const char *const kernels[] = {"copy16", "copy4", "copy1", "sum"};
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
#define SYM(member, symbol, arguments) {#symbol, &g->call.member},
#include "runtime/cuda_syms.def"
        {"cuStreamBatchMemOp_v2", &g->flag},
        {"cuMemHostRegister_v2", &g->pin},
        {"cuMemHostUnregister", &g->unpin},
        {"cuMemHostGetDevicePointer_v2", &g->address},
    };
    CuFunction *const functions[] = {&g->copy[0], &g->copy[1], &g->copy[2], &g->sum};
    *g = (Gpu){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!g->library) return fail("there is no", "libcuda.so.1");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *wrong = find(g, wanted[i].name, wanted[i].to);
        if (wrong) return wrong;
    }
    if (g->call.module_load(&g->module, text, 0, NULL, NULL) != CU_SUCCESS)
        return fail("the driver refuses", "the kernels");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (g->call.module_function(functions[i], g->module, kernels[i]) != CU_SUCCESS)
            return fail("there is no kernel", kernels[i]);
    return NULL;
}

void gpu_close(Gpu *g) {
    if (g->module) g->call.module_unload(g->module);
    if (g->library) dlclose(g->library);
    *g = (Gpu){0};
}

CuResult gpu_share(const Gpu *g, void *at, size_t bytes, CuAddress *out) {
    CuResult result = g->pin(at, bytes, SHARE_PORTABLE | SHARE_MAPPED);
    return result == CU_SUCCESS ? g->address(out, at, 0) : result;
}

void gpu_unshare(const Gpu *g, void *at) { g->unpin(at); }

static CuResult launch(const Gpu *g, CuFunction f, uint64_t n, CuStream stream, void **arguments) {
    uint64_t blocks = (n + BLOCK - 1) / BLOCK;
    unsigned grid = blocks < GRID_MOST ? (unsigned)blocks : GRID_MOST;
    if (n == 0) return CU_SUCCESS;
    return g->call.launch(f, grid, 1, 1, BLOCK, 1, 1, 0, stream, arguments, NULL);
}

CuResult gpu_copy(const Gpu *g, CuAddress to, CuAddress from, uint64_t bytes, CuStream stream) {
    static const unsigned width[] = {16, 4, 1};
    int k = 0;
    while ((to | from | bytes) % width[k] != 0) k++;
    uint64_t n = bytes / width[k];
    void *arguments[] = {&to, &from, &n};
    return launch(g, g->copy[k], n, stream, arguments);
}

CuResult gpu_sum(const Gpu *g, const GpuSum *s, CuStream stream) {
    GpuSum own = *s;
    void *arguments[] = {&own.to,   &own.own,   &own.others, &own.stride,
                         &own.rank, &own.count, &own.n};
    return launch(g, g->sum, own.n, stream, arguments);
}

CuResult gpu_flags(const Gpu *g, GpuFlag *flag, int count, CuStream stream) {
    return count > 0 ? g->flag(stream, (unsigned)count, flag, 0) : CU_SUCCESS;
}
