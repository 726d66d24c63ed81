/* fuse_early.c - backward nodes that run with the forward.
 *
 * What the backward pass computes from forward values alone can be computed as soon as those exist.
 * Softmax, cross-entropy and the gradient of the logits are the case that matters: done at once
 * they are one pass over the logits that leaves one tensor, done in two phases they leave the
 * logits and the row statistics to be read again.
 *
 * A connected set of such nodes moves into the forward phase when it reads row statistics and what
 * it leaves behind is no larger than what then need not be kept for it.
 */
#include "passes/fuse.h"

typedef struct Early {
    Fuse *f;
    int *set; /* by node: its connected set (the smallest node), -1 outside */
} Early;

static int find_set(const Early *e, int i) {
    while (e->set[i] != i) i = e->set[i];
    return i;
}

static void join_sets(Early *e, int i, int k) {
    int a = find_set(e, i), b = find_set(e, k);
    if (a < b)
        e->set[b] = a;
    else
        e->set[a] = b;
}

static bool available(const Early *e, Val root) {
    int i = root.id != 0 ? fuse_node_index(e->f, root) : -1;
    return i < 0 || e->f->g->node[i]->phase == PHASE_F || e->set[i] >= 0;
}

static bool is_candidate(const Early *e, int i) {
    const Node *n = e->f->g->node[i];
    if (n->phase != PHASE_I || e->f->class[i] == FUSE_inline) return false;
    if (e->f->class[i] != FUSE_reduce && op_kind(n->op) != KIND_elementwise) return false;
    for (int k = 0; k < n->nin; k++)
        if (!available(e, fuse_chain(e->f, n->in[k]).root)) return false;
    return true;
}

static bool in_set(const Early *e, int i, int set) {
    return e->set[i] >= 0 && find_set(e, i) == set;
}

static int64_t bytes_of(const Early *e, Val v) {
    return type_bytes(e->f->g->mod->types, val_type(e->f->g, v));
}

/* Bytes of value v if somebody outside the set reads it. */
static int64_t left_behind(const Early *e, Val v, int set) {
    bool outside = e->f->kept[v.id];
    const IntVec *users = &e->f->users[v.id];
    for (uint32_t k = 0; k < users->n && !outside; k++) outside = !in_set(e, users->data[k], set);
    return outside ? bytes_of(e, v) : 0;
}

/* Bytes of a forward value that the backward pass keeps only for this set. */
static int64_t kept_for(const Early *e, Val v, int set) {
    if (e->f->kept[v.id]) return 0;
    const IntVec *users = &e->f->users[v.id];
    for (uint32_t k = 0; k < users->n; k++) {
        int user = users->data[k];
        if (e->f->g->node[user]->phase != PHASE_F && !in_set(e, user, set)) return 0;
    }
    return bytes_of(e, v);
}

typedef struct Balance {
    int64_t behind, kept;
    bool rows;  /* reads or makes row statistics */
    bool *seen; /* by value: forward values counted */
} Balance;

static void weigh_node(const Early *e, int i, int set, Balance *balance) {
    const Node *n = e->f->g->node[i];
    balance->behind += left_behind(e, n->out, set);
    balance->rows |= e->f->class[i] == FUSE_reduce;
    for (int k = 0; k < n->nin; k++) {
        FuseChain c = fuse_chain(e->f, n->in[k]);
        int made_by = c.root.id != 0 ? fuse_node_index(e->f, c.root) : -1;
        if (made_by < 0 || e->f->g->node[made_by]->phase != PHASE_F) continue;
        for (int q = 0; q < c.n; q++) balance->rows |= c.inlined[q]->op == OP_broadcast;
        if (balance->seen[c.root.id]) continue;
        balance->seen[c.root.id] = true;
        balance->kept += kept_for(e, c.root, set);
    }
}

void fuse_early(Fuse *f) {
    const Graph *g = f->g;
    Early e = {.f = f, .set = ARENA_ARRAY(f->scratch, int, g->nnode)};
    for (int i = 0; i < g->nnode; i++) {
        e.set[i] = -1;
        if (!is_candidate(&e, i)) continue;
        e.set[i] = i;
        for (int k = 0; k < g->node[i]->nin; k++) {
            Val root = fuse_chain(f, g->node[i]->in[k]).root;
            int made_by = root.id != 0 ? fuse_node_index(f, root) : -1;
            if (made_by >= 0 && e.set[made_by] >= 0) join_sets(&e, i, made_by);
        }
    }
    for (int set = 0; set < g->nnode; set++) {
        if (e.set[set] != set) continue;
        Balance balance = {.seen = ARENA_ARRAY(f->scratch, bool, g->nval)};
        for (int i = set; i < g->nnode; i++)
            if (in_set(&e, i, set)) weigh_node(&e, i, set, &balance);
        if (!balance.rows || balance.behind > balance.kept) continue;
        for (int i = set; i < g->nnode; i++)
            if (in_set(&e, i, set)) f->phase[i] = PHASE_F;
    }
}
