/* math_test.c - exp, log, tanh, erf of the C target against f64. */
#include "runtime/plan.h"

/* Its vectors never leave a function here. */
#pragma GCC diagnostic ignored "-Wpsabi"
#include "codegen/prelude.h"
#include "codegen/prelude_math.h"

enum { ULPS_MAX = 2 };

#include "tests/codegen/math_cases.h"
