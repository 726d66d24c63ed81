/* plan.h - the contract between compiler and runtime: everything an executable does, as const
 * tables. The generated C file includes only this header and defines one Plan and the CPU kernels;
 * the runtime walks the tables and decides nothing that the compiler could have decided.
 *
 * All addresses are (region, byte offset). Regions are pieces of one allocation made at start.
 */
#ifndef INFINIC_RUNTIME_PLAN_H
#define INFINIC_RUNTIME_PLAN_H

#include <stdint.h>

enum { PLAN_VERSION = 1, PLAN_NDIM_MAX = 8, PLAN_REPEAT_DEPTH_MAX = 4, PLAN_PARTS_MAX = 8 };

/* A target that is not counted: the padding of the last evaluation batch. */
#define INF_TARGET_PAD INT32_MIN

typedef enum PlanRegion {
    PLAN_REGION_none,
    PLAN_REGION_param,  /* flat f32 weights, those that every replica has */
    PLAN_REGION_grad,   /* flat f32 gradient accumulators */
    PLAN_REGION_state,  /* optimizer state: nstate vectors of state_bytes, then f32 weights that
                         * this replica alone has */
    PLAN_REGION_copy,   /* bf16 copy of the flat weights, element for element; chunk "copy" */
    PLAN_REGION_scalar, /* host scalars, then loss, counts, metrics, norm */
    PLAN_REGION_data,   /* the staged batch */
    PLAN_REGION_slot,   /* activations kept from forward to backward */
    PLAN_REGION_scratch,
    PLAN_REGION_cache,   /* generate: keys and values of the tokens so far */
    PLAN_REGION_message, /* what chunks of a pipeline hand to each other */
    PLAN_REGION_sum,     /* gradients of other replicas on their way into sums */
    /* No memory of their own: windows into PLAN_REGION_message, those of the task at hand. */
    PLAN_REGION_recv,
    PLAN_REGION_send,
    PLAN_REGION_recv_grad,
    PLAN_REGION_send_grad,
    PLAN_REGION_count
} PlanRegion;

/* Scalars that the host computes each step, f32, at the head of PLAN_REGION_scalar. */
typedef enum HostScalar {
    HOST_lr,    /* after the schedule */
    HOST_bias1, /* 1 - beta1^t, t from 1 */
    HOST_bias2, /* 1 - beta2^t */
    HOST_weight_decay,
    HOST_clip, /* largest norm; +inf when off */
    HOST_SCALAR_COUNT
} HostScalar;

/* What a kernel may know of the moment. One object per task, shared by all threads. */
typedef struct InfEnv {
    uint64_t seed;
    int64_t step;                        /* of the run, from 0 */
    int64_t microbatch;                  /* over all replicas: dp_rank * n + m */
    int64_t iter[PLAN_REPEAT_DEPTH_MAX]; /* current iterations, outermost first */
    int threads;
} InfEnv;

typedef void InfKernel(void *const *arg, const InfEnv *env);

/* A kernel is a C function, a function of the images, or a product by the device's library. */
typedef enum PlanKernelKind { PLAN_KERNEL_c, PLAN_KERNEL_cuda, PLAN_KERNEL_matmul } PlanKernelKind;

/* What a kernel multiplies in: the units whose rate bounds it. */
typedef enum PlanMath { PLAN_MATH_f32, PLAN_MATH_tf32, PLAN_MATH_bf16, PLAN_MATH_COUNT } PlanMath;

/* Attention over batch x heads of `queries` by `keys`, heads in chunks; elements from sample to
 * sample of each tensor (turned: rotated queries), and from head to head of lse. */
typedef struct PlanSizes {
    int32_t batch, queries, keys, chunk;
    int64_t q, k, v, out, turned, lse, lse_head;
} PlanSizes;

