/* panic.h - the end of a compilation whose own invariants are broken.
 *
 * For mistakes of the compiler only: what a user can cause is a diagnostic (diag.h). Prints the
 * message, the place in the model and the graph at hand, and exits with code 3.
 */
#ifndef INFINIC_IR_PANIC_H
#define INFINIC_IR_PANIC_H

#include "ir/graph.h"

enum { EXIT_INTERNAL = 3 };

/* `g` may be NULL. */
_Noreturn void panic_graph(const Graph *g, Span span, const char *fmt, ...) ARENA_PRINTF(3, 4);

#endif
