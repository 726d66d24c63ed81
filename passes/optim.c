/* optim.c - the layout of the parameter vector (layout.c, bucket.c), and the update graph.
 *
 * Reads   parameters and their uses, the optimizer's settings.
 * Writes  segment, offsets and stride of every parameter; the module's segments, buckets,
 *         flat_elems, grad_elems and nstate; the graph "update"; where weights are read in bf16,
 *         its results of that, and the graph "copy".
 * Keeps   all other graphs.
 * Why     updating flat vectors is one kernel a segment however many parameters there are.
 *
 * Source: the formulas of torch.optim in the order of their operations (_single_tensor_sgd,
 * _single_tensor_adam, _single_tensor_adamw of PyTorch 2; clip_grad_norm_ for the clipping):
 *   sgd    g += decay * w;  buf = momentum * buf + g;  g = nesterov ? g + momentum * buf : buf;
 *          w += -lr * g
 *          PyTorch sets buf = g in the first step; with buf = 0 before it the formula gives the
 *          same bits, but for the sign of a zero (dampening is not part of the language).
 *   adam   g += decay * w;  m = lerp(m, g, 1 - beta1);  v = v * beta2 + (1 - beta2) * g * g;
 *          w += -(lr / bias1) * m / (sqrt(v) / sqrt(bias2) + eps)
 *   adamw  w *= 1 - lr * decay first, and no decay in g; then as adam.
 * A step whose loss or gradient norm is not finite changes nothing: new = select(ok, new, old).
 */
#include "passes/layout.h"
#include "passes/norm.h"

static int state_count(const Optimizer *o) {
    if (o->kind != OPTIM_sgd) return 2;
    return o->momentum != 0 ? 1 : 0;
}

/* ---- the update graph ------------------------------------------------------------------- */

enum { STATE_MAX = 2 };

/* The optimizer's states of a part. */
typedef struct States {
    Val of[STATE_MAX];
} States;

typedef struct Update {
    Module *mod;
    Builder b;
    Type scalar;
    Val host[SCALAR_COUNT];
    Val loss_sum, loss_count;
    FlatPart *part;
    int npart;
    Val *weight; /* by part */
    States *state;
    Val *grad;     /* of the first use */
    Val *use_grad; /* of later uses: by part, or where those are segments by parameter */
    Val squares;   /* of each logical tensor, from the graph "norm"; none: summed here */
    Val inverse;   /* 1 / counted targets */
    Val clip;      /* coefficient, at most 1 */
    Val ok;        /* bool */
} Update;

static Type flat_type(const Update *u, int s) {
    return type_intern(u->mod->types, DT_f32, 1, &u->part[s].elems);
}

static Val add_input(Update *u, Type type, Role role, int index, int use) {
    return graph_add_input(u->b.g, type, (Port){.role = role, .index = index, .use = use});
}

static void list_parts(Update *u, Arena *scratch) {
    FlatPart part;
    while (module_flat_part(u->mod, u->npart, &part)) u->npart++;
    u->part = ARENA_ARRAY(scratch, FlatPart, u->npart + 1);
    for (int s = 0; s < u->npart; s++) module_flat_part(u->mod, s, &u->part[s]);
    u->weight = ARENA_ARRAY(scratch, Val, u->npart + 1);
    u->grad = ARENA_ARRAY(scratch, Val, u->npart + 1);
    u->state = ARENA_ARRAY(scratch, States, u->npart + 1);
}

/* How many gradients of later uses are added to a part's, where parts are shares of buckets. */
static int part_uses(const Update *u, int s) {
    int tied = u->part[s].tied;
    return tied >= 0 ? u->mod->param[tied].uses - 1 : 0;
}

static void add_use_inputs(Update *u, Arena *scratch) {
    const Module *m = u->mod;
    int later = 0;
    for (int i = 0; i < m->nparam; i++) later += m->param[i].uses > 1 ? m->param[i].uses - 1 : 0;
    u->use_grad = ARENA_ARRAY(scratch, Val, later + 1);
    later = 0;
    for (int s = 0; s < u->npart && module_is_sharded(m); s++)
        for (int use = 1; use <= part_uses(u, s); use++)
            u->use_grad[later++] = add_input(u, flat_type(u, s), ROLE_flat_grad, s, use);
    for (int i = 0; i < m->nparam && !module_is_sharded(m); i++)
        for (int use = 1; use < m->param[i].uses; use++)
            u->use_grad[later++] = add_input(u, m->param[i].type, ROLE_grad, i, use);
}

