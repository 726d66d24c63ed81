/* place_check.c - replay of a placed graph.
 *
 * Knows nothing of how addresses were found. Memory is a list of byte ranges, each holding a part
 * of a content: what one kernel once wrote, or what was there at the start. Values are lists of
 * parts too: what they must consist of by the meaning of the graph. Whenever a value is read, the
 * bytes at its address must be exactly its parts; so one check finds overlapping lives, reads of
 * bytes never written, wrong slices, wrong views and wrong carries.
 *
 * Repeats run their first two iterations. The other slices of what a repeat stacks are written
 * beforehand and must still be there when it ends, and so must all slices that it reads: bodies
 * write at the same addresses in each iteration but for those slices.
 */
#include "passes/place.h"

#include <inttypes.h>
#include <string.h>

typedef struct Part {
    int64_t at, bytes; /* place in the value */
    int content;
    int64_t from; /* place in the content */
} Part;

typedef VEC(Part) Parts;

typedef struct Range {
    int64_t begin, end;
    int content;
    int64_t from;
} Range;

typedef struct Content {
    const Graph *g;
    Val v;
} Content;

enum { TASK_LAST = 2 };

typedef struct Check {
    const Module *mod;
    const PlaceOptions *options;
    Arena *arena;
    VEC(Range) memory[REGION_count];
    VEC(Content) contents;
    int64_t iter[REPEAT_DEPTH_MAX];
    const char *why; /* the first thing that is wrong */
} Check;

static const char *name_of(const Check *c, Content what) {
    const Node *n = val_node(what.g, what.v);
    const char *op = "input";
    if (n != NULL) op = n->op == OP_kernel ? node_attr(n, ATTR_name)->s : op_name(n->op);
    return arena_printf(c->arena, "%%%u (%s) of %s", what.v.id - 1, op, what.g->name);
}

static int64_t bytes_of(const Graph *g, Val v) { return type_bytes(g->mod->types, val_type(g, v)); }

static int64_t address(const Check *c, const Graph *g, Val v) {
    const Addr *a = &g->val[v.id].addr;
    int64_t at = a->offset_bytes;
    for (int d = 0; d < REPEAT_DEPTH_MAX; d++) at += c->iter[d] * a->stride_bytes[d];
    return at;
}

static void fail(Check *c, const char *why) {
    if (c->why == NULL) c->why = why;
}

/* Byte `at` of a value as bytes from its address; `end`: where in the value the bytes end that
 * follow it in memory. */
static int64_t locate(const Graph *g, Val v, int64_t at, int64_t *end) {
    const Addr *a = &g->val[v.id].addr;
    const TypeInfo *t = val_info(g, v);
    *end = bytes_of(g, v);
    if (a->pitch_bytes == 0 || t->ndim == 0 || t->dim[0] == 0) return at;
    int64_t slice = *end / t->dim[0], i = at / slice;
    *end = (i + 1) * slice;
    return i * a->pitch_bytes + at - i * slice;
}

/* ---- memory ----------------------------------------------------------------------------- */

static void memory_write(Check *c, RegionId region, Range w) {
    uint32_t n = c->memory[region].n;
    Range *old = c->memory[region].data;
    c->memory[region].n = 0;
    c->memory[region].cap = 0;
    c->memory[region].data = NULL;
    for (uint32_t i = 0; i < n; i++) {
        Range left = old[i], right = old[i];
        if (left.end > w.begin) left.end = w.begin;
        if (right.begin < w.end) {
            right.from += w.end - right.begin;
            right.begin = w.end;
        }
        if (left.begin < left.end) vec_push(c->arena, &c->memory[region], left);
        if (right.begin < right.end && right.begin >= w.end)
            vec_push(c->arena, &c->memory[region], right);
    }
    vec_push(c->arena, &c->memory[region], w);
}

static const Range *memory_at(const Check *c, RegionId region, int64_t at) {
    for (uint32_t i = 0; i < c->memory[region].n; i++) {
        const Range *r = &c->memory[region].data[i];
        if (r->begin <= at && at < r->end) return r;
    }
    return NULL;
}

