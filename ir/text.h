/* text.h - the IR as text: printed after any pass, read back for tests and tools.
 *
 *   param 0 "fc1.weight" f32[30,784] init=uniform(0.0357142857) decay
 *   graph train(%0: f32[64,1,28,28] data(0, "image"), %1: f32[30,784] weight(0)) {
 *     %2 = reshape %0 : f32[64,784]
 *     %3 = matmul %2, %1 {ta=0, tb=1} : f32[64,30] !I @scratch+4096
 *     %4, %5 = repeat %3, %1 {count=12, ncarry=1, nconst=1, reverse=0} : f32[64,30], f32[12,30] {
 *       graph(%0: f32[64,30], ...) { ... return ... }
 *     }
 *     return %9 loss_sum, %10 loss_count
 *   }
 *
 * Values are numbered by position (inputs first), floats printed so that they read back to the same
 * bits, phases other than F as !I !W !U, addresses after place as @region+offset. Spans and scopes
 * are printed only on request (PRINT_LOCATIONS). The grammar stands in ir/README.md.
 */
#ifndef INFINIC_IR_TEXT_H
#define INFINIC_IR_TEXT_H

#include "ir/module.h"

#include <stdio.h>

enum { PRINT_LOCATIONS = 1 };

/* Settings, parameters, segments, all graphs. */
void text_print_module(const Module *m, FILE *out, int flags);
void text_print_graph(const Graph *g, FILE *out, int flags);
const char *text_graph_string(const Graph *g, Arena *arena);   /* for hashing and comparing */

/* Reads source `file` (index into m->sources) into m, and verifies it. The first error is a
 * diagnostic (E030, or E026 for a limit) at its place; false after it. Any bytes are safe to read:
 * nesting, lengths and counts are limited. */
bool text_read_module(Module *m, uint32_t file);

#endif
