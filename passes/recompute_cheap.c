/* recompute_cheap.c - which saved values of a layer its backward pass makes again for nothing.
 *
 * A value is a candidate when elementwise operations make it from values that are saved anyway or
 * from what the layer reads. It is made again
 *   - when only elementwise work and reductions read it: they compute it where they read it, from
 *     tensors that they or their neighbours read too;
 *   - or, whoever reads it, when it is arithmetic on values that elementwise work of the input
 *     gradient reads anyway: it is one more result of the kernel that does that work.
 * So a layer of LLaMA saves gate and up, but neither silu(gate) nor silu(gate) * up. A value that
 * takes an exponential for a product to read stays saved (gelu), and so do random numbers.
 */
#include "passes/recompute.h"

enum { CHEAP_NODES_MAX = 8 };

typedef struct Cheap {
    RecomputePair *p;
    const Graph *forward, *back;
    bool *whole; /* by value of the backward body: something other than elementwise work reads it */
    bool *passes; /* by value of the backward body: elementwise work of phase I reads it */
    int nodes;    /* of the candidate at hand */
} Cheap;

/* Functions take many instructions; what is not here is arithmetic. */
bool recompute_is_function(Op op) {
    static const bool table[OP_count] = {
        [OP_exp] = true,   [OP_exp2] = true, [OP_log] = true,     [OP_sqrt] = true,
        [OP_rsqrt] = true, [OP_sin] = true,  [OP_cos] = true,     [OP_tanh] = true,
        [OP_erf] = true,   [OP_silu] = true, [OP_gelu] = true,    [OP_gelu_tanh] = true,
        [OP_div] = true,   [OP_pow] = true,  [OP_sigmoid] = true,
    };
    return table[op];
}

/* Movement that a reader does on its way, whatever the order of elements. */
static bool is_inline(Op op) { return op == OP_reshape || op == OP_broadcast; }

static bool reads_elements(const Node *n) {
    OpKind kind = op_kind(n->op);
    return kind == KIND_elementwise || (kind == KIND_reduce && n->op != OP_argmax);
}

/* Who reads each value of the backward body, seen through inline movement and widening. */
static void find_readers(Cheap *c) {
    const Graph *g = c->back;
    for (int k = 0; k < g->nout; k++) c->whole[g->out[k].id] = true;
    for (int i = g->nnode - 1; i >= 0; i--) {
        const Node *n = g->node[i];
        bool through =
            is_inline(n->op) || (n->op == OP_cast && val_info(g, n->in[0])->dtype == DT_bf16);
        for (int k = 0; k < n->nin; k++) {
            uint32_t v = n->in[k].id;
            c->whole[v] |= through ? c->whole[n->out.id] : !reads_elements(n);
            c->passes[v] |= through ? c->passes[n->out.id]
                                    : op_kind(n->op) == KIND_elementwise && n->phase == PHASE_I;
        }
    }
}

static Val operand_of(const Cheap *c, Val v) { return c->back->in[c->p->saved[v.id]]; }

/* Parameters are there all the time; anything else would live longer for being read again. */
static bool is_parameter(const Cheap *c, Val v) {
    const Node *n = c->p->forward;
    int i = (int)c->forward->val[v.id].result;
    if (i < (int)node_int(n, ATTR_ncarry, 0) || val_node(c->p->g, n->in[i]) != NULL) return false;
    const Graph *g = c->p->g;
    Role role = g->in_port[g->val[n->in[i].id].result].role;
    return role == ROLE_weight || role == ROLE_weight_copy;
}

/* Whether v is a saved value that stays, or elementwise operations make it from such. `only`:
 * arithmetic alone, on values that pass by. */
static bool can_make(Cheap *c, Val v, bool top, bool only) {
    if (!top && c->p->saved[v.id] >= 0) return !only || c->passes[operand_of(c, v).id];
    const Node *n = val_node(c->forward, v);
    if (n == NULL) return !only && is_parameter(c, v);
    OpKind kind = op_kind(n->op);
    if (kind == KIND_source) return true;
    if (kind != KIND_elementwise && !is_inline(n->op)) return false;
    if (kind == KIND_elementwise &&
        (++c->nodes > CHEAP_NODES_MAX || (only && recompute_is_function(n->op))))
        return false;
    for (int k = 0; k < n->nin; k++)
        if (!can_make(c, n->in[k], false, only)) return false;
    return true;
}

static bool is_cheap(Cheap *c, Val v) {
    const Node *n = val_node(c->forward, v);
    if (n == NULL || op_kind(n->op) != KIND_elementwise) return false;
    c->nodes = 0;
    return can_make(c, v, true, c->whole[operand_of(c, v).id]);
}

void recompute_choose_cheap(RecomputePair *p, Arena *scratch) {
    Cheap c = {.p = p, .forward = p->forward->body, .back = p->back->body};
    c.whole = ARENA_ARRAY(scratch, bool, c.back->nval);
    c.passes = ARENA_ARRAY(scratch, bool, c.back->nval);
    find_readers(&c);
    for (int i = c.forward->nnode - 1; i >= 0; i--)
        for (int r = 0; r < c.forward->node[i]->nout; r++) {
            Val v = node_out(c.forward->node[i], r);
            if (p->saved[v.id] >= 0 && is_cheap(&c, v)) p->again[p->saved[v.id]] = true;
        }
}
