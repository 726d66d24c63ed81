/* text_read.c - graphs from text; see text.h and README.md for the grammar.
 *
 * Strict: values are numbered by position, operands are defined before they are used, types that
 * are written are those the shape rule gives. Every limit and mistake is a diagnostic at its place;
 * nothing that a text says can reach an assertion. */
#include "ir/text_read.h"

#include "ir/shape.h"
#include "ir/text.h"
#include "ir/text_words.h"
#include "ir/verify.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_DEPTH_MAX = REPEAT_DEPTH_MAX + 1, GRAPHS_MAX = 1000 };

/* ---- ports and addresses ------------------------------------------------------------------ */

static Port read_port(TextReader *r) {
    Port p = {0};
    for (int i = ROLE_none + 1; i < ROLE_count && p.role == ROLE_none; i++)
        if (text_accept(r, text_role[i].word)) p.role = (Role)i;
    if (p.role == ROLE_none || !text_accept(r, "(")) return p;
    p.index = (int32_t)text_read_int(r, 0, INT32_MAX);
    if (text_accept(r, ",")) {
        if (r->kind != TOKEN_string) {
            p.use = (int32_t)text_read_int(r, 0, INT32_MAX);
            if (text_accept(r, ",")) p.name = text_read_string(r);
        } else {
            p.name = text_read_string(r);
        }
    }
    text_expect(r, ")");
    return p;
}

/* After the '@'. */
static Addr read_addr(TextReader *r) {
    Addr a = {0};
    a.region = (RegionId)text_read_choice(r, REGION_count, text_region, "a region");
    if (a.region == REGION_none) return a;
    text_expect(r, "+");
    a.offset_bytes = text_read_int(r, 0, INT64_MAX);
    if (text_accept(r, "pitch")) {
        text_expect(r, "=");
        a.pitch_bytes = text_read_int(r, 0, INT64_MAX);
    }
    if (text_accept(r, "shard")) {
        text_expect(r, "=");
        a.shard_bytes = text_read_int(r, 0, INT64_MAX);
    }
    if (!text_is(r, "[")) return a;
    int64_t stride[NDIM_MAX];
    Span span = text_span(r);
    int n = text_read_ints(r, stride);
    if (n > REPEAT_DEPTH_MAX) text_fail(r, span, "at most %d strides", REPEAT_DEPTH_MAX);
    for (int i = 0; i < n && i < REPEAT_DEPTH_MAX; i++) a.stride_bytes[i] = stride[i];
    return a;
}

/* ---- nodes -------------------------------------------------------------------------------- */

/* A node as it is written, before it is checked. */
typedef struct NodeText {
    Op op;
    Span span;
    int nresult; /* names on the left */
    VEC(Val) in;
    VEC(Type) type;
    VEC(Addr) addr;
    Attr attr[ATTR_count_];
    int nattr;
    Phase phase;
    Scope scope;
    Graph *body;
} NodeText;

/* The number in "%12", or UINT32_MAX. */
static uint32_t value_number(TextReader *r) {
    char text[16] = "";
    uint32_t n = r->end - r->begin;
    if (r->kind != TOKEN_value || n < 2 || n > 11) {
        text_fail_expected(r, "a value such as %3");
        return UINT32_MAX;
    }
    memcpy(text, r->text + r->begin + 1, n - 1);
    unsigned long long x = strtoull(text, NULL, 10);
    return x < UINT32_MAX ? (uint32_t)x : UINT32_MAX;
}

static Val read_operand(TextReader *r, const Graph *g) {
    uint32_t number = value_number(r);
    if (r->failed) return (Val){0};
    if (number >= g->nval - 1) {
        text_fail_expected(r, "a value that is defined above");
        return (Val){0};
    }
    text_next(r);
    return (Val){number + 1};
}

static void read_new_value(TextReader *r, uint32_t number) {
    uint32_t got = value_number(r);
    if (r->failed) return;
    if (got != number)
        text_fail(r, text_span(r), "values are numbered by position: %%%u is next", number);
    text_next(r);
}

static void read_attr_value(TextReader *r, Attr *a) {
    int64_t v[NDIM_MAX];
    switch (attr_kind(a->key)) {
    case ATTRKIND_int: a->i = text_read_int(r, INT64_MIN, INT64_MAX); break;
    case ATTRKIND_float: a->f = text_read_float(r); break;
    case ATTRKIND_str: a->s = text_read_string(r); break;
    case ATTRKIND_ints:
        a->n = text_read_ints(r, v);
        int64_t *kept = ARENA_ARRAY(r->m->arena, int64_t, a->n);
        if (a->n > 0) memcpy(kept, v, (size_t)a->n * sizeof *v);
        a->v = kept;
        break;
    }
}

