/* layers.c - the table of layers: what parameters each declares, and what it computes.
 *
 * Defaults (initialisers, eps, strides) are PyTorch's. Orientation is part of the layer: Linear is
 * stored [out, in], Conv1D [in, out] as in GPT-2's files.
 *
 * To add a layer: its row in `table`, its declare (parameters, in the order of the signature) and
 * its apply (checks, then graph), a line in README.md and a test.
 */
#include "frontend/layer_param.h"

#include <math.h>
#include <string.h>

#define LINEAR_ARGS                                                                                \
    "in: count, out: count, bias: bool = true, init: init?, weight: path?, "                       \
    "shard: word(none|col|row|vocab) = none"
#define POOL_ARGS "k: pair, stride: pair?, padding: pair = 0"

enum { LINEAR_in, LINEAR_out, LINEAR_bias, LINEAR_init, LINEAR_weight };
enum { CONV_in, CONV_out, CONV_k, CONV_stride, CONV_padding, CONV_bias, CONV_init };
enum { EMBED_rows, EMBED_dim, EMBED_pad, EMBED_init, EMBED_weight };
enum { NORM_dim, NORM_eps, NORM_bias };
enum { POOL_k, POOL_stride, POOL_padding };

/* --- declarations --- */

static void declare_linear_like(Lower *l, Member *m, Instance *inst, bool transposed) {
    Dim in = m->args[LINEAR_in].dim, out = m->args[LINEAR_out].dim;
    LayerParam weight = {.name = "weight", .ndim = 2, .dims = {out, in}, .transposed = transposed};
    weight.fan_in = in.value;
    weight.fan_out = out.value;
    weight.init = transposed ? INIT_normal : INIT_uniform; /* Hugging Face's Conv1D: normal(0.02) */
    weight.init_a = transposed ? 0.02 : 1.0 / sqrt((double)in.value);
    weight.init_given = &m->args[LINEAR_init];
    weight.tie = &m->args[LINEAR_weight];
    if (transposed) weight.dims[0] = in, weight.dims[1] = out;
    layer_param_add(l, m, inst, &weight);
    LayerParam bias = {.name = "bias", .ndim = 1, .dims = {out}};
    bias.init = transposed ? INIT_zeros : INIT_uniform;
    bias.init_a = transposed ? 0 : 1.0 / sqrt((double)in.value);
    if (m->args[LINEAR_bias].truth) layer_param_add(l, m, inst, &bias);
}

static void declare_linear(Lower *l, Member *m, Instance *inst) {
    declare_linear_like(l, m, inst, false);
}

static void declare_conv1d(Lower *l, Member *m, Instance *inst) {
    declare_linear_like(l, m, inst, true);
}

static bool positive_pair(Lower *l, const Member *m, int arg, const char *name) {
    const Value *v = &m->args[arg];
    if (v->kind == VALUE_none || (v->item[0].dim.value > 0 && v->item[1].dim.value > 0))
        return true;
    lower_error(l, E019, v->span, "'%s' of %s must be at least 1", name, m->layer->name);
    return false;
}

static void declare_conv2d(Lower *l, Member *m, Instance *inst) {
    const Value *k = m->args[CONV_k].item;
    if (!positive_pair(l, m, CONV_k, "k") || !positive_pair(l, m, CONV_stride, "stride")) {
        m->broken = true;
        return;
    }
    Dim in = m->args[CONV_in].dim, out = m->args[CONV_out].dim;
    LayerParam weight = {.name = "weight", .ndim = 4, .dims = {out, in, k[0].dim, k[1].dim}};
    double fan_in = (double)in.value * (double)k[0].dim.value * (double)k[1].dim.value;
    weight.fan_in = (int64_t)fan_in;
    weight.fan_out = (int64_t)((double)out.value * (double)k[0].dim.value * (double)k[1].dim.value);
    weight.init = INIT_uniform;
    weight.init_a = 1.0 / sqrt(fan_in);
    weight.init_given = &m->args[CONV_init];
    layer_param_add(l, m, inst, &weight);
    LayerParam bias = {.name = "bias", .ndim = 1, .dims = {out}, .init = INIT_uniform};
    bias.init_a = 1.0 / sqrt(fan_in);
    if (m->args[CONV_bias].truth) layer_param_add(l, m, inst, &bias);
}

