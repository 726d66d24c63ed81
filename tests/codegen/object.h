/* object.h - generated kernels in one shared object: C text in, functions out.
 *
 * Compiled by cc with the flags of generated programs, loaded, and bound to this program's
 * inf_sgemm and inf_random4. INFINIC_TEST_CC names another compiler, INFINIC_TEST_CFLAG one more
 * flag (-O0 compiles four times as fast); with INFINIC_KEEP set the C file stays and its path is
 * printed.
 */
#ifndef INFINIC_TESTS_CODEGEN_OBJECT_H
#define INFINIC_TESTS_CODEGEN_OBJECT_H

#include "codegen/loop.h"
#include "runtime/plan.h"

#include <stdio.h>

typedef struct Object Object;

Object *object_new(void);

/* Adds the text of a kernel function `name`; its number. Equal texts are one kernel, however often
 * they are added; a name that stands for another text already gets a new one. */
uint32_t object_add(Object *o, const char *name, const char *text);
/* The same for a kernel in loop form. */
uint32_t object_add_loop(Object *o, const LoopKernel *k);
/* What kernels of text that are added need before them; each is printed once. */
void object_add_prelude(Object *o, LoopPrelude *prelude);
uint32_t object_count(const Object *o);

/* INFINIC_TEST_TARGET=cuda: kernels are lowered and printed for CUDA, compiled as C++ and run by
 * cuda_emulate.c. */
bool object_is_cuda(void);
/* INFINIC_TEST_TARGET=device: the same on a real one (object_device.h). There kernels are run by
 * object_run alone, on memory that was lent. */
bool object_on_device(void);
void object_lend(void *at, size_t bytes);
void object_give_back(void *at);
uint32_t object_add_cuda(Object *o, const char *name, const char *text, int64_t grid, int block);

/* Compiles and loads all kernels; ends the program with the compiler's words when that fails.
 *   cc      NULL: the system's
 *   march   NULL: native */
void object_build(Object *o, const char *cc, const char *march);

/* After object_build; valid until object_free. */
InfKernel *object_kernel(const Object *o, uint32_t i);
void object_run(const Object *o, uint32_t i, void *const *arg, const InfEnv *env);
void object_free(Object *o);

#endif
