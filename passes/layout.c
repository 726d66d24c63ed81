/* layout.c - the layout of the parameter vector.
 *
 * Blocks with weight decay come first, then the others, so decay is a fact of the segment and no
 * element is asked. The padding between blocks is zero, has zero gradient, and stays zero.
 */
#include "passes/layout.h"

static int64_t padded_elems(const Module *m, const Param *p) {
    return layout_round(type_elems(m->types, p->type), PARAM_ALIGN);
}

/* Elements that rounding to whole blocks of all replicas may add, at most. False: too many. */
static bool padding_of(const Module *m, const Param *p, int64_t *elems) {
    int64_t align = PARAM_ALIGN, pieces = param_slices(m, p) + p->uses + 2;
    if (module_is_bucketed(m) && __builtin_mul_overflow(align, m->parallel.dp, &align))
        return false;
    return !__builtin_mul_overflow(align, module_is_bucketed(m) ? pieces : p->uses + 1, elems);
}

bool layout_fits(const Module *m) {
    const int64_t elems_max = (int64_t)1 << 50;
    int64_t left = elems_max;
    for (int i = 0; i < m->nparam; i++) {
        const Param *p = &m->param[i];
        int64_t elems = type_elems(m->types, p->type), uses = p->uses > 1 ? p->uses : 1, padding;
        if (!padding_of(m, p, &padding) || elems > elems_max / uses || padding > elems_max ||
            elems * uses + padding > left)
            return false;
        left -= elems * uses + padding;
    }
    return true;
}

/* One segment: all blocks with `decay`, in order of their indices. None when there are none. */
static void lay_segment(Module *m, bool decay) {
    Segment segment = {.offset_elems = m->flat_elems, .decay = decay};
    for (int i = 0; i < m->nparam; i++) {
        Param *p = &m->param[i];
        if (layout_decays(p) != decay) continue;
        p->segment = m->nsegment;
        p->offset_elems = m->flat_elems;
        m->flat_elems += padded_elems(m, p);
    }
    segment.elems = m->flat_elems - segment.offset_elems;
    if (segment.elems > 0) m->segment[m->nsegment++] = segment;
}

void layout_uses(Module *m) {
    m->grad_elems = m->flat_elems;
    for (int i = 0; i < m->nparam; i++) {
        Param *p = &m->param[i];
        if (p->uses < 2) continue;
        p->use_offset_elems = m->grad_elems;
        m->grad_elems += (p->uses - 1) * param_use_stride(m, p);
    }
}

void layout_params(Module *m, Arena *scratch) {
    m->flat_elems = 0;
    m->nsegment = m->nbucket = 0;
    if (module_is_bucketed(m)) {
        bucket_params(m, scratch);
        return;
    }
    lay_segment(m, true);
    lay_segment(m, false);
    layout_uses(m);
}