static void check_part(Check *c, const Graph *g, Val v, const Part *part) {
    int64_t at = part->at;
    while (at < part->at + part->bytes && c->why == NULL) {
        int64_t end, near = address(c, g, v) + locate(g, v, at, &end);
        const Range *r = memory_at(c, g->val[v.id].addr.region, near);
        Content reader = {g, v}, wanted = c->contents.data[part->content];
        if (r == NULL) {
            fail(c, arena_printf(c->arena, "%s is read, but byte %" PRId64 " was never written",
                                 name_of(c, reader), at));
            return;
        }
        if (r->content != part->content ||
            r->from + (near - r->begin) != part->from + (at - part->at)) {
            fail(c, arena_printf(c->arena, "%s is read where %s lies over %s", name_of(c, reader),
                                 name_of(c, c->contents.data[r->content]), name_of(c, wanted)));
            return;
        }
        at += r->end - near;
        if (at > end) at = end;
    }
}

static void check_read(Check *c, const Graph *g, Val v, const Parts *parts) {
    for (uint32_t i = 0; i < parts->n && c->why == NULL; i++) check_part(c, g, v, &parts->data[i]);
}

/* New content for bytes [at, at + bytes) of value v, written to memory. */
static Part write_part(Check *c, const Graph *g, Val v, int64_t at, int64_t bytes) {
    RegionId region = g->val[v.id].addr.region;
    Content what = {g, v};
    vec_push(c->arena, &c->contents, what);
    Part part = {.at = at, .bytes = bytes, .content = (int)c->contents.n - 1};
    for (int64_t done = 0; (done < bytes || bytes == 0) && c->why == NULL;) {
        int64_t end, begin = address(c, g, v) + locate(g, v, at + done, &end);
        int64_t n = end - at - done < bytes - done ? end - at - done : bytes - done;
        Range w = {.begin = begin, .end = begin + n, .content = part.content, .from = done};
        if (region == REGION_none || begin < 0 || w.end > c->mod->region_bytes[region])
            fail(c, arena_printf(c->arena, "%s lies outside its region", name_of(c, what)));
        if (bytes == 0) break;
        if (c->why == NULL) memory_write(c, region, w);
        done += n;
    }
    return part;
}

static void write_whole(Check *c, const Graph *g, Val v, Parts *parts) {
    Part part = write_part(c, g, v, 0, bytes_of(g, v));
    *parts = (Parts){0};
    if (part.bytes > 0) vec_push(c->arena, parts, part);
}

/* Bytes [begin, begin + bytes) of a value as a value of their own. */
static Parts cut_parts(Check *c, const Parts *whole, int64_t begin, int64_t bytes) {
    Parts cut = {0};
    for (uint32_t i = 0; i < whole->n; i++) {
        Part p = whole->data[i];
        int64_t low = p.at > begin ? p.at : begin;
        int64_t high = p.at + p.bytes < begin + bytes ? p.at + p.bytes : begin + bytes;
        if (low >= high) continue;
        p.from += low - p.at;
        p.at = low - begin;
        p.bytes = high - low;
        vec_push(c->arena, &cut, p);
    }
    return cut;
}

static void put_parts(Check *c, Parts *whole, int64_t begin, const Parts *slice) {
    for (uint32_t i = 0; i < slice->n; i++) {
        Part p = slice->data[i];
        p.at += begin;
        vec_push(c->arena, whole, p);
    }
}

/* ---- kernels ---------------------------------------------------------------------------- */

static bool dims_equal(const Graph *b, Val x, Val y) {
    const TypeInfo *s = val_info(b, x), *t = val_info(b, y);
    return s->ndim == t->ndim && memcmp(s->dim, t->dim, sizeof s->dim) == 0;
}

/* Node n of a body writes y no earlier than it has read all of x that y's place needs: elementwise
 * ops and results of reductions by place, the domain of trailing reductions row by row. */
