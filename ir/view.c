/* view.c - see view.h. */
#include "ir/view.h"

static View row_major(const Graph *g, Val v) {
    const TypeInfo *t = val_info(g, v);
    View view = {.ndim = t->ndim};
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        view.dim[i] = t->dim[i];
        view.stride[i] = stride;
        stride *= t->dim[i];
    }
    return view;
}

static int64_t view_elems(const View *view) {
    int64_t n = 1;
    for (int i = 0; i < view->ndim; i++) n *= view->dim[i];
    return n;
}

/* The same elements in row-major order with the dimensions of v. Runs of old axes that follow each
 * other in memory are cut into new ones, innermost first. */
static bool reshape(const Graph *g, Val v, View *view) {
    View to = row_major(g, v);
    to.offset = view->offset;
    int i = view->ndim - 1, k = to.ndim - 1;
    for (; i >= 0 && view_elems(view) > 0;) {
        int64_t run = view->dim[i], unit = view->stride[i];
        while (i > 0 && (view->dim[i - 1] == 1 || run == 1 || view->stride[i - 1] == run * unit)) {
            if (run == 1) unit = view->stride[i - 1];
            run *= view->dim[--i];
        }
        i--;
        int64_t done = 1;
        for (; k >= 0 && (done < run || to.dim[k] == 1); k--) {
            if (run % (done * to.dim[k]) != 0) return false;
            to.stride[k] = unit * done;
            done *= to.dim[k];
        }
        if (done != run) return false;
    }
    *view = to;
    return true;
}

static void permute(const Node *n, View *view, bool back) {
    View from = *view;
    const Attr *perm = node_attr(n, ATTR_perm);
    for (int i = 0; i < perm->n; i++) {
        int to = back ? (int)perm->v[i] : i, at = back ? i : (int)perm->v[i];
        view->dim[to] = from.dim[at];
        view->stride[to] = from.stride[at];
    }
}

/* Every element of operand 0 has its place in the result: casts between floats, rope. */
static bool is_in_place(const Graph *g, const Node *n) {
    return n->op == OP_rope || (n->op == OP_cast && dtype_is_float(val_info(g, n->out)->dtype) &&
                                dtype_is_float(val_info(g, n->in[0])->dtype));
}

bool view_read(const Graph *g, Val v, Val base, View *view) {
    const Node *n = val_node(g, v);
    if (v.id == base.id) {
        *view = row_major(g, v);
        return true;
    }
    if (n == NULL || (n->nin != 1 && n->op != OP_rope)) return false;
    if (!view_read(g, n->in[0], base, view)) return false;
    if (n->op == OP_reshape) return reshape(g, v, view);
    if (n->op == OP_transpose) {
        permute(n, view, false);
    } else if (n->op == OP_slice) {
        const Attr *begin = node_attr(n, ATTR_begin), *step = node_attr(n, ATTR_step);
        for (int i = 0; i < view->ndim; i++) {
            view->offset += begin->v[i] * view->stride[i];
            view->stride[i] *= step->v[i];
            view->dim[i] = val_info(g, v)->dim[i];
        }
    } else {
        return is_in_place(g, n);
    }
    return true;
}

/* `at` is v as a view of what is stored; counts in *found how often `made` was met. */
static void find_written(const Graph *g, Val v, View at, Val made, View *view, int *found) {
    const Node *n = val_node(g, v);
    if (v.id == made.id) {
        *view = at;
        ++*found;
        return;
    }
    if (n == NULL) return;
    if (n->op == OP_concat) {
        int axis = (int)node_int(n, ATTR_axis, 0);
        for (int k = 0; k < n->nin; k++) {
            View part = at;
            part.dim[axis] = val_info(g, n->in[k])->dim[axis];
            find_written(g, n->in[k], part, made, view, found);
            at.offset += part.dim[axis] * at.stride[axis];
        }
        return;
    }
    if (n->op == OP_transpose)
        permute(n, &at, true);
    else if (n->op == OP_reshape ? !reshape(g, n->in[0], &at) : !is_in_place(g, n))
        return;
    find_written(g, n->in[0], at, made, view, found);
}

bool view_written(const Graph *g, Val made, Val stored, View *view) {
    int found = 0;
    find_written(g, stored, row_major(g, stored), made, view, &found);
    return found == 1;
}
