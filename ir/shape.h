/* shape.h - result types of operations: the shape rules that ops.def names. */
#ifndef INFINIC_IR_SHAPE_H
#define INFINIC_IR_SHAPE_H

#include "ir/graph.h"

/* What a rule looks at. `given` is the written type of result 0, or 0. */
typedef struct ShapeQuery {
    TypeTable *types;
    Arena *arena;
    Op op;
    int nin;
    const Type *in;
    int nattr;
    const Attr *attr;
    Type given;
} ShapeQuery;

enum { SHAPE_RESULTS_MAX = 3 };

/* Computes the result types of a non-region op into out[0 .. op_results(op)). Returns NULL, or why
 * the operands do not fit, in words ("operands differ: f32[4,8] and f32[8]"), kept in the arena. */
const char *shape_check(const ShapeQuery *q, Type out[SHAPE_RESULTS_MAX]);

/* The same for a region node with this body: result types into out[0 .. *nout), *nout at most
 * body->nout + 1, in q->arena. */
const char *shape_check_region(const ShapeQuery *q, const Graph *body, Type **out, int *nout);

/* Whether the attributes are exactly those of the op's row, each once and of sane values. NULL or
 * why not. */
const char *shape_check_attrs(Arena *arena, Op op, int nattr, const Attr *attr);

/* One axis of a convolution or pooling: (size + 2 * padding - window) / stride + 1, 0 when the
 * window does not fit. */
int64_t shape_window(int64_t size, int64_t window, int64_t stride, int64_t padding);

#endif
