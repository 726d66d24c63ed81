/* place_input.c - what place needs of its input.
 *
 * In the pipeline all of it holds. A module read from text can be anything that is valid IR: nodes
 * that are no kernels, offsets that nobody laid out, tensors whose bytes no machine has. Those are
 * diagnostics here, so that everything behind may count without checking.
 */
#include "passes/place.h"

/* All sizes together stay below this, so sums and small multiples of them fit into int64. */
static const int64_t bytes_max = (int64_t)1 << 56;

static bool fused_only(Diag *d, const Graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_repeat && !fused_only(d, n->body)) return false;
        if (n->op == OP_kernel || n->op == OP_repeat || n->op == OP_reshape) continue;
        DiagRef ref = diag_error(d, E030, n->span, "%s stands outside a kernel", op_name(n->op));
        diag_hint(d, ref, "fuse comes before place");
        return false;
    }
    return true;
}

static bool add_bytes(int64_t *total, int64_t bytes) {
    if (bytes < 0 || bytes > bytes_max - *total) return false;
    *total += bytes;
    return true;
}

/* Bytes of all values, repeats' bodies included. */
static bool count_bytes(const Graph *g, int64_t *total) {
    for (uint32_t v = 1; v < g->nval; v++)
        if (!add_bytes(total, type_bytes(g->mod->types, g->val[v].type))) return false;
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_repeat && !count_bytes(g->node[i]->body, total)) return false;
    return true;
}

/* The vectors of parameters, gradients, states and the copy, at 4 bytes an element. */
static bool count_layout(const Module *m, int64_t *total) {
    const int64_t elems_max = bytes_max / 64;
    if (m->flat_elems < 0 || m->flat_elems > elems_max || m->grad_elems < 0 ||
        m->grad_elems > elems_max || m->nstate > 8)
        return false;
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].offset_elems > elems_max || m->param[i].use_offset_elems > elems_max ||
            m->param[i].uses > 4096)
            return false;
    for (int s = 0; s < m->nsegment; s++)
        if (m->segment[s].offset_elems > elems_max || m->segment[s].elems > elems_max) return false;
    return add_bytes(total, (m->flat_elems * (2 + m->nstate) + m->grad_elems) * 4);
}

bool place_accepts(const Module *m) {
    int64_t total = 0;
    bool fits = count_layout(m, &total);
    for (int i = 0; i < m->ngraph; i++) {
        if (!fused_only(m->diag, m->graph[i])) return false;
        fits = fits && count_bytes(m->graph[i], &total);
    }
    if (!fits)
        diag_error(m->diag, E026, (Span){0}, "the model's tensors need more than 2^56 bytes");
    return fits;
}
