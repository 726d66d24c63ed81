/* fuse.h - what the parts of the fuse pass share.
 *
 *   fuse.c        classes of nodes, grouping, the pass
 *   fuse_chain.c  operands seen through inline nodes; shapes
 *   fuse_form.c   which sets of nodes are one kernel, and in which form
 *   fuse_target.c what a target's library can do after a product; who reads bf16 itself
 *   fuse_attention.c  movement that attention takes in
 *   fuse_rope.c   rotary positions that attention takes in
 *   fuse_early.c  backward nodes that can run with the forward
 *   fuse_copy.c   values that weight gradients compute again
 *   fuse_emit.c   groups into kernel nodes
 *
 * Every node of a graph has a class. INLINE nodes (const, iota, movement, casts from bf16 to f32)
 * cost nothing where they are read, so they have no kernel: each reader repeats them in its body.
 * All other nodes belong to exactly one group; a group becomes one kernel. An operand is therefore
 * a chain of inline nodes that ends at its root: a result of a grouped node, a graph input, or a
 * source without operand.
 */
#ifndef INFINIC_PASSES_FUSE_H
#define INFINIC_PASSES_FUSE_H

#include "passes/pass.h"

enum { FUSE_NODES_MAX = 64, FUSE_INPUTS_MAX = 24, FUSE_RESULTS_MAX = 12, FUSE_CHAIN_MAX = 16 };

typedef enum FuseClass {
    FUSE_inline,
    FUSE_member, /* elementwise, random; movement that must be in memory */
    FUSE_reduce,
    FUSE_anchor, /* at most one a kernel: matmul, conv, pool, gather, argmax */
    FUSE_repeat  /* not a kernel at all */
} FuseClass;

typedef struct FuseShape {
    int ndim;
    int64_t dim[NDIM_MAX];
} FuseShape;

typedef struct FuseGroup {
    int *node; /* indices of the graph's nodes, ascending */
    int n;
    Phase phase;
    bool dead; /* merged into another */
} FuseGroup;

typedef VEC(int) IntVec;

typedef struct Fuse {
    const Graph *g;
    Arena *scratch;
    FuseClass *class; /* by node */
    Phase *phase;     /* by node: when it runs (fuse_early.c may make it earlier) */
    int *group;       /* by node; -1 for inline nodes */
    int *inside;      /* by node: attention that takes in this rope or rounding of one; or -1 */
    FuseGroup *groups;
    bool *kept;    /* by value: a graph output, perhaps through reshapes */
    IntVec *users; /* by value: grouped nodes that read it, through inline nodes */
    int *stamp;    /* by group, for searches */
    int stamp_now;
} Fuse;

/* ---- chains: fuse_chain.c ---- */

typedef struct FuseChain {
    Val root; /* none: the last inline node is a source */
    int n;
    const Node *inlined[FUSE_CHAIN_MAX]; /* from the operand down to the root */
} FuseChain;

/* The chain of value v. Longer chains than FUSE_CHAIN_MAX do not exist: fuse.c stores a value in
 * the middle of them. */
FuseChain fuse_chain(const Fuse *f, Val v);

/* The chain is nothing but reshapes: the root's memory with another shape. */
bool fuse_chain_is_view(const FuseChain *c);

/* The chain changes no element's place in row-major order: a view, perhaps widened. */
bool fuse_chain_is_flat(const FuseChain *c);

/* A cast from bf16 to f32. */
bool fuse_is_widening(const Graph *g, const Node *n);

/* The chain is one value everywhere; true for constants under movement other than pad. */
bool fuse_chain_is_const(const FuseChain *c, double *value);

int fuse_node_index(const Fuse *f, Val v); /* -1 for a graph input */
FuseShape fuse_shape(const Fuse *f, Val v);
bool fuse_shape_equal(const FuseShape *a, const FuseShape *b);
int64_t fuse_shape_elems(const FuseShape *s);

