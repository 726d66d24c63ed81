/* chunk_loss.c - the head's product, the loss and their gradients in chunks of rows.
 *
 * Reads   "train" after autodiff and "eval", as primitives; train.chunk_loss, the number of chunks.
 * Writes  a repeat over chunks of the logits' rows that makes a chunk of the logits, its loss, its
 *         gradient, and at once what follows from that: a chunk of the gradient of the head's
 *         operand (stacked), and the gradient of the head's weight (carried, in f32).
 * Keeps   the loss bit for bit: what the rows lost is stacked and added up as before. The weight's
 *         gradient is added chunk by chunk, which is another order of the same terms.
 * Why     logits are often the largest tensor of a step: 64 x 1024 rows of 50,304 bf16 are 6.6 GB,
 *         an eighth of them is 0.8 GB and stays hot. Outputs are made whole by a program of their
 * own.
 *
 * The head is the largest product whose result only elementwise work, reductions of its rows and
 * backward products read, and which some row reduction does read. Masks and the like that are as
 * large as the logits come along; anything else that they meet must be a tensor of rows.
 */
#include "passes/chunk_loss.h"

#include <inttypes.h>

int chunk_node_index(const Graph *g, Val v) { return (int)g->val[v.id].node - 1; }

ChunkShape chunk_shape(const Chunked *c, Val v) {
    const TypeInfo *t = val_info(c->g, v);
    int64_t elems = 1;
    int made_by = chunk_node_index(c->g, v);
    if (made_by >= 0 && c->in[made_by] && chunk_is_sum(c, made_by)) return CHUNK_other;
    for (int i = 0; i < t->ndim; i++) elems *= t->dim[i];
    if (elems == c->rows * c->width && t->ndim > 1 && t->dim[t->ndim - 1] == c->width)
        return CHUNK_full;
    return elems == c->rows && t->ndim > 0 ? CHUNK_rows : CHUNK_other;
}

static bool is_inside(const Chunked *c, Val v) {
    int i = chunk_node_index(c->g, v);
    return i >= 0 && (c->in[i] || c->pulled[i]);
}

static bool last_axis_only(const Chunked *c, const Node *n) {
    const Attr *axes = node_attr(n, ATTR_axes);
    return axes->n == 1 && axes->v[0] == val_info(c->g, n->in[0])->ndim - 1;
}

bool chunk_is_sum(const Chunked *c, int i) {
    const Node *n = c->g->node[i];
    if (n->op == OP_reduce_sum) {
        const Attr *axes = node_attr(n, ATTR_axes);
        int rows = val_info(c->g, n->in[0])->ndim - 1;
        return axes->n == rows && axes->v[rows - 1] == rows - 1;
    }
    return n->op == OP_matmul && n != c->head && node_int(n, ATTR_ta, 0) != 0;
}

/* A backward product with the rows of something in chunks: dx = d w, dw = d' x or x' d. */
static bool fits_product(const Chunked *c, const Node *n) {
    bool first = is_inside(c, n->in[0]), second = is_inside(c, n->in[1]);
    bool ta = node_int(n, ATTR_ta, 0) != 0, tb = node_int(n, ATTR_tb, 0) != 0;
    const TypeInfo *a = val_info(c->g, n->in[0]), *b = val_info(c->g, n->in[1]);
    if (n->phase == PHASE_F || first == second || a->ndim != 2 || b->ndim != 2) return false;
    if (!ta) return first && a->dim[0] == c->rows;
    return !tb && a->dim[0] == c->rows && b->dim[0] == c->rows;
}

/* The narrowing of a product's result. */
static bool fits_narrowing(const Chunked *c, const Node *n) {
    const Node *product = val_node(c->g, n->in[0]);
    return n->op == OP_cast && product != NULL && product->op == OP_matmul &&
           node_int(product, ATTR_ta, 0) == 0;
}

