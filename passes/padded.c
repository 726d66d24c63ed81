/* padded.c - tables with padding rows: products and losses over the stored rows.
 *
 * Reads   every graph; parameters that are stored with more rows than they have (Embedding(pad)).
 * Writes  a product with such a table multiplies all stored rows and its result is cut afterwards;
 *         a loss over logits that were cut so reads them whole and is told how many classes there
 *         are; a row looked up by data or by position is looked up in the stored table.
 * Keeps   values: padding is never a class, and its gradient is exactly zero.
 * Why     a cut in front of a product is a copy of the table, one behind it a copy of the logits,
 *         and its gradient a third; libraries like the padded sizes better, too.
 */
#include "passes/rewrite.h"

typedef struct Padded {
    Builder b; /* into the new graph, with the place of the node at hand */
    const Graph *from;
    ValMap map;
    Val *whole; /* by value of the old graph: the new value that it is the front of; 0: none */
} Padded;

/* The stored parameter, when v is the part of it that exists: its first rows. */
static Val stored(const Padded *p, Val v) {
    const Graph *g = p->b.g;
    const Node *n = val_node(g, v);
    if (n == NULL || n->op != OP_slice) return (Val){0};
    const ValInfo *info = &g->val[n->in[0].id];
    if (info->node != 0 || g->in_port[info->result].role != ROLE_weight) return (Val){0};
    const Param *param = &g->mod->param[g->in_port[info->result].index];
    const TypeInfo *all = val_info(g, n->in[0]), *part = val_info(g, v);
    const Attr *begin = node_attr(n, ATTR_begin);
    if (param->nstack > 0 || part->dim[0] != param->logical[0]) return (Val){0};
    for (int i = 0; i < all->ndim; i++)
        if (begin->v[i] != 0 || (i > 0 && part->dim[i] != all->dim[i])) return (Val){0};
    return n->in[0];
}

/* Whether all of these integers are rows that exist: positions, or data, whose range is checked
 * before it gets here. */
static bool in_range(const Graph *g, Val index, int64_t rows) {
    const Node *n = val_node(g, index);
    while (n != NULL && op_kind(n->op) == KIND_movement && n->nin == 1 && n->op != OP_pad) {
        index = n->in[0];
        n = val_node(g, index);
    }
    if (n == NULL) return g->in_port[g->val[index.id].result].role == ROLE_data;
    return n->op == OP_iota && val_info(g, n->out)->dim[node_int(n, ATTR_axis, 0)] <= rows;
}

/* The first `size` of a value's last axis. */
static Val front(Padded *p, Val v, int64_t size) {
    TypeInfo end = *val_info(p->b.g, v);
    int64_t begin[NDIM_MAX] = {0}, step[NDIM_MAX];
    for (int i = 0; i < NDIM_MAX; i++) step[i] = 1;
    end.dim[end.ndim - 1] = size;
    return build_slice(&p->b, v, begin, end.dim, step);
}

static int64_t last_dim(const Graph *g, Val v) {
    const TypeInfo *t = val_info(g, v);
    return t->dim[t->ndim - 1];
}

static bool pad_gather(Padded *p, const Node *n, const Val *in) {
    Val table = stored(p, in[0]);
    int64_t rows = val_info(p->b.g, in[0])->dim[0];
    if (table.id == 0 || !in_range(p->b.g, in[1], rows)) return false;
    p->map.to[n->out.id] = build2(&p->b, OP_gather, table, in[1]);
    return true;
}

static bool pad_matmul(Padded *p, const Node *n, const Val *in) {
    Val table = stored(p, in[1]);
    if (table.id == 0 || node_int(n, ATTR_tb, 0) == 0) return false;
    Val y = build_matmul(&p->b, in[0], table, node_int(n, ATTR_ta, 0) != 0, true);
    p->whole[n->out.id] = y;
    p->map.to[n->out.id] = front(p, y, last_dim(p->from, n->out));
    return true;
}

static bool pad_reshape(Padded *p, const Node *n, const Val *in) {
    (void)in;
    Val whole = p->whole[n->in[0].id];
    TypeInfo to = *val_info(p->from, n->out);
    if (whole.id == 0 || to.ndim == 0 || last_dim(p->from, n->in[0]) != to.dim[to.ndim - 1])
        return false;
    int64_t size = to.dim[to.ndim - 1];
    to.dim[to.ndim - 1] = last_dim(p->b.g, whole);
    p->whole[n->out.id] = build_reshape(&p->b, whole, to.ndim, to.dim);
    p->map.to[n->out.id] = front(p, p->whole[n->out.id], size);
    return true;
}

static bool pad_cross_entropy(Padded *p, const Node *n, const Val *in) {
    Val whole = p->whole[n->in[0].id];
    if (whole.id == 0) return false;
    int64_t classes = node_int(n, ATTR_classes, last_dim(p->from, n->in[0]));
    Attr attr[2] = {ATTR_INT(ignore, node_int(n, ATTR_ignore, 0)), ATTR_INT(classes, classes)};
    const Node *loss =
        graph_add(&p->b, OP_cross_entropy, 2, (Val[]){whole, in[1]}, 2, attr, (Type){0});
    p->map.to[n->out.id] = loss->out;
    p->map.to[node_out(n, 1).id] = node_out(loss, 1);
    return true;
}

/* Writes what stands for node n, whose operands in the new graph are `in`; false: n stays. */
typedef bool PadRule(Padded *p, const Node *n, const Val *in);

static PadRule *const pad_table[OP_count] = {
    [OP_gather] = pad_gather,
    [OP_matmul] = pad_matmul,
    [OP_reshape] = pad_reshape,
    [OP_cross_entropy] = pad_cross_entropy,
};

static Graph *pad_graph(const Graph *g, Arena *scratch) {
    Padded p = {.b = {.g = graph_new(g->mod, g->name)}, .from = g, .map = valmap_new(scratch, g)};
    p.whole = ARENA_ARRAY(scratch, Val, g->nval);
    graph_copy_inputs(p.b.g, g, &p.map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        p.b.phase = n->phase;
        p.b.span = n->span;
        p.b.scope = n->scope;
        Val in[2] = {{0}, {0}};
        for (int k = 0; k < n->nin && k < 2; k++) in[k] = p.map.to[n->in[k].id];
        if (pad_table[n->op] == NULL || !pad_table[n->op](&p, n, in))
            graph_copy_node(p.b.g, g, n, &p.map, n->body);
    }
    graph_copy_outputs(p.b.g, g, &p.map);
    return dce_graph(p.b.g, scratch);
}

bool pass_padded(PassContext *ctx) {
    rewrite_module(ctx, pad_graph);
    return true;
}
