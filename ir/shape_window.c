/* shape_window.c - shape rules of convolutions and pooling: windows that move over [N, C, H, W]. */
#include "ir/shape_rule.h"

int64_t shape_window(int64_t size, int64_t window, int64_t stride, int64_t padding) {
    if (window < 1 || stride < 1 || padding < 0 || size < 0) return 0;
    if (padding > (INT64_MAX - size) / 2 || size + 2 * padding < window) return 0;
    return (size + 2 * padding - window) / stride + 1;
}

/* Extents of x, window and result of one convolution or pooling. */
typedef struct Window {
    const int64_t *size;   /* H, W */
    const int64_t *window; /* kh, kw */
    const int64_t *stride, *padding;
} Window;

static const char *window_out(const ShapeQuery *q, const Window *w, int64_t out[2]) {
    for (int i = 0; i < 2; i++) {
        out[i] = shape_window(w->size[i], w->window[i], w->stride[i], w->padding[i]);
        if (out[i] < 1)
            return arena_printf(
                q->arena, "the window %lld does not fit into %lld with padding %lld",
                (long long)w->window[i], (long long)w->size[i], (long long)w->padding[i]);
    }
    return NULL;
}

static const char *window_attrs(const ShapeQuery *q, Window *w) {
    const Attr *stride = shape_attr(q, ATTR_stride), *padding = shape_attr(q, ATTR_padding);
    if (stride->n != 2 || padding->n != 2) return "stride and padding have two values each";
    if (stride->v[0] < 1 || stride->v[1] < 1) return "strides are at least 1";
    if (padding->v[0] < 0 || padding->v[1] < 0) return "paddings are at least 0";
    w->stride = stride->v;
    w->padding = padding->v;
    return NULL;
}

/* ---- convolution ------------------------------------------------------------------------ */

/* Result of convolving x with w. */
static const char *conv_type(const ShapeQuery *q, const TypeInfo *x, const TypeInfo *w, Type *out) {
    if (x->ndim != 4 || w->ndim != 4 || x->dtype != w->dtype || !dtype_is_float(x->dtype))
        return "conv2d needs two float tensors [N, C, H, W] and [O, C, kh, kw] of one dtype";
    if (x->dim[1] != w->dim[1])
        return arena_printf(q->arena, "the input has %lld channels, the weight takes %lld",
                            (long long)x->dim[1], (long long)w->dim[1]);
    Window window = {.size = x->dim + 2, .window = w->dim + 2};
    int64_t size[2];
    const char *why = window_attrs(q, &window);
    if (why == NULL) why = window_out(q, &window, size);
    if (why != NULL) return why;
    return shape_make(q, out, x->dtype, 4, (int64_t[]){x->dim[0], w->dim[0], size[0], size[1]});
}

const char *shape_conv2d(const ShapeQuery *q, Type *out) {
    return conv_type(q, shape_in(q, 0), shape_in(q, 1), out);
}

/* The gradient's shape must be what the forward convolution would give. */
static const char *conv_backward(const ShapeQuery *q, const TypeInfo *x, const TypeInfo *w, int dy,
                                 Type *out) {
    Type want = {0};
    const char *why = conv_type(q, x, w, &want);
    if (why != NULL) return why;
    if (want.id != q->in[dy].id)
        return arena_printf(q->arena, "the gradient is %s, the convolution gives %s",
                            type_print(q->types, q->arena, q->in[dy]),
                            type_print(q->types, q->arena, want));
    *out = q->given;
    return NULL;
}

const char *shape_conv2d_dx(const ShapeQuery *q, Type *out) {
    return conv_backward(q, shape_given_type(q), shape_in(q, 1), 0, out);
}

const char *shape_conv2d_dw(const ShapeQuery *q, Type *out) {
    return conv_backward(q, shape_in(q, 0), shape_given_type(q), 1, out);
}

/* ---- pooling ---------------------------------------------------------------------------- */

static const char *pool_type(const ShapeQuery *q, const TypeInfo *x, Type *out) {
    if (x->ndim != 4 || !dtype_is_float(x->dtype))
        return "pooling needs a float tensor [N, C, H, W]";
    const Attr *window = shape_attr(q, ATTR_window);
    if (window->n != 2 || window->v[0] < 1 || window->v[1] < 1)
        return "a window has two sizes of at least 1";
    Window w = {.size = x->dim + 2, .window = window->v};
    const char *why = window_attrs(q, &w);
    if (why != NULL) return why;
    if (w.padding[0] >= w.window[0] || w.padding[1] >= w.window[1])
        return "the padding of a pooling is smaller than its window";
    int64_t size[2];
    why = window_out(q, &w, size);
    if (why != NULL) return why;
    return shape_make(q, out, x->dtype, 4, (int64_t[]){x->dim[0], x->dim[1], size[0], size[1]});
}

const char *shape_pool2d(const ShapeQuery *q, Type *out) {
    return pool_type(q, shape_in(q, 0), out);
}

const char *shape_max_pool2d(const ShapeQuery *q, Type *out) {
    const TypeInfo *x = shape_in(q, 0);
    const char *why = pool_type(q, x, out);
    if (why != NULL) return why;
    if (x->dim[2] > INT32_MAX / x->dim[3]) return "the index of a maximum would not fit into i32";
    return shape_make(q, &out[1], DT_i32, 4, type_info(q->types, out[0])->dim);
}

static const char *pool_backward(const ShapeQuery *q, int dy, Type *out) {
    Type want = {0};
    const char *why = pool_type(q, shape_given_type(q), &want);
    if (why != NULL) return why;
    if (want.id != q->in[dy].id)
        return arena_printf(q->arena, "the gradient is %s, the pooling gives %s",
                            type_print(q->types, q->arena, q->in[dy]),
                            type_print(q->types, q->arena, want));
    *out = q->given;
    return NULL;
}

const char *shape_avg_pool2d_dx(const ShapeQuery *q, Type *out) { return pool_backward(q, 0, out); }

const char *shape_max_pool2d_dx(const ShapeQuery *q, Type *out) {
    const TypeInfo *index = shape_in(q, 0), *dy = shape_in(q, 1);
    bool same = index->ndim == dy->ndim && index->dtype == DT_i32;
    for (int i = 0; same && i < dy->ndim; i++) same = index->dim[i] == dy->dim[i];
    if (!same) return shape_pair(q, "the index is i32 of the gradient's shape", 0, 1);
    return pool_backward(q, 1, out);
}
