/* plan_build.c - placed graphs and the schedule into the tables of runtime/plan.h.
 *
 * Reads   the module after place, the schedule table.
 * Writes  Program's tables: one chunk of steps per graph and phase, one task list per rank, the
 *         parameters, inputs and results with their addresses.
 */
#include "codegen/program.h"

#include "ir/panic.h"
#include "ir/text_words.h"

#include <string.h>

_Static_assert((int)SCALAR_COUNT == (int)HOST_SCALAR_COUNT, "host scalars");
_Static_assert((int)SCALAR_lr == (int)HOST_lr && (int)SCALAR_clip == (int)HOST_clip,
               "host scalars");
_Static_assert((int)REGION_count == (int)PLAN_REGION_count, "regions");
_Static_assert((int)REGION_sum == (int)PLAN_REGION_sum, "regions");
_Static_assert((int)REGION_scratch == (int)PLAN_REGION_scratch, "regions");
_Static_assert((int)INIT_uniform == (int)PLAN_INIT_uniform, "initialisers");
_Static_assert((int)TASK_update == (int)PTASK_update, "tasks");
_Static_assert((int)TASK_recv == (int)PTASK_recv, "tasks");
_Static_assert((int)TASK_gather == (int)PTASK_gather, "tasks");
_Static_assert((int)OPTIM_adamw == (int)PLAN_OPTIM_adamw, "optimizers");
_Static_assert((int)SCHED_wsd == (int)PLAN_SCHED_wsd, "learning-rate schedules");
_Static_assert((int)DATA_tokens == (int)PLAN_DATA_tokens, "data sets");
_Static_assert((int)REPEAT_DEPTH_MAX == (int)PLAN_REPEAT_DEPTH_MAX, "nesting of repeats");

static PlanArg plan_arg(Program *p, const Graph *g, Val v) {
    const Addr *at = &g->val[v.id].addr;
    PlanArg arg = {
        .offset = at->offset_bytes, .region = (uint8_t)at->region, .shard = at->shard_bytes};
    int used = 0;
    for (int i = 0; i < p->repeat_depth; i++)
        if (at->stride_bytes[i] != 0) used = i + 1;
    if (used == 0) return arg;
    arg.stride = p->strides.n;
    arg.nstride = (uint8_t)used;
    for (int i = 0; i < used; i++) vec_push(p->arena, &p->strides, at->stride_bytes[i]);
    return arg;
}

/* Bytes that kernels move between two polls: about a tenth of a millisecond. */
enum { POLL_BYTES = 1 << 20 };

/* Where ranks send messages by the processor, these go on only when they are looked at. */
static bool polls(const Program *p) { return program_is_joint(p) && p->mod->target == TARGET_c; }

static void push_poll(Program *p, int64_t every) {
    PlanStep step = {.kind = STEP_POLL, .count = every};
    vec_push(p->arena, &p->steps, step);
}

static void plan_poll(Program *p, const KernelRow *row) {
    if (!polls(p)) return;
    p->since_poll += row->bytes + row->flops / 16;
    if (p->since_poll < POLL_BYTES) return;
    p->since_poll = 0;
    push_poll(p, 1);
}

/* The end of the body of the repeat at step `at`; `before` is the work since the last poll when it
 * began. Where an iteration is too short for a poll of its own, and all of them together are not,
 * every so many iterations end with one. */
static void plan_repeat_poll(Program *p, uint32_t at, int64_t before) {
    int64_t count = p->steps.data[at].count, work = p->since_poll - before, every;
    if (!polls(p)) return;
    for (uint32_t i = at + 1; i < p->steps.n; i++)
        if (p->steps.data[i].kind == STEP_POLL) return;
    if (work == 0 || count <= (POLL_BYTES - before) / work) {
        p->since_poll = before + work * count;
        return;
    }
    every = POLL_BYTES / work;
    if (every < 1) every = 1;
    if (every > count) every = count;
    push_poll(p, every);
    p->since_poll = work * (every - 1); /* at most */
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
        if (p->mod->target == TARGET_cuda || p->reduces >= 0) {
            arg.written = i >= n->nin;
            arg.bytes = type_bytes(p->mod->types, val_type(g, v));
        }
        vec_push(p->arena, &p->args, arg);
    }
    uint32_t first = step.kernel;
    for (int i = 0, n_launch = p->kernels.data[first].launches; i < n_launch; i++) {
        vec_push(p->arena, &p->steps, step);
        step.kernel++;
    }
    plan_poll(p, &p->kernels.data[first]);
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
    int64_t before = p->since_poll;
    plan_steps(p, n->body, NULL);
    plan_repeat_poll(p, at, before);
    p->repeat_depth--;
    p->steps.data[at].nbody = p->steps.n - at - 1;
}

