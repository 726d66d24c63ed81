/* verify.c - what must hold of graphs between passes; see verify.h.
 *
 * Every check returns NULL or one message in words. Scratch memory is given back at the end; only
 * the message stays, in the module's arena. */
#include "ir/verify.h"

#include "ir/shape.h"
#include "ir/text_words.h"

#include <stdlib.h>

typedef struct Verifier {
    Arena *scratch;
    const Graph *g;
    int repeats;    /* enclosing */
    bool in_kernel; /* g is a kernel's body */
    bool in_body;
} Verifier;

static const char *verify_one(Verifier *v);

/* ---- nodes -------------------------------------------------------------------------------- */

static const char *check_operands(const Verifier *v, const Node *n) {
    const Graph *g = v->g;
    int want = op_operands(n->op);
    if (want >= 0 && want != n->nin)
        return arena_printf(v->scratch, "%d operands are needed, got %d", want, n->nin);
    for (int i = 0; i < n->nin; i++) {
        if (n->in[i].id == 0 || n->in[i].id >= g->nval || n->in[i].id >= n->out.id)
            return arena_printf(v->scratch, "operand %d is not defined before its use", i);
        const Node *from = val_node(g, n->in[i]);
        if (from != NULL && from->phase > n->phase)
            return arena_printf(v->scratch, "phase %c, but operand %d is made in phase %c",
                                text_phase[n->phase], i, text_phase[from->phase]);
    }
    return NULL;
}

static const char *check_region(const Verifier *v, const Node *n) {
    if (n->body == NULL) return "a region has no body";
    if (n->body->mod != v->g->mod) return "the body belongs to another module";
    if (v->in_kernel) return "a region inside a kernel";
    bool repeat = n->op == OP_repeat;
    if (repeat && v->repeats >= REPEAT_DEPTH_MAX) return "repeats are nested too deep";
    Verifier inner = {.scratch = v->scratch,
                      .g = n->body,
                      .repeats = v->repeats + repeat,
                      .in_kernel = n->op == OP_kernel,
                      .in_body = true};
    return verify_one(&inner);
}

/* Result types by the op's rule against those that the values have. */
static const char *check_types(const Verifier *v, const Node *n) {
    const Graph *g = v->g;
    Type *in = ARENA_ARRAY(v->scratch, Type, n->nin);
    for (int i = 0; i < n->nin; i++) in[i] = val_type(g, n->in[i]);
    ShapeQuery q = {.types = g->mod->types,
                    .arena = v->scratch,
                    .op = n->op,
                    .nin = n->nin,
                    .in = in,
                    .nattr = n->nattr,
                    .attr = n->attr};
    Type some[SHAPE_RESULTS_MAX] = {{0}}, *out = some;
    int nout = op_results(n->op);
    const char *why = NULL;
    if (op_kind(n->op) == KIND_region) {
        why = shape_check_region(&q, n->body, &out, &nout);
    } else {
        q.given = val_type(g, n->out);
        why = shape_check(&q, out);
    }
    if (why != NULL) return why;
    if (nout != n->nout) return arena_printf(v->scratch, "%d results, not %d", nout, n->nout);
    for (int i = 0; i < nout; i++)
        if (out[i].id != val_type(g, node_out(n, i)).id)
            return arena_printf(v->scratch, "result %d is %s, not %s", i,
                                type_print(g->mod->types, v->scratch, out[i]),
                                type_print(g->mod->types, v->scratch, val_type(g, node_out(n, i))));
    return NULL;
}

static const char *check_node(const Verifier *v, int index) {
    const Node *n = v->g->node[index];
    if (n->op <= OP_none || n->op >= OP_count) return "no operation";
    if ((int)n->phase < PHASE_F || n->phase > PHASE_U) return "no phase";
    if (n->nout < 1 || n->out.id == 0 || n->out.id + (uint32_t)n->nout > v->g->nval)
        return "results do not exist";
    for (int i = 0; i < n->nout; i++) {
        const ValInfo *info = &v->g->val[node_out(n, i).id];
        if (info->node != (uint32_t)index + 1 || info->result != (uint32_t)i)
            return "a result belongs to another node";
    }
    if (v->in_kernel && op_kind(n->op) == KIND_composite && n->op != OP_rope) /* of attention */
        return "a composite inside a kernel";
    const char *why = check_operands(v, n);
    if (why == NULL && op_kind(n->op) == KIND_region)
        why = check_region(v, n);
    else if (why == NULL && n->body != NULL)
        why = "a body, but no region";
    return why != NULL ? why : check_types(v, n);
}