static void add_inputs(Update *u, Arena *scratch) {
    const Module *m = u->mod;
    list_parts(u, scratch);
    for (int s = 0; s < u->npart; s++)
        u->weight[s] = add_input(u, flat_type(u, s), ROLE_flat_weight, s, 0);
    for (int s = 0; s < u->npart; s++)
        u->grad[s] = add_input(u, flat_type(u, s), ROLE_flat_grad, s, 0);
    for (int s = 0; s < u->npart; s++)
        for (int k = 0; k < m->nstate; k++)
            u->state[s].of[k] = add_input(u, flat_type(u, s), ROLE_flat_state, s, k);
    add_use_inputs(u, scratch);
    if (norm_is_apart(m)) {
        Type all = type_intern(m->types, DT_f32, 1, &m->ntensor);
        u->squares = add_input(u, all, ROLE_squares, 0, 0);
    }
    u->loss_sum = add_input(u, u->scalar, ROLE_loss_sum, 0, 0);
    u->loss_count = add_input(u, u->scalar, ROLE_loss_count, 0, 0);
    for (int k = 0; k < SCALAR_COUNT; k++) u->host[k] = add_input(u, u->scalar, ROLE_scalar, k, 0);
}

static Val number(Update *u, double value) { return build_const(&u->b, value, u->scalar); }

/* A scalar as a vector of the segment. */
static Val spread(Update *u, Val scalar, int s) {
    Dtype dtype = val_info(u->b.g, scalar)->dtype;
    Type to = type_intern(u->mod->types, dtype, 1, &u->part[s].elems);
    return build_broadcast(&u->b, scalar, to, NULL);
}

static Val scaled(Update *u, Val scalar, Val x, int s) {
    return build2(&u->b, OP_mul, spread(u, scalar, s), x);
}

/* The gradient of a later use as a vector of its segment, zero elsewhere. */
static Val padded_use(Update *u, const Param *p, Val grad) {
    const Segment *segment = &u->mod->segment[p->segment];
    int64_t elems = type_elems(u->mod->types, p->type);
    int64_t low = p->offset_elems - segment->offset_elems, high = segment->elems - low - elems;
    Val flat = build_reshape(&u->b, grad, 1, &elems);
    Attr attr[] = {ATTR_INTS(low, 1, &low), ATTR_INTS(high, 1, &high), ATTR_FLOAT(value, 0)};
    return graph_add(&u->b, OP_pad, 1, &flat, 3, attr, (Type){0})->out;
}

/* The gradients of all uses in a share of a bucket. */
static Val shared_grad(Update *u, int s) {
    Val g = u->grad[s];
    int later = 0;
    for (int before = 0; before < s; before++) later += part_uses(u, before);
    for (int use = 0; use < part_uses(u, s); use++)
        g = build2(&u->b, OP_add, g, u->use_grad[later + use]);
    return g;
}

static Val segment_grad(Update *u, int s) {
    Val g = u->grad[s];
    int later = 0;
    for (int i = 0; i < u->mod->nparam; i++) {
        const Param *p = &u->mod->param[i];
        for (int use = 1; use < p->uses; use++, later++)
            if (p->segment == s) g = build2(&u->b, OP_add, g, padded_use(u, p, u->use_grad[later]));
    }
    return g;
}

/* Mean gradient of a part. Built anew for each reader: the norm and the update each scale what
 * they read anyway, so that no scaled copy of the whole vector has to be written. */
static Val mean_grad(Update *u, int s) {
    Val g = module_is_sharded(u->mod) ? shared_grad(u, s) : segment_grad(u, s);
    return build2(&u->b, OP_mul, g, spread(u, u->inverse, s));
}

/* The sum of all squares. */
static Val sum_squares(Update *u) {
    Builder *b = &u->b;
    Val sum = {0};
    if (u->squares.id != 0) return build_reduce(b, OP_reduce_sum, u->squares, 1, &(int64_t){0});
    for (int s = 0; s < u->npart; s++) {
        Val g = mean_grad(u, s);
        Val part = build_reduce(b, OP_reduce_sum, build2(b, OP_mul, g, g), 1, &(int64_t){0});
        sum = sum.id == 0 ? part : build2(b, OP_add, sum, part);
    }
    return sum.id == 0 ? number(u, 0) : sum;
}

