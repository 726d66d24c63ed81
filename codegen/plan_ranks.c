/* plan_ranks.c - what the ranks of a pipeline hand to each other, with its addresses.
 *
 * Reads   the schedule table, every rank's module after place.
 * Writes  Program's messages and shares; the windows of tasks; the tasks of an evaluation.
 *
 * Messages of a step come first, in the order of the table; those of one batch of eval follow.
 */
#include "codegen/program.h"

#include "ir/panic.h"

static const PlaceChunk *place_of(const Program *p, int chunk) {
    return &p->rank[p->table->home[chunk]]->place[p->table->local[chunk]];
}

static int64_t window_at(const PlaceChunk *c, Window w, int slot) {
    return slot < 0 ? 0 : c->window_begin[w] + slot * c->window_bytes[w];
}

static void check_bytes(int64_t sent, int64_t received, int from, int to) {
    if (sent != received)
        panic_graph(NULL, (Span){0}, "chunk %d sends %lld bytes, chunk %d expects %lld", from,
                    (long long)sent, to, (long long)received);
}

void plan_messages(Program *p) {
    for (int i = 0; i < p->table->nmessage; i++) {
        const Message *m = &p->table->message[i];
        bool gradient = m->kind == MESSAGE_gradient;
        PlanMessage row = {.gradient = gradient,
                           .from = m->from,
                           .to = m->to,
                           .from_rank = m->from_rank,
                           .to_rank = m->to_rank,
                           .microbatch = m->microbatch,
                           .slot = m->slot};
        if (p->mod->chunk != NULL) {
            Window send = gradient ? WINDOW_send_grad : WINDOW_send;
            Window recv = gradient ? WINDOW_recv_grad : WINDOW_recv;
            const PlaceChunk *from = place_of(p, m->from), *to = place_of(p, m->to);
            row.bytes = from->train_bytes[send];
            check_bytes(row.bytes, to->train_bytes[recv], m->from, m->to);
            row.from_at = window_at(from, send, m->microbatch % 2);
            row.to_at = window_at(to, recv, m->slot);
        }
        vec_push(p->arena, &p->messages, row);
    }
}

/* ---- tasks -------------------------------------------------------------------------------- */

static bool is_local(const Table *t, int from, int to) {
    return from >= 0 && to < t->chunks && table_is_local(t, from, to);
}

/* What goes to a chunk of the same rank is written where that one reads it. */
static int64_t given_at(const Program *p, int chunk, int to, Window send, Window recv, int slot) {
    if (is_local(p->table, chunk < to ? chunk : to, chunk < to ? to : chunk))
        return window_at(place_of(p, to), recv, slot);
    return window_at(place_of(p, chunk), send, slot);
}

void plan_windows(const Program *p, const Task *t, PlanTask *row) {
    if (p->mod->place == NULL || (p->mod->chunk == NULL && t->local > 0)) return;
    const PlaceChunk *c = &p->mod->place[t->local];
    row->window[PLAN_WINDOW_data] = c->data_begin + t->slot * c->data_bytes;
    row->window[PLAN_WINDOW_slot] = c->slot_begin + t->slot * c->slot_bytes;
    if (p->mod->chunk == NULL) return;
    row->window[PLAN_WINDOW_recv] = window_at(c, WINDOW_recv, t->window[WINDOW_recv]);
    row->window[PLAN_WINDOW_recv_grad] =
        window_at(c, WINDOW_recv_grad, t->window[WINDOW_recv_grad]);
    if (t->window[WINDOW_send] >= 0)
        row->window[PLAN_WINDOW_send] =
            given_at(p, t->chunk, t->chunk + 1, WINDOW_send, WINDOW_recv, t->window[WINDOW_send]);
    if (t->window[WINDOW_send_grad] >= 0)
        row->window[PLAN_WINDOW_send_grad] =
            given_at(p, t->chunk, t->chunk - 1, WINDOW_send_grad, WINDOW_recv_grad,
                     t->window[WINDOW_send_grad]);
}

/* ---- evaluation --------------------------------------------------------------------------- */

