/* codegen.h - from placed, fused IR to the generated program. */
#ifndef INFINIC_CODEGEN_CODEGEN_H
#define INFINIC_CODEGEN_CODEGEN_H

#include "ir/limits.h"
#include "ir/module.h"

#include <stdio.h>

struct Plan;
struct Table;

/* Bounds of the model's data inputs by index, taken from the lowered graphs before the passes. */
typedef struct InputLimits {
    const DataLimit *limit;
    int count;
} InputLimits;

typedef struct CodegenOptions {
    InputLimits limits;
    int64_t attention_width; /* ir/work.h, of the graphs before the passes */
    const char *march;   /* NULL: native */
    const char *version; /* of infinic */
    bool threads_always; /* several threads even where the work is too small for it: for tests */
    const char *const *arch; /* CUDA: "sm_90a", ..; PTX for other chips comes in addition */
    int narch;
} CodegenOptions;

/* The program of one module: kernels and the plan. Owned by the arena it was made in. */
typedef struct Program Program;

/* Lowers every kernel node to the loop form, names and shares equal kernels, and builds the plans
 * of `nrank` ranks. `table` is the schedule (ir/table.h). */
Program *codegen_build(Module *const *rank, int nrank, const struct Table *table,
                       const CodegenOptions *options, Arena *arena);

/* The plans with kernel functions NULL: to print schedule, params and info without an executable.
 */
const struct Plan *codegen_plan(const Program *p);

/* The whole C file: kernels, tables, main. Same bytes for the same input. */
void codegen_print_c(const Program *p, FILE *out);

/* The kernels alone, readable, each headed by the model lines it came from. */
void codegen_print_kernels(const Program *p, FILE *out);

/* The tables alone, as C. */
void codegen_print_plan(const Program *p, FILE *out);

/* Compiles the C text with the system's cc (argument vector, no shell) and links it with the
 * embedded runtime into `output`. Temporary files live in a private folder, removed on every exit.
 * Returns 0, or an exit code after printing what went wrong (a missing cc, cc's own message). */
typedef struct LinkOptions {
    const char *output;
    const char *march;
    bool verbose;
    const unsigned char *archive; /* libinfinic_runtime.a */
    size_t archive_bytes;
    const unsigned char *plan_h;
    size_t plan_h_bytes;
} LinkOptions;

int codegen_link(const Program *p, const LinkOptions *options);

/* The architecture of the machine's first GPU ("sm_90a"), by libcuda; NULL when none answers. */
const char *codegen_device_arch(Arena *arena);
/* Whether kernels for a GPU can be compiled here. */
bool codegen_has_nvrtc(void);

/* A process of its own for each image of device code: `infinic IMAGE_JOB SOURCE NAME ARCH OUT`,
 * seen by main before anything else. Returns the exit code. */
#define IMAGE_JOB "--image-job"
enum { IMAGE_JOB_ARGS = 6 };
int image_job(char *const *arg); /* from SOURCE on */

/* Removes temporary files; safe in a signal handler's normal path (main calls it on SIGINT). */
void codegen_cleanup(void);

#endif