typedef struct PlanKernel {
    const char *name;
    InfKernel *fn;     /* PLAN_KERNEL_c; else NULL */
    const char *form;  /* "elementwise", "rows", "columns", "matmul", "conv", ... */
    const char *lines; /* places in model.it it came from: "12:3 13:9" */
    int64_t bytes;     /* least traffic: each operand read once, each result written once */
    int64_t flops;
    uint8_t math;                       /* PlanMath */
    uint8_t kind;                       /* PlanKernelKind */
    uint8_t part;                       /* PLAN_KERNEL_cuda: PlanImage.part */
    uint32_t grid, block, shared_bytes; /* PLAN_KERNEL_cuda: one-dimensional; grid 0: nothing to do;
                                           shared_bytes is dynamic shared memory */
    uint32_t matmul;                    /* PLAN_KERNEL_matmul: index into Plan.matmul */
    /* Kernels that differ in their sizes only may be one function of the images, which gets them by
     * value behind InfDeviceEnv. NULL: the function is `name`'s and gets none. */
    const char *function;
    const PlanSizes *sizes;
} PlanKernel;

/* What a CUDA kernel gets by value after its pointers (one for each argument, in order):
 *   extern "C" __global__ void NAME(T0 *a0, ..., InfDeviceEnv env)
 * Numbers that change from step to step lie in device memory, so that a captured graph stays
 * valid; microbatch and iterations are constants of the launch. */
typedef struct InfDeviceMoment {
    uint64_t seed, step;
    /* For inf_stage: the data set's samples [0, count), the position in the epoch of the first
     * sample of microbatch 0, where real samples end, and the epoch's permutation (permute.h);
     * half_bits 0: file order. */
    uint64_t position, end, count, key, half_bits;
} InfDeviceMoment;

typedef struct InfDeviceEnv {
    const InfDeviceMoment *moment; /* device memory */
    int32_t microbatch;
    int32_t iter[PLAN_REPEAT_DEPTH_MAX];
} InfDeviceEnv;

/* The staging kernels, in every image: samples of a data set in device memory into a microbatch's
 * inputs, one block of PLAN_STAGE_BLOCK threads a sample (grid = batch). Inputs that a program
 * lacks are NULL. Sample `row` stands at position + first + row; beyond `end`: pixels and tokens 0,
 * labels and targets INF_TARGET_PAD, valid 0. A row of tokens has length + 1 of them, of
 * token_bytes (2 or 4) each.
 *   extern "C" __global__ void inf_stage(const unsigned char *pixels, const unsigned char *labels,
 *       float *image, int *label, float *valid, const InfDeviceMoment *moment,
 *       unsigned long long first, long long sample_pixels)
 *   extern "C" __global__ void inf_stage_tokens(const void *rows, int *tokens, int *targets,
 *       float *valid, const InfDeviceMoment *moment, unsigned long long first, long long length,
 *       int token_bytes) */
enum { PLAN_STAGE_BLOCK = 256 };

/* A matrix product of the device's library, row-major: out[m, n] = op(a) * op(b), `batch` times.
 * a, b, bias, old and out say which of the step's arguments they are.
 *   ta   a is stored [k, m], else [m, k];  tb: b is stored [n, k], else [k, n]
 *   beta old (of out's shape, perhaps at out's address) is added */
typedef enum PlanEpilogue {
    PLAN_EPILOGUE_none,
    PLAN_EPILOGUE_bias, /* [n], added to every row */
    PLAN_EPILOGUE_relu,
    PLAN_EPILOGUE_relu_bias,
    PLAN_EPILOGUE_gelu, /* tanh form */
    PLAN_EPILOGUE_gelu_bias
} PlanEpilogue;

typedef struct PlanMatmul {
    int64_t m, n, k, batch;
    uint8_t ta, tb;
    uint8_t dtype;                        /* PlanDtype of a and b */
    uint8_t out_dtype;                    /* of out, bias and old: f32, or bf16 where a and b are */
    uint8_t tf32;                         /* f32 operands may be rounded to tf32 */
    uint8_t epilogue;                     /* PlanEpilogue */
    uint8_t beta;                         /* 1: there is an old value */
    uint8_t a, b, bias, old, out;         /* arguments; those that are not there: 0 */
    int64_t lda, ldb, ldc;                /* elements from row to row, as stored */
    int64_t a_stride, b_stride, c_stride; /* elements from matrix to matrix */
} PlanMatmul;