/* Steps of the nodes that `wanted` accepts (all when NULL), in program order. Views have none. */
static void plan_steps(Program *p, const Graph *g, bool (*wanted)(const Node *)) {
    for (int i = 0; i < g->nnode; i++) {
        const Node *n = g->node[i];
        if (wanted && !wanted(n)) continue;
        if (p->repeat_depth == 0) p->top = i;
        if (n->op == OP_kernel) plan_launch(p, g, n);
        if (n->op == OP_repeat) plan_repeat(p, n);
        if (p->repeat_depth < 2) plan_reduce_steps(p, p->top, p->repeat_depth == 1 ? i : -1);
    }
}

static bool is_forward(const Node *n) { return table_task_runs(TASK_forward, n->phase); }
bool plan_is_backward(const Node *n) { return table_task_runs(TASK_backward, n->phase); }
static bool is_input_part(const Node *n) { return table_task_runs(TASK_input, n->phase); }
bool plan_is_weight_part(const Node *n) { return table_task_runs(TASK_weight, n->phase); }

/* Appends the chunk `name` made from part of a graph; returns its index among this rank's. */
static uint32_t plan_chunk(Program *p, const char *name, const char *graph,
                           bool (*wanted)(const Node *)) {
    PlanChunk chunk = {.name = name, .begin = p->steps.n};
    const Graph *g = module_graph(p->mod, graph);
    if (g) plan_reduce_begin(p, g, wanted);
    if (g) plan_steps(p, g, wanted);
    chunk.end = p->steps.n;
    const char *why = p->reduces >= 0 ? plan_replay(p, p->reduces, chunk.begin, chunk.end) : NULL;
    if (why != NULL) panic_graph(g, (Span){0}, "buckets: %s", why);
    p->reduces = -1;
    vec_push(p->arena, &p->chunks, chunk);
    return p->chunks.n - 1 - p->at.chunk;
}

/* What a chunk of this rank does in a step; of its first microbatch, and of later ones. */
typedef struct ChunkSteps {
    uint32_t forward, backward, input, weight;
} ChunkSteps;

typedef struct TrainChunks {
    ChunkSteps *first, *later; /* by chunk of this rank */
    uint32_t update;
} TrainChunks;

static ChunkSteps plan_chunk_steps(Program *p, const char *graph, int local, const char *sign) {
    Module *m = p->mod;
    const char *name = module_chunk_name(m, graph, local);
    const char *suffix = m->nchunk > 1 ? arena_printf(p->arena, ".%d", local) : "";
#define NAMED(word) arena_printf(p->arena, word "%s%s", sign, suffix)
    ChunkSteps s = {.forward = plan_chunk(p, NAMED("forward"), name, is_forward),
                    .backward = plan_chunk(p, NAMED("backward"), name, plan_is_backward)};
    if (table_splits_backward(p->table, m->rank)) {
        s.input = plan_chunk(p, NAMED("input"), name, is_input_part);
        s.weight = plan_chunk(p, NAMED("weight"), name, plan_is_weight_part);
    }
#undef NAMED
    return s;
}

static TrainChunks plan_train_chunks(Program *p) {
    int n = p->mod->chunk != NULL ? p->mod->nchunk : 1;
    TrainChunks c = {.first = ARENA_ARRAY(p->arena, ChunkSteps, n),
                     .later = ARENA_ARRAY(p->arena, ChunkSteps, n)};
    bool add = module_chunk_graph(p->mod, "train.add", 0) != NULL;
    for (int k = 0; k < n; k++) {
        c.first[k] = plan_chunk_steps(p, "train", k, "");
        c.later[k] = add ? plan_chunk_steps(p, "train.add", k, "+") : c.first[k];
    }
    return c;
}

