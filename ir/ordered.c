/* ordered.c - buffers and sums of a tree of microbatches; see ordered.h.
 *
 * Reads   the order of backward tasks in a table, for each chunk and replica.
 * Writes  which buffer a microbatch's gradients go to, and which are added when.
 */
#include "ir/ordered.h"

#include "ir/panic.h"

/* A node on the way to the root: leaves [index << level, (index + 1) << level). */
typedef struct TreeNode {
    int level;
    int64_t index;
    int buffer;
} TreeNode;

typedef struct Stack {
    TreeNode *node;
    int n;
    int64_t leaves; /* of the whole tree */
} Stack;

static Stack stack_new(Arena *arena, int most, int64_t leaves) {
    return (Stack){.node = ARENA_ARRAY(arena, TreeNode, most + 1), .leaves = leaves};
}

/* The right half is there, and the left one before it: they become one node; or there will be no
 * right half, and the node stands for both. False when neither. */
static bool step_up(Stack *s, OrderedAdd *add) {
    if (s->n < 2) return false;
    TreeNode *top = &s->node[s->n - 1], *below = top - 1;
    *add = (OrderedAdd){.into = -1};
    if (top->index % 2 == 1 && below->level == top->level && below->index == top->index - 1) {
        *add = (OrderedAdd){.into = below->buffer, .from = top->buffer};
        s->n--;
    } else if (top->index % 2 == 1 || (top->index + 1) << top->level < s->leaves) {
        return false;
    }
    s->node[s->n - 1].level++;
    s->node[s->n - 1].index /= 2;
    return true;
}

typedef struct Maker {
    Ordered *o;
    Arena *arena;
    VEC(OrderedAdd) add;
    VEC(OrderedPart) part;
    bool *busy; /* by buffer */
} Maker;

static int take_buffer(Maker *k, int *most) {
    int b = 0;
    while (k->busy[b]) b++;
    k->busy[b] = true;
    if (b + 1 > *most) *most = b + 1;
    return b;
}

/* The node of a microbatch is complete: it joins those before it. */
static void push_leaf(Maker *k, Stack *s, OrderedLeaf *leaf, int64_t number) {
    OrderedAdd add;
    s->node[s->n++] = (TreeNode){.index = number, .buffer = leaf->buffer};
    leaf->first = (int)k->add.n;
    while (step_up(s, &add)) {
        if (add.into < 0) continue;
        vec_push(k->arena, &k->add, add);
        k->busy[add.from] = false;
    }
    leaf->nadd = (int)k->add.n - leaf->first;
}

/* The step of one chunk on one replica; returns the nodes that are left. */
static Stack walk_chunk(Maker *k, const Table *t, int chunk, int replica) {
    const Ordered *o = k->o;
    const RankTasks *rank = &t->rank[t->home[chunk]];
    Stack s = stack_new(k->arena, o->microbatches, (int64_t)o->replicas * o->microbatches);
    OrderedLeaf *leaf = &o->leaf[((int64_t)chunk * o->replicas + replica) * o->microbatches];
    for (int b = 0; b < o->microbatches; b++) k->busy[b] = false;
    for (int i = 0; i < rank->ntask; i++) {
        const Task *task = &rank->task[i];
        int m = task->microbatch;
        if (task->chunk != chunk) continue;
        if (task->kind == TASK_backward || task->kind == TASK_input)
            leaf[m].buffer = take_buffer(k, &o->buffers[t->home[chunk]]);
        if (task->kind == TASK_backward || task->kind == TASK_weight)
            push_leaf(k, &s, &leaf[m], (int64_t)replica * o->microbatches + m);
    }
    return s;
}

/* How the nodes of all replicas become the whole: the same for every chunk. */
static void join_parts(Maker *k, Stack *all, const Stack *own, int replica) {
    OrderedAdd add;
    for (int i = 0; i < own->n; i++) {
        OrderedPart part = {.replica = replica};
        all->node[all->n++] = own->node[i];
        while (step_up(all, &add)) part.joins += add.into >= 0;
        vec_push(k->arena, &k->part, part);
    }
}

Ordered *ordered_make(Arena *arena, const Table *t, int replicas) {
    Ordered *o = ARENA_NEW(arena, Ordered);
    *o = (Ordered){.replicas = replicas, .chunks = t->chunks, .microbatches = t->microbatches};
    Maker k = {.o = o, .arena = arena};
    int64_t leaves = (int64_t)replicas * t->microbatches, rows = (int64_t)t->chunks * replicas;
    k.busy = ARENA_ARRAY(arena, bool, t->microbatches + 1);
    o->leaf = ARENA_ARRAY(arena, OrderedLeaf, rows * t->microbatches);
    o->buffers = ARENA_ARRAY(arena, int, t->ranks);
    Stack *left = ARENA_ARRAY(arena, Stack, rows), all = stack_new(arena, (int)leaves, leaves);
    for (int64_t i = 0; i < rows; i++) {
        left[i] = walk_chunk(&k, t, (int)(i / replicas), (int)(i % replicas));
        if (left[i].n > o->most_kept) o->most_kept = left[i].n;
        if (i < replicas) join_parts(&k, &all, &left[i], (int)i);
    }
    o->kept = ARENA_ARRAY(arena, int, rows * o->most_kept);
    for (int64_t i = 0; i < rows; i++)
        for (int n = 0; n < left[i].n; n++) o->kept[i * o->most_kept + n] = left[i].node[n].buffer;
    o->add = k.add.data, o->nadd = (int)k.add.n;
    o->part = k.part.data, o->npart = (int)k.part.n;
    if (all.n != 1) panic_graph(NULL, (Span){0}, "ordered: %d sums are left", all.n);
    return o;
}

/* A replica adds up its share of a bucket, piece by piece: large ones keep the lines busy. */
enum { TOLD_BYTES = 64 << 20 };

static int64_t whole_blocks(int64_t bytes) {
    const int64_t block = PARAM_ALIGN * 4;
    return (bytes + block - 1) / block * block;
}

OrderedRoom ordered_room(const Ordered *o, const Module *m, int64_t figure_bytes) {
    int64_t leaves = (int64_t)o->replicas * o->microbatches, most = 0;
    int64_t piece = whole_blocks(TOLD_BYTES / o->npart);
    OrderedRoom room = {.buffers_end = m->grad_elems * 4 * o->buffers[m->rank]};
    for (int i = 0; i < m->nbucket; i++) {
        int64_t share = m->bucket[i].elems * 4 / o->replicas;
        if (share > most) most = share;
    }
    room.figures_at = room.buffers_end;
    room.told_at = room.figures_at + whole_blocks(leaves * figure_bytes);
    room.told_bytes = piece < most ? piece : most;
    room.end = room.told_at + (o->replicas > 1 ? room.told_bytes * o->npart : 0);
    return room;
}
