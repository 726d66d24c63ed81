/* fake.h - a driver, a matrix library and NCCL without a device, for tests of the runtime's CUDA
 * side.
 *
 * libcuda.so.1 here keeps "device" memory in the host's, under addresses that fault when the host
 * follows them, and does nothing of a stream's work until somebody waits for it: a host that reads
 * too early, or reuses a buffer too early, is found out. Device code is a table of C functions: an
 * image holds a FakeImage.
 *
 * Environment: FAKE_DEVICES (1), FAKE_ARCH (90), FAKE_MEMORY (bytes, 1 GiB), FAKE_DRIVER (13000),
 * FAKE_SHARED (bytes a block may have, 232448), FAKE_FAIL_LAUNCH (the launch, from 1, after which
 * the device has failed), FAKE_NCCL_REFUSES ("memory", "register": NCCL has none, registers none).
 */
#ifndef TESTS_RUNTIME_FAKE_H
#define TESTS_RUNTIME_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAGIC "FAKECUDA"

/* Where the memory of device addresses really is; host addresses stay what they are. */
static const uint64_t fake_shift = UINT64_C(1) << 47;

static inline void *fake_pointer(uint64_t address) {
    return (void *)(uintptr_t)(address >= fake_shift ? address - fake_shift : address);
}

enum { FAKE_VALUES_MAX = 24, FAKE_VALUE_BYTES = 80 };

/* One launch: copies of its parameters. */
typedef struct FakeLaunch {
    unsigned grid, block;
    union {
        uint64_t address;
        int64_t whole;
        uint32_t word;
        unsigned char bytes[FAKE_VALUE_BYTES];
    } value[FAKE_VALUES_MAX];
    const void *context; /* of the kernel */
} FakeLaunch;

typedef struct FakeKernel {
    const char *name;
    const char *parameters; /* a letter each: p or l 8 bytes, w 4, e an InfDeviceEnv, s
                               PlanSizes */
    void (*run)(const FakeLaunch *launch);
    const void *context;
} FakeKernel;

typedef struct FakeImage {
    char magic[8];
    const FakeKernel *kernel;
    uint64_t count;
} FakeImage;

/* Adds work to a stream, for the other fakes. */
void fake_enqueue(void *stream, void (*run)(void *data), void *data);
bool fake_is_capturing(void *stream);

#endif
