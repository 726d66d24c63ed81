/* cse.c - one node for equal nodes.
 *
 * Reads   every graph; a body by itself.
 * Writes  the first of nodes with equal op, attributes, operands and result types in place of all.
 *         Operands are compared unordered where swapping them changes no bit. The node that stays
 *         takes the least phase of those it stands for.
 * Keeps   repeats, and nodes that read a weight: each is a use of its own, so that the number of a
 *         tied weight's uses, and with it the order in which their gradients are added, does not
 *         depend on what happens to be equal.
 * Why     derivatives are written as if alone; what they share with the forward pass (the maximum,
 *         exponentials and sum of a softmax) is found here. Random numbers of one stream are one
 *         value, those of two streams never are.
 */
#include "passes/rewrite.h"

#include <string.h>

typedef struct Cse {
    const Graph *from;
    Graph *to;
    ValMap map;
    Node **slot; /* open addressing, `mask` + 1 slots; NULL is free */
    uint32_t mask;
} Cse;

static bool is_commutative(Op op) {
    static const bool table[OP_count] = {
        [OP_add] = true, [OP_mul] = true, [OP_and] = true,
        [OP_or] = true,  [OP_eq] = true,  [OP_ne] = true,
    };
    return table[op];
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t mix_attr(uint64_t hash, const Attr *a) {
    hash = mix(hash, &a->key, sizeof a->key);
    switch (attr_kind(a->key)) {
    case ATTRKIND_int: return mix(hash, &a->i, sizeof a->i);
    case ATTRKIND_float: return mix(hash, &a->f, sizeof a->f);
    case ATTRKIND_ints: return mix(hash, a->v, (size_t)a->n * sizeof *a->v);
    case ATTRKIND_str: return mix(hash, a->s, strlen(a->s));
    }
    return hash;
}

static bool attr_equal(const Attr *a, const Attr *b) {
    if (a->key != b->key) return false;
    switch (attr_kind(a->key)) {
    case ATTRKIND_int: return a->i == b->i;
    case ATTRKIND_float: return scalar_same(a->f, b->f);
    case ATTRKIND_ints:
        return a->n == b->n && (a->n == 0 || memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0);
    case ATTRKIND_str: return strcmp(a->s, b->s) == 0;
    }
    return false;
}

/* Operands in the new graph, in the order of comparison. */
static void operands(const Cse *c, const Node *n, Val *in) {
    for (int i = 0; i < n->nin; i++) in[i] = c->map.to[n->in[i].id];
    if (is_commutative(n->op) && in[0].id > in[1].id) {
        Val swap = in[0];
        in[0] = in[1];
        in[1] = swap;
    }
}

/* Whether `kept`, a node of the new graph, computes what n of the old one does. */
static bool node_equal(const Cse *c, const Node *kept, const Node *n, const Val *in) {
    if (kept->op != n->op || kept->nin != n->nin || kept->nattr != n->nattr) return false;
    if (val_type(c->to, kept->out).id != val_type(c->from, n->out).id) return false;
    for (int i = 0; i < n->nattr; i++)
        if (!attr_equal(&kept->attr[i], &n->attr[i])) return false;
    bool swapped = is_commutative(n->op) && kept->in[0].id > kept->in[1].id;
    for (int i = 0; i < n->nin; i++)
        if (kept->in[swapped ? 1 - i : i].id != in[i].id) return false;
    return true;
}

static bool reads_weight(const Cse *c, const Node *n) {
    for (int i = 0; i < n->nin; i++) {
        const ValInfo *info = &c->from->val[n->in[i].id];
        if (info->node == 0 && c->from->in_port[info->result].role == ROLE_weight) return true;
    }
    return false;
}

/* The slot of the node equal to n, or the free one where n belongs. */
static Node **find_slot(const Cse *c, const Node *n, const Val *in) {
    uint64_t hash = mix(0xcbf29ce484222325u, &n->op, sizeof n->op);
    hash = mix(hash, in, (size_t)n->nin * sizeof *in);
    for (int i = 0; i < n->nattr; i++) hash = mix_attr(hash, &n->attr[i]);
    uint32_t at = (uint32_t)(hash ^ hash >> 32) & c->mask;
    while (c->slot[at] != NULL && !node_equal(c, c->slot[at], n, in)) at = (at + 1) & c->mask;
    return &c->slot[at];
}

static void cse_node(Cse *c, const Node *n, Arena *scratch) {
    if (n->body != NULL || reads_weight(c, n)) {
        Graph *body = n->body != NULL ? cse_graph(n->body, scratch) : NULL;
        graph_copy_node(c->to, c->from, n, &c->map, body);
        return;
    }
    Val *in = ARENA_ARRAY(scratch, Val, n->nin);
    operands(c, n, in);
    Node **slot = find_slot(c, n, in);
    if (*slot == NULL) {
        *slot = graph_copy_node(c->to, c->from, n, &c->map, NULL);
        return;
    }
    if (n->phase < (*slot)->phase) (*slot)->phase = n->phase;
    for (int i = 0; i < n->nout; i++) c->map.to[node_out(n, i).id] = node_out(*slot, i);
}

Graph *cse_graph(const Graph *g, Arena *scratch) {
    Cse c = {.from = g, .to = graph_new(g->mod, g->name), .map = valmap_new(scratch, g)};
    uint32_t slots = 16;
    while (slots < 2 * (uint32_t)g->nnode) slots *= 2;
    c.mask = slots - 1;
    c.slot = ARENA_ARRAY(scratch, Node *, slots);
    graph_copy_inputs(c.to, g, &c.map);
    for (int i = 0; i < g->nnode; i++) cse_node(&c, g->node[i], scratch);
    graph_copy_outputs(c.to, g, &c.map);
    return c.to;
}

bool pass_cse(PassContext *ctx) {
    rewrite_module(ctx, cse_graph);
    return true;
}
