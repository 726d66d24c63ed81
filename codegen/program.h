/* program.h - the program under construction, shared by the files of this room that make it. */
#ifndef INFINIC_CODEGEN_PROGRAM_H
#define INFINIC_CODEGEN_PROGRAM_H

#include "codegen/codegen.h"
#include "codegen/loop.h"
#include "ir/table.h"
#include "runtime/plan.h"

/* One generated kernel; kernels with equal bodies share a row. A node that takes several launches
 * has `launches` rows behind each other. */
typedef struct KernelRow {
    const char *name; /* C identifier, unique in the program */
    const char *text; /* the function; a comment where the device's library does it */
    int launches;
    PlanKernelKind kind;
    PlanMath math;
    int64_t grid; /* CUDA */
    int block;
    int64_t shared_bytes;
    LoopPrelude *prelude; /* of kernels of text: what stands before them once; else NULL */
    uint32_t matmul;      /* a product of the library */
    const char *key;      /* body and form as text: what makes kernels equal */
    const char *form;
    VEC(Place) places; /* lines of model.it it came from, ascending */
    int64_t bytes, flops;
} KernelRow;

struct Program {
    Module *mod;
    const Table *table;
    const CodegenOptions *options;
    Arena *arena;
    VEC(KernelRow) kernels;
    VEC(PlanMatmul) matmuls;
    VEC(PlanImage) images; /* bytes are not there yet: only names */
    int repeat_depth;      /* repeats around the step being planned, their iterations */
    int64_t repeat_count[REPEAT_DEPTH_MAX]; /* iterations are numbered below this */
    VEC(PlanParam) params;
    VEC(PlanAlias) aliases;
    VEC(PlanKernel) plan_kernels;
    VEC(PlanArg) args;
    VEC(int64_t) strides;
    VEC(PlanStep) steps;
    VEC(PlanChunk) chunks;
    VEC(PlanTask) tasks;
    VEC(PlanMessage) messages;
    VEC(PlanStage) stages;
    VEC(PlanProgram) programs;
    VEC(PlanSetting) settings;
    VEC(PlanBuffer) buffers;
    Plan plan;
};

/* Index of the kernel row for a kernel node of g, lowering it when it is new. */
uint32_t program_kernel(Program *p, const Graph *g, const Node *n);

/* Fills p->plan and the tables behind it. */
void plan_build(Program *p);

/* A matrix product with its epilogue as a row for the device's library (plan_matmul.c). */
PlanMatmul plan_matmul(const Graph *body);

/* CUDA (image.c): the source of all kernels, and the images' names in the C file. */
void image_print_source(const Program *p, FILE *out);
void image_plan(Program *p);
void image_print_c(const Program *p, FILE *out);
/* Compiles the source once an image and writes them to `dir`/image0, image1, ..; 0 or an exit code,
 * after saying what is wrong. */
int image_compile(const Program *p, const char *dir, bool verbose);
enum { IMAGES_MAX = 9 };

/* The tables as C. With `hash` the value for Plan.hash. */
void plan_print(const Program *p, uint64_t hash, FILE *out);

#endif
