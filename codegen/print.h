/* print.h - what the printers of the loop form share: indices, numbers, the text of operations.
 *
 * Everything here is the same in C and in CUDA C but for the words in PrintWords.
 */
#ifndef INFINIC_CODEGEN_PRINT_H
#define INFINIC_CODEGEN_PRINT_H

#include "codegen/loop.h"

typedef struct Printer Printer;
typedef void PrintStmt(Printer *p, const LoopStmt *s);

typedef struct PrintWords {
    const char *nan;         /* a quiet NaN, f32 */
    const char *fma;         /* a * b + c of floats, rounded once */
    const char *env, *field; /* the moment, as an argument; what leads to its fields */
    bool short_axes;         /* loop variables are int32_t where their extent fits */
    PrintStmt *const *stmt;  /* by LoopStmtKind */
} PrintWords;

struct Printer {
    const LoopKernel *k;
    const PrintWords *words;
    FILE *out;
    const char *name; /* of the kernel */
    int indent;
    const LoopStmt *vector; /* CUDA: the vector loop whose body is being printed */
    bool *known;            /* by axis: an unrolled axis whose number is being printed */
    int64_t *value;
};

Printer print_start(const LoopKernel *k, const PrintWords *words, const char *name, FILE *out);

void print_line(Printer *p); /* indentation */
void print_block(Printer *p, const LoopBlock *block);
void print_body(Printer *p, const LoopBlock *block); /* one level further in, and "}" */

/* The number of an index whose axes are all known. */
bool print_known_index(const Printer *p, LoopIdx index, int64_t *value);
/* The sum without parentheses around it. `narrow`: in int32_t, when its range is known to fit. */
void print_index(Printer *p, LoopIdx index, bool narrow);
bool print_fits_narrow(const Printer *p, LoopIdx index);
/* Whether the printer computes it in int32_t wherever it may. */
bool print_short(const Printer *p, LoopIdx index);
bool print_axis_is_short(const Printer *p, LoopAxis axis); /* its variable is int32_t */

bool print_is_integer(Dtype d); /* int32_t in temporaries */
const char *print_scalar_type(Dtype d);
const char *print_memory_type(Dtype d);
void print_number(Printer *p, Dtype dtype, double number);

/* "const TYPE t12 = " */
void print_begin(Printer *p, const LoopStmt *s);
/* The row's expression with a, b, c replaced; over integers the vocabulary gets the suffix I and
 * quotients go through double, so that no quotient traps. `lane` is "" or "[l]",
 * or NULL to leave a, b, c as they are. */
void print_expr(Printer *p, const LoopStmt *s, bool integer, const char *lane);
/* Arguments of a function of random numbers up to the element. */
void print_stream(Printer *p, const LoopStmt *s);

/* Statements that are the same everywhere. */
PrintStmt print_scalar_op, print_const_stmt, print_index_stmt, print_range_stmt, print_random_stmt,
    print_if_stmt, print_let_stmt;

void print_math(FILE *out); /* prelude_math.h */

#endif