/* Whether a row-major reshape only merges or splits neighbouring axes. */
bool fuse_reshape_is_simple(const FuseShape *from, const FuseShape *to);

/* ---- forms: fuse_form.c ---- */

typedef enum FuseFormKind {
    FORM_map,
    FORM_rows,    /* reductions over trailing axes; results of the domain's or the kept shape */
    FORM_columns, /* reductions over other axes, or over all; results of the kept shape only, on
                   * CUDA also of the domain's where the innermost axis is kept */
    FORM_anchor
} FuseFormKind;

typedef struct FuseForm {
    FuseFormKind kind;
    const char *name; /* the kernel's attribute */
    bool moves;       /* attention: nodes beside the anchor are movement, in shapes of their own */
    int main;         /* the anchor, the first reduction, or the last node */
    FuseShape domain;
    FuseShape kept; /* rows, columns: the domain without the reduced axes */
    int naxes;
    int64_t axes[NDIM_MAX];
} FuseForm;

/* Whether these nodes (ascending) can be one kernel; fills *form. */
bool fuse_form(const Fuse *f, const int *node, int n, FuseForm *form);

/* The shape in which node i of a kernel of this form computes: its own up to reshape. False when
 * it fits neither the domain nor the kept shape. */
bool fuse_form_shape(const Fuse *f, const FuseForm *form, int i, FuseShape *shape);

/* Whether an anchor reads operand i in bf16 itself where that is a widened value. */
bool fuse_target_widens(const Graph *g, const Node *n, int i);

/* The graph, where readers of bf16 itself have its widening to themselves: nobody else can make
 * them read f32 by storing it. */
const Graph *fuse_target_apart(const Graph *g, Arena *scratch);

/* Whether the target can make a kernel of these nodes, which are of this form (fuse_target.c). */
bool fuse_target_allows(const Fuse *f, const int *node, int n, const FuseForm *form);

/* ---- attention: fuse_attention.c ---- */

/* The graph, where gradients read attention's result in the layout that the model goes on with:
 * then no other needs to be stored. */
Graph *fuse_attention_results(const Graph *g, Arena *scratch);

/* Once nodes have classes: operands that cannot be read in place are stored. */
void fuse_attention_operands(Fuse *f);

/* Node n rounds a result of attention: that is how attention's kernel stores it, alone or fused. */
bool fuse_attention_rounds(const Graph *g, const Node *n);

/* Node n is attention with operands and results in bf16. */
bool fuse_attention_is_half(const Graph *g, const Node *n);

/* Whether attention and the other nodes are one kernel: these only say where its results go. */
bool fuse_attention_allows(const Fuse *f, const int *node, int n, int anchor);

/* Operand v is a view of something in memory whose rows are contiguous. */
bool fuse_attention_reads(const Fuse *f, Val v);

/* A cast from f32 to bf16. */
bool fuse_is_rounding(const Graph *g, const Node *n);

/* ---- rotary positions: fuse_rope.c ---- */

bool fuse_has_rope(const Graph *g); /* bodies of repeats apart */

/* Fills f->inside, once nodes have classes and users; false when some rope is in no kernel of
 * attention. */
bool fuse_rope_choose(Fuse *f);

/* The graph, where ropes that are in no kernel of attention are primitives. */
Graph *fuse_rope_decompose(const Fuse *f);

/* Node i makes the queries as attention's kernel turned them. */
bool fuse_rope_stores(const Fuse *f, int i);

/* ---- the rest ---- */

/* Lets backward nodes run in the forward phase where that keeps less in memory. */
void fuse_early(Fuse *f);

/* A graph in which weight gradients compute again what is cheaper than to store (fuse_copy.c). */
Graph *fuse_copies(const Graph *g, Arena *scratch);

/* The graph of kernels. `bodies` holds the rewritten body of each repeat, by node. */
Graph *fuse_emit(const Fuse *f, int ngroup, Graph *const *bodies);

#endif
