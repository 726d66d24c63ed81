/* kernel_set.h - many kernels in one shared object, run and compared with the evaluator.
 *
 * A test adds bodies, builds once, then runs or checks them one by one. Inputs are numbers from a
 * fixed generator in [-0.5, 0.5); i32 inputs are in [0, 8).
 */
#ifndef INFINIC_TESTS_KERNEL_SET_H
#define INFINIC_TESTS_KERNEL_SET_H

#include "codegen/lower.h"
#include "tests/codegen/object.h"

enum { KERNEL_SET_MAX = 4096 };

typedef struct KernelCase {
    Graph *body;
    Node *node;
    int narg, nin, nout;
    void **arg;      /* inputs, results, workspace */
    uint32_t number; /* in the object */
    char text[96]; /* what it is, for messages */
} KernelCase;

typedef struct KernelSet {
    Arena arena;
    Module *m;
    Graph *outer; /* holds the kernel nodes' operands */
    KernelCase item[KERNEL_SET_MAX];
    int n;
    Object *object;
    bool coarse; /* inputs added from now on are multiples of 2^-10: numbers of tf32 */
} KernelSet;

KernelSet *kernel_set_new(void);
void kernel_set_free(KernelSet *set);

/* A body under construction; its inputs are added with graph_add_input. */
Builder kernel_set_body(KernelSet *set);

/* Takes over a finished body (inputs, nodes, outputs) as a kernel of this form. Returns its number.
 */
int kernel_set_add(KernelSet *set, Graph *body, const char *form, const char *text);

/* Writes, compiles and loads all kernels. `cc` NULL: the system's. */
void kernel_set_build(KernelSet *set, const char *cc, const char *march);

void kernel_set_run(KernelSet *set, int i, int threads);

/* Largest over results of norm(kernel - evaluator) / norm(evaluator); prints when it is above
 * `limit` or when 1, 2 and 4 threads give different bits (then it is INFINITY). */
double kernel_set_check(KernelSet *set, int i, double limit);

/* Whether results of two kernels with the same inputs are the same bits. */
int kernel_set_same(KernelSet *set, int a, int result_a, int b, int result_b);

/* Copies result `i` of kernel `from` into input `j` of kernel `to`. */
void kernel_set_feed(KernelSet *set, int from, int i, int to, int j);

/* Seconds of one run: the least of `runs`. */
double kernel_set_time(KernelSet *set, int i, int threads, int runs);

#endif
