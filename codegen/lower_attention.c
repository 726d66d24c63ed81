/* lower_attention.c - attention and its gradient: kernels of text around templates.
 *
 * C: threads over heads and tiles of queries (attention_c.c). CUDA: one launch (attention_cuda.c).
 * Scores never are in memory, and every sum has an order that depends on shapes alone.
 */
#include "codegen/attention.h"

static LoopKernel *text_kernel(LowerContext *ctx, const Graph *g, const Node *kernel,
                               LoopText text) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    AttentionSpec *spec = ARENA_NEW(ctx->arena, AttentionSpec);
    LoopText *kept = ARENA_NEW(ctx->arena, LoopText);
    *spec = attention_spec(kernel->body, ctx->loose);
    *kept = text;
    kept->spec = spec;
    b->k->text = kept;
    if (spec->dtype == DT_bf16) b->k->math = LOOP_MATH_bf16;
    return b->k;
}

static void print_c(const LoopKernel *k, const char *name, FILE *out) {
    attention_c_print(k->text->spec, name, out);
}

LoopKernel *lower_attention(LowerContext *ctx, const Graph *g, const Node *kernel) {
    return text_kernel(ctx, g, kernel,
                       (LoopText){.print = print_c, .prelude = attention_c_print_prelude});
}

static void print_cuda_forward(const LoopKernel *k, const char *name, FILE *out) {
    attention_cuda_print_forward(k->text->spec, name, out);
}

static void print_cuda_backward(const LoopKernel *k, const char *name, FILE *out) {
    attention_cuda_print_backward(k->text->spec, name, out);
}

static LoopKernel *cuda_kernel(LoopKernel *k, AttentionLaunch launch) {
    k->blocks = launch.grid;
    k->threads = launch.block;
    k->shared_bytes = launch.shared_bytes;
    return k;
}

static void set_any_size(Arena *arena, LoopKernel *k) {
    AttentionSpec *spec = ARENA_NEW(arena, AttentionSpec);
    PlanSizes *sizes = ARENA_NEW(arena, PlanSizes);
    LoopText *text = ARENA_NEW(arena, LoopText);
    *spec = *(const AttentionSpec *)k->text->spec;
    spec->any_size = true;
    *sizes = attention_cuda_sizes(spec);
    *text = *k->text;
    text->spec = spec;
    text->sizes = sizes;
    k->text = text;
}

LoopKernel *lower_cuda_attention(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LoopKernel *k = text_kernel(ctx, g, kernel,
                                (LoopText){.print = print_cuda_forward,
                                           .prelude = attention_cuda_print_prelude,
                                           .weight = 32000});
    if (ctx->any_size) set_any_size(ctx->arena, k);
    return cuda_kernel(k, attention_cuda_forward(k->text->spec));
}

LoopKernel *lower_cuda_attention_grad(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LoopKernel *k = text_kernel(ctx, g, kernel,
                                (LoopText){.print = print_cuda_backward,
                                           .prelude = attention_cuda_print_prelude,
                                           .weight = 60000});
    return cuda_kernel(k, attention_cuda_backward(k->text->spec));
}
