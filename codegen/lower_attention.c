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
    return b->k;
}

static void print_c(const LoopKernel *k, const char *name, FILE *out) {
    attention_c_print(k->text->spec, name, out);
}

LoopKernel *lower_attention(LowerContext *ctx, const Graph *g, const Node *kernel) {
    return text_kernel(ctx, g, kernel,
                       (LoopText){.print = print_c, .prelude = attention_c_print_prelude});
}
