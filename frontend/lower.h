/* lower.h - checking a program and lowering it to IR, in one walk.
 *
 * A block is declared once per place in the tree (an Instance, whose members hold the parameters)
 * and its equations are evaluated once per call and program. Each program (train, eval) binds the
 * free dimensions and walks the equations anew over the same instances, so all programs share one
 * parameter table. `x N` evaluates its block once, in the body of a repeat node.
 *
 * Every mistake of the user ends here with a diagnostic; after one, its value is VALUE_none and
 * everything computed from it is silent.
 */
#ifndef FRONTEND_LOWER_H
#define FRONTEND_LOWER_H

#include "frontend/parser.h"
#include "frontend/settings.h"
#include "ir/module.h"

enum { REPEAT_MAX = 65536, CALL_DEPTH_MAX = 64, INSTANCES_MAX = 4096, CALLS_MAX = 50000 };

typedef struct Lower Lower;
typedef struct Instance Instance;
typedef struct Member Member;
typedef struct Space Space;

/* One parameter of a layer, or the one it is tied to. */
typedef struct MemberParam {
    const char *name; /* "weight" */
    int param;        /* index in the module; -1 after an error */
    bool tied;
    Span span;
} MemberParam;

struct LayerSpec;

/* A declared member: a layer with parameters, or an instance of a block. */
struct Member {
    const char *name;
    const char *path; /* "transformer.h" */
    const char *key;  /* the path with '*' for repeats: "transformer.h.*" */
    Scope scope;      /* of the key */
    Span span;
    const struct LayerSpec *layer; /* NULL: a block */
    Value *args;                   /* layer: by its signature */
    Instance *instance;            /* block; NULL after an error */
    int64_t count;                 /* of `x N`; 0: not repeated */
    Span count_span;
    uint32_t uses; /* calls, and ties to its parameters */
    bool broken;   /* its declaration was wrong */
    VEC(MemberParam) params;
};

/* Names of members: a block's body, or a `scope` in it. */
struct Space {
    const char *name; /* NULL: the body */
    const char *path, *key;
    Span span;
    Space *up;
    bool broken; /* its name was taken */
    VEC(Member *) members;
    VEC(Space *) spaces;
};

typedef struct Binding {
    const char *name;
    Value value;
    Span span;
    bool used;
} Binding;

struct Instance {
    const Ast *block;
    const char *path, *key; /* as Member's */
    Scope scope;
    Span declared; /* the member's declaration */
    Span repeated; /* innermost `x N` around; file 0 when none */
    Instance *up;
    Space *root;
    VEC(Binding) statics; /* static parameters of the block, bound by the declaration */
    int nstack;
    int64_t stack[STACK_MAX];
    int depth;      /* of instances around */
    bool evaluated; /* its equations were walked */
};

/* One evaluation of a block's equations. */
typedef struct Frame {
    struct Frame *up;
    Instance *instance;
    Space *space;
    VEC(Binding) env;
    bool declaring; /* the walk that only declares members */
    bool returned;
    VEC(Value) results;
} Frame;

/* Programs of section generate: what attention, positions and repeats need to know of them.
 * Every call of attention has two caches, of keys and of values. They are graph inputs, so a first
 * walk only counts them; the walks that follow find them in the same order. */
typedef struct Mixing {
    const char *what;
    Span span;
    bool inside; /* a repeat's body */
    Val result;
} Mixing;

typedef struct Caching {
    bool on;       /* such a program is being lowered */
    bool counting; /* the first walk */
    bool decode;   /* one token a call, after others */
    const DimDecl *length; /* tokens of a call */
    int64_t context;       /* tokens that a cache holds */
    Val position;          /* i32 [1] of the graph at hand: tokens before this call */
    Val seen;              /* decode: bool [context], the keys that are there */
    VEC(Type) types;       /* of the caches, stacked over the repeats around */
    Val *value;            /* by cache: in the graph at hand */
    int next;              /* cache of the next call */
    const Graph *top;      /* of the program */
    VEC(Mixing) mixing;    /* what may go wrong: caching_note_mix */
    VEC(int) repeats;      /* by call of a repeated member: how many caches it fills */
    int next_repeat, depth; /* depth: repeats around the body being built */
} Caching;

struct Lower {
    Arena *arena;
    Diag *diag;
    Sources *sources;
    Module *mod;
    const ModelText *program;
    Settings settings;
    const Ast *model;
    VEC(const Ast *) blocks;
    bool *block_used;
    SectionId section; /* whose free dimensions are bound: train, eval or generate */
    bool training;
    Caching caching;
    Builder b;
    Val *weight;  /* by parameter: its value in the graph being built; id 0: not there */
    Val valid;    /* f32 [B] of the graph at the outermost level, id 0 when there is none */
    Frame *frame; /* NULL: in a section */
    int depth;    /* of block calls */
    uint32_t instance_count, call_count;
};

