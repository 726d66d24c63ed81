/* system.c - what the machine is and has: clock, memory, processor features. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "runtime/engine.h"

int inf_threads_set(int threads) {
#ifdef _OPENMP
    if (threads > 0) omp_set_num_threads(threads);
    return omp_get_max_threads();
#else
    (void)threads;
    return 1;
#endif
}

double inf_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The number of kB behind `key` in a file of /proc, or `otherwise`. */
static uint64_t proc_kilobytes(const char *path, const char *key, uint64_t otherwise) {
    FILE *in = fopen(path, "re");
    if (!in) return otherwise;
    char line[256];
    unsigned long long value = 0;
    bool found = false;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, in))
        found = strncmp(line, key, length) == 0 && sscanf(line + length, ": %llu", &value) == 1;
    fclose(in);
    return found ? (uint64_t)value : otherwise;
}

InfMemory inf_memory_now(void) {
    InfMemory m = {proc_kilobytes("/proc/self/status", "VmRSS", 0) << 10,
                   proc_kilobytes("/proc/self/status", "VmHWM", 0) << 10};
    return m;
}

/* The number in a file of the control group's, or `otherwise` ("max", no such file). */
static uint64_t group_bytes(const char *path, uint64_t otherwise) {
    FILE *in = fopen(path, "re");
    if (!in) return otherwise;
    unsigned long long value = 0;
    bool found = fscanf(in, "%llu", &value) == 1;
    fclose(in);
    return found ? (uint64_t)value : otherwise;
}

uint64_t inf_memory_available(void) {
    uint64_t kilobytes = proc_kilobytes("/proc/meminfo", "MemAvailable", UINT64_MAX >> 10);
    uint64_t swap = proc_kilobytes("/proc/meminfo", "SwapFree", 0);
    uint64_t machine = kilobytes >= UINT64_MAX >> 10 ? UINT64_MAX : (kilobytes + swap) << 10;
    uint64_t limit = group_bytes("/sys/fs/cgroup/memory.max", UINT64_MAX);
    uint64_t used = inf_memory_now().resident;
    uint64_t group = limit > used ? limit - used : 0;
    return group < machine ? group : machine;
}

#if defined(__x86_64__) || defined(__i386__)

/* __builtin_cpu_supports takes literals only. */
#define FEATURES(F)                                                                                \
    F("sse3")                                                                                      \
    F("ssse3")                                                                                     \
    F("sse4.1")                                                                                    \
    F("sse4.2") F("popcnt") F("avx") F("avx2") F("fma") F("bmi") F("bmi2") F("avx512f")            \
        F("avx512vl") F("avx512bw") F("avx512dq") F("avx512cd") F("avx512vbmi") F("avx512vbmi2")   \
            F("avx512vnni") F("avx512bitalg") F("avx512vpopcntdq") F("avx512ifma")

static bool has_feature(const char *name) {
    __builtin_cpu_init();
#define F(feature)                                                                                 \
    if (strcmp(name, feature) == 0) return __builtin_cpu_supports(feature);
    FEATURES(F)
#undef F
    return true; /* one that cannot be asked for */
}

#else

static bool has_feature(const char *name) {
    (void)name;
    return true;
}

#endif

InfCode inf_cpu_check(InfError *e, const Plan *plan) {
    const char *at = plan->cpu_features ? plan->cpu_features : "";
    while (*at) {
        char name[32];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (!has_feature(name))
            return inf_fail(e, INF_IO,
                            "this program was compiled for a processor with %s, which "
                            "this machine lacks; build it here, or with: infinic %s "
                            "--march=x86-64-v2",
                            name, plan->file);
        at += length;
        at += *at == ',';
    }
    return INF_OK;
}