static void declare_embedding(Lower *l, Member *m, Instance *inst) {
    LayerParam weight = {.name = "weight", .ndim = 2, .init = INIT_normal, .init_a = 1.0};
    weight.dims[0] = m->args[EMBED_rows].dim;
    weight.dims[1] = m->args[EMBED_dim].dim;
    weight.fan_in = weight.dims[1].value;
    weight.fan_out = weight.dims[0].value;
    weight.pad = m->args[EMBED_pad].dim.value;
    weight.init_given = &m->args[EMBED_init];
    weight.tie = &m->args[EMBED_weight];
    layer_param_add(l, m, inst, &weight);
}

static void declare_layer_norm(Lower *l, Member *m, Instance *inst) {
    LayerParam weight = {
        .name = "weight", .ndim = 1, .dims = {m->args[NORM_dim].dim}, .init = INIT_ones};
    LayerParam bias = {
        .name = "bias", .ndim = 1, .dims = {m->args[NORM_dim].dim}, .init = INIT_zeros};
    layer_param_add(l, m, inst, &weight);
    if (m->args[NORM_bias].truth) layer_param_add(l, m, inst, &bias);
}

static void declare_rms_norm(Lower *l, Member *m, Instance *inst) {
    LayerParam weight = {
        .name = "weight", .ndim = 1, .dims = {m->args[NORM_dim].dim}, .init = INIT_ones};
    layer_param_add(l, m, inst, &weight);
}

static void declare_nothing(Lower *l, Member *m, Instance *inst) { (void)l, (void)m, (void)inst; }

static void declare_pool(Lower *l, Member *m, Instance *inst) {
    (void)inst;
    if (!positive_pair(l, m, POOL_k, "k") || !positive_pair(l, m, POOL_stride, "stride"))
        m->broken = true;
}

/* --- Linear, Conv1D --- */

/* "c_attn makes 3 parts of D: c_attn(x) |> split(3)" */
static void hint_split(Lower *l, DiagRef e, const Value *x, Dim want, Dim got) {
    if (want.value <= 1 || got.value % want.value != 0 || got.value <= want.value) return;
    const Source *src = source_get(l->sources, x->span.file);
    uint32_t n = x->span.end - x->span.begin;
    if (n == 0 || n > 40) return;
    const char *text = arena_strndup(l->arena, src->text + x->span.begin, n);
    long long parts = (long long)(got.value / want.value);
    diag_hint(l->diag, e, "%.*s makes %lld parts of %s: %s |> split(%lld)",
              (int)strcspn(text, "( "), text, parts, want.text, text, parts);
}

static void report_last_dim(Lower *l, const Member *m, const Value *x, Dim want, Dim out,
                            Span span) {
    Dim got = x->dims[x->ndim - 1];
    const char *shape = dims_text(l->arena, x->dims, x->ndim);
    if (x->flattened && got.free == NULL) {
        DiagRef e =
            lower_error(l, E013, span, "flatten size: '%s' expects %s but flatten gives %lld = %s",
                        m->name, dim_with_value(l->arena, want), (long long)got.value, got.text);
        diag_label(l->diag, e, "input is %s", shape);
        if (x->trail != NULL) diag_note(l->diag, e, "%s", x->trail);
        diag_hint(l->diag, e, "%s: %s(%s, %s)", m->name, m->layer->name,
                  dim_number(l->arena, got.value).text, out.text);
        return;
    }
    bool mixed = got.free != NULL || want.free != NULL;
    DiagRef e;
    if (mixed && got.value == want.value)
        e = lower_error(
            l, E014, span,
            "'%s' expects last dim %s, got '%s': they are different dims although both are %lld",
            m->name, want.text, got.text, (long long)got.value);
    else
        e = lower_error(l, E012, span, "dimension mismatch: '%s' expects last dim %s, got %s",
                        m->name, dim_with_value(l->arena, want), dim_with_value(l->arena, got));
    diag_label(l->diag, e, "input is %s; '%s' is declared at %s as %s -> %s", shape, m->name,
               diag_place(l->diag, m->span, span), want.text, out.text);
    hint_split(l, e, x, want, got);
}

