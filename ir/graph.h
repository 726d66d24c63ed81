/* graph.h - tensor SSA graphs.
 *
 * A Graph is a list of nodes in program order; every operand is a graph input or a result of an
 * earlier node. Values and nodes are ids into the graph; id 0 is "none". Nothing is removed in
 * place: a pass builds a new graph from the old one (graph_copy_node and a ValMap), so ids stay
 * small and order is explicit. All memory is in the module's arena.
 *
 * Graph inputs and outputs have a Port that says what they are bound to. Regions (repeat, kernel)
 * own a body graph whose ports have ROLE_none.
 */
#ifndef INFINIC_IR_GRAPH_H
#define INFINIC_IR_GRAPH_H

#include "ir/source.h"
#include "ir/type.h"

typedef enum Op {
    OP_none,
#define EW(name, ...) OP_##name,
#define RED(name, ...) OP_##name,
#define OP(name, ...) OP_##name,
#include "ir/ops.def"
    OP_count
} Op;

typedef enum OpKind {
    KIND_elementwise,
    KIND_reduce,
    KIND_source,
    KIND_random,
    KIND_movement,
    KIND_matmul,
    KIND_attention,
    KIND_conv,
    KIND_pool,
    KIND_gather,
    KIND_scatter,
    KIND_composite,
    KIND_region
} OpKind;

typedef enum AttrKey {
    ATTR_none,
#define ATTR(name, kind) ATTR_##name,
#include "ir/attrs.def"
#undef ATTR
    ATTR_count_
} AttrKey;

typedef enum AttrKind { ATTRKIND_int, ATTRKIND_float, ATTRKIND_ints, ATTRKIND_str } AttrKind;

typedef struct Attr {
    AttrKey key;
    int n;            /* ints: how many */
    int64_t i;        /* int */
    double f;         /* float */
    const int64_t *v; /* ints */
    const char *s;    /* str */
} Attr;

#define ATTR_INT(k, x) ((Attr){.key = ATTR_##k, .i = (x)})
#define ATTR_FLOAT(k, x) ((Attr){.key = ATTR_##k, .f = (x)})
#define ATTR_INTS(k, count, x) ((Attr){.key = ATTR_##k, .n = (count), .v = (x)})
#define ATTR_STR(k, x) ((Attr){.key = ATTR_##k, .s = (x)})

typedef struct {
    uint32_t id;
} Val;

/* Scope path, interned in the module: "transformer.h.*.attn" ('*' for the index of a repeat). */
typedef struct {
    uint32_t id;
} Scope;

/* Which part of a step a node belongs to. F forward; I needed for the chunk's input gradient;
 * W only for weight gradients; U the update. Kernels take the least of their nodes' phases. */
typedef enum Phase { PHASE_F, PHASE_I, PHASE_W, PHASE_U } Phase;

typedef enum Role {
    ROLE_none,
    ROLE_data,         /* input: batch tensor `name`, index = its place in model's signature */
    ROLE_valid,        /* input f32 [B]: 1 for real samples, 0 for the padding of the last batch */
    ROLE_weight,       /* input: parameter `index`, its use number `use` */
    ROLE_weight_copy,  /* input bf16: the rounded copy of parameter `index` for use `use` */
    ROLE_grad,         /* output: gradient of parameter `index`, use `use`; input: what it was */
    ROLE_loss_sum,     /* f32 []: loss summed over counted targets; input: what it was so far */
    ROLE_loss_count,   /* f32 []: how many were counted */
    ROLE_metric_sum,   /* f32 []: like the loss, for metric `index` (named) */
    ROLE_metric_count,
    ROLE_output,       /* named output of the model (logits) */
    /* update graph: flat f32 vectors over segment `index` of the parameter space (module.h) */
    ROLE_flat_weight,  /* use 1: the whole segment, where the vectors are shared in parts */
    ROLE_flat_grad,
    ROLE_flat_state,   /* `use` = which state: 0 momentum or first moment, 1 second moment */
    ROLE_flat_copy,    /* output bf16: the rounded copy of segment `index`; use as of the weight */
    ROLE_blocks,       /* f32: squares summed by block; use 0: segment `index`, 1: a part of it */
    ROLE_scalar,       /* input f32 []: host scalar `index` (ScalarIndex in module.h) */
    ROLE_squares,      /* f32 [n]: sums of squares of the gradients of logical tensors `index` .. */
    ROLE_grad_norm,    /* output f32 [] */
    ROLE_update_ok,    /* output f32 []: 1 applied, 0 not (non-finite loss or norm) */
    /* pipelines: value `index` at a cut; use = 1: a gradient comes back for it */
    ROLE_recv,         /* input: from the chunk before */
    ROLE_send,         /* output: to the chunk after */
    ROLE_recv_grad,    /* input: gradient of what was sent */
    ROLE_send_grad,    /* output: gradient of what was received */
    /* generation */
    ROLE_cache,        /* keys or values, number `index`; output: with those of this call */
    ROLE_position,     /* input i32 [1]: tokens in the caches before this call */
    ROLE_last,         /* input i32 [1]: the token of this call whose logits are wanted */
    ROLE_count
} Role;

