/* prove_messages.c - the proof's part on messages and slots. */
#include "passes/prove.h"

static const char *name_of(const Prover *p, const Message *m) {
    return arena_printf(p->arena, "the %s of microbatch %d from chunk %d to chunk %d",
                        m->kind == MESSAGE_activation ? "activation" : "gradient", m->microbatch,
                        m->from, m->to);
}

/* The handover that a message is: twice the edge, plus 1 for a gradient; -1 for none. */
static int handover_of(const Table *t, const Message *m) {
    bool back = m->kind == MESSAGE_gradient;
    int from = back ? m->to : m->from, to = back ? m->from : m->to;
    for (int i = 0; i < t->nedge; i++)
        if (t->edge[i].from == from && t->edge[i].to == to && (!back || t->edge[i].gradient))
            return 2 * i + back;
    return -1;
}

/* Each handover between ranks has its one message, and there are no others. */
static const char *check_needed(const Prover *p) {
    const Table *t = p->t;
    size_t units = (size_t)t->nedge * 2 * (size_t)t->microbatches;
    int *count = ARENA_ARRAY(p->arena, int, units + 1);
    for (int i = 0; i < t->nmessage; i++) {
        const Message *m = &t->message[i];
        int handover = handover_of(t, m);
        if (handover < 0 || m->microbatch < 0 || m->microbatch >= t->microbatches)
            return arena_printf(p->arena, "%s is handed over by nothing", name_of(p, m));
        if (table_is_local(t, m->from, m->to) || m->from_rank != t->home[m->from] ||
            m->to_rank != t->home[m->to])
            return arena_printf(p->arena, "%s goes from rank %d to rank %d", name_of(p, m),
                                m->from_rank, m->to_rank);
        if (++count[handover * t->microbatches + m->microbatch] > 1)
            return arena_printf(p->arena, "%s is sent twice", name_of(p, m));
    }
    for (int i = 0; i < 2 * t->nedge; i++) {
        const ChunkEdge *e = &t->edge[i / 2];
        bool back = i % 2 != 0;
        if (table_is_local(t, e->from, e->to) || (back && !e->gradient)) continue;
        for (int m = 0; m < t->microbatches; m++)
            if (count[i * t->microbatches + m] == 0)
                return arena_printf(p->arena, "chunk %d never gets the %s of microbatch %d",
                                    back ? e->from : e->to, back ? "gradient" : "activation", m);
    }
    return NULL;
}

/* Where each message stands in the lists of its two ranks. */
typedef struct Posted {
    int *sent, *received; /* positions; -1: not */
} Posted;

static const char *note_posted(const Prover *p, const Posted *posted) {
    const Table *t = p->t;
    for (int i = 0; i < t->nmessage; i++) posted->sent[i] = posted->received[i] = -1;
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            const Task *task = &t->rank[r].task[i];
            bool send = task->kind == TASK_send;
            if (!send && task->kind != TASK_recv) continue;
            if (task->message < 0 || task->message >= t->nmessage)
                return arena_printf(p->arena, "rank %d posts message %d of %d", r, task->message,
                                    t->nmessage);
            const Message *m = &t->message[task->message];
            int *at = &(send ? posted->sent : posted->received)[task->message];
            if (r != (send ? m->from_rank : m->to_rank) || *at >= 0)
                return arena_printf(p->arena, "rank %d %s %s%s", r, send ? "sends" : "receives",
                                    name_of(p, m), *at >= 0 ? " twice" : "");
            *at = i;
        }
    return NULL;
}

static const char *check_posted(const Prover *p, const Posted *posted) {
    const Table *t = p->t;
    for (int i = 0; i < t->nmessage; i++) {
        const Message *m = &t->message[i];
        if (posted->sent[i] < 0 || posted->received[i] < 0)
            return arena_printf(p->arena, "rank %d never %s %s",
                                posted->sent[i] < 0 ? m->from_rank : m->to_rank,
                                posted->sent[i] < 0 ? "sends" : "receives", name_of(p, m));
        if (posted->sent[i] < p->task[prove_producer(p, m)].position)
            return arena_printf(p->arena, "rank %d sends %s before it is made", m->from_rank,
                                name_of(p, m));
        if (posted->received[i] > p->task[prove_consumer(p, m)].position)
            return arena_printf(p->arena, "rank %d receives %s after it is used", m->to_rank,
                                name_of(p, m));
    }
    return NULL;
}

