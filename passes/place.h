/* place.h - what the parts of the place pass share.
 *
 *   place.c        regions, fixed addresses, the pass, the memory limit
 *   place_input.c  what of valid IR can be placed
 *   place_scan.c   reading a graph through its views
 *   place_window.c what chunks of a pipeline hand to each other
 *   place_copy.c   copies where a value cannot be where it must end up
 *   place_alloc.c  buffers: which values share one, and how long each lives
 *   place_pack.c   buffers into offsets
 *   place_check.c  an independent replay of the result
 *
 * Some values have a home: an output with an address of its own, the next value of what a repeat
 * carries, a slice of what it stacks. After place_copy the value at every home comes from a node
 * that can write there at once, so place_alloc only gives the homes away.
 */
#ifndef INFINIC_PASSES_PLACE_H
#define INFINIC_PASSES_PLACE_H

#include "passes/pass.h"

enum { PLACE_ALIGN = 64 };

typedef struct PlaceOptions {
    bool no_reuse;
    bool slots;   /* other tasks run between a microbatch's: what lives from one to another has a
                     slot */
    bool windows; /* part of a pipeline: what is handed over lives for one task */
    bool split;   /* input and weight gradients are tasks of their own */
    bool lend;    /* values may lie where a gradient will be that the graph writes later */
} PlaceOptions;

/* False after a diagnostic: nodes outside kernels, sizes beyond all machines. */
bool place_accepts(const Module *m);

/* ---- reading a graph through its views ---- */

typedef struct PlaceUse {
    int node, operand;
} PlaceUse;

typedef VEC(PlaceUse) PlaceUses;

typedef struct PlaceScan {
    const Graph *g;
    Val *base;       /* by value: what a chain of reshapes shows */
    PlaceUses *uses; /* by base: nodes other than reshapes that read it, in program order */
    int *outputs;    /* by base: how many graph outputs show it */
} PlaceScan;

PlaceScan place_scan(const Graph *g, Arena *arena);

/* The node that makes v, its index; -1 for a graph input. */
int place_maker(const Graph *g, Val v);

/* Whether result v is the kernel's workspace. */
bool place_is_workspace(const Graph *g, Val v);

/* Whether kernel n may write result r over its operand i: it reads the operand at the place that it
 * writes, and nowhere else. */
bool place_is_pointwise(const Node *n, int i, int r);

/* Bytes of one slice of a stacked value; from the first byte of a value to its last one. */
int64_t place_slice_bytes(const Graph *g, Val stacked, const Node *repeat);
int64_t place_extent(const Graph *g, Val v, int64_t pitch_bytes);

/* Whether an output of this role has an address of its own. */
bool place_role_is_fixed(Role role);

/* The graph input that has the same home as output k: what it was so far. -1: none. */
int place_occupant(const Graph *g, int k);

/* Result of a kernel that copies v; `near` gives span and scope, or is NULL. */
Val place_add_copy(Graph *to, Val v, Phase phase, const Node *near);

/* The graph with copies; repeats' bodies likewise. */
Graph *place_copies(const Graph *g, const PlaceOptions *options, Arena *scratch);

/* ---- buffers ---- */

typedef struct PlaceBuffer {
    int64_t bytes;
    RegionId region; /* none: to be packed into slot or scratch */
    int64_t offset_bytes;
    int64_t pitch_bytes; /* of a stack whose slices lie apart; else 0 */
    int64_t shard_bytes; /* from replica to replica; 0: the same place on all */
    int begin, end; /* first and last moment of its life, both included */
    unsigned tasks; /* bit by task that touches it */
    const Graph *g; /* a value that it holds, for messages */
    Val shown;
    bool is_plain; /* only kernels' results: no home */
    bool is_slot;
} PlaceBuffer;

typedef struct PlaceBuffers {
    VEC(PlaceBuffer) list;
} PlaceBuffers;

/* The task that runs a node of the top graph: 0 forward, 1 backward or input gradient, 2 weight
 * gradient; and the one that uses or fills the window of a port, -1 none. */
int place_task(const Node *n, const PlaceOptions *options);
int place_port_task(Role role);

/* The graph in the order of its tasks, with copies out of and into windows. */
Graph *place_windows(const Graph *g, const PlaceOptions *options, Arena *scratch);

/* Bytes of the window of all ports of a role; offset of one of them. */
int64_t place_window_bytes(const Graph *g, Role role);

typedef struct Placed {
    PlaceBuffers buffers;
    int64_t slot_bytes, scratch_bytes;
} Placed;

/* Fixed address of a graph's port by its role; false when it has none. */
typedef bool PlaceFixed(const Module *m, const Graph *g, const Port *port, Addr *addr);

/* The addresses that the runtime knows: parameters, gradients, states, scalars, batches. */
PlaceFixed place_fixed_address;

/* Gives every value of g (after place_copies) an address: fixed ones by `fixed`, the others packed
 * into slot and scratch, from offset 0. */
Placed place_graph(Graph *g, PlaceFixed *fixed, const PlaceOptions *options, Arena *arena);

/* Offsets for all buffers without a region; fills slot_bytes and scratch_bytes. */
void place_pack(Placed *placed, const PlaceOptions *options, Arena *arena);

/* ---- the checker ---- */

/* Replays g symbolically against the module's region sizes: NULL, or what is wrong, naming both
 * values; kept in `arena`. */
const char *place_check(const Graph *g, PlaceFixed *fixed, const PlaceOptions *options,
                        Arena *arena);

#endif