/* ---- ports -------------------------------------------------------------------------------- */

/* Where a role may stand and what it needs. */
typedef struct RoleRule {
    bool input, output;
    bool scalar; /* f32 [] */
    bool unique; /* at most one port with this index and use */
} RoleRule;

static const RoleRule role_rule[ROLE_count] = {
    [ROLE_none] = {true, true, false, false},        [ROLE_data] = {true, false, false, true},
    [ROLE_valid] = {true, false, false, true},       [ROLE_weight] = {true, false, false, true},
    [ROLE_weight_copy] = {true, false, false, true}, [ROLE_grad] = {true, true, false, true},
    [ROLE_loss_sum] = {true, true, true, true},      [ROLE_loss_count] = {true, true, true, true},
    [ROLE_metric_sum] = {true, true, true, true},    [ROLE_metric_count] = {true, true, true, true},
    [ROLE_output] = {false, true, false, false},     [ROLE_flat_weight] = {true, true, false, true},
    [ROLE_flat_grad] = {true, false, false, true},   [ROLE_flat_copy] = {false, true, false, true},
    [ROLE_flat_state] = {true, true, false, true},   [ROLE_scalar] = {true, false, true, true},
    [ROLE_grad_norm] = {false, true, true, true},    [ROLE_update_ok] = {false, true, true, true},
    [ROLE_recv] = {true, false, false, true},        [ROLE_send] = {false, true, false, true},
    [ROLE_recv_grad] = {true, false, false, true},   [ROLE_send_grad] = {false, true, false, true},
    [ROLE_cache] = {true, true, false, true},        [ROLE_position] = {true, false, false, true},
    [ROLE_last] = {true, false, false, true},        [ROLE_squares] = {true, true, false, true},
    [ROLE_blocks] = {true, true, false, true},
};

static const char *check_param_port(const Verifier *v, const Port *p, Type t) {
    const Module *m = v->g->mod;
    if (p->index < 0 || p->index >= m->nparam) return "there is no such parameter";
    const Param *param = &m->param[p->index];
    int uses = param->uses > 1 ? param->uses : 1;
    if (p->use < 0 || p->use >= uses)
        return arena_printf(v->scratch, "use %d of a parameter with %d", p->use, uses);
    const TypeInfo *want = type_info(m->types, param->type), *got = type_info(m->types, t);
    bool same = want->ndim == got->ndim && dtype_is_float(got->dtype) &&
                (p->role != ROLE_weight_copy || got->dtype == DT_bf16);
    for (int i = 0; same && i < want->ndim; i++) same = want->dim[i] == got->dim[i];
    if (same) return NULL;
    return arena_printf(v->scratch, "parameter %d is %s, not %s", p->index,
                        type_print(m->types, v->scratch, param->type),
                        type_print(m->types, v->scratch, t));
}

static const char *check_flat_port(const Verifier *v, const Port *p, Type t) {
    const Module *m = v->g->mod;
    FlatPart part;
    bool weight = p->role == ROLE_flat_weight || p->role == ROLE_flat_copy;
    bool whole = weight && p->use == 1;
    if (!(whole ? module_flat_segment : module_flat_part)(m, p->index, &part))
        return "there is no such segment";
    const TypeInfo *info = type_info(m->types, t);
    int64_t elems = part.elems;
    Dtype dtype = p->role == ROLE_flat_copy ? DT_bf16 : DT_f32;
    if (info->dtype != dtype || info->ndim != 1 || info->dim[0] != elems)
        return arena_printf(v->scratch, "segment %d is %s[%lld], not %s", p->index,
                            dtype_name(dtype), (long long)elems,
                            type_print(m->types, v->scratch, t));
    if (p->role == ROLE_flat_state && (p->use < 0 || p->use >= m->nstate))
        return "there is no such optimizer state";
    return NULL;
}

static const char *check_port(const Verifier *v, const Port *p, Type t, bool input) {
    if ((int)p->role < ROLE_none || p->role >= ROLE_count) return "no role";
    if (v->in_body && p->role != ROLE_none) return "a body's port has a role";
    const RoleRule *rule = &role_rule[p->role];
    if (input ? !rule->input : !rule->output)
        return arena_printf(v->scratch, "role %s does not belong there", text_role[p->role].word);
    const TypeInfo *info = type_info(v->g->mod->types, t);
    if (rule->scalar && (info->dtype != DT_f32 || info->ndim != 0))
        return arena_printf(v->scratch, "role %s is f32[]", text_role[p->role].word);
    bool index = p->role == ROLE_position || p->role == ROLE_last;
    if (index && (info->dtype != DT_i32 || info->ndim != 1 || info->dim[0] != 1))
        return arena_printf(v->scratch, "role %s is i32[1]", text_role[p->role].word);
    if (p->role == ROLE_scalar && (p->index < 0 || p->index >= SCALAR_COUNT))
        return "there is no such host scalar";
    if (p->role == ROLE_weight || p->role == ROLE_weight_copy || p->role == ROLE_grad)
        return check_param_port(v, p, t);
    if (p->role == ROLE_flat_weight || p->role == ROLE_flat_grad || p->role == ROLE_flat_state ||
        p->role == ROLE_flat_copy)
        return check_flat_port(v, p, t);
    return NULL;
}