static uint32_t task_chunk(const Program *p, const TrainChunks *c, const Task *t) {
    if (t->kind == TASK_update) return c->update;
    if (t->kind > TASK_update || (p->mod->chunk == NULL && t->local > 0)) return 0;
    const ChunkSteps *s = t->first ? &c->first[t->local] : &c->later[t->local];
    const uint32_t by_kind[] = {s->forward, s->backward, s->input, s->weight};
    return by_kind[t->kind];
}

static void push_task(Program *p, const Task *t, uint32_t program) {
    PlanTask row = {.kind = (uint8_t)t->kind,
                    .chunk = t->chunk,
                    .local = t->local,
                    .microbatch = t->microbatch,
                    .program = program,
                    .slot = t->slot,
                    .message = t->message,
                    .start = t->start,
                    .length = t->length,
                    .done = t->done};
    if (t->kind < TASK_update) plan_windows(p, t, &row);
    vec_push(p->arena, &p->tasks, row);
}

/* This rank's tasks of the train program; without a rank of its own, those of all. */
static void plan_train_tasks(Program *p, const TrainChunks *chunks) {
    for (int r = 0; r < p->table->ranks; r++) {
        const RankTasks *tasks = &p->table->rank[r];
        if (p->mod->chunk != NULL && r != p->mod->rank) continue;
        uint32_t begin = p->tasks.n;
        for (int i = 0; i < tasks->ntask; i++) {
            const Task *task = &tasks->task[i];
            push_task(p, task, task_chunk(p, chunks, task));
            if (table_last_task(tasks, task->local) == i) p->tasks.data[p->tasks.n - 1].last = 1;
        }
        p->train_rank[r] = (PlanRank){.task = begin, .ntask = p->tasks.n - begin};
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
                         .flops = s->flops,
                         .cost = s->cost,
                         .share = s->share};
        vec_push(p->arena, &p->stages, row);
    }
    for (int i = 0; i < p->table->nunit; i++) {
        PlanUnit row = {.name = p->table->unit[i].name, .layers = p->table->unit[i].layers};
        vec_push(p->arena, &p->units, row);
    }
}

static const PlanRank *plan_one_task(Program *p, uint32_t chunk) {
    PlanRank *rank = ARENA_NEW(p->arena, PlanRank);
    *rank = (PlanRank){.task = p->tasks.n, .ntask = 1};
    PlanTask row = {.kind = PTASK_forward, .program = chunk, .message = -1};
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

typedef VEC(PlanInput) PlanInputs;
typedef VEC(PlanMetric) PlanMetrics;
typedef VEC(PlanOutput) PlanOutputs;

static bool is_input(const Port *port) {
    return port->role == ROLE_data || port->role == ROLE_valid || port->role == ROLE_position ||
           port->role == ROLE_last;
}

static bool has_input(const PlanInputs *rows, uint8_t kind) {
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->data[i].kind == kind) return true;
    return false;
}

/* The inputs of one graph: of chunk `local` of this rank; or -1, of another rank, those that no
 * chunk here reads: what a sample is made of is a fact of the whole model. */
static void plan_graph_inputs(Program *p, const Graph *g, int local, PlanInputs *rows) {
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
                         .local = local,
                         .at = {.region = PLAN_REGION_data}};
        if (local >= 0) row.at = plan_arg(p, g, g->in[i]);
        if (local < 0 && has_input(rows, row.kind)) continue;
        memcpy(row.dim, t->dim, sizeof row.dim);
        if (port->role == ROLE_data && port->index < p->options->limits.count) {
            row.limit = p->options->limits.limit[port->index].limit;
            row.ignore = p->options->limits.limit[port->index].ignore;
        }
        vec_push(p->arena, rows, row);
    }
}

/* Byte offset of the output with this role and index; -1 when the graph has none. */
static int64_t output_offset(const Graph *g, Role role, int index) {
    for (int i = 0; i < g->nout; i++)
        if (g->out_port[i].role == role && g->out_port[i].index == index)
            return g->val[g->out[i].id].addr.offset_bytes;
    return -1;
}

