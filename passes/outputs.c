/* outputs.c - a program of its own for the model's outputs.
 *
 * Reads   "eval", which makes the loss, the metrics and every output that the model returns.
 * Writes  "eval" without outputs; "outputs", the outputs alone, for `verify`.
 * Keeps   inputs of both, and every value that is left; in a pipeline, eval as it is.
 * Why     an evaluation only reads sums. Logits that are outputs would be stored for nobody, in
 * f32, and are often larger than all that a training step keeps: 64 x 1024 rows of 50,257 are 13 GB
 * beside the 6.6 GB of bf16 that the loss reads. The plan of a training run has no room for
 * "outputs"; verify takes it.
 */
#include "passes/rewrite.h"

static bool has_outputs(const Graph *g) {
    for (int k = 0; k < g->nout; k++)
        if (g->out_port[k].role == ROLE_output) return true;
    return false;
}

/* The outputs with role output, or the others. */
static Graph *part_of(const Graph *g, const char *name, bool outputs, Arena *scratch) {
    Graph *to = graph_new(g->mod, name);
    ValMap map = valmap_new(scratch, g);
    graph_copy_inputs(to, g, &map);
    for (int i = 0; i < g->nnode; i++) graph_copy_node(to, g, g->node[i], &map, NULL);
    for (int k = 0; k < g->nout; k++)
        if ((g->out_port[k].role == ROLE_output) == outputs)
            graph_add_output(to, map.to[g->out[k].id], g->out_port[k]);
    return dce_graph(to, scratch);
}

bool pass_outputs(PassContext *ctx) {
    Module *m = ctx->mod;
    const Graph *eval = module_graph(m, "eval");
    bool pipeline = m->parallel.pp * m->parallel.vpp > 1 || m->parallel.schedule_file != NULL;
    if (eval == NULL || pipeline || !has_outputs(eval)) return true;
    module_set_graph(m, "outputs", part_of(eval, "outputs", true, ctx->scratch));
    module_set_graph(m, "eval", part_of(eval, "eval", false, ctx->scratch));
    return true;
}
