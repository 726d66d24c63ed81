/* graph.c - graphs: inputs, outputs, reading, rebuilding; see graph.h. Nodes are added in build.c.
 */
#include "ir/graph.h"

#include "ir/graph_store.h"
#include "ir/module.h"
#include "ir/panic.h"

#include <string.h>

Graph *graph_new(Module *mod, const char *name) {
    Graph *g = ARENA_NEW(mod->arena, Graph);
    g->mod = mod;
    g->name = name;
    g->nval = 1;
    g->cap_val = 16;
    g->val = ARENA_ARRAY(mod->arena, ValInfo, g->cap_val);
    return g;
}

Val graph_new_value(Graph *g, Type type, uint32_t node, uint32_t result) {
    if (g->nval == g->cap_val) {
        ValInfo *bigger = ARENA_ARRAY(g->mod->arena, ValInfo, (size_t)g->cap_val * 2);
        memcpy(bigger, g->val, (size_t)g->nval * sizeof *bigger);
        g->val = bigger;
        g->cap_val *= 2;
    }
    g->val[g->nval] = (ValInfo){.type = type, .node = node, .result = result};
    return (Val){g->nval++};
}

void graph_push_node(Graph *g, Node *n) {
    g->node = vec_reserve_one(g->mod->arena, g->node, (uint32_t)g->nnode, (uint32_t *)&g->cap_node,
                              sizeof *g->node);
    g->node[g->nnode++] = n;
}

Val graph_add_input(Graph *g, Type type, Port port) {
    if (g->nnode > 0 || type.id == 0)
        panic_graph(g, (Span){0}, "a graph input is added %s",
                    type.id == 0 ? "without a type" : "after a node");
    int cap = g->cap_in;
    g->in =
        vec_reserve_one(g->mod->arena, g->in, (uint32_t)g->nin, (uint32_t *)&cap, sizeof *g->in);
    g->in_port = vec_reserve_one(g->mod->arena, g->in_port, (uint32_t)g->nin,
                                 (uint32_t *)&g->cap_in, sizeof *g->in_port);
    Val v = graph_new_value(g, type, 0, (uint32_t)g->nin);
    g->in[g->nin] = v;
    g->in_port[g->nin++] = port;
    return v;
}

void graph_add_output(Graph *g, Val v, Port port) {
    if (v.id == 0 || v.id >= g->nval) panic_graph(g, (Span){0}, "output %u does not exist", v.id);
    int cap = g->cap_out;
    g->out =
        vec_reserve_one(g->mod->arena, g->out, (uint32_t)g->nout, (uint32_t *)&cap, sizeof *g->out);
    g->out_port = vec_reserve_one(g->mod->arena, g->out_port, (uint32_t)g->nout,
                                  (uint32_t *)&g->cap_out, sizeof *g->out_port);
    g->out[g->nout] = v;
    g->out_port[g->nout++] = port;
}

/* ---- reading ---------------------------------------------------------------------------- */

Type val_type(const Graph *g, Val v) { return v.id < g->nval ? g->val[v.id].type : (Type){0}; }

const TypeInfo *val_info(const Graph *g, Val v) { return type_info(g->mod->types, val_type(g, v)); }

Node *val_node(const Graph *g, Val v) {
    if (v.id == 0 || v.id >= g->nval || g->val[v.id].node == 0) return NULL;
    return g->node[g->val[v.id].node - 1];
}

Val val_shown(const Graph *g, Val v) {
    for (const Node *n = val_node(g, v); n != NULL && n->op == OP_reshape; n = val_node(g, v))
        v = n->in[0];
    return v;
}

const Attr *node_attr(const Node *n, AttrKey key) {
    for (int i = 0; i < n->nattr; i++)
        if (n->attr[i].key == key) return &n->attr[i];
    return NULL;
}

int64_t node_int(const Node *n, AttrKey key, int64_t fallback) {
    const Attr *a = node_attr(n, key);
    return a != NULL ? a->i : fallback;
}

double node_float(const Node *n, AttrKey key, double fallback) {
    const Attr *a = node_attr(n, key);
    return a != NULL ? a->f : fallback;
}

uint32_t *graph_count_uses(const Graph *g, Arena *arena) {
    uint32_t *uses = ARENA_ARRAY(arena, uint32_t, g->nval);
    for (int i = 0; i < g->nnode; i++)
        for (int k = 0; k < g->node[i]->nin; k++) uses[g->node[i]->in[k].id]++;
    for (int i = 0; i < g->nout; i++) uses[g->out[i].id]++;
    return uses;
}

/* ---- rebuilding ------------------------------------------------------------------------- */

ValMap valmap_new(Arena *arena, const Graph *from) {
    return (ValMap){.to = ARENA_ARRAY(arena, Val, from->nval), .n = from->nval};
}

static Val map_get(const Graph *to, const ValMap *map, Val v, Span span) {
    Val mapped = v.id < map->n ? map->to[v.id] : (Val){0};
    if (mapped.id == 0) panic_graph(to, span, "value %%%u is not mapped", v.id - 1);
    return mapped;
}

Node *graph_copy_node(Graph *to, const Graph *from, const Node *n, ValMap *map, Graph *body) {
    Arena *arena = to->mod->arena;
    Node *copy = ARENA_NEW(arena, Node);
    *copy = *n;
    if (body != NULL) copy->body = body;
    copy->in = ARENA_ARRAY(arena, Val, n->nin);
    for (int i = 0; i < n->nin; i++) copy->in[i] = map_get(to, map, n->in[i], n->span);
    graph_push_node(to, copy);
    for (int i = 0; i < n->nout; i++) {
        Val old = node_out(n, i);
        Val v = graph_new_value(to, val_type(from, old), (uint32_t)to->nnode, (uint32_t)i);
        to->val[v.id].addr = from->val[old.id].addr;
        map->to[old.id] = v;
        if (i == 0) copy->out = v;
    }
    return copy;
}

void graph_copy_inputs(Graph *to, const Graph *from, ValMap *map) {
    for (int i = 0; i < from->nin; i++) {
        Val v = graph_add_input(to, val_type(from, from->in[i]), from->in_port[i]);
        to->val[v.id].addr = from->val[from->in[i].id].addr;
        map->to[from->in[i].id] = v;
    }
}

void graph_copy_outputs(Graph *to, const Graph *from, const ValMap *map) {
    for (int i = 0; i < from->nout; i++)
        graph_add_output(to, map_get(to, map, from->out[i], (Span){0}), from->out_port[i]);
}

Graph *graph_clone_into(Module *m, const Graph *g, const char *name) {
    Graph *to = graph_new(m, name);
    ValMap map = valmap_new(m->arena, g);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        Graph *body = n->body != NULL ? graph_clone_into(m, n->body, n->body->name) : NULL;
        graph_copy_node(to, g, n, &map, body);
    }
    graph_copy_outputs(to, g, &map);
    return to;
}

Graph *graph_clone(const Graph *g, const char *name) { return graph_clone_into(g->mod, g, name); }
