/* module.h - one compiled model: parameters, settings and graphs.
 *
 * Graphs: "train" (forward; autodiff adds the backward), "eval" (forward, eval's binding),
 * "prefill.N" (the first N tokens of a text) and "decode" (one more) and, made by passes,
 * "train.add" (the same with gradients added, for later microbatches) and "update". All share one
 * parameter table.
 *
 * Parameter space: every parameter block has an offset in one flat f32 vector; blocks start at
 * multiples of PARAM_ALIGN elements, and so do the slices of a stack that lie apart. The vector is
 * cut into segments: blocks with weight decay first, then those without (Segment).
 * Gradients use the same offsets; second and later uses of a tied parameter have buffers of their
 * own behind the vector. With zero = 1, weights that graphs read as their copy in bf16 alone are in
 * segments of their own, behind the others: in f32 each replica has those that it owns, as one more
 * vector behind its states, and the region of f32 weights ends before them.
 */
#ifndef INFINIC_IR_MODULE_H
#define INFINIC_IR_MODULE_H

#include "ir/diag.h"
#include "ir/graph.h"

/* Scalars that the host computes each step; codegen asserts that runtime/plan.h agrees. */
typedef enum ScalarIndex {
    SCALAR_lr,    /* after the schedule */
    SCALAR_bias1, /* 1 - beta1^t */
    SCALAR_bias2, /* 1 - beta2^t */
    SCALAR_decay, /* weight decay */
    SCALAR_clip,  /* largest norm; +inf when off */
    SCALAR_COUNT
} ScalarIndex;

/* What the program is compiled for: C for this CPU, or CUDA. Passes ask where targets differ. */
typedef enum Target { TARGET_c, TARGET_cuda } Target;

enum { PARAM_ALIGN = 128, STACK_MAX = REPEAT_DEPTH_MAX, SEGMENT_MAX = 4, CHUNKS_MAX = 4096 };

typedef enum InitKind {
    INIT_zeros,
    INIT_ones,
    INIT_normal, /* a = std */
    INIT_uniform /* a = bound: U(-a, a); kaiming and xavier are lowered to it */
} InitKind;

/* A parameter block: one tensor, or one per repetition stacked along leading axes. */
typedef struct Param {
    const char *name;          /* "transformer.h.*.attn.c_attn.weight": one '*' a stack axis */
    Type type;                 /* stored, with stack axes and padding: f32 [12, 768, 2304] */
    int nstack;                /* leading stack axes in `type` */
    int64_t logical[NDIM_MAX]; /* shape of one tensor without stack axes and padding */
    InitKind init;
    double init_a;
    bool transposed; /* stored [in, out] (Conv1D): for messages about orientation */
    bool trainable;
    bool decay;     /* weight decay applies (decay_if) */
    int uses;       /* gradient contributions; >= 1 after alias */
    int64_t first;  /* slice of a stack: its first index along stack axis 0, else 0 */
    int origin;     /* index before partition: equal for slices and for copies on other ranks */
    int64_t tensor; /* number of its first logical tensor among those of the whole model */
    bool counted_elsewhere; /* a copy: another rank counts its gradient in the norm */
    Span span;              /* the member's declaration */
    Scope scope;
    int segment;              /* set by optim */
    int64_t offset_elems;     /* in the flat vector; set by optim */
    int64_t stride_elems;     /* of a stack, from slice to slice of axis 0; 0: dense; by optim */
    int64_t use_offset_elems; /* grads of uses 1.. lie here, param_use_stride apart; by optim */
} Param;

/* Another name of a parameter (a tied member): listed with --aliases, stored once. */
typedef struct ParamAlias {
    const char *name;
    int param;
} ParamAlias;

typedef enum OptimizerKind { OPTIM_sgd, OPTIM_adam, OPTIM_adamw } OptimizerKind;
typedef enum ScheduleKind {
    SCHED_constant,
    SCHED_linear,
    SCHED_cosine,
    SCHED_inverse_sqrt,
    SCHED_wsd
} ScheduleKind;

typedef struct Optimizer {
    OptimizerKind kind;
    double lr, momentum, beta1, beta2, eps, decay;
    bool nesterov;
} Optimizer;

typedef struct LrSchedule {
    ScheduleKind kind;
    int64_t warmup;     /* steps */
    double floor;       /* fraction of lr */
    double decay_share; /* wsd: share of the steps spent decaying */
} LrSchedule;

typedef enum DataKind { DATA_none, DATA_mnist, DATA_tokens } DataKind;

typedef struct DataSource {
    DataKind kind;
    const char *path;
    const char *split; /* "train", "test"; NULL for token files */
} DataSource;