static Val add_bias(Lower *l, const Member *m, Val y, int axis) {
    Val bias = layer_param_val(l, m, "bias");
    if (bias.id == 0) return y;
    Type type = val_type(l->b.g, y);
    int64_t axes[1] = {axis};
    return build2(&l->b, OP_add, y, build_broadcast(&l->b, bias, type, axes));
}

static Value apply_linear_like(Lower *l, const Member *m, const Value *x, Span span,
                               bool transposed) {
    Dim in = m->args[LINEAR_in].dim, out = m->args[LINEAR_out].dim;
    if (!want_ndim(l, x, 1, NDIM_MAX, m->layer->name, span) ||
        !want_float(l, x, m->layer->name, span))
        return (Value){0};
    if (!dim_equal(x->dims[x->ndim - 1], in)) {
        report_last_dim(l, m, x, in, out, span);
        return (Value){0};
    }
    Dim dims[NDIM_MAX], flat[2] = {dim_number(l->arena, 1), in};
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    for (int i = 0; i + 1 < x->ndim; i++) flat[0].value *= x->dims[i].value;
    dims[x->ndim - 1] = out;
    if (!shape_fits(l, x->dtype, x->ndim, dims, span)) return (Value){0};
    Val weight = layer_param_val(l, m, "weight");
    Val y = build_matmul(&l->b, reshape_to(l, x->val, 2, flat), weight, false, !transposed);
    y = add_bias(l, m, y, 1);
    return tensor_new(l, x->dtype, x->ndim, dims, reshape_to(l, y, x->ndim, dims), span);
}

static Value apply_linear(Lower *l, const Member *m, const Value *x, Span span) {
    return apply_linear_like(l, m, x, span, false);
}

static Value apply_conv1d(Lower *l, const Member *m, const Value *x, Span span) {
    return apply_linear_like(l, m, x, span, true);
}

/* --- Conv2d and pooling --- */

/* One spatial axis: the size after a window, with its message when nothing is left. */
static bool window_size(Lower *l, const Member *m, Dim size, const Value *k, const Value *stride,
                        const Value *padding, Dim *out, Span span) {
    int64_t room = size.value + 2 * padding->dim.value - k->dim.value;
    if (size.free != NULL) {
        lower_error(l, E014, span, "%s needs sizes that are known, '%s' is a free dimension",
                    m->layer->name, size.text);
        return false;
    }
    if (room < 0) {
        lower_error(l, E019, span, "'%s': output size is not positive: %s + 2*%s - %s < 0", m->name,
                    dim_with_value(l->arena, size), padding->dim.text, k->dim.text);
        return false;
    }
    *out = dim_number(l->arena, room / stride->dim.value + 1);
    return true;
}

static const char *trail_text(Lower *l, const Member *m, const Value *x, Dim from, Dim to,
                              int64_t k, int64_t padding) {
    const char *step = arena_printf(l->arena, " -> %s", to.text);
    if (x->trail != NULL) return arena_printf(l->arena, "%s%s", x->trail, step);
    const char *pad = padding == 0
                          ? " without padding"
                          : arena_printf(l->arena, " with padding %lld", (long long)padding);
    return arena_printf(l->arena, "%s(k = %lld)%s: %s%s", m->layer->name, (long long)k, pad,
                        from.text, step);
}

static bool spatial_dims(Lower *l, const Member *m, const Value *x, const Value *const args[3],
                         Dim *dims, Span span) {
    for (int axis = 0; axis < 2; axis++)
        if (!window_size(l, m, x->dims[2 + axis], &args[0]->item[axis], &args[1]->item[axis],
                         &args[2]->item[axis], &dims[2 + axis], span))
            return false;
    return shape_fits(l, x->dtype, 4, dims, span);
}

