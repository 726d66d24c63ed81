/* partition.h - the parts of the partition pass.
 *
 *   partition_units.c   a model as a chain of units with costs; which node belongs to which
 *   partition_split.c   units into chunks: exact min-max, or by hand
 *   partition_cut.c     what crosses each cut; the graph of each chunk
 *   partition_params.c  parameters by rank
 *   partition.c         the pass
 */
#ifndef INFINIC_PASSES_PARTITION_H
#define INFINIC_PASSES_PARTITION_H

#include "ir/table.h"
#include "passes/grad.h"

/* Something that is never cut: a layer of the model, or one iteration of a repeat. */
typedef struct Unit {
    const char *name;   /* scope path, "transformer.h.*" */
    int64_t layer;      /* iteration of a repeat; -1: not in a repeat */
    double flops;       /* of a forward */
    double cost;        /* what is balanced */
    double weight_cost; /* estimated, of its weight gradients */
    TaskCosts task;
} Unit;

typedef VEC(Unit) UnitList;

/* Units of the nodes of one graph. */
typedef struct UnitMap {
    int *first, *last; /* by node: the same but for repeats that can be cut; -1: needs no weight */
} UnitMap;

/* Which unit each use of each parameter belongs to. */
typedef struct UnitUses {
    int **unit; /* by parameter and use: the first of them; -1: not used */
    bool *cut;  /* by parameter: stacked, one unit an index */
} UnitUses;

/* The units of "train" after alias; fills `uses`. */
UnitMap units_of_train(const Graph *g, const Flow *flow, UnitList *units, UnitUses *uses,
                       Arena *scratch);

/* The graph with its nodes in the order of their units, or NULL when they are: gradients are summed
 * against the order of nodes, so it must not depend on where the graph is cut. */
Graph *units_in_order(const Graph *g, const UnitMap *map, int units, Arena *scratch);

/* Another forward graph of the same module, with the units of its weights. */
UnitMap units_of_graph(const Graph *g, const UnitUses *uses, Arena *scratch);

/* First unit of each chunk; [chunks] = the number of units. */
int *split_units(const UnitList *units, int chunks, Arena *scratch);

/* The same from numbers of layers, one a chunk: layers are the iterations of the model's longest
 * repeat, or units where there is none. NULL with *why when they do not fit. */
int *split_by_hand(const UnitList *units, const int64_t *layers, int n, Arena *scratch,
                   const char **why);

/* ---- chunks --------------------------------------------------------------------------------- */

/* A value that crosses a cut. */
typedef struct Crossing {
    Val v; /* of the whole graph; of a repeat that spans the cut: what it carries there */
    bool gradient;
} Crossing;

typedef VEC(Crossing) CrossingList;

/* One graph cut into chunks. */
typedef struct Cut {
    const Graph *g;
    const UnitMap *map;
    const Flow *flow; /* NULL: no gradients */
    const int *begin; /* split_units */
    int chunks;
    Arena *scratch;
    int *made, *used;    /* by value: chunk that makes it (-1: any), last chunk that needs it */
    CrossingList *cross; /* by cut: between chunk and chunk + 1 */
} Cut;

/* The parameters of all ranks. */
typedef struct ParamSlice {
    Param param;
    int rank, index; /* in that rank's table */
    int chunk;       /* of a slice of a stack; -1: whole */
} ParamSlice;

typedef VEC(ParamSlice) ParamSlices;

Cut cut_graph(const Graph *g, const UnitMap *map, const Flow *flow, const int *begin, int chunks,
              Arena *scratch);

/* The chunk of a node; iterations of a repeat that a chunk does, false when none. */
int cut_chunk(const Cut *c, int unit);
bool cut_piece(const Cut *c, int node, int chunk, int64_t *begin, int64_t *end);

/* The graph of one chunk, with ports recv and send, for the module of its rank. */
Graph *cut_chunk_graph(const Cut *c, int chunk, const Table *t, const ParamSlices *slices,
                       Module *to);

/* Slices of stacks that are cut, one copy on each rank that uses it of the rest. */
ParamSlices slice_params(const Cut *train, const Table *t, Arena *scratch);

/* What parameter `param` of the whole graph is to a chunk. */
const ParamSlice *slice_find(const ParamSlices *s, const Module *m, const Table *t, int param,
                             int chunk);

#endif
