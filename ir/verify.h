/* verify.h - what must hold of a graph between passes.
 *
 * Operands defined before use, arity, attributes exactly those of the op's row, types by the shape
 * rule, region signatures, ports and roles, phases (a node is not earlier than its operands),
 * parameters in range and of the declared type.
 */
#ifndef INFINIC_IR_VERIFY_H
#define INFINIC_IR_VERIFY_H

#include "ir/module.h"

/* NULL when all is well, else one message naming graph, node and rule; kept in m->arena. */
const char *verify_module(const Module *m);
const char *verify_graph(const Graph *g);

#endif
