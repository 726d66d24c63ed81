/* place.c - lifetimes over a whole step into byte offsets.
 *
 * Reads   fused graphs, the layout of the parameter vector, the schedule's microbatches in flight.
 * Writes  the address of every value outside kernel bodies, the module's region sizes, and kernel
 *         nodes that copy where a value cannot be made where it must end up.
 * Keeps   all other nodes and their order.
 * Why     a plan that is complete before the run needs no allocator in it, and its peak is known to
 *         the byte. place_check.c replays the plan and fails on any overlap of live bytes.
 *
 * Regions: param, grad, state and copy are flat vectors laid out by optim; f32 weights that one
 * replica alone has are in state, behind the optimizer's own. scalar holds the host's
 * scalars, then loss and count, norm and flag, and the metrics. data holds the staged batch, cache
 * the keys and values of generate. With one microbatch in flight everything else is scratch, so
 * that what the backward pass has read makes room for what it writes; with more, values that the
 * forward leaves to the backward are in slots, one for each microbatch in flight. Programs run one
 * after another and share scratch. Where one microbatch is a step, values lie in the places of
 * gradients that are not written yet. For CUDA a small step's values have a place of their own
 * each.
 */
#include "passes/place.h"

#include "ir/ordered.h"
#include "ir/panic.h"
#include "passes/norm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- fixed addresses -------------------------------------------------------------------- */

enum {
    SCALAR_LOSS_SUM = PLACE_ALIGN, /* behind the host's scalars */
    SCALAR_LOSS_COUNT = 2 * PLACE_ALIGN,
    SCALAR_GRAD_NORM = 3 * PLACE_ALIGN,
    SCALAR_UPDATE_OK = 4 * PLACE_ALIGN,
    SCALAR_METRICS = 5 * PLACE_ALIGN, /* sum and count of each; behind them the squares */
    FLOAT_BYTES = 4,
    HALF_BYTES = 2
};
_Static_assert(SCALAR_COUNT *FLOAT_BYTES <= PLACE_ALIGN, "host scalars");

