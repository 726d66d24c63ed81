/* attention_cuda.h - attention and its gradient as CUDA C text, one launch each.
 *
 * These kernels are not made of the loop form: a kernel's text is a few lines around templates of
 * device functions, which attention_cuda_print_prelude prints once a program, behind prelude_cuda.h
 * and prelude_math.h and before all kernels. Names of a kernel's own start with the kernel's.
 *
 *   q [B, H, T, K], k, v [B, G, S, K]; head h reads group h / (H / G); `causal`: T == S, and query
 *   t sees keys 0 .. t
 *   out = softmax(scale * q k') v;  lse f32 [B, H, T] = log sum exp of the scaled scores
 *   backward: dq, dk, dv from q, k, v, out, lse and dout
 *
 * Rotary positions may be part of it: forward reads queries before their turn and also writes what
 * it turned; backward writes dq and dk turned back. In bf16 values are rounded before and after.
 *
 * Every operand is a view: element [b, h, t, x] of argument `arg` is at offset + b * view.b +
 * h * view.h + t * view.t + x, in elements; the last axis is contiguous. Several views may name one
 * argument (q, k, v of [B, T, 3 D]). Elements of one view may lie between another's, never on them.
 * A result that nobody reads has no argument.
 *
 * Same bits on every run: no float atomics, no order that depends on which block comes first.
 */
#ifndef INFINIC_CODEGEN_ATTENTION_CUDA_H
#define INFINIC_CODEGEN_ATTENTION_CUDA_H

#include "ir/type.h"
#include "runtime/plan.h"

#include <stdio.h>

enum { ATTENTION_ARGS_MAX = 16, ATTENTION_DIM_MAX = 256 };

typedef struct AttentionView {
    int arg; /* argument of the kernel; -1: none */
    int64_t offset, b, h, t;
} AttentionView;

/* The pairs that rope turns: the halves of a row, or neighbours. */
typedef enum AttentionPairs { PAIRS_none, PAIRS_halves, PAIRS_neighbours } AttentionPairs;

typedef struct AttentionTurn {
    AttentionPairs pairs;
    bool back;
    int cosine, sine; /* arguments: f32 [rows, dim / 2] */
} AttentionTurn;

typedef struct AttentionSpec {
    int64_t batch, heads, groups, queries, keys, dim; /* dim: a multiple of 8, at most 256 */
    bool causal;
    double scale;
    Dtype dtype;                     /* f32 or bf16: of all views but lse */
    AttentionView q, k, v, out, lse; /* lse: t is 1; the last axis is absent */
    AttentionView dout, dq, dk, dv;  /* backward only */
    AttentionTurn turn_q, turn_dq, turn_dk;
    AttentionView turned; /* with turn_q: the queries after it */
    int nargs, nread;     /* arguments of the kernel: operands [0, nread), then results */
    Dtype arg_dtype[ATTENTION_ARGS_MAX];
    uint64_t loose; /* bit i: argument i may lie at an address that 16 does not divide */
    bool any_size;  /* forward: the kernel is told its PlanSizes, behind InfDeviceEnv */
} AttentionSpec;

typedef struct AttentionLaunch {
    int64_t grid;         /* blocks, one axis */
    int block;            /* threads */
    int64_t shared_bytes; /* dynamic shared memory */
} AttentionLaunch;

AttentionLaunch attention_cuda_forward(const AttentionSpec *s);
AttentionLaunch attention_cuda_backward(const AttentionSpec *s);

PlanSizes attention_cuda_sizes(const AttentionSpec *s);

/* What all kernels of this file need before them: templates, written in C++ that NVRTC takes and,
 * with INF_EMULATED and words of its own, the tests' emulation. */
void attention_cuda_print_prelude(FILE *out);

/* `extern "C" __global__ void NAME(T0 *a0, .., InfDeviceEnv env) { .. }` */
void attention_cuda_print_forward(const AttentionSpec *s, const char *name, FILE *out);
void attention_cuda_print_backward(const AttentionSpec *s, const char *name, FILE *out);

#endif
