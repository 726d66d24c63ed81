/* value.h - what an expression of the model evaluates to.
 *
 * Static values (numbers, words, tuples) are known at compile time; a tensor has symbolic
 * dimensions and a value in the graph being built. VALUE_none is the result of an expression that
 * was wrong: it has had its message, and whatever is computed from it stays silent.
 */
#ifndef FRONTEND_VALUE_H
#define FRONTEND_VALUE_H

#include "frontend/ast.h"
#include "frontend/dim.h"
#include "ir/graph.h"

typedef enum ValueKind {
    VALUE_none,
    VALUE_int,
    VALUE_float,
    VALUE_bool,
    VALUE_str,
    VALUE_tuple,
    VALUE_tensor,
    VALUE_setting, /* adamw(...), mnist(...), normal(...) */
    VALUE_expr,    /* an argument kept as syntax: decay_if, rearrange's pattern */
} ValueKind;

struct SettingFn;

/* How a mean over counted elements was made: the loss and metrics are output as sum and count. */
typedef struct MeanOf {
    Val sum, count;     /* f32 []; id 0 when the tensor is no such mean */
    const char *metric; /* "accuracy" */
} MeanOf;

typedef struct Value Value;
struct Value {
    ValueKind kind;
    Span span;
    Dim dim;       /* int */
    double number; /* float */
    bool truth;    /* bool */
    const char *s; /* str */
    Value *item;   /* tuple: n items; setting: its arguments */
    int n;
    const struct SettingFn *fn; /* setting */
    const Ast *ast;             /* expr */
    /* tensor */
    Dtype dtype;
    int ndim;
    const Dim *dims;
    Val val;
    MeanOf mean;
    const char *trail; /* where its sizes come from: "Conv2d(k = 3) without padding: 28 -> 26" */
    bool flattened;    /* the last axis was made by flatten */
};

/* What kind of value a message calls it: "a number", "a tensor f32 [B, T]". */
const char *value_describe(Arena *a, const Value *v);

/* "f32 [B, T, D]" */
const char *value_type_text(Arena *a, const Value *v);

/* A static value as model text, for messages and `BuildSetting`s. */
const char *value_text(Arena *a, const Value *v);

bool value_is_static(const Value *v);

/* int or float as a double; false for anything else. */
bool value_number(const Value *v, double *number);

Value value_int(Dim dim);
Value value_float(double number);
Value value_bool(bool truth);
Value value_str(const char *s);

#endif