static int64_t aligned(int64_t bytes) {
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static bool is_batch(const Port *port) {
    return port->role == ROLE_data || port->role == ROLE_valid || port->role == ROLE_position ||
           port->role == ROLE_last;
}

/* Bytes of the batch inputs before `port`; of all of them for NULL. */
static int64_t batch_bytes(const Graph *g, const Port *port) {
    int64_t bytes = 0;
    for (int i = 0; i < g->nin && &g->in_port[i] != port; i++)
        if (is_batch(&g->in_port[i]))
            bytes += aligned(type_bytes(g->mod->types, val_type(g, g->in[i])));
    return bytes;
}

/* Bytes of the caches before number `index`: all programs have the same ones. */
static int64_t cache_bytes(const Graph *g, int64_t index) {
    int64_t bytes = 0;
    for (int i = 0; i < g->nin; i++)
        if (g->in_port[i].role == ROLE_cache && g->in_port[i].index < index)
            bytes += aligned(type_bytes(g->mod->types, val_type(g, g->in[i])));
    return bytes;
}

/* A parameter, its copy in bf16, or its gradient. */
static Addr param_home(const Module *m, const Port *port) {
    const Param *p = &m->param[port->index];
    int64_t bytes = port->role == ROLE_weight_copy ? HALF_BYTES : FLOAT_BYTES;
    Addr home = {.region = REGION_param,
                 .offset_bytes = p->offset_elems * bytes,
                 .pitch_bytes = p->stride_elems * bytes};
    if (port->role == ROLE_weight_copy) home.region = REGION_copy;
    if (port->role != ROLE_grad) return home;
    home.region = REGION_grad;
    home.offset_bytes = param_grad_offset(m, p, port->use) * bytes;
    return home;
}

static int64_t metric_offset(int64_t index) { return SCALAR_METRICS + 2 * index * PLACE_ALIGN; }

/* Bytes of the ports of a role with smaller indices. */
static int64_t ports_before(const Graph *g, Role role, int64_t index) {
    int64_t bytes = 0;
    for (int k = 0; k < g->nin + g->nout; k++) {
        const Port *port = k < g->nin ? &g->in_port[k] : &g->out_port[k - g->nin];
        Val v = k < g->nin ? g->in[k] : g->out[k - g->nin];
        if (port->role == role && port->index < index)
            bytes += aligned(type_bytes(g->mod->types, val_type(g, v)));
    }
    return bytes;
}

static int64_t window_offset(const Graph *g, const Port *port) {
    return ports_before(g, port->role, port->index);
}

int64_t place_window_bytes(const Graph *g, Role role) { return ports_before(g, role, INT64_MAX); }

/* A part of the flat vectors, a replica's own where they share. */
static Addr flat_home(const Module *m, const Port *port) {
    FlatPart part = {0};
    int64_t bytes = port->role == ROLE_flat_copy ? HALF_BYTES : FLOAT_BYTES;
    bool weight = port->role == ROLE_flat_weight || port->role == ROLE_flat_copy;
    bool whole = weight && port->use == 1;
    (whole ? module_flat_segment : module_flat_part)(m, port->index, &part);
    Addr home = {.offset_bytes = part.offset_elems * bytes};
    if (module_is_sharded(m) && !whole) home.shard_bytes = part.elems * bytes;
    home.region = port->role == ROLE_flat_weight ? REGION_param : REGION_copy;
    if (port->role == ROLE_flat_grad) home.region = REGION_grad;
    if (port->role == ROLE_flat_grad && port->use > 0)
        home.offset_bytes = param_grad_offset(m, &m->param[part.tied], port->use) * bytes;
    bool master = port->role == ROLE_flat_weight && part.owned;
    if (port->role != ROLE_flat_state && !master) return home;
    int64_t vectors = master ? m->nstate : port->use;
    home.region = REGION_state;
    home.shard_bytes = 0;
    home.offset_bytes = vectors * module_state_elems(m) * bytes;
    home.offset_bytes += (master ? part.master_elems : part.state_elems) * bytes;
    return home;
}

static int64_t squares_offset(const Module *m) { return metric_offset(module_metrics(m)); }

/* And the ranks' flag. */
static int64_t squares_bytes(const Module *m) { return aligned((m->ntensor + 1) * FLOAT_BYTES); }

/* Sums of the squares of each block of the parameter vector, behind the squares. */
static Addr blocks_home(const Module *m, const Port *port) {
    FlatPart part = {0};
    Addr home = {.region = REGION_scalar, .offset_bytes = squares_offset(m) + squares_bytes(m)};
    if (port->use == 0) {
        home.offset_bytes += m->segment[port->index].offset_elems / PARAM_ALIGN * FLOAT_BYTES;
        return home;
    }
    module_flat_part(m, port->index, &part);
    home.offset_bytes += part.offset_elems / PARAM_ALIGN * FLOAT_BYTES;
    home.shard_bytes = part.elems / PARAM_ALIGN * FLOAT_BYTES;
    return home;
}

bool place_fixed_address(const Module *m, const Graph *g, const Port *port, Addr *addr) {
    int64_t at = 0;
    RegionId region = REGION_scalar;
    switch (port->role) {
    case ROLE_none:
    case ROLE_output:
    case ROLE_count: return false;
    case ROLE_recv: region = REGION_recv, at = window_offset(g, port); break;
    case ROLE_send: region = REGION_send, at = window_offset(g, port); break;
    case ROLE_recv_grad: region = REGION_recv_grad, at = window_offset(g, port); break;
    case ROLE_send_grad: region = REGION_send_grad, at = window_offset(g, port); break;
    case ROLE_data:
    case ROLE_valid:
    case ROLE_position:
    case ROLE_last: region = REGION_data, at = batch_bytes(g, port); break;
    case ROLE_weight:
    case ROLE_weight_copy:
    case ROLE_grad: *addr = param_home(m, port); return true;
    case ROLE_flat_weight:
    case ROLE_flat_grad:
    case ROLE_flat_state:
    case ROLE_flat_copy: *addr = flat_home(m, port); return true;
    case ROLE_blocks: *addr = blocks_home(m, port); return true;
    case ROLE_loss_sum: at = SCALAR_LOSS_SUM; break;
    case ROLE_loss_count: at = SCALAR_LOSS_COUNT; break;
    case ROLE_metric_sum: at = metric_offset(port->index); break;
    case ROLE_metric_count: at = metric_offset(port->index) + PLACE_ALIGN; break;
    case ROLE_scalar: at = port->index * FLOAT_BYTES; break;
    case ROLE_cache: region = REGION_cache, at = cache_bytes(g, port->index); break;
    case ROLE_squares: at = squares_offset(m) + port->index * FLOAT_BYTES; break;
    case ROLE_grad_norm: at = SCALAR_GRAD_NORM; break;
    case ROLE_update_ok: at = SCALAR_UPDATE_OK; break;
    }
    *addr = (Addr){.region = region, .offset_bytes = at};
    return true;
}

static int64_t scalar_bytes(const Module *m) {
    int64_t bytes = squares_offset(m);
    if (norm_is_apart(m) && m->ntensor > 0) bytes += squares_bytes(m);
    if (module_is_sharded(m)) bytes += aligned(m->flat_elems / PARAM_ALIGN * FLOAT_BYTES);
    return bytes;
}

/* ---- the limit -------------------------------------------------------------------------- */

enum { LARGEST_SHOWN = 10 };

/* Runs have room for what they run only. */
typedef enum Run { RUN_train, RUN_generate, RUN_verify, RUN_COUNT } Run;

static Run run_of(const Graph *g) {
    bool generates = strncmp(g->name, "prefill.", 8) == 0 || strcmp(g->name, "decode") == 0;
    return strcmp(g->name, "outputs") == 0 ? RUN_verify : generates ? RUN_generate : RUN_train;
}

/* Of training or generating, whichever needs more; verify, which compares, may need more still. */
static int64_t plan_bytes(const Module *m, const int64_t scratch[RUN_COUNT]) {
    static const RegionId both[] = {REGION_param, REGION_copy, REGION_scalar, REGION_data};
    static const RegionId trains[] = {REGION_grad, REGION_state, REGION_slot, REGION_message,
                                      REGION_sum};
    int64_t shared = 0, training = scratch[RUN_train];
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) shared += m->region_bytes[both[i]];
    for (size_t i = 0; i < sizeof trains / sizeof *trains; i++)
        training += m->region_bytes[trains[i]];
    int64_t generating = m->region_bytes[REGION_cache] + scratch[RUN_generate];
    return shared + (training > generating ? training : generating);
}