static void plan_graph_metrics(Program *p, const Graph *g, PlanMetrics *rows) {
    PlanMetric loss = {.name = "loss",
                       .sum = output_offset(g, ROLE_loss_sum, 0),
                       .count = output_offset(g, ROLE_loss_count, 0)};
    if (loss.sum < 0) return;
    vec_push(p->arena, rows, loss);
    for (int i = 0; i < g->nout; i++) {
        const Port *port = &g->out_port[i];
        if (port->role != ROLE_metric_sum) continue;
        PlanMetric row = {.name = port->name,
                          .sum = g->val[g->out[i].id].addr.offset_bytes,
                          .count = output_offset(g, ROLE_metric_count, port->index)};
        vec_push(p->arena, rows, row);
    }
}

static void plan_graph_outputs(Program *p, const Graph *g, PlanOutputs *rows) {
    for (int i = 0; i < g->nout; i++) {
        if (g->out_port[i].role != ROLE_output) continue;
        const TypeInfo *t = val_info(g, g->out[i]);
        PlanOutput row = {.name = g->out_port[i].name,
                          .dtype = plan_dtype(t->dtype),
                          .ndim = t->ndim,
                          .at = plan_arg(p, g, g->out[i])};
        memcpy(row.dim, t->dim, sizeof row.dim);
        vec_push(p->arena, rows, row);
    }
}

static void plan_program(Program *p, PlanProgram prog, const char *graph) {
    PlanInputs inputs = {0};
    PlanMetrics metrics = {0};
    PlanOutputs outputs = {0};
    for (int k = 0; k < program_chunks(p); k++) {
        const Graph *g = module_chunk_graph(p->mod, graph, k);
        plan_graph_inputs(p, g, k, &inputs);
        plan_graph_outputs(p, g, &outputs);
    }
    for (int r = 0; r < p->nrank; r++)
        for (int k = 0; r != p->mod->rank && k < p->rank[r]->nchunk; k++)
            plan_graph_inputs(p, module_chunk_graph(p->rank[r], graph, k), -1, &inputs);
    /* Every rank hears of loss and metrics, which the last chunk's has. */
    Module *last = p->nrank > 1 ? p->rank[p->table->home[p->table->chunks - 1]] : p->mod;
    for (int k = 0; k < (last->chunk != NULL ? last->nchunk : 1); k++)
        plan_graph_metrics(p, module_chunk_graph(last, graph, k), &metrics);
    prog.input = inputs.data, prog.ninput = inputs.n;
    prog.metric = metrics.data, prog.nmetric = metrics.n;
    prog.output = outputs.data, prog.noutput = outputs.n;
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

static bool is_generation(const char *name) {
    return strncmp(name, "prefill.", 8) == 0 || strcmp(name, "decode") == 0;
}

/* The same for all graphs of a training run, evaluations included. */
static int64_t train_scratch(const Module *m) {
    int64_t end = 0;
    for (int i = 0; i < m->ngraph; i++) {
        const char *name = m->graph[i]->name;
        bool other = is_generation(name) || strcmp(name, "outputs") == 0;
        int64_t own = other ? 0 : scratch_end(m->graph[i]);
        if (own > end) end = own;
    }
    return end;
}

/* A program of one graph that only runs forward. */
static void plan_forward(Program *p, const char *name, int64_t batch) {
    PlanProgram prog = {.name = name,
                        .batch = batch,
                        .microbatches = 1,
                        .scratch = scratch_end(module_graph(p->mod, name)),
                        .rank = plan_one_task(p, plan_chunk(p, name, name, NULL))};
    plan_program(p, prog, name);
}

/* The evaluation of a pipeline: this rank's chunks, one after another. */
static void plan_eval_chunks(Program *p) {
    PlanProgram prog = {
        .name = "eval", .batch = p->mod->eval.batch, .microbatches = 1, .rank = p->eval_rank};
    uint32_t first = p->chunks.n - p->at.chunk;
    for (int k = 0; k < p->mod->nchunk; k++) {
        const char *name = module_chunk_name(p->mod, "eval", k);
        int64_t scratch = scratch_end(module_graph(p->mod, name));
        if (scratch > prog.scratch) prog.scratch = scratch;
        plan_chunk(p, name, name, NULL);
    }
    plan_eval_tasks(p, first);
    plan_program(p, prog, "eval");
}

/* The norm, where it is apart, and the update: one chunk on one rank, two where ranks exchange what
 * the first one makes. */
static uint32_t plan_update(Program *p, PlanFinish *finish) {
    finish->blocks_program = -1;
    if (module_is_sharded(p->mod))
        finish->blocks_program = (int32_t)plan_chunk(p, "norm.blocks", "norm.blocks", NULL);
    if (program_exchanges(p)) {
        finish->norm = (int32_t)plan_chunk(p, "norm", "norm", NULL);
        return plan_chunk(p, "update", "update", NULL);
    }
    uint32_t at = plan_chunk(p, "update", "norm", NULL);
    if (module_graph(p->mod, "update")) plan_steps(p, module_graph(p->mod, "update"), NULL);
    p->chunks.data[p->at.chunk + at].end = p->steps.n;
    return at;
}

static void plan_programs(Program *p, PlanFinish *finish) {
    TrainChunks c = plan_train_chunks(p);
    c.update = plan_update(p, finish);
    if (module_graph(p->mod, "copy")) plan_chunk(p, "copy", "copy", NULL);
    plan_train_tasks(p, &c);
    PlanProgram train = {.name = "train",
                         .batch = p->mod->train.batch,
                         .microbatches = p->mod->train.microbatches,
                         .scratch = train_scratch(p->mod),
                         .rank = p->train_rank};
    plan_program(p, train, "train");
    if (module_chunk_graph(p->mod, "eval", 0) != NULL) {
        if (p->mod->chunk != NULL)
            plan_eval_chunks(p);
        else
            plan_forward(p, "eval", p->mod->eval.batch);
    }
    for (int i = 0; i < p->mod->ngraph; i++) {
        const char *name = p->mod->graph[i]->name;
        p->any_size = strncmp(name, "prefill.", 8) == 0;
        if (is_generation(name)) plan_forward(p, name, p->mod->generate.batch);
    }
    p->any_size = false;
    if (module_graph(p->mod, "outputs")) plan_forward(p, "outputs", p->mod->eval.batch);
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
                          .part = (uint8_t)k->part,
                          .grid = (uint32_t)k->grid,
                          .block = (uint32_t)k->block,
                          .shared_bytes = (uint32_t)k->shared_bytes,
                          .matmul = k->matmul,
                          .sizes = k->sizes};
        if (k->shares) row.function = p->kernels.data[k->shares - 1].name;
        vec_push(p->arena, &p->plan_kernels, row);
    }
}

