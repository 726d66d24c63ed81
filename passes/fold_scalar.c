/* fold_scalar.c - elementwise ops on constants, with the meaning of their row in ops.def.
 *
 * Each expression is compiled twice: over float, as the target computes f32 and bf16, and over
 * double for integers, which f64 holds exactly.
 */
#include "ir/bf16.h"
#include "passes/rewrite.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#define SEL(c, x, y) ((c) ? (x) : (y))
#define MAX(x, y)    SEL(((x) > (y)) | ((x) != (x)), x, y)
#define MIN(x, y)    SEL(((x) < (y)) | ((x) != (x)), x, y)

#define L(x)       x##f
#define EXP        expf
#define EXP2       exp2f
#define LOG        logf
#define SQRT       sqrtf
#define TANH       tanhf
#define ERF        erff
#define SIGMOID(x) (1.0f / (1.0f + expf(-(x))))
#define SIN        sinf
#define COS        cosf
#define POW        powf
#define FABS       fabsf
#define FLOOR      floorf
#define EW(name, operands, shape, grad, expr)                                                      \
    static float f32_##name(float a, float b, float c) {                                           \
        (void)a, (void)b, (void)c;                                                                 \
        return (float)(expr);                                                                      \
    }
#include "ir/ops.def"
#undef L
#undef EXP
#undef EXP2
#undef LOG
#undef SQRT
#undef TANH
#undef ERF
#undef SIGMOID
#undef SIN
#undef COS
#undef POW
#undef FABS
#undef FLOOR

#define L(x)       x
#define EXP        exp
#define EXP2       exp2
#define LOG        log
#define SQRT       sqrt
#define TANH       tanh
#define ERF        erf
#define SIGMOID(x) (1 / (1 + exp(-(x))))
#define SIN        sin
#define COS        cos
#define POW        pow
#define FABS       fabs
#define FLOOR      floor
#define EW(name, operands, shape, grad, expr)                                                      \
    static double f64_##name(double a, double b, double c) {                                       \
        (void)a, (void)b, (void)c;                                                                 \
        return (double)(expr);                                                                     \
    }
#include "ir/ops.def"

static const struct {
    float (*f32)(float a, float b, float c);
    double (*f64)(double a, double b, double c);
} scalar_table[OP_count] = {
#define EW(name, operands, shape, grad, expr) [OP_##name] = {f32_##name, f64_##name},
#include "ir/ops.def"
};

double scalar_round(Dtype dtype, double x) {
    if (dtype == DT_f32) return (double)(float)x;
    if (dtype == DT_bf16) return (double)bf16_round((float)x);
    return x;
}

bool scalar_same(double x, double y) { return memcmp(&x, &y, sizeof x) == 0; }

static bool is_exact(Dtype dtype) { return dtype == DT_i32 || dtype == DT_bool; }

/* Integer results must be integers that the dtype holds; what the target does otherwise (division,
 * overflow, conversion out of range) is not evaluated here. */
static bool fits(Dtype dtype, double x) {
    if (dtype == DT_i32) return x == floor(x) && x >= INT32_MIN && x <= INT32_MAX;
    return x == 0.0 || x == 1.0;
}

bool scalar_eval(Op op, Dtype from, Dtype to, const double x[3], double *result) {
    if (from == DT_u8 || to == DT_u8 || scalar_table[op].f32 == NULL) return false;
    if (op == OP_cast && to == DT_bool && from != DT_bool) return false;
    double y = is_exact(from) ? scalar_table[op].f64(x[0], x[1], x[2])
                              : (double)scalar_table[op].f32((float)x[0], (float)x[1], (float)x[2]);
    if (op == OP_cast && to == DT_i32 && !is_exact(from)) y = trunc(y);
    if (is_exact(to) && !fits(to, y)) return false;
    *result = scalar_round(to, y);
    return true;
}
