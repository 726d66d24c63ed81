/* cuda_driver.h - the NVIDIA driver: its functions, the device found, and what its errors mean.
 *
 * Loaded with dlopen. Everything that can be wrong with a machine (no driver, no device, a driver
 * that is too old) is an INF_IO message that says what was found and what to do.
 */
#ifndef INF_RUNTIME_CUDA_DRIVER_H
#define INF_RUNTIME_CUDA_DRIVER_H

#include "runtime/cuda_types.h"
#include "runtime/library.h"
#include "runtime/plan.h"
#include "runtime/status.h"

/* The driver's functions; NULL until inf_cuda_open. */
typedef struct CuFunctions {
#define SYM(member, symbol, arguments) CuResult(*member) arguments;
#include "runtime/cuda_syms.def"
} CuFunctions;

typedef struct InfCuda {
    CuFunctions call;
    void *library;
    CuDevice device;
    CuContext context;
    int version; /* of the driver: 13000 is CUDA 13.0 */
    char name[96];
    unsigned char uuid[16];
    int visible;                                                /* devices */
    int major, minor, multiprocessors, clock_khz, shared_bytes; /* of a block, at most */
} InfCuda;

/* Loads the driver and takes a device's primary context for this thread: the one that has the
 * number of this rank on its host, 0 with one rank. Where a launcher left each rank one device,
 * that one. Ranks may end up with the same one: InfCuda.uuid tells. */
InfCode inf_cuda_open(InfError *e, int local_rank, InfCuda *out);
void inf_cuda_close(InfCuda *c);

/* INF_OK, or a message: "WHAT: CUDA_ERROR_...: the driver's own words". */
InfCode inf_cuda_check(InfError *e, const InfCuda *c, CuResult result, const char *what);

/* A module for each part of the kernels; NULL where there is none. */
typedef struct InfCudaCode {
    CuModule part[PLAN_PARTS_MAX];
} InfCudaCode;

/* Loads the images of the plan for the architecture that fits the device: cubins of its major
 * version with a minor one at most its own, else PTX; the best first. What a failure left is
 * unloaded by the caller as well. */
InfCode inf_cuda_load(InfError *e, const InfCuda *c, const Plan *plan, InfCudaCode *out);
void inf_cuda_unload(const InfCuda *c, InfCudaCode *code);

#endif
