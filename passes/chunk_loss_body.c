/* chunk_loss_body.c - what chunk_loss.c found, as a repeat over chunks of rows. */
#include "passes/chunk_loss.h"

typedef VEC(Val) Vals;

typedef struct Writer {
    const Chunked *c;
    Graph *body, *to;
    Builder inner, outer;
    Val *chunk;                    /* by old value: in the body */
    bool *copied;                  /* by old node: in the new graph */
    ValMap map;                    /* old graph to new graph */
    Vals sums;                     /* old values that are carried */
    Vals consts, stacks;           /* values of the new graph that the repeat reads ... */
    Vals const_input, stack_input; /* ... and the body's inputs for them */
    Vals results;                  /* old values that are stacked */
} Writer;

static int64_t chunk_rows(const Writer *w) { return w->c->rows / w->c->count; }

/* The type that an old value has in the body. */
static Type chunk_type(const Writer *w, Val v) {
    const TypeInfo *t = val_info(w->c->g, v);
    int64_t full[2] = {chunk_rows(w), w->c->width};
    int ndim = chunk_shape(w->c, v) == CHUNK_full ? 2 : 1;
    return type_intern(w->c->g->mod->types, t->dtype, ndim, full);
}

/* The value in memory behind casts from bf16 and, when `reshapes`, other shapes. */
static Val behind(const Graph *g, Val v, bool reshapes) {
    for (const Node *n = val_node(g, v); n != NULL; n = val_node(g, v)) {
        bool widens = n->op == OP_cast && val_info(g, n->in[0])->dtype == DT_bf16;
        if (!widens && !(reshapes && n->op == OP_reshape)) break;
        v = n->in[0];
    }
    return v;
}

/* ---- the new graph ----------------------------------------------------------------------- */

/* Copies a node, and before it what it reads and has not been copied yet. */
static void copy_first(Writer *w, int i, Phase latest) {
    const Node *n = w->c->g->node[i];
    if (w->copied[i]) return;
    w->copied[i] = true;
    for (int k = 0; k < n->nin; k++) {
        int from = chunk_node_index(w->c->g, n->in[k]);
        if (from >= 0 && !w->c->in[from]) copy_first(w, from, latest);
    }
    Node *copy = graph_copy_node(w->to, w->c->g, n, &w->map, n->body);
    if (copy->phase > latest) copy->phase = latest;
}

static Val outside(Writer *w, Val v) {
    int i = chunk_node_index(w->c->g, v);
    if (i >= 0) copy_first(w, i, PHASE_F);
    return w->map.to[v.id];
}

/* ---- operands from outside --------------------------------------------------------------- */

/* A body's inputs come before its nodes: until all are known, constants stand for them. */
static Val new_input(Writer *w, Vals *from, Vals *inputs, Val value, Type type) {
    Val input = build_const(&w->inner, 0.0, type);
    vec_push(w->c->scratch, from, value);
    vec_push(w->c->scratch, inputs, input);
    return input;
}

/* A tensor of all rows, [rows.., rest], as chunks. */
static Val stack_operand(Writer *w, Val v, Type type) {
    const TypeInfo *chunk = type_info(w->c->g->mod->types, type);
    Val root = behind(w->c->g, v, true);
    int64_t dim[NDIM_MAX] = {w->c->count};
    for (int i = 0; i < chunk->ndim; i++) dim[i + 1] = chunk->dim[i];
    Val stacked = build_reshape(&w->outer, outside(w, root), chunk->ndim + 1, dim);
    Type half =
        type_intern(w->c->g->mod->types, val_info(w->c->g, root)->dtype, chunk->ndim, chunk->dim);
    Val input = new_input(w, &w->stacks, &w->stack_input, stacked, half);
    return half.id == type.id ? input : build_cast(&w->inner, input, chunk->dtype);
}

static Val const_operand(Writer *w, Val v) {
    Val root = behind(w->c->g, v, false);
    Val value = outside(w, root);
    Val input = new_input(w, &w->consts, &w->const_input, value, val_type(w->c->g, root));
    if (root.id == v.id) return input;
    return build_cast(&w->inner, input, val_info(w->c->g, v)->dtype);
}

