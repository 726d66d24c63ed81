/* attention.h - what an attention kernel's body says: sizes, and where its operands and results lie
 * in the kernel's arguments. */
#ifndef INFINIC_CODEGEN_ATTENTION_H
#define INFINIC_CODEGEN_ATTENTION_H

#include "codegen/attention_cuda.h"
#include "codegen/lower.h"

/* Of the body of a kernel of form "attention" or "attention_grad". */
AttentionSpec attention_spec(const Graph *body, uint64_t loose);

/* The kernels of the C target: templates (prelude_attention.h), and a function around them. */
void attention_c_print_prelude(FILE *out);
void attention_c_print(const AttentionSpec *s, const char *name, FILE *out);

#endif