static bool node_in_step(const Graph *b, const Node *n, Val x, Val y) {
    bool reads = false, reduces = op_kind(n->op) == KIND_reduce && n->op != OP_argmax;
    for (int q = 0; q < n->nin; q++) reads |= n->in[q].id == x.id && !(n->op == OP_put && q == 0);
    if (!reduces) return !reads || op_kind(n->op) == KIND_elementwise || n->op == OP_copy;
    if (dims_equal(b, n->out, y)) return !reads;
    const Attr *axes = node_attr(n, ATTR_axes);
    int kept = val_info(b, n->out)->ndim;
    return kept > 0 && axes->v[0] == kept && dims_equal(b, n->in[0], y);
}

/* The same for x and for x in other dtypes. */
static bool all_in_step(const Graph *b, Val x, Val y) {
    for (int k = 0; k < b->nnode; k++) {
        const Node *n = b->node[k];
        if (!node_in_step(b, n, x, y)) return false;
        if (n->op == OP_cast && n->in[0].id == x.id && !all_in_step(b, n->out, y)) return false;
    }
    return true;
}

/* Result r of a kernel may lie on its operand i. */
static bool in_step(const Node *n, int i, int r) {
    const Graph *b = n->body;
    if (r >= b->nout || val_type(b, b->in[i]).id != val_type(b, b->out[r]).id) return false;
    return all_in_step(b, b->in[i], b->out[r]);
}

static bool overlap(const Check *c, const Graph *g, Val x, Val y) {
    int64_t a = address(c, g, x), b = address(c, g, y);
    return g->val[x.id].addr.region == g->val[y.id].addr.region && a < b + bytes_of(g, y) &&
           b < a + bytes_of(g, x);
}

static void check_aliases(Check *c, const Graph *g, const Node *n) {
    for (int r = 0; r < n->nout && c->why == NULL; r++) {
        Val y = node_out(n, r);
        for (int q = 0; q < r; q++)
            if (overlap(c, g, y, node_out(n, q)))
                fail(c, arena_printf(c->arena, "%s and %s overlap", name_of(c, (Content){g, y}),
                                     name_of(c, (Content){g, node_out(n, q)})));
        for (int i = 0; i < n->nin; i++) {
            if (!overlap(c, g, y, n->in[i])) continue;
            if (address(c, g, y) == address(c, g, n->in[i]) && in_step(n, i, r)) continue;
            fail(c, arena_printf(c->arena, "%s is written over its operand %s",
                                 name_of(c, (Content){g, y}), name_of(c, (Content){g, n->in[i]})));
        }
    }
}

static void replay(Check *c, const Graph *g, Parts *value, int depth);

/* ---- repeats ---------------------------------------------------------------------------- */

typedef struct Loop {
    const Graph *g;
    const Node *n;
    int64_t count, ncarry, nconst, run; /* iterations replayed: run */
    Parts *in, *out;
    Parts *slice; /* by result and iteration: what was stacked */
} Loop;

static int64_t slice_bytes(const Loop *l, Val v) { return bytes_of(l->g, v) / l->count; }

static void stack_rest(Check *c, const Loop *l) {
    for (int r = (int)l->ncarry; r < l->n->nout; r++) {
        Val v = node_out(l->n, r);
        int64_t at = l->run * slice_bytes(l, v);
        l->out[r] = (Parts){0};
        if (at == bytes_of(l->g, v)) continue;
        Part part = write_part(c, l->g, v, at, bytes_of(l->g, v) - at);
        vec_push(c->arena, &l->out[r], part);
    }
}

static void run_iteration(Check *c, Loop *l, int64_t i, int depth) {
    const Graph *body = l->n->body;
    Parts *value = ARENA_ARRAY(c->arena, Parts, body->nval);
    c->iter[depth] = i;
    for (int k = 0; k < l->n->nin; k++) {
        value[body->in[k].id] = l->in[k];
        if (k < l->ncarry + l->nconst) continue;
        int64_t bytes = slice_bytes(l, l->n->in[k]);
        value[body->in[k].id] = cut_parts(c, &l->in[k], i * bytes, bytes);
    }
    replay(c, body, value, depth + 1);
    for (int r = 0; r < l->n->nout; r++) {
        Parts made = value[body->out[r].id];
        if (r < l->ncarry)
            l->in[r] = l->out[r] = made;
        else
            put_parts(c, &l->out[r], i * slice_bytes(l, node_out(l->n, r)), &made);
    }
    c->iter[depth] = 0;
}