static void read_attrs(TextReader *r, NodeText *n) {
    while (!r->failed && !text_is(r, "}")) {
        if (n->nattr > 0) text_expect(r, ",");
        AttrKey key = ATTR_none;
        if (r->kind == TOKEN_word) key = attr_from_name(r->text + r->begin, r->end - r->begin);
        if (key == ATTR_none || n->nattr == ATTR_count_) {
            text_fail_expected(r, "an attribute of ir/attrs.def");
            return;
        }
        text_next(r);
        text_expect(r, "=");
        Attr *a = &n->attr[n->nattr++];
        *a = (Attr){.key = key};
        read_attr_value(r, a);
    }
    text_expect(r, "}");
}

static Phase read_phase(TextReader *r) {
    for (int p = PHASE_F; p <= PHASE_U; p++)
        if (text_accept(r, (char[]){text_phase[p], '\0'})) return (Phase)p;
    text_fail_expected(r, "a phase F, I, W or U");
    return PHASE_F;
}

static Graph *read_graph(TextReader *r, bool is_body);

static void read_body(TextReader *r, NodeText *n) {
    bool repeat = n->op == OP_repeat;
    if (r->depth >= BODY_DEPTH_MAX || (repeat && r->nested_repeats >= REPEAT_DEPTH_MAX)) {
        text_fail_limit(r, text_span(r), "regions are nested deeper than %d", REPEAT_DEPTH_MAX);
        return;
    }
    text_expect(r, "{");
    text_expect(r, "graph");
    r->depth++;
    r->nested_repeats += repeat;
    n->body = read_graph(r, true);
    r->depth--;
    r->nested_repeats -= repeat;
    text_expect(r, "}");
}

static void read_node_text(TextReader *r, const Graph *g, NodeText *n) {
    Arena *arena = r->m->arena;
    n->span = text_span(r);
    do read_new_value(r, g->nval - 1 + (uint32_t)n->nresult++);
    while (text_accept(r, ","));
    text_expect(r, "=");
    if (r->kind == TOKEN_word) n->op = op_from_name(r->text + r->begin, r->end - r->begin);
    if (n->op == OP_none) {
        text_fail_expected(r, "an operation of ir/ops.def");
        return;
    }
    text_next(r);
    if (r->kind == TOKEN_value) {
        do vec_push(arena, &n->in, read_operand(r, g));
        while (text_accept(r, ","));
    }
    if (text_accept(r, "{")) read_attrs(r, n);
    if (text_accept(r, ":")) {
        do vec_push(arena, &n->type, text_read_type(r));
        while (text_accept(r, ","));
    }
    if (text_accept(r, "!")) n->phase = read_phase(r);
    if (text_accept(r, "@")) {
        vec_push(arena, &n->addr, read_addr(r));
        while (text_accept(r, ",")) {
            text_expect(r, "@");
            vec_push(arena, &n->addr, read_addr(r));
        }
    }
    if (r->end_before > n->span.end) n->span.end = r->end_before;
    text_read_location(r, &n->scope);
    if (op_kind(n->op) == KIND_region) read_body(r, n);
}

/* Result types by the op's rule; says at the node's place what does not fit. */
static const Type *check_node(TextReader *r, const Graph *g, const NodeText *n, int *nout) {
    Arena *arena = r->m->arena;
    Type *in = ARENA_ARRAY(arena, Type, n->in.n);
    for (uint32_t i = 0; i < n->in.n; i++) in[i] = val_type(g, n->in.data[i]);
    ShapeQuery q = {.types = r->m->types,
                    .arena = arena,
                    .op = n->op,
                    .nin = (int)n->in.n,
                    .in = in,
                    .nattr = n->nattr,
                    .attr = n->attr};
    Type *out = ARENA_ARRAY(arena, Type, SHAPE_RESULTS_MAX);
    *nout = op_results(n->op);
    const char *why = NULL;
    if (op_kind(n->op) == KIND_region) {
        why = shape_check_region(&q, n->body, &out, nout);
    } else {
        q.given = n->type.n > 0 ? n->type.data[0] : (Type){0};
        why = shape_check(&q, out);
    }
    if (why == NULL && *nout != n->nresult)
        why = arena_printf(arena, "%d results are named, there are %d", n->nresult, *nout);
    if (why == NULL && n->type.n > 0 && n->type.n != (uint32_t)*nout)
        why = "a type is written for every result, or for none";
    if (why == NULL && n->addr.n > 0 && n->addr.n != (uint32_t)*nout)
        why = "an address is written for every result, or for none";
    for (uint32_t i = 0; why == NULL && i < n->type.n; i++)
        if (n->type.data[i].id != out[i].id)
            why = arena_printf(arena, "result %u is %s, not %s", i,
                               type_print(r->m->types, arena, out[i]),
                               type_print(r->m->types, arena, n->type.data[i]));
    if (why != NULL) text_fail(r, n->span, "%s: %s", op_name(n->op), why);
    return out;
}

