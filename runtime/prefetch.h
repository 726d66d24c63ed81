/* prefetch.h - a thread that makes the next batch ready while the host does other things.
 *
 * Batches stand in a ring of slots. The one wanted next is guessed when one is taken; a wrong guess
 * costs time, never a wrong batch. One thread takes; the loader thread alone fills. It receives no
 * signals, so that these reach the thread that polls for them.
 */
#ifndef INF_RUNTIME_PREFETCH_H
#define INF_RUNTIME_PREFETCH_H

#include "runtime/permute.h"
#include "runtime/status.h"

/* Samples position .. position + count - 1 of an epoch's order. */
typedef struct InfBatch {
    InfPermutation order; /* half_bits 0: file order */
    uint64_t position, count;
} InfBatch;

/* Puts a batch into a slot; called by the loader thread. */
typedef void InfFill(const void *context, const InfBatch *batch, unsigned char *slot);

typedef struct InfSlots {
    unsigned char *at; /* `count` slots of `bytes` each, borrowed */
    uint64_t bytes;
    int count;
} InfSlots;

typedef struct InfPrefetch InfPrefetch;

/* Starts the thread. */
InfCode inf_prefetch_open(InfError *e, InfFill *fill, const void *context, InfSlots slots,
                          InfPrefetch **out);

/* The slot that holds `want`, waited for; the thread then fills the slot after it with `next`
 * (count 0: with nothing). A slot stays as it is until slots.count - 2 more were taken. */
unsigned char *inf_prefetch_take(InfPrefetch *p, const InfBatch *want, const InfBatch *next);

/* Ends the thread, waiting for the slot at hand. */
void inf_prefetch_close(InfPrefetch *p);

#endif
