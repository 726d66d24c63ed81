/* conv_kernels.c - speed of the generated kernels of the MNIST CNN (B = 64) and of other
 * convolutions.
 *
 * usage: conv_kernels [threads]   in the source folder; INFINIC_KEEP_KERNELS=1 keeps the C text
 * Prints per kernel: least time of 200 runs, GFLOP/s, GB/s of least traffic.
 * build: cc -I. -D_GNU_SOURCE tests/bench/conv_kernels.c tests/codegen/kernel_set.c
 *        tests/codegen/object.c -o conv_kernels -Lbuild/release/codegen -Lbuild/release/runtime
 *        -Lbuild/release/ir -linfinic_codegen -linfinic_runtime -linfinic_ir -ldnnl -ljansson
 *        -lxxhash -lz -lm -fopenmp
 */
#include "ir/cost.h"
#include "tests/codegen/kernel_set.h"

#include <stdlib.h>

typedef struct Bench {
    KernelSet *set;
    bool step[64]; /* part of the CNN's training step */
} Bench;

static Type f32(const Bench *s, int ndim, const int64_t *dim) {
    return type_intern(s->set->m->types, DT_f32, ndim, dim);
}
#define F32(s, n, ...) f32(s, n, (int64_t[]){__VA_ARGS__})

static Val input(Builder *b, Type type) { return graph_add_input(b->g, type, (Port){0}); }

static void finish(Bench *s, Builder *b, Val out, const char *form, const char *text, bool step) {
    graph_add_output(b->g, out, (Port){0});
    s->step[kernel_set_add(s->set, b->g, form, text)] = step;
}

typedef struct Layer {
    int64_t n, ci, h, co, k, stride, pad;
    bool step;
} Layer;

static int64_t out_size(const Layer *l) { return (l->h + 2 * l->pad - l->k) / l->stride + 1; }

static Val conv(Builder *b, Op op, const Layer *l, Val x, Val y, Type given) {
    Attr attr[] = {ATTR_INTS(stride, 2, ((int64_t[]){l->stride, l->stride})),
                   ATTR_INTS(padding, 2, ((int64_t[]){l->pad, l->pad}))};
    return graph_add(b, op, 2, (Val[]){x, y}, 2, attr, given)->out;
}

static void add_layer(Bench *s, Layer l, bool input_gradient) {
    char text[64];
    int64_t o = out_size(&l);
    Type x = F32(s, 4, l.n, l.ci, l.h, l.h), w = F32(s, 4, l.co, l.ci, l.k, l.k);
    Type y = F32(s, 4, l.n, l.co, o, o);
    snprintf(text, sizeof text, "%d->%d k%d s%d on %d", (int)l.ci, (int)l.co, (int)l.k,
             (int)l.stride, (int)l.h);
    char name[96];
    snprintf(name, sizeof name, "conv, bias, relu %s", text);
    Builder b = kernel_set_body(s->set);
    Val v = input(&b, x), u = input(&b, w), bias = input(&b, F32(s, 1, l.co));
    Val out = build2(&b, OP_add, conv(&b, OP_conv2d, &l, v, u, (Type){0}),
                     build_broadcast(&b, bias, y, (int64_t[]){1}));
    finish(s, &b, build1(&b, OP_relu, out), "conv2d", name, l.step);
    snprintf(name, sizeof name, "conv dw %s", text);
    b = kernel_set_body(s->set);
    v = input(&b, x), u = input(&b, y);
    finish(s, &b, conv(&b, OP_conv2d_dw, &l, v, u, w), "conv2d_dw", name, l.step);
    if (input_gradient) {
        snprintf(name, sizeof name, "conv dx, relu mask %s", text);
        b = kernel_set_body(s->set);
        v = input(&b, y), u = input(&b, w);
        Val below = input(&b, x), zero;
        out = conv(&b, OP_conv2d_dx, &l, v, u, x);
        zero = build_scalar_like(&b, 0.0, below);
        out = build3(&b, OP_select, build2(&b, OP_gt, below, zero), out, zero);
        finish(s, &b, out, "conv2d_dx", name, l.step);
    }
}

static void add_bias_gradient(Bench *s, int64_t n, int64_t c, int64_t h) {
    Builder b = kernel_set_body(s->set);
    Val v = input(&b, F32(s, 4, n, c, h, h));
    finish(s, &b, build_reduce(&b, OP_reduce_sum, v, 3, (int64_t[]){0, 2, 3}), "reduce",
           "bias gradient", true);
}

/* fc: 64 x 18432 -> 10, its weight gradient, its input gradient with the mask of the ReLU below. */
static void add_fc(Bench *s) {
    Type x = F32(s, 2, 64, 18432), w = F32(s, 2, 10, 18432), y = F32(s, 2, 64, 10);
    Builder b = kernel_set_body(s->set);
    Val v = input(&b, x), u = input(&b, w), bias = input(&b, F32(s, 1, 10));
    Val out = build_matmul(&b, v, u, false, true);
    finish(s, &b, build2(&b, OP_add, out, build_broadcast(&b, bias, y, (int64_t[]){1})), "matmul",
           "fc", true);
    b = kernel_set_body(s->set);
    v = input(&b, y), u = input(&b, x);
    finish(s, &b, build_matmul(&b, v, u, true, false), "matmul", "fc dw", true);
    b = kernel_set_body(s->set);
    v = input(&b, y), u = input(&b, w);
    Val below = input(&b, x);
    out = build_matmul(&b, v, u, false, false);
    Val zero = build_scalar_like(&b, 0.0, below);
    finish(s, &b, build3(&b, OP_select, build2(&b, OP_gt, below, zero), out, zero), "matmul",
           "fc dx, relu mask", true);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    Bench s = {.set = kernel_set_new()};
    add_layer(&s, (Layer){64, 1, 28, 16, 3, 1, 0, true}, false);
    add_layer(&s, (Layer){64, 16, 26, 32, 3, 1, 0, true}, true);
    if (!getenv("NO_REDUCE")) {
        add_bias_gradient(&s, 64, 16, 26);
        add_bias_gradient(&s, 64, 32, 24);
    }
    if (!getenv("NO_MATMUL")) add_fc(&s);
    int own = s.set->n;
    add_layer(&s, (Layer){8, 64, 14, 128, 3, 1, 1, false}, true);
    add_layer(&s, (Layer){8, 3, 32, 64, 7, 2, 3, false}, true);
    add_layer(&s, (Layer){8, 64, 14, 128, 1, 1, 0, false}, true);
    add_layer(&s, (Layer){8, 64, 14, 128, 3, 2, 1, false}, true);
    add_layer(&s, (Layer){1, 512, 7, 512, 3, 1, 1, false}, true);
    kernel_set_build(s.set, getenv("INFINIC_TEST_CC"), NULL);
    double total = 0;
    printf("%-44s %9s %9s %8s\n", "kernel", "ms", "GFLOP/s", "GB/s");
    for (int i = 0; i < s.set->n; i++) {
        KernelCost cost = cost_kernel(s.set->item[i].node);
        double t = kernel_set_time(s.set, i, threads, i < own ? 200 : 50);
        printf("%-44s %9.4f %9.1f %8.1f\n", s.set->item[i].text, t * 1e3,
               (double)cost.flops / t * 1e-9, (double)cost.bytes / t * 1e-9);
        if (s.step[i]) total += t;
    }
    printf("kernels of the CNN's step: %.3f ms with %d threads\n", total * 1e3, threads);
    kernel_set_free(s.set);
    return 0;
}
