/* plan_shards.c - zero = 1: what each replica owns.
 *
 * Reads   the module's parts of the flat vectors, which graphs read which weights.
 * Writes  Program's shards of the rank at hand.
 */
#include "codegen/program.h"

static bool reads(const Graph *g, int param) {
    for (int i = 0; g != NULL && i < g->nin; i++)
        if ((g->in_port[i].role == ROLE_weight || g->in_port[i].role == ROLE_weight_copy) &&
            g->in_port[i].index == param)
            return true;
    return false;
}

/* Whether a parameter lies in elements [begin, end) of the vector, at least in part. */
static bool lies_in(const Module *m, const Param *p, int64_t begin, int64_t end) {
    return p->offset_elems < end && p->offset_elems + param_extent(m, p) > begin;
}

/* The first chunk of this rank that reads a weight in a range; -1 none. */
static int first_reader(Program *p, int64_t begin, int64_t end) {
    for (int c = 0; c < program_chunks(p); c++) {
        const Graph *train = module_chunk_graph(p->mod, "train", c);
        for (int i = 0; i < p->mod->nparam; i++)
            if (lies_in(p->mod, &p->mod->param[i], begin, end) && reads(train, i)) return c;
    }
    return -1;
}

void plan_shards(Program *p) {
    const Module *m = p->mod;
    FlatPart part;
    for (int i = 0; module_is_sharded(m) && module_flat_part(m, i, &part); i++) {
        int64_t end = part.offset_elems + part.elems * m->parallel.dp;
        PlanShard row = {.local = first_reader(p, part.offset_elems, end),
                         .at = part.offset_elems * 4,
                         .bytes = part.elems * 4,
                         .state_at = part.state_elems * 4,
                         .owned = part.owned};
        if (part.owned) row.master_at = (m->nstate * module_state_elems(m) + part.master_elems) * 4;
        vec_push(p->arena, &p->shards, row);
    }
}