/* Where a broadcast into [rows.., width] may come from: rows, columns, or one number. */
static bool fits_broadcast(const Chunked *c, const Node *n) {
    const TypeInfo *to = val_info(c->g, n->out), *from = val_info(c->g, n->in[0]);
    const Attr *axes = node_attr(n, ATTR_axes);
    if (chunk_shape(c, n->out) != CHUNK_full) return false;
    if (from->ndim == 0) return true;
    if (from->ndim == 1 && from->dim[0] == c->width) return axes->v[0] == to->ndim - 1;
    return chunk_shape(c, n->in[0]) == CHUNK_rows && axes->v[from->ndim - 1] < to->ndim - 1;
}

/* Whether node n, which something in chunks makes or reads, can be in chunks itself. */
static bool fits(const Chunked *c, const Node *n) {
    ChunkShape to = n->nout == 1 ? chunk_shape(c, n->out) : CHUNK_other;
    switch (op_kind(n->op)) {
    case KIND_elementwise: return to != CHUNK_other || fits_narrowing(c, n);
    case KIND_reduce:
        if (n->op == OP_argmax || chunk_shape(c, n->in[0]) != CHUNK_full) return false;
        return last_axis_only(c, n) || chunk_is_sum(c, chunk_node_index(c->g, n->out));
    case KIND_matmul: return fits_product(c, n);
    case KIND_source:
        return n->op == OP_const || node_int(n, ATTR_axis, 0) == val_info(c->g, n->out)->ndim - 1;
    default: break;
    }
    if (n->op == OP_reshape) return to != CHUNK_other && to == chunk_shape(c, n->in[0]);
    return n->op == OP_broadcast && fits_broadcast(c, n);
}

/* Everything from the head on that fits; false when a large value has another reader. */
static bool follow(Chunked *c) {
    bool reduces = false, product = false;
    for (int k = 0; k < c->g->nout; k++)
        if (c->g->out[k].id == c->head->out.id) return false;
    for (int i = 0; i < c->g->nnode; i++) {
        const Node *n = c->g->node[i];
        bool reads = false, large = false;
        for (int k = 0; k < n->nin; k++) {
            int from = chunk_node_index(c->g, n->in[k]);
            bool inside = from >= 0 && c->in[from];
            reads |= inside;
            large |= inside && chunk_shape(c, n->in[k]) == CHUNK_full;
            c->after[i] |= from >= 0 && (c->in[from] || c->after[from]);
        }
        c->in[i] = n == c->head || (reads && fits(c, n));
        if (large && !c->in[i]) return false;
        reduces |= c->in[i] && op_kind(n->op) == KIND_reduce;
        product |= c->in[i] && op_kind(n->op) == KIND_matmul && n != c->head;
    }
    return reduces && (product || c->forward);
}

/* Operands as large as the logits come along. */
static bool pull(Chunked *c) {
    const Graph *g = c->g;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        if (!c->in[i] && !c->pulled[i]) continue;
        for (int k = 0; k < n->nin; k++) {
            int from = chunk_node_index(g, n->in[k]);
            if (from >= 0 && c->in[from]) continue;
            if (from >= 0 && c->after[from]) return false; /* it would wait for the chunks */
            if (chunk_shape(c, n->in[k]) != CHUNK_full) continue;
            if (from < 0 || !fits(c, g->node[from])) return false;
            c->pulled[from] = true;
        }
    }
    for (int k = 0; k < g->nout; k++) {
        int i = chunk_node_index(g, g->out[k]);
        if (i >= 0 && c->in[i] && chunk_shape(c, g->out[k]) == CHUNK_full) return false;
    }
    return true;
}

/* The repeat runs in the forward phase; so must everything that it reads. */
static bool ready(const Chunked *c, Val v) {
    const Node *n = val_node(c->g, v);
    if (n == NULL || n->phase == PHASE_F) return true;
    OpKind kind = op_kind(n->op);
    if (kind != KIND_elementwise && kind != KIND_source && kind != KIND_movement) return false;
    for (int k = 0; k < n->nin; k++)
        if (!ready(c, n->in[k])) return false;
    return true;
}

