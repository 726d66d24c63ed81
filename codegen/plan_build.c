/* plan_build.c - placed graphs and the schedule into the tables of runtime/plan.h.
 *
 * Reads   the module after place, the schedule table.
 * Writes  Program's tables: one chunk of steps per graph and phase, one task list per rank, the
 *         parameters, inputs and results with their addresses.
 */
#include "codegen/program.h"

#include "ir/text_words.h"

#include <string.h>

_Static_assert((int)SCALAR_COUNT == (int)HOST_SCALAR_COUNT, "host scalars");
_Static_assert((int)SCALAR_lr == (int)HOST_lr && (int)SCALAR_clip == (int)HOST_clip,
               "host scalars");
_Static_assert((int)REGION_count == (int)PLAN_REGION_count, "regions");
_Static_assert((int)REGION_scratch == (int)PLAN_REGION_scratch, "regions");
_Static_assert((int)INIT_uniform == (int)PLAN_INIT_uniform, "initialisers");
_Static_assert((int)TASK_update == (int)PTASK_update, "tasks");
_Static_assert((int)TASK_recv == (int)PTASK_recv, "tasks");
_Static_assert((int)OPTIM_adamw == (int)PLAN_OPTIM_adamw, "optimizers");
_Static_assert((int)SCHED_wsd == (int)PLAN_SCHED_wsd, "learning-rate schedules");
_Static_assert((int)DATA_tokens == (int)PLAN_DATA_tokens, "data sets");
_Static_assert((int)REPEAT_DEPTH_MAX == (int)PLAN_REPEAT_DEPTH_MAX, "nesting of repeats");

static PlanArg plan_arg(Program *p, const Graph *g, Val v) {
    const Addr *at = &g->val[v.id].addr;
    PlanArg arg = {.offset = at->offset_bytes, .region = (uint8_t)at->region};
    int used = 0;
    for (int i = 0; i < p->repeat_depth; i++)
        if (at->stride_bytes[i] != 0) used = i + 1;
    if (used == 0) return arg;
    arg.stride = p->strides.n;
    arg.nstride = (uint8_t)used;
    for (int i = 0; i < used; i++) vec_push(p->arena, &p->strides, at->stride_bytes[i]);
    return arg;
}

static void plan_launch(Program *p, const Graph *g, const Node *n) {
    PlanStep step = {.kind = STEP_LAUNCH,
                     .kernel = program_kernel(p, g, n),
                     .arg = p->args.n,
                     .narg = (uint32_t)(n->nin + n->nout),
                     .scope = scope_path(p->mod, n->scope)};
    for (int i = 0; i < n->nin + n->nout; i++) {
        Val v = i < n->nin ? n->in[i] : node_out(n, i - n->nin);
        PlanArg arg = plan_arg(p, g, v);
        if (p->mod->target == TARGET_cuda) {
            arg.written = i >= n->nin;
            arg.bytes = type_bytes(p->mod->types, val_type(g, v));
        }
        vec_push(p->arena, &p->args, arg);
    }
    for (int i = 0, n_launch = p->kernels.data[step.kernel].launches; i < n_launch; i++) {
        vec_push(p->arena, &p->steps, step);
        step.kernel++;
    }
}

static void plan_steps(Program *p, const Graph *g, bool (*wanted)(const Node *));

static void plan_repeat(Program *p, const Node *n) {
    uint32_t at = p->steps.n;
    PlanStep step = {.kind = STEP_REPEAT,
                     .count = node_int(n, ATTR_count, 1),
                     .first = node_int(n, ATTR_first, 0),
                     .reverse = (uint8_t)node_int(n, ATTR_reverse, 0),
                     .scope = scope_path(p->mod, n->scope)};
    vec_push(p->arena, &p->steps, step);
    p->repeat_count[p->repeat_depth++] = step.first + step.count;
    plan_steps(p, n->body, NULL);
    p->repeat_depth--;
    p->steps.data[at].nbody = p->steps.n - at - 1;
}

/* Steps of the nodes that `wanted` accepts (all when NULL), in program order. Views have none. */
static void plan_steps(Program *p, const Graph *g, bool (*wanted)(const Node *)) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (wanted && !wanted(n)) continue;
        if (n->op == OP_kernel) plan_launch(p, g, n);
        if (n->op == OP_repeat) plan_repeat(p, n);
    }
}