/* Device code: a cubin for one architecture ("sm_90a"), or PTX ("compute_80") for chips that no
 * cubin names. An architecture has an image for each part of the kernels, numbered from 0; that of
 * part 0 holds inf_stage and inf_stage_tokens, too. */
typedef struct PlanImage {
    const char *arch;
    const unsigned char *bytes, *end;
    uint32_t part;
} PlanImage;

/* Operand of a step: base[region] + offset + sum over enclosing repeats of iteration * stride.
 * `stride` indexes Plan.stride (one entry per enclosing repeat, outermost first) if nstride > 0. */
typedef struct PlanArg {
    int64_t offset;
    uint32_t stride;
    uint8_t nstride;
    uint8_t region;
    /* Target "cuda": what tells which launches may run side by side. */
    uint8_t written; /* the kernel writes there, else it only reads */
    int64_t bytes;   /* from the address on */
    int64_t shard;   /* bytes from one replica's place to the next one's */
} PlanArg;

typedef enum StepKind {
    STEP_LAUNCH, /* kernel[kernel] on arg[arg .. arg + narg) */
    STEP_REPEAT, /* the next `nbody` steps, `count` times; from the last iteration when reverse */
    STEP_POLL,   /* messages go on: there was much to compute since the last time; in a repeat, in
                  * every `count`-th iteration of it */
    STEP_REDUCE  /* in a chunk's last task of the step that writes gradients: these buckets of
                  * Plan.ready are complete, [first, first + count) */
} StepKind;

typedef struct PlanStep {
    StepKind kind;
    uint32_t kernel;
    uint32_t arg, narg;
    uint32_t nbody;
    uint8_t reverse;
    int64_t count;
    int64_t first;     /* random numbers count iterations from here; reduce: index of a row */
    const char *scope; /* "transformer.h.*.attn"; for traces and messages */
} PlanStep;

/* The steps of one chunk and phase: step[begin .. end). */
typedef struct PlanChunk {
    const char *name; /* "forward", "backward", "backward+", "update", "copy", "eval" */
    uint32_t begin, end;
} PlanChunk;

typedef enum PlanTaskKind {
    PTASK_forward,
    PTASK_backward,
    PTASK_input,
    PTASK_weight,
    PTASK_update,
    PTASK_send,
    PTASK_recv,
    PTASK_reduce, /* a bucket is summed over the replicas: begun by a STEP_REDUCE before */
    PTASK_gather, /* weights of a part of theirs go to all replicas: begun behind the update */
} PlanTaskKind;

/* What of a rank's memory a task works in: from where on the regions data and slot begin for it,
 * in themselves, and the four windows, in PLAN_REGION_message. */
typedef enum PlanWindow {
    PLAN_WINDOW_data,
    PLAN_WINDOW_slot,
    PLAN_WINDOW_recv,
    PLAN_WINDOW_send,
    PLAN_WINDOW_recv_grad,
    PLAN_WINDOW_send_grad,
    PLAN_WINDOW_COUNT
} PlanWindow;

typedef struct PlanTask {
    uint8_t kind;       /* PlanTaskKind */
    int32_t chunk;      /* global; -1 for the update */
    int32_t local;      /* on its rank; -1 for the update */
    int32_t microbatch; /* -1 for the update */
    uint32_t program;   /* index into its rank's Plan.chunk */
    int32_t slot;       /* which set of its chunk's activations */
    int32_t message;    /* send, recv: index into Plan.message; reduce: into Plan.bucket; gather:
                           into Plan.shard; else the message it waits for, or -1 */
    int64_t window[PLAN_WINDOW_COUNT]; /* bytes */
    double start, length;              /* predicted, in the unit of Plan.makespan; of a gather
                                          behind that: it goes on while the next step begins */
    double done;  /* reduce: the share of its chunk's last task that has passed when it begins */
    uint8_t last; /* nothing after it in this step writes its chunk's gradients: its buckets go */
} PlanTask;

/* What a chunk of the pipeline holds. */
typedef struct PlanStage {
    int32_t rank, local;
    const char *first, *last; /* scope paths of its first and last layer, "transformer.h.3"; NULL */
    int64_t parameters;       /* elements, counted where they are used first */
    double flops;             /* of one forward */
    double cost, share;       /* what is balanced: arithmetic and traffic, or what was measured */
} PlanStage;

