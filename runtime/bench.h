/* bench.h - timed training steps on whatever data a session holds. */
#ifndef INF_RUNTIME_BENCH_H
#define INF_RUNTIME_BENCH_H

#include "runtime/session.h"

/* Runs `steps` training steps after a warm-up; returns the median in *ms. */
InfCode inf_bench_steps(InfError *e, InfSession *s, int64_t steps, double *ms);

/* As many steps again, with a clock around every launch: fills the engine's kernel times. */
InfCode inf_bench_kernels(InfError *e, InfSession *s, int64_t steps);

#endif
