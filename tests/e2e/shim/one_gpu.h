/* one_gpu.h - the device's side of the stand-in for NCCL (one_gpu_nccl.c): copies, sums, and flags
 * in memory that several processes of one host share, all in a stream's order.
 *
 * A stream that waits for a flag waits in front of the device: no kernel spins, so the device
 * belongs to the other processes meanwhile. Everything can be captured, and a graph replayed.
 */
#ifndef TESTS_E2E_SHIM_ONE_GPU_H
#define TESTS_E2E_SHIM_ONE_GPU_H

#include "runtime/cuda_driver.h"

/* One stream operation on a flag: wait until it is `value`, or make it so. The driver's layout. */
typedef struct GpuFlag {
    int32_t what; /* GPU_AWAIT, GPU_SET */
    CuAddress at;
    uint64_t value;
    uint32_t flags;
    CuAddress alias;
    uint64_t rest;
} GpuFlag;

enum { GPU_AWAIT = 1, GPU_SET = 2, GPU_AWAIT_EQUAL = 1 };

typedef struct Gpu {
    CuFunctions call;
    CuResult (*flag)(CuStream stream, unsigned count, GpuFlag *flag, unsigned flags);
    CuResult (*pin)(void *at, size_t bytes, unsigned flags);
    CuResult (*unpin)(void *at);
    CuResult (*address)(CuAddress *out, void *at, unsigned flags);
    void *library;
    CuModule module;
    CuFunction copy[3], sum; /* copy: of 16, 4 and 1 bytes at a time */
} Gpu;

/* Elements of all ranks, added in the order of the ranks. */
typedef struct GpuSum {
    CuAddress to, own;
    int rank, count;
    CuAddress others; /* rank r's elements are at others + r * stride; this one's are not */
    uint64_t stride;  /* bytes */
    uint64_t n;
} GpuSum;

/* Of the context that is current. NULL, or what is wrong; what a failure left, gpu_close takes. */
const char *gpu_open(Gpu *g);
void gpu_close(Gpu *g);

/* Host memory that the device may use, until gpu_unshare. */
CuResult gpu_share(const Gpu *g, void *at, size_t bytes, CuAddress *out);
void gpu_unshare(const Gpu *g, void *at);

CuResult gpu_copy(const Gpu *g, CuAddress to, CuAddress from, uint64_t bytes, CuStream stream);
CuResult gpu_sum(const Gpu *g, const GpuSum *s, CuStream stream);
CuResult gpu_flags(const Gpu *g, GpuFlag *flag, int count, CuStream stream);

#endif
