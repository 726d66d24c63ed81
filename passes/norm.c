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
 */
#include "passes/norm.h"

static bool has_layers(const Module *m) {
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].nstack > 0) return true;
    return false;
}

bool norm_is_apart(const Module *m) {
    return m->target == TARGET_c || m->nrank > 1 || m->parallel.dp > 1 || m->parallel.loopback ||
           has_layers(m);
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

/* Gradients of all uses, by parameter then use. */
static Val *add_gradients(Graph *g, Arena *arena) {
    const Module *m = g->mod;
    int total = 0;
    for (int i = 0; i < m->nparam; i++) total += m->param[i].uses > 1 ? m->param[i].uses : 1;
    Val *grad = ARENA_ARRAY(arena, Val, total + 1);
    total = 0;
    for (int i = 0; i < m->nparam; i++)
        for (int use = 0; use < m->param[i].uses || use == 0; use++)
            grad[total++] = is_counted(&m->param[i])
                                ? graph_add_input(g, m->param[i].type,
                                                  (Port){.role = ROLE_grad, .index = i, .use = use})
                                : (Val){0};
    return grad;
}

/* The uses of a parameter added in order, in rows. */
static Val add_uses(Builder *b, const Param *p, const Val *grad, const int64_t dim[2]) {
    Val sum = build_reshape(b, grad[0], 2, dim);
    for (int use = 1; use < p->uses; use++)
        sum = build2(b, OP_add, sum, build_reshape(b, grad[use], 2, dim));
    return sum;
}

Graph *norm_graph(Module *m) {
    Builder b = {.g = graph_new(m, "norm"), .phase = PHASE_U};
    Type scalar = type_intern(m->types, DT_f32, 0, NULL);
    Val *grad = add_gradients(b.g, m->arena);
    Val count = graph_add_input(b.g, scalar, (Port){.role = ROLE_loss_count});
    Val factor = norm_mean_factor(&b, count);
    for (int i = 0, at = 0; i<m->nparam; at += m->param[i].uses> 1 ? m->param[i].uses : 1, i++) {
        const Param *p = &m->param[i];
        if (!is_counted(p)) continue;
        int64_t n = param_tensors(m, p), elems = type_elems(m->types, p->type) / n;
        int64_t parts = parts_of(m, elems), dim[] = {n * parts, elems / parts};
        Val mean = add_uses(&b, p, &grad[at], dim);
        Type whole = val_type(b.g, mean);
        mean = build2(&b, OP_mul, mean, build_broadcast(&b, factor, whole, NULL));
        Val squares = sum_rows(&b, build2(&b, OP_mul, mean, mean));
        if (parts > 1) squares = sum_rows(&b, build_reshape(&b, squares, 2, (int64_t[]){n, parts}));
        graph_add_output(b.g, squares, (Port){.role = ROLE_squares, .index = (int)p->tensor});
    }
    return b.g;
}
