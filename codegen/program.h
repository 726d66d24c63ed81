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
    int64_t weight;         /* how long compiling it takes: characters */
    uint32_t part;          /* of the images, that holds it (parts.c) */
    const PlanSizes *sizes; /* not NULL: of those that the function does */
    const char *nameless;   /* the function's text without its name, when it does several sizes */
    uint32_t shares;        /* that of the row with this number, plus 1; 0: a function of its own */
    LoopPrelude *prelude;   /* of kernels of text: what stands before them once; else NULL */
    uint32_t matmul;        /* a product of the library */
    const char *key;        /* body and form as text: what makes kernels equal */
    const char *form;
    VEC(Place) places; /* lines of model.it it came from, ascending */
    int64_t bytes, flops;
} KernelRow;

/* Where a rank's rows begin in the tables that ranks do not share. */
typedef struct RankRows {
    uint32_t param, alias, chunk, program, buffer, bucket, ready, shard;
} RankRows;

struct Program {
    Module *mod;         /* of the rank at hand */
    Module *const *rank; /* all */
    int nrank;
    RankRows at;                      /* of the rank at hand */
    int64_t since_poll;               /* bytes moved and FLOPs / 16 since the last poll */
    PlanRank *train_rank, *eval_rank; /* tasks by rank */
    const Table *table;
    const CodegenOptions *options;
    Arena *arena;
    VEC(KernelRow) kernels;
    VEC(PlanMatmul) matmuls;
    VEC(PlanImage) images; /* bytes are not there yet: only names */
    uint32_t parts;        /* of each architecture's code */
    bool any_size;         /* programs that differ in their sizes share functions */
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
    VEC(PlanShare) shares;
    VEC(PlanBucket) buckets;
    VEC(PlanReady) ready;
    VEC(PlanShard) shards;
    int reduces; /* chunk whose last program is being planned, -1: another one's */
    int top;     /* node of its graph at hand */
    VEC(PlanStage) stages;
    VEC(PlanUnit) units;
    VEC(PlanProgram) programs;
    VEC(PlanSetting) settings;
    VEC(PlanBuffer) buffers;
    VEC(Plan) plans; /* by rank */
    VEC(RankRows) rows;
};

/* Whether it runs as several processes. */
static inline bool program_is_joint(const Program *p) {
    return p->nrank > 1 || p->mod->parallel.dp > 1;
}

/* Whether the step ends with an exchange (PlanFinish): of several ranks, or of one that is to do as
 * if there were. */
static inline bool program_exchanges(const Program *p) {
    return program_is_joint(p) || p->table->loopback;
}

/* Index of the kernel row for a kernel node of g, lowering it when it is new. */
uint32_t program_kernel(Program *p, const Graph *g, const Node *n);

/* Fills p->plans and the tables behind them. */
void plan_build(Program *p);

/* Chunks of the rank at hand. */
static inline int program_chunks(const Program *p) {
    return p->mod->chunk != NULL ? p->mod->nchunk : 1;
}

/* Facts of the model (plan_facts.c): rows of the rank at hand, settings. */
void plan_params(Program *p);
void plan_buffers(Program *p);
void plan_train(const Program *p, Plan *plan);
void plan_generate(const Program *p, Plan *plan);

/* What ranks hand to each other (plan_ranks.c): messages, shares, where a task finds its own. */
void plan_messages(Program *p);
void plan_shares(Program *p);
void plan_eval_tasks(Program *p, uint32_t first); /* of this rank; first: its first eval chunk */
void plan_windows(const Program *p, const Task *t, PlanTask *row);

/* What replicas add up (plan_buckets.c): the buckets of the rank at hand; at the beginning of a
 * program and behind each node, the steps that begin sums. */
void plan_buckets(Program *p);
void plan_reduce_begin(Program *p, const Graph *g, bool (*wanted)(const Node *));
void plan_reduce_steps(Program *p, int node, int inner);
/* What is wrong with the steps [begin, end) of a chunk's last task, NULL: nothing (plan_replay.c).
 */
const char *plan_replay(const Program *p, int local, uint32_t begin, uint32_t end);
/* Parts of a train graph (plan_build.c). */
bool plan_is_backward(const Node *n);
bool plan_is_weight_part(const Node *n);

/* zero = 1 (plan_shards.c): what replicas share, of the rank at hand. */
void plan_shards(Program *p);

/* reduce = ordered (plan_ordered.c): the tables of the rank at hand, NULL for other sums; as C.
 *   figures   loss, counts and metrics in PLAN_REGION_scalar */
PlanOrdered *plan_ordered(const Program *p, int64_t figures, int64_t figures_end);
void plan_print_ordered(const Program *p, uint32_t rank, FILE *out);

/* A matrix product with its epilogue as a row for the device's library (plan_matmul.c). */
PlanMatmul plan_matmul(const Graph *body);

/* CUDA: kernels in parts that are compiled side by side (parts.c). Sets KernelRow.part. */
enum { ARCHS_MAX = 9, IMAGES_MAX = ARCHS_MAX * PLAN_PARTS_MAX };
void parts_plan(Program *p);
/* What kernels of that part need before them, then the kernels. */
void program_print_part(const Program *p, uint32_t part, FILE *out);

/* An image for each architecture and part (image.c): rows of the plan, and names in the C file. */
void image_plan(Program *p);
void image_print_c(const Program *p, FILE *out);
/* Compiles the sources into `dir`/image0, image1, .. and leaves them there, too (source0.cu, ..);
 * 0 or an exit code, after saying what is wrong. */
int image_compile(const Program *p, const char *dir, bool verbose);

/* The tables as C. With `hash` the value for Plan.hash. */
void plan_print(const Program *p, uint64_t hash, FILE *out);

#endif