static bool is_forward(const Node *n) { return n->phase == PHASE_F; }
static bool is_backward(const Node *n) { return n->phase != PHASE_F; }

/* Appends the chunk `name` made from part of a graph; returns its index. */
static uint32_t plan_chunk(Program *p, const char *name, const char *graph,
                           bool (*wanted)(const Node *)) {
    PlanChunk chunk = {.name = name, .begin = p->steps.n};
    const Graph *g = module_graph(p->mod, graph);
    if (g) plan_steps(p, g, wanted);
    chunk.end = p->steps.n;
    vec_push(p->arena, &p->chunks, chunk);
    return p->chunks.n - 1;
}

typedef struct TrainChunks {
    uint32_t forward, backward, forward_add, backward_add, update;
} TrainChunks;

static uint32_t task_chunk(const TrainChunks *c, const Task *t) {
    bool runs = t->kind == TASK_forward || t->kind == TASK_backward || t->kind == TASK_update;
    if (!runs) return 0; /* only printed: the schedule pass refuses to run such a table */
    if (t->kind == TASK_update) return c->update;
    if (t->kind == TASK_forward) return t->first ? c->forward : c->forward_add;
    return t->first ? c->backward : c->backward_add;
}

/* Task lists of the train program, one a rank. */
static const PlanRank *plan_train_ranks(Program *p, const TrainChunks *chunks) {
    PlanRank *rank = ARENA_ARRAY(p->arena, PlanRank, p->table->ranks);
    for (int r = 0; r < p->table->ranks; r++) {
        const RankTasks *tasks = &p->table->rank[r];
        rank[r] = (PlanRank){.task = p->tasks.n, .ntask = (uint32_t)tasks->ntask};
        for (int i = 0; i < tasks->ntask; i++) {
            const Task *t = &tasks->task[i];
            PlanTask row = {.kind = (uint8_t)t->kind,
                            .chunk = t->chunk,
                            .local = t->local,
                            .microbatch = t->microbatch,
                            .program = task_chunk(chunks, t),
                            .slot = t->slot,
                            .message = t->message};
            vec_push(p->arena, &p->tasks, row);
        }
    }
    return rank;
}

static void plan_messages(Program *p) {
    for (int i = 0; i < p->table->nmessage; i++) {
        const Message *m = &p->table->message[i];
        PlanMessage row = {.gradient = m->kind == MESSAGE_gradient,
                           .from = m->from,
                           .to = m->to,
                           .from_rank = m->from_rank,
                           .to_rank = m->to_rank,
                           .microbatch = m->microbatch,
                           .slot = m->slot};
        vec_push(p->arena, &p->messages, row);
    }
}

/* "transformer.h.3": the scope of a unit, with its number for the star. */
static const char *layer_text(Program *p, const char *name, int64_t layer) {
    const char *star = name != NULL ? strchr(name, '*') : NULL;
    if (star == NULL || layer < 0) return name;
    return arena_printf(p->arena, "%.*s%lld%s", (int)(star - name), name, (long long)layer,
                        star + 1);
}

static void plan_stages(Program *p) {
    for (int c = 0; p->table->stage != NULL && c < p->table->chunks; c++) {
        const ChunkInfo *s = &p->table->stage[c];
        PlanStage row = {.rank = p->table->home[c],
                         .local = p->table->local[c],
                         .first = layer_text(p, s->first, s->first_layer),
                         .last = layer_text(p, s->last, s->last_layer),
                         .parameters = s->parameters,
                         .cost = s->cost,
                         .share = s->share};
        vec_push(p->arena, &p->stages, row);
    }
}

static const PlanRank *plan_eval_rank(Program *p, uint32_t chunk) {
    PlanRank *rank = ARENA_NEW(p->arena, PlanRank);
    *rank = (PlanRank){.task = p->tasks.n, .ntask = 1};
    PlanTask row = {.kind = PTASK_forward, .program = chunk};
    vec_push(p->arena, &p->tasks, row);
    return rank;
}

static uint8_t plan_dtype(Dtype dtype) {
    switch (dtype) {
    case DT_bf16: return PLAN_bf16;
    case DT_i32: return PLAN_i32;
    case DT_u8: return PLAN_u8;
    case DT_bool: return PLAN_bool;
    default: return PLAN_f32;
    }
}

