/* functions_loss.c - softmax, losses, metrics, dropout.
 *
 * Losses and metrics are means over counted elements. They keep sum and count apart (MeanOf), so
 * that a step's loss is the mean over the whole global batch, not a mean of means. A row whose
 * target is `ignore`, or the padding of the last evaluation batch, is not counted.
 */
#include "frontend/functions.h"

#include <inttypes.h>

/* `TARGET_PAD` of ir/ops.def: the target of a padding row. */
static const double target_pad = (double)INT32_MIN;

static Value mean_of(Lower *l, Val sum, Val count, const char *metric, Span span) {
    Type type = val_type(l->b.g, sum);
    Val most = build2(&l->b, OP_max, count, build_const(&l->b, 1.0, type));
    Value v = tensor_new(l, DT_f32, 0, NULL, build2(&l->b, OP_div, sum, most), span);
    v.mean = (MeanOf){.sum = sum, .count = count, .metric = metric};
    return v;
}

Value fn_softmax(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    int axis = axis_of(l, &c->arg[1], x->ndim, c->span), last = x->ndim - 1;
    if (axis < 0 || !want_float(l, x, c->fn->name, c->span)) return (Value){0};
    if (axis == last) {
        Val v = build1(&l->b, (Op)c->fn->op, x->val);
        caching_note_mix(l, x->dims[axis], c->fn->name, v, c->span);
        return tensor_like(x, x->dtype, v, c->span);
    }
    int64_t perm[NDIM_MAX];
    for (int i = 0; i < x->ndim; i++) perm[i] = i == axis ? last : i == last ? axis : i;
    Val moved = build1(&l->b, (Op)c->fn->op, build_transpose(&l->b, x->val, perm));
    Val v = build_transpose(&l->b, moved, perm);
    caching_note_mix(l, x->dims[axis], c->fn->name, v, c->span);
    return tensor_like(x, x->dtype, v, c->span);
}

/* logits [.., V] float against targets [..] i32. */
static bool check_targets(Lower *l, const Call *c, int ignore_arg) {
    const Value *logits = &c->arg[0], *targets = &c->arg[1];
    int64_t ignore = c->arg[ignore_arg].dim.value;
    if (!want_ndim(l, logits, 1, NDIM_MAX, c->fn->name, c->span) ||
        !want_float(l, logits, c->fn->name, c->span))
        return false;
    if (targets->dtype != DT_i32) {
        lower_error(l, E019, c->span, "%s target must be i32, got %s", c->fn->name,
                    dtype_name(targets->dtype));
        return false;
    }
    Dim classes = logits->dims[logits->ndim - 1];
    if (ignore >= 0 && ignore < classes.value) {
        DiagRef e = lower_error(
            l, E019, c->arg[ignore_arg].span.file != 0 ? c->arg[ignore_arg].span : c->span,
            "ignore = %" PRId64 " may not be a valid class: there are %s", ignore,
            dim_with_value(l->arena, classes));
        diag_hint(l->diag, e, "a negative number, such as -100 or -1, is never a class");
        return false;
    }
    if (ignore < INT32_MIN || ignore > INT32_MAX) {
        lower_error(l, E019, c->span, "ignore = %" PRId64 " is not an i32", ignore);
        return false;
    }
    bool same = targets->ndim == logits->ndim - 1;
    for (int i = 0; same && i < targets->ndim; i++)
        same = dim_equal(targets->dims[i], logits->dims[i]);
    if (same) return true;
    DiagRef e = lower_error(l, E012, c->span,
                            "dimension mismatch: %s of logits %s needs targets %s, got %s",
                            c->fn->name, dims_text(l->arena, logits->dims, logits->ndim),
                            dims_text(l->arena, logits->dims, logits->ndim - 1),
                            dims_text(l->arena, targets->dims, targets->ndim));
    if (targets->ndim == logits->ndim)
        diag_hint(l->diag, e, "targets are class ids, not one-hot rows");
    return false;
}

Value fn_cross_entropy(Lower *l, const Call *c) {
    if (!check_targets(l, c, 2)) return (Value){0};
    Attr attr = ATTR_INT(ignore, c->arg[2].dim.value);
    Val in[2] = {c->arg[0].val, c->arg[1].val};
    Node *node = graph_add(&l->b, OP_cross_entropy, 2, in, 1, &attr, (Type){0});
    return mean_of(l, node_out(node, 0), node_out(node, 1), "cross_entropy", c->span);
}

static Val sum_all(Lower *l, Val x) {
    int64_t axes[NDIM_MAX];
    int n = val_info(l->b.g, x)->ndim;
    for (int i = 0; i < n; i++) axes[i] = i;
    return n > 0 ? build_reduce(&l->b, OP_reduce_sum, x, n, axes) : x;
}

/* 1 where a target counts, 0 where it is ignored or padding: f32 of the targets' shape. */
static Val counted(Lower *l, const Value *targets, int64_t ignore) {
    Val a = build2(&l->b, OP_ne, targets->val, const_like(l, (double)ignore, targets));
    Val b = build2(&l->b, OP_ne, targets->val, const_like(l, target_pad, targets));
    return build_cast(&l->b, build2(&l->b, OP_and, a, b), DT_f32);
}