typedef struct TrainSettings {
    DataSource data;
    int64_t batch;         /* B: samples a microbatch */
    int64_t microbatches;  /* per step and replica */
    int64_t chunk_loss;    /* chunks of rows of the head and its loss; less than 2: whole */
    int64_t steps, epochs; /* -1: not given */
    int64_t seed;
    double clip; /* 0: off */
    Dtype dtype;
    bool tf32;      /* factors of products and convolutions may be rounded (CUDA) */
    bool recompute; /* the backward pass runs each layer's forward again */
    Optimizer optimizer;
    LrSchedule schedule;
} TrainSettings;

typedef struct EvalSettings {
    DataSource data;
    int64_t batch;
    int64_t every; /* steps; 0: every epoch */
    bool present;
} EvalSettings;

/* Defaults of the run-time settings of generate, and what is fixed. */
typedef struct GenerateSettings {
    bool present;
    int64_t batch;         /* texts at a time */
    int64_t context;       /* tokens that the caches hold */
    const char *tokenizer; /* folder, "bytes", or NULL */
    double temperature;    /* 0: greedy */
    int64_t top_k;         /* 0: all */
    int64_t length;        /* tokens to make; -1: not given */
} GenerateSettings;

typedef struct ParallelSettings {
    int64_t dp, tp, pp, vpp, bucket_bytes, zero;
    const char *pipeline;      /* "1f1b", "gpipe", ... */
    int64_t group;             /* interleaved: microbatches of a chunk in a row; 0: chosen */
    const char *schedule_file; /* a table to import; its text and the place of the setting */
    const char *schedule_text;
    size_t schedule_bytes;
    Span schedule_span;
    bool together;        /* by the memory plan: weight gradients of layers in the input tasks */
    bool loopback;        /* chunks of one rank talk by messages, too */
    bool bucketed;        /* laid out as for replicas although there is one: for tests */
    bool any_order;       /* backwards of an imported table need not ascend */
    bool ordered;         /* microbatches are added as leaves of one tree over all replicas */
    const int64_t *split; /* layers of each chunk by hand; nsplit 0: balanced */
    int nsplit;
    Span split_span;
} ParallelSettings;

/* A setting that is part of the code: the executable explains how to rebuild when it is passed. */
typedef struct BuildSetting {
    const char *key;   /* "train.B" */
    const char *value; /* "64" */
} BuildSetting;

typedef struct Segment {
    int64_t offset_elems, elems;
    bool decay;
    bool owned; /* zero = 1: f32 weights are with their owners only, all have the copy in bf16 */
} Segment;

/* Gradients that replicas add up together: a range of the region of gradients, whole blocks of
 * PARAM_ALIGN elements for each replica, of one chunk of this rank and one segment. */
typedef struct Bucket {
    int local;
    int64_t offset_elems, elems;
} Bucket;

/* When a bucket is complete: in its chunk's last task that writes gradients, behind a node of the
 * graph (-1: from the beginning on), or of a repeat's body in one iteration, the `turn`th that
 * runs. */
typedef struct BucketReady {
    int bucket; /* its number */
    int node;
    int64_t turn;
    int inner;         /* -1: behind the whole node */
    int64_t iteration; /* -1: in no repeat */
    double done;       /* which share of the task's cost lies before that */
} BucketReady;

/* zero = 1: a part of the flat vectors whose weights go to all replicas behind the update. */
typedef struct PartGather {
    int part;  /* its number */
    int local; /* the chunk of this rank that reads them first; -1: none does */
} PartGather;

/* What of the flat vectors the update works on at once: a segment; with zero = 1 what one replica
 * owns of a bucket, or of a tied weight whose first use another rank computes: replica r has
 * elements [r * elems, (r + 1) * elems) from offset_elems on, and of each state vector `elems` from
 * state_elems on; of an owned segment, the f32 weights from master_elems on in their vector. */
typedef struct FlatPart {
    int64_t offset_elems, elems, state_elems, master_elems;
    bool decay, owned;
    int tied; /* the parameter whose later uses count, too; -1: none, or uses are added apart */
} FlatPart;

/* Where the tasks of one chunk of this rank find what is theirs: microbatch in slot s has its
 * activations at slot_begin + s * slot_bytes of REGION_slot, and so on. By place. */
typedef struct PlaceChunk {
    int slots;
    int64_t slot_begin, slot_bytes;
    int64_t data_begin, data_bytes;
    /* Windows in REGION_message, in the order of ir/table.h: of all slots, of one; what of it a
     * microbatch of train and one of eval fill. */
    int64_t window_begin[4], window_bytes[4], train_bytes[4], eval_bytes[4];
} PlaceChunk;

