/* prove_module.c - conservation: the graphs do what the table promises. */
#include "passes/schedule.h"

#include <inttypes.h>

/* ---- conservation in the graphs --------------------------------------------------------- */

static int count_outputs(const Graph *g, Role role, int index, int use) {
    int n = 0;
    for (int i = 0; i < g->nout; i++)
        n += g->out_port[i].role == role && g->out_port[i].index == index &&
             g->out_port[i].use == use;
    return n;
}

static const char *prove_phases(Arena *arena, const Graph *g) {
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->phase > PHASE_W)
            return arena_printf(arena, "node %d of %s is in neither forward nor backward", i,
                                g->name);
    return NULL;
}

/* One gradient for each use of each parameter; with several ranks, a use of a shared one may be
 * another rank's. */
static const char *prove_gradients(Arena *arena, Module *m, const char *name) {
    for (int i = 0; i < m->nparam; i++)
        for (int use = 0; use < m->param[i].uses; use++) {
            int n = 0;
            for (int c = 0; c < m->nchunk; c++)
                n += count_outputs(module_chunk_graph(m, name, c), ROLE_grad, i, use);
            bool elsewhere = n == 0 && m->nrank > 1 && m->param[i].uses > 1;
            if (n != 1 && !elsewhere)
                return arena_printf(arena, "%s: use %d of parameter '%s' has %d gradients", name,
                                    use, m->param[i].name, n);
        }
    return NULL;
}

const char *prove_module(Arena *arena, Module *m) {
    static const char *const graphs[] = {"train", "train.add"};
    const char *why = NULL;
    for (size_t k = 0; k < sizeof graphs / sizeof *graphs && why == NULL; k++) {
        if (module_chunk_graph(m, graphs[k], 0) == NULL) continue;
        for (int c = 0; c < m->nchunk && why == NULL; c++)
            why = prove_phases(arena, module_chunk_graph(m, graphs[k], c));
        if (why == NULL) why = prove_gradients(arena, m, graphs[k]);
    }
    const Graph *update = module_graph(m, "update");
    if (why == NULL && update != NULL) {
        why = prove_layout(arena, m);
        FlatPart part;
        for (int s = 0; module_flat_part(m, s, &part) && why == NULL; s++)
            if (count_outputs(update, ROLE_flat_weight, s, 0) != 1)
                why = arena_printf(arena, "part %d of the weights is not updated once", s);
    }
    return why;
}