/* --- lower.c: whole programs --- */

/* Check everything and lower train, eval and generate into l->mod. Diagnostics say what went
 * wrong. */
void lower_program(Lower *l, const char *const *overrides, int n);

/* Every free dimension has a value in the section that runs; false after errors. */
bool lower_check_binding(Lower *l);

/* A value for each data parameter of the model; with `port` they become inputs of the graph. False
 * after an error. */
bool lower_data_params(Lower *l, const Instance *root, bool port, Value *args, int *n);

/* All parameters become inputs of the graph. */
void lower_weight_inputs(Lower *l);

/* The name of result i of the model, a value v: the variable's, the metric's, or its place. */
const char *lower_result_name(Lower *l, const Value *v, uint32_t i);

/* --- lower_generate.c --- */

/* The programs of section generate: one a length of prompts, and the one that continues. */
void lower_generate(Lower *l, Instance *root);

/* --- caching.c: keys and values of earlier tokens --- */

/* What a repeat does with the caches that its body fills: [first, first + n). The outer graph's
 * values are kept here while the body is built. */
typedef struct CacheUse {
    int call, first, n; /* n is 0 in the counting walk */
    const Graph *outer;
    Val position, seen, *value;
    Val constant[2]; /* what the body takes in every iteration */
    int nconstant;
} CacheUse;

/* In this order: before the body; its constant input, its stacked inputs; its stacked results, when
 * it is done; after the repeat node was made. All do nothing in other programs. */
CacheUse caching_begin(Lower *l);
void caching_enter(Lower *l, CacheUse *use, Graph *body);
void caching_enter_slices(Lower *l, CacheUse *use, Graph *body);
void caching_leave(Lower *l, CacheUse *use, Graph *body);
void caching_end(Lower *l, const CacheUse *use, int64_t count, const Node *node);

/* i + tokens before this call: indices along the length of a call as positions in the text. */
Val caching_positions(Lower *l, Val index);

/* Of a program that takes one token, before its nodes: which keys are there. */
void caching_begin_decode(Lower *l);

/* Puts the keys and values of a call of attention (its three tensors) into its caches. False after
 * an error. */
bool caching_store(Lower *l, const Value qkv[3], bool causal, Span span);

/* Attention over the caches just stored to. */
Val caching_attend(Lower *l, const Value qkv[3], double scale, Span span);

/* Whether d is the tokens of a call, in a program of generate. */
bool caching_is_length(const Lower *l, Dim d);

/* Function `what` went along dimension d and made `result`: an error if that is the tokens of a
 * text and the logits depend on it. The loss, which is not computed, may do so. */
void caching_note_mix(Lower *l, Dim d, const char *what, Val result, Span span);

/* After the counting walk; false after an error. needed: by value of the graph, for the logits. */
bool caching_check_mix(Lower *l, const bool *needed);

/* --- lint.c --- */

/* Warnings about what is declared and never mentioned. */
void lint_program(Lower *l);

/* --- lower_error.c --- */

/* An error with the chain of instantiation. */
DiagRef lower_error(Lower *l, DiagCode code, Span span, const char *fmt, ...) ARENA_PRINTF(4, 5);

/* --- lower_expr.c --- */
Value expr_eval(Lower *l, const Ast *e);

/* True when an expression only reads statics, so that it may be evaluated while declaring. */
bool expr_is_static(const Lower *l, const Ast *e);

/* --- operators.c --- */
Value operate(Lower *l, AstOp op, const Value *x, const Value *y, Span span);
Value operate_unary(Lower *l, AstOp op, const Value *x, Span span);

/* Bring two tensors (or a tensor and a static number) to one shape and dtype. False after an
 * error. *dims and *ndim describe the common shape. */
bool broadcast_pair(Lower *l, Value *x, Value *y, const char *what, Span span);

/* --- lower_call.c: arguments --- */

/* Bind arguments to a signature: out[i] is VALUE_none where an optional one is absent. `piped` is
 * put first when not NULL. False after an error. */
bool bind_args(Lower *l, const Signature *s, const Ast *args, const Value *piped, Span span,
               Value *out);

/* Evaluate an expression where the argument `spec` is wanted; VALUE_none after an error. */
Value eval_arg(Lower *l, const ArgSpec *spec, const Ast *e);