static int compare_ports(const void *a, const void *b) {
    const Port *p = a, *q = b;
    if (p->role != q->role) return p->role < q->role ? -1 : 1;
    if (p->index != q->index) return p->index < q->index ? -1 : 1;
    return (p->use > q->use) - (p->use < q->use);
}

static const char *check_unique(const Verifier *v, int n, const Port *port) {
    Port *sorted = ARENA_ARRAY(v->scratch, Port, n);
    for (int i = 0; i < n; i++) sorted[i] = port[i];
    qsort(sorted, (size_t)n, sizeof *sorted, compare_ports);
    for (int i = 1; i < n; i++)
        if (role_rule[sorted[i].role].unique && compare_ports(&sorted[i - 1], &sorted[i]) == 0)
            return arena_printf(v->scratch, "two ports are %s(%d, %d)",
                                text_role[sorted[i].role].word, sorted[i].index, sorted[i].use);
    return NULL;
}

/* ---- graphs ------------------------------------------------------------------------------- */

static const char *check_inputs(const Verifier *v) {
    const Graph *g = v->g;
    for (int i = 0; i < g->nin; i++) {
        const ValInfo *info = &g->val[g->in[i].id];
        if (g->in[i].id != (uint32_t)i + 1 || info->node != 0 || info->result != (uint32_t)i)
            return "inputs are not the first values";
        if (info->type.id == 0) return "an input has no type";
        const char *why = check_port(v, &g->in_port[i], info->type, true);
        if (why != NULL) return arena_printf(v->scratch, "input %%%d: %s", i, why);
    }
    return check_unique(v, g->nin, g->in_port);
}

static const char *check_outputs(const Verifier *v) {
    const Graph *g = v->g;
    for (int i = 0; i < g->nout; i++) {
        if (g->out[i].id == 0 || g->out[i].id >= g->nval)
            return arena_printf(v->scratch, "output %d does not exist", i);
        const char *why = check_port(v, &g->out_port[i], val_type(g, g->out[i]), false);
        if (why != NULL) return arena_printf(v->scratch, "output %d: %s", i, why);
    }
    return check_unique(v, g->nout, g->out_port);
}

static const char *verify_one(Verifier *v) {
    const char *why = check_inputs(v);
    for (int i = 0; why == NULL && i < v->g->nnode; i++) {
        const Node *n = v->g->node[i];
        why = check_node(v, i);
        if (why == NULL) continue;
        const char *op = n->op > OP_none && n->op < OP_count ? op_name(n->op) : "?";
        why = arena_printf(v->scratch, "node %d (%%%u = %s): %s", i, n->out.id - 1, op, why);
    }
    return why != NULL ? why : check_outputs(v);
}

const char *verify_graph(const Graph *g) {
    Arena scratch = {0};
    Verifier v = {.scratch = &scratch, .g = g};
    const char *why = verify_one(&v);
    if (why != NULL)
        why = arena_printf(g->mod->arena, "graph %s: %s", g->name != NULL ? g->name : "", why);
    arena_free(&scratch);
    return why;
}

static const char *verify_params(const Module *m) {
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        if (p->name == NULL || p->type.id == 0)
            return arena_printf(m->arena, "parameter %d has no name or type", i);
        if (p->nstack < 0 || p->nstack > type_info(m->types, p->type)->ndim ||
            p->nstack > STACK_MAX)
            return arena_printf(m->arena, "parameter %d has %d stack axes", i, p->nstack);
    }
    for (int i = 0; i < m->nalias; i++)
        if (m->alias[i].param < 0 || m->alias[i].param >= m->nparam)
            return arena_printf(m->arena, "alias %s names no parameter", m->alias[i].name);
    return NULL;
}

const char *verify_module(const Module *m) {
    const char *why = verify_params(m);
    for (int i = 0; why == NULL && i < m->ngraph; i++) why = verify_graph(m->graph[i]);
    return why;
}
