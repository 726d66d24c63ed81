/* accumulate.c - later microbatches add to what the first one wrote.
 *
 * Reads   "train" and the number of microbatches.
 * Writes  "train.add" when there is more than one: a copy of train whose sums (gradients, loss,
 *         counts, metrics) also come in as inputs, and go out as input + value.
 *         With reduce = ordered each microbatch writes, and whole sums are added (ordered.h).
 * Keeps   train, and the order and meaning of everything in the copy.
 * Why     whether a microbatch writes or adds is a fact of its place in the schedule. Two graphs
 *         say so at compile time; no buffer is filled with zeros, no kernel asks a flag.
 *
 * A gradient that a repeat stacks is added inside the repeat's body, slice by slice: the old value
 * becomes one more stacked operand. Only then can the add share a kernel with the product that
 * makes the slice. A sum that a repeat carries from zero on is carried from the old value on.
 */
#include "passes/rewrite.h"

#include <string.h>

static bool role_is_summed(Role role) {
    return role == ROLE_grad || role == ROLE_loss_sum || role == ROLE_loss_count ||
           role == ROLE_metric_sum || role == ROLE_metric_count;
}

/* One value to be added to, and what it was so far. */
typedef struct Addition {
    Val value, old;
    bool inside; /* added by the repeat that makes it */
} Addition;

static Addition *find_addition(Addition *add, int nadd, Val value) {
    for (int i = 0; i < nadd; i++)
        if (add[i].value.id == value.id) return &add[i];
    return NULL;
}

static Val add_old(Graph *g, const Node *made_by, Val old, Val value) {
    Builder b = {.g = g};
    if (made_by != NULL) {
        b.phase = made_by->phase;
        b.span = made_by->span;
        b.scope = made_by->scope;
    }
    return build2(&b, OP_add, old, value);
}

/* A stacked result, or what a repeat carries and adds to, from zero on. */
static bool is_added_inside(const Graph *g, const Node *n, int result, Arena *scratch) {
    double first;
    if (n->op != OP_repeat) return false;
    if (result >= node_int(n, ATTR_ncarry, 0)) return true;
    const Graph *body = n->body;
    const Node *last = val_node(body, body->out[result]);
    bool adds = last != NULL && last->op == OP_add && last->in[0].id == body->in[result].id &&
                graph_count_uses(body, scratch)[body->in[result].id] == 1;
    return adds && const_value(g, n->in[result], &first) && first == 0.0;
}

/* A copy of `from` with an input more for every output k with wanted[k], which becomes input +
 * value. Ports of the new inputs are those of the outputs. */
static Graph *add_to_outputs(const Graph *from, const char *name, const bool *wanted,
                             Arena *scratch);

/* Copies repeat n with the stacked results of `add` summed up inside. */
static void copy_repeat(Graph *to, const Node *n, Addition *add, int nadd, ValMap *map,
                        Arena *scratch) {
    bool *wanted = ARENA_ARRAY(scratch, bool, n->nout);
    Val *in = ARENA_ARRAY(scratch, Val, n->nin + n->nout);
    int nin = n->nin, ncarry = (int)node_int(n, ATTR_ncarry, 0);
    for (int i = 0; i < n->nin; i++) in[i] = map->to[n->in[i].id];
    for (int r = 0; r < n->nout; r++) {
        const Addition *a = find_addition(add, nadd, node_out(n, r));
        wanted[r] = a != NULL && a->inside && r >= ncarry;
        if (wanted[r]) in[nin++] = a->old;
        if (a != NULL && a->inside && r < ncarry) in[r] = a->old;
    }
    Graph *body = add_to_outputs(n->body, n->body->name, wanted, scratch);
    Builder b = {.g = to, .phase = n->phase, .span = n->span, .scope = n->scope};
    const Node *copy = graph_add_region(&b, OP_repeat, nin, in, n->nattr, n->attr, body);
    for (int r = 0; r < n->nout; r++) map->to[node_out(n, r).id] = node_out(copy, r);
}

static Graph *add_to_outputs(const Graph *from, const char *name, const bool *wanted,
                             Arena *scratch) {
    Graph *to = graph_new(from->mod, name);
    ValMap map = valmap_new(scratch, from);
    uint32_t *uses = graph_count_uses(from, scratch);
    Addition *add = ARENA_ARRAY(scratch, Addition, from->nout);
    Val *old = ARENA_ARRAY(scratch, Val, from->nout);
    int nadd = 0;
    graph_copy_inputs(to, from, &map);
    for (int k = 0; k < from->nout; k++) {
        if (!wanted[k]) continue;
        Val value = from->out[k];
        old[k] = graph_add_input(to, val_type(from, value), from->out_port[k]);
        const Node *n = val_node(from, value);
        bool inside = n != NULL && uses[value.id] == 1 &&
                      is_added_inside(from, n, (int)from->val[value.id].result, scratch);
        add[nadd++] = (Addition){.value = value, .old = old[k], .inside = inside};
    }
    for (int i = 0; i < from->nnode; i++) {
        const Node *n = from->node[i];
        if (n->op == OP_repeat)
            copy_repeat(to, n, add, nadd, &map, scratch);
        else
            graph_copy_node(to, from, n, &map, NULL);
    }
    for (int k = 0; k < from->nout; k++) {
        Val value = map.to[from->out[k].id];
        if (wanted[k] && !find_addition(add, nadd, from->out[k])->inside)
            value = add_old(to, val_node(from, from->out[k]), old[k], value);
        graph_add_output(to, value, from->out_port[k]);
    }
    return to;
}

bool pass_accumulate(PassContext *ctx) {
    Module *m = ctx->mod;
    bool adds = m->train.microbatches > 1 && !m->parallel.ordered;
    for (int c = 0; c < m->nchunk && adds; c++) {
        const Graph *train = module_chunk_graph(m, "train", c);
        if (train == NULL) continue;
        const char *name = module_chunk_name(m, "train.add", c);
        bool *wanted = ARENA_ARRAY(ctx->scratch, bool, train->nout);
        for (int k = 0; k < train->nout; k++) wanted[k] = role_is_summed(train->out_port[k].role);
        module_set_graph(m, name, add_to_outputs(train, name, wanted, ctx->scratch));
    }
    return true;
}