/* Tables do not move any more: every plan gets its own rows and the shared ones. */
static void plan_point_to_tables(Program *p) {
    for (uint32_t r = 0; r < p->plans.n; r++) {
        Plan *plan = &p->plans.data[r];
        const RankRows *at = &p->rows.data[r];
        if (plan->nparam) plan->param = p->params.data + at->param;
        if (plan->nalias) plan->alias = p->aliases.data + at->alias;
        if (plan->nbuffer) plan->buffer = p->buffers.data + at->buffer;
        if (plan->nbucket) plan->bucket = p->buckets.data + at->bucket;
        if (plan->nbucket) plan->ready = p->ready.data + at->ready;
        if (plan->nshard) plan->shard = p->shards.data + at->shard;
        plan->chunk = p->chunks.data + at->chunk;
        plan->program = p->programs.data + at->program;
        plan->kernel = p->plan_kernels.data, plan->nkernel = p->plan_kernels.n;
        plan->arg = p->args.data;
        plan->stride = p->strides.data;
        plan->step = p->steps.data;
        plan->task = p->tasks.data;
        plan->message = p->messages.data, plan->nmessage = p->messages.n;
        plan->share = p->shares.data, plan->nshare = p->shares.n;
        plan->stage = p->stages.data, plan->nstage = p->stages.n;
        plan->unit = p->units.data, plan->nunit = p->units.n;
        plan->setting = p->settings.data, plan->nsetting = p->settings.n;
        plan->matmul = p->matmuls.data, plan->nmatmul = p->matmuls.n;
        plan->image = p->images.data, plan->nimage = p->images.n;
    }
}

