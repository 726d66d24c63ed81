/* norm.c - the squares behind the norm of the gradient.
 *
 * A sum of squares is one number for each logical tensor, whichever rank holds it: a row of its own
 * elements, in an order that depends on nothing but its size. The update adds those numbers in the
 * order of the whole model's tensors. So pp, vpp and schedule change no bit of the norm; ranks
 * exchange their numbers, zeros elsewhere, in one all-reduce that is exact.
 *
 * A GPU has too little to do with a few long rows: there each is cut into parts of equal length, as
 * many as its length allows, whose sums are added in a second row. In a model without layers on one
 * GPU, where every launch counts, the sums go over whole segments inside the update: other bits.
 *
 * Where replicas share the work (norm_is_tree), squares are summed in blocks of NORM_BLOCK elements
 * of each piece (a tensor, or a layer's slice of a stack), blocks in groups of as many, and so on:
 * one tree over the piece. Pieces begin at whole blocks of the flat vector (bucket.c), padding is
 * zero, so the lowest level is one kernel over each segment, and a replica that has only some
 * blocks of it makes the same numbers. Pipelines exchange a number for each piece, not the blocks:
 * the levels above need a whole piece, which one rank has, and are 128 times fewer.
 */
#include "passes/norm.h"
#include "passes/layout.h"

static bool has_layers(const Module *m) {
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].nstack > 0) return true;
    return false;
}

bool norm_is_apart(const Module *m) {
    return m->target == TARGET_c || m->nrank > 1 || m->parallel.loopback || norm_is_tree(m) ||
           has_layers(m);
}

bool norm_is_tree(const Module *m) {
    return m->parallel.dp > 1 || m->parallel.ordered || m->parallel.bucketed ||
           module_is_sharded(m);
}

enum { PARTS_MAX = 1024, PART_ELEMS_MIN = 4096 };

static int64_t parts_of(const Module *m, int64_t elems) {
    int64_t parts = m->target == TARGET_cuda ? PARTS_MAX : 1;
    while (parts > 1 && (elems % parts != 0 || elems / parts < PART_ELEMS_MIN)) parts /= 2;
    return parts;
}

static Val sum_rows(Builder *b, Val x) {
    return build_reduce(b, OP_reduce_sum, x, 1, &(int64_t){1});
}

Val norm_mean_factor(Builder *b, Val loss_count) {
    Type scalar = type_intern(b->g->mod->types, DT_f32, 0, NULL);
    Val one = build_const(b, 1, scalar);
    Val count = build2(b, OP_max, loss_count, build_const(b, 1, scalar));
    return build2(b, OP_div, one, count);
}

static bool is_counted(const Param *p) { return p->trainable && !p->counted_elsewhere; }

enum { NORM_BLOCK = PARAM_ALIGN };

typedef struct Norm {
    Builder b;
    Val *grad;               /* by parameter: of its uses, the first of which may be in flat */
    Val flat[SEGMENT_MAX];   /* the gradient of a segment, where first uses are read from there */
    Val blocks[SEGMENT_MAX]; /* sums of its blocks, when asked for */
    Val factor;
} Norm;

/* Gradients of all uses; where the layout is bucketed, those of first uses as whole segments, since
 * slices of stacks lie apart. */
static void add_inputs(Norm *n) {
    Graph *g = n->b.g;
    Module *m = g->mod;
    Type scalar = type_intern(m->types, DT_f32, 0, NULL);
    bool whole[SEGMENT_MAX] = {false};
    n->grad = ARENA_ARRAY(m->arena, Val, m->nparam + 1);
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        int first = module_is_bucketed(m) ? 1 : 0;
        if (!is_counted(p)) continue;
        whole[p->segment] = first == 1;
        for (int use = first; use < p->uses || use == 0; use++) {
            Port port = {.role = ROLE_grad, .index = i, .use = use};
            Val v = graph_add_input(g, p->type, port);
            if (use == first) n->grad[i] = v;
        }
    }
    for (int s = 0; s < m->nsegment; s++)
        if (whole[s])
            n->flat[s] = graph_add_input(g, type_intern(m->types, DT_f32, 1, &m->segment[s].elems),
                                         (Port){.role = ROLE_flat_grad, .index = s});
    Val count = graph_add_input(g, scalar, (Port){.role = ROLE_loss_count});
    n->factor = norm_mean_factor(&n->b, count);
}