/* A layer, or all iterations of a repeat. */
typedef struct PlanUnit {
    const char *name; /* "conv1", "transformer.h.*" */
    int32_t layers;
} PlanUnit;

/* What one rank sends and another receives: activations, or a gradient on its way back. */
typedef struct PlanMessage {
    uint8_t gradient;
    int32_t from, to; /* chunks */
    int32_t from_rank, to_rank;
    int32_t microbatch;
    int32_t slot; /* of the receiver */
    int64_t bytes;
    int64_t from_at, to_at; /* in PLAN_REGION_message of the two ranks */
} PlanMessage;

/* The gradient of one use of a weight that several ranks hold, from the rank that computed it to
 * another one: into the place that it has there, before the norm. */
typedef struct PlanShare {
    int32_t from_rank, to_rank;
    int64_t bytes;
    int64_t from_at, to_at; /* in PLAN_REGION_grad of the two ranks */
} PlanShare;

/* A piece of this rank's gradients that its replicas add up in one collective, begun as soon as the
 * last of them is complete. Every gradient is in exactly one. */
typedef struct PlanBucket {
    int32_t local;     /* the chunk of this rank whose last backward completes it */
    int64_t at, bytes; /* in PLAN_REGION_grad; whole blocks of 512 bytes for each replica */
} PlanBucket;

/* zero = 1: a range that replicas share evenly, the one of number r its r-th part. They own its
 * weights and keep its states, in each state vector from state_at on; after an update all weights
 * go to all. Where weights are read as their copy in bf16 alone, each replica has the f32 ones of
 * its part only, from master_at on in PLAN_REGION_state, and the copy goes to all. Of later uses of
 * tied weights there are gradients only. */
typedef struct PlanShard {
    int32_t local; /* the chunk of this rank that reads the weights first; -1: none does */
    int64_t at;    /* bytes in the vector of f32 weights; the copy begins at half of it */
    int64_t bytes; /* of one replica */
    int64_t state_at;
    uint8_t owned; /* else every replica has all f32 weights, in PLAN_REGION_param */
    int64_t master_at;
} PlanShard;

/* Bytes of the weights that each replica brings. */
static inline int64_t inf_shard_brings(const PlanShard *s) {
    return s->owned ? s->bytes / 2 : s->bytes;
}

/* Where a bucket is complete: at a STEP_REDUCE in this iteration of the outermost repeat around
 * it. */
typedef struct PlanReady {
    uint32_t bucket;
    int64_t iteration; /* -1: in no repeat */
} PlanReady;

/* reduce = "ordered": microbatches are the leaves of one tree over all replicas. Each writes its
 * gradients into a buffer of its own, buffer b at b * grad_bytes of PLAN_REGION_grad, by the
 * program of a first microbatch. Behind the last task that writes them, buffers are added. */
typedef struct PlanLeaf {
    uint32_t buffer;
    uint32_t add, nadd; /* of PlanOrdered.add */
} PlanLeaf;

typedef struct PlanAdd {
    uint32_t into, from; /* buffers */
} PlanAdd;

/* A sum that a replica is left with, in the order of the whole tree; behind it so many pairs of
 * sums, latest first, are added. */
typedef struct PlanPart {
    int32_t replica;
    uint32_t joins;
} PlanPart;

typedef struct PlanOrdered {
    int64_t grad_bytes;
    const PlanLeaf *leaf; /* [local chunk][replica][microbatch] */
    const PlanAdd *add;
    const PlanPart *part;
    uint32_t npart;
    const uint32_t *kept; /* [local chunk][replica][number]: the buffer of each part */
    uint32_t most_kept;
    int64_t figure_at, figure_bytes; /* loss, counts, metrics: in PLAN_REGION_scalar */
    /* Target "cuda": in PLAN_REGION_grad loss, counts and metrics of all leaves, [replica]
     * [microbatch]; and room for so much of each part, in the order of the parts. */
    int64_t figures_at;
    int64_t told_at, told_bytes;
} PlanOrdered;