static bool all_ready(const Chunked *c) {
    for (int i = 0; i < c->g->nnode; i++)
        for (int k = 0; (c->in[i] || c->pulled[i]) && k < c->g->node[i]->nin; k++) {
            int from = chunk_node_index(c->g, c->g->node[i]->in[k]);
            bool outside = from < 0 || (!c->in[from] && !c->pulled[from]);
            if (outside && !ready(c, c->g->node[i]->in[k])) return false;
        }
    return true;
}

static bool try_head(Chunked *c, const Node *head) {
    const TypeInfo *t = val_info(c->g, head->out);
    *c = (Chunked){
        .g = c->g, .scratch = c->scratch, .head = head, .count = c->count, .forward = c->forward};
    if (head->op != OP_matmul || head->phase != PHASE_F || t->ndim != 2 || t->dim[1] < 2 ||
        node_int(head, ATTR_ta, 0) != 0)
        return false;
    c->rows = t->dim[0];
    c->width = t->dim[1];
    c->in = ARENA_ARRAY(c->scratch, bool, c->g->nnode);
    c->pulled = ARENA_ARRAY(c->scratch, bool, c->g->nnode);
    c->after = ARENA_ARRAY(c->scratch, bool, c->g->nnode);
    return c->rows > 0 && follow(c) && pull(c) && all_ready(c);
}

/* The largest head of the graph. */
static bool find_head(Chunked *best) {
    bool found = false;
    for (int i = 0; i < best->g->nnode; i++) {
        Chunked c = *best;
        if (!try_head(&c, best->g->node[i])) continue;
        if (found && c.rows * c.width <= best->rows * best->width) continue;
        *best = c;
        found = true;
    }
    return found;
}

int64_t chunk_loss_rows(const Graph *g, Arena *scratch) {
    Chunked c = {.g = g, .scratch = scratch};
    return g != NULL && find_head(&c) ? c.rows : 0;
}

static bool refuse_uneven(const Module *m, const Chunked *c) {
    DiagRef ref =
        diag_error(m->diag, E020, c->head->span,
                   "train.chunk_loss = %" PRId64 " does not divide the logits' %" PRId64 " rows",
                   c->count, c->rows);
    diag_hint(m->diag, ref, "a power of two divides most batches");
    return false;
}

static bool refuse_all(const Module *m) {
    DiagRef ref = diag_error(m->diag, E020, (Span){0},
                             "train.chunk_loss = %" PRId64
                             ": the model has no head and loss that can be made in chunks",
                             m->train.chunk_loss);
    diag_hint(m->diag, ref, "a product whose rows cross_entropy alone reads: logits = x |> head");
    return false;
}

/* Evaluation only asks what each row lost; where its rows do not fit, its logits stay whole. */
static void chunk_eval(const PassContext *ctx, const Graph *g) {
    Chunked c = {.g = g, .scratch = ctx->scratch, .forward = true};
    c.count = ctx->mod->train.chunk_loss;
    if (g == NULL || !find_head(&c) || c.rows % c.count != 0) return;
    module_set_graph(ctx->mod, g->name, dce_graph(chunk_write(&c), ctx->scratch));
}

/* In a pipeline the head is in one chunk of one rank. */
bool pass_chunk_loss(PassContext *ctx) {
    Module *m = ctx->mod;
    bool found = false, any = false;
    for (int i = 0; i < m->nchunk && m->train.chunk_loss >= 2; i++) {
        const Graph *g = module_chunk_graph(m, "train", i);
        chunk_eval(ctx, module_chunk_graph(m, "eval", i));
        if (g == NULL) continue;
        Chunked c = {.g = g, .scratch = ctx->scratch, .count = m->train.chunk_loss};
        any = true;
        if (!find_head(&c)) continue;
        if (c.rows % c.count != 0) return refuse_uneven(m, &c);
        module_set_graph(m, g->name, dce_graph(chunk_write(&c), ctx->scratch));
        found = true;
    }
    return !any || found || m->nrank > 1 || refuse_all(m);
}