/* What the loader puts into a batch tensor: by data set, dtype and place in the signature. */
static PlanInputKind input_kind(const Program *p, const Port *port, const TypeInfo *t) {
    if (port->role == ROLE_valid) return PLAN_INPUT_valid;
    if (port->role == ROLE_position) return PLAN_INPUT_position;
    if (port->role == ROLE_last) return PLAN_INPUT_last;
    if (p->mod->train.data.kind == DATA_tokens)
        return port->index == 0 ? PLAN_INPUT_tokens : PLAN_INPUT_targets;
    return t->dtype == DT_f32 ? PLAN_INPUT_image : PLAN_INPUT_label;
}

static bool is_input(const Port *port) {
    return port->role == ROLE_data || port->role == ROLE_valid || port->role == ROLE_position ||
           port->role == ROLE_last;
}

static void plan_inputs(Program *p, const Graph *g, PlanProgram *prog) {
    VEC(PlanInput) rows = {0};
    for (int i = 0; i < g->nin; i++) {
        const Port *port = &g->in_port[i];
        if (!is_input(port)) continue;
        const TypeInfo *t = val_info(g, g->in[i]);
        PlanInput row = {.name = port->name ? port->name : text_role[port->role].word,
                         .kind = (uint8_t)input_kind(p, port, t),
                         .dtype = plan_dtype(t->dtype),
                         .ndim = t->ndim,
                         .limit = INT64_MAX,
                         .ignore = INT64_MIN,
                         .at = plan_arg(p, g, g->in[i])};
        memcpy(row.dim, t->dim, sizeof row.dim);
        if (port->role == ROLE_data && port->index < p->options->limits.count) {
            row.limit = p->options->limits.limit[port->index].limit;
            row.ignore = p->options->limits.limit[port->index].ignore;
        }
        vec_push(p->arena, &rows, row);
    }
    prog->input = rows.data;
    prog->ninput = rows.n;
}

/* Byte offset of the output with this role and index; -1 when the graph has none. */
static int64_t output_offset(const Graph *g, Role role, int index) {
    for (int i = 0; i < g->nout; i++)
        if (g->out_port[i].role == role && g->out_port[i].index == index)
            return g->val[g->out[i].id].addr.offset_bytes;
    return -1;
}

static void plan_metrics(Program *p, const Graph *g, PlanProgram *prog) {
    VEC(PlanMetric) rows = {0};
    PlanMetric loss = {.name = "loss",
                       .sum = output_offset(g, ROLE_loss_sum, 0),
                       .count = output_offset(g, ROLE_loss_count, 0)};
    vec_push(p->arena, &rows, loss);
    for (int i = 0; i < g->nout; i++) {
        const Port *port = &g->out_port[i];
        if (port->role != ROLE_metric_sum) continue;
        PlanMetric row = {.name = port->name,
                          .sum = g->val[g->out[i].id].addr.offset_bytes,
                          .count = output_offset(g, ROLE_metric_count, port->index)};
        vec_push(p->arena, &rows, row);
    }
    prog->metric = rows.data;
    prog->nmetric = loss.sum >= 0 ? rows.n : 0;
}

static void plan_outputs(Program *p, const Graph *g, PlanProgram *prog) {
    VEC(PlanOutput) rows = {0};
    for (int i = 0; i < g->nout; i++) {
        if (g->out_port[i].role != ROLE_output) continue;
        const TypeInfo *t = val_info(g, g->out[i]);
        PlanOutput row = {.name = g->out_port[i].name,
                          .dtype = plan_dtype(t->dtype),
                          .ndim = t->ndim,
                          .at = plan_arg(p, g, g->out[i])};
        memcpy(row.dim, t->dim, sizeof row.dim);
        vec_push(p->arena, &rows, row);
    }
    prog->output = rows.data;
    prog->noutput = rows.n;
}

static void plan_program(Program *p, PlanProgram prog, const char *graph) {
    const Graph *g = module_graph(p->mod, graph);
    plan_inputs(p, g, &prog);
    plan_metrics(p, g, &prog);
    plan_outputs(p, g, &prog);
    vec_push(p->arena, &p->programs, prog);
}