/* How the ranks of a pipeline finish a step, in this order: loss, counts and metrics from the rank
 * of the last chunk to all; the shares; `norm`, which writes some of the squares, zeros elsewhere;
 * their sum over all ranks; the update. */
typedef struct PlanFinish {
    int32_t loss_rank;
    int64_t loss, loss_bytes;  /* range in PLAN_REGION_scalar */
    int32_t norm;              /* index into Plan.chunk */
    int32_t blocks_program;    /* index into Plan.chunk: what of the blocks this replica owns; -1 */
    int64_t blocks, nblocks;   /* f32 in PLAN_REGION_scalar: `norm` reads those of all replicas */
    int64_t squares, nsquares; /* f32 from this offset in PLAN_REGION_scalar on, and one more: how
                                  many ranks a signal asks to stop */
} PlanFinish;

typedef struct PlanRank {
    uint32_t task, ntask; /* into Plan.task */
} PlanRank;

typedef enum PlanDtype { PLAN_f32, PLAN_bf16, PLAN_i32, PLAN_u8, PLAN_bool } PlanDtype;

typedef enum PlanInit {
    PLAN_INIT_zeros,
    PLAN_INIT_ones,
    PLAN_INIT_normal,
    PLAN_INIT_uniform,
} PlanInit;

/* A parameter block. Logical tensors are its slices along the nstack leading stack axes; the name
 * holds one '*' per stack axis. Stored dims may exceed logical ones (padding rows, never saved). */
typedef struct PlanParam {
    const char *name;
    int64_t offset; /* bytes in param and grad; state k is at k * Plan.flat_bytes + offset */
    int64_t stride; /* bytes from slice to slice of stack axis 0; 0: they follow each other */
    int64_t first;  /* a rank's part of a stack: the number of its first tensor in axis 0 */
    int32_t nstack, ndim;
    int64_t stack[PLAN_REPEAT_DEPTH_MAX];
    int64_t dim[PLAN_NDIM_MAX];    /* logical, of one tensor */
    int64_t stored[PLAN_NDIM_MAX]; /* stored, of one tensor */
    uint8_t init;                  /* PlanInit */
    uint8_t transposed;            /* stored [in, out] */
    uint8_t trainable;
    uint8_t copied; /* another rank holds this weight, too, and is the one that saves it */
    uint8_t owned;  /* not in PLAN_REGION_param: PlanShard.master_at; offset is that of grad */
    uint8_t decay;
    double init_a;
    /* gradient buffers; use u >= 1 at grad offset use_offset + (u - 1) * use_stride */
    int32_t uses;
    int64_t use_offset, use_stride;
    const char *place; /* "12:3" */
} PlanParam;

typedef struct PlanAlias {
    const char *name;
    int32_t param;
} PlanAlias;

typedef enum PlanInputKind {
    PLAN_INPUT_image,
    PLAN_INPUT_label,
    PLAN_INPUT_tokens,
    PLAN_INPUT_targets,
    PLAN_INPUT_valid,
    PLAN_INPUT_position, /* i32 [1]: tokens in the caches before this call */
    PLAN_INPUT_last,     /* i32 [1]: the token of this call whose logits are wanted */
} PlanInputKind;

/* A staged batch tensor; dim[0] is the batch. */
typedef struct PlanInput {
    const char *name;
    uint8_t kind;  /* PlanInputKind: what the loader puts there */
    uint8_t dtype; /* PlanDtype */
    int32_t ndim;
    int64_t dim[PLAN_NDIM_MAX];
    int64_t limit;  /* label, tokens, targets: values must be in [0, limit) */
    int64_t ignore; /* targets: also allowed; INT64_MIN: none */
    int32_t local;  /* the chunk of this rank whose forward reads it */
    PlanArg at;
} PlanInput;

/* A named result. Metrics are sum/count over the global batch; outputs are tensors. */
typedef struct PlanMetric {
    const char *name;   /* "loss" is metric 0 */
    int64_t sum, count; /* byte offsets in PLAN_REGION_scalar */
} PlanMetric;

typedef struct PlanOutput {
    const char *name;
    uint8_t dtype;
    int32_t ndim;
    int64_t dim[PLAN_NDIM_MAX];
    PlanArg at;
} PlanOutput;