typedef struct Port {
    Role role;
    int32_t index;
    int32_t use;
    const char *name; /* data, metric and output names; else NULL */
} Port;

/* Where place put a value. REGION_none: not placed (or inside a kernel body). A value inside a
 * repeat body that stands for slice i of an outer value has stride_bytes[] per enclosing repeat,
 * innermost last. */
typedef enum RegionId {
    REGION_none,
    REGION_param,   /* flat f32 weights, those that every replica has */
    REGION_grad,    /* flat gradient accumulators */
    REGION_state,   /* optimizer state, then the f32 weights that this replica alone has */
    REGION_copy,    /* bf16 copy of the flat weights, element for element */
    REGION_scalar,  /* host scalars, loss, counts, metrics, norm */
    REGION_data,    /* staged batch */
    REGION_slot,    /* activations that live from forward to backward, a slot each microbatch in
                     * flight */
    REGION_scratch, /* everything else */
    REGION_cache,   /* keys and values of the tokens so far */
    REGION_message, /* what chunks of a pipeline hand to each other */
    REGION_sum,     /* gradients of other replicas on their way into sums */
    REGION_recv,    /* windows of it, those of the task at hand, in the order of ir/table.h */
    REGION_send,
    REGION_recv_grad,
    REGION_send_grad,
    REGION_count
} RegionId;

enum { REPEAT_DEPTH_MAX = 4, REPEAT_COUNT_MAX = 65536 };

typedef struct Addr {
    RegionId region;
    int64_t offset_bytes;
    int64_t stride_bytes[REPEAT_DEPTH_MAX]; /* [0] outermost repeat */
    int64_t pitch_bytes; /* of a stack whose slices of axis 0 lie apart: from one to the next */
    int64_t shard_bytes; /* from one replica's to the next one's; 0: the same place on all */
} Addr;

typedef struct Graph Graph;
typedef struct Module Module;

typedef struct Node {
    Op op;
    Phase phase;
    Span span;
    Scope scope;
    int nin, nout, nattr;
    Val *in;
    Val out;    /* first result; results have consecutive ids */
    Attr *attr;
    Graph *body; /* repeat, kernel; else NULL */
} Node;

typedef struct ValInfo {
    Type type;
    uint32_t node;   /* index into nodes + 1; 0 for a graph input */
    uint32_t result; /* which result, or which input */
    Addr addr;
} ValInfo;

struct Graph {
    Module *mod;
    const char *name;
    int nin, nout, nnode;
    Val *in; /* ids 1..nin */
    Port *in_port;
    Val *out;
    Port *out_port;
    Node **node; /* program order */
    ValInfo *val; /* by id; [0] unused */
    uint32_t nval;
    int cap_in, cap_out, cap_node;
    uint32_t cap_val;
};

/* --- op table --- */
const char *op_name(Op op);
Op op_from_name(const char *name, size_t len); /* OP_none when unknown */
OpKind op_kind(Op op);
int op_operands(Op op);                        /* -1: any number */
int op_results(Op op);                         /* -1: decided by the body */
const char *op_attrs(Op op);                   /* "axis keep?" in print order */
const char *op_expr(Op op);                    /* scalar expression text, NULL when none */
const char *op_reduce_first(Op op);            /* start value text of a reduction, NULL when none */
const char *attr_name(AttrKey key);
AttrKind attr_kind(AttrKey key);
AttrKey attr_from_name(const char *name, size_t len); /* ATTR_none when unknown */
/* Walks the text of op_attrs: the next attribute, ATTR_none at the end. */
AttrKey op_attr_next(const char **list, bool *optional);

