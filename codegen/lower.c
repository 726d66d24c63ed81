/* lower.c - from a kernel's form to its lowering: the one table. */
#include "codegen/lower.h"

#include <string.h>

static const struct {
    const char *form;
    LowerFn *c, *cuda;
} forms[] = {
    {"map", lower_map, lower_cuda_map},
    {"reduce", lower_reduce, lower_cuda_reduce},
    {"argmax", lower_argmax, lower_argmax},
    {"matmul", lower_matmul, lower_cuda_matmul},
    {"attention", lower_attention, lower_cuda_attention},
    {"attention_grad", lower_attention, lower_cuda_attention_grad},
    {"conv2d", lower_conv2d, lower_cuda_conv2d},
    {"conv2d_dx", lower_conv2d_dx, lower_cuda_conv2d_dx},
    {"conv2d_dw", lower_conv2d_dw, lower_cuda_conv2d_dw},
    {"max_pool2d", lower_max_pool2d, lower_max_pool2d},
    {"max_pool2d_dx", lower_max_pool2d_dx, lower_max_pool2d_dx},
    {"avg_pool2d", lower_avg_pool2d, lower_avg_pool2d},
    {"avg_pool2d_dx", lower_avg_pool2d_dx, lower_avg_pool2d_dx},
    {"gather", lower_gather, lower_gather},
    {"gather_dw", lower_gather_dw, lower_cuda_gather_dw},
    {"put", lower_put, lower_put},
};

LoopKernel *lower_kernel(LowerContext *ctx, const Graph *g, const Node *kernel) {
    const Attr *form = node_attr(kernel, ATTR_form);
    LOOP_ASSERT(form && kernel->body);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(forms[i].form, form->s) == 0)
            return (ctx->target == TARGET_cuda ? forms[i].cuda : forms[i].c)(ctx, g, kernel);
    loop_broken(__FILE__, __LINE__, form->s);
}
