/* dim.h - symbolic dimensions.
 *
 * A dimension has a value in the program being lowered and remembers how it was written ("3*D").
 * A free dimension (`dim B`, and what is computed from one) also carries its free part in a
 * canonical spelling; it matches only a dimension with the same free part and factor. A bound
 * dimension matches by value.
 */
#ifndef FRONTEND_DIM_H
#define FRONTEND_DIM_H

#include "ir/arena.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Dim {
    int64_t value;
    const char *text; /* as the user would write it */
    const char *free; /* canonical free part ("B*T"); NULL: bound */
    int64_t factor;   /* value = factor * (value of the free part) when free */
} Dim;

Dim dim_number(Arena *a, int64_t value);
Dim dim_bound(int64_t value, const char *text);
Dim dim_free(int64_t value, const char *name);

bool dim_equal(Dim a, Dim b);

/* Written as the number 1: the only dimension that broadcasts. */
bool dim_is_one(Dim d);

/* Arithmetic; false when the result leaves int64 or divides by zero. `op` is one of + - * / % ^
 * where '/' is floor division. */
bool dim_apply(Arena *a, char op, Dim x, Dim y, Dim *result);

/* "[B, T, 3*D]" */
const char *dims_text(Arena *a, const Dim *dims, int n);

/* "3*D = 2304", or "768" when the text is the number already. */
const char *dim_with_value(Arena *a, Dim d);

#endif
