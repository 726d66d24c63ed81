/* grad.h - the parts of autodiff: what flows, the rules, the joint graph, repeats.
 *
 * A joint graph is a forward graph with its backward nodes behind it. "train" becomes one; a
 * repeat's body becomes one for a moment and is then cut into the body of the forward repeat, which
 * also returns what must be saved, and the body of the backward repeat (repeat_grad.c).
 */
#ifndef INFINIC_PASSES_GRAD_H
#define INFINIC_PASSES_GRAD_H

#include "passes/pass.h"

/* ---- flow: grad_flow.c ---- */

/* What is known of a value: it depends differentiably on a weight, it depends on data, the loss
 * depends on it differentiably. Gradients are built for values with WEIGHT and LOSS. */
enum { FLOW_WEIGHT = 1, FLOW_DATA = 2, FLOW_LOSS = 4 };

typedef struct Flow {
    uint8_t *bits;      /* by value id */
    struct Flow **body; /* by node index; NULL but for repeats */
} Flow;

/* The flow of a top-level graph: weights, data and loss by the roles of its ports. */
Flow *flow_of_graph(const Graph *g, Arena *scratch);
bool flow_active(const Flow *f, Val v);
bool flow_node_active(const Flow *f, const Node *n);

/* ---- rules: gradients_*.c ---- */

typedef struct RepeatPlan RepeatPlan;

/* One application of a rule. */
typedef struct Grad {
    Builder b;              /* adds backward nodes, with the place of n */
    const Node *n;          /* the forward node, in b.g */
    const Val *dout;        /* gradient of each result; id 0: none arrived. At least one did. */
    const bool *need;       /* by operand: whether its gradient is wanted */
    Val *din;               /* by operand: the rule's answer; id 0: none */
    const RepeatPlan *plan; /* of a repeat */
} Grad;

typedef void GradRule(Grad *c);

#define EW(name, operands, shape, grad, expr)                 GradRule grad_##grad;
#define RED(name, shape, grad, first, expr)                   GradRule grad_##grad;
#define OP(name, operands, results, kind, shape, grad, attrs) GradRule grad_##grad;
#include "ir/ops.def"

/* The rule of an op: grad_zero where nothing flows, grad_missing where E021 is due. */
GradRule *grad_rule(Op op);

/* ---- joint graphs: grad_joint.c ---- */

/* Slices of one value that cover it without overlap, by position along an axis. */
typedef struct Split {
    int axis, n;
    const Node **part;
    const Node *first; /* the one that comes first in the graph */
} Split;

typedef struct Joint {
    const Graph *from; /* the forward graph */
    const Flow *flow;  /* of `from` */
    Graph *to;
    ValMap map;           /* forward values, from -> to */
    Val *grad;            /* by value of `from`: its gradient so far, in `to` */
    RepeatPlan **plan;    /* by node of `from` */
    Split **split;        /* by node of `from`: what it is a part of, NULL for most */
    int nforward;         /* nodes of `to` before this one are the forward pass */
    VEC(Val) inputs_need; /* gradients of values that depend on data: phase I */
    Arena *scratch;
} Joint;

/* A joint graph with the inputs of `from`; more inputs may be added before joint_forward. */
Joint joint_new(const Graph *from, const Flow *flow, Arena *scratch);
void joint_forward(Joint *j);
/* Adds to the gradient of a value of `from`; nothing when none is wanted. */
void joint_add_grad(Joint *j, Builder *b, Val from, Val grad);
void joint_backward(Joint *j);
/* The gradient of a value of `from`, zeros when nothing arrived. */
Val joint_grad(Joint *j, Builder *b, Val from);
/* Tags the backward nodes I or W. Call once, when everything is built. */
void joint_phases(Joint *j);

/* ---- repeats: repeat_grad.c ---- */

/* Differentiates the body of repeat n; `flow` is the body's. */
RepeatPlan *repeat_plan(const Node *n, const Flow *flow, Arena *scratch);
/* Adds the forward repeat that saves what the backward one needs. Results beyond those of `n`
 * are the saved values. */
Node *repeat_add_forward(Builder *b, const RepeatPlan *plan, const Node *n, const Val *in);

/* v as it can be stacked: a value of the highest rank as a flat one. */
Val repeat_stackable(Builder *b, Val v);

#endif