/* Operand k of node n in the body. */
static Val operand(Writer *w, const Node *n, int k) {
    Val v = n->in[k];
    if (w->chunk[v.id].id != 0) return w->chunk[v.id];
    const Node *made_by = val_node(w->c->g, v);
    const TypeInfo *t = val_info(w->c->g, v);
    bool product = n->op == OP_matmul, rows = chunk_shape(w->c, v) == CHUNK_rows;
    bool ta = product && node_int(n, ATTR_ta, 0) != 0;
    if (product && (ta || (n == w->c->head && k == 0))) {
        int64_t dim[2] = {chunk_rows(w), t->dim[1]};
        Type type = type_intern(w->c->g->mod->types, t->dtype, 2, dim);
        w->chunk[v.id] = stack_operand(w, v, type);
    } else if (!product && made_by != NULL && made_by->op == OP_const && rows) {
        w->chunk[v.id] =
            build_const(&w->inner, node_float(made_by, ATTR_value, 0), chunk_type(w, v));
    } else if (!product && rows) {
        w->chunk[v.id] = stack_operand(w, v, chunk_type(w, v));
    } else {
        w->chunk[v.id] = const_operand(w, v);
    }
    return w->chunk[v.id];
}

/* ---- the body ---------------------------------------------------------------------------- */

static Val write_broadcast(Writer *w, const Node *n) {
    const TypeInfo *from = val_info(w->c->g, n->in[0]);
    bool columns = from->ndim == 1 && from->dim[0] == w->c->width &&
                   node_attr(n, ATTR_axes)->v[0] == val_info(w->c->g, n->out)->ndim - 1;
    Val in = columns ? const_operand(w, n->in[0]) : operand(w, n, 0);
    int64_t axis[1] = {columns ? 1 : 0};
    return build_broadcast(&w->inner, in, chunk_type(w, n->out), axis);
}

static Val write_product(Writer *w, int i) {
    const Node *n = w->c->g->node[i];
    Val a = operand(w, n, 0), b = operand(w, n, 1);
    bool ta = node_int(n, ATTR_ta, 0) != 0, tb = node_int(n, ATTR_tb, 0) != 0;
    Val product = build_matmul(&w->inner, a, b, ta, tb);
    if (!chunk_is_sum(w->c, i)) return product;
    return build2(&w->inner, OP_add, w->chunk[n->out.id], product);
}

static Val write_reduction(Writer *w, int i) {
    const Node *n = w->c->g->node[i];
    bool sum = chunk_is_sum(w->c, i);
    Val v = build_reduce(&w->inner, n->op, operand(w, n, 0), 1, (int64_t[]){sum ? 0 : 1});
    return sum ? build2(&w->inner, OP_add, w->chunk[n->out.id], v) : v;
}

static Val write_node(Writer *w, int i) {
    const Node *n = w->c->g->node[i];
    Val in[3] = {{0}, {0}, {0}};
    bool shaped = chunk_shape(w->c, n->out) != CHUNK_other;
    Type type = shaped ? chunk_type(w, n->out) : (Type){0};
    Attr last = ATTR_INT(axis, 1);
    switch (op_kind(n->op)) {
    case KIND_matmul: return write_product(w, i);
    case KIND_reduce: return write_reduction(w, i);
    case KIND_source:
        if (n->op == OP_const) return build_const(&w->inner, node_float(n, ATTR_value, 0), type);
        return graph_add(&w->inner, OP_iota, 0, NULL, 1, &last, type)->out;
    case KIND_movement: return n->op == OP_broadcast ? write_broadcast(w, n) : operand(w, n, 0);
    default: break;
    }
    for (int k = 0; k < n->nin; k++) in[k] = operand(w, n, k);
    if (n->op == OP_cast) return build_cast(&w->inner, in[0], val_info(w->c->g, n->out)->dtype);
    return graph_add(&w->inner, n->op, n->nin, in, 0, NULL, type)->out;
}

/* Sums get their inputs first: carried values are the first operands. */
static void write_body(Writer *w) {
    const Graph *g = w->c->g;
    for (int i = 0; i < g->nnode; i++) {
        if (!w->c->in[i] || !chunk_is_sum(w->c, i)) continue;
        Val out = g->node[i]->out;
        vec_push(w->c->scratch, &w->sums, out);
        w->chunk[out.id] = graph_add_input(w->body, val_type(g, out), (Port){.role = ROLE_none});
    }
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (!w->c->in[i] && !w->c->pulled[i]) continue;
        w->inner.span = n->span;
        w->inner.scope = n->scope;
        w->chunk[n->out.id] = write_node(w, i);
    }
}