typedef struct Holder {
    int64_t bytes;
    const char *what;
    Span span;
} Holder;

typedef struct Holders {
    VEC(Holder) list;
} Holders;

static void hold_params(const Module *m, Holders *h, Arena *arena) {
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        int64_t bytes = type_bytes(m->types, p->type), uses = p->uses > 1 ? p->uses : 1;
        int64_t half = m->region_bytes[REGION_copy] > 0 ? bytes / 2 : 0;
        int64_t owned = m->nstate + (param_is_owned(m, p) ? 1 : 0);
        int64_t whole = uses + (param_is_owned(m, p) ? 0 : 1);
        if (module_is_sharded(m))
            half += owned * bytes / m->parallel.dp;
        else
            whole += owned;
        Holder row = {.bytes = whole * bytes + half,
                      .span = p->span,
                      .what = arena_printf(arena, "parameter '%s', gradient and %d state%s",
                                           p->name, m->nstate, m->nstate == 1 ? "" : "s")};
        vec_push(arena, &h->list, row);
    }
}

static void hold_sums(const Module *m, Holders *h, Arena *arena) {
    Holder row = {.bytes = m->region_bytes[REGION_sum],
                  .what = "gradients of other replicas on their way into sums"};
    if (row.bytes > 0) vec_push(arena, &h->list, row);
}

