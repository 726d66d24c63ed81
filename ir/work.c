/* work.c - adds up the widths of attention layers. */
#include "ir/work.h"

int64_t work_attention_width(const Graph *g) {
    int64_t width = 0;
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_attention) {
            const TypeInfo *q = val_info(g, n->in[0]); // [B, H, T, K]
            width += q->dim[1] * q->dim[3];
        }
        if (n->op == OP_repeat) width += node_int(n, ATTR_count, 1) * work_attention_width(n->body);
    }
    return width;
}