/* Norm over all segments, clip coefficient, and whether the step counts. */
static Val build_norm(Update *u) {
    Builder *b = &u->b;
    u->inverse = norm_mean_factor(b, u->loss_count);
    Val norm = build1(b, OP_sqrt, sum_squares(u));
    Val ratio = build2(b, OP_div, u->host[SCALAR_clip], build2(b, OP_add, norm, number(u, 1e-6)));
    u->clip = build2(b, OP_min, ratio, number(u, 1));
    Val norm_ok = build1(b, OP_is_finite, norm), loss_ok = build1(b, OP_is_finite, u->loss_sum);
    u->ok = build2(b, OP_and, norm_ok, loss_ok);
    return norm;
}

/* What one step makes of a segment's weights and states. */
typedef struct Updated {
    Val weight, state[STATE_MAX];
} Updated;

static Val add_decay(Update *u, Val g, int s) {
    if (!u->part[s].decay) return g;
    return build2(&u->b, OP_add, g, scaled(u, u->host[SCALAR_decay], u->weight[s], s));
}

static Updated build_sgd(Update *u, Val g, int s) {
    Builder *b = &u->b;
    const Optimizer *o = &u->mod->train.optimizer;
    Updated new = {0};
    g = add_decay(u, g, s);
    if (o->momentum != 0) {
        Val momentum = number(u, o->momentum);
        new.state[0] = build2(b, OP_add, scaled(u, momentum, u->state[s].of[0], s), g);
        g = o->nesterov ? build2(b, OP_add, g, scaled(u, momentum, new.state[0], s)) : new.state[0];
    }
    Val step = build1(b, OP_neg, u->host[SCALAR_lr]);
    new.weight = build2(b, OP_add, u->weight[s], scaled(u, step, g, s));
    return new;
}

/* torch.lerp: the form that is exact at the nearer end. */
static Val build_lerp(Update *u, Val from, Val to, double weight, int s) {
    Builder *b = &u->b;
    Val difference = build2(b, OP_sub, to, from);
    if (weight < 0.5) return build2(b, OP_add, from, scaled(u, number(u, weight), difference, s));
    return build2(b, OP_sub, to, scaled(u, number(u, 1 - weight), difference, s));
}

static Updated build_adam(Update *u, Val g, int s) {
    Builder *b = &u->b;
    const Optimizer *o = &u->mod->train.optimizer;
    Updated new = {0};
    Val w = u->weight[s];
    Val lr = u->host[SCALAR_lr];
    if (o->kind == OPTIM_adam) g = add_decay(u, g, s);
    if (o->kind == OPTIM_adamw && u->part[s].decay) {
        Val lost = build2(b, OP_mul, lr, u->host[SCALAR_decay]);
        w = scaled(u, build2(b, OP_sub, number(u, 1), lost), w, s);
    }
    new.state[0] = build_lerp(u, u->state[s].of[0], g, 1 - o->beta1, s);
    Val square = build2(b, OP_mul, scaled(u, number(u, 1 - o->beta2), g, s), g);
    new.state[1] = build2(b, OP_add, scaled(u, number(u, o->beta2), u->state[s].of[1], s), square);
    Val step = build1(b, OP_neg, build2(b, OP_div, lr, u->host[SCALAR_bias1]));
    Val root = build1(b, OP_sqrt, new.state[1]);
    root = build2(b, OP_div, root, spread(u, build1(b, OP_sqrt, u->host[SCALAR_bias2]), s));
    Val below = build2(b, OP_add, root, spread(u, number(u, o->eps), s));
    Val change = build2(b, OP_div, scaled(u, step, new.state[0], s), below);
    new.weight = build2(b, OP_add, w, change);
    return new;
}

static Val keep_unless_ok(Update *u, Val updated, Val old, int s) {
    return build3(&u->b, OP_select, spread(u, u->ok, s), updated, old);
}

static void update_segment(Update *u, int s, Updated *result) {
    Val g = mean_grad(u, s);
    g = build2(&u->b, OP_mul, g, spread(u, u->clip, s));
    bool sgd = u->mod->train.optimizer.kind == OPTIM_sgd;
    Updated new = sgd ? build_sgd(u, g, s) : build_adam(u, g, s);
    result->weight = keep_unless_ok(u, new.weight, u->weight[s], s);
    for (int k = 0; k < u->mod->nstate; k++)
        result->state[k] = keep_unless_ok(u, new.state[k], u->state[s].of[k], s);
}

/* ---- the copy in bf16 ------------------------------------------------------------------- */

static bool reads_copy(const Module *m) {
    for (int i = 0; i < m->ngraph; i++)
        for (int k = 0; k < m->graph[i]->nin; k++)
            if (m->graph[i]->in_port[k].role == ROLE_weight_copy) return true;
    return false;
}

/* Whole segments even where replicas share these. */
static Port whole_segment(const Module *m, Role role, int s) {
    return (Port){.role = role, .index = s, .use = module_is_sharded(m) ? 1 : 0};
}

