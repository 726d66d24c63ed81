/* plan_shards.c - zero = 1: what each replica owns.
 *
 * Reads   the module's parts of the flat vectors, the order in which they are gathered.
 * Writes  Program's shards of the rank at hand, in that order.
 */
#include "codegen/program.h"

void plan_shards(Program *p) {
    const Module *m = p->mod;
    FlatPart part;
    for (int i = 0; module_is_sharded(m) && i < m->ngather; i++) {
        if (!module_flat_part(m, m->gather[i].part, &part)) continue;
        PlanShard row = {.local = m->gather[i].local,
                         .at = part.offset_elems * 4,
                         .bytes = part.elems * 4,
                         .state_at = part.state_elems * 4,
                         .owned = part.owned};
        if (part.owned) row.master_at = (m->nstate * module_state_elems(m) + part.master_elems) * 4;
        vec_push(p->arena, &p->shards, row);
    }
}
