/* toy_cuda.c - see toy_cuda.h. */
#include "tests/runtime/toy_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/permute.h"
#include "tests/runtime/fake/fake.h"

static void run_toy(const FakeLaunch *l) {
    const PlanKernel *kernel = l->context;
    InfEnv env = {.threads = 1};
    void *arg[FAKE_VALUES_MAX];
    if (l->grid != 3) abort();
    for (int i = 0; i < FAKE_VALUES_MAX; i++) arg[i] = fake_pointer(l->value[i].address);
    kernel->fn(arg, &env);
}

/* The last kernel's function does several sizes and must be told these. */
static const PlanSizes sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, INT64_C(1) << 40};

static void run_sized(const FakeLaunch *l) {
    if (memcmp(l->value[11].bytes, &sizes, sizeof sizes) != 0) abort();
    run_toy(l);
}

void toy_cuda_stage(const FakeLaunch *l) {
    const unsigned char *pixels = fake_pointer(l->value[0].address);
    const unsigned char *labels = fake_pointer(l->value[1].address);
    float *image = fake_pointer(l->value[2].address), *valid = fake_pointer(l->value[4].address);
    int32_t *label = fake_pointer(l->value[3].address);
    const InfDeviceMoment *m = fake_pointer(l->value[5].address);
    int64_t n = l->value[7].whole;
    for (unsigned row = 0; row < l->grid; row++) {
        uint64_t at = m->position + l->value[6].address + row;
        bool real = at < m->end;
        InfPermutation p = {m->count, m->key, (unsigned)m->half_bits};
        if (real && m->half_bits) at = inf_permutation_at(&p, at);
        for (int64_t i = 0; i < n && image; i++)
            image[row * n + i] = real ? (float)pixels[(int64_t)at * n + i] / 255.0f : 0.0f;
        if (label) label[row] = real ? labels[at] : INF_TARGET_PAD;
        if (valid) valid[row] = real ? 1.0f : 0.0f;
    }
}

static const char *const parameters[TOY_KERNELS] = {"pppppppe", "pppppppe", "pppppe",
                                                    "pppppe",   "ppppe",    "ppppppppppes"};
static FakeKernel fakes[TOY_KERNELS + 2];
/* Two parts: the last kernel has one of its own. */
enum { STAGE = TOY_KERNELS - 1, STAGE_TOKENS, LAST, PARTS = 2, IMAGES = 3 * PARTS };
static FakeImage parts[PARTS] = {{FAKE_MAGIC, fakes, LAST}, {FAKE_MAGIC, &fakes[LAST], 1}};
static const char *const archs[] = {"sm_80", "sm_90a", "compute_80"};
static PlanImage images[IMAGES];
static PlanKernel kernels[TOY_KERNELS];

/* What each kernel's arguments reach, and where it writes; toy.c has them in this order. */
static const struct {
    int32_t bytes;
    bool written;
} reaches[] = {
    {512, 0}, {512, 0},  {64, 0},   {16, 0},   {32, 1},  {4, 1},  {4, 1},
    {12, 0},  {4, 1},    {4, 1},    {64, 0},   {16, 0},  {32, 0}, {512, 1},
    {512, 1}, {1024, 1}, {1024, 0}, {1024, 1}, {128, 1},
};
enum { ARGS = 19 };
static PlanArg args[ARGS];

static FakeKernel *fake_of(uint32_t kernel) { return &fakes[kernel < STAGE ? kernel : LAST]; }

/* Code that does not fit the device must not be chosen: it cannot be loaded. */
Plan toy_cuda_plan(void) {
    static const unsigned char wrong[] = "not an image at all";
    Plan plan = toy_plan;
    for (uint32_t i = 0; i < TOY_KERNELS; i++) {
        kernels[i] = toy_plan.kernel[i];
        kernels[i].kind = PLAN_KERNEL_cuda;
        kernels[i].fn = NULL;
        kernels[i].grid = 3;
        kernels[i].block = 32;
        kernels[i].shared_bytes = i == 0 ? 100000 : 0;
        kernels[i].part = i < STAGE ? 0 : 1;
        *fake_of(i) = (FakeKernel){kernels[i].name, parameters[i], run_toy, &toy_plan.kernel[i]};
    }
    kernels[STAGE].function = fakes[LAST].name = "any_size";
    kernels[STAGE].sizes = &sizes;
    fakes[LAST].run = run_sized;
    fakes[STAGE] = (FakeKernel){"inf_stage", "ppppppll", toy_cuda_stage, NULL};
    fakes[STAGE_TOKENS] = (FakeKernel){"inf_stage_tokens", "pppppllw", NULL, NULL};
    for (uint32_t i = 0; i < IMAGES; i++) {
        bool right = i / PARTS == 1;
        const void *bytes = right ? (const void *)&parts[i % PARTS] : wrong;
        images[i] = (PlanImage){.arch = archs[i / PARTS], .bytes = bytes, .part = i % PARTS};
        images[i].end = images[i].bytes + (right ? sizeof *parts : sizeof wrong);
    }
    for (int i = 0; i < ARGS; i++) {
        args[i] = toy_plan.arg[i];
        args[i].bytes = reaches[i].bytes;
        args[i].written = reaches[i].written;
    }
    plan.arg = args;
    plan.target = "cuda";
    plan.kernel = kernels;
    plan.image = images;
    plan.nimage = IMAGES;
    return plan;
}

bool fake_preload(const char *name) {
    char path[4096], *slash;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    path[length > 0 ? length : 0] = '\0';
    slash = strrchr(path, '/');
    if (slash) snprintf(slash, 64, "/fake/%s", name);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL;
}

void toy_cuda_replace(uint32_t k, const PlanKernel *kernel) { fake_of(k)->context = kernel; }
