/* attention.c - see attention.h.
 *
 * The body is the anchor with movement around it: slices, transposes and reshapes of its inputs
 * before it; transposes, reshapes and concatenations after it. On CUDA also ropes of queries and of
 * the gradients of queries and keys. fuse builds no other.
 */
#include "codegen/attention.h"
#include "ir/view.h"

static const Node *find_anchor(const Graph *body) {
    for (int i = 0; i < body->nnode; i++)
        if (op_kind(body->node[i]->op) == KIND_attention) return body->node[i];
    loop_broken(__FILE__, __LINE__, "an attention kernel without attention");
}

/* What lies in memory beside lse has one dtype. */
static void check_dtypes(const AttentionSpec *s) {
    const AttentionView *all[] = {&s->q,  &s->k,  &s->v,  &s->out,   &s->dout,
                                  &s->dq, &s->dk, &s->dv, &s->turned};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        LOOP_ASSERT(all[i]->arg < 0 || s->arg_dtype[all[i]->arg] == s->dtype);
}

/* [B, H, T, K], or [B, H, T] with ndim 3. */
static AttentionView make_view(int arg, const View *v, int ndim) {
    LOOP_ASSERT(v->ndim == ndim && (ndim == 3 || v->stride[3] == 1 || v->dim[3] == 1));
    return (AttentionView){arg, v->offset, v->stride[0], v->stride[1], v->stride[2]};
}

static AttentionView operand_view(const Graph *body, const Node *n, int i, int ndim) {
    View view;
    for (int k = 0; k < body->nin; k++)
        if (view_read(body, n->in[i], body->in[k], &view)) return make_view(k, &view, ndim);
    loop_broken(__FILE__, __LINE__, "attention of an operand that is no view");
}

static AttentionView result_view(const Graph *body, const Node *n, int i, int ndim) {
    View view;
    for (int k = 0; k < body->nout; k++)
        if (view_written(body, node_out(n, i), body->out[k], &view))
            return make_view(body->nin + k, &view, ndim);
    return (AttentionView){.arg = -1};
}

/* --- ropes --- */

/* The rope between v and what it is a view of; NULL when there is none. */
static const Node *find_rope(const Graph *body, Val v) {
    const Node *n = val_node(body, v);
    while (n != NULL && n->op != OP_rope && n->nin == 1) n = val_node(body, n->in[0]);
    return n != NULL && n->op == OP_rope ? n : NULL;
}

/* The rope on the way from `made` to a result. */
static const Node *find_rope_of(const Graph *body, Val made) {
    View view;
    for (int i = 0; i < body->nnode; i++)
        if (body->node[i]->op == OP_rope && view_written(body, made, body->node[i]->out, &view))
            return body->node[i];
    return NULL;
}

static int argument_of(const Graph *body, Val v) {
    for (int i = 0; i < body->nin; i++)
        if (body->in[i].id == v.id) return i;
    loop_broken(__FILE__, __LINE__, "a table of rope that is not in memory");
}

static AttentionTurn make_turn(const Graph *body, const Node *rope) {
    if (rope == NULL) return (AttentionTurn){.pairs = PAIRS_none};
    return (AttentionTurn){.pairs = node_int(rope, ATTR_adjacent, 0) == 1 ? PAIRS_neighbours
                                                                          : PAIRS_halves,
                           .back = node_int(rope, ATTR_back, 0) == 1,
                           .cosine = argument_of(body, rope->in[1]),
                           .sine = argument_of(body, rope->in[2])};
}

/* Where operand `v` of the anchor is a result, too. */
static AttentionView turned_view(const Graph *body, Val v) {
    View view;
    for (int k = 0; k < body->nout; k++)
        if (view_read(body, v, body->out[k], &view)) return make_view(body->nin + k, &view, 4);
    return (AttentionView){.arg = -1};
}

AttentionSpec attention_spec(const Graph *body, uint64_t loose) {
    const Node *n = find_anchor(body);
    const TypeInfo *q = val_info(body, n->in[0]), *k = val_info(body, n->in[1]);
    AttentionSpec s = {.batch = q->dim[0],
                       .heads = q->dim[1],
                       .groups = k->dim[1],
                       .queries = q->dim[2],
                       .keys = k->dim[2],
                       .dim = q->dim[3],
                       .causal = node_int(n, ATTR_causal, 0) == 1,
                       .scale = node_float(n, ATTR_scale, 1),
                       .nargs = body->nin + body->nout,
                       .nread = body->nin,
                       .loose = loose,
                       .turned = {.arg = -1}};
    LOOP_ASSERT(s.nargs <= ATTENTION_ARGS_MAX);
    for (int i = 0; i < s.nargs; i++) {
        Val v = i < body->nin ? body->in[i] : body->out[i - body->nin];
        s.arg_dtype[i] = val_info(body, v)->dtype;
    }
    s.q = operand_view(body, n, 0, 4);
    s.k = operand_view(body, n, 1, 4);
    s.v = operand_view(body, n, 2, 4);
    s.dtype = s.arg_dtype[s.q.arg];
    s.turn_q = make_turn(body, find_rope(body, n->in[0]));
    if (s.turn_q.pairs != PAIRS_none) s.turned = turned_view(body, n->in[0]);
    if (n->op == OP_attention) {
        s.out = result_view(body, n, 0, 4);
        s.lse = result_view(body, n, 1, 3);
        s.dout = s.dq = s.dk = s.dv = (AttentionView){.arg = -1};
        check_dtypes(&s);
        return s;
    }
    s.out = operand_view(body, n, 3, 4);
    s.lse = operand_view(body, n, 4, 3);
    s.dout = operand_view(body, n, 5, 4);
    s.dq = result_view(body, n, 0, 4);
    s.dk = result_view(body, n, 1, 4);
    s.dv = result_view(body, n, 2, 4);
    s.turn_dq = make_turn(body, find_rope_of(body, node_out(n, 0)));
    s.turn_dk = make_turn(body, find_rope_of(body, node_out(n, 1)));
    check_dtypes(&s);
    return s;
}
