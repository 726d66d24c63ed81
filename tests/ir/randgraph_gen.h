/* randgraph_gen.h - the state of a growing random graph; for randgraph*.c only. */
#ifndef INFINIC_TESTS_IR_RANDGRAPH_GEN_H
#define INFINIC_TESTS_IR_RANDGRAPH_GEN_H

#include "tests/ir/randgraph.h"

typedef struct RandGen {
    const RandOptions *o;
    uint64_t *state; /* of the generator, shared with bodies */
    Builder b;
    Arena *arena;
    VEC(Val) floats; /* usable values by kind */
    VEC(Val) ints;   /* in [0, 3) */
    VEC(Val) bools;
    VEC(double) bound; /* |value| by id */
    int depth;         /* enclosing repeats */
} RandGen;

enum { RAND_ELEMS_MAX = 400, RAND_ELEMS_LARGE = 6000, RAND_ELEMS_HUGE = 250000 };

uint32_t rand_below(RandGen *r, uint32_t n);
bool rand_chance(RandGen *r, uint32_t percent);
double rand_between(RandGen *r, double low, double high); /* three decimals */

/* Makes v usable; scales it down when its bound is large. Values with too many elements are left
 * out. */
void rand_keep(RandGen *r, Val v, double bound);
void rand_keep_input(RandGen *r, Val v, double bound); /* never scaled: no node may be added yet */
double rand_bound(const RandGen *r, Val v);

Val rand_float(RandGen *r);                   /* any usable float value; there is always one */
Val rand_float_of(RandGen *r, Type t);        /* of this type; id 0 when there is none */
Val rand_partner(RandGen *r, Val v);          /* of v's type: found, broadcast or constant */
Val rand_scale(RandGen *r, Val v, double by); /* v * by */
Val rand_offset(RandGen *r, Val v);           /* v + a number unlikely to hit a kink */
Val rand_untie(RandGen *r, Val v);            /* v + a small number that differs by element */
Val rand_positive(RandGen *r, Val v);         /* sigmoid(v) + 0.5, in [0.5, 1.5] */
Type rand_type(const RandGen *r, Dtype dtype, int ndim, const int64_t *dim);

/* Adds one operation with what it needs; false when nothing fits it. */
typedef bool RandOp(RandGen *r);
RandOp rand_op_unary, rand_op_kink, rand_op_binary, rand_op_select, rand_op_int, rand_op_source;
RandOp rand_op_reduce, rand_op_argmax, rand_op_reshape, rand_op_transpose, rand_op_slice;
RandOp rand_op_concat, rand_op_broadcast, rand_op_pad, rand_op_matmul, rand_op_gather;
RandOp rand_op_softmax, rand_op_norm, rand_op_cross_entropy, rand_op_attention;
RandOp rand_op_dropout;
RandOp rand_op_conv, rand_op_max_pool, rand_op_avg_pool, rand_op_repeat;

/* Adds about n operations. */
void rand_grow(RandGen *r, int n);

#endif