static void read_node(TextReader *r, Graph *g) {
    NodeText n = {0};
    read_node_text(r, g, &n);
    if (r->failed) return;
    int nout = 0;
    const Type *out = check_node(r, g, &n, &nout);
    if (r->failed) return;
    Builder b = {.g = g, .phase = n.phase, .span = n.span, .scope = n.scope};
    int nin = (int)n.in.n;
    Node *node = n.body != NULL
                     ? graph_add_region(&b, n.op, nin, n.in.data, n.nattr, n.attr, n.body)
                     : graph_add(&b, n.op, nin, n.in.data, n.nattr, n.attr, out[0]);
    for (uint32_t i = 0; i < n.addr.n; i++) g->val[node_out(node, (int)i).id].addr = n.addr.data[i];
}

/* ---- graphs ------------------------------------------------------------------------------- */

static void read_inputs(TextReader *r, Graph *g) {
    text_expect(r, "(");
    while (!r->failed && !text_is(r, ")")) {
        if (g->nin > 0) text_expect(r, ",");
        read_new_value(r, g->nval - 1);
        text_expect(r, ":");
        Type t = text_read_type(r);
        Port p = read_port(r);
        Addr addr = {0};
        if (text_accept(r, "@")) addr = read_addr(r);
        if (r->failed) return;
        Val v = graph_add_input(g, t, p);
        g->val[v.id].addr = addr;
    }
    text_expect(r, ")");
}

static void read_outputs(TextReader *r, Graph *g) {
    text_expect(r, "return");
    while (!r->failed && !text_is(r, "}")) {
        if (g->nout > 0) text_expect(r, ",");
        Val v = read_operand(r, g);
        Port p = read_port(r);
        if (!r->failed) graph_add_output(g, v, p);
    }
    text_expect(r, "}");
}

/* After the word "graph". A body may be without name. */
static Graph *read_graph(TextReader *r, bool is_body) {
    Span span = text_span(r);
    const char *name = NULL;
    if (r->kind == TOKEN_string)
        name = text_read_string(r);
    else if (r->kind == TOKEN_word)
        name = text_read_word(r, "a name");
    if (!is_body && (name == NULL || name[0] == '\0')) text_fail(r, span, "the graph has no name");
    if (!is_body && !r->failed && module_graph(r->m, name) != NULL)
        text_fail(r, span, "there are two graphs of this name");
    Graph *g = graph_new(r->m, name);
    read_inputs(r, g);
    text_expect(r, "{");
    while (!r->failed && !text_is(r, "return")) read_node(r, g);
    read_outputs(r, g);
    return g;
}

bool text_read_module(Module *m, uint32_t file) {
    const Source *src = source_get(m->sources, file);
    TextReader r = {.m = m, .file = file, .text = src->text, .bytes = src->bytes};
    text_next(&r);
    while (!r.failed && r.kind != TOKEN_end) {
        Span span = text_span(&r);
        if (text_accept(&r, "graph")) {
            Graph *g = read_graph(&r, false);
            if (m->ngraph >= GRAPHS_MAX)
                text_fail_limit(&r, span, "more than %d graphs", GRAPHS_MAX);
            if (!r.failed) module_add_graph(m, g);
        } else if (!text_read_table(&r)) {
            text_fail_expected(
                &r, "graph, param, settings, build, alias, rank, chunk, segment or region");
        }
    }
    if (!r.failed && m->ngraph == 0) text_fail(&r, text_span(&r), "the text has no graph");
    const char *why = r.failed ? NULL : verify_module(m);
    if (why != NULL) text_fail(&r, (Span){.file = file}, "%s", why);
    return !r.failed;
}
