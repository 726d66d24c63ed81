/* loader.h - samples in memory, in the order of an epoch, staged into the plan's inputs.
 *
 * A sample is a row of bytes, perhaps with a label beside it. Images stay bytes and become f32
 * (x / 255) when a batch is staged; a row of tokens is one token longer than the model's, so that
 * it holds inputs and targets. A position counts samples of one epoch from 0; which sample stands
 * there is file order, or one seeded permutation an epoch, the same under every layout.
 */
#ifndef INF_RUNTIME_LOADER_H
#define INF_RUNTIME_LOADER_H

#include "runtime/engine.h"
#include "runtime/idx.h"
#include "runtime/permute.h"
#include "runtime/plan.h"
#include "runtime/prefetch.h"
#include "runtime/status.h"
#include "runtime/tokens.h"

/* Where a device with memory of its own finds the samples; feed.h. */
typedef struct InfFeed {
    bool resident;       /* the whole set, else only the batches on their way */
    uint64_t batch;      /* samples of a submission of this replica */
    uint64_t before;     /* in an epoch, of other replicas before its first one */
    uint64_t stride;     /* samples of all replicas: from its submission to the next one */
    uint64_t next;       /* streamed submissions so far */
    unsigned char *rows; /* on the device */
    unsigned char *labels;
    InfPrefetch *prefetch; /* streamed: the thread that collects batches, in slots of its own */
    uint64_t slot_rows;    /* bytes of a slot before its labels */
    int threads;           /* that help it */
} InfFeed;

typedef struct InfLoader {
    PlanDataKind kind;
    InfImages images; /* of one kind or the other */
    InfTokens tokens;
    const unsigned char *rows;   /* [count, row_bytes] */
    const unsigned char *labels; /* [count], or NULL */
    uint64_t row_bytes;
    uint64_t count; /* samples */
    uint64_t bytes; /* resident */
    uint64_t hash;  /* of a set that only other ranks hold; 0: rows are here */
    uint64_t seed;
    bool shuffle;
    bool training;  /* the last batch of an epoch is dropped unless it is whole */
    uint64_t epoch; /* of `order` */
    InfPermutation order;
    const char *path; /* borrowed */
    InfFeed feed;
} InfLoader;

/* Reads the data of `what` and checks it against the program's inputs: extents of an image, range
 * of labels and tokens.
 *   path     replaces the plan's path when not NULL
 *   absent   set with INF_OK when there is no such data; *why then says what was looked for, in
 *            fresh memory */
InfCode inf_loader_open(InfError *e, const PlanData *what, const PlanProgram *program,
                        const char *path, InfLoader *out, bool *absent, char **why);

/* Random samples of the right shapes: tokens or images, as the plan's own data are. */
InfCode inf_loader_synthetic(InfError *e, const PlanProgram *program, uint64_t count, uint64_t seed,
                             InfLoader *out);

/* What a program's speed is counted in, "tokens" or "samples", and how many a sample has. */
const char *inf_unit_name(const PlanProgram *program);
uint64_t inf_units(const PlanProgram *program);

/* Whether the exponential of the loss is a perplexity: the loss is over tokens. */
bool inf_has_perplexity(const PlanProgram *program);

void inf_loader_close(InfLoader *l);

/* Of all samples; 0: there is no set. */
uint64_t inf_loader_hash(const InfLoader *l);

/* Chooses the order of an epoch. */
void inf_loader_begin(InfLoader *l, uint64_t epoch);

/* The sample at a position of the epoch. */
uint64_t inf_loader_sample(const InfLoader *l, uint64_t position);

/* The program's input of a kind, or NULL; elements of one sample of it. */
const PlanInput *inf_input_find(const PlanProgram *program, PlanInputKind kind);
int64_t inf_input_elements(const PlanInput *input);

/* Fills the inputs of one of this rank's chunks with the samples at position .. position + batch -
 * 1. Positions at or beyond `end` are padding: values 0, targets INF_TARGET_PAD, valid 0. */
void inf_loader_stage(const InfLoader *l, InfEngine *m, const PlanProgram *program, int32_t local,
                      uint64_t position, uint64_t end);

#endif
