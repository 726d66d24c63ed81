/* lower.h - from kernel nodes (IR after fuse) to the loop form.
 *
 * lower_kernel finds the lowering by the kernel's form in one table (lower.c). Kernel arguments are
 * operands, results, workspace, in this order. Every lowering builds its loops and asks a LowerBody
 * for the values of the body's graph at an index, so that elementwise ops, sources and movement are
 * lowered in one place.
 */
#ifndef INFINIC_CODEGEN_LOWER_H
#define INFINIC_CODEGEN_LOWER_H

#include "codegen/loop.h"
#include "ir/module.h"

typedef struct LowerContext {
    Arena *arena;
    Target target;
    uint64_t loose;   /* bit i: argument i may lie at an address that 16 does not divide */
    bool in_place;    /* put: the result lies where the old tensor does */
    bool any_size;    /* one function for kernels that differ in their sizes, where there is one */
    int repeat_depth; /* repeats around the kernel and their counts, outermost first */
    int64_t repeat_count[REPEAT_DEPTH_MAX];
} LowerContext;

typedef LoopKernel *LowerFn(LowerContext *ctx, const Graph *g, const Node *kernel);

LowerFn lower_map, lower_reduce, lower_argmax, lower_gather, lower_gather_dw, lower_put;
LowerFn lower_max_pool2d, lower_max_pool2d_dx, lower_avg_pool2d, lower_avg_pool2d_dx;
LowerFn lower_attention, lower_cuda_attention, lower_cuda_attention_grad;
LowerFn lower_matmul, lower_conv2d, lower_conv2d_dx, lower_conv2d_dw;

LowerFn lower_cuda_map, lower_cuda_reduce, lower_cuda_gather_dw, lower_cuda_matmul;
LowerFn lower_cuda_conv2d, lower_cuda_conv2d_dx, lower_cuda_conv2d_dw;

LoopKernel *lower_kernel(LowerContext *ctx, const Graph *g, const Node *kernel);

/* --- the body of a kernel as values at an index --- */

typedef struct LowerBody {
    LowerContext *ctx;
    LoopKernel *k;
    const Graph *body;
    const Node *kernel;
    LoopBuf *in, *out; /* parameters: operands, results */
    LoopBuf workspace; /* u8 seen as f32; none: id 0 */
    struct LowerMemo *memo;
    struct LowerBind *bind; /* by value id */
} LowerBody;

/* A new loop kernel with its parameters declared. */
LowerBody *lower_body_new(LowerContext *ctx, const Graph *g, const Node *kernel);

/* The first node of the body with this op (an anchor); never NULL. */
const Node *lower_body_anchor(const LowerBody *b, Op op);

/* The buffer of a body value that is a graph input of the body (an anchor's operand), or such an
 * input widened from bf16: loads give the same number. */
LoopBuf lower_body_input(const LowerBody *b, Val v);

/* From now on `v` is `value` at whatever index it is asked for (an anchor's result inside its
 * epilogue, a reduction's result). Binding it again forgets memoised values. */
void lower_body_bind(LowerBody *b, Val v, LoopVal value);

/* `v` is element index (row-major over v's shape) + at of `buf`: a tile or row kept in a buffer. */
void lower_body_bind_buf(LowerBody *b, Val v, LoopBuf buf, LoopIdx at);

/* The value of `v` at index[0 .. ndim of v): emits what is needed, each statement in the outermost
 * open block where its index is known. Values asked for twice while their block is open are shared.
 */
LoopVal lower_body_value(LowerBody *b, Val v, const LoopIdx *index);

/* Stores result `i` of the body at index (over its shape). lower_body_store_all does so for every
 * result; all have one shape: the epilogue of an anchor is bind, then store_all. */
void lower_body_store(LowerBody *b, int i, const LoopIdx *index);
void lower_body_store_all(LowerBody *b, const LoopIdx *index);

/* The same in two steps, so that on CUDA operands of several places are under way together though
 * a result may lie on one of them: every result of the body at index into its registers (one buffer
 * a result: lower_body_registers) at `at`; later from there to memory. */
LoopBuf *lower_body_registers(LowerBody *b, int64_t elems);
void lower_body_keep_all(LowerBody *b, const LoopIdx *index, const LoopBuf *kept, LoopIdx at);
void lower_body_store_kept(LowerBody *b, const LoopIdx *index, const LoopBuf *kept, LoopIdx at);

/* Row-major offset of an index in a shape. */
LoopIdx lower_offset(LoopKernel *k, const TypeInfo *t, const LoopIdx *index);

/* Loops over every element of a shape, each for itself: the place is index[]. loop_close, or
 * lower_space_close to depth 0, closes them. */
void lower_open_elements(LowerContext *ctx, LoopKernel *k, const TypeInfo *t, LoopIdx *index);

/* Dimensions into a collapsed index: splits a flat index over `t` into one index per axis. */
void lower_unflatten(LoopKernel *k, const TypeInfo *t, LoopIdx flat, LoopIdx *index);

#endif