Value fn_accuracy(Lower *l, const Call *c) {
    const Value *logits = &c->arg[0], *targets = &c->arg[1];
    if (!check_targets(l, c, 2)) return (Value){0};
    Attr attr = ATTR_INT(axis, logits->ndim - 1);
    Val best = graph_add(&l->b, OP_argmax, 1, &logits->val, 1, &attr, (Type){0})->out;
    Val hit = build_cast(&l->b, build2(&l->b, OP_eq, best, targets->val), DT_f32);
    Val count = sum_all(l, counted(l, targets, c->arg[2].dim.value));
    return mean_of(l, sum_all(l, hit), count, "accuracy", c->span);
}

/* Among the k largest: fewer than k logits are larger than the target's. */
Value fn_topk(Lower *l, const Call *c) {
    const Value *logits = &c->arg[0], *targets = &c->arg[1];
    if (!check_targets(l, c, 3)) return (Value){0};
    Value one = {.kind = VALUE_int, .dim = logits->dims[logits->ndim - 1]};
    Value args[2] = {*targets, one};
    Value hot = fn_one_hot(l, &(Call){.fn = c->fn, .arg = args, .span = c->span});
    if (hot.kind == VALUE_none) return hot;
    int64_t last[1] = {logits->ndim - 1};
    Val picked = build2(&l->b, OP_mul, hot.val, logits->val);
    Value score = tensor_like(logits, DT_f32, picked, c->span);
    score = reduce_axes(l, &score, OP_reduce_sum, last, 1, true, c->span);
    Value x = *logits;
    if (!broadcast_pair(l, &x, &score, "topk", c->span)) return (Value){0};
    Value larger = tensor_like(
        logits, DT_f32, build_cast(&l->b, build2(&l->b, OP_gt, x.val, score.val), DT_f32), c->span);
    larger = reduce_axes(l, &larger, OP_reduce_sum, last, 1, false, c->span);
    Val hit = build2(&l->b, OP_lt, larger.val, const_like(l, (double)c->arg[2].dim.value, &larger));
    Val count = counted(l, targets, c->arg[3].dim.value);
    Val sum = build2(&l->b, OP_mul, build_cast(&l->b, hit, DT_f32), count);
    const char *name = arena_printf(l->arena, "top%" PRId64, c->arg[2].dim.value);
    count = sum_all(l, count);
    return mean_of(l, sum_all(l, sum), count, name, c->span);
}

/* Mean of squared differences over the valid samples. */
Value fn_mse(Lower *l, const Call *c) {
    Value x = c->arg[0], y = c->arg[1];
    if (!want_float(l, &x, "mse", c->span) || !want_float(l, &y, "mse", c->span)) return (Value){0};
    bool same = x.ndim == y.ndim;
    for (int i = 0; same && i < x.ndim; i++) same = dim_equal(x.dims[i], y.dims[i]);
    if (!same) {
        lower_error(l, E012, c->span, "dimension mismatch: mse of %s and %s",
                    dims_text(l->arena, x.dims, x.ndim), dims_text(l->arena, y.dims, y.ndim));
        return (Value){0};
    }
    if (!broadcast_pair(l, &x, &y, "mse", c->span)) return (Value){0};
    Val d = build2(&l->b, OP_sub, x.val, y.val), square = build2(&l->b, OP_mul, d, d);
    Val count = const_like(l, 1.0, &x);
    bool batched =
        l->valid.id != 0 && x.ndim > 0 && x.dims[0].value == val_info(l->b.g, l->valid)->dim[0];
    if (batched) {
        int64_t axes[1] = {0};
        count = build_broadcast(&l->b, l->valid, value_ir_type(l, &x), axes);
        square = build2(&l->b, OP_mul, square, count);
    }
    count = sum_all(l, count);
    return mean_of(l, sum_all(l, square), count, "mse", c->span);
}

Value fn_dropout(Lower *l, const Call *c) {
    const Value *x = &c->arg[0];
    double p = c->arg[1].number;
    if (!want_float(l, x, "dropout", c->span)) return (Value){0};
    if (!l->training || p == 0) return value_plain(x);
    if (p >= 1) return tensor_like(x, x->dtype, const_like(l, 0.0, x), c->span);
    Value like = tensor_like(x, DT_f32, x->val, c->span);
    Attr stream = ATTR_INT(stream, l->mod->nstream++);
    Val noise =
        graph_add(&l->b, OP_random_uniform, 0, NULL, 1, &stream, value_ir_type(l, &like))->out;
    Val keep = build2(&l->b, OP_ge, noise, const_like(l, p, &like));
    Value scaled = scale_by(l, x, 1.0 / (1.0 - p), c->span);
    return tensor_like(x, x->dtype,
                       build3(&l->b, OP_select, keep, scaled.val, const_like(l, 0.0, x)), c->span);
}