struct Module {
    Arena *arena;
    TypeTable *types;
    Sources *sources;
    Diag *diag;
    const char *name; /* of the model */
    const char *file; /* base name of model.it */
    Target target;    /* set by the driver before the passes */
    Param *param;
    int nparam, cap_param;
    ParamAlias *alias;
    int nalias, cap_alias;
    Graph **graph;
    int ngraph, cap_graph;
    const char **scope; /* interned paths, [0] = "" */
    int nscope, cap_scope;
    TrainSettings train;
    EvalSettings eval;
    GenerateSettings generate;
    ParallelSettings parallel;
    const char *checkpoint_prefix; /* may be NULL */
    const char *checkpoint_skip;   /* patterns, a blank between two; may be NULL */
    BuildSetting *build;
    int nbuild, cap_build;
    Segment segment[SEGMENT_MAX];
    int nsegment;
    Bucket *bucket; /* set by optim where the layout has them */
    int nbucket, cap_bucket;
    BucketReady *ready; /* of each bucket, as they are complete: set by sums */
    PartGather *gather; /* in the order in which they go: set by sums */
    int ngather;
    int64_t flat_elems;                 /* length of the parameter vector */
    int64_t grad_elems;                 /* flat_elems plus the buffers of later uses */
    int64_t region_bytes[REGION_count]; /* set by place */
    int64_t plan_bytes;                 /* that a run needs, at most: set by place */
    PlaceChunk *place;                  /* by chunk of this rank, set by place */
    int nstate;                         /* optimizer state vectors: set by optim */
    int rank, nrank;                    /* of a pipeline: this is what one of its ranks runs */
    int64_t ntensor;                    /* logical tensors of the whole model, 0: not counted */
    int64_t nmetric;                    /* of the whole model's graphs; 0: of these */
    int nchunk;                         /* of this rank */
    int *chunk;  /* their numbers in the whole pipeline; NULL: there is no pipeline */
    int nstream; /* random streams handed out so far */
};

Module *module_new(Arena *arena, Sources *sources, Diag *diag);
Scope module_scope(Module *m, const char *path); /* interns */
const char *scope_path(const Module *m, Scope s);
int module_add_param(Module *m, Param param); /* returns its index */
void module_add_alias(Module *m, const char *name, int param);
void module_add_build(Module *m, const char *key, const char *value);
Graph *module_add_graph(Module *m, Graph *g);
void module_set_graph(Module *m, const char *name, Graph *g); /* replaces the graph of that name */
Graph *module_graph(const Module *m, const char *name);       /* NULL when absent */
/* The part of a graph that a chunk of this rank runs: the graph itself when there is one chunk,
 * else "<name>.<chunk>". */
/* Logical tensors of a parameter block, and numbers for those of all blocks. */
int64_t param_tensors(const Module *m, const Param *p);
void module_number_tensors(Module *m);
int64_t module_metrics(const Module *m); /* of the whole model */
/* Whether the layout is one that replicas share work on: aligned pieces, buckets, and a norm that
 * no layout changes (passes/layout.h). */
bool module_is_bucketed(const Module *m);
/* Whether the plan says what is added up when: over replicas, or in a tree of microbatches. */
bool module_has_buckets(const Module *m);
Bucket *module_add_bucket(Module *m, Bucket bucket);
/* Whether replicas share the optimizer's work and state: zero = 1. */
bool module_is_sharded(const Module *m);
bool module_flat_part(const Module *m, int index, FlatPart *out);    /* false: there are fewer */
bool module_flat_segment(const Module *m, int index, FlatPart *out); /* whole ones */
int64_t module_state_elems(const Module *m);                         /* of one state vector */
/* Of the f32 weights: that every replica has; that one owns, behind its states. */
int64_t module_whole_elems(const Module *m);
int64_t module_master_elems(const Module *m);
bool param_is_owned(const Module *m, const Param *p);
/* Pieces of a block that may lie apart: slices along its first stack axis; elements of one. */
int64_t param_slices(const Module *m, const Param *p);
int64_t param_slice_elems(const Module *m, const Param *p);
/* From slice to slice, and from the first element to the last one. */
int64_t param_slice_stride(const Module *m, const Param *p);
int64_t param_extent(const Module *m, const Param *p);
/* Where the gradient of a use lies in the region of gradients; elements between two later uses. */
int64_t param_use_stride(const Module *m, const Param *p);
int64_t param_grad_offset(const Module *m, const Param *p, int use);
const char *module_chunk_name(Module *m, const char *name, int chunk);
Graph *module_chunk_graph(Module *m, const char *name, int chunk);

#endif