static Attr pair_attr(Lower *l, AttrKey key, const Value *pair) {
    int64_t *sizes = ARENA_ARRAY(l->arena, int64_t, 2);
    sizes[0] = pair->item[0].dim.value;
    sizes[1] = pair->item[1].dim.value;
    return (Attr){.key = key, .n = 2, .v = sizes};
}

static Value apply_conv2d(Lower *l, const Member *m, const Value *x, Span span) {
    if (!want_ndim(l, x, 4, 4, "Conv2d", span) || !want_float(l, x, "Conv2d", span))
        return (Value){0};
    Dim in = m->args[CONV_in].dim;
    if (!dim_equal(x->dims[1], in)) {
        DiagRef e = lower_error(l, E012, span,
                                "dimension mismatch: '%s' expects %s channels, got %s", m->name,
                                dim_with_value(l->arena, in), dim_with_value(l->arena, x->dims[1]));
        diag_label(l->diag, e, "input is %s; '%s' is declared at %s",
                   dims_text(l->arena, x->dims, x->ndim), m->name,
                   diag_place(l->diag, m->span, span));
        return (Value){0};
    }
    const Value *args[3] = {&m->args[CONV_k], &m->args[CONV_stride], &m->args[CONV_padding]};
    Dim dims[4] = {x->dims[0], m->args[CONV_out].dim};
    if (!spatial_dims(l, m, x, args, dims, span)) return (Value){0};
    Attr attrs[2] = {pair_attr(l, ATTR_stride, args[1]), pair_attr(l, ATTR_padding, args[2])};
    Val in_vals[2] = {x->val, layer_param_val(l, m, "weight")};
    Val y = graph_add(&l->b, OP_conv2d, 2, in_vals, 2, attrs, (Type){0})->out;
    for (int i = 2; i < 4; i++) caching_note_mix(l, x->dims[i], "a convolution", y, span);
    Value v = tensor_new(l, x->dtype, 4, dims, add_bias(l, m, y, 1), span);
    v.trail = trail_text(l, m, x, x->dims[2], dims[2], args[0]->item[0].dim.value,
                         args[2]->item[0].dim.value);
    return v;
}

static Value apply_pool(Lower *l, const Member *m, const Value *x, Span span, Op op) {
    if (!want_ndim(l, x, 4, 4, m->layer->name, span) || !want_float(l, x, m->layer->name, span))
        return (Value){0};
    const Value *stride =
        m->args[POOL_stride].kind != VALUE_none ? &m->args[POOL_stride] : &m->args[POOL_k];
    const Value *args[3] = {&m->args[POOL_k], stride, &m->args[POOL_padding]};
    Dim dims[4] = {x->dims[0], x->dims[1]};
    for (int i = 0; i < 2; i++) {
        if (2 * args[2]->item[i].dim.value <= args[0]->item[i].dim.value) continue;
        lower_error(l, E019, span, "'%s': padding may be at most half of the window", m->name);
        return (Value){0};
    }
    if (!spatial_dims(l, m, x, args, dims, span)) return (Value){0};
    Attr attrs[3] = {pair_attr(l, ATTR_window, args[0]), pair_attr(l, ATTR_stride, stride),
                     pair_attr(l, ATTR_padding, args[2])};
    Val y = graph_add(&l->b, op, 1, &x->val, 3, attrs, (Type){0})->out;
    for (int i = 2; i < 4; i++) caching_note_mix(l, x->dims[i], "pooling", y, span);
    Value v = tensor_new(l, x->dtype, 4, dims, y, span);
    v.trail = trail_text(l, m, x, x->dims[2], dims[2], args[0]->item[0].dim.value,
                         args[2]->item[0].dim.value);
    return v;
}

static Value apply_max_pool(Lower *l, const Member *m, const Value *x, Span span) {
    return apply_pool(l, m, x, span, OP_max_pool2d);
}

static Value apply_avg_pool(Lower *l, const Member *m, const Value *x, Span span) {
    return apply_pool(l, m, x, span, OP_avg_pool2d);
}

/* --- Embedding, norms, dropout --- */

