/* checkpoint.h - a run on disk: OUT/step-00001200/ with model.safetensors, optimizer.safetensors
 * and state.json, and OUT/latest with the newest folder's name.
 *
 * A checkpoint is written into a hidden folder, flushed and renamed; `latest` moves last, so a
 * kill at any instant leaves the one before. Values are logical tensors, whatever the layout.
 */
#ifndef INF_RUNTIME_CHECKPOINT_H
#define INF_RUNTIME_CHECKPOINT_H

#include "runtime/engine.h"
#include "runtime/params.h"
#include "runtime/status.h"

typedef struct InfState {
    int64_t step;     /* steps done */
    int64_t updates;  /* of them, applied */
    uint64_t samples; /* consumed */
    uint64_t microbatches;
    uint64_t seed;
    uint64_t set;     /* samples of the data set */
    bool shuffle;
} InfState;

/* *folder receives the final folder in fresh memory. */
InfCode inf_checkpoint_save(InfError *e, const InfParams *params, const InfEngine *m,
                            const char *out, const InfState *state, char **folder);

/* Removes what a run that was killed in the middle of a save has left in `out`. */
void inf_checkpoint_clean(const char *out);

/* Loads the newest good checkpoint of `out`, or `out` itself if it is one; a damaged one is skipped
 * with a notice on stderr. INF_DATA when there is none, or when the model has changed. */
InfCode inf_checkpoint_load(InfError *e, const InfParams *params, InfEngine *m, const char *out,
                            InfState *state, char **folder);

/* Optimizer state alone, as one safetensors file. */
InfCode inf_optimizer_save(InfError *e, const InfParams *params, const InfEngine *m,
                           const char *path, int64_t updates);
InfCode inf_optimizer_load(InfError *e, const InfParams *params, InfEngine *m, const char *path,
                           int64_t *updates);

#endif