/* Convert a value; `what` names it in the message. */
bool convert_arg(Lower *l, const ArgSpec *spec, Value *v, Span span);

/* Call whatever `callee` names with args (may be NULL) and a piped value (may be NULL). */
Value call_apply(Lower *l, const Ast *callee, const Ast *args, const Value *piped, Span span);

/* --- lower_block.c: equations --- */

/* Evaluate an instance's equations on values of its tensor parameters. */
Value instance_call(Lower *l, Instance *inst, const Value *args, int n, Span span);

/* Walk a body: declaring members, or evaluating equations, as the frame says. */
void walk_body(Lower *l, const Ast *body);

/* --- lower_declare.c: members --- */

/* Declare an instance of a block and all members below it; m is NULL for the model. NULL after an
 * error. */
Instance *instance_new(Lower *l, const Ast *block, const Member *m, const Ast *args, Instance *up);
void declare_member(Lower *l, const Ast *stmt);
Space *declare_space(Lower *l, const Ast *stmt);

/* E011 for members that no equation calls. */
void report_unused_members(Lower *l, const Instance *inst);

/* --- lower_repeat.c --- */

/* Call a member on evaluated arguments, repeats included. */
Value member_call(Lower *l, Member *m, const Value *args, int n, Span span);

Space *space_find(const Space *s, const char *name);
Member *member_find(const Space *s, const char *name);

/* The member or space that a dotted path names from the frame at hand. */
Member *path_member(Lower *l, const Ast *path, Space **space);

/* --- lower_type.c: types of parameters and results --- */
typedef struct TypeWant {
    Dtype dtype;
    int ndim;
    Dim dims[NDIM_MAX];
} TypeWant;

/* Evaluate a written type in the frame at hand; false after an error. */
bool eval_type(Lower *l, const Ast *type, TypeWant *want);

/* Check a value against it; `what` begins the message: "'attn' expects x:". */
bool check_type(Lower *l, const TypeWant *want, const Value *v, const char *what, Span span);

const Ast *block_find(const Lower *l, const char *name);

/* --- names --- */
const DimDecl *dim_find(const Lower *l, const char *name);
const Value *config_find(const Lower *l, const char *name);

/* The value of a dim in the program at hand; false (without message) for a free one in a place
 * where no program runs. */
bool dim_value(const Lower *l, const DimDecl *d, Dim *dim);

/* --- layers.c, functions.c: the two tables --- */
typedef struct LayerSpec {
    const char *name;
    const char *signature;
    void (*declare)(Lower *l, Member *m, Instance *inst);
    Value (*apply)(Lower *l, const Member *m, const Value *x, Span span);
} LayerSpec;

typedef struct Call {
    const struct FunctionSpec *fn;
    Value *arg; /* by the signature */
    Span span;
} Call;

typedef struct FunctionSpec {
    const char *name;
    const char *signature;
    Value (*apply)(Lower *l, const Call *c);
    int op;         /* for families: the IR op */
    bool is_static; /* gives a static value for static arguments */
} FunctionSpec;

const LayerSpec *layer_find(const char *name);
const LayerSpec *layer_at(int index);
const FunctionSpec *function_find(const char *name);
const FunctionSpec *function_at(int index);

/* --- build.c: helpers of layers and functions --- */
Type value_ir_type(const Lower *l, const Value *v);

/* A tensor value; dims are copied. */
Value tensor_new(Lower *l, Dtype dtype, int ndim, const Dim *dims, Val val, Span span);
/* The same with the dims of `like`, keeping its trail. */
Value tensor_like(const Value *like, Dtype dtype, Val val, Span span);

/* Check that a shape is representable (rank, overflow); E026 if not. */
bool shape_fits(Lower *l, Dtype dtype, int ndim, const Dim *dims, Span span);

bool want_float(Lower *l, const Value *v, const char *what, Span span);
bool want_ndim(Lower *l, const Value *v, int least, int most, const char *what, Span span);

Val reshape_to(Lower *l, Val x, int ndim, const Dim *dims);
Val broadcast_to(Lower *l, const Value *x, Dtype dtype, int ndim, const Dim *dims);
Val const_like(Lower *l, double value, const Value *like);

/* An axis argument, negative counts from the end; -1 after an error. */
int axis_of(Lower *l, const Value *axis, int ndim, Span span);
/* The axes that an `ints` argument names, ascending; all when absent. -1 after an error. */
int axes_of(Lower *l, const Value *axes, int ndim, int64_t *out, Span span);

/* Materialise: drop the mean, keep the tensor. */
Value value_plain(const Value *v);

#endif