typedef VEC(int) Sent;

/* Between two ranks messages arrive in the order in which they were sent: a library without tags
 * would hand over the wrong one otherwise. */
static const char *check_fifo(const Prover *p) {
    const Table *t = p->t;
    size_t pairs = (size_t)t->ranks * (size_t)t->ranks;
    Sent *sent = ARENA_ARRAY(p->arena, Sent, pairs);
    uint32_t *next = ARENA_ARRAY(p->arena, uint32_t, pairs);
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            const Task *task = &t->rank[r].task[i];
            if (task->kind == TASK_send)
                vec_push(p->arena, &sent[r * t->ranks + t->message[task->message].to_rank],
                         task->message);
        }
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            const Task *task = &t->rank[r].task[i];
            if (task->kind != TASK_recv) continue;
            const Message *m = &t->message[task->message];
            int pair = m->from_rank * t->ranks + r;
            int expected = sent[pair].data[next[pair]++];
            if (expected != task->message)
                return arena_printf(p->arena, "rank %d waits for %s when rank %d sends %s", r,
                                    name_of(p, m), m->from_rank, name_of(p, &t->message[expected]));
        }
    return NULL;
}

/* Most messages that a rank holds before it uses them. */
static void count_received(const Prover *p, Proof *proof) {
    const Table *t = p->t;
    proof->received = ARENA_ARRAY(p->arena, int, t->ranks);
    for (int r = 0; r < t->ranks; r++) {
        int *used = ARENA_ARRAY(p->arena, int, t->rank[r].ntask + 1), now = 0;
        for (int i = 0; i < t->nmessage; i++)
            if (t->message[i].to_rank == r)
                used[p->task[prove_consumer(p, &t->message[i])].position]++;
        for (int i = 0; i < t->rank[r].ntask; i++) {
            if (t->rank[r].task[i].kind == TASK_recv) now++;
            if (now > proof->received[r]) proof->received[r] = now;
            now -= used[i];
        }
    }
}

const char *prove_messages(const Prover *p, Proof *proof) {
    Posted posted = {.sent = ARENA_ARRAY(p->arena, int, p->t->nmessage + 1),
                     .received = ARENA_ARRAY(p->arena, int, p->t->nmessage + 1)};
    const char *why = check_needed(p);
    if (why == NULL) why = note_posted(p, &posted);
    if (why == NULL) why = check_posted(p, &posted);
    if (why == NULL) why = check_fifo(p);
    if (why == NULL) count_received(p, proof);
    return why;
}

/* ---- slots -------------------------------------------------------------------------------- */

/* Sets of activations of a rank: whose microbatch lies in each, -1 for none. */
static const char *check_activations(const Prover *p, int rank) {
    const Table *t = p->t;
    int **held = ARENA_ARRAY(p->arena, int *, t->chunks);
    for (int c = 0; c < t->chunks; c++) {
        held[c] = ARENA_ARRAY(p->arena, int, t->slots[c] + 1);
        for (int k = 0; k < t->slots[c]; k++) held[c][k] = -1;
    }
    for (int i = 0; i < t->rank[rank].ntask; i++) {
        const Task *task = &t->rank[rank].task[i];
        if (task->kind >= TASK_update) continue;
        if (task->slot < 0 || task->slot >= t->slots[task->chunk])
            return arena_printf(p->arena, "chunk %d has no slot %d", task->chunk, task->slot);
        int *at = &held[task->chunk][task->slot];
        if (*at != (task->kind == TASK_forward ? -1 : task->microbatch))
            return arena_printf(p->arena, "chunk %d: slot %d of microbatch %d holds microbatch %d",
                                task->chunk, task->slot, task->microbatch, *at);
        if (task->kind == TASK_forward) *at = task->microbatch;
        if (task->kind == TASK_backward || task->kind == TASK_weight) *at = -1;
    }
    return NULL;
}

