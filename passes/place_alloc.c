/* place_alloc.c - which values share a buffer, and how long each buffer lives.
 *
 * Per graph, backwards: a result that has no home yet gets a buffer of its own; a home passes
 * through a repeat to what it carries and starts from; and a kernel's result may take over the
 * buffer of an operand that dies there, if the kernel is pointwise in it. Forwards: views take what
 * they show, bodies take slices. Moments are counted over the whole graph, nested bodies included:
 * a repeat has one before its body and one after it, and everything it reads or makes lives through
 * both.
 */
#include "passes/place.h"

#include "ir/panic.h"

#include <string.h>

/* Where a value is: buffer, offset in it, stride of each enclosing repeat. */
typedef struct Loc {
    int buffer; /* index + 1; 0 none yet */
    int64_t stride[REPEAT_DEPTH_MAX];
} Loc;

typedef struct Alloc {
    Placed *placed;
    const PlaceOptions *options;
    Arena *arena;
    int now;  /* moment */
    int task; /* of the top graph's node at hand */
} Alloc;

/* One graph being placed. */
typedef struct Level {
    Graph *g;
    int depth;
    PlaceScan scan;
    Loc *loc; /* by value */
} Level;

static PlaceBuffer *buffer_at(Alloc *a, Loc loc) {
    return &a->placed->buffers.list.data[loc.buffer - 1];
}

static Loc new_buffer(Alloc *a, const Graph *g, Val v) {
    PlaceBuffer b = {
        .bytes = type_bytes(g->mod->types, val_type(g, v)), .begin = -1, .g = g, .shown = v};
    vec_push(a->arena, &a->placed->buffers.list, b);
    return (Loc){.buffer = (int)a->placed->buffers.list.n};
}

/* Slices of a stack follow each other unless its home keeps them apart. */
static Loc slice_of(const Alloc *a, Loc whole, int depth, int64_t bytes) {
    int64_t pitch = a->placed->buffers.list.data[whole.buffer - 1].pitch_bytes;
    whole.stride[depth] = pitch != 0 && depth == 0 ? pitch : bytes;
    return whole;
}

static void touch(Alloc *a, Loc loc) {
    PlaceBuffer *b = buffer_at(a, loc);
    if (b->begin < 0) b->begin = a->now;
    b->end = a->now;
    b->tasks |= 1u << a->task;
}

/* ---- homes, backwards ------------------------------------------------------------------- */

