/* shared.c - what the fake driver has for processes that share a device (tests/e2e/shim/one_gpu.h):
 * host memory that the device uses, flags in it, and the kernels that copy and add. */
#include <stdatomic.h>
#include <string.h>

#include "tests/e2e/shim/one_gpu.h"
#include "tests/runtime/fake/fake.h"
#include "tests/runtime/fake/streams.h"

typedef struct Flags {
    unsigned count;
    GpuFlag flag[];
} Flags;

static _Atomic uint32_t *word_of(const GpuFlag *flag) { return fake_pointer(flag->at); }

/* All at once: the driver, which takes them one by one, is late. */
static bool are_ready(void *data) {
    const Flags *flags = data;
    for (unsigned i = 0; i < flags->count && !fake_failed; i++)
        if (flags->flag[i].what == GPU_AWAIT &&
            atomic_load(word_of(&flags->flag[i])) != flags->flag[i].value)
            return false;
    return true;
}

static void set_flags(void *data) {
    const Flags *flags = data;
    for (unsigned i = 0; i < flags->count && !fake_failed; i++)
        if (flags->flag[i].what == GPU_SET)
            atomic_store(word_of(&flags->flag[i]), (uint32_t)flags->flag[i].value);
}

int cuStreamBatchMemOp_v2(Stream *s, unsigned count, const GpuFlag *flag, unsigned how) {
    Flags *flags = fake_keep(sizeof *flags + count * sizeof *flag);
    if (how != 0 || count == 0 || count > 256) return FAKE_INVALID;
    for (unsigned i = 0; i < count; i++)
        if (flag[i].flags != (flag[i].what == GPU_AWAIT ? GPU_AWAIT_EQUAL : 0)) return FAKE_INVALID;
    flags->count = count;
    memcpy(flags->flag, flag, count * sizeof *flag);
    fake_put(s, (Work){.run = set_flags, .ready = are_ready, .data = flags});
    return FAKE_OK;
}

int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    return at && bytes > 0 && flags == 3 ? FAKE_OK : FAKE_INVALID;
}

int cuMemHostUnregister(void *at) { return at ? FAKE_OK : FAKE_INVALID; }

int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags) {
    *out = (uint64_t)(uintptr_t)at;
    return flags == 0 ? FAKE_OK : FAKE_INVALID;
}

static void copy(const FakeLaunch *l, size_t width) {
    memmove(fake_pointer(l->value[0].address), fake_pointer(l->value[1].address),
            (size_t)l->value[2].whole * width);
}

static void copy_16(const FakeLaunch *l) { copy(l, 16); }
static void copy_4(const FakeLaunch *l) { copy(l, 4); }
static void copy_1(const FakeLaunch *l) { copy(l, 1); }

static void sum(const FakeLaunch *l) {
    float *to = fake_pointer(l->value[0].address);
    const float *own = fake_pointer(l->value[1].address);
    const unsigned char *others = fake_pointer(l->value[2].address);
    for (int64_t i = 0; i < l->value[6].whole; i++) {
        float total = 0;
        for (uint32_t r = 0; r < l->value[5].word; r++) {
            float f = own[i];
            if (r != l->value[4].word)
                memcpy(&f, others + r * l->value[3].whole + i * (int64_t)sizeof f, sizeof f);
            total = r == 0 ? f : total + f;
        }
        to[i] = total;
    }
}

const FakeKernel fake_shared_kernels[] = {{"copy16", "ppl", copy_16, NULL},
                                          {"copy4", "ppl", copy_4, NULL},
                                          {"copy1", "ppl", copy_1, NULL},
                                          {"sum", "ppplwwl", sum, NULL}};
const int fake_shared_kernel_count = sizeof fake_shared_kernels / sizeof *fake_shared_kernels;
