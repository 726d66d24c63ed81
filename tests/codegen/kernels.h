/* kernels.h - kernels from IR text, compiled by cc, run and compared with the evaluator.
 *
 * A case is the body of one kernel. It is lowered as a whole and once more as one kernel for each
 * of its nodes; all kernels of a run go into one translation unit. Every kernel runs with 1, 2 and
 * 4 threads on buffers that end at an unmapped page; bits must not depend on the threads, nor on
 * fusion, and values must agree with the f64 evaluator. */
#ifndef INFINIC_TESTS_CODEGEN_KERNELS_H
#define INFINIC_TESTS_CODEGEN_KERNELS_H

#include "codegen/lower.h"
#include "ir/eval.h"

typedef enum KernelInput {
    INPUT_plain,   /* f32 in [-3, 3) */
    INPUT_special, /* NaN, infinities, zeros of both signs, denormals, huge values among them */
    INPUT_equal,   /* all elements 1.5 */
    INPUT_constant /* all elements KernelCase.value */
} KernelInput;

typedef struct KernelCase {
    const char *form; /* NULL: only as one kernel a node */
    const char *body; /* "(%0: f32[4]) { %1 = relu %0 : f32[4] return %1 }" */
    KernelInput input;
    int64_t limit;    /* i32 inputs are in [-1, limit); 0: in [-50, 50) */
    double tolerance; /* |got - want| <= tolerance * (1 + |want|); 0: 2e-6 */
    double value;
} KernelCase;

typedef struct KernelSet KernelSet;

KernelSet *kernels_new(void);
/* `c` is copied; texts may be freed. Returns the case's number. */
int kernels_add(KernelSet *set, KernelCase c);
int kernels_addf(KernelSet *set, KernelCase c, const char *body, ...)
    __attribute__((format(printf, 3, 4)));
/* Compiles and runs everything; returns how many cases failed, each explained on stderr. */
int kernels_run(KernelSet *set);
/* The C text of the fused kernel of a case, named "k". */
const char *kernels_text(KernelSet *set, int which);
/* Result `i` of the fused kernel of a case after kernels_run, as doubles. */
const double *kernels_result(KernelSet *set, int which, int i);
void kernels_free(KernelSet *set);

#endif
