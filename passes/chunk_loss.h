/* chunk_loss.h - what the parts of the chunk_loss pass share: chunk_loss.c finds what is cut into
 * chunks of rows, chunk_loss_body.c writes it as a repeat. */
#ifndef INFINIC_PASSES_CHUNK_LOSS_H
#define INFINIC_PASSES_CHUNK_LOSS_H

#include "passes/rewrite.h"

/* The head is a product with a result [rows, width]. Values of other shapes count as those they are
 * up to a split of the rows, [B, T, width] and [B, T]. */
typedef struct Chunked {
    const Graph *g;
    Arena *scratch;
    const Node *head;
    int64_t rows, width, count;
    bool forward; /* eval: nothing follows from the loss */
    bool *in;     /* by node: its values depend on the head's and are made in chunks */
    bool *pulled; /* by node: as large as the head's result, made in chunks too: masks and such */
    bool *after;  /* by node: not in chunks, but depends on something that is */
} Chunked;

typedef enum ChunkShape {
    CHUNK_other,
    CHUNK_full, /* [rows.., width] */
    CHUNK_rows, /* [rows..] */
} ChunkShape;

ChunkShape chunk_shape(const Chunked *c, Val v);
int chunk_node_index(const Graph *g, Val v); /* -1 for an input */
/* Whether node i is a sum over all rows, as a product or plain: the gradient of a weight or a bias,
 * which is summed over the chunks. */
bool chunk_is_sum(const Chunked *c, int i);

/* Rows of the logits that a graph's head and loss could be cut along; 0: there are none. */
int64_t chunk_loss_rows(const Graph *g, Arena *scratch);

/* The graph with a repeat over c->count chunks in place of the nodes in c->in. */
Graph *chunk_write(const Chunked *c);

#endif
