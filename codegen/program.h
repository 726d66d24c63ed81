/* program.h - the program under construction, shared by the files of this room that make it. */
#ifndef INFINIC_CODEGEN_PROGRAM_H
#define INFINIC_CODEGEN_PROGRAM_H

#include "codegen/codegen.h"
#include "ir/table.h"
#include "runtime/plan.h"

/* One generated kernel; kernels with equal bodies share a row. */
typedef struct KernelRow {
    const char *name;  /* C identifier, unique in the program */
    const char *text;  /* the C function */
    const char *key;   /* body and form as text: what makes kernels equal */
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
    int repeat_depth; /* repeats around the step being planned, and their counts */
    int64_t repeat_count[REPEAT_DEPTH_MAX];
    VEC(PlanParam) params;
    VEC(PlanAlias) aliases;
    VEC(PlanKernel) plan_kernels;
    VEC(PlanArg) args;
    VEC(int64_t) strides;
    VEC(PlanStep) steps;
    VEC(PlanChunk) chunks;
    VEC(PlanTask) tasks;
    VEC(PlanProgram) programs;
    VEC(PlanSetting) settings;
    VEC(PlanBuffer) buffers;
    Plan plan;
};

/* Index of the kernel row for a kernel node of g, lowering it when it is new. */
uint32_t program_kernel(Program *p, const Graph *g, const Node *n);

/* Fills p->plan and the tables behind it. */
void plan_build(Program *p);

/* The tables as C. With `hash` the value for Plan.hash. */
void plan_print(const Program *p, uint64_t hash, FILE *out);

#endif
