/* partition_params.c - parameters by rank.
 *
 * A stack that is cut becomes one parameter for each chunk's indices; any other parameter has one
 * copy on each rank whose chunks use it, with buffers for the gradients of all its uses.
 */
#include "ir/panic.h"
#include "passes/partition.h"

static void add_slice(ParamSlices *s, Arena *scratch, Param p, int origin, int rank, int chunk) {
    int index = 0;
    for (uint32_t i = 0; i < s->n; i++) index += s->data[i].rank == rank;
    p.origin = origin;
    vec_push(scratch, s, (ParamSlice){.param = p, .rank = rank, .index = index, .chunk = chunk});
}

static void add_pieces(const Cut *c, const Table *t, int node, int param, ParamSlices *s) {
    Module *m = c->g->mod;
    int64_t begin, end;
    for (int chunk = 0; chunk < c->chunks; chunk++) {
        if (!cut_piece(c, node, chunk, &begin, &end)) continue;
        Param p = m->param[param];
        const TypeInfo *type = type_info(m->types, p.type);
        int64_t dim[NDIM_MAX];
        for (int i = 0; i < type->ndim; i++) dim[i] = i == 0 ? end - begin : type->dim[i];
        p.tensor += begin * (param_tensors(m, &p) / type->dim[0]);
        p.type = type_intern(m->types, type->dtype, type->ndim, dim);
        p.first = begin;
        add_slice(s, c->scratch, p, param, t->home[chunk], chunk);
    }
}

static void add_copies(const Cut *c, const Table *t, int param, const bool *on_rank,
                       ParamSlices *s) {
    bool any = false;
    for (int r = 0; r < t->ranks; r++) {
        if (!on_rank[r]) continue;
        Param p = c->g->mod->param[param];
        p.counted_elsewhere = any;
        add_slice(s, c->scratch, p, param, r, -1);
        any = true;
    }
    if (!any) add_slice(s, c->scratch, c->g->mod->param[param], param, t->home[0], -1);
}

/* The node that reads a stack which is cut, -1; and the ranks of the chunks that read the rest. */
static int find_readers(const Cut *c, const Table *t, int param, bool *on_rank) {
    int cut = -1;
    for (int i = 0; i < c->g->nnode; i++) {
        const Node *n = c->g->node[i];
        for (int k = 0; k < n->nin; k++) {
            const ValInfo *info = &c->g->val[n->in[k].id];
            const Port *port = info->node == 0 ? &c->g->in_port[info->result] : NULL;
            if (port == NULL || port->role != ROLE_weight || port->index != param) continue;
            if (c->map->first[i] != c->map->last[i] && k >= (int)node_int(n, ATTR_ncarry, 0))
                cut = i;
            else
                on_rank[t->home[cut_chunk(c, c->map->first[i])]] = true;
        }
    }
    return cut;
}

ParamSlices slice_params(const Cut *train, const Table *t, Arena *scratch) {
    ParamSlices s = {0};
    for (int i = 0; i < train->g->mod->nparam; i++) {
        bool *on_rank = ARENA_ARRAY(scratch, bool, t->ranks);
        int cut = find_readers(train, t, i, on_rank);
        if (cut >= 0)
            add_pieces(train, t, cut, i, &s);
        else
            add_copies(train, t, i, on_rank, &s);
    }
    return s;
}

const ParamSlice *slice_find(const ParamSlices *s, const Module *m, const Table *t, int param,
                             int chunk) {
    for (uint32_t i = 0; i < s->n; i++) {
        const ParamSlice *p = &s->data[i];
        if (p->param.origin != param) continue;
        if (p->chunk == chunk || (p->chunk < 0 && p->rank == t->home[chunk])) return p;
    }
    panic_graph(NULL, (Span){0}, "parameter '%s' is not on rank %d", m->param[param].name,
                t->home[chunk]);
}
