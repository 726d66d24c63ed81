/* limits.c - bounds of integer inputs from what the graph does with them. */
#include "ir/limits.h"

static void narrow(DataLimit *lim, int64_t limit) {
    if (limit < lim->limit) lim->limit = limit;
}

/* What node n demands of its operand k. */
static void limits_from_use(const Graph *g, const Node *n, int k, DataLimit *lim) {
    if (n->op == OP_gather && k == 1) narrow(lim, val_info(g, n->in[0])->dim[0]);
    if (n->op == OP_cross_entropy && k == 1) {
        const TypeInfo *logits = val_info(g, n->in[0]);
        narrow(lim, node_int(n, ATTR_classes, logits->dim[logits->ndim - 1]));
        if (node_attr(n, ATTR_ignore)) lim->ignore = node_int(n, ATTR_ignore, INT64_MIN);
    }
}

/* Whether the result of n holds the same integers as its operand. */
static bool passes_values_on(const Node *n) {
    return n->op == OP_reshape || n->op == OP_transpose || n->op == OP_copy || n->op == OP_slice ||
           n->op == OP_broadcast;
}

static void limits_follow(const Graph *g, Val v, DataLimit *lim) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++) {
            if (n->in[k].id != v.id) continue;
            limits_from_use(g, n, k, lim);
            if (passes_values_on(n)) limits_follow(g, n->out, lim);
            if (n->op == OP_repeat) limits_follow(n->body, n->body->in[k], lim);
        }
    }
}

DataLimit limits_of_input(const Graph *g, int index) {
    DataLimit lim = {.limit = INT64_MAX, .ignore = INT64_MIN};
    for (int i = 0; i < g->nin; i++)
        if (g->in_port[i].role == ROLE_data && g->in_port[i].index == index)
            limits_follow(g, g->in[i], &lim);
    return lim;
}