static Val reshape2(Norm *n, Val x, int64_t rows, int64_t columns) {
    return build_reshape(&n->b, x, 2, (int64_t[]){rows, columns});
}

static Val slice_axis(Norm *n, Val x, int axis, int64_t begin, int64_t extent) {
    const TypeInfo *t = val_info(n->b.g, x);
    int64_t from[NDIM_MAX] = {0}, to[NDIM_MAX], step[NDIM_MAX];
    for (int i = 0; i < t->ndim; i++) to[i] = t->dim[i], step[i] = 1;
    from[axis] = begin;
    to[axis] = begin + extent;
    return build_slice(&n->b, x, from, to, step);
}

/* Rows of `length` from rows of x, zeros behind them. */
static Val pad_rows(Norm *n, Val x, int64_t length) {
    const TypeInfo *t = val_info(n->b.g, x);
    int64_t low[2] = {0, 0}, high[2] = {0, length - t->dim[1]};
    Attr attr[] = {ATTR_INTS(low, 2, low), ATTR_INTS(high, 2, high), ATTR_FLOAT(value, 0)};
    return high[1] == 0 ? x : graph_add(&n->b, OP_pad, 1, &x, 3, attr, (Type){0})->out;
}

static Val squares_of(Norm *n, Val grad) {
    Builder *b = &n->b;
    Val mean = build2(b, OP_mul, grad, build_broadcast(b, n->factor, val_type(b->g, grad), NULL));
    return build2(b, OP_mul, mean, mean);
}

/* Rows [slices, `extent`] of a block's pieces from a flat vector: of single elements of a segment
 * (unit 1), or of what was made of every `unit` of them. */
static Val take_slices(Norm *n, Val flat, const Param *p, int64_t unit, int64_t extent) {
    const Module *m = n->b.g->mod;
    const Segment *segment = &m->segment[p->segment];
    int64_t count = param_slices(m, p), stride = param_slice_stride(m, p) / unit;
    int64_t begin = (p->offset_elems - segment->offset_elems) / unit;
    if (count == 1 || stride == extent)
        return reshape2(n, slice_axis(n, flat, 0, begin, count * extent), count, extent);
    /* Whole strides: the last one may reach beyond the segment, then all begin earlier. */
    int64_t last = segment->elems / unit - count * stride, from = begin < last ? begin : last;
    Val rows = reshape2(n, slice_axis(n, flat, 0, from, count * stride), count, stride);
    return slice_axis(n, rows, 1, begin - from, extent);
}

/* A use's gradient in rows, zeros behind each up to `length`. */
static Val rows_of(Norm *n, Val grad, const int64_t dim[2], int64_t length) {
    return pad_rows(n, reshape2(n, grad, dim[0], dim[1]), length);
}

/* The uses of a parameter added in order, in such rows. */
static Val add_uses(Norm *n, int param, const int64_t dim[2], int64_t length) {
    const Param *p = &n->b.g->mod->param[param];
    Val flat = n->flat[p->segment], next = n->grad[param];
    Val first = flat.id != 0 ? take_slices(n, flat, p, 1, param_slice_elems(n->b.g->mod, p)) : next;
    if (flat.id == 0) next.id++;
    Val sum = rows_of(n, first, dim, length);
    for (int use = 1; use < p->uses; use++, next.id++)
        sum = build2(&n->b, OP_add, sum, rows_of(n, next, dim, length));
    return sum;
}

