/* plan_facts.c - what a plan says of the model: parameters, settings, largest buffers.
 *
 * Reads   the module after place.
 * Writes  Program's tables of parameters, aliases, settings and buffers; the settings in Plan.
 */
#include "codegen/program.h"

#include <string.h>

static const char *place_text(Program *p, Span span) {
    return span.file ? diag_place(p->mod->diag, span, span) : "";
}

void plan_params(Program *p) {
    for (int i = 0; i < p->mod->nparam; i++) {
        const Param *param = &p->mod->param[i];
        const TypeInfo *t = type_info(p->mod->types, param->type);
        PlanParam row = {.name = param->name,
                         .offset = param->offset_elems * 4,
                         .stride = param->stride_elems * 4,
                         .first = param->first,
                         .nstack = param->nstack,
                         .ndim = t->ndim - param->nstack,
                         .init = (uint8_t)param->init,
                         .transposed = param->transposed,
                         .trainable = param->trainable,
                         .copied = param->counted_elsewhere,
                         .owned = param_is_owned(p->mod, param),
                         .decay = param->decay,
                         .init_a = param->init_a,
                         .uses = param->uses,
                         .use_offset = param->use_offset_elems * 4,
                         .use_stride = param_use_stride(p->mod, param) * 4,
                         .place = place_text(p, param->span)};
        for (int a = 0; a < param->nstack; a++) row.stack[a] = t->dim[a];
        for (int a = 0; a < row.ndim; a++) {
            row.dim[a] = param->logical[a];
            row.stored[a] = t->dim[param->nstack + a];
        }
        vec_push(p->arena, &p->params, row);
    }
    for (int i = 0; i < p->mod->nalias; i++) {
        PlanAlias row = {.name = p->mod->alias[i].name, .param = p->mod->alias[i].param};
        vec_push(p->arena, &p->aliases, row);
    }
    for (int i = 0; i < p->mod->nbuild && p->settings.n < (uint32_t)p->mod->nbuild; i++) {
        PlanSetting row = {.key = p->mod->build[i].key, .value = p->mod->build[i].value};
        vec_push(p->arena, &p->settings, row);
    }
}

static PlanData plan_data(const DataSource *d) {
    return (PlanData){.kind = (uint8_t)d->kind, .path = d->path, .split = d->split};
}

void plan_train(const Program *p, Plan *plan) {
    const TrainSettings *t = &p->mod->train;
    const EvalSettings *e = &p->mod->eval;
    plan->train = (PlanTrain){.data = plan_data(&t->data),
                              .eval_data = plan_data(&e->data),
                              .eval_present = e->present,
                              .eval_every = e->every,
                              .steps = t->steps,
                              .epochs = t->epochs,
                              .seed = t->seed,
                              .optimizer = (uint8_t)t->optimizer.kind,
                              .schedule = (uint8_t)t->schedule.kind,
                              .lr = t->optimizer.lr,
                              .beta1 = t->optimizer.beta1,
                              .beta2 = t->optimizer.beta2,
                              .decay = t->optimizer.decay,
                              .clip = t->clip,
                              .warmup = t->schedule.warmup,
                              .floor = t->schedule.floor,
                              .decay_share = t->schedule.decay_share,
                              .dtype = t->tf32 ? "tf32" : dtype_name(t->dtype)};
}

void plan_generate(const Program *p, Plan *plan) {
    const GenerateSettings *g = &p->mod->generate;
    plan->generate = (PlanGenerate){.present = g->present,
                                    .batch = g->batch,
                                    .context = g->context,
                                    .tokenizer = g->tokenizer,
                                    .temperature = g->temperature,
                                    .top_k = g->top_k,
                                    .length = g->length};
}

enum { BUFFERS_SHOWN = 10 };

/* Keeps the largest values, ties in program order. */
static void plan_note_buffer(Program *p, const Graph *g, const Node *n, Val v) {
    PlanBuffer row = {
        .region = (uint8_t)g->val[v.id].addr.region,
        .bytes = type_bytes(p->mod->types, val_type(g, v)),
        .what = arena_printf(p->arena, "%s %s", g->name,
                             n->op == OP_kernel ? node_attr(n, ATTR_name)->s : op_name(n->op)),
        .place = place_text(p, n->span)};
    if (row.region != PLAN_REGION_slot && row.region != PLAN_REGION_scratch) return;
    uint32_t first = p->at.buffer, at = p->buffers.n;
    while (at > first && p->buffers.data[at - 1].bytes < row.bytes) at--;
    if (at >= first + BUFFERS_SHOWN) return;
    if (p->buffers.n < first + BUFFERS_SHOWN) vec_push(p->arena, &p->buffers, row);
    for (uint32_t i = p->buffers.n - 1; i > at; i--) p->buffers.data[i] = p->buffers.data[i - 1];
    p->buffers.data[at] = row;
}

static void plan_graph_buffers(Program *p, const Graph *g) {
    for (int i = 0; i < g->nnode; i++)
        if (g->node[i]->op != OP_reshape)
            for (int r = 0; r < g->node[i]->nout; r++)
                plan_note_buffer(p, g, g->node[i], node_out(g->node[i], r));
}

void plan_buffers(Program *p) {
    for (uint32_t k = p->at.program; k < p->programs.n; k++) {
        const char *name = p->programs.data[k].name;
        if (strcmp(name, "outputs") == 0) continue; /* no part of a training run */
        if (module_graph(p->mod, name) != NULL)
            plan_graph_buffers(p, module_graph(p->mod, name));
        else
            for (int c = 0; c < program_chunks(p); c++)
                plan_graph_buffers(p, module_chunk_graph(p->mod, name, c));
    }
}
