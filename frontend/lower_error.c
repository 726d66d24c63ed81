/* lower_error.c - errors of the model with the chain of instantiation; names in scope. */
#include "frontend/lower.h"

#include <string.h>

DiagRef lower_error(Lower *l, DiagCode code, Span span, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(l->arena, fmt, ap);
    va_end(ap);
    DiagRef e = diag_error(l->diag, code, span, "%s", text);
    const Instance *inst = l->frame != NULL ? l->frame->instance : NULL;
    if (inst == NULL || inst->up == NULL) return e;
    const char *where = diag_place(l->diag, inst->declared, span);
    const char *repeated = "";
    if (inst->repeated.file != 0)
        repeated =
            arena_printf(l->arena, ", repeated at %s", diag_place(l->diag, inst->repeated, span));
    diag_note(l->diag, e, "in block %s, as %s (%s%s)", inst->block->text, inst->path, where,
              repeated);
    return e;
}

const DimDecl *dim_find(const Lower *l, const char *name) {
    for (uint32_t i = 0; i < l->settings.dims.n; i++)
        if (strcmp(l->settings.dims.data[i].name, name) == 0) return &l->settings.dims.data[i];
    return NULL;
}

const Value *config_find(const Lower *l, const char *name) {
    for (uint32_t i = 0; i < l->settings.config.n; i++)
        if (strcmp(l->settings.config.data[i].name, name) == 0)
            return &l->settings.config.data[i].value;
    return NULL;
}

bool dim_value(const Lower *l, const DimDecl *d, Dim *dim) {
    if (!d->is_free) {
        *dim = d->dim;
        return d->valid;
    }
    const DimValue *values = l->settings.dim_value[l->section];
    if (values == NULL) return false;
    int64_t value = values[d - l->settings.dims.data].value;
    *dim = dim_free(value, d->name);
    return value > 0;
}
