/* whole_make.h - what whole.c and whole_expect.c share. */
#ifndef INFINIC_TESTS_CODEGEN_WHOLE_MAKE_H
#define INFINIC_TESTS_CODEGEN_WHOLE_MAKE_H

#include "tests/codegen/whole.h"

enum { WHOLE_SEED = 77, WHOLE_STEP = 5 }; /* of the random streams */

/* Host scalars of the step: lr, bias corrections, decay, clip (+inf when off). */
double whole_scalar(const WholeCase *c, HostScalar which);

/* Graphs "train" and "eval" and all settings in an empty module. */
void whole_make(const WholeCase *c, Module *m);

#endif
