/* layer_param.h - parameters of layers: declaring, tying, initialising, reading. */
#ifndef FRONTEND_LAYER_PARAM_H
#define FRONTEND_LAYER_PARAM_H

#include "frontend/lower.h"

/* What a layer says about one of its parameters. */
typedef struct LayerParam {
    const char *name;
    int ndim;
    Dim dims[NDIM_MAX];
    int64_t pad;     /* stored rows are a multiple of this; 0: as they are */
    bool transposed; /* stored [in, out] */
    InitKind init;   /* the layer's default */
    double init_a;
    int64_t fan_in, fan_out;
    const Value *init_given; /* the init argument, VALUE_none when absent; may be NULL */
    const Value *tie;        /* the weight argument, likewise */
} LayerParam;

/* Declare a parameter of member m in the module, or tie it. Errors mark the member broken. */
void layer_param_add(Lower *l, Member *m, Instance *inst, const LayerParam *p);

/* The parameter's value in the graph being built, without padding; id 0 when the member has none
 * of that name. */
Val layer_param_val(Lower *l, const Member *m, const char *name);

const MemberParam *member_param(const Member *m, const char *name);

#endif