/* The message from a chunk to the next one of a batch of eval: made when first asked for. */
static int32_t eval_message(Program *p, int from) {
    const Table *t = p->table;
    int to = from + 1;
    if (from < 0 || to >= t->chunks || table_is_local(t, from, to)) return -1;
    for (uint32_t i = (uint32_t)t->nmessage; i < p->messages.n; i++)
        if (p->messages.data[i].from == from) return (int32_t)i;
    const PlaceChunk *a = place_of(p, from), *b = place_of(p, to);
    PlanMessage row = {.from = from,
                       .to = to,
                       .from_rank = t->home[from],
                       .to_rank = t->home[to],
                       .bytes = a->eval_bytes[WINDOW_send],
                       .from_at = window_at(a, WINDOW_send, 0),
                       .to_at = window_at(b, WINDOW_recv, 0)};
    check_bytes(row.bytes, b->eval_bytes[WINDOW_recv], from, to);
    vec_push(p->arena, &p->messages, row);
    return (int32_t)p->messages.n - 1;
}

static void push_message_task(Program *p, PlanTaskKind kind, int chunk, int32_t message) {
    PlanTask row = {
        .kind = (uint8_t)kind, .chunk = chunk, .local = p->table->local[chunk], .message = message};
    if (message >= 0) vec_push(p->arena, &p->tasks, row);
}

void plan_eval_tasks(Program *p, uint32_t first) {
    const Table *t = p->table;
    uint32_t begin = p->tasks.n;
    for (int c = 0; c < t->chunks; c++) {
        if (t->home[c] != p->mod->rank) continue;
        int32_t in = eval_message(p, c - 1), out = eval_message(p, c);
        push_message_task(p, PTASK_recv, c, in);
        PlanTask row = {.kind = PTASK_forward,
                        .chunk = c,
                        .local = t->local[c],
                        .program = first + (uint32_t)t->local[c],
                        .message = in};
        if (c > 0) row.window[PLAN_WINDOW_recv] = window_at(place_of(p, c), WINDOW_recv, 0);
        if (c + 1 < t->chunks)
            row.window[PLAN_WINDOW_send] = given_at(p, c, c + 1, WINDOW_send, WINDOW_recv, 0);
        vec_push(p->arena, &p->tasks, row);
        push_message_task(p, PTASK_send, c, out);
    }
    p->eval_rank[p->mod->rank] = (PlanRank){.task = begin, .ntask = p->tasks.n - begin};
}

/* ---- weights on several ranks --------------------------------------------------------------- */

static bool computes(Module *m, int param, int use) {
    for (int k = 0; k < m->nchunk; k++) {
        const Graph *g = module_chunk_graph(m, "train", k);
        for (int i = 0; i < g->nout; i++) {
            const Port *port = &g->out_port[i];
            if (port->role == ROLE_grad && port->index == param && port->use == use) return true;
        }
    }
    return false;
}

static int64_t gradient_at(const Module *m, const Param *p, int use) {
    return 4 * param_grad_offset(m, p, use);
}

/* The same weight on another rank; NULL when it has none. */
static const Param *find_copy(const Module *m, const Param *p) {
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].origin == p->origin && m->param[i].tensor == p->tensor) return &m->param[i];
    return NULL;
}

/* Where replicas share a weight, with its padding: whole parts of all of them. */
static int64_t share_bytes(const Module *m, const Param *p) {
    int64_t elems = type_elems(m->types, p->type);
    return 4 * (module_is_sharded(m) ? param_use_stride(m, p) : elems);
}

static void share_use(Program *p, int from, const Param *param, int use) {
    const Module *m = p->rank[from];
    for (int r = 0; r < p->nrank; r++) {
        const Param *copy = r != from ? find_copy(p->rank[r], param) : NULL;
        if (copy == NULL) continue;
        PlanShare row = {.from_rank = from,
                         .to_rank = r,
                         .bytes = share_bytes(m, param),
                         .from_at = gradient_at(m, param, use),
                         .to_at = gradient_at(p->rank[r], copy, use)};
        vec_push(p->arena, &p->shares, row);
    }
}

void plan_shares(Program *p) {
    for (int r = 0; r < p->nrank && p->nrank > 1; r++) {
        Module *m = p->rank[r];
        for (int i = 0; i < m->nparam; i++)
            for (int use = 0; use < m->param[i].uses; use++)
                if (computes(m, i, use)) share_use(p, r, &m->param[i], use);
    }
}
