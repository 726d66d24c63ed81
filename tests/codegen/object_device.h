/* object_device.h - kernels of an Object on a real device.
 *
 * Sources are compiled by NVRTC, or taken from INFINIC_TEST_CUBINS=FOLDER where they are there
 * already: a machine without a device fills the folder (the program then ends with 77, "skipped"),
 * one with a device and without our build tools uses it. INFINIC_TEST_ARCH: sm_90a.
 *
 * A launch copies what its arguments reach to the device and back. The host's memory has to be lent
 * before; the device's copy has a strip on both sides that no kernel may write to.
 */
#ifndef INFINIC_TESTS_CODEGEN_OBJECT_DEVICE_H
#define INFINIC_TESTS_CODEGEN_OBJECT_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/plan.h"

typedef struct DeviceEntry {
    const char *name, *text; /* the function's name in the text */
    uint32_t grid, block, shared_bytes;
    uint32_t then; /* 1 + the launch that follows on the same arguments; 0: none */
} DeviceEntry;

typedef struct DeviceObject DeviceObject;

/* `prelude` is printed before the kernels of every source. Ends the program when a kernel does not
 * compile. */
DeviceObject *device_object_new(const DeviceEntry *entry, uint32_t n, const char *prelude);
void device_object_free(DeviceObject *d);

void device_object_run(DeviceObject *d, uint32_t i, void *const *arg, const InfEnv *env);

/* Memory that arguments may point into, until it is given back. */
void device_lend(void *at, size_t bytes);
void device_give_back(void *at);

#endif
