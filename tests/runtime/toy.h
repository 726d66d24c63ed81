/* toy.h - what the runtime's tests share: a hand-written plan, temporary files, and executables
 * run in a child process with their output caught.
 *
 * The plan is a softmax classifier of 2 x 2 images into 2 classes: weight [2, 4], bias [2], two
 * microbatches of 4, SGD with momentum 0.5, evaluation in batches of 3.
 */
#ifndef TESTS_RUNTIME_TOY_H
#define TESTS_RUNTIME_TOY_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/plan.h"

extern const Plan toy_plan;

/* A fresh folder; removed with everything in it by temp_remove. */
char *temp_make(void);
void temp_remove(char *dir);

/* "dir/name" in one of a few static buffers. */
const char *temp_path(const char *dir, const char *name);

void file_put(const char *path, const void *bytes, size_t count);
/* The file as a string, in fresh memory; NULL when it cannot be read. */
char *file_get(const char *path, size_t *count);

/* IDX files of `count` 2 x 2 images, image i has pixels (40 i + 10 j) % 256 and label i % 2. */
void toy_data(const char *dir, const char *base, uint32_t count);

/* A file in the safetensors form: 8 bytes of length, the header text, `data_bytes` zero bytes. */
void tensors_put(const char *path, const char *header, size_t data_bytes);

typedef struct Run {
    int code;        /* exit code; 1000 + n when ended by signal n */
    char *out, *err; /* fresh memory */
} Run;

/* Runs inf_main on `plan` in a child process. `args` ends with NULL and lacks the program name. */
Run run_plan(const Plan *plan, const char *const *args);
void run_free(Run *r);

#define RUN(plan, ...) run_plan((plan), (const char *const[]){__VA_ARGS__, NULL})

#endif
