/* layer_param.c - parameters of layers; see layer_param.h. */
#include "frontend/layer_param.h"

#include <math.h>
#include <string.h>

/* Lower an initialiser to one of the module's kinds. */
static void init_of(const LayerParam *p, Param *out) {
    out->init = p->init;
    out->init_a = p->init_a;
    if (p->init_given == NULL || p->init_given->kind != VALUE_setting) return;
    const Value *v = p->init_given;
    double fan_in = (double)p->fan_in, fan_out = (double)p->fan_out;
    out->init_a = v->n > 0 ? v->item[0].number : 0;
    switch (v->fn->id) {
    case SETFN_zeros: out->init = INIT_zeros; break;
    case SETFN_ones: out->init = INIT_ones; break;
    case SETFN_normal: out->init = INIT_normal; break;
    case SETFN_kaiming_uniform:
        out->init = INIT_uniform;
        out->init_a = sqrt(2.0 / (1.0 + out->init_a * out->init_a)) * sqrt(3.0 / fan_in);
        break;
    case SETFN_xavier_uniform:
        out->init = INIT_uniform;
        out->init_a = sqrt(6.0 / (fan_in + fan_out));
        break;
    default: out->init = INIT_uniform; break;
    }
}

const MemberParam *member_param(const Member *m, const char *name) {
    for (uint32_t i = 0; i < m->params.n; i++)
        if (strcmp(m->params.data[i].name, name) == 0) return &m->params.data[i];
    return NULL;
}

/* Index of the parameter that a path names; -1 after an error. */
static int tie_target(Lower *l, const Member *m, const Ast *path) {
    Space *space = NULL;
    Member *owner = path->kind == AST_field ? path_member(l, path->child[0], &space) : NULL;
    if (owner != NULL && owner->broken) return -1;
    const MemberParam *target = owner != NULL ? member_param(owner, path->text) : NULL;
    if (target != NULL) return target->param;
    const char *text = ast_text(l->arena, path);
    DiagRef e = lower_error(l, E006, path->span, "unknown parameter '%s' for the weight of '%s'",
                            text, m->name);
    if (owner == NULL)
        diag_hint(l->diag, e,
                  "the path of a member declared above, then the parameter: wte.weight");
    else if (owner->params.n > 0)
        diag_hint(l->diag, e, "'%s' has '%s'", owner->name, owner->params.data[0].name);
    return -1;
}

static const char *sizes_text(Lower *l, const int64_t *sizes, int n) {
    const char *text = "[";
    for (int i = 0; i < n; i++)
        text = arena_printf(l->arena, "%s%s%lld", text, i > 0 ? ", " : "", (long long)sizes[i]);
    return arena_printf(l->arena, "%s]", text);
}

/* A tied parameter: the target must be stored alike, and stand in no other repeat. */
static int tie_param(Lower *l, Member *m, const Instance *inst, const LayerParam *p) {
    const Ast *path = p->tie->ast;
    int index = tie_target(l, m, path);
    if (index < 0) return -1;
    const Param *target = &l->mod->param[index];
    int64_t need[NDIM_MAX];
    for (int i = 0; i < p->ndim; i++) need[i] = p->dims[i].value;
    int have_ndim = type_info(l->mod->types, target->type)->ndim - target->nstack;
    bool same = have_ndim == p->ndim && target->transposed == p->transposed;
    for (int i = 0; same && i < p->ndim; i++) same = target->logical[i] == need[i];
    if (!same) {
        DiagRef e =
            lower_error(l, E017, path->span, "tie mismatch: %s is %s%s, '%s' needs %s%s",
                        ast_text(l->arena, path), sizes_text(l, target->logical, have_ndim),
                        target->transposed ? " stored [in, out]" : "", m->name,
                        sizes_text(l, need, p->ndim), p->transposed ? " stored [in, out]" : "");
        diag_note(l->diag, e, "'%s' is declared at %s", target->name,
                  diag_place(l->diag, target->span, path->span));
        return -1;
    }
    if (target->nstack > 0) {
        size_t shared = strlen(inst->key);
        bool inside =
            target->nstack == inst->nstack && strncmp(target->name, inst->key, shared) == 0;
        if (!inside) {
            lower_error(l, E017, path->span,
                        "tie mismatch: '%s' is repeated, so it names several tensors",
                        target->name);
            return -1;
        }
    }
    return index;
}

static int new_param(Lower *l, const Member *m, const Instance *inst, const LayerParam *p) {
    Dim stored[NDIM_MAX];
    int ndim = 0;
    if (inst->nstack + p->ndim > NDIM_MAX) {
        lower_error(l, E026, m->span, "parameter '%s.%s' has a rank over %d with its repeats",
                    m->path, p->name, NDIM_MAX);
        return -1;
    }
    Param out = {.transposed = p->transposed, .trainable = true, .decay = true, .span = m->span};
    for (int i = 0; i < inst->nstack; i++) stored[ndim++] = dim_number(l->arena, inst->stack[i]);
    for (int i = 0; i < p->ndim; i++) {
        Dim d = p->dims[i];
        if (d.free != NULL) {
            DiagRef e = lower_error(l, E014, m->span,
                                    "the shape of parameter '%s.%s' has the free dimension '%s'",
                                    m->name, p->name, d.text);
            diag_hint(l->diag, e,
                      "a parameter's size must not depend on the batch: give the dim a value, dim "
                      "%s = ...",
                      d.text);
            return -1;
        }
        out.logical[i] = d.value;
        if (i == 0 && p->pad > 1) {
            int64_t rows = 0;
            bool fits = !__builtin_add_overflow(d.value, p->pad - 1, &rows);
            if (fits) d = dim_number(l->arena, rows / p->pad * p->pad);
        }
        stored[ndim++] = d;
    }
    if (!shape_fits(l, DT_f32, ndim, stored, m->span)) return -1;
    int64_t sizes[NDIM_MAX];
    for (int i = 0; i < ndim; i++) sizes[i] = stored[i].value;
    out.type = type_intern(l->mod->types, DT_f32, ndim, sizes);
    out.nstack = inst->nstack;
    out.name = arena_printf(l->arena, "%s.%s", m->key, p->name);
    out.scope = m->scope;
    init_of(p, &out);
    return module_add_param(l->mod, out);
}

void layer_param_add(Lower *l, Member *m, Instance *inst, const LayerParam *p) {
    bool tied = p->tie != NULL && p->tie->kind == VALUE_expr;
    int index = tied ? tie_param(l, m, inst, p) : new_param(l, m, inst, p);
    if (index < 0)
        m->broken = true;
    else if (tied)
        module_add_alias(l->mod, arena_printf(l->arena, "%s.%s", m->key, p->name), index);
    vec_push(l->arena, &m->params,
             (MemberParam){.name = p->name, .param = index, .tied = tied, .span = m->span});
}

Val layer_param_val(Lower *l, const Member *m, const char *name) {
    const MemberParam *mp = member_param(m, name);
    if (mp == NULL || mp->param < 0) return (Val){0};
    const Param *p = &l->mod->param[mp->param];
    Val v = l->weight[mp->param];
    if (v.id == 0) return v;
    const TypeInfo *t = val_info(l->b.g, v);
    int64_t begin[NDIM_MAX] = {0}, end[NDIM_MAX], step[NDIM_MAX];
    bool padded = false;
    for (int i = 0; i < t->ndim; i++) {
        end[i] = p->logical[i];
        step[i] = 1;
        padded = padded || end[i] != t->dim[i];
    }
    return padded ? build_slice(&l->b, v, begin, end, step) : v;
}
