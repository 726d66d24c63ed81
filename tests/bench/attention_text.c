/* attention_text.c - prints the CUDA text of attention's kernels for attention_cuda.py.
 *
 *   attention_text f32|bf16 B H G T S K CAUSAL SCALE packed|plain > source.cu
 *
 * The kernels are named forward and backward. packed: q, k, v are parts of one [B, T, (H + 2 G) K]
 * and their gradients of another, out is [B, T, H K]; plain: [B, H, T, K] each. Arguments: q, k, v,
 * out, lse and q, k, v, out, lse, dout, dq, dk, dv. On stderr: grid, block and shared bytes of
 * both.
 */
#include "codegen/attention_cuda.h"
#include "codegen/loop.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static AttentionView plain(int arg, int64_t heads, int64_t rows, int64_t dim) {
    return (AttentionView){.arg = arg, .b = heads * rows * dim, .h = rows * dim, .t = dim};
}

static AttentionView packed(int arg, int64_t first, int64_t width, int64_t rows, int64_t dim) {
    (void)first; /* q, k and v come as pointers of their own */
    return (AttentionView){.arg = arg, .b = rows * width, .h = dim, .t = width};
}

static void say(AttentionLaunch l) {
    fprintf(stderr, "%" PRId64 " %d %" PRId64 "\n", l.grid, l.block, l.shared_bytes);
}

int main(int argc, char **argv) {
    if (argc != 11) return 2;
    AttentionSpec s = {.dtype = strcmp(argv[1], "f32") == 0 ? DT_f32 : DT_bf16,
                       .batch = atoll(argv[2]),
                       .heads = atoll(argv[3]),
                       .groups = atoll(argv[4]),
                       .queries = atoll(argv[5]),
                       .keys = atoll(argv[6]),
                       .dim = atoll(argv[7]),
                       .causal = atoi(argv[8]) != 0,
                       .scale = atof(argv[9])};
    int64_t h = s.heads, g = s.groups, t = s.queries, u = s.keys, k = s.dim;
    int64_t width = (h + 2 * g) * k;
    bool in_one = strcmp(argv[10], "packed") == 0;
    s.q = in_one ? packed(0, 0, width, t, k) : plain(0, h, t, k);
    s.k = in_one ? packed(1, h, width, u, k) : plain(1, g, u, k);
    s.v = in_one ? packed(2, h + g, width, u, k) : plain(2, g, u, k);
    s.out = in_one ? packed(3, 0, h * k, t, k) : plain(3, h, t, k);
    s.lse = (AttentionView){.arg = 4, .b = h * t, .h = t, .t = 1};
    s.dout = s.out, s.dq = s.q, s.dk = s.k, s.dv = s.v;
    s.dout.arg = 5, s.dq.arg = 6, s.dk.arg = 7, s.dv.arg = 8;
    for (int i = 0; i < 9; i++) s.arg_dtype[i] = i == 4 ? DT_f32 : s.dtype;
    loop_print_cuda_prelude(stdout);
    attention_cuda_print_prelude(stdout);
    s.nargs = 5, s.nread = 3;
    attention_cuda_print_forward(&s, "forward", stdout);
    s.nargs = 9, s.nread = 6;
    attention_cuda_print_backward(&s, "backward", stdout);
    say(attention_cuda_forward(&s));
    say(attention_cuda_backward(&s));
    return 0;
}
