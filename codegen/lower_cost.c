/* lower_cost.c - least traffic and arithmetic of a kernel, for `info` and for choosing threads. */
#include "codegen/lower.h"
#include "ir/cost.h"

LowerCost lower_cost(const Graph *g, const Node *kernel) {
    LowerCost cost = {0};
    const Graph *body = kernel->body;
    (void)g;
    for (int i = 0; i < body->nin; i++)
        cost.bytes += type_bytes(body->mod->types, val_type(body, body->in[i]));
    for (int i = 0; i < body->nout; i++)
        cost.bytes += type_bytes(body->mod->types, val_type(body, body->out[i]));
    for (int i = 0; i < body->nnode; i++)
        cost.flops += cost_flops(body, body->node[i]);
    return cost;
}