/* One binding of the free dimensions: "train", "eval"; "prefill.N", the first N tokens of a text
 * (tokens, position 0, last), and "decode", one more (tokens, position), whose one output is the
 * logits f32 [batch, vocabulary] after the last token; "outputs": inputs of "eval", outputs of the
 * model, for verify. */
typedef struct PlanProgram {
    const char *name;
    int64_t batch;        /* samples a microbatch */
    int64_t microbatches; /* train: per step and replica; else 1 */
    int64_t scratch;      /* bytes of PLAN_REGION_scratch that it needs (train: and eval); 0: all */
    const PlanInput *input;
    uint32_t ninput;
    const PlanMetric *metric;
    uint32_t nmetric;
    const PlanOutput *output;
    uint32_t noutput;
    const PlanRank *rank; /* one per rank */
} PlanProgram;

typedef enum PlanDataKind { PLAN_DATA_none, PLAN_DATA_mnist, PLAN_DATA_tokens } PlanDataKind;

typedef struct PlanData {
    uint8_t kind;
    const char *path;
    const char *split;
} PlanData;

typedef enum PlanOptimizer { PLAN_OPTIM_sgd, PLAN_OPTIM_adam, PLAN_OPTIM_adamw } PlanOptimizer;
typedef enum PlanSchedule {
    PLAN_SCHED_constant,
    PLAN_SCHED_linear,
    PLAN_SCHED_cosine,
    PLAN_SCHED_inverse_sqrt,
    PLAN_SCHED_wsd,
} PlanSchedule;

/* Defaults of the run-time settings, and what is fixed. */
typedef struct PlanTrain {
    PlanData data, eval_data;
    uint8_t eval_present;
    int64_t eval_every;    /* steps; 0: every epoch */
    int64_t steps, epochs; /* -1: not given */
    int64_t seed;
    uint8_t optimizer, schedule;
    double lr, beta1, beta2, decay, clip; /* clip 0: off */
    int64_t warmup;
    double floor, decay_share;
    const char *dtype; /* "f32", "bf16" */
} PlanTrain;

/* Defaults of the run-time settings of generate, and what is fixed. */
typedef struct PlanGenerate {
    uint8_t present;
    int64_t batch, context; /* texts at a time; tokens that the caches hold */
    const char *tokenizer;  /* folder, "bytes"; NULL: none */
    double temperature;     /* 0: greedy */
    int64_t top_k, length;  /* 0: all; -1: not given */
} PlanGenerate;

typedef struct PlanSetting {
    const char *key, *value; /* "train.B", "64": fixed at build time */
} PlanSetting;

/* For `info`: the largest buffers, in descending order. */
typedef struct PlanBuffer {
    const char *what;  /* scope path and op, "conv2 conv2d" */
    const char *place; /* "7:12" */
    uint8_t region;
    int64_t bytes;
} PlanBuffer;

/* A rank's part of the program. Where there are several ranks, plans lie in an array, one a rank of
 * the pipeline; they share all tables but parameters, chunks, programs, buckets and buffers. Every
 * plan is run by `dp` replicas: replica r of pipeline rank k is the process of rank r + dp * k. */
