/* pass.h - the pipeline of IR -> IR passes.
 *
 * passes.def lists them in order; PASS(name, "one line") names the function
 * `bool pass_<name>(PassContext *)`, which rewrites ctx->mod and returns false after reporting
 * diagnostics. passes_run verifies after each pass, prints dumps, keeps times, and in debug builds
 * prints, reads back and compares.
 */
#ifndef INFINIC_PASSES_PASS_H
#define INFINIC_PASSES_PASS_H

#include "ir/module.h"
#include "ir/table.h"

#include <stdio.h>

typedef struct Costs Costs; /* costs.h */

typedef struct PassOptions {
    bool no_fuse;       /* one kernel an op */
    bool no_reuse;      /* each tensor its own space */
    bool verify_passes; /* compare the graphs before and after each pass with the evaluator */
    bool time_passes;   /* print the time of each pass on stderr */
    bool print_locations;
    bool schedule_only;         /* nothing will run: layouts that can only be scheduled are fine */
    const Costs *costs;         /* of --costs; NULL: estimated */
    int64_t memory_limit_bytes; /* 0: none; else E024 */
    bool may_chunk_loss;        /* not written: the memory plan may choose train.chunk_loss */
    bool may_recompute;         /* likewise train.recompute */
    const char *dump;           /* pass name or "all": print the module after it */
    const char *stop_after;     /* pass name: nothing after it runs */
    const char *only;           /* pass name: nothing else runs */
    /* With stop_after or only and without dump, the module is printed after that pass. */
    FILE *dump_to;
} PassOptions;

typedef struct PassContext {
    Module *mod;
    Arena *scratch; /* reset after each pass */
    const PassOptions *options;
    Table *table;  /* begun by partition, complete after schedule */
    Module **rank; /* of a pipeline: what each rank runs, made by partition; NULL: `mod` runs */
    int nrank;
} PassContext;

/* The passes: pass_fold, pass_cse, ... */
#define PASS(name, what) bool pass_##name(PassContext *ctx);
#include "passes/passes.def"
#undef PASS

/* Runs the pipeline. False after diagnostics were reported (exit 1). */
bool passes_run(PassContext *ctx);

/* Whether the name is "all", "lower", or a pass; and the list of names with their lines for
 * `-d list`. */
bool passes_known(const char *name);
void passes_list(FILE *out);

#endif
