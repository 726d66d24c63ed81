/* toy_cuda.h - the toy (toy.h) as a plan for CUDA, and the fake driver (fake/fake.h) below it. */
#ifndef TESTS_RUNTIME_TOY_CUDA_H
#define TESTS_RUNTIME_TOY_CUDA_H

#include <stdbool.h>

#include "tests/runtime/fake/fake.h"
#include "tests/runtime/toy.h"

enum { TOY_KERNELS = 6 };

/* The plan's tables are static: one plan at a time. */
Plan toy_cuda_plan(void);

/* What the fake device runs as kernel `k` of the plans made before; made anew, the toy's own. */
void toy_cuda_replace(uint32_t k, const PlanKernel *kernel);

/* inf_stage of plan.h. */
void toy_cuda_stage(const FakeLaunch *launch);

/* Loads a library of fake/, which then stands for the real one of that name. */
bool fake_preload(const char *name);

#endif