static Value apply_embedding(Lower *l, const Member *m, const Value *x, Span span) {
    Dim dims[NDIM_MAX + 1];
    if (x->dtype != DT_i32) {
        lower_error(l, E019, span, "'%s' takes i32 indices, got %s", m->name,
                    value_type_text(l->arena, x));
        return (Value){0};
    }
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dims[i];
    dims[x->ndim] = m->args[EMBED_dim].dim;
    if (!shape_fits(l, DT_f32, x->ndim + 1, dims, span)) return (Value){0};
    Val y = build2(&l->b, OP_gather, layer_param_val(l, m, "weight"), x->val);
    return tensor_new(l, DT_f32, x->ndim + 1, dims, y, span);
}

static bool norm_fits(Lower *l, const Member *m, const Value *x, Span span) {
    Dim want = m->args[NORM_dim].dim;
    if (!want_ndim(l, x, 1, NDIM_MAX, m->layer->name, span) ||
        !want_float(l, x, m->layer->name, span))
        return false;
    if (dim_equal(x->dims[x->ndim - 1], want)) return true;
    report_last_dim(l, m, x, want, want, span);
    return false;
}

static Value apply_layer_norm(Lower *l, const Member *m, const Value *x, Span span) {
    if (!norm_fits(l, m, x, span)) return (Value){0};
    Val weight = layer_param_val(l, m, "weight"), bias = layer_param_val(l, m, "bias");
    if (bias.id == 0) bias = build_const(&l->b, 0.0, val_type(l->b.g, weight));
    Attr eps = ATTR_FLOAT(eps, m->args[NORM_eps].number);
    Val in[3] = {x->val, weight, bias};
    return tensor_like(x, x->dtype, graph_add(&l->b, OP_layer_norm, 3, in, 1, &eps, (Type){0})->out,
                       span);
}

static Value apply_rms_norm(Lower *l, const Member *m, const Value *x, Span span) {
    if (!norm_fits(l, m, x, span)) return (Value){0};
    Attr eps = ATTR_FLOAT(eps, m->args[NORM_eps].number);
    Val in[2] = {x->val, layer_param_val(l, m, "weight")};
    return tensor_like(x, x->dtype, graph_add(&l->b, OP_rms_norm, 2, in, 1, &eps, (Type){0})->out,
                       span);
}

static Value apply_dropout(Lower *l, const Member *m, const Value *x, Span span) {
    const FunctionSpec *fn = function_find("dropout");
    Value args[2] = {*x, m->args[0]};
    return fn->apply(l, &(Call){.fn = fn, .arg = args, .span = span});
}

/* --- the table --- */

static const LayerSpec table[] = {
    {"Linear", LINEAR_ARGS, declare_linear, apply_linear},
    {"Conv1D", LINEAR_ARGS, declare_conv1d, apply_conv1d},
    {"Conv2d",
     "in: count, out: count, k: pair, stride: pair = 1, padding: pair = 0, bias: bool = true, "
     "init: init?",
     declare_conv2d, apply_conv2d},
    {"Embedding",
     "rows: count, dim: count, pad: count = 1, init: init?, weight: path?, "
     "shard: word(none|vocab) = none",
     declare_embedding, apply_embedding},
    {"LayerNorm", "dim: count, eps: positive = 1e-5, bias: bool = true", declare_layer_norm,
     apply_layer_norm},
    {"RMSNorm", "dim: count, eps: nonneg = 1.1920929e-07", declare_rms_norm, apply_rms_norm},
    {"Dropout", "p: share = 0.5", declare_nothing, apply_dropout},
    {"MaxPool2d", POOL_ARGS, declare_pool, apply_max_pool},
    {"AvgPool2d", POOL_ARGS, declare_pool, apply_avg_pool},
};

const LayerSpec *layer_at(int index) {
    bool valid = index >= 0 && (size_t)index < sizeof(table) / sizeof(table[0]);
    return valid ? &table[index] : NULL;
}

const LayerSpec *layer_find(const char *name) {
    for (int i = 0; layer_at(i) != NULL; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}