/* Two messages of one handover in one slot: the second comes after the first is used. */
static const char *check_received(const Prover *p) {
    const Table *t = p->t;
    int *position = ARENA_ARRAY(p->arena, int, t->nmessage + 1);
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++)
            if (t->rank[r].task[i].kind == TASK_recv) position[t->rank[r].task[i].message] = i;
    size_t most = (size_t)t->nedge * 2 * (size_t)(t->microbatches + 1);
    int *last = ARENA_ARRAY(p->arena, int, most + 1); /* message + 1 by handover and slot */
    for (int r = 0; r < t->ranks; r++)
        for (int i = 0; i < t->rank[r].ntask; i++) {
            if (t->rank[r].task[i].kind != TASK_recv) continue;
            int index = t->rank[r].task[i].message;
            const Message *m = &t->message[index];
            if (m->slot < 0 || m->slot >= t->microbatches)
                return arena_printf(p->arena, "%s has slot %d", name_of(p, m), m->slot);
            int *at = &last[handover_of(t, m) * t->microbatches + m->slot];
            if (*at != 0) {
                const Message *before = &t->message[*at - 1];
                if (p->task[prove_consumer(p, before)].position > position[index])
                    return arena_printf(p->arena, "%s is received over %s", name_of(p, m),
                                        name_of(p, before));
            }
            *at = index + 1;
        }
    return NULL;
}

/* Whether the task makes, or uses, what goes over an edge. */
static bool hands(const Task *task, const ChunkEdge *e, bool gradient, bool makes) {
    bool backward = task->kind == TASK_backward || task->kind == TASK_input;
    int chunk = gradient == makes ? e->to : e->from;
    return task->chunk == chunk && (gradient ? backward : task->kind == TASK_forward);
}

/* What a rank hands to itself over one edge: each slot holds one microbatch from the task that
 * makes it to the one that uses it. */
static const char *check_handed(const Prover *p, int edge, bool gradient) {
    const Table *t = p->t;
    const ChunkEdge *e = &t->edge[edge];
    const RankTasks *rank = &t->rank[t->home[e->from]];
    int *held = ARENA_ARRAY(p->arena, int, t->microbatches + 1); /* microbatch + 1 */
    for (int i = 0; i < rank->ntask; i++) {
        const Task *task = &rank->task[i];
        bool makes = hands(task, e, gradient, true), uses = hands(task, e, gradient, false);
        if (!makes && !uses) continue;
        Window w = gradient ? (makes ? WINDOW_send_grad : WINDOW_recv_grad)
                            : (makes ? WINDOW_send : WINDOW_recv);
        int slot = task->window[w];
        if (slot < 0 || slot >= t->microbatches)
            return arena_printf(p->arena, "chunk %d hands microbatch %d over in slot %d",
                                task->chunk, task->microbatch, slot);
        if (held[slot] != (makes ? 0 : task->microbatch + 1))
            return arena_printf(p->arena,
                                "between chunks %d and %d slot %d of microbatch %d holds %d",
                                e->from, e->to, slot, task->microbatch, held[slot] - 1);
        held[slot] = makes ? task->microbatch + 1 : 0;
    }
    return NULL;
}

const char *prove_slots(const Prover *p) {
    const char *why = NULL;
    for (int r = 0; r < p->t->ranks && why == NULL; r++) why = check_activations(p, r);
    for (int i = 0; i < 2 * p->t->nedge && why == NULL; i++) {
        const ChunkEdge *e = &p->t->edge[i / 2];
        bool gradient = i % 2 != 0;
        if (!table_is_local(p->t, e->from, e->to) || (gradient && !e->gradient)) continue;
        why = check_handed(p, i / 2, gradient);
    }
    return why != NULL ? why : check_received(p);
}