static bool same_loc(const Loc *a, const Loc *b) {
    return a->buffer == b->buffer && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* Gives the value that `v` shows its home. */
static void give_home(Level *l, Val v, Loc home) {
    Loc *loc = &l->loc[l->scan.base[v.id].id];
    if (loc->buffer != 0 && !same_loc(loc, &home))
        panic_graph(l->g, (Span){0}, "place: value %%%u has two homes", v.id - 1);
    *loc = home;
}

/* The operand whose buffer result r of kernel i may take over; -1 none. What an earlier task made
 * does not lie in a window of this one. */
static int find_dying(const Alloc *a, const Level *l, int i, int r) {
    const Node *n = l->g->node[i];
    for (int k = 0; k < n->nin; k++) {
        Val base = l->scan.base[n->in[k].id];
        const PlaceUses *uses = &l->scan.uses[base.id];
        int maker = place_maker(l->g, base);
        if (maker < 0 || l->loc[base.id].buffer != 0 || l->scan.outputs[base.id] > 0) continue;
        if (place_is_workspace(l->g, base) || l->g->node[maker]->op != OP_kernel) continue;
        if (l->depth == 0 && a->options->windows &&
            place_task(l->g->node[maker], a->options) != place_task(n, a->options))
            continue;
        if (uses->data[uses->n - 1].node != i) continue;
        if (uses->n > 1 && uses->data[uses->n - 2].node == i) continue; /* read twice here */
        if (place_is_pointwise(n, k, r)) return k;
    }
    return -1;
}

/* Whether another value than the result may lie in its buffer, written earlier: what a repeat's
 * carried result starts from, or a value that dies in a kernel pointwise in it. */
static bool takes_over(const Graph *g, const PlaceScan *scan, const Node *n, int r) {
    if (n->op == OP_repeat) return r < node_int(n, ATTR_ncarry, 0);
    for (int k = 0; k < n->nin; k++)
        if (place_maker(g, scan->base[n->in[k].id]) >= 0 && place_is_pointwise(n, k, r))
            return true;
    return false;
}

/* Whether repeat n may write slice after slice of its stacked result r over its stacked operand k:
 * an iteration has read its slice when it writes there, or reads it at the place that it writes. */
static bool replaces_slices(const Node *n, int k, int r, Arena *arena) {
    int64_t ncarry = node_int(n, ATTR_ncarry, 0), nconst = node_int(n, ATTR_nconst, 0);
    if (k < ncarry + nconst || r < ncarry) return false;
    const Graph *body = n->body;
    const PlaceScan scan = place_scan(body, arena);
    Val x = body->in[k], y = scan.base[body->out[r].id];
    const PlaceUses *uses = &scan.uses[x.id];
    int maker = place_maker(body, y), result = (int)body->val[y.id].result, times = 0;
    const TypeTable *types = body->mod->types;
    if (type_bytes(types, val_type(body, x)) != type_bytes(types, val_type(body, y))) return false;
    if (maker < 0 || scan.outputs[x.id] > 0) return false;
    if (takes_over(body, &scan, body->node[maker], result)) return false;
    for (uint32_t u = 0; u < uses->n; u++) {
        if (uses->data[u].node > maker) return false;
        if (uses->data[u].node < maker) continue;
        const Node *writer = body->node[maker];
        int operand = uses->data[u].operand;
        bool in_step = writer->op == OP_repeat ? replaces_slices(writer, operand, result, arena)
                                               : place_is_pointwise(writer, operand, result);
        if (!in_step || ++times > 1) return false;
    }
    return true;
}

/* The stacked operand of repeat i whose buffer its stacked result r may take over; -1 none. Only
 * input gradients that are a task of their own stack what a later task reads. */
static int find_dying_slices(const Alloc *a, const Level *l, int i, int r) {
    const Node *n = l->g->node[i];
    if (l->depth > 0 || !a->options->split) return -1;
    for (int k = 0; k < n->nin; k++) {
        Val base = l->scan.base[n->in[k].id];
        const PlaceUses *uses = &l->scan.uses[base.id];
        if (place_maker(l->g, base) < 0 || l->loc[base.id].buffer != 0) continue;
        if (l->scan.outputs[base.id] > 0 || place_is_workspace(l->g, base)) continue;
        if (uses->data[uses->n - 1].node != i) continue;
        if (uses->n > 1 && uses->data[uses->n - 2].node == i) continue; /* read twice here */
        if (replaces_slices(n, k, r, a->arena)) return k;
    }
    return -1;
}

static void give_results(Alloc *a, Level *l, int i) {
    const Node *n = l->g->node[i];
    for (int r = 0; r < n->nout; r++) {
        Val v = node_out(n, r);
        if (l->loc[v.id].buffer == 0) {
            l->loc[v.id] = new_buffer(a, l->g, v);
            buffer_at(a, l->loc[v.id])->is_plain = n->op == OP_kernel;
        }
        if (n->op == OP_repeat && r < node_int(n, ATTR_ncarry, 0)) {
            give_home(l, n->in[r], l->loc[v.id]);
            continue;
        }
        const PlaceBuffer *b = buffer_at(a, l->loc[v.id]);
        if (b->region != REGION_none || a->options->no_reuse) continue;
        int dying = n->op == OP_repeat ? find_dying_slices(a, l, i, r)
                    : b->is_plain      ? find_dying(a, l, i, r)
                                       : -1;
        if (dying >= 0) l->loc[l->scan.base[n->in[dying].id].id] = l->loc[v.id];
    }
}

/* ---- lifetimes, forwards ---------------------------------------------------------------- */

static void place_level(Alloc *a, Level *l, const Loc *home);

static void write_addr(Level *l, Val v) {
    Addr *addr = &l->g->val[v.id].addr;
    *addr = (Addr){.region = REGION_none, .offset_bytes = l->loc[v.id].buffer};
    memcpy(addr->stride_bytes, l->loc[v.id].stride, sizeof addr->stride_bytes);
}

static void place_body(Alloc *a, Level *outer, const Node *n) {
    Graph *body = n->body;
    if (outer->depth >= REPEAT_DEPTH_MAX)
        panic_graph(outer->g, n->span, "place: repeats nest deeper than %d", REPEAT_DEPTH_MAX);
    int64_t ncarry = node_int(n, ATTR_ncarry, 0), nconst = node_int(n, ATTR_nconst, 0);
    Level l = {.g = body, .depth = outer->depth + 1, .scan = place_scan(body, a->arena)};
    l.loc = ARENA_ARRAY(a->arena, Loc, body->nval);
    Loc *home = ARENA_ARRAY(a->arena, Loc, body->nout);
    for (int i = 0; i < n->nin; i++) {
        Loc loc = outer->loc[outer->scan.base[n->in[i].id].id];
        if (i >= ncarry + nconst)
            loc = slice_of(a, loc, outer->depth, place_slice_bytes(outer->g, n->in[i], n));
        l.loc[body->in[i].id] = loc;
    }
    for (int r = 0; r < n->nout; r++) {
        home[r] = outer->loc[node_out(n, r).id];
        if (r >= ncarry)
            home[r] =
                slice_of(a, home[r], outer->depth, place_slice_bytes(outer->g, node_out(n, r), n));
    }
    place_level(a, &l, home);
}

static void touch_operands(Alloc *a, Level *l, const Node *n) {
    for (int i = 0; i < n->nin; i++) touch(a, l->loc[l->scan.base[n->in[i].id].id]);
}

static void touch_results(Alloc *a, Level *l, const Node *n) {
    for (int r = 0; r < n->nout; r++) touch(a, l->loc[node_out(n, r).id]);
}

static void live_through(Alloc *a, Level *l, const Node *n) {
    if (l->depth == 0) a->task = place_task(n, a->options);
    a->now++;
    touch_operands(a, l, n);
    touch_results(a, l, n);
    if (n->op != OP_repeat) return;
    place_body(a, l, n);
    a->now++;
    touch_operands(a, l, n);
    touch_results(a, l, n);
}

/* Places a graph whose inputs have their places already. `home` has a buffer for each output that
 * has a home. */
static void place_level(Alloc *a, Level *l, const Loc *home) {
    for (int k = 0; k < l->g->nout; k++)
        if (home[k].buffer != 0) give_home(l, l->g->out[k], home[k]);
    for (int i = l->g->nnode - 1; i >= 0; i--)
        if (l->g->node[i]->op != OP_reshape) give_results(a, l, i);
    for (int i = 0; i < l->g->nnode; i++) {
        const Node *n = l->g->node[i];
        if (n->op != OP_reshape)
            live_through(a, l, n);
        else
            l->loc[n->out.id] = l->loc[l->scan.base[n->out.id].id];
    }
    for (uint32_t v = 1; v < l->g->nval; v++) write_addr(l, (Val){v});
}

/* ---- the whole graph -------------------------------------------------------------------- */

static Loc port_buffer(Alloc *a, PlaceFixed *fixed, Graph *g, Val v, const Port *port) {
    Addr addr;
    if (!fixed(g->mod, g, port, &addr)) return (Loc){0};
    Loc loc = new_buffer(a, g, v);
    PlaceBuffer *b = buffer_at(a, loc);
    b->region = addr.region;
    b->offset_bytes = addr.offset_bytes;
    b->pitch_bytes = addr.pitch_bytes;
    b->shard_bytes = addr.shard_bytes;
    b->bytes = place_extent(g, v, addr.pitch_bytes);
    return loc;
}

/* Buffer numbers become addresses. A pitch is of the whole stack, which bodies do not see. */
static void resolve(Alloc *a, Graph *g, bool top) {
    for (uint32_t v = 1; v < g->nval; v++) {
        Addr *addr = &g->val[v].addr;
        const PlaceBuffer *b = &a->placed->buffers.list.data[addr->offset_bytes - 1];
        addr->region = b->region;
        addr->offset_bytes = b->offset_bytes;
        addr->pitch_bytes = top ? b->pitch_bytes : 0;
        addr->shard_bytes = b->shard_bytes;
    }
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op == OP_repeat) resolve(a, g->node[i]->body, false);
}

