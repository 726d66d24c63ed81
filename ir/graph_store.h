/* graph_store.h - how graph.c keeps values and nodes; for build.c and the reader only. */
#ifndef INFINIC_IR_GRAPH_STORE_H
#define INFINIC_IR_GRAPH_STORE_H

#include "ir/graph.h"

/* A new value: result number `result` of node `node` - 1, or input number `result` for node 0. */
Val graph_new_value(Graph *g, Type type, uint32_t node, uint32_t result);

/* Appends a node that is complete but for its results. */
void graph_push_node(Graph *g, Node *n);

#endif