/* Which segments the graph "copy" makes the copy of: those that are there as a whole; where
 * replicas share them, a segment that nobody reads the copy of needs none. */
static bool is_copied(const Module *m, int s) {
    if (!module_is_sharded(m)) return true;
    bool read = false;
    for (int i = 0; i < m->ngraph; i++)
        for (int k = 0; k < m->graph[i]->nin; k++) {
            const Port *port = &m->graph[i]->in_port[k];
            read |= port->role == ROLE_weight_copy && m->param[port->index].segment == s;
        }
    return read && !m->segment[s].owned;
}

/* The graph "copy": what fills the copy when weights came from elsewhere than the update. NULL:
 * nothing. */
static Graph *build_copy(Module *m) {
    Builder b = {.g = graph_new(m, "copy"), .phase = PHASE_U};
    for (int s = 0; s < m->nsegment; s++) {
        if (!is_copied(m, s)) continue;
        Type type = type_intern(m->types, DT_f32, 1, &m->segment[s].elems);
        graph_add_input(b.g, type, whole_segment(m, ROLE_flat_weight, s));
    }
    for (int k = 0; k < b.g->nin; k++)
        graph_add_output(b.g, build_cast(&b, b.g->in[k], DT_bf16),
                         whole_segment(m, ROLE_flat_copy, b.g->in_port[k].index));
    return b.g->nin > 0 ? b.g : NULL;
}

/* ---- the whole -------------------------------------------------------------------------- */

static Graph *build_update(Module *m, Arena *scratch) {
    Update u = {.mod = m, .scalar = type_intern(m->types, DT_f32, 0, NULL)};
    u.b = (Builder){.g = graph_new(m, "update"), .phase = PHASE_U};
    add_inputs(&u, scratch);
    Val norm = build_norm(&u);
    Updated *result = ARENA_ARRAY(scratch, Updated, u.npart + 1);
    for (int s = 0; s < u.npart; s++) update_segment(&u, s, &result[s]);
    Graph *g = u.b.g;
    for (int s = 0; s < u.npart; s++)
        graph_add_output(g, result[s].weight, (Port){.role = ROLE_flat_weight, .index = s});
    for (int s = 0; s < u.npart; s++)
        for (int k = 0; k < m->nstate; k++)
            graph_add_output(g, result[s].state[k],
                             (Port){.role = ROLE_flat_state, .index = s, .use = k});
    /* Where others need the f32 weights of a part, too, "copy" follows when all are there. */
    for (int s = 0; s < u.npart && reads_copy(m); s++)
        if (!module_is_sharded(m) || u.part[s].owned)
            graph_add_output(g, build_cast(&u.b, result[s].weight, DT_bf16),
                             (Port){.role = ROLE_flat_copy, .index = s});
    graph_add_output(g, norm, (Port){.role = ROLE_grad_norm});
    graph_add_output(g, build_cast(&u.b, u.ok, DT_f32), (Port){.role = ROLE_update_ok});
    return g;
}

/* What replicas cannot share yet. */
static bool check_shared(Module *m) {
    const char *stack = norm_unshared(m);
    if (stack == NULL) return true;
    DiagRef ref = diag_error(m->diag, E020, (Span){0},
                             "zero = 1 cannot share '%s': its layers are used as one tensor and "
                             "are not whole blocks of %d elements",
                             stack, PARAM_ALIGN);
    diag_hint(m->diag, ref, "-D parallel.zero=0");
    return false;
}

bool pass_optim(PassContext *ctx) {
    Module *m = ctx->mod;
    if (!layout_fits(m)) {
        diag_error(m->diag, E026, (Span){0}, "the parameters have more than 2^50 elements");
        return false;
    }
    layout_params(m, ctx->scratch);
    if (ctx->table != NULL && module_has_buckets(m)) ctx->table->buckets += m->nbucket;
    m->nstate = state_count(&m->train.optimizer);
    Graph *copy = reads_copy(m) ? build_copy(m) : NULL;
    if (copy != NULL) module_set_graph(m, "copy", copy);
    if (module_chunk_graph(m, "train", 0) == NULL) return true;
    if (m->ntensor == 0) module_number_tensors(m);
    if (module_is_sharded(m)) {
        if (!check_shared(m)) return false;
        module_set_graph(m, "norm.blocks", norm_blocks_graph(m));
    }
    if (norm_is_apart(m)) module_set_graph(m, "norm", norm_graph(m));
    module_set_graph(m, "update", build_update(m, ctx->scratch));
    return true;
}
