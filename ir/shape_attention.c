/* shape_attention.c - shape rules of attention and its gradient. */
#include "ir/shape_rule.h"

/* q [B, H, T, K], k [B, G, S, K], v [B, G, S, Kv]: types of out and lse. */
static const char *attention_types(const ShapeQuery *q, Type *out, Type *lse) {
    const TypeInfo *x = shape_in(q, 0), *k = shape_in(q, 1), *v = shape_in(q, 2);
    if (x->ndim != 4 || k->ndim != 4 || v->ndim != 4 || !dtype_is_float(x->dtype) ||
        k->dtype != x->dtype || v->dtype != x->dtype)
        return shape_pair(q, "attention needs float q, k and v of rank 4 and one dtype", 0, 1);
    if (k->dim[0] != x->dim[0] || k->dim[3] != x->dim[3])
        return shape_pair(q, "q [B, H, T, K] needs k [B, G, S, K]", 0, 1);
    for (int i = 0; i < 3; i++)
        if (v->dim[i] != k->dim[i]) return shape_pair(q, "k and v have as many keys", 1, 2);
    if (k->dim[1] == 0 || k->dim[2] == 0 || k->dim[3] == 0)
        return shape_one(q, "k has groups, keys and a last axis", 1);
    if (x->dim[1] % k->dim[1] != 0)
        return shape_pair(q, "the number of groups divides that of heads", 0, 1);
    int64_t causal = shape_attr(q, ATTR_causal)->i;
    if (causal != 0 && causal != 1) return "causal is 0 or 1";
    if (causal && x->dim[2] != k->dim[2])
        return shape_pair(q, "causal attention has as many queries as keys", 0, 1);
    const char *why =
        shape_make(q, out, x->dtype, 4, (int64_t[]){x->dim[0], x->dim[1], x->dim[2], v->dim[3]});
    return why != NULL ? why : shape_make(q, lse, DT_f32, 3, x->dim);
}

const char *shape_attention(const ShapeQuery *q, Type *out) {
    return attention_types(q, &out[0], &out[1]);
}

const char *shape_attention_grad(const ShapeQuery *q, Type *out) {
    Type y = {0}, lse = {0};
    const char *why = attention_types(q, &y, &lse);
    if (why != NULL) return why;
    if (q->in[3].id != y.id || q->in[5].id != y.id)
        return shape_pair(q, "attention's result and its gradient", 3, 5);
    if (q->in[4].id != lse.id) return shape_one(q, "lse is f32 [B, H, T]", 4);
    for (int i = 0; i < 3; i++) out[i] = q->in[i];
    return NULL;
}