static Plan plan_head(const Program *p) {
    const Module *m = p->mod;
    Plan plan = {.version = PLAN_VERSION,
                 .rank = p->nrank > 1 ? m->rank : 0,
                 .ranks = p->nrank,
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
                 .schedule_estimate = p->table->estimate,
                 .makespan = p->table->makespan,
                 .bubble = p->table->bubble,
                 .flat_bytes = m->flat_elems * 4,
                 .state_bytes = module_state_elems(m) * 4,
                 .nstate = m->nstate,
                 .checkpoint_prefix = m->checkpoint_prefix,
                 .checkpoint_skip = m->checkpoint_skip,
                 .finish = {.norm = -1}};
    for (int i = 0; i < REGION_count; i++) plan.region_bytes[i] = m->region_bytes[i];
    return plan;
}

/* Of the first input with that role. */
static int64_t input_offset(const Graph *g, Role role) {
    for (int i = 0; g != NULL && i < g->nin; i++)
        if (g->in_port[i].role == role) return g->val[g->in[i].id].addr.offset_bytes;
    return 0;
}

static void plan_finish(const Program *p, Plan *plan) {
    const Graph *update = module_graph(p->mod, "update");
    const PlanProgram *train = &p->programs.data[p->at.program];
    plan->grad_norm = output_offset(update, ROLE_grad_norm, 0);
    plan->update_ok = output_offset(update, ROLE_update_ok, 0);
    if (!program_exchanges(p)) return;
    plan->finish.loss_rank = p->table->home[p->table->chunks - 1];
    plan->finish.loss = train->metric[0].sum;
    plan->finish.squares = input_offset(update, ROLE_squares);
    plan->finish.nsquares = p->mod->ntensor;
    if (module_is_sharded(p->mod)) {
        plan->finish.blocks = input_offset(module_graph(p->mod, "norm"), ROLE_blocks);
        plan->finish.nblocks = p->mod->flat_elems / PARAM_ALIGN;
    }
    plan->finish.loss_bytes = plan->finish.squares - plan->finish.loss;
}

/* The plan of the rank at hand. */
static void plan_rank(Program *p) {
    p->at = (RankRows){.param = p->params.n,
                       .alias = p->aliases.n,
                       .chunk = p->chunks.n,
                       .program = p->programs.n,
                       .buffer = p->buffers.n,
                       .bucket = p->buckets.n,
                       .ready = p->ready.n,
                       .shard = p->shards.n};
    Plan plan = plan_head(p);
    plan_params(p);
    plan_buckets(p);
    plan_shards(p);
    plan_programs(p, &plan.finish);
    plan_train(p, &plan);
    plan_generate(p, &plan);
    plan_buffers(p);
    plan_finish(p, &plan);
    const PlanProgram *train = &p->programs.data[p->at.program];
    if (train->nmetric > 0)
        plan.ordered = plan_ordered(p, train->metric[0].sum,
                                    input_offset(module_graph(p->mod, "update"), ROLE_squares));
    plan.attention_width = p->options->attention_width;
    plan.nparam = p->params.n - p->at.param;
    plan.nalias = p->aliases.n - p->at.alias;
    plan.nchunk = p->chunks.n - p->at.chunk;
    plan.nprogram = p->programs.n - p->at.program;
    plan.nbuffer = p->buffers.n - p->at.buffer;
    plan.nbucket = p->buckets.n - p->at.bucket;
    plan.nshard = p->shards.n - p->at.shard;
    vec_push(p->arena, &p->plans, plan);
    vec_push(p->arena, &p->rows, p->at);
}

void plan_build(Program *p) {
    p->reduces = -1;
    p->train_rank = ARENA_ARRAY(p->arena, PlanRank, p->table->ranks);
    p->eval_rank = ARENA_ARRAY(p->arena, PlanRank, p->table->ranks);
    plan_messages(p);
    plan_shares(p);
    plan_stages(p);
    for (int r = 0; r < p->nrank; r++) {
        p->mod = p->rank[r];
        plan_rank(p);
    }
    if (p->rank[0]->target == TARGET_cuda) image_plan(p);
    plan_kernels(p);
    plan_point_to_tables(p);
}
