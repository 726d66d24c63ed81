/* lower_cuda.c - blocks and threads; see lower_cuda.h. */
#include "codegen/lower_cuda.h"

int64_t lower_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t lower_power_of_two(int64_t n, int64_t most) {
    int64_t p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

void lower_cuda_open(LoopKernel *k, int64_t blocks, int threads, LoopIdx *block, LoopIdx *thread) {
    LOOP_ASSERT(k->depth == 0 && threads % CUDA_WARP == 0);
    k->blocks = blocks;
    k->threads = threads;
    *block = loop_idx_axis(k, loop_open(k, LOOP_grid, blocks, LOOP_NO_BOUND));
    *thread = loop_idx_axis(k, loop_open(k, LOOP_thread, threads, LOOP_NO_BOUND));
}

LoopIdx lower_cuda_open_below(LoopKernel *k, LoopIdx index, int64_t n) {
    if (loop_idx_info(k, index)->high < n) return index;
    loop_open_if(k, loop_range(k, index, 0, n));
    return loop_name(k, index, n);
}

void lower_cuda_turns(LoopKernel *k, int64_t n, int64_t together, CudaTurnFn *body, void *data) {
    int64_t groups = n > CUDA_TURNS ? n / together : 0, rest = n - groups * together;
    if (groups > 0) {
        LoopIdx group = loop_idx_axis(k, loop_open(k, LOOP_reduce, groups, LOOP_NO_BOUND));
        LoopIdx turn = loop_idx_axis(k, loop_open(k, LOOP_unroll, together, LOOP_NO_BOUND));
        body(data, loop_idx_add(k, loop_idx_scale(k, group, together), turn));
        loop_close(k);
        loop_close(k);
    }
    if (rest > 0) {
        LoopIdx turn = loop_idx_axis(k, loop_open(k, LOOP_unroll, rest, LOOP_NO_BOUND));
        body(data, loop_idx_plus(k, turn, groups * together));
        loop_close(k);
    }
}

int64_t lower_cuda_vector(const LoopKernel *k, int64_t n) {
    for (int i = 1; i <= k->nparam; i++)
        if (k->buf.data[i].dtype == DT_bf16 && n % (2 * CUDA_VECTOR) == 0) return 2 * CUDA_VECTOR;
    return n > 0 && n % CUDA_VECTOR == 0 ? CUDA_VECTOR : 1;
}

/* Small tensors get small blocks, so that more multiprocessors take part. */
static int threads_for(int64_t units) {
    int threads = CUDA_THREADS;
    while (threads > 2 * CUDA_WARP && lower_ceil_div(units, threads) < CUDA_BLOCKS_MIN)
        threads /= 2;
    return threads;
}

LoopIdx lower_cuda_open_unrolled(LoopKernel *k, int64_t n) {
    return loop_idx_axis(k, loop_open(k, LOOP_unroll, n, LOOP_NO_BOUND));
}

LoopIdx lower_cuda_at(LoopKernel *k, LoopIdx a, int64_t by, LoopIdx b) {
    return loop_idx_add(k, loop_idx_scale(k, a, by), b);
}

LoopIdx lower_cuda_open_units(LoopKernel *k, int64_t n, int each) {
    LoopIdx block, thread;
    int threads = threads_for(lower_ceil_div(n, each));
    lower_cuda_open(k, lower_ceil_div(n, (int64_t)threads * each), threads, &block, &thread);
    LoopIdx unit = loop_idx_add(k, loop_idx_scale(k, block, threads * each), thread);
    if (each > 1) {
        LoopIdx j = lower_cuda_open_unrolled(k, each);
        unit = loop_idx_add(k, unit, loop_idx_scale(k, j, threads));
    }
    if (loop_idx_info(k, unit)->high >= n) return lower_cuda_open_below(k, unit, n);
    return loop_name(k, unit, n);
}
