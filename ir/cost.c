/* cost.c - arithmetic and traffic of one node. */
#include "ir/cost.h"

static int64_t elems(const Graph *g, Val v) { return type_elems(g->mod->types, val_type(g, v)); }

static int64_t flops_none(const Graph *g, const Node *n) {
    (void)g;
    (void)n;
    return 0;
}

static int64_t flops_result(const Graph *g, const Node *n) { return elems(g, n->out); }

static int64_t flops_operand(const Graph *g, const Node *n) { return elems(g, n->in[0]); }

static int64_t flops_scatter(const Graph *g, const Node *n) { return elems(g, n->in[1]); }

static int64_t flops_matmul(const Graph *g, const Node *n) {
    const TypeInfo *a = val_info(g, n->in[0]);
    int64_t k = a->dim[a->ndim - (node_int(n, ATTR_ta, 0) ? 2 : 1)];
    return 2 * elems(g, n->out) * k;
}

/* Products of queries and keys, half of them where later keys are not seen: scores and sums, and
 * backward scores, their gradients, and three sums. */
static int64_t flops_attention(const Graph *g, const Node *n) {
    int64_t pairs = elems(g, n->in[0]) * val_info(g, n->in[2])->dim[2];
    return (n->op == OP_attention ? 4 : 10) * (node_int(n, ATTR_causal, 0) ? pairs / 2 : pairs);
}

/* Every element of y meets the weights of one output channel. */
static int64_t flops_conv(const Graph *g, const Node *n) {
    Val y = n->op == OP_conv2d ? n->out : n->op == OP_conv2d_dx ? n->in[0] : n->in[1];
    Val w = n->op == OP_conv2d_dw ? n->out : n->in[1];
    int64_t channels = val_info(g, w)->dim[0];
    return channels ? 2 * elems(g, y) * (elems(g, w) / channels) : 0;
}

static int64_t flops_pool(const Graph *g, const Node *n) {
    const Attr *window = node_attr(n, ATTR_window);
    int64_t in = elems(g, n->in[0]), out = elems(g, n->out);
    return (in < out ? in : out) * window->v[0] * window->v[1];
}

typedef int64_t FlopsFn(const Graph *g, const Node *n);

static FlopsFn *const flops_of[] = {
    [KIND_elementwise] = flops_result,  [KIND_reduce] = flops_operand, [KIND_source] = flops_none,
    [KIND_random] = flops_result,       [KIND_movement] = flops_none,  [KIND_matmul] = flops_matmul,
    [KIND_conv] = flops_conv,           [KIND_pool] = flops_pool,      [KIND_gather] = flops_none,
    [KIND_scatter] = flops_scatter,     [KIND_composite] = flops_none, [KIND_region] = flops_none,
    [KIND_attention] = flops_attention,
};

int64_t cost_flops(const Graph *g, const Node *n) { return flops_of[op_kind(n->op)](g, n); }

int64_t cost_bytes(const Graph *g, const Node *n) {
    int64_t bytes = 0;
    for (int i = 0; i < n->nin; i++) bytes += type_bytes(g->mod->types, val_type(g, n->in[i]));
    for (int i = 0; i < n->nout; i++)
        bytes += type_bytes(g->mod->types, val_type(g, node_out(n, i)));
    return bytes;
}

KernelCost cost_kernel(const Node *kernel) {
    KernelCost cost = {0};
    const Graph *body = kernel->body;
    for (int i = 0; i < body->nin; i++)
        cost.bytes += type_bytes(body->mod->types, val_type(body, body->in[i]));
    for (int i = 0; i < body->nout; i++)
        cost.bytes += type_bytes(body->mod->types, val_type(body, body->out[i]));
    for (int i = 0; i < body->nnode; i++) cost.flops += cost_flops(body, body->node[i]);
    return cost;
}

double cost_placed(const Node *n) {
    if (n->op == OP_kernel) {
        KernelCost cost = cost_kernel(n);
        return (double)cost.flops + COST_PER_BYTE * (double)cost.bytes;
    }
    double sum = 0;
    for (int i = 0; n->op == OP_repeat && i < n->body->nnode; i++)
        sum += cost_placed(n->body->node[i]);
    return n->op == OP_repeat ? sum * (double)node_int(n, ATTR_count, 1) : 0;
}
