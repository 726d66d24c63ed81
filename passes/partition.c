/* partition.c - layers into the chunks of a pipeline.
 *
 * Reads   "train" after alias and "eval"; the section parallel.
 * Writes  with several chunks: graphs "train.0", "train.1", .. and "eval.0", .. in place of the
 * two, with ports recv and send; the parameter table by rank; the context's Table with its compute
 * tasks and edges. Keeps   the model: every node is in exactly one chunk, but for those that depend
 * on no weight, which each chunk computes that needs them; uses of weights keep their numbers. Why
 * before autodiff, each chunk is differentiated by itself: the gradient of what it receives is what
 * it sends back.
 */
#include "passes/costs.h"

#include "ir/cost.h"
#include "ir/panic.h"
#include "passes/schedule.h"

#include <string.h>

/* A module of its own for a rank: settings, scopes and types are those of the whole. */
static Module *rank_module(const Module *m, const Table *t, int rank, const ParamSlices *slices) {
    Module *own = ARENA_NEW(m->arena, Module);
    *own = *m;
    own->rank = rank;
    own->nrank = t->ranks;
    own->nmetric = module_metrics(m);
    own->chunk = ARENA_ARRAY(m->arena, int, t->chunks);
    own->nchunk = 0;
    for (int c = 0; c < t->chunks; c++)
        if (t->home[c] == rank) own->chunk[own->nchunk++] = c;
    own->cap_scope = own->nscope; /* what is added goes to new memory */
    own->cap_build = own->nbuild;
    own->graph = NULL;
    own->ngraph = own->cap_graph = 0;
    own->param = NULL;
    own->nparam = own->cap_param = 0;
    own->alias = NULL;
    own->nalias = own->cap_alias = 0;
    for (uint32_t i = 0; i < slices->n; i++)
        if (slices->data[i].rank == rank) module_add_param(own, slices->data[i].param);
    for (int i = 0; i < m->nalias; i++)
        for (int p = 0; p < own->nparam; p++)
            if (own->param[p].origin == m->alias[i].param)
                module_add_alias(own, m->alias[i].name, p);
    return own;
}

/* The chunks of one graph into the modules of their ranks. */
static void add_chunks(PassContext *ctx, const Cut *c, const ParamSlices *slices) {
    for (int chunk = 0; chunk < c->chunks; chunk++) {
        Module *own = ctx->rank[ctx->table->home[chunk]];
        module_add_graph(own, cut_chunk_graph(c, chunk, ctx->table, slices, own));
    }
}

/* "2 + 3 + 3 + 2": layers by chunk, for the summary below the table. */
static const char *layers_text(Arena *arena, const UnitList *units, const int *begin, int chunks) {
    const char *text = "";
    int total = 0;
    for (int c = 0; c < chunks; c++) {
        int layers = 0;
        for (int u = begin[c]; u < begin[c + 1]; u++) layers += units->data[u].layer >= 0;
        total += layers;
        text = arena_printf(arena, "%s%s%d", text, c > 0 ? "+" : "", layers);
    }
    return total > 0 ? arena_printf(arena, "layers %d = %s", total, text) : NULL;
}

static int64_t logical_elems(const Module *m, const Param *p, bool one_layer) {
    const TypeInfo *t = type_info(m->types, p->type);
    int64_t elems = 1;
    for (int a = one_layer ? 1 : 0; a < t->ndim; a++)
        elems *= a < p->nstack ? t->dim[a] : p->logical[a - p->nstack];
    return elems;
}

static int chunk_of(const int *begin, int chunks, int unit) {
    int chunk = chunks - 1;
    while (chunk > 0 && begin[chunk] > unit) chunk--;
    return chunk;
}

/* A parameter counts where it is used first; a stack that is cut, layer by layer. */
static void count_parameters(const Module *m, Table *t, const UnitUses *uses, const int *begin) {
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        int unit = uses->unit[i][0] < 0 ? 0 : uses->unit[i][0];
        int64_t layers = uses->cut[i] ? type_info(m->types, p->type)->dim[0] : 1;
        for (int64_t k = 0; k < layers; k++)
            t->stage[chunk_of(begin, t->chunks, unit + (int)k)].parameters +=
                logical_elems(m, p, uses->cut[i]);
    }
}

