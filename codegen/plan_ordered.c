/* plan_ordered.c - reduce = ordered as tables of the plan.
 *
 * Reads   the schedule table: the tree that ir/ordered.h makes of it.
 * Writes  the PlanOrdered of the rank at hand.
 */
#include "codegen/program.h"
#include "ir/ordered.h"
#include "ir/panic.h"

/* The rows of the chunks of this rank, by local number. */
static void add_rows(const Program *p, const Ordered *o, PlanLeaf *leaf, uint32_t *kept) {
    for (int c = 0; c < o->chunks; c++) {
        if (p->table->home[c] != p->mod->rank) continue;
        int64_t row = (int64_t)p->table->local[c] * o->replicas;
        for (int r = 0; r < o->replicas; r++, row++) {
            for (int m = 0; m < o->microbatches; m++) {
                const OrderedLeaf *l = ordered_leaf(o, c, r, m);
                leaf[row * o->microbatches + m] =
                    (PlanLeaf){(uint32_t)l->buffer, (uint32_t)l->first, (uint32_t)l->nadd};
            }
            for (int n = 0; n < o->most_kept; n++)
                kept[row * o->most_kept + n] = (uint32_t)ordered_kept(o, c, r, n);
        }
    }
}

PlanOrdered *plan_ordered(const Program *p, int64_t figures, int64_t figures_end) {
    const Module *m = p->mod;
    if (!m->parallel.ordered) return NULL;
    const Ordered *o = ordered_make(p->arena, p->table, (int)m->parallel.dp);
    int64_t rows = (int64_t)program_chunks(p) * o->replicas, leaves = rows * o->microbatches;
    PlanLeaf *leaf = ARENA_ARRAY(p->arena, PlanLeaf, leaves);
    PlanAdd *add = ARENA_ARRAY(p->arena, PlanAdd, o->nadd);
    PlanPart *part = ARENA_ARRAY(p->arena, PlanPart, o->npart);
    uint32_t *kept = ARENA_ARRAY(p->arena, uint32_t, rows * o->most_kept);
    add_rows(p, o, leaf, kept);
    for (int i = 0; i < o->nadd; i++)
        add[i] = (PlanAdd){(uint32_t)o->add[i].into, (uint32_t)o->add[i].from};
    for (int i = 0; i < o->npart; i++)
        part[i] = (PlanPart){o->part[i].replica, (uint32_t)o->part[i].joins};
    OrderedRoom room = ordered_room(o, m, figures_end - figures);
    if (m->target == TARGET_cuda && room.end != m->region_bytes[REGION_grad])
        panic_graph(NULL, (Span){0}, "ordered: the region of gradients has another size");
    PlanOrdered *row = ARENA_NEW(p->arena, PlanOrdered);
    *row = (PlanOrdered){.figure_at = figures,
                         .figure_bytes = figures_end - figures,
                         .grad_bytes = m->grad_elems * 4,
                         .figures_at = room.figures_at,
                         .told_at = room.told_at,
                         .told_bytes = room.told_bytes,
                         .leaf = leaf,
                         .add = add,
                         .part = part,
                         .npart = (uint32_t)o->npart,
                         .kept = kept,
                         .most_kept = (uint32_t)o->most_kept};
    return row;
}

static void print_numbers(FILE *out, const char *what, uint32_t rank, int64_t n,
                          const uint32_t *value) {
    fprintf(out, "static const uint32_t %s_%u[] = {", what, rank);
    for (int64_t i = 0; i < n; i++)
        fprintf(out, "%s%u", i == 0 ? "" : i % 24 == 0 ? ",\n    " : ", ", value[i]);
    fputs("};\n\n", out);
}

static void print_adds(FILE *out, const PlanOrdered *o, uint32_t rank, int64_t leaves) {
    uint32_t adds = 0;
    fprintf(out, "static const PlanLeaf leaves_%u[] = {\n", rank);
    for (int64_t i = 0; i < leaves; i++) {
        const PlanLeaf *l = &o->leaf[i];
        if (l->add + l->nadd > adds) adds = l->add + l->nadd;
        fprintf(out, "    {%u, %u, %u},\n", l->buffer, l->add, l->nadd);
    }
    fprintf(out, "};\n\nstatic const PlanAdd adds_%u[] = {\n", rank);
    for (uint32_t i = 0; i < adds; i++)
        fprintf(out, "    {%u, %u},\n", o->add[i].into, o->add[i].from);
    if (adds == 0) fputs("    {0, 0},\n", out);
    fputs("};\n\n", out);
}

void plan_print_ordered(const Program *p, uint32_t rank, FILE *out) {
    const Plan *plan = &p->plans.data[rank];
    const PlanOrdered *o = plan->ordered;
    if (o == NULL) return;
    int64_t n = plan->program[0].microbatches, rows = (int64_t)plan->vpp * plan->dp;
    print_adds(out, o, rank, rows * n);
    fprintf(out, "static const PlanPart parts_%u[] = {\n", rank);
    for (uint32_t i = 0; i < o->npart; i++)
        fprintf(out, "    {%d, %u},\n", o->part[i].replica, o->part[i].joins);
    fputs("};\n\n", out);
    print_numbers(out, "kept", rank, rows * o->most_kept, o->kept);
    fprintf(out, "static const PlanOrdered ordered_%u = {%lld, leaves_%u, adds_%u, parts_%u, %u,\n",
            rank, (long long)o->grad_bytes, rank, rank, rank, o->npart);
    fprintf(
        out,
        "                                       kept_%u, %u, %lld, %lld, %lld, %lld, %lld};\n\n",
        rank, o->most_kept, (long long)o->figure_at, (long long)o->figure_bytes,
        (long long)o->figures_at, (long long)o->told_at, (long long)o->told_bytes);
}