/* Whether some result of the repeat lies exactly over operand k. */
static bool is_replaced(const Check *c, const Loop *l, int k) {
    for (int r = 0; r < l->n->nout; r++) {
        Val y = node_out(l->n, r), x = l->n->in[k];
        if (overlap(c, l->g, x, y) && address(c, l->g, x) == address(c, l->g, y) &&
            bytes_of(l->g, x) == bytes_of(l->g, y))
            return true;
    }
    return false;
}

static void replay_repeat(Check *c, const Graph *g, const Node *n, Parts *value, int depth) {
    Loop l = {.g = g,
              .n = n,
              .count = node_int(n, ATTR_count, 1),
              .ncarry = node_int(n, ATTR_ncarry, 0),
              .nconst = node_int(n, ATTR_nconst, 0)};
    l.run = l.count < 2 ? l.count : 2;
    l.in = ARENA_ARRAY(c->arena, Parts, n->nin);
    l.out = ARENA_ARRAY(c->arena, Parts, n->nout);
    for (int k = 0; k < n->nin; k++) {
        l.in[k] = value[n->in[k].id];
        check_read(c, g, n->in[k], &l.in[k]);
    }
    stack_rest(c, &l);
    bool reverse = node_int(n, ATTR_reverse, 0) != 0;
    for (int64_t i = 0; i < l.run && c->why == NULL; i++)
        run_iteration(c, &l, reverse ? l.run - 1 - i : i, depth);
    for (int k = (int)l.ncarry; k < n->nin && c->why == NULL; k++)
        if (!is_replaced(c, &l, k)) check_read(c, g, n->in[k], &value[n->in[k].id]);
    for (int r = 0; r < n->nout; r++) {
        value[node_out(n, r).id] = l.out[r];
        check_read(c, g, node_out(n, r), &l.out[r]);
    }
}

/* ---- a graph ---------------------------------------------------------------------------- */

/* A task ends: what it hands on is complete, and others run before the next one of the same
 * microbatch. */
static void end_task(Check *c, const Graph *g, const Parts *value, int task) {
    static const RegionId handed[][2] = {{REGION_recv, REGION_send},
                                         {REGION_recv_grad, REGION_send_grad},
                                         {REGION_none, REGION_none}};
    for (int k = 0; k < g->nout && c->options->windows && c->why == NULL; k++)
        if (place_port_task(g->out_port[k].role) == task)
            check_read(c, g, g->out[k], &value[g->out[k].id]);
    if (c->options->windows) c->memory[handed[task][0]].n = c->memory[handed[task][1]].n = 0;
    if (c->options->slots) c->memory[REGION_scratch].n = 0;
}

/* Kernels know nothing of slices that lie apart. */
static void check_dense(Check *c, const Graph *g, const Node *n) {
    for (int k = 0; k < n->nin + n->nout; k++) {
        Val v = k < n->nin ? n->in[k] : node_out(n, k - n->nin);
        if (g->val[v.id].addr.pitch_bytes != 0)
            fail(c, arena_printf(c->arena, "a kernel works on %s, whose slices lie apart",
                                 name_of(c, (Content){g, v})));
    }
}

static void replay(Check *c, const Graph *g, Parts *value, int depth) {
    int task = 0;
    for (int i = 0; i < g->nnode && c->why == NULL; i++) {
        const Node *n = g->node[i];
        if (n->op == OP_reshape) {
            value[n->out.id] = value[n->in[0].id];
            continue;
        }
        for (; depth == 0 && task < place_task(n, c->options); task++) end_task(c, g, value, task);
        if (n->op == OP_repeat) {
            replay_repeat(c, g, n, value, depth);
            continue;
        }
        check_dense(c, g, n);
        for (int k = 0; k < n->nin; k++) check_read(c, g, n->in[k], &value[n->in[k].id]);
        check_aliases(c, g, n);
        for (int r = 0; r < n->nout; r++)
            write_whole(c, g, node_out(n, r), &value[node_out(n, r).id]);
    }
    for (int k = 0; k < g->nout && c->why == NULL; k++)
        if (!c->options->windows || place_port_task(g->out_port[k].role) < 0)
            check_read(c, g, g->out[k], &value[g->out[k].id]);
    for (; depth == 0 && c->options->windows && task <= TASK_LAST; task++)
        end_task(c, g, value, task);
}