/* Sums of squares of such rows of a stack whose slices lie apart: the same sums, but the slices are
 * an axis of their own, so that the kernel reads them where they are. */
static Val sum_apart(Norm *n, const Param *p, const int64_t dim[2]) {
    const Module *m = n->b.g->mod;
    int64_t slices = param_slices(m, p), rows[] = {slices, dim[0] / slices, dim[1]};
    Val x = take_slices(n, n->flat[p->segment], p, 1, param_slice_elems(m, p));
    x = squares_of(n, build_reshape(&n->b, x, 3, rows));
    return build_reshape(&n->b, build_reduce(&n->b, OP_reduce_sum, x, 1, &(int64_t){2}), 1, dim);
}

/* Sums of squares of all logical tensors of a block, in parts. */
static Val sum_tensors(Norm *n, int param) {
    Module *m = n->b.g->mod;
    const Param *p = &m->param[param];
    int64_t tensors = param_tensors(m, p), elems = type_elems(m->types, p->type) / tensors;
    int64_t parts = parts_of(m, elems), dim[] = {tensors * parts, elems / parts};
    Val squares = p->stride_elems != 0
                      ? sum_apart(n, p, dim)
                      : sum_rows(&n->b, squares_of(n, add_uses(n, param, dim, dim[1])));
    if (parts > 1) squares = sum_rows(&n->b, reshape2(n, squares, tensors, parts));
    return squares;
}

/* ---- in a tree of blocks ---------------------------------------------------------------- */

/* Sums of NORM_BLOCK neighbours of each row, the last ones of fewer. */
static Val sum_level(Norm *n, Val x) {
    const TypeInfo *t = val_info(n->b.g, x);
    int64_t rows = t->dim[0], blocks = (t->dim[1] + NORM_BLOCK - 1) / NORM_BLOCK;
    Val padded = pad_rows(n, x, blocks * NORM_BLOCK);
    Val parts = build_reshape(&n->b, padded, 3, (int64_t[]){rows, blocks, NORM_BLOCK});
    return build_reduce(&n->b, OP_reduce_sum, parts, 1, &(int64_t){2});
}

/* The blocks of a segment, all in one kernel. */
static Val segment_blocks(Norm *n, int s) {
    if (n->blocks[s].id != 0) return n->blocks[s];
    int64_t blocks = n->b.g->mod->segment[s].elems / NORM_BLOCK;
    Val rows = reshape2(n, n->flat[s], blocks, NORM_BLOCK);
    return n->blocks[s] = sum_rows(&n->b, squares_of(n, rows));
}

/* Sums of blocks of each piece, [slices, blocks]: those of its segment, but for tied weights and
 * stacks whose slices begin between blocks. */
static Val piece_blocks(Norm *n, int param) {
    const Module *m = n->b.g->mod;
    const Param *p = &m->param[param];
    int64_t elems = param_slice_elems(m, p), count = param_slices(m, p);
    bool aligned = count == 1 || param_slice_stride(m, p) % NORM_BLOCK == 0;
    if ((p->uses < 2 || module_is_sharded(m)) && aligned)
        return take_slices(n, segment_blocks(n, p->segment), p, NORM_BLOCK,
                           (elems + NORM_BLOCK - 1) / NORM_BLOCK);
    int64_t dim[] = {count, elems}, length = layout_round(elems, NORM_BLOCK);
    return sum_level(n, squares_of(n, add_uses(n, param, dim, length)));
}

/* A sum for each piece, where the piece's first logical tensor has its number; zeros for the
 * others. */
static Val sum_pieces(Norm *n, int param) {
    const Module *m = n->b.g->mod;
    const Param *p = &m->param[param];
    int64_t tensors = param_tensors(m, p), pieces = param_slices(m, p);
    Val x = piece_blocks(n, param);
    while (val_info(n->b.g, x)->dim[1] > 1) x = sum_level(n, x);
    return build_reshape(&n->b, pad_rows(n, x, tensors / pieces), 1, &tensors);
}

