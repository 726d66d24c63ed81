/* ordered.h - reduce = ordered: the gradients of microbatches as leaves of one binary tree.
 *
 * Leaf r * n + m is microbatch m of replica r. A node is an aligned range of a power of two of
 * leaves, the sum of its left and its right half; where the right half has no leaves the left one
 * stands for it. So the sum depends on the number of leaves only, not on how many replicas share
 * them.
 *
 * Each microbatch writes its gradients into a buffer of its own; as soon as two halves are complete
 * the right buffer is added to the left one and is free again. At the end of a step a replica is
 * left with the largest nodes that it owns (at most twice the logarithm of the leaves), in
 * ascending order; all replicas' nodes, added in the tree's order, are the whole.
 */
#ifndef INFINIC_IR_ORDERED_H
#define INFINIC_IR_ORDERED_H

#include "ir/module.h"
#include "ir/table.h"

/* One buffer is added to another. */
typedef struct OrderedAdd {
    int into, from;
} OrderedAdd;

/* Where a microbatch's gradients go; what is added when the last of them is written. */
typedef struct OrderedLeaf {
    int buffer;
    int first, nadd; /* of Ordered.add */
} OrderedLeaf;

/* A node that a replica is left with, in the order of the whole tree; behind it the last `joins`
 * sums that are complete then. */
typedef struct OrderedPart {
    int replica, joins;
} OrderedPart;

typedef struct Ordered {
    int replicas, chunks, microbatches;
    OrderedLeaf *leaf; /* [chunk][replica][microbatch] */
    OrderedAdd *add;
    int nadd;
    OrderedPart *part; /* of all replicas, in order */
    int npart;
    int *kept;     /* [chunk][replica][number]: the buffer of each of its parts */
    int most_kept; /* parts of a replica */
    int *buffers;  /* by rank: how many a replica needs, at most */
} Ordered;

/* What a device holds behind a rank's buffers, bytes from the first buffer on: loss, counts and
 * metrics of all leaves, and of each part as much as replicas tell each other at a time. */
typedef struct OrderedRoom {
    int64_t buffers_end; /* the host has a place of its own for what follows */
    int64_t figures_at, told_at, told_bytes, end;
} OrderedRoom;

static inline const OrderedLeaf *ordered_leaf(const Ordered *o, int chunk, int replica, int m) {
    return &o->leaf[((int64_t)chunk * o->replicas + replica) * o->microbatches + m];
}

static inline int ordered_kept(const Ordered *o, int chunk, int replica, int number) {
    return o->kept[((int64_t)chunk * o->replicas + replica) * o->most_kept + number];
}

/* For the backward tasks of a complete table, `replicas` times; kept in `arena`. The first part of
 * the first replica is in buffer 0. */
Ordered *ordered_make(Arena *arena, const Table *t, int replicas);

/* For the rank m, whose buckets are known; `figure_bytes` of each leaf. */
OrderedRoom ordered_room(const Ordered *o, const Module *m, int64_t figure_bytes);

#endif
