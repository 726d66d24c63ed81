/* shape_rule.h - what the files of shape rules share. */
#ifndef INFINIC_IR_SHAPE_RULE_H
#define INFINIC_IR_SHAPE_RULE_H

#include "ir/shape.h"

/* A rule: operands and attributes have been counted and are of the right kinds. */
typedef const char *ShapeRule(const ShapeQuery *q, Type *out);

ShapeRule shape_conv2d, shape_conv2d_dx, shape_conv2d_dw;
ShapeRule shape_attention, shape_attention_grad;
ShapeRule shape_pool2d, shape_max_pool2d, shape_avg_pool2d_dx, shape_max_pool2d_dx;

const TypeInfo *shape_in(const ShapeQuery *q, int i);     /* operand i */
const TypeInfo *shape_given_type(const ShapeQuery *q);    /* never called without one */
const Attr *shape_attr(const ShapeQuery *q, AttrKey key); /* never NULL for a required one */

/* Interns into *out; or says that the result is too large. */
const char *shape_make(const ShapeQuery *q, Type *out, Dtype dtype, int ndim, const int64_t *dim);

/* "operands differ: f32[4,8] and f32[8]", with operands i and j. */
const char *shape_pair(const ShapeQuery *q, const char *what, int i, int j);

/* "TEXT, got f32[4,8]", with operand i. */
const char *shape_one(const ShapeQuery *q, const char *what, int i);

/* "the result would be f32[4,8], not f32[8]". */
const char *shape_mismatch(const ShapeQuery *q, Type right);

#endif
