/* params.h - logical tensors: what a user calls a parameter, whatever block it lies in.
 *
 * A block of the plan holds one tensor, or one per repetition along its stack axes; the '*' of
 * its name become the indices. The list holds those of all ranks, sorted by name, and is made once
 * at start. What saves or looks at all of them is called by every rank; rank 0 then has the values.
 */
#ifndef INF_RUNTIME_PARAMS_H
#define INF_RUNTIME_PARAMS_H

#include <stdio.h>

#include "runtime/engine.h"
#include "runtime/plan.h"
#include "runtime/status.h"

typedef struct InfParam {
    char *name;
    const PlanParam *block; /* of this rank where it holds the tensor */
    int rank;               /* whose values count */
    bool here;              /* this rank holds it: the offsets are its own */
    int64_t offset;         /* bytes in the param region; in grad too */
    int64_t use_offset;     /* bytes from use 1's block in the grad region */
    int64_t count;          /* logical elements */
    bool halves;            /* on some rank all that every replica has of it is its copy in bf16 */
} InfParam;

/* Another name of a tied parameter. */
typedef struct InfAlias {
    const char *name;
    const InfParam *param;
} InfAlias;

typedef struct InfParams {
    const Plan *plan;
    InfParam *param;
    int count;
    InfAlias *alias;
    int naliases;
} InfParams;

InfCode inf_params_open(InfError *e, const Plan *plan, InfParams *out);
void inf_params_close(InfParams *all);

/* NULL when there is none. */
const InfParam *inf_params_find(const InfParams *all, const char *name);

/* Whether stored and logical shape agree but for padding at the end of the first axis, so that
 * the values lie one after another. */
bool inf_param_contiguous(const InfParam *p);

/* A logical tensor as rows of its last axis: how long, how many, and at which stored element a row
 * begins. */
int64_t inf_param_row_length(const InfParam *p);
int64_t inf_param_row_count(const InfParam *p);
int64_t inf_param_row_at(const InfParam *p, int64_t row);

/* Elements of the stored tensor; where in the grad region a use's gradient of it begins, in bytes.
 */
int64_t inf_param_stored(const InfParam *p);
int64_t inf_param_use_offset(const InfParam *p, int use);

/* Gives elements [at, at + count) of a weight as stored their values, wherever this rank keeps them
 * (see inf_engine_push_weights). */
void inf_param_put(const InfParam *p, InfEngine *m, int64_t at, const float *values, int64_t count);

/* Copies logical values out of, or into, a stored tensor; both ways leave padding alone. */
void inf_param_gather(const InfParam *p, const float *stored, float *logical);
void inf_param_scatter(const InfParam *p, const float *logical, float *stored);

/* Gives every parameter its initial values, and padding zeros. Values depend on the seed, the
 * name and the element only. */
void inf_params_init(const InfParams *all, InfEngine *m, uint64_t seed);

/* Loads weights by name; checkpoint_prefix may be missing in the file. Everything that does not
 * fit is one report (E025), and then nothing has been written. */
InfCode inf_params_load(InfError *e, const InfParams *all, InfEngine *m, const char *path);

/* Which numbers of a parameter to write; state k of the optimizer is INF_VALUES_state + k. */
typedef enum InfValues { INF_VALUES_weights, INF_VALUES_gradients, INF_VALUES_state } InfValues;

/* The values of one logical tensor on rank 0: where they lie, or a copy that the caller frees.
 * Called by every rank; the one that holds the tensor sends it. *at is NULL on other ranks. */
InfCode inf_param_values(InfError *e, const InfParam *p, const InfEngine *m, int which, float scale,
                         const float **at, float **copy);

/* `count` values from rank `from` of the pipeline, never 0, to rank 0, into fresh memory. Called by
 * every rank; `mine` is the sender's. */
InfCode inf_values_bring(InfError *e, const InfEngine *m, int from, const float *mine,
                         int64_t count, float **copy);

/* Rank 0's result becomes everyone's; the others then say that rank 0 failed. */
InfCode inf_params_agree(InfError *e, const InfEngine *m, InfCode code);

/* Writes every logical tensor of one kind. Gradients are the sum over the uses times `scale`. */
InfCode inf_params_save(InfError *e, const InfParams *all, const InfEngine *m, const char *path,
                        InfValues which, float scale);

/* One parameter's gradient: the sum over its uses, times scale; `to` holds p->count values. */
void inf_param_gradient(const InfParam *p, const InfEngine *m, float scale, float *to);

/* The first parameter, by name, whose gradient holds a NaN or infinity, or NULL; on all ranks. */
InfCode inf_params_find_nonfinite(InfError *e, const InfParams *all, const InfEngine *m,
                                  const InfParam **out);

/* `params`: needs no engine, so that the compiler can print it too. */
typedef struct InfParamsFormat {
    const char *prefix;
    bool no_recurse, aliases, json;
} InfParamsFormat;
InfCode inf_params_print(InfError *e, const Plan *plan, InfParamsFormat format, FILE *out);

#endif
