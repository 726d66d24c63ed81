/* partition_params.c - parameters by rank.
 *
 * A stack that is cut becomes one parameter for each chunk's indices; any other parameter has one
 * copy on each rank whose chunks use it, with buffers for the gradients of all its uses.
 */
#include "ir/panic.h"
#include "passes/partition.h"

static void add_slice(ParamSlices *s, Arena *scratch, Param p, int origin, int rank, int chunk) {
    p.origin = origin;
    p.rank = rank;
    vec_push(scratch, &s->list, p);
    vec_push(scratch, &s->of, chunk);
}

static void add_pieces(const Cut *c, int node, int param, const int *rank, ParamSlices *s) {
    Module *m = c->g->mod;
    int64_t begin, end;
    for (int chunk = 0; chunk < c->chunks; chunk++) {
        if (!cut_piece(c, node, chunk, &begin, &end)) continue;
        Param p = m->param[param];
        const TypeInfo *t = type_info(m->types, p.type);
        int64_t dim[NDIM_MAX];
        for (int i = 0; i < t->ndim; i++) dim[i] = i == 0 ? end - begin : t->dim[i];
        p.type = type_intern(m->types, t->dtype, t->ndim, dim);
        p.first = begin;
        add_slice(s, c->scratch, p, param, rank[chunk], chunk);
    }
}

static void add_copies(const Cut *c, int param, const bool *on_rank, int ranks, ParamSlices *s) {
    bool any = false;
    for (int r = 0; r < ranks; r++) {
        if (!on_rank[r]) continue;
        add_slice(s, c->scratch, c->g->mod->param[param], param, r, -1);
        any = true;
    }
    if (!any) add_slice(s, c->scratch, c->g->mod->param[param], param, 0, -1);
}

/* The node that reads a stack which is cut, -1; and the ranks of the chunks that read the rest. */
static int find_readers(const Cut *c, int param, const int *rank, bool *on_rank) {
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
                on_rank[rank[cut_chunk(c, c->map->first[i])]] = true;
        }
    }
    return cut;
}

ParamSlices slice_params(const Cut *train, const int *rank, Arena *scratch) {
    ParamSlices s = {0};
    int ranks = 1;
    for (int c = 0; c < train->chunks; c++) ranks = rank[c] >= ranks ? rank[c] + 1 : ranks;
    for (int i = 0; i < train->g->mod->nparam; i++) {
        bool *on_rank = ARENA_ARRAY(scratch, bool, ranks);
        int cut = find_readers(train, i, rank, on_rank);
        if (cut >= 0)
            add_pieces(train, cut, i, rank, &s);
        else
            add_copies(train, i, on_rank, ranks, &s);
    }
    return s;
}

int slice_index(const ParamSlices *s, const Module *m, const int *rank, int param, int chunk) {
    for (uint32_t i = 0; i < s->list.n; i++) {
        if (s->list.data[i].origin != param) continue;
        if (s->of.data[i] == chunk || (s->of.data[i] < 0 && s->list.data[i].rank == rank[chunk]))
            return (int)i;
    }
    panic_graph(NULL, (Span){0}, "parameter '%s' is not on rank %d", m->param[param].name,
                rank[chunk]);
}