/* What anything costs that goes to another process. */
static void set_link(const Costs *costs, Table *t) {
    t->link = (LinkCost){.rate = t->forward_flops / COST_PER_BYTE_SENT};
    if (costs == NULL) return;
    t->link.once = costs->message;
    t->link.rate = costs->megabyte > 0 ? 1e6 / costs->megabyte : 0;
}

/* The costs of tasks: measured ones decide what is balanced, too; without them the backward takes
 * twice as long as the forward, the weight gradients are the part of it that weights ask for, and
 * the unit is a forward of a mean chunk. */
static bool cost_units(PassContext *ctx, Table *t, UnitList *units) {
    const Costs *costs = ctx->options->costs;
    TaskCosts *task = ARENA_ARRAY(ctx->scratch, TaskCosts, units->n + 1);
    double total = 0;
    if (costs != NULL && !costs_of_units(ctx->mod, costs, units, task)) return false;
    for (uint32_t u = 0; u < units->n; u++) total += units->data[u].cost;
    for (uint32_t u = 0; u < units->n; u++) {
        Unit *unit = &units->data[u];
        double forward = total > 0 ? unit->cost * t->chunks / total : 1;
        double weight = total > 0 ? unit->weight_cost * t->chunks / total : 1;
        unit->task = (TaskCosts){forward, 2 * forward, 2 * forward - weight, weight};
        if (costs == NULL) continue;
        unit->task = task[u];
        unit->cost = task[u].forward + task[u].backward;
    }
    t->forward_flops = t->chunks > 0 ? total / t->chunks : 0;
    t->cost_unit = costs != NULL ? costs->unit : NULL;
    set_link(costs, t);
    return true;
}

/* What each chunk holds and costs. */
static void describe_chunks(Module *m, Table *t, const UnitList *units, const UnitUses *uses,
                            const int *begin) {
    double total = 0;
    for (uint32_t u = 0; u < units->n; u++) total += units->data[u].cost;
    t->stage = ARENA_ARRAY(m->arena, ChunkInfo, t->chunks);
    for (int c = 0; c < t->chunks; c++) {
        ChunkInfo *s = &t->stage[c];
        s->units = begin[c + 1] - begin[c];
        if (s->units > 0) {
            s->first = arena_strdup(m->arena, units->data[begin[c]].name);
            s->last = arena_strdup(m->arena, units->data[begin[c + 1] - 1].name);
            s->first_layer = units->data[begin[c]].layer;
            s->last_layer = units->data[begin[c + 1] - 1].layer;
        }
        for (int u = begin[c]; u < begin[c + 1]; u++) {
            const Unit *unit = &units->data[u];
            s->flops += unit->flops;
            s->cost += unit->cost;
            s->task.forward += unit->task.forward;
            s->task.backward += unit->task.backward;
            s->task.input += unit->task.input;
            s->task.weight += unit->task.weight;
        }
        s->share = total > 0 ? s->cost / total : 0;
    }
    count_parameters(m, t, uses, begin);
    t->layers = layers_text(m->arena, units, begin, t->chunks);
}

/* Their names, for those who measure costs; iterations of a repeat share one. */
static void name_units(Module *m, Table *t, const UnitList *units) {
    t->unit = ARENA_ARRAY(m->arena, UnitInfo, units->n + 1);
    for (uint32_t u = 0; u < units->n; u++) {
        const char *name = units->data[u].name;
        if (t->nunit == 0 || strcmp(t->unit[t->nunit - 1].name, name) != 0)
            t->unit[t->nunit++].name = arena_strdup(m->arena, name);
        t->unit[t->nunit - 1].layers++;
    }
}

static void warn_empty(Module *m, const int *begin, int chunks) {
    int empty = 0;
    for (int c = 0; c < chunks; c++) empty += begin[c] == begin[c + 1];
    if (empty > 0)
        diag_warn(m->diag, WARN_EMPTY_CHUNK, (Span){0}, "%d of %d chunks hold no layer", empty,
                  chunks);
}