/* ---- shared by replicas ------------------------------------------------------------------ */

/* What a part is the gradient of in the norm. */
static bool part_is_counted(const Module *m, const FlatPart *part) {
    return part->tied < 0 || is_counted(&m->param[part->tied]);
}

/* The gradients of a part's uses, behind each other; none where another rank counts it. */
static Val add_part_inputs(Norm *n, int index, const FlatPart *part) {
    Module *m = n->b.g->mod;
    Type type = type_intern(m->types, DT_f32, 1, &part->elems);
    int uses = part->tied >= 0 ? m->param[part->tied].uses : 1;
    Val first = {0};
    for (int use = 0; use < uses && part_is_counted(m, part); use++) {
        Port port = {.role = ROLE_flat_grad, .index = index, .use = use};
        Val v = graph_add_input(n->b.g, type, port);
        if (use == 0) first = v;
    }
    return first;
}

static void sum_part(Norm *n, int index, const FlatPart *part, Val grad) {
    const Module *m = n->b.g->mod;
    int uses = part->tied >= 0 ? m->param[part->tied].uses : 1;
    Val sum = {0};
    for (int use = 0; use < uses; use++, grad.id++) {
        Val rows = reshape2(n, grad, part->elems / NORM_BLOCK, NORM_BLOCK);
        sum = use == 0 ? rows : build2(&n->b, OP_add, sum, rows);
    }
    graph_add_output(n->b.g, sum_rows(&n->b, squares_of(n, sum)),
                     (Port){.role = ROLE_blocks, .index = index, .use = 1});
}

Graph *norm_blocks_graph(Module *m) {
    Norm n = {.b = {.g = graph_new(m, "norm.blocks"), .phase = PHASE_U}};
    Type scalar = type_intern(m->types, DT_f32, 0, NULL);
    Val count = graph_add_input(n.b.g, scalar, (Port){.role = ROLE_loss_count});
    FlatPart part;
    int nparts = 0;
    while (module_flat_part(m, nparts, &part)) nparts++;
    Val *grad = ARENA_ARRAY(m->arena, Val, nparts + 1);
    for (int i = 0; module_flat_part(m, i, &part); i++) grad[i] = add_part_inputs(&n, i, &part);
    n.factor = norm_mean_factor(&n.b, count);
    for (int i = 0; module_flat_part(m, i, &part); i++)
        if (grad[i].id != 0) sum_part(&n, i, &part, grad[i]);
    return n.b.g;
}

const char *norm_unshared(const Module *m) {
    for (int i = 0; i < m->nparam; i++)
        if (is_counted(&m->param[i]) && param_slices(m, &m->param[i]) > 1 &&
            param_slice_stride(m, &m->param[i]) % NORM_BLOCK != 0)
            return m->param[i].name;
    return NULL;
}

/* Sums of blocks come from all replicas. */
static void add_block_inputs(Norm *n) {
    Module *m = n->b.g->mod;
    for (int s = 0; s < m->nsegment; s++) {
        int64_t blocks = m->segment[s].elems / NORM_BLOCK;
        n->blocks[s] = graph_add_input(n->b.g, type_intern(m->types, DT_f32, 1, &blocks),
                                       (Port){.role = ROLE_blocks, .index = s});
    }
}

Graph *norm_graph(Module *m) {
    Norm n = {.b = {.g = graph_new(m, "norm"), .phase = PHASE_U}};
    if (module_is_sharded(m))
        add_block_inputs(&n);
    else
        add_inputs(&n);
    for (int i = 0; i < m->nparam; i++) {
        if (!is_counted(&m->param[i])) continue;
        Val squares = norm_is_tree(m) ? sum_pieces(&n, i) : sum_tensors(&n, i);
        graph_add_output(n.b.g, squares,
                         (Port){.role = ROLE_squares, .index = (int)m->param[i].tensor});
    }
    return n.b.g;
}