Placed place_graph(Graph *g, PlaceFixed *fixed, const PlaceOptions *options, Arena *arena) {
    Placed placed = {.slot_bytes = 0};
    Alloc a = {.placed = &placed, .options = options, .arena = arena};
    Level l = {.g = g, .scan = place_scan(g, arena), .loc = ARENA_ARRAY(arena, Loc, g->nval)};
    Loc *home = ARENA_ARRAY(arena, Loc, g->nout);
    for (int i = 0; i < g->nin; i++) {
        l.loc[g->in[i].id] = port_buffer(&a, fixed, g, g->in[i], &g->in_port[i]);
        if (l.loc[g->in[i].id].buffer == 0)
            panic_graph(g, (Span){0}, "place: input %d has no address", i);
    }
    for (int k = 0; k < g->nout; k++) {
        int x = place_occupant(g, k);
        if (!place_role_is_fixed(g->out_port[k].role)) continue;
        home[k] =
            x >= 0 ? l.loc[g->in[x].id] : port_buffer(&a, fixed, g, g->out[k], &g->out_port[k]);
    }
    place_level(&a, &l, home);
    a.now++;
    for (int k = 0; k < g->nout; k++) touch(&a, l.loc[l.scan.base[g->out[k].id].id]);
    place_pack(&placed, options, arena);
    resolve(&a, g, true);
    return placed;
}
