/* math_cuda_test.c - exp, log, tanh, erf of the CUDA target against f64, the chip's instructions
 * replaced by functions that round correctly: the rest of the allowance is theirs. */
#include "runtime/plan.h"

#include <math.h>

#pragma GCC diagnostic ignored "-Wpsabi"
#include "codegen/prelude.h"

#define INF_FMA(a, b, c)  fmaf(a, b, c)
#define INF_EX2(x)        exp2f(x)
#define INF_RCP(x)        (1.0f / (x))
#define INF_NAN_MAX(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define INF_NAN_MIN(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))
#include "codegen/prelude_math.h"

enum { ULPS_MAX = 3 };

#include "tests/codegen/math_cases.h"
