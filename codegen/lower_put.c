/* lower_put.c - a few places of a tensor replaced.
 *
 * In place, which is what the caches of generate are, only the new elements are written; what would
 * lie outside is not. Elsewhere every element is: the old one, or the new one where there is one.
 */
#include "codegen/lower_space.h"

#include <string.h>

typedef struct Put {
    LowerBody *b;
    LoopKernel *k;
    const Node *node;
    const TypeInfo *old, *new;
    int axis;
    LoopVal first; /* i32: where the new elements begin */
} Put;

static LoopVal number(Put *p, int64_t value) { return loop_const(p->k, DT_i32, (double)value); }

static LoopVal within(Put *p, LoopVal v, int64_t low, int64_t high) {
    return loop_op2(p->k, OP_and, loop_compare(p->k, OP_ge, v, number(p, low)),
                    loop_compare(p->k, OP_lt, v, number(p, high)));
}

static void load_first(Put *p) {
    p->first = loop_load(p->k, lower_body_input(p->b, p->node->in[2]), loop_idx(p->k, 0));
}

/* v as an index in [0, extent): 0 where it is none. */
static LoopIdx safe_index(Put *p, LoopVal v, LoopVal good, int64_t extent) {
    return loop_idx_val(p->k, loop_select(p->k, good, v, number(p, 0)), 0, extent - 1);
}

/* The element's new value. */
static void store(Put *p, const LoopIdx *index, LoopVal v) {
    lower_body_bind(p->b, p->node->out, v);
    lower_body_store_all(p->b, index);
}

/* Only the new elements. The axis along which they are put is not the last one, so what guards them
 * stands outside the innermost loop on a CPU. */
static void put_in_place(Put *p, LowerContext *ctx) {
    LoopIdx index[NDIM_MAX], at[NDIM_MAX];
    int last = p->new->ndim - 1;
    if (ctx->target == TARGET_cuda)
        lower_open_elements(ctx, p->k, p->new, index);
    else
        lower_open_grid(p->k, last, p->new->dim, index);
    load_first(p);
    LoopVal place = loop_op2(p->k, OP_add, p->first, loop_index(p->k, index[p->axis]));
    LoopVal good = within(p, place, 0, p->old->dim[p->axis]);
    LoopIdx row = safe_index(p, place, good, p->old->dim[p->axis]);
    loop_open_if(p->k, good);
    if (ctx->target == TARGET_c)
        index[last] = loop_idx_axis(
            p->k, loop_open(p->k, LOOP_vector, p->new->dim[last], LOOP_NO_BOUND));
    memcpy(at, index, sizeof at);
    at[p->axis] = row;
    store(p, at, lower_body_value(p->b, p->node->in[1], index));
}

/* Every element, old or new. */
static void put_all(Put *p, LowerContext *ctx) {
    LoopIdx index[NDIM_MAX], at[NDIM_MAX];
    lower_open_elements(ctx, p->k, p->old, index);
    load_first(p);
    LoopVal place = loop_op2(p->k, OP_sub, loop_index(p->k, index[p->axis]), p->first);
    LoopVal good = within(p, place, 0, p->new->dim[p->axis]);
    memcpy(at, index, sizeof at);
    at[p->axis] = safe_index(p, place, good, p->new->dim[p->axis]);
    LoopVal v = lower_body_value(p->b, p->node->in[1], at);
    LoopIdx here = lower_offset(p->k, p->old, index);
    LoopVal old = loop_load(p->k, lower_body_input(p->b, p->node->in[0]), here);
    store(p, index, loop_select(p->k, good, v, old));
}

LoopKernel *lower_put(LowerContext *ctx, const Graph *g, const Node *kernel) {
    LowerBody *b = lower_body_new(ctx, g, kernel);
    Put p = {.b = b, .k = b->k, .node = lower_body_anchor(b, OP_put)};
    p.old = val_info(b->body, p.node->in[0]);
    p.new = val_info(b->body, p.node->in[1]);
    p.axis = (int)node_int(p.node, ATTR_axis, 0);
    for (int i = 0; i < p.old->ndim; i++)
        if (p.new->dim[i] == 0 || p.old->dim[i] == 0) return p.k;
    if (ctx->in_place)
        put_in_place(&p, ctx);
    else
        put_all(&p, ctx);
    lower_space_close(p.k, 0);
    return p.k;
}
