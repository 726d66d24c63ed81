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

#include "passes/grad.h"

/* Something that is never cut: a layer of the model, or one iteration of a repeat. */
typedef struct Unit {
    const char *name; /* scope path, "transformer.h.*" */
    int64_t layer;    /* iteration of a repeat; -1: not in a repeat */
    double cost;
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

/* Whose parameter a chunk's graph reads. */
typedef struct ParamSlices {
    VEC(Param) list; /* the new table */
    VEC(int) of;     /* parallel to list: chunk for slices of a stack; -1: whole */
} ParamSlices;

Cut cut_graph(const Graph *g, const UnitMap *map, const Flow *flow, const int *begin, int chunks,
              Arena *scratch);

/* The chunk of a node; iterations of a repeat that a chunk does, false when none. */
int cut_chunk(const Cut *c, int unit);
bool cut_piece(const Cut *c, int node, int chunk, int64_t *begin, int64_t *end);

/* The graph of one chunk, with ports recv and send. */
Graph *cut_chunk_graph(const Cut *c, int chunk, const ParamSlices *slices);

/* The parameters of all ranks: slices of stacks that are cut, one copy a rank that uses it. */
ParamSlices slice_params(const Cut *train, const int *rank, Arena *scratch);

/* The new index of a parameter of the whole graph, as chunk `chunk` sees it. */
int slice_index(const ParamSlices *s, const Module *m, const int *rank, int param, int chunk);

#endif