/* How far into scratch the values of a graph reach, bodies included. */
static int64_t scratch_end(const Graph *g) {
    int64_t end = 0;
    for (uint32_t v = 1; v < g->nval; v++) {
        const Addr *at = &g->val[v].addr;
        int64_t own = at->offset_bytes + type_bytes(g->mod->types, g->val[v].type);
        if (at->region == REGION_scratch && own > end) end = own;
    }
    for (int i = 0; i < g->nnode; i++) {
        int64_t inner = g->node[i]->op == OP_repeat ? scratch_end(g->node[i]->body) : 0;
        if (inner > end) end = inner;
    }
    return end;
}

/* A program of one graph that only runs forward. */
static void plan_forward(Program *p, const char *name, int64_t batch) {
    PlanProgram prog = {.name = name,
                        .batch = batch,
                        .microbatches = 1,
                        .scratch = scratch_end(module_graph(p->mod, name)),
                        .rank = plan_eval_rank(p, plan_chunk(p, name, name, NULL))};
    plan_program(p, prog, name);
}

static void plan_programs(Program *p) {
    bool add = module_graph(p->mod, "train.add") != NULL;
    TrainChunks c = {0};
    c.forward = plan_chunk(p, "forward", "train", is_forward);
    c.backward = plan_chunk(p, "backward", "train", is_backward);
    c.forward_add = add ? plan_chunk(p, "forward+", "train.add", is_forward) : c.forward;
    c.backward_add = add ? plan_chunk(p, "backward+", "train.add", is_backward) : c.backward;
    c.update = plan_chunk(p, "update", "update", NULL);
    if (module_graph(p->mod, "copy")) plan_chunk(p, "copy", "copy", NULL);
    PlanProgram train = {.name = "train",
                         .batch = p->mod->train.batch,
                         .microbatches = p->mod->train.microbatches,
                         .rank = plan_train_ranks(p, &c)};
    plan_program(p, train, "train");
    if (module_graph(p->mod, "eval")) plan_forward(p, "eval", p->mod->eval.batch);
    for (int i = 0; i < p->mod->ngraph; i++) {
        const char *name = p->mod->graph[i]->name;
        if (strncmp(name, "prefill.", 8) == 0 || strcmp(name, "decode") == 0)
            plan_forward(p, name, p->mod->generate.batch);
    }
}

static const char *place_text(Program *p, Span span) {
    return span.file ? diag_place(p->mod->diag, span, span) : "";
}