static int *choose_split(Module *m, const UnitList *units, int chunks, Arena *scratch) {
    const ParallelSettings *p = &m->parallel;
    if (p->nsplit == 0) return split_units(units, chunks, scratch);
    const char *why =
        arena_printf(scratch, "split has %d numbers, there are %d chunks", p->nsplit, chunks);
    int *begin =
        p->nsplit == chunks ? split_by_hand(units, p->split, p->nsplit, scratch, &why) : NULL;
    if (begin == NULL) diag_error(m->diag, E020, p->split_span, "%s", why);
    return begin;
}

/* Gradients come back over an edge when any value's does; what messages cost. */
static void set_edges(const PassContext *ctx, Table *t, const Cut *train) {
    for (int c = 0; c < t->chunks - 1; c++) {
        ChunkEdge *edge = &t->edge[c];
        double bytes[2] = {0, 0};
        edge->gradient = false;
        for (uint32_t k = 0; k < train->cross[c].n; k++) {
            const Crossing *value = &train->cross[c].data[k];
            double size = (double)type_bytes(ctx->mod->types, val_type(train->g, value->v));
            bytes[0] += size;
            bytes[1] += value->gradient ? size : 0;
            edge->gradient = edge->gradient || value->gradient;
        }
        for (int back = 0; back < 2; back++) edge->cost[back] = link_cost(&t->link, bytes[back]);
    }
}

/* Messages within a rank are the device's: between ranks on processors these are the transport's.
 */
static bool check_target(const PassContext *ctx, const Table *t) {
    if (ctx->options->schedule_only || !t->loopback || ctx->mod->target == TARGET_cuda) return true;
    DiagRef ref = diag_error(ctx->mod->diag, E020, (Span){0},
                             "messages = chunks is for GPUs: it tests messages on one device");
    diag_hint(ctx->mod->diag, ref, "--target=cuda, or -D parallel.messages=ranks");
    return false;
}

bool pass_partition(PassContext *ctx) {
    Module *m = ctx->mod;
    const Graph *train = module_graph(m, "train"), *eval = module_graph(m, "eval");
    if (train == NULL) return true;
    module_number_tensors(m);
    const Flow *flow = flow_of_graph(train, ctx->scratch);
    UnitList units = {0};
    UnitUses uses;
    UnitMap map = units_of_train(train, flow, &units, &uses, ctx->scratch);
    Graph *ordered = units_in_order(train, &map, (int)units.n, ctx->scratch);
    if (ordered != NULL) {
        train = ordered;
        module_set_graph(m, "train", ordered);
        flow = flow_of_graph(train, ctx->scratch);
        units.n = 0;
        map = units_of_train(train, flow, &units, &uses, ctx->scratch);
    }
    Table *t = schedule_begin(ctx);
    if (t == NULL || !cost_units(ctx, t, &units)) return false;
    int *begin = choose_split(m, &units, t->chunks, ctx->scratch);
    if (begin == NULL) return false;
    describe_chunks(m, t, &units, &uses, begin);
    name_units(m, t, &units);
    ctx->table = t;
    if (!check_target(ctx, t)) return false;
    if (t->chunks == 1) return true;
    warn_empty(m, begin, t->chunks);
    Cut cut = cut_graph(train, &map, flow, begin, t->chunks, ctx->scratch);
    set_edges(ctx, t, &cut);
    if (ctx->options->schedule_only && !module_has_buckets(m)) return true;
    ParamSlices slices = slice_params(&cut, t, ctx->scratch);
    ctx->nrank = t->ranks;
    ctx->rank = ARENA_ARRAY(m->arena, Module *, t->ranks);
    for (int r = 0; r < t->ranks; r++) ctx->rank[r] = rank_module(m, t, r, &slices);
    add_chunks(ctx, &cut, &slices);
    if (eval == NULL) return true;
    UnitMap eval_map = units_of_graph(eval, &uses, ctx->scratch);
    Cut eval_cut = cut_graph(eval, &eval_map, NULL, begin, t->chunks, ctx->scratch);
    add_chunks(ctx, &eval_cut, &slices);
    return true;
}