/* --- building --- */
Graph *graph_new(Module *mod, const char *name);
/* Inputs come before any node. */
Val graph_add_input(Graph *g, Type type, Port port);
void graph_add_output(Graph *g, Val v, Port port);

/* What graph_add copies into every node it makes. */
typedef struct Builder {
    Graph *g;
    Phase phase;
    Span span;
    Scope scope;
} Builder;

/* Adds one node; result types by the op's shape rule, or `given` where the rule says so.
 * Operands and attributes are copied. A rule that fails is an internal error here: callers with
 * user input ask shape_check (shape.h) first. Returns the node; its first result is node->out. */
Node *graph_add(Builder *b, Op op, int nin, const Val *in, int nattr, const Attr *attr,
                Type given);
/* A region node: result types come from body and attributes. */
Node *graph_add_region(Builder *b, Op op, int nin, const Val *in, int nattr, const Attr *attr,
                       Graph *body);

/* Shorthands over graph_add, first result. */
Val build_op(Builder *b, Op op, int nin, const Val *in);
Val build1(Builder *b, Op op, Val x);
Val build2(Builder *b, Op op, Val x, Val y);
Val build3(Builder *b, Op op, Val x, Val y, Val z);
Val build_const(Builder *b, double value, Type type);
Val build_scalar_like(Builder *b, double value, Val like); /* const of `like`'s type */
Val build_cast(Builder *b, Val x, Dtype dtype);
Val build_reshape(Builder *b, Val x, int ndim, const int64_t *dim);
Val build_transpose(Builder *b, Val x, const int64_t *perm);
Val build_broadcast(Builder *b, Val x, Type to, const int64_t *axes); /* as attribute `axes` */
Val build_broadcast_suffix(Builder *b, Val x, Type to); /* x's axes are the last ones */
Val build_reduce(Builder *b, Op op, Val x, int naxes, const int64_t *axes);
Val build_slice(Builder *b, Val x, const int64_t *begin, const int64_t *end, const int64_t *step);
Val build_matmul(Builder *b, Val x, Val y, bool ta, bool tb);

/* --- reading --- */
Type val_type(const Graph *g, Val v);
const TypeInfo *val_info(const Graph *g, Val v);
Node *val_node(const Graph *g, Val v); /* NULL for a graph input */
Val val_shown(const Graph *g, Val v);  /* what reshapes show */
const Attr *node_attr(const Node *n, AttrKey key); /* NULL when absent */
int64_t node_int(const Node *n, AttrKey key, int64_t fallback);
double node_float(const Node *n, AttrKey key, double fallback);
static inline Val node_out(const Node *n, int i) { return (Val){n->out.id + (uint32_t)i}; }

/* How often each value is used (by nodes and graph outputs), indexed by id; in `arena`. */
uint32_t *graph_count_uses(const Graph *g, Arena *arena);

/* --- rebuilding --- */
typedef struct ValMap {
    Val *to; /* by old id; id 0 when not mapped */
    uint32_t n;
} ValMap;

ValMap valmap_new(Arena *arena, const Graph *from);
/* Copies node n of `from` into `to`, operands through `map` (all must be mapped); keeps phase,
 * span, scope, attributes, result types, addresses; the body is shared unless `body` is given.
 * Maps results. */
Node *graph_copy_node(Graph *to, const Graph *from, const Node *n, ValMap *map, Graph *body);
/* Copies all inputs with their ports, mapping them. */
void graph_copy_inputs(Graph *to, const Graph *from, ValMap *map);
void graph_copy_outputs(Graph *to, const Graph *from, const ValMap *map);
Graph *graph_clone(const Graph *g, const char *name); /* deep: bodies too */
Graph *graph_clone_into(Module *m, const Graph *g, const char *name); /* of another module */

#endif