/* Inputs in the order of a repeat's operands: carried, constant, stacked. */
static Graph *order_inputs(Writer *w) {
    Graph *to = graph_new(w->body->mod, w->body->name);
    ValMap map = valmap_new(w->c->scratch, w->body);
    const Port none = {.role = ROLE_none};
    for (uint32_t i = 0; i < w->sums.n; i++)
        map.to[w->body->in[i].id] = graph_add_input(to, val_type(w->body, w->body->in[i]), none);
    const Vals *more[2] = {&w->const_input, &w->stack_input};
    for (int m = 0; m < 2; m++)
        for (uint32_t i = 0; i < more[m]->n; i++) {
            Val input = more[m]->data[i];
            map.to[input.id] = graph_add_input(to, val_type(w->body, input), none);
        }
    for (int i = 0; i < w->body->nnode; i++)
        if (map.to[w->body->node[i]->out.id].id == 0)
            graph_copy_node(to, w->body, w->body->node[i], &map, NULL);
    for (uint32_t i = 0; i < w->sums.n; i++)
        graph_add_output(to, map.to[w->chunk[w->sums.data[i].id].id], none);
    for (uint32_t i = 0; i < w->results.n; i++)
        graph_add_output(to, map.to[w->chunk[w->results.data[i].id].id], none);
    return to;
}

/* Values in chunks that somebody outside reads. */
static void find_results(Writer *w) {
    const Graph *g = w->c->g;
    bool *read = ARENA_ARRAY(w->c->scratch, bool, g->nval);
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            if (!w->c->in[i]) read[g->node[i]->in[k].id] = true;
    for (int k = 0; k < g->nout; k++) read[g->out[k].id] = true;
    for (int i = 0; i < g->nnode; i++)
        if (w->c->in[i] && !chunk_is_sum(w->c, i) && read[g->node[i]->out.id])
            vec_push(w->c->scratch, &w->results, g->node[i]->out);
}

static void write_repeat(Writer *w) {
    const Graph *g = w->c->g;
    Vals in = {0};
    for (uint32_t i = 0; i < w->sums.n; i++)
        vec_push(w->c->scratch, &in, build_const(&w->outer, 0.0, val_type(g, w->sums.data[i])));
    for (uint32_t i = 0; i < w->consts.n; i++) vec_push(w->c->scratch, &in, w->consts.data[i]);
    for (uint32_t i = 0; i < w->stacks.n; i++) vec_push(w->c->scratch, &in, w->stacks.data[i]);
    Attr attr[4] = {ATTR_INT(count, w->c->count), ATTR_INT(ncarry, w->sums.n),
                    ATTR_INT(nconst, w->consts.n), ATTR_INT(reverse, 0)};
    const Node *repeat =
        graph_add_region(&w->outer, OP_repeat, (int)in.n, in.data, 4, attr, order_inputs(w));
    for (uint32_t i = 0; i < w->sums.n; i++)
        w->map.to[w->sums.data[i].id] = node_out(repeat, (int)i);
    for (uint32_t i = 0; i < w->results.n; i++) {
        Val old = w->results.data[i];
        const TypeInfo *t = val_info(g, old);
        Val stacked = node_out(repeat, (int)(w->sums.n + i));
        w->map.to[old.id] = build_reshape(&w->outer, stacked, t->ndim, t->dim);
    }
}

Graph *chunk_write(const Chunked *c) {
    const Graph *g = c->g;
    Writer w = {.c = c, .map = valmap_new(c->scratch, g)};
    w.to = graph_new(g->mod, g->name);
    w.body = graph_new(g->mod, "");
    w.outer = (Builder){.g = w.to, .span = c->head->span, .scope = c->head->scope};
    w.inner = (Builder){.g = w.body};
    w.chunk = ARENA_ARRAY(c->scratch, Val, g->nval);
    w.copied = ARENA_ARRAY(c->scratch, bool, g->nnode);
    graph_copy_inputs(w.to, g, &w.map);
    for (int i = 0; i < g->nnode; i++) {
        if (g->node[i] == c->head) {
            find_results(&w);
            write_body(&w);
            write_repeat(&w);
        }
        if (!c->in[i]) copy_first(&w, i, PHASE_U);
    }
    graph_copy_outputs(w.to, g, &w.map);
    return w.to;
}