static void check_ports(Check *c, const Graph *g, PlaceFixed *fixed) {
    for (int k = 0; k < g->nin + g->nout; k++) {
        bool in = k < g->nin;
        const Port *port = in ? &g->in_port[k] : &g->out_port[k - g->nin];
        Val v = in ? g->in[k] : g->out[k - g->nin];
        const Addr *at = &g->val[v.id].addr;
        Addr home;
        if (fixed(g->mod, g, port, &home) &&
            (home.region != at->region || home.offset_bytes != at->offset_bytes ||
             home.pitch_bytes != at->pitch_bytes || home.shard_bytes != at->shard_bytes))
            fail(c, arena_printf(c->arena, "%s is not at its home", name_of(c, (Content){g, v})));
    }
}

/* Inputs at one address are one content: the uses of a weight. */
static void write_input(Check *c, const Graph *g, int i, Parts *value) {
    const Addr *at = &g->val[g->in[i].id].addr;
    for (int k = 0; k < i; k++) {
        const Addr *other = &g->val[g->in[k].id].addr;
        if (other->region == at->region && other->offset_bytes == at->offset_bytes &&
            bytes_of(g, g->in[k]) == bytes_of(g, g->in[i])) {
            value[g->in[i].id] = value[g->in[k].id];
            return;
        }
    }
    write_whole(c, g, g->in[i], &value[g->in[i].id]);
}

/* What is no gradient in the region of gradients must keep its zeros: the update reads all. */
static void fill_gradients(Check *c, const Graph *g) {
    int64_t bytes = c->mod->region_bytes[REGION_grad];
    if (bytes == 0) return;
    vec_push(c->arena, &c->contents, (Content){.g = g});
    Range all = {.end = bytes, .content = (int)c->contents.n - 1};
    vec_push(c->arena, &c->memory[REGION_grad], all);
}

/* Where the gradient ends that byte `at` belongs to; `at` when it belongs to none. */
static int64_t gradient_end(const Graph *g, int64_t at) {
    for (int k = 0; k < g->nout; k++) {
        const Addr *home = &g->val[g->out[k].id].addr;
        const TypeInfo *t = val_info(g, g->out[k]);
        int64_t n = home->pitch_bytes != 0 && t->ndim > 0 ? t->dim[0] : 1;
        if (home->region != REGION_grad) continue;
        for (int64_t i = 0; i < n; i++) {
            int64_t begin = home->offset_bytes + i * home->pitch_bytes;
            int64_t end = begin + bytes_of(g, g->out[k]) / n;
            if (begin <= at && at < end) return end;
        }
    }
    return at;
}

static void check_gradients(Check *c, const Graph *g) {
    for (uint32_t i = 0; i < c->memory[REGION_grad].n && c->why == NULL; i++) {
        const Range *r = &c->memory[REGION_grad].data[i];
        Content what = c->contents.data[r->content];
        if (what.v.id == 0 || val_node(what.g, what.v) == NULL) continue;
        int64_t at = r->begin, next = gradient_end(g, at);
        while (next > at && next < r->end) {
            at = next;
            next = gradient_end(g, at);
        }
        if (next == at)
            fail(c,
                 arena_printf(c->arena, "%s lies over zeros between gradients", name_of(c, what)));
    }
}

const char *place_check(const Graph *g, PlaceFixed *fixed, const PlaceOptions *options,
                        Arena *arena) {
    Check c = {.mod = g->mod, .options = options, .arena = arena};
    Parts *value = ARENA_ARRAY(arena, Parts, g->nval);
    check_ports(&c, g, fixed);
    fill_gradients(&c, g);
    for (int i = 0; i < g->nin; i++) write_input(&c, g, i, value);
    replay(&c, g, value, 0);
    check_gradients(&c, g);
    return c.why;
}