static void plan_params(Program *p) {
    for (int i = 0; i < p->mod->nparam; i++) {
        const Param *param = &p->mod->param[i];
        const TypeInfo *t = type_info(p->mod->types, param->type);
        PlanParam row = {.name = param->name,
                         .offset = param->offset_elems * 4,
                         .nstack = param->nstack,
                         .ndim = t->ndim - param->nstack,
                         .init = (uint8_t)param->init,
                         .transposed = param->transposed,
                         .trainable = param->trainable,
                         .decay = param->decay,
                         .init_a = param->init_a,
                         .uses = param->uses,
                         .use_offset = param->use_offset_elems * 4,
                         .place = place_text(p, param->span)};
        int64_t padded = (type_elems(p->mod->types, param->type) + PARAM_ALIGN - 1) / PARAM_ALIGN;
        row.use_stride = padded * PARAM_ALIGN * 4;
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
    for (int i = 0; i < p->mod->nbuild; i++) {
        PlanSetting row = {.key = p->mod->build[i].key, .value = p->mod->build[i].value};
        vec_push(p->arena, &p->settings, row);
    }
}

static PlanData plan_data(const DataSource *d) {
    return (PlanData){.kind = (uint8_t)d->kind, .path = d->path, .split = d->split};
}

static void plan_train(Program *p) {
    const TrainSettings *t = &p->mod->train;
    const EvalSettings *e = &p->mod->eval;
    p->plan.train = (PlanTrain){.data = plan_data(&t->data),
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

static void plan_generate(Program *p) {
    const GenerateSettings *g = &p->mod->generate;
    p->plan.generate = (PlanGenerate){.present = g->present,
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
    uint32_t at = p->buffers.n;
    while (at > 0 && p->buffers.data[at - 1].bytes < row.bytes) at--;
    if (at >= BUFFERS_SHOWN) return;
    if (p->buffers.n < BUFFERS_SHOWN) vec_push(p->arena, &p->buffers, row);
    for (uint32_t i = p->buffers.n - 1; i > at; i--) p->buffers.data[i] = p->buffers.data[i - 1];
    p->buffers.data[at] = row;
}

static void plan_buffers(Program *p) {
    for (uint32_t k = 0; k < p->programs.n; k++) {
        const Graph *g = module_graph(p->mod, p->programs.data[k].name);
        for (int i = 0; i < g->nnode; i++)
            if (g->node[i]->op != OP_reshape)
                for (int r = 0; r < g->node[i]->nout; r++)
                    plan_note_buffer(p, g, g->node[i], node_out(g->node[i], r));
    }
}

static void plan_kernels(Program *p) {
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        const KernelRow *k = &p->kernels.data[i];
        char *lines = arena_strdup(p->arena, "");
        for (uint32_t j = 0; j < k->places.n; j++)
            lines = arena_printf(p->arena, "%s%s%u:%u", lines, j ? " " : "", k->places.data[j].line,
                                 k->places.data[j].column);
        PlanKernel row = {.name = k->name,
                          .form = k->form,
                          .lines = lines,
                          .bytes = k->bytes,
                          .flops = k->flops,
                          .math = (uint8_t)k->math,
                          .kind = (uint8_t)k->kind,
                          .grid = (uint32_t)k->grid,
                          .block = (uint32_t)k->block,
                          .shared_bytes = (uint32_t)k->shared_bytes,
                          .matmul = k->matmul};
        vec_push(p->arena, &p->plan_kernels, row);
    }
}

static void plan_point_to_tables(Program *p) {
    Plan *plan = &p->plan;
    plan->param = p->params.data, plan->nparam = p->params.n;
    plan->alias = p->aliases.data, plan->nalias = p->aliases.n;
    plan->kernel = p->plan_kernels.data, plan->nkernel = p->plan_kernels.n;
    plan->arg = p->args.data;
    plan->stride = p->strides.data;
    plan->step = p->steps.data;
    plan->chunk = p->chunks.data, plan->nchunk = p->chunks.n;
    plan->task = p->tasks.data;
    plan->message = p->messages.data, plan->nmessage = p->messages.n;
    plan->stage = p->stages.data, plan->nstage = p->stages.n;
    plan->program = p->programs.data, plan->nprogram = p->programs.n;
    plan->setting = p->settings.data, plan->nsetting = p->settings.n;
    plan->buffer = p->buffers.data, plan->nbuffer = p->buffers.n;
    plan->matmul = p->matmuls.data, plan->nmatmul = p->matmuls.n;
    plan->image = p->images.data, plan->nimage = p->images.n;
}

void plan_build(Program *p) {
    const Module *m = p->mod;
    p->plan = (Plan){.version = PLAN_VERSION,
                     .model = m->name,
                     .file = m->file,
                     .target = m->target == TARGET_cuda ? "cuda" : "cpu",
                     .compiler = p->options->version,
                     .cpu_features = "",
                     .dp = (int32_t)m->parallel.dp,
                     .tp = (int32_t)m->parallel.tp,
                     .pp = (int32_t)m->parallel.pp,
                     .vpp = (int32_t)m->parallel.vpp,
                     .pipeline = p->table->pipeline,
                     .schedule_summary = p->table->summary,
                     .flat_bytes = m->flat_elems * 4,
                     .nstate = m->nstate,
                     .checkpoint_prefix = m->checkpoint_prefix,
                     .checkpoint_skip = m->checkpoint_skip};
    for (int i = 0; i < REGION_count; i++) p->plan.region_bytes[i] = m->region_bytes[i];
    plan_params(p);
    plan_messages(p);
    plan_stages(p);
    plan_programs(p);
    plan_train(p);
    plan_generate(p);
    plan_buffers(p);
    plan_kernels(p);
    const Graph *update = module_graph(m, "update");
    p->plan.grad_norm = output_offset(update, ROLE_grad_norm, 0);
    p->plan.update_ok = output_offset(update, ROLE_update_ok, 0);
    p->plan.attention_width = p->options->attention_width;
    plan_point_to_tables(p);
}
