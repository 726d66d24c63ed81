/* lower_cuda_results.c - results of a convolution from shared memory to memory, with the epilogue.
 *
 * Neighbouring threads take neighbouring elements, four at a time where strips allow it. A result
 * may lie on an operand of the epilogue, so that the compiler keeps loads behind earlier stores:
 * a thread computes several units in registers before it stores them.
 */
#include "codegen/lower_cuda_image.h"
#include "codegen/lower_space.h"

enum { QUAD = CUDA_VECTOR, TOGETHER = 4 };

typedef struct Results {
    const CudaResults *r;
    LoopKernel *k;
    int64_t lanes, units; /* units of `lanes` neighbours in a channel's strip */
    LoopBuf *kept;        /* by result of the body */
} Results;

/* One unit: its values into registers from slot * lanes on, or from there to memory. */
static void unit(const Results *w, LoopIdx unit, LoopIdx slot, bool store) {
    LoopKernel *k = w->k;
    const CudaResults *r = w->r;
    LowerBody *b = r->b;
    int64_t plane = r->ho * r->wo, lanes = w->lanes;
    int depth = k->depth;
    LoopIdx o = loop_let(k, loop_idx_div(k, unit, w->units), r->channels);
    LoopIdx in_strip = loop_let(k, loop_idx_mod(k, unit, w->units), w->units);
    LoopIdx at = loop_idx_add(k, loop_idx_scale(k, r->strip, w->units), in_strip);
    at = loop_name(k, lower_cuda_open_below(k, at, plane / lanes), plane / lanes);
    LoopIdx channel = lower_cuda_open_below(k, loop_idx_add(k, r->first, o), r->out);
    LoopIdx lane = loop_idx(k, 0);
    if (lanes > 1) lane = loop_idx_axis(k, loop_open(k, LOOP_vector, lanes, LOOP_NO_BOUND));
    LoopIdx from = loop_idx_add(k, loop_idx_scale(k, in_strip, lanes), lane);
    from = loop_idx_add(k, loop_idx_scale(k, o, r->pitch), from);
    TypeInfo t = {.ndim = 2, .dim = {r->ho, r->wo}};
    LoopIdx index[4] = {r->sample, channel};
    lower_unflatten(k, &t, loop_idx_add(k, loop_idx_scale(k, at, lanes), lane), index + 2);
    LoopIdx kept = loop_idx_add(k, loop_idx_scale(k, slot, lanes), lane);
    if (store) {
        lower_body_store_kept(b, index, w->kept, kept);
    } else {
        lower_body_bind(b, r->anchor->out, loop_load(k, r->staged, from));
        lower_body_keep_all(b, index, w->kept, kept);
    }
    lower_space_close(k, depth);
}

/* `together` units of the thread from `first` on, a turn of all threads apart. */
static void group(Results *w, LoopIdx first, int64_t together, int64_t n) {
    LoopKernel *k = w->k;
    int depth = k->depth;
    first = lower_cuda_open_below(k, first, n);
    w->kept = lower_body_registers(w->r->b, together * w->lanes);
    for (int store = 0; store < 2; store++) {
        int inner = k->depth;
        LoopIdx slot = loop_idx_axis(k, loop_open(k, LOOP_unroll, together, LOOP_NO_BOUND));
        LoopIdx at = loop_idx_add(k, first, loop_idx_scale(k, slot, k->threads));
        unit(w, loop_let(k, at, n), slot, store);
        lower_space_close(k, inner);
    }
    lower_space_close(k, depth);
}

void lower_cuda_store_results(LoopKernel *k, const CudaResults *r) {
    int64_t plane = r->ho * r->wo, strip = r->rows * r->wo;
    Results w = {.r = r, .k = k, .lanes = plane % QUAD == 0 && strip % QUAD == 0 ? QUAD : 1};
    w.units = strip / w.lanes;
    int64_t n = r->channels * w.units, turns = n / k->threads;
    int64_t groups = turns / TOGETHER, rest = turns % TOGETHER;
    if (groups > 0) {
        LoopIdx turn = loop_idx_axis(k, loop_open(k, LOOP_serial, groups, LOOP_NO_BOUND));
        group(&w, loop_idx_add(k, loop_idx_scale(k, turn, TOGETHER * k->threads), r->thread),
              TOGETHER, n);
        loop_close(k);
    }
    int64_t done = groups * TOGETHER * k->threads;
    if (rest > 0) group(&w, loop_idx_plus(k, r->thread, done), rest, n);
    done = turns * k->threads;
    if (done < n) group(&w, loop_idx_plus(k, r->thread, done), 1, n);
}