static void hold_buffers(const Graph *g, const Placed *placed, Holders *h, Arena *arena) {
    Holder batch = {.bytes = batch_bytes(g, NULL),
                    .what = arena_printf(arena, "staged batch of %s", g->name)};
    if (batch.bytes > 0) vec_push(arena, &h->list, batch);
    Holder caches = {.bytes = cache_bytes(g, INT64_MAX),
                     .what = "keys and values of the context of generate"};
    if (caches.bytes > 0 && strcmp(g->name, "decode") == 0) vec_push(arena, &h->list, caches);
    for (uint32_t i = 0; i < placed->buffers.list.n; i++) {
        const PlaceBuffer *b = &placed->buffers.list.data[i];
        if (b->region != REGION_slot && b->region != REGION_scratch) continue;
        const Node *n = val_node(b->g, b->shown);
        const char *name = n->op == OP_kernel ? node_attr(n, ATTR_name)->s : op_name(n->op);
        Holder row = {.bytes = b->bytes,
                      .span = n->span,
                      .what = arena_printf(arena, "%s in %s", name, g->name)};
        vec_push(arena, &h->list, row);
    }
}

static int by_bytes(const void *x, const void *y) {
    const Holder *a = *(const Holder *const *)x, *b = *(const Holder *const *)y;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* E024 with the largest buffers when the regions do not fit. */
static bool within_limit(const PassContext *ctx, const Holders *h) {
    const Module *m = ctx->mod;
    int64_t total = m->plan_bytes, limit = ctx->options->memory_limit_bytes;
    if (limit == 0 || total <= limit) return true;
    const char *whose =
        m->nrank > 1 ? arena_printf(ctx->scratch, " of rank %d of %d", m->rank, m->nrank) : "";
    DiagRef ref = diag_error(m->diag, E024, (Span){0},
                             "the plan%s needs %" PRId64 " bytes, the limit is %" PRId64, whose,
                             total, limit);
    const Holder **row = ARENA_ARRAY(ctx->scratch, const Holder *, h->list.n);
    for (uint32_t i = 0; i < h->list.n; i++) row[i] = &h->list.data[i];
    qsort(row, h->list.n, sizeof *row, by_bytes);
    for (uint32_t i = 0; i < h->list.n && i < LARGEST_SHOWN; i++) {
        const char *at =
            row[i]->span.file != 0 ? diag_place(m->diag, row[i]->span, row[i]->span) : "";
        diag_note(m->diag, ref, "%12" PRId64 " bytes  %s%s%s", row[i]->bytes, row[i]->what,
                  at[0] != '\0' ? " at " : "", at);
    }
    if (!ctx->options->may_chunk_loss || !ctx->options->may_recompute)
        diag_hint(m->diag, ref,
                  "train.chunk_loss and train.recompute trade time for memory; where they are not "
                  "written, the plan chooses them");
    return false;
}

/* ---- the pass --------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* With reduce = ordered, sums of gradients that wait for others; on a device what it adds up beside
 * them, too. */
static int64_t gradient_bytes(const PassContext *ctx) {
    const Module *m = ctx->mod;
    if (!m->parallel.ordered || ctx->table == NULL) return m->grad_elems * FLOAT_BYTES;
    const Ordered *o = ordered_make(ctx->scratch, ctx->table, (int)m->parallel.dp);
    OrderedRoom room = ordered_room(o, m, squares_offset(m) - SCALAR_LOSS_SUM);
    return m->target == TARGET_cuda ? room.end : room.buffers_end;
}

/* What is on its way between replicas. With reduce = ordered a piece of the sums of each, and the
 * own one; else pieces of a bucket from each of the others, all of it where it is small. */
enum { TOLD_BYTES = 1 << 20, PIECES_BYTES_MAX = 8 << 20, PIECES_BYTES_MIN = 64 << 10 };

static int64_t sum_bytes(const Module *m) {
    int64_t dp = m->parallel.dp, part = 0;
    if (dp <= 1 || m->target == TARGET_cuda) return 0;
    if (m->parallel.ordered) return (dp + 1) * TOLD_BYTES;
    for (int i = 0; i < m->nbucket; i++) part = larger(part, m->bucket[i].elems * FLOAT_BYTES / dp);
    int64_t most = larger(PIECES_BYTES_MAX / (dp - 1), PIECES_BYTES_MIN);
    return (dp - 1) * (part < most ? part : most);
}

static void size_flat_regions(PassContext *ctx) {
    Module *m = ctx->mod;
    for (int i = 0; i < REGION_count; i++) m->region_bytes[i] = 0;
    bool copies = module_graph(m, "copy") != NULL || module_master_elems(m) > 0;
    m->region_bytes[REGION_param] = module_whole_elems(m) * FLOAT_BYTES;
    m->region_bytes[REGION_grad] = gradient_bytes(ctx);
    m->region_bytes[REGION_state] =
        (m->nstate * module_state_elems(m) + module_master_elems(m)) * FLOAT_BYTES;
    m->region_bytes[REGION_copy] = copies ? m->flat_elems * HALF_BYTES : 0;
    m->region_bytes[REGION_scalar] = scalar_bytes(m);
    m->region_bytes[REGION_sum] = sum_bytes(m);
    for (int i = 0; i < m->ngraph; i++) {
        m->region_bytes[REGION_data] =
            larger(m->region_bytes[REGION_data], batch_bytes(m->graph[i], NULL));
        m->region_bytes[REGION_cache] =
            larger(m->region_bytes[REGION_cache], cache_bytes(m->graph[i], INT64_MAX));
    }
}

/* On CUDA the gradients of weights and of activations run side by side unless one is written over
 * what the other reads. Where that costs little memory, values of the step stay apart. */
enum { APART_BYTES_MAX = 512 << 20 };

static PlaceOptions graph_options(const PassContext *ctx, Graph *g, PlaceOptions options) {
    const Module *m = ctx->mod;
    options.lend = m->train.microbatches == 1 && m->nchunk == 1 && strcmp(g->name, "train") == 0;
    PlaceOptions apart = options;
    apart.no_reuse = true;
    bool train = strncmp(g->name, "train", 5) == 0;
    if (m->target != TARGET_cuda || !train || ctx->options->memory_limit_bytes != 0) return options;
    Placed placed = place_graph(g, place_fixed_address, &apart, ctx->scratch);
    return placed.scratch_bytes + placed.slot_bytes <= APART_BYTES_MAX ? apart : options;
}

static PlaceOptions module_options(const PassContext *ctx) {
    const Module *m = ctx->mod;
    const Table *t = ctx->table;
    PlaceOptions o = {.no_reuse = ctx->options->no_reuse, .windows = m->chunk != NULL};
    o.split = t != NULL && table_splits_backward(t, m->rank);
    /* With one chunk and one microbatch in flight the backward follows its forward at once. */
    int most = 0;
    for (int c = 0; t != NULL && t->slots != NULL && c < t->chunks; c++)
        if (t->home[c] == m->rank && t->slots[c] > most) most = t->slots[c];
    o.slots = o.split || most > 1 || m->nchunk > 1;
    return o;
}

/* Whether the graph is what chunk `local` of this rank runs in a step. */
static bool is_of_chunk(Module *m, const Graph *g, int local) {
    return strcmp(g->name, module_chunk_name(m, "train", local)) == 0 ||
           strcmp(g->name, module_chunk_name(m, "train.add", local)) == 0;
}

/* What a step keeps of each chunk, once for each microbatch in flight. */
static void size_slots(PassContext *ctx, const int64_t *slot_bytes) {
    Module *m = ctx->mod;
    const Table *t = ctx->table;
    if (t == NULL || t->slots == NULL || (m->chunk == NULL && t->chunks > 1)) return;
    int64_t slots = 0, data = 0;
    for (int c = 0; c < t->chunks; c++) {
        if (t->home[c] != m->rank) continue;
        PlaceChunk *chunk = &m->place[t->local[c]];
        chunk->slots = t->slots[c];
        chunk->slot_begin = slots;
        chunk->data_begin = data;
        const Graph *g = module_chunk_graph(m, "train", t->local[c]);
        chunk->slot_bytes = slot_bytes[t->local[c]];
        chunk->data_bytes = batch_bytes(g, NULL);
        slots += chunk->slots * chunk->slot_bytes;
        data += chunk->slots * chunk->data_bytes;
    }
    m->region_bytes[REGION_slot] = slots;
    m->region_bytes[REGION_data] = larger(m->region_bytes[REGION_data], data);
}

/* The windows of each chunk, behind one another in the region of messages. */
static void size_windows(PassContext *ctx) {
    static const Role roles[WINDOW_COUNT] = {ROLE_recv, ROLE_send, ROLE_recv_grad, ROLE_send_grad};
    Module *m = ctx->mod;
    const Table *t = ctx->table;
    int64_t at = 0;
    for (int c = 0; m->chunk != NULL && c < t->chunks; c++) {
        if (t->home[c] != m->rank) continue;
        PlaceChunk *chunk = &m->place[t->local[c]];
        const Graph *train = module_chunk_graph(m, "train", t->local[c]);
        const Graph *eval = module_chunk_graph(m, "eval", t->local[c]);
        for (int w = 0; w < WINDOW_COUNT; w++) {
            chunk->train_bytes[w] = place_window_bytes(train, roles[w]);
            if (eval != NULL) chunk->eval_bytes[w] = place_window_bytes(eval, roles[w]);
            int64_t bytes = larger(chunk->train_bytes[w], chunk->eval_bytes[w]);
            int64_t *most = &m->region_bytes[REGION_recv + w];
            *most = larger(*most, bytes);
            chunk->window_begin[w] = at;
            chunk->window_bytes[w] = bytes;
            at += t->windows[c][w] * bytes;
        }
    }
    m->region_bytes[REGION_message] = at;
}

bool pass_place(PassContext *ctx) {
    Module *m = ctx->mod;
    if (!place_accepts(m)) return false;
    PlaceOptions options = module_options(ctx);
    Holders holders = {{0}};
    int nchunk = m->chunk != NULL ? m->nchunk : 1;
    int64_t *slot_bytes = ARENA_ARRAY(ctx->scratch, int64_t, nchunk);
    m->place = ARENA_ARRAY(m->arena, PlaceChunk, nchunk);
    int64_t scratch[RUN_COUNT] = {0};
    size_flat_regions(ctx);
    if (m->chunk != NULL) size_windows(ctx);
    hold_params(m, &holders, ctx->scratch);
    hold_sums(m, &holders, ctx->scratch);
    for (int i = 0; i < m->ngraph; i++) {
        if (options.windows || options.split)
            m->graph[i] = place_windows(m->graph[i], &options, ctx->scratch);
        m->graph[i] = place_copies(m->graph[i], &options, ctx->scratch);
        PlaceOptions own = graph_options(ctx, m->graph[i], options);
        Placed placed = place_graph(m->graph[i], place_fixed_address, &own, ctx->scratch);
        Run run = run_of(m->graph[i]);
        scratch[run] = larger(scratch[run], placed.scratch_bytes);
        m->region_bytes[REGION_scratch] =
            larger(m->region_bytes[REGION_scratch], placed.scratch_bytes);
        m->region_bytes[REGION_slot] = larger(m->region_bytes[REGION_slot], placed.slot_bytes);
        for (int c = 0; c < nchunk; c++)
            if (is_of_chunk(m, m->graph[i], c))
                slot_bytes[c] = larger(slot_bytes[c], placed.slot_bytes);
        if (run != RUN_verify) hold_buffers(m->graph[i], &placed, &holders, ctx->scratch);
    }
    size_slots(ctx, slot_bytes);
    m->plan_bytes = plan_bytes(m, scratch);
    for (int i = 0; i < m->ngraph; i++) {
        const char *why = place_check(m->graph[i], place_fixed_address, &options, ctx->scratch);
        if (why != NULL) panic_graph(m->graph[i], (Span){0}, "place: %s", why);
    }
    return within_limit(ctx, &holders);
}