typedef struct Plan {
    int32_t version;
    int32_t rank, ranks;      /* its place in the array, of how many */
    const char *model, *file; /* "mnist_cnn", "mnist_cnn.it" */
    const char *target;       /* "cpu", "cuda" */
    const char *compiler;     /* infinic's version */
    const char *cpu_features; /* comma-separated __builtin_cpu_supports names the kernels need */
    uint64_t hash;            /* of everything else */
    int32_t dp, tp, pp, vpp;
    const char *pipeline;
    const char *schedule_summary;
    const char *schedule_estimate; /* the line below it, with estimated costs; NULL: one process */
    double makespan, bubble;       /* estimated; idle share of all ranks */
    int64_t region_bytes[PLAN_REGION_count];
    int64_t flat_bytes;  /* of the parameter vector */
    int64_t state_bytes; /* of one state vector: flat_bytes, or what a replica owns */
    int32_t nstate;
    int64_t grad_norm, update_ok; /* byte offsets in PLAN_REGION_scalar (f32) */
    int64_t attention_width;      /* sum over attention layers of heads * dimension */
    const PlanParam *param;
    uint32_t nparam;
    const PlanAlias *alias;
    uint32_t nalias;
    const PlanKernel *kernel;
    uint32_t nkernel;
    const PlanArg *arg;
    const int64_t *stride;
    const PlanStep *step;
    const PlanChunk *chunk;
    uint32_t nchunk;
    const PlanTask *task;
    const PlanMessage *message; /* in the order in which every rank posts its halves */
    uint32_t nmessage;
    const PlanShare *share;
    uint32_t nshare;
    const PlanBucket *bucket; /* in the order in which they become ready */
    uint32_t nbucket;
    const PlanReady *ready;
    const PlanShard *shard; /* NULL: every replica has all states */
    uint32_t nshard;
    const PlanOrdered *ordered; /* NULL: gradients are added to those of the microbatch before */
    PlanFinish finish;
    const struct InfTransport *transport; /* NULL: one rank */
    const PlanStage *stage;               /* by chunk */
    uint32_t nstage;
    const PlanUnit *unit; /* what a pipeline is cut between, in order */
    uint32_t nunit;
    const PlanProgram *program; /* [0] train, then eval where there is one, then generate's */
    uint32_t nprogram;
    PlanTrain train;
    PlanGenerate generate;
    const PlanSetting *setting;
    uint32_t nsetting;
    const PlanBuffer *buffer;
    uint32_t nbuffer;
    const char *checkpoint_prefix; /* may be missing on load, always written; NULL: none */
    const char *checkpoint_skip;   /* "*.attn.bias *.x": names in files that are ignored; or NULL */
    const PlanMatmul *matmul;      /* target "cuda" */
    uint32_t nmatmul;
    const PlanImage *image;
    uint32_t nimage;
} Plan;

extern const struct InfTransport inf_transport_mpi;

/* Replicas of each rank of the pipeline, and processes of a run of all ranks. */
static inline int inf_plan_replicas(const Plan *plan) { return plan->dp > 1 ? plan->dp : 1; }
static inline int inf_plan_processes(const Plan *plan) {
    return plan->ranks * inf_plan_replicas(plan);
}

/* Whether replicas have f32 weights of their own parts only. */
static inline int inf_plan_owns(const Plan *plan) {
    for (uint32_t i = 0; i < plan->nshard; i++)
        if (plan->shard[i].owned) return 1;
    return 0;
}

/* On a device with memory of its own: whether buckets are summed where they are complete, over the
 * replicas or, where it is told to, of one alone. */
static inline int inf_plan_adds(const Plan *plan) {
    return plan->dp > 1 || plan->nshard > 0 || (plan->nbucket > 0 && !plan->ordered);
}

/* On such a device: whether a rank that is alone does what ranks do together, messages to itself
 * included. */
static inline int inf_plan_talks_alone(const Plan *plan) {
    return plan->nmessage > 0 || (plan->dp <= 1 && plan->finish.nsquares > 0);
}

/* The runtime's entry: the generated main hands over its plan, or the array of them. */
int inf_main(const Plan *plan, int argc, char **argv);

/* What `schedule` and `params` print, for the compiler to print too from a plan without kernels:
 * fresh memory; NULL for an unknown format or without memory.
 *   format   "table", "csv", "json", "svg", "trace" */
char *inf_schedule_text(const Plan *plan, const char *format);
char *inf_params_text(const Plan *plan);

/* `infinic tokenize`: the tokens of a text file into a file that tokens(..) reads.
 *   tokenizer   "bytes", or where one is (bpe.h)
 * Says what it did on stdout, or what is wrong on stderr; returns the exit code. */
int inf_tokenize(const char *text, const char *out, const char *tokenizer);

/* What generated kernels call. */
void inf_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
               const float *b, int64_t ldb, float *c, int64_t ldc, int accumulate);
/* Philox 4x32-10: four words for the counter (element / 4, stream, microbatch, iteration) and the
 * key (seed, step). */
void inf_random4(const InfEnv *env, uint32_t stream, uint32_t iteration, uint64_t block,
                 uint32_t out[4]);

#endif
